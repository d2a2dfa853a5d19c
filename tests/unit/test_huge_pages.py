"""Huge pages, on this machine's kernel."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpspool.worker.weights import huge_pages
from tests.smaps import huge_mapped_bytes

_HUGE = huge_pages.huge_bytes()
_SIZE = 2 * _HUGE + mmap.PAGESIZE
_POPULATE_READ = 22


@pytest.fixture
def memory() -> Iterator[int]:
    """A memfd of two huge pages and a small one, with a byte in each."""
    descriptor = os.memfd_create("mpspool-huge")
    os.posix_fallocate(descriptor, 0, _SIZE)
    for number, offset in enumerate((0, _HUGE, 2 * _HUGE), start=1):
        os.pwrite(descriptor, bytes([number]), offset)
    yield descriptor
    os.close(descriptor)


def test_huge_pages_are_mapped_as_such_and_hold_what_was_written(memory: int) -> None:
    collapsed = huge_pages.collapse(memory, _SIZE, limit_s=10)
    if not collapsed:
        pytest.skip("this kernel gives no huge pages: older than 6.1, or memory is in pieces")
    assert collapsed == 2 * _HUGE
    address = huge_pages.map_aligned(memory, _SIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    huge_pages.advise(address, _SIZE, _POPULATE_READ)
    assert address % _HUGE == 0
    assert [ctypes.string_at(address + offset, 1) for offset in (0, _HUGE, 2 * _HUGE)] == [
        b"\1",
        b"\2",
        b"\3",
    ]
    assert huge_mapped_bytes(address) == 2 * _HUGE


def test_writing_to_a_private_mapping_leaves_the_segment_alone(memory: int) -> None:
    huge_pages.collapse(memory, _SIZE, limit_s=10)
    address = huge_pages.map_aligned(memory, _SIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    ctypes.memset(address + _HUGE, 9, 1)
    assert ctypes.string_at(address + _HUGE, 1) == b"\11"
    assert os.pread(memory, 1, _HUGE) == b"\2"


def test_no_time_no_huge_pages(memory: int) -> None:
    assert huge_pages.collapse(memory, _SIZE, limit_s=0) == 0


def test_what_cannot_be_collapsed_is_left_as_it_is(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "sealed", os.O_RDONLY | os.O_CREAT)
    assert huge_pages.collapse(descriptor, _SIZE, limit_s=10) == 0
    os.close(descriptor)


def test_what_cannot_be_mapped_is_an_error(memory: int) -> None:
    os.close(descriptor := os.dup(memory))
    with pytest.raises(OSError, match="descriptor"):
        huge_pages.map_aligned(descriptor, _SIZE, mmap.MAP_PRIVATE, mmap.PROT_READ)
