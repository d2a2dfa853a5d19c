"""A timer of the kernel's: an event loop's own are exact to a millisecond, which is as long as a request may take."""

from __future__ import annotations

import ctypes
import os

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_NS = 1_000_000_000
# Thirty years: what is later than that is as late as never, and more than the kernel's seconds hold.
_FAR_S = 1e9


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("ns", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class Timer:
    """Becomes readable when it is time, and stays so until it is set again; close() it.

    Raises:
        OSError: the kernel has none for us.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.timerfd_settime.argtypes = (
            ctypes.c_int, ctypes.c_int, ctypes.POINTER(_TimerSpec), ctypes.c_void_p,
        )  # fmt: skip
        self._spec = _TimerSpec()
        self._reference = ctypes.byref(self._spec)
        self.fd = int(self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK))
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, at_s: float) -> None:
        """When, by CLOCK_MONOTONIC; what is over already is now."""
        at_ns = max(1, int(min(at_s, _FAR_S) * _NS))
        self._spec.value.seconds, self._spec.value.ns = divmod(at_ns, _NS)
        if self._libc.timerfd_settime(self.fd, _ABSOLUTE, self._reference, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def stop(self) -> None:
        self._spec.value.seconds = self._spec.value.ns = 0
        self._libc.timerfd_settime(self.fd, _ABSOLUTE, self._reference, None)

    def close(self) -> None:
        os.close(self.fd)
