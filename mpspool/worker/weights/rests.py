"""Rests between pieces of work, for one whom nobody waits for."""

from __future__ import annotations

import time

# For each second of a processor.
_RESTED_S = 2.0


class Rests:
    """Leaves two thirds of a processor's time, until it has rested long enough in all.

    Beside a copy that goes on and on, requests wait: the memory that it takes is new to the machine, and what fills it has
    the caches and the way to the memory to itself. In pieces of some milliseconds it is hardly felt.

    Args:
        limit_s: of all rests together.
    """

    def __init__(self, limit_s: float) -> None:
        self._left_s = limit_s
        self._worked_s = time.thread_time()

    def rest(self) -> None:
        """To be called after each piece of work. What this thread waited for meanwhile is no work."""
        if self._left_s <= 0:
            return
        worked_s = time.thread_time() - self._worked_s
        rest_s = min(_RESTED_S * worked_s, self._left_s)
        self._left_s -= rest_s
        time.sleep(rest_s)
        self._worked_s = time.thread_time()
