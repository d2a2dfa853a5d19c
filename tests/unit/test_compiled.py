"""What is compiled to C, and when it runs as C."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import mpspool
from mpspool import compiled

PACKAGE = Path(mpspool.__file__).parent
# What a process says of each of its modules that may be compiled, by the end of the file that it came from.
SAY = """
import sys, mpspool
from mpspool import compiled
import mpspool.router.dataplane, mpspool.worker.codec
print(compiled.why_not())
print({Path(module.__file__).suffix for name, module in sys.modules.items() if name in NAMES})
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A package in place whose library is newer than its modules."""
    package = tmp_path / "mpspool"
    module = package / "core/envelope.py"
    module.parent.mkdir(parents=True)
    module.touch()
    listing = package / "compiled.py"
    listing.touch()
    (tmp_path / "pyproject.toml").touch()
    library = tmp_path / f"{compiled.LIBRARY}{EXTENSION_SUFFIXES[0]}"
    library.touch()
    os.utime(module, (1, 1))
    os.utime(listing, (1, 1))
    os.utime(library, (2, 2))
    return package


def test_every_line_of_the_list_names_files() -> None:
    for pattern in compiled.MODULES:
        assert list(PACKAGE.glob(pattern)), pattern
    assert not [file for file in compiled.files(PACKAGE) if file.name == "__init__.py"]


def test_what_is_compiled_runs_as_c(installed: Path) -> None:
    assert not compiled.obstacle(installed, {})
    assert not compiled.obstacle(installed, {compiled.VARIABLE: "1"})


def test_what_is_not_compiled_runs_as_it_is_written(installed: Path) -> None:
    """Also where it was compiled for another Python alone."""
    library = installed.parent / f"{compiled.LIBRARY}{EXTENSION_SUFFIXES[0]}"
    library.rename(library.with_name(f"{compiled.LIBRARY}.cpython-35m-x86_64-linux-gnu.so"))
    assert compiled.obstacle(installed, {}) == "they are not compiled"


def test_the_environment_has_it_run_as_it_is_written(installed: Path) -> None:
    assert compiled.obstacle(installed, {compiled.VARIABLE: "0"}) == "MPSPOOL_COMPILED=0"


def test_what_was_changed_since_runs_as_it_is_written(installed: Path) -> None:
    """In a checkout; an installed package's files have whatever times they were unpacked with."""
    changed = installed / "core/envelope.py"
    os.utime(changed, (3, 3))
    assert compiled.obstacle(installed, {}) == f"{changed} is newer than what was compiled of it"
    (installed.parent / "pyproject.toml").unlink()
    assert not compiled.obstacle(installed, {})


@pytest.mark.parametrize(("value", "suffixes"), [("0", {".py"}), ("1", {".so"})])
def test_a_process_imports_them_all_from_one_kind_of_file(value: str, suffixes: set[str]) -> None:
    if value == "1" and (why := compiled.obstacle(PACKAGE, {})):
        pytest.skip(why)
    names = {
        ".".join(("mpspool", *file.relative_to(PACKAGE).with_suffix("").parts))
        for file in compiled.files(PACKAGE)
    }
    done = subprocess.run(
        [sys.executable, "-c", f"from pathlib import Path\nNAMES = {names!r}\n{SAY}"],
        env={**os.environ, compiled.VARIABLE: value},
        capture_output=True,
        text=True,
        check=True,
    )
    reason, found = done.stdout.splitlines()
    assert reason == ("MPSPOOL_COMPILED=0" if value == "0" and not compiled.obstacle(PACKAGE, {}) else reason)
    assert found == str(suffixes)
