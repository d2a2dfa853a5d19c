"""What the C library does with memory that is freed."""

from __future__ import annotations

import contextlib
import ctypes

# Numbers of mallopt().
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_KEPT_BYTES = 2**26
_ARENAS = 2
# Of a block: up to this the router's are kept; of a worker's as many as the C library will.
_BODY_BYTES, _TENSOR_BYTES = 2**20, 2**25


def keep_bodies() -> None:
    """Has the C library keep up to 64 MiB of what is freed in small blocks, and give large ones back at once.

    Left to itself it gives every body of 133 KB back to the kernel, whose fresh pages for the next one cost more than
    reading it (80 us of 105); and learns, from large ones, to keep them: then a flood of bodies of 8 MB
    takes twice what they hold.
    """
    _set({_TRIM_THRESHOLD: _KEPT_BYTES, _MMAP_THRESHOLD: _BODY_BYTES, _ARENA_MAX: _ARENAS})


def keep_tensors() -> None:
    """Has the C library keep up to 64 MiB of what is freed, but for blocks of more than 32 MiB.

    Left to itself it keeps twice the largest block that was freed so far. What a call needs for its intermediate results in
    blocks of 2 MB goes back to the kernel when it ends, and the next call takes fresh pages for it: 455 faults for 512 rows of
    widedeep, a fifth of the call's time. Whether it does follows from where the blocks happen to lie.
    """
    _set({_TRIM_THRESHOLD: _KEPT_BYTES, _MMAP_THRESHOLD: _TENSOR_BYTES})


def _set(options: dict[int, int]) -> None:
    """Where there is no mallopt() all stays as it is."""
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        for option, value in options.items():
            libc.mallopt(option, value)
