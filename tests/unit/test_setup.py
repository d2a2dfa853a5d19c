"""What a fresh machine meets: the Makefile's own decisions, and the files that it installs from."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.pool import ROOT

CONSTRAINTS = ["constraints.txt", "constraints-cuda.txt", "constraints-dev.txt"]


def make(*args: object, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    """Runs `make ARGS` with what there is on this PATH."""
    program = shutil.which("make")
    assert program is not None
    inherited = {
        key: value for key, value in os.environ.items() if key not in ("CUDA", "MAKEFLAGS", "PYTHON")
    }
    return subprocess.run(
        [program, "PYTHON=python3", *map(str, args)],
        env={**inherited, "PATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_virtual_environment_that_cannot_be_made(tmp_path: Path) -> None:
    """As on Debian without python3-venv, which leaves a python without pip: refused, every time, with the remedy."""
    venv = tmp_path / "venv"
    fake = script(
        tmp_path / "bin" / "python3.12",
        'test "$1" = -m || exit 0; mkdir -p "$3/bin"; ln -sf "$0" "$3/bin/python"; exit 1',
    )
    for _ in range(2):
        done = make(f"{venv}/.runtime", f"VENV={venv}", f"PYTHON={fake}")
        assert done.returncode == 2
        assert "needs apt-get install python3.12-venv; then run make" in done.stderr


def test_no_compiler(tmp_path: Path) -> None:
    """Where there is no g++ and none can be had, the text says which package to install."""
    there = script(tmp_path / "bin" / "id", "echo 1000").parent
    done = make("compiler", path=str(there))
    assert (done.returncode, "install it (apt-get install g++" in done.stderr) == (2, True)
    script(there / "g++", "exit 0")
    assert make("compiler", path=str(there)).returncode == 0


@pytest.mark.parametrize(
    ("given", "installed"), [([], True), (["CUDA=1"], True), (["CUDA=0"], False)], ids=["found", "1", "0"]
)
@pytest.mark.parametrize("target", ["serve", "test", "bench"])
def test_a_gpu_brings_its_libraries(tmp_path: Path, target: str, given: list[str], installed: bool) -> None:
    """Where nvidia-smi finds a GPU, TensorFlow's CUDA libraries are set up unless that is turned off."""
    there = script(tmp_path / "bin" / "nvidia-smi", "exit 0").parent
    path = f"{there}:{os.environ['PATH']}"
    done = make("-n", target, f"VENV={tmp_path}/venv", f"DEMO={tmp_path}/demo", *given, path=path)
    assert done.returncode == 0, done.stderr
    assert ("-r constraints-cuda.txt" in done.stdout) == installed


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="there is an NVIDIA GPU")
def test_without_a_gpu_nothing_is_added(tmp_path: Path) -> None:
    """An nvidia-smi that finds no GPU counts as none."""
    there = script(tmp_path / "bin" / "nvidia-smi", "exit 9").parent
    done = make("-n", "serve", f"VENV={tmp_path}/venv", path=f"{there}:{os.environ['PATH']}")
    assert ("-r constraints.txt" in done.stdout, "-r constraints-cuda.txt" in done.stdout) == (True, False)


def pins(name: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE))


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_constraints_are_hashed_and_name_no_address(name: str) -> None:
    """Each requirement has a hash; no index, host or download address stands in the file."""
    text = (ROOT / name).read_text()
    assert not re.search(r"://|^ *-[a-z-]*(index|links|host)", text, re.MULTILINE)
    entries = re.split(r"\n(?! )", text.strip())
    assert all(re.match(r"[a-z0-9-]+==\S+ .*--hash=sha256:", entry, re.DOTALL) for entry in entries)


def test_constraints_agree() -> None:
    """What serves is the same in all; the GPU's has all that TensorFlow asks for on a GPU."""
    serving = pins("constraints.txt")
    assert all(pins(name).items() >= serving.items() for name in CONSTRAINTS)
    asked = [
        text for text in importlib.metadata.requires("tensorflow") or [] if 'extra == "and-cuda"' in text
    ]
    wanted = {re.match(r"[a-z0-9-]+", text)[0] for text in asked}  # type: ignore[index]
    assert wanted
    assert wanted <= pins("constraints-cuda.txt").keys()
