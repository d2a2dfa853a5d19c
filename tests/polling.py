"""Waiting for something to become true, instead of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Times as they are given are those of a machine that has nothing else to do; some are slower, or have.
_PATIENCE = 3.0


def until(probe: Callable[[], T], timeout_s: float = 30.0, what: str = "") -> T:
    """The probe's first true value. Raises AssertionError when none comes in time, which is longer than given: speed is not what is tested."""
    timeout_s *= _PATIENCE
    end = time.monotonic() + timeout_s
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout_s} s: {what or probe}; last: {value!r}")
        time.sleep(0.02)
