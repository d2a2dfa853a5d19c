"""Which connection makes way for one more where there are as many as there may be."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Generic, TypeVar

from mpspool.router.relief import next_look_s

T = TypeVar("T")

# What was found holds for so long, if it is enough.
_HOLDS_S = 1.0

# A connection, its peer's address, since when nothing of it is in the data plane (None while something is), and whether it asks
# something all the same: a call that runs nothing, or a message that has not come.
Asking = tuple[T, str, float | None, bool]


class MakingWay(Generic[T]):
    """Whose turn it is. Nobody of whom something is in the data plane makes way.

    Who asks nothing makes way for everybody; who asks something, for those whose address has no more connections than its own.

    Args:
        look: at all connections.
        end: one of them, unless it is gone or something of it is in the data plane by now; returns whether it did.
        now_s: the time.
    """

    def __init__(
        self,
        look: Callable[[], Sequence[Asking[T]]],
        end: Callable[[T], bool],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._end = end
        self._now_s = now_s
        self._line: list[Asking[T]] = []
        # Connections by address: of the last look, and what has changed here since.
        self._counts: Counter[str] = Counter()
        # When all may be looked at again, and until when what was found holds.
        self._next_look_s = self._holds_until_s = float("-inf")

    def make_room(self, address: str) -> bool:
        """Whether one was ended for another of that address."""
        now_s = self._now_s()
        if now_s >= (self._holds_until_s if self._line else self._next_look_s):
            self._look_anew(now_s)
        counts = self._counts
        while self._line:
            connection, whose, _, asks = self._line[-1]
            if asks and counts[whose] < counts[address]:
                self._holds_until_s = self._next_look_s  # it is not enough
                return False
            self._line.pop()
            if self._end(connection):
                counts[whose] -= 1
                counts[address] += 1
                return True
        return False

    def tick(self) -> None:
        """To be called about once a second: of what was found, and may be gone, nothing is kept once it does not hold."""
        if self._line and self._now_s() >= self._holds_until_s:
            self._line = []
            self._counts.clear()

    def _look_anew(self, begun_s: float) -> None:
        found = self._look()
        self._counts = Counter(address for _, address, _, _ in found)
        self._line = in_order(found, self._counts)[::-1]
        self._next_look_s = next_look_s(begun_s, self._now_s())
        self._holds_until_s = max(self._next_look_s, begun_s + _HOLDS_S)


def in_order(connections: Sequence[Asking[T]], counts: Counter[str]) -> list[Asking[T]]:
    """Those that can make way, and first who asks nothing: each is of the address that then has most of all, and the first of its own.

    So whoever opens many keeps out nobody else, unless they all have requests that run.

    Args:
        connections: all of them.
        counts: of them, by address.
    """
    can = [one for one in connections if one[2] is not None]
    left = counts.copy()
    idle = _by_address([one for one in can if not one[3]], left)
    return idle + _by_address([one for one in can if one[3]], left)


def _by_address(line: list[Asking[T]], left: Counter[str]) -> list[Asking[T]]:
    """All of them in that order; `left`, how many each address has, is without them then."""
    line.sort(key=itemgetter(2))
    counts = []
    for _, address, _, _ in line:
        counts.append(left[address])
        left[address] -= 1
    places = sorted(range(len(line)), key=counts.__getitem__, reverse=True)
    return [line[place] for place in places]
