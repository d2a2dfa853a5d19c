"""Huge pages, on this machine's kernel."""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpspool.worker.weights import huge_pages
from mpspool.worker.weights.huge_pages import HugePages
from tests.smaps import huge_mapped_bytes

_HUGE = huge_pages.huge_bytes()
_SIZE = 2 * _HUGE + mmap.PAGESIZE
_POPULATE_READ = 22


@pytest.fixture
def memory() -> Iterator[int]:
    """A memfd with room for two huge pages and a small one."""
    descriptor = os.memfd_create("mpspool-huge", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, _SIZE)
    yield descriptor
    os.close(descriptor)


def write_everywhere(descriptor: int) -> int:
    """A byte into each page, which was prepared for. Returns the bytes that lie in huge pages."""
    with HugePages(descriptor, _SIZE) as huge:
        for number, offset in enumerate((0, _HUGE, 2 * _HUGE), start=1):
            huge.prepare(offset, offset + 1)
            os.pwrite(descriptor, bytes([number]), offset)
        return huge.bytes


def test_huge_pages_are_mapped_as_such_and_hold_what_was_written(memory: int) -> None:
    """Each is there before its first byte; what is left over at the end lies in a small one."""
    found = write_everywhere(memory)
    if not found:
        pytest.skip("this kernel gives no huge pages: older than 6.1, or memory is in pieces")
    assert found == 2 * _HUGE
    address = huge_pages.map_aligned(memory, _SIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    huge_pages.advise(address, _SIZE, _POPULATE_READ)
    assert address % _HUGE == 0
    assert [ctypes.string_at(address + offset, 1) for offset in (0, _HUGE, 2 * _HUGE)] == [
        b"\1",
        b"\2",
        b"\3",
    ]
    assert huge_mapped_bytes(address) == 2 * _HUGE


def test_what_was_written_before_is_left_as_it_is(memory: int) -> None:
    """Bytes of two tensors may share a page: it is prepared for the first of them, however often it is asked for."""
    with HugePages(memory, _SIZE) as huge:
        huge.prepare(0, 10)
        os.pwrite(memory, b"first", 0)
        huge.prepare(5, 2 * _HUGE)
        huge.prepare(0, _SIZE)
        assert os.pread(memory, 6, 0) == b"first\0"
        assert huge.bytes in {0, 2 * _HUGE}


def test_writing_to_a_private_mapping_leaves_the_segment_alone(memory: int) -> None:
    """Also where it lies in a huge page."""
    write_everywhere(memory)
    address = huge_pages.map_aligned(memory, _SIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    ctypes.memset(address + _HUGE, 9, 1)
    assert ctypes.string_at(address + _HUGE, 1) == b"\11"
    assert os.pread(memory, 1, _HUGE) == b"\2"


def test_where_they_are_hard_to_find_no_more_are_looked_for(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After as long as all else took, or a second: here after the first one, and nothing else takes any time."""
    monkeypatch.setattr(huge_pages, "_LEAST_S", 0.0)
    times = itertools.chain([0.0, 0.0], itertools.repeat(1.0))  # made, the first is begun, it is there
    monkeypatch.setattr(huge_pages, "time", SimpleNamespace(monotonic=lambda: next(times)))
    with HugePages(memory, _SIZE) as huge:
        huge.prepare(0, 2 * _HUGE)
        assert huge.bytes in {0, _HUGE}


@pytest.mark.parametrize("access", [os.O_RDONLY, os.O_RDWR])
def test_what_cannot_be_collapsed_is_left_as_it_is(tmp_path: Path, access: int) -> None:
    """A file that cannot be written to, or that lies on a disk: nothing is said, and it is in small pages."""
    descriptor = os.open(tmp_path / "file", access | os.O_CREAT)
    if access == os.O_RDWR:
        os.posix_fallocate(descriptor, 0, _SIZE)
    with HugePages(descriptor, _SIZE) as huge:
        huge.prepare(0, _SIZE)
        assert huge.bytes == 0
    os.close(descriptor)


def test_nothing_of_it_hinders_a_seal(memory: int) -> None:
    """The kernel refuses to seal what somebody may write to."""
    write_everywhere(memory)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_what_cannot_be_mapped_is_an_error(memory: int) -> None:
    os.close(descriptor := os.dup(memory))
    with pytest.raises(OSError, match="descriptor"):
        huge_pages.map_aligned(descriptor, _SIZE, mmap.MAP_PRIVATE, mmap.PROT_READ)
