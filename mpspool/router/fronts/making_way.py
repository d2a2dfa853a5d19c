"""Which connection makes way for one more where there are as many as there may be."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

# To look at all takes a microsecond or two for each: what was found holds for a while, and where it was too little for a shorter one.
_HOLDS_S = 1.0
_HOLDS_S_EACH = 1e-5

# A connection, its peer's address, and since when it asks nothing; None while it does.
Asking = tuple[T, str, float | None]


class MakingWay(Generic[T]):
    """Whose turn it is.

    Args:
        look: at all connections.
    """

    def __init__(self, look: Callable[[], Sequence[Asking[T]]]) -> None:
        self._look = look
        self._line: list[T] = []
        self._looked_s = float("-inf")
        self._count = 0

    def next(self, now_s: float) -> T | None:
        """One that asked nothing a moment ago: it may have begun since, or be gone. None where all asked something."""
        since_s = now_s - self._looked_s
        if since_s >= _HOLDS_S or (not self._line and since_s >= self._count * _HOLDS_S_EACH):
            found = self._look()
            self._looked_s, self._count = now_s, len(found)
            self._line = in_order(found)[::-1]
        return self._line.pop() if self._line else None


def in_order(connections: Sequence[Asking[T]]) -> list[T]:
    """Those that ask nothing: each is of the address that then has most of all, and has asked nothing for the longest of its own.

    So whoever opens many keeps out nobody else.
    """
    counts: Counter[str] = Counter()
    idle: defaultdict[str, list[tuple[float, T]]] = defaultdict(list)
    for connection, address, since_s in connections:
        counts[address] += 1
        if since_s is not None:
            idle[address].append((since_s, connection))
    found: list[tuple[int, float, T]] = []
    for address, own in idle.items():
        own.sort(key=lambda one: one[0])
        found += [(gone - counts[address], since_s, one) for gone, (since_s, one) in enumerate(own)]
    found.sort(key=lambda one: one[:2])
    return [one for _, _, one in found]
