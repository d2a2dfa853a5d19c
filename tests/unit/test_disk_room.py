"""Room for a copy is taken before the copy is, and given back as that comes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mpspool.supervisor.remote import disk_room

SIZE = 2**26


def taken(folder: Path) -> int:
    """The bytes that files of ours without a name have there."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"{folder}/"):
                found += os.stat(f"/proc/self/fd/{descriptor}").st_blocks * 512
        except FileNotFoundError:  # what has listed them
            continue
    return found


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has come is given back at once, however large the file system is."""
    monkeypatch.setattr(disk_room, "_FREE_BYTES", 2**20)


def refuse(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def allocate(_descriptor: int, _size: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(disk_room, "_allocate", allocate)


@pytest.mark.usefixtures("steps")
def test_room_is_taken_and_given_back(tmp_path: Path) -> None:
    """All of it at first, under no name; then what is still to come of each file, and nothing at the end."""
    with disk_room.kept(tmp_path, SIZE) as kept:
        if not taken(tmp_path):
            pytest.skip("the file system cannot keep room")
        assert taken(tmp_path) >= SIZE
        assert not list(tmp_path.iterdir())
        kept.came(SIZE // 4)
        assert 0 <= taken(tmp_path) - SIZE * 3 // 4 < 2**20
        kept.done(SIZE // 2)
        kept.came(SIZE // 4)
        assert 0 <= taken(tmp_path) - SIZE // 4 < 2**20
        kept.done(SIZE // 2)
        assert not taken(tmp_path)
    with disk_room.kept(tmp_path, SIZE):
        assert taken(tmp_path) >= SIZE
    assert not taken(tmp_path)


def test_more_than_there_is_is_refused(tmp_path: Path) -> None:
    """Before anything is taken; it says how much there is."""
    with (
        pytest.raises(disk_room.NoRoomError, match=f"can be had in {tmp_path}"),
        disk_room.kept(tmp_path, 2**60),
    ):
        raise AssertionError


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_quota_is_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """It is not in the file system's figures."""
    refuse(monkeypatch, number)
    with pytest.raises(disk_room.NoRoomError, match=os.strerror(number)), disk_room.kept(tmp_path, SIZE):
        raise AssertionError


def test_a_file_system_that_cannot_keep_room_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As well as it can be."""
    refuse(monkeypatch, errno.EOPNOTSUPP)
    with disk_room.kept(tmp_path, SIZE) as kept:
        kept.came(SIZE // 2)
        kept.done(SIZE)
    refuse(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)), disk_room.kept(tmp_path, SIZE):
        raise AssertionError


def test_two_that_have_looked_at_once_do_not_take_what_stays_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each looks again when it has its room: another may have taken as much since the first look."""
    seen = os.statvfs(tmp_path)

    def allocate(_descriptor: int, _size: int) -> None:
        full = os.statvfs_result((*seen[:3], 0, 0, *seen[5:]))
        monkeypatch.setattr(os, "statvfs", lambda _path: full)

    monkeypatch.setattr(disk_room, "_allocate", allocate)
    with pytest.raises(disk_room.NoRoomError, match="0 can be had"), disk_room.kept(tmp_path, SIZE):
        raise AssertionError
