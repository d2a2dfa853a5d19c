"""Segments in huge pages, as far as the kernel has some: gathers miss fewer translations, and a mapping is made
at once and needs next to no page tables.

MADV_COLLAPSE (Linux 6.1) takes shared memory together into huge pages whatever the machine's settings for
transparent huge pages are. They are mapped as such where address and offset are aligned alike.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from pathlib import Path
from typing import Self

_MADV_COLLAPSE = 25
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value
# So long they may be looked for whatever else takes how long.
_LEAST_S = 1.0

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class HugePages:
    """Has shared memory made of huge pages, as far as the kernel goes along, before it is written to.

    To take pages together that are written already costs the kernel ten times as much, for each is moved, and
    whoever else waits for its processor waits up to 7 ms longer. A context manager: its mapping hinders seals.

    Args:
        descriptor: of a memfd or a file in a tmpfs, open for reading and writing, and not sealed.
        size: of it, bytes.

    Attributes:
        bytes: that lie in huge pages.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._huge = huge_bytes()
        self._whole = size // self._huge * self._huge
        self._seen: set[int] = set()
        self._address = 0
        self._began = time.monotonic()
        self._spent_s = 0.0
        self.bytes = 0

    def __enter__(self) -> Self:
        if self._whole:
            access = mmap.PROT_READ | mmap.PROT_WRITE
            with contextlib.suppress(OSError):
                self._address = map_aligned(self._descriptor, self._whole, mmap.MAP_SHARED, access)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._address:
            unmap(self._address, self._whole)
            self._address = 0

    def prepare(self, start: int, stop: int) -> None:
        """What is between these bytes is about to be written: huge pages for where nothing was prepared before.

        Where memory is in pieces they are hard to find: no more is tried after as long as all else took, or a second.
        """
        if not self._address:
            return
        for number in range(start // self._huge, -(-min(stop, self._whole) // self._huge)):
            if number not in self._seen:
                self._seen.add(number)
                if not self._make(number * self._huge):
                    self.__exit__()
                    return

    def _warm(self) -> None:
        """Has a huge page be there and free, which is the one that is taken next.

        A virtual machine may have to get its memory from the host first, which takes 5 ms a huge page. While one
        is made for a mapping others may run between; while pages are taken together they may not.
        """
        size = 2 * self._huge
        access = mmap.PROT_READ | mmap.PROT_WRITE
        with contextlib.suppress(OSError):
            room = _mmap(None, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, access, -1)
            with contextlib.suppress(OSError):
                advise(room, size, mmap.MADV_HUGEPAGE)
                ctypes.memset(-(-room // self._huge) * self._huge, 0, 1)
            unmap(room, size)

    def _make(self, offset: int) -> bool:
        """Returns whether there may be more."""
        begin = time.monotonic()
        self._warm()
        try:
            # Without a page the kernel takes the place for one that was cut off.
            os.pwrite(self._descriptor, b"\0", offset)
        except OSError:  # who writes there next is told the same
            return False
        if _libc.madvise(self._address + offset, self._huge, _MADV_COLLAPSE):
            return False
        advise(self._address + offset, self._huge, mmap.MADV_DONTNEED)  # it need not be seen from here
        self.bytes += self._huge
        now = time.monotonic()
        self._spent_s += now - begin
        return self._spent_s < max(_LEAST_S, now - self._began - self._spent_s)


def map_aligned(descriptor: int, size: int, flags: int, access: int) -> int:
    """mmap(2) at an address where huge pages can be mapped as such.

    Args:
        descriptor: see mmap(2), as for the others.
        size: bytes.
        flags: MAP_PRIVATE or MAP_SHARED, and others.
        access: PROT_READ and others.

    Returns:
        The address.

    Raises:
        OSError: the kernel refuses.
    """
    huge = huge_bytes()
    room = _mmap(None, size + huge, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 0, -1)
    address = -(-room // huge) * huge
    unmap(room, address - room)
    end = address + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    unmap(end, room + size + huge - end)
    return _mmap(address, size, flags | _MAP_FIXED, access, descriptor)


def advise(address: int, size: int, advice: int) -> None:
    """madvise(2). Raises OSError."""
    if _libc.madvise(address, size, advice):
        raise _error()


def unmap(address: int, size: int) -> None:
    """munmap(2), where there is anything to unmap."""
    if size > 0:
        _libc.munmap(address, size)


def huge_bytes() -> int:
    """The size of a huge page of this machine."""
    try:
        return int(Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").read_text(encoding="ascii"))
    except (OSError, ValueError):  # a kernel without them
        return 2 * 2**20


def _mmap(address: int | None, size: int, flags: int, access: int, descriptor: int) -> int:
    found = _libc.mmap(address, size, access, flags, descriptor, 0)
    if found == _FAILED:
        raise _error()
    return int(found)


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
