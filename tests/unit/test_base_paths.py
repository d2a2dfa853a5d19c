"""What lies in a base path, from one look to the next."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpspool.core.settings import VersionPolicy
from mpspool.supervisor.pool.base_paths import BasePath
from mpspool.supervisor.pool.versions import Found

LATEST = VersionPolicy()
# The outermost fields of a SavedModel: its schema's version, and an empty graph.
WHOLE = b"\x08\x01\x12\x00"


def version(base: Path, number: int, content: bytes = WHOLE) -> Path:
    folder = base / str(number)
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(content)
    return folder


def looks(base: BasePath, times: int, policy: VersionPolicy = LATEST, **wishes: set[int]) -> dict[int, Found]:
    """What several looks in a row have found, two seconds apart."""
    found: dict[int, Found] = {}
    for at in range(times):
        found = base.look(policy, found, set(), **wishes, now=2.0 * at)
    return found


def test_a_version_counts_when_nothing_in_it_has_changed(tmp_path: Path) -> None:
    """From one look to the next; without a SavedModel never."""
    folder = version(tmp_path, 3)
    (tmp_path / "4").mkdir()
    base = BasePath(str(tmp_path))
    found: dict[int, Found] = {}
    for at in range(3):
        (folder / "more").write_text("x" * at)
        found = base.look(LATEST, found, set(), now=float(at))
        assert found == {}
    assert set(base.look(LATEST, found, set(), now=4.0)) == {3}
    assert base.numbers() == [3, 4]


def test_what_is_not_whole_is_broken_only_when_nothing_comes_any_more(tmp_path: Path) -> None:
    """Five seconds: a copy may pause."""
    folder = version(tmp_path, 3, WHOLE[:3])
    base = BasePath(str(tmp_path))
    assert looks(base, 3) == {}
    assert "cut short" in looks(base, 5)[3].wrong
    (folder / "saved_model.pb").write_bytes(WHOLE)
    assert looks(base, 2)[3].wrong == ""


@pytest.mark.parametrize(
    ("wishes", "there"),
    [
        ({}, {3}),
        ({"failed": {3}}, {2, 3}),
        ({"failed": {2, 3}}, {1, 2, 3}),
        ({"unloaded": {3}}, {2}),
        ({"loaded": {1}}, {1, 3}),
    ],
)
def test_what_is_looked_into(tmp_path: Path, wishes: dict[str, set[int]], there: set[int]) -> None:
    """What the policy means; beside what has failed what it would mean without it; and what was said by hand."""
    for number in (1, 2, 3):
        version(tmp_path, number)
    assert set(looks(BasePath(str(tmp_path)), 2, **wishes)) == there


def test_odd_files_keep_nobody_from_looking(tmp_path: Path) -> None:
    """A name that is no text, a link to nowhere, and sizes that no file has."""
    folder = version(tmp_path, 3)
    (Path(os.fsdecode(os.fsencode(folder) + b"/\xff"))).write_text("x")
    (folder / "link").symlink_to("nowhere")
    assert looks(BasePath(str(tmp_path)), 2)[3].wrong == ""
    version(tmp_path, 4, b"\x08\x01\x12" + b"\xff" * 9 + b"\x7f")
    assert "no file has" in looks(BasePath(str(tmp_path)), 5)[4].wrong
