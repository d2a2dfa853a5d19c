"""Memory that TensorFlow uses as it lies: what does not begin at such an address it copies."""

from __future__ import annotations

import ctypes

import numpy as np

from mpspool.worker.engine.base import Array

_ALIGNMENT = 64
# Below this a copy is cheaper than to align.
FROM_BYTES = 32 * 1024


def memory(size: int) -> Array:
    """So many bytes, to be filled."""
    room = np.empty(size + _ALIGNMENT, np.uint8)
    # Of the ways to an address the one that takes least when nothing of it is in the CPU's caches.
    start = -ctypes.addressof(ctypes.c_char.from_buffer(room.data)) % _ALIGNMENT
    return room[start : start + size]
