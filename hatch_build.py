"""The build's own step: the modules that requests pass through are compiled to C (docs/adr/0026).

They are plain Python, and run as such where that does not come off, for want of a compiler say: then a text says why.
MPSPOOL_COMPILED=0 leaves them alone, 1 refuses to go on without.

    python hatch_build.py       compiles in place, for an installation in place
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
PACKAGE = ROOT / "mpspool"
sys.path.insert(0, str(ROOT))

from mpspool import compiled  # noqa: E402

# Speed has no use for more of the compiler's work, and a machine is set up in half the time.
_OPTIMISED = "1"


def obstacle() -> str:
    """What there is not to compile with; "" for nothing."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler}; apt-get install gcc)"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if not headers.exists():
        return f"Python's headers are not there ({headers}; apt-get install python3-dev)"
    return ""


def attempt(folder: Path) -> tuple[Mapping[Path, Path], str]:
    """Compiles them as far as that is wanted and can be done.

    Returns:
        Each file that was made -> where it belongs, from the repository's root; and, where there is none, why.

    Raises:
        SystemExit: MPSPOOL_COMPILED is 1, and it cannot be done.
    """
    wanted = os.environ.get(compiled.VARIABLE, "")
    if wanted == "0":
        return {}, f"{compiled.VARIABLE}=0"
    if not (reason := obstacle()):
        try:
            return compile_into(folder), ""
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever the tools raise; mypy, SystemExit
            reason = f"{type(error).__name__}: {error}"
    if wanted == "1":
        sys.exit(f"mpspool cannot be compiled: {reason}")
    return {}, reason


def compile_into(folder: Path) -> dict[Path, Path]:
    """The library, and for each module one that refers to it.

    Returns:
        Each file -> where it belongs, from the repository's root; the library last.

    Raises:
        SystemExit: mypy found an error.
        Exception: the C compiler did.
    """
    import setuptools  # noqa: F401  mypyc looks whether it was imported
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    class Build(build_ext):
        def build_extension(self, ext: Any) -> None:
            """The many files of one library side by side: setuptools compiles one after the other."""
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                objects = pool.map(
                    lambda source: self.compiler.compile(
                        [source],
                        output_dir=self.build_temp,
                        include_dirs=ext.include_dirs,
                        extra_postargs=ext.extra_compile_args,
                    ),
                    ext.sources,
                )
                ext.extra_objects = [file for files in objects for file in files]
            ext.sources = []
            super().build_extension(ext)

    with contextlib.chdir(ROOT):
        extensions = _to_c(mypycify, f"{folder}/c")
        command = Build(Distribution({"name": "mpspool", "ext_modules": extensions, "packages": []}))
        command.build_temp, command.build_lib = f"{folder}/o", f"{folder}/lib"
        command.ensure_finalized()
        command.run()
    names = [command.get_ext_filename(one.name) for one in extensions]
    names.sort(key=lambda name: name.startswith(compiled.LIBRARY))
    return {folder / "lib" / name: Path(name) for name in names}


def _to_c(mypycify: Callable[..., list[Any]], folder: str) -> list[Any]:
    """What mypyc says besides is shown if it fails."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            return mypycify(
                # Not the project's own settings: their plugins need not be installed.
                ["--config-file=", "--ignore-missing-imports", *map(str, compiled.files(PACKAGE))],
                opt_level=_OPTIMISED,
                debug_level="0",
                multi_file=True,
                group_name="mpspool",
                target_dir=folder,
            )
    except BaseException:
        print(said.getvalue(), file=sys.stderr)
        raise


class CompiledBuildHook(BuildHookInterface):  # type: ignore[type-arg,misc]
    """Hatchling's."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":  # which `make compiled` does
            return
        self._folder = tempfile.TemporaryDirectory()
        files, reason = attempt(Path(self._folder.name))
        if reason:
            self.app.display_warning(f"mpspool is not compiled: {reason}")
            return
        build_data["pure_python"], build_data["infer_tag"] = False, True
        build_data["force_include"] |= {str(file): str(place) for file, place in files.items()}

    def finalize(self, version: str, _build_data: dict[str, Any], _artifact: str) -> None:
        if self.target_name == "wheel" and version != "editable":
            self._folder.cleanup()


def main() -> None:
    """Compiles in place, if it is not or something has changed since."""
    if not compiled.obstacle(PACKAGE, os.environ) or os.environ.get(compiled.VARIABLE) == "0":
        return
    # The library says that all is there: it goes first and comes last.
    for file in [*ROOT.glob(f"{compiled.LIBRARY}.*.so"), *PACKAGE.rglob("*.so")]:
        file.unlink()
    print("compiling what requests pass through", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        files, reason = attempt(Path(folder))
        for file, place in files.items():
            shutil.copyfile(file, ROOT / f"{place}.new")
            os.replace(ROOT / f"{place}.new", ROOT / place)
    if reason:
        print(f"mpspool is not compiled, and runs all the same: {reason}")


if __name__ == "__main__":
    main()
