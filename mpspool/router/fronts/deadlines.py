"""Which calls end when: one order of all deadlines, so that one timer is enough. Pure."""

from __future__ import annotations

import heapq
import itertools
from typing import Generic, Protocol, TypeVar

_SLACK = 256


class Call(Protocol):
    """What has a deadline, for as long as it is open."""

    @property
    def open(self) -> bool: ...


C = TypeVar("C", bound=Call)


class Deadlines(Generic[C]):
    """Calls by their deadlines, in nanoseconds of CLOCK_MONOTONIC. Those that have ended are forgotten in time, where prune() is called now and then."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, C]] = []
        self._tiebreak = itertools.count()
        self._prune_at = _SLACK

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline_ns: int, call: C) -> bool:
        """Whether it is now the first."""
        heap = self._heap
        heapq.heappush(heap, (deadline_ns, next(self._tiebreak), call))
        if len(heap) > self._prune_at:
            self.prune()
            heap = self._heap
        return bool(heap) and heap[0][2] is call

    def prune(self) -> None:
        """Forgets those that have ended; many may come at once, and no others after them."""
        self._heap = [item for item in self._heap if item[2].open]
        heapq.heapify(self._heap)
        self._prune_at = 2 * len(self._heap) + _SLACK

    def due(self, now_ns: int) -> list[C]:
        """Takes out those whose time has come."""
        heap, due = self._heap, []
        while heap and (heap[0][0] <= now_ns or not heap[0][2].open):
            call = heapq.heappop(heap)[2]
            if call.open:
                due.append(call)
        return due

    def next_ns(self) -> int | None:
        return self._heap[0][0] if self._heap else None
