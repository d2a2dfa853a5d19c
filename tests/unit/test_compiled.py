"""What is compiled to C, and when it runs as C."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import mpspool
from mpspool import compiled

PACKAGE = Path(mpspool.__file__).parent
WRITTEN = {
    ".".join(("mpspool", *file.relative_to(PACKAGE).with_suffix("").parts))
    for file in compiled.files(PACKAGE)
}
# Which kinds of file a process has them of.
SAY = """
import importlib, sys
from pathlib import Path
from mpspool import compiled
for name in sys.argv[1:]:
    importlib.import_module(name)
print(compiled.why_not().reason if compiled.why_not() else "")
print(*{Path(sys.modules[name].__file__).suffix for name in sys.argv[1:]})
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


def reason(package: Path, environ: Mapping[str, str] | None = None) -> str:
    found = compiled.obstacle(package, environ or {})
    assert found is not None
    assert found.remedy
    return found.reason


def test_every_line_of_the_list_names_files() -> None:
    for pattern in compiled.MODULES:
        assert list(PACKAGE.glob(pattern)), pattern
    assert not [file for file in compiled.files(PACKAGE) if file.name == "__init__.py"]


def test_what_is_compiled_runs_as_c(installed: Path) -> None:
    assert compiled.obstacle(installed, {}) is None
    assert compiled.obstacle(installed, {compiled.VARIABLE: "1"}) is None


def test_what_is_not_compiled_runs_as_it_is_written(installed: Path) -> None:
    """Also where it was compiled for another Python alone."""
    library = installed.parent / f"{compiled.LIBRARY}{EXTENSION_SUFFIXES[0]}"
    library.rename(library.with_name(f"{compiled.LIBRARY}.cpython-35m-x86_64-linux-gnu.so"))
    assert reason(installed) == "they are not compiled"


def test_the_environment_has_it_run_as_it_is_written(installed: Path) -> None:
    assert reason(installed, {compiled.VARIABLE: "0"}) == "MPSPOOL_COMPILED=0"


def test_what_was_changed_since_runs_as_it_is_written(installed: Path) -> None:
    """In a checkout; an installed package's files have whatever times they were unpacked with."""
    changed = installed / "core/envelope.py"
    os.utime(changed, (3, 3))
    assert reason(installed) == f"{changed} is newer than what was compiled of it"
    (installed.parent / "pyproject.toml").unlink()
    assert compiled.obstacle(installed, {}) is None


@pytest.mark.parametrize("value", ["0", ""])
def test_a_process_has_all_of_them_of_one_kind(value: str) -> None:
    """Wherever there is something to compile with, make has compiled them."""
    sys.path.insert(0, str(PACKAGE.parent))
    try:
        import hatch_build
    finally:
        sys.path.pop(0)
    chosen = "MPSPOOL_COMPILED=0" if os.environ.get(compiled.VARIABLE) == "0" else ""
    if value != "0" and (why := chosen or hatch_build.obstacle()):
        pytest.skip(why)
    done = subprocess.run(
        [sys.executable, "-c", SAY, *sorted(WRITTEN)],
        env={**os.environ, compiled.VARIABLE: value},
        capture_output=True,
        text=True,
        check=True,
    )
    reason, suffixes = done.stdout.splitlines()
    assert (reason, suffixes) == (("MPSPOOL_COMPILED=0", ".py") if value == "0" else ("", ".so"))


def test_what_is_written_derives_from_nothing_that_is_compiled() -> None:
    """For a compiled class takes none but compiled ones for its own, and says so only when such a one is called."""
    modules = [module.name for module in pkgutil.walk_packages(mpspool.__path__, "mpspool.")]
    classes = [
        found
        for name in modules
        if not name.endswith("__main__")
        for found in vars(importlib.import_module(name)).values()
        if isinstance(found, type) and str(found.__module__).startswith("mpspool.")
    ]
    derived = {
        (found.__qualname__, base.__qualname__)
        for found in classes
        if found.__module__ not in WRITTEN
        for base in found.__mro__[1:]
        if base.__module__ in WRITTEN and not getattr(base, "_is_protocol", False)
    }
    assert not derived
