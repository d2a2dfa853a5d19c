"""What the C library does with memory that is freed."""

from __future__ import annotations

import contextlib
import ctypes

# Numbers of mallopt().
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_KEPT_BYTES = 2**26
_MAPPED_BYTES = 2**20
_ARENAS = 2


def settle_memory() -> None:
    """Has the C library keep up to 64 MiB of what is freed in small blocks, and give large ones back at once.

    Left to itself it gives every body of 133 KB back to the kernel, whose fresh pages for the next one cost more than
    reading it (80 us of 105); and learns, from large ones, to keep them: then a flood of bodies of 8 MB
    takes twice what they hold.
    """
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)
        libc.mallopt(_ARENA_MAX, _ARENAS)
