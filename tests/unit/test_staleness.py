"""Whether what a nursery has imported is still what a new worker would import."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import pytest

from mpspool.worker.nursery import nursery, staleness
from tests.conftest import short_dir


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is taken for this package, with two modules, of which one has been imported."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").touch()
    monkeypatch.setattr("mpspool.__file__", str(tmp_path / "__init__.py"))
    module = type(sys)("mpspool.one")
    module.__file__ = str(tmp_path / "one.py")
    monkeypatch.setitem(sys.modules, "mpspool.one", module)
    return tmp_path


def test_what_was_imported_and_has_changed(package: Path) -> None:
    """A module that was imported counts, from before it was; one that was not does not."""
    found = staleness.look()
    assert staleness.changed(staleness.imported(found)) == ""
    os.utime(package / "two.py", (1, 1))
    assert staleness.changed(staleness.imported(found)) == ""
    os.utime(package / "one.py", (1, 1))
    assert staleness.changed(staleness.imported(found)) == str(package / "one.py")
    (package / "one.py").unlink()
    assert staleness.changed(staleness.imported(found)) == str(package / "one.py")


@pytest.mark.parametrize("name", ["one.py", "one.cpython-311-x86_64-linux-gnu.so"])
def test_what_was_imported_compiled_and_has_changed(
    package: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """So has it where what it was compiled of has, or was compiled anew."""
    for module in ("one", "two"):
        (package / f"{module}.cpython-311-x86_64-linux-gnu.so").touch()
    monkeypatch.setattr(
        sys.modules["mpspool.one"], "__file__", str(package / "one.cpython-311-x86_64-linux-gnu.so")
    )
    found = staleness.look()
    assert staleness.changed(staleness.imported(found)) == ""
    os.utime(package / "two.cpython-311-x86_64-linux-gnu.so", (1, 1))
    assert staleness.changed(staleness.imported(found)) == ""
    os.utime(package / name, (1, 1))
    assert staleness.changed(staleness.imported(found)) == str(package / name)


def test_what_was_not_seen_counts_from_now_on(package: Path) -> None:
    """A module of this package that was imported from elsewhere."""
    (package / "one.py").unlink()
    found = staleness.look()
    (package / "one.py").touch()
    code = staleness.imported(found)
    assert staleness.changed(code) == ""
    os.utime(package / "one.py", (1, 1))
    assert staleness.changed(code) == str(package / "one.py")


def test_what_every_installation_changes() -> None:
    """The interpreter, and the folder that TensorFlow lies in, which is not imported for that."""
    before = "tensorflow" in sys.modules
    code = staleness.imported(staleness.look())
    assert sys.executable in code
    assert any((Path(path) / "tensorflow" / "__init__.py").is_file() for path in code)
    assert ("tensorflow" in sys.modules) is before


def test_variables() -> None:
    """Those that the imports read are told apart from those that a worker reads itself."""
    ours = {b"HOME": b"/a", b"TF_CPP_MIN_LOG_LEVEL": b"1", b"LD_PRELOAD": b"x"}
    theirs = {b"HOME": b"/b", b"TF_CPP_MIN_LOG_LEVEL": b"0", b"OMP_NUM_THREADS": b"2"}
    assert staleness.differing(ours, theirs) == ["LD_PRELOAD", "TF_CPP_MIN_LOG_LEVEL"]
    assert staleness.differing(ours, {**ours, b"HOME": b"/c"}) == []
    assert staleness.mixed(ours, theirs) == {b"HOME": b"/a", b"TF_CPP_MIN_LOG_LEVEL": b"0"}


def test_failed_imports_are_tried_again_after_a_while() -> None:
    """A launcher that comes much later has the nursery replace itself; one that comes at once has not."""
    with short_dir() as root, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(root / "s"))
        found = nursery.Nursery(listener, {}, {}, "tensorflow cannot be imported")
        assert found._stale({}) == ""
        found._again = time.monotonic() - 1
        assert found._stale({}) == "to try again, since tensorflow cannot be imported"
        found._selector.close()
