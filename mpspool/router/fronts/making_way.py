"""Which connection makes way for one more where there are as many as there may be."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Generic, TypeVar

T = TypeVar("T")

# What was found holds for so long, if it is enough.
_HOLDS_S = 1.0
# Looking at thousands takes milliseconds: of all time no more than such a part.
_LONG_LOOK_S, _BETWEEN_LOOKS = 0.001, 10

# A connection, its peer's address, and since when it asks nothing; None while it does.
Asking = tuple[T, str, float | None]


class MakingWay(Generic[T]):
    """Whose turn it is.

    Args:
        look: at all connections.
        now_s: the time.
    """

    def __init__(
        self, look: Callable[[], Sequence[Asking[T]]], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._look = look
        self._now_s = now_s
        self._line: list[T] = []
        # When all may be looked at again, and until when what was found holds.
        self._next_look_s = self._holds_until_s = float("-inf")

    def next(self) -> T | None:
        """One that asked nothing a moment ago: it may have begun since, or be gone. None where all asked something."""
        now_s = self._now_s()
        if now_s >= (self._holds_until_s if self._line else self._next_look_s):
            self._look_anew(now_s)
        return self._line.pop() if self._line else None

    def _look_anew(self, begun_s: float) -> None:
        self._line = in_order(self._look())[::-1]
        took_s = self._now_s() - begun_s
        self._next_look_s = begun_s + (took_s * _BETWEEN_LOOKS if took_s > _LONG_LOOK_S else 0.0)
        self._holds_until_s = max(self._next_look_s, begun_s + _HOLDS_S)


def in_order(connections: Sequence[Asking[T]]) -> list[T]:
    """Those that ask nothing: each is of the address that then has most of all, and has asked nothing for the longest of its own.

    So whoever opens many keeps out nobody else.
    """
    counts = Counter(address for _, address, _ in connections)
    idle = [(since_s, address, one) for one, address, since_s in connections if since_s is not None]
    idle.sort(key=itemgetter(0))
    found: list[tuple[int, T]] = []
    for _, address, one in idle:
        found.append((counts[address], one))
        counts[address] -= 1
    found.sort(key=itemgetter(0), reverse=True)
    return [one for _, one in found]
