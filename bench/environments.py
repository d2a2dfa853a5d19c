"""Each peer's own virtual environment, made once under the cache folder, and the load driver h2load."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
DEFAULT_CACHE = REPOSITORY / ".cache" / "bench"
TENSORFLOW = "tensorflow==2.21.0"


class BenchError(Exception):
    """Something needed for the benchmark is missing or did not run; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What is installed in one virtual environment.

    Attributes:
        requirements: pinned.
        bare: installed after them without their dependencies.
    """

    name: str
    requirements: Sequence[str]
    bare: Sequence[str] = field(default=())

    def digest(self) -> str:
        text = "\n".join([sys.version, *self.requirements, "--no-deps", *self.bare])
        return hashlib.sha256(text.encode()).hexdigest()


ENVIRONMENTS: Mapping[str, Environment] = {
    environment.name: environment
    for environment in (
        Environment("triton", (TENSORFLOW, "nvidia-pytriton==0.7.0")),
        # uvloop 0.23 leaves MLServer's worker processes without an event loop.
        Environment("mlserver", (TENSORFLOW, "mlserver==1.7.1", "uvloop==0.21.0")),
        Environment("litserve", (TENSORFLOW, "litserve==0.2.19")),
        # The stubs pull in TensorFlow by themselves, whichever version; ours is there already.
        Environment("ray", (TENSORFLOW, "ray[serve]==2.60.0"), bare=("tensorflow-serving-api==2.21.0",)),
        Environment("tools", ("py-spy==0.4.1",)),
    )
}


def ensure(name: str, cache: Path) -> Path:
    """Makes the environment if it is not there as pinned; returns its folder.

    Raises:
        BenchError: pip could not install it; the last lines of its output are in the text.
    """
    environment = ENVIRONMENTS[name]
    folder = cache / "venvs" / name
    marker = folder / "made-from"
    with _locked(cache / f"{name}.lock"):
        if not (marker.is_file() and marker.read_text() == environment.digest()):
            print(f"bench: making the environment of {name} in {folder} (once; minutes)", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            _make(environment, folder)
            marker.write_text(environment.digest())
    return folder


def _make(environment: Environment, folder: Path) -> None:
    _run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _run([*pip, *environment.requirements])
    if environment.bare:
        _run([*pip, "--no-deps", *environment.bare])
    # Importing TensorFlow without compiled files costs 15 s at every start. Some packages ship
    # sources for other Pythons, which do not compile: not an error.
    compile_all = [str(folder / "bin" / "python"), "-m", "compileall", "-q", str(folder / "lib")]
    subprocess.run(compile_all, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise BenchError(f"`{' '.join(command)}` ended with status {done.returncode}:\n{tail}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def ensure_h2load() -> str:
    """The path of h2load; installs it where apt-get is there and we may. Raises BenchError."""
    return _ensure("h2load", "nghttp2-client")


def ensure_nghttpd() -> str:
    """As ensure_h2load, of nghttp2's server."""
    return _ensure("nghttpd", "nghttp2-server")


def _ensure(program: str, package: str) -> str:
    if found := shutil.which(program):
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"bench: installing {package} for {program}", flush=True)
        _run(["apt-get", "update", "--quiet"])
        _run(["apt-get", "install", "--yes", "--quiet", package])
        if found := shutil.which(program):
            return found
    raise BenchError(
        f"{program} is not installed: install {package} (Debian, Ubuntu) or nghttp2 (Fedora, macOS)"
    )


def triton_stub() -> tuple[str, Path]:
    """Python's "X.Y" and the folder of its shared libpython: Triton's stub for it links to that.

    Raises:
        BenchError: the wheel has no stub for this Python, or this Python has no shared library.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not (3, 8) <= sys.version_info[:2] <= (3, 13):
        raise BenchError(f"nvidia-pytriton 0.7.0 brings python backend stubs for 3.8 to 3.13, not {version}")
    folder = Path(sysconfig.get_config_var("LIBDIR") or "")
    library = f"libpython{version}.so.1.0"
    if not (folder / library).is_file():
        raise BenchError(
            f"Triton's python backend needs {library}, and {sys.base_prefix} was built without it"
        )
    return version, folder
