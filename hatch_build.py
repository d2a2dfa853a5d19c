"""The build's own step: the modules that requests pass through are compiled to C, where there is a compiler.

They are plain Python, and run as such where they are not compiled (docs/adr/0026). MPSPOOL_COMPILED=0 leaves them alone, 1
refuses to go on without; else a text says why it was not done.

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
from collections.abc import Callable
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
    compiler = (os.environ.get("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler}; apt-get install gcc)"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if not headers.exists():
        return f"Python's headers are not there ({headers}; apt-get install python3-dev)"
    return ""


def clear() -> None:
    """Removes what was compiled in place."""
    for file in [*ROOT.glob(f"{compiled.LIBRARY}.*.so"), *PACKAGE.rglob("*.so")]:
        file.unlink()


def compile_in_place() -> list[Path]:
    """Compiles them; all files that are then to be installed.

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

    clear()
    with contextlib.chdir(ROOT), tempfile.TemporaryDirectory() as folder:
        extensions = _to_c(mypycify, f"{folder}/c")
        command = Build(Distribution({"name": "mpspool", "ext_modules": extensions, "packages": []}))
        command.inplace, command.build_temp, command.build_lib = True, f"{folder}/o", f"{folder}/lib"
        command.ensure_finalized()
        command.run()
        return [ROOT / command.get_ext_filename(one.name) for one in extensions]


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
        wanted = os.environ.get(compiled.VARIABLE, "")
        reason = f"{compiled.VARIABLE}=0" if wanted == "0" else obstacle()
        if reason:
            clear()
            if wanted == "1":
                raise RuntimeError(f"mpspool cannot be compiled: {reason}")
            self.app.display_warning(f"mpspool is not compiled: {reason}")
            return
        files = compile_in_place()
        build_data["pure_python"], build_data["infer_tag"] = False, True
        build_data["force_include"] |= {str(file): str(file.relative_to(ROOT)) for file in files}


def main() -> str:
    """Compiles in place what is not, or has changed since; why not, if there is something to say."""
    if not compiled.obstacle(PACKAGE, os.environ) or os.environ.get(compiled.VARIABLE) == "0":
        return ""
    if reason := obstacle():
        clear()
        return f"mpspool is not compiled, and runs all the same: {reason}"
    print("compiling what requests pass through", flush=True)
    compile_in_place()
    return ""


if __name__ == "__main__":
    if said := main():
        print(said)
