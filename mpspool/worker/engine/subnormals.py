"""Numbers too small for all of their digits, which TensorFlow takes for zero in its own threads, and the calling thread by itself does not.

Kernels are slow with them, and where a large operation is shared out among threads its answer would depend on which computes what.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

# More than a fenv_t has anywhere.
_ENVIRONMENT_BYTES = 64
# Where in a fenv_t the control register of floating point is, and its bits that have such numbers be zero.
_CONTROL = {"x86_64": (28, 0x8040), "aarch64": (0, 1 << 24)}


def without_subnormals(call: Callable[..., T]) -> Callable[..., T]:
    """The same call, during which the thread that makes it takes such numbers for zero; as it is on processors that are not known here."""
    found = _CONTROL.get(platform.machine())
    try:
        library = ctypes.PyDLL(None)
        get, set_ = library.fegetenv, library.fesetenv
    except (OSError, AttributeError):
        return call
    usual = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
    if found is None or get(usual):
        return call
    place, bits = found
    flushing = ctypes.create_string_buffer(usual.raw, _ENVIRONMENT_BYTES)
    ctypes.c_uint32.from_buffer(flushing, place).value |= bits
    begin, end = ctypes.byref(flushing), ctypes.byref(usual)

    def run(*args: Any) -> T:
        set_(begin)
        try:
            return call(*args)
        finally:
            set_(end)

    return run
