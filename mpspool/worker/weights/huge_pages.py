"""Segments in huge pages, as far as the kernel has some: gathers miss fewer translations, and a mapping is made
at once and needs next to no page tables.

MADV_COLLAPSE (Linux 6.1) takes shared memory together into huge pages whatever the machine's settings for
transparent huge pages are. They are mapped as such where address and offset are aligned alike.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from pathlib import Path

_MADV_COLLAPSE = 25
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value
# So much at a time is asked for, in 10 to 100 ms, and mapped for that long.
_STEP_BYTES = 64 * 2**20

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


def collapse(descriptor: int, size: int, limit_s: float) -> int:
    """Puts shared memory into huge pages, from its start as far as the kernel goes along.

    Args:
        descriptor: of a memfd or a file in a tmpfs, open for reading and writing, and not sealed.
        size: of it, bytes.
        limit_s: no more is begun after so many seconds. Finding huge pages takes the kernel 0.2 s per GB, and
            several times that where memory is in pieces.

    Returns:
        The bytes that lie in huge pages now; 0 where they cannot be had.
    """
    end = time.monotonic() + limit_s
    huge = huge_bytes()
    whole = size // huge * huge
    done = 0
    while done < whole and time.monotonic() < end:
        step = min(max(_STEP_BYTES, huge), whole - done)
        if not _collapsed(descriptor, done, step):
            break
        done += step
    return done


def _collapsed(descriptor: int, offset: int, size: int) -> bool:
    access = mmap.PROT_READ | mmap.PROT_WRITE
    try:
        address = map_aligned(descriptor, size, mmap.MAP_SHARED, access, offset=offset)
    except OSError:
        return False
    collapsed = bool(_libc.madvise(address, size, _MADV_COLLAPSE) == 0)
    unmap(address, size)
    return collapsed


def map_aligned(descriptor: int, size: int, flags: int, access: int, *, offset: int = 0) -> int:
    """mmap(2) at an address where huge pages can be mapped as such.

    Args:
        descriptor: see mmap(2), as for the others.
        size: bytes.
        flags: MAP_PRIVATE or MAP_SHARED, and others.
        access: PROT_READ and others.
        offset: in the file, a multiple of the size of a huge page.

    Returns:
        The address.

    Raises:
        OSError: the kernel refuses.
    """
    huge = huge_bytes()
    room = _mmap(None, size + huge, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 0, -1, 0)
    address = -(-room // huge) * huge
    unmap(room, address - room)
    end = address + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    unmap(end, room + size + huge - end)
    return _mmap(address, size, flags | _MAP_FIXED, access, descriptor, offset)


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


def _mmap(address: int | None, size: int, flags: int, access: int, descriptor: int, offset: int) -> int:
    found = _libc.mmap(address, size, access, flags, descriptor, offset)
    if found == _FAILED:
        raise _error()
    return int(found)


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
