"""The slices of a processor that threads ask for."""

from __future__ import annotations

import ctypes
import os
import struct

_SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}
# Linux before 6.12 has none of a thread's own.
KNOWN = os.uname().machine in _SCHED_GETATTR and tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 12)
SHORT_NS = 100_000


def slice_ns(thread: int) -> int:
    """What a thread has asked for, or the kernel's own; 0: this thread."""
    attributes = bytearray(48)
    buffer = (ctypes.c_char * len(attributes)).from_buffer(attributes)
    call = _SCHED_GETATTR[os.uname().machine]
    assert ctypes.CDLL(None).syscall(call, thread, buffer, len(attributes), 0) == 0
    return int(struct.unpack_from("=Q", attributes, 24)[0])


def slices_ns(pid: int) -> set[int]:
    """Those of all its threads."""
    return {slice_ns(int(thread)) for thread in os.listdir(f"/proc/{pid}/task")}
