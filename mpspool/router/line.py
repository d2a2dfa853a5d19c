"""Requests of one model version that can share a batch, in the order in which they are served. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator

from mpspool.router.entry import Entry

_SLACK = 64


class Line:
    """A part of a queue. What is over stays in it until it comes up.

    Attributes:
        kind: what is the same in all of them.
        long: a slow lane is for them.
        count, rows: of those that wait and are still wanted.
        since_ns: no younger than the oldest of them, while they do not fill a batch.
    """

    __slots__ = ("_heap", "count", "kind", "long", "rows", "since_ns")

    def __init__(self, kind: Hashable, long: bool) -> None:
        self.kind = kind
        self.long = long
        self.count = 0
        self.rows = 0
        self.since_ns = 0
        self._heap: list[tuple[float, int, Entry]] = []

    def __iter__(self) -> Iterator[Entry]:
        """Those that wait and are still wanted, in no order; once each, though one that came back is in the heap twice."""
        return iter({entry: None for _, _, entry in self._heap if entry.line is self})

    def add(self, entry: Entry) -> None:
        if not self.count or entry.arrived_ns < self.since_ns:
            self.since_ns = entry.arrived_ns
        self.count += 1
        self.rows += entry.rows
        entry.line = self
        heapq.heappush(self._heap, (entry.key, entry.order, entry))
        if len(self._heap) > 2 * self.count + _SLACK:
            self._heap = [item for item in self._heap if item[2].line is self]
            heapq.heapify(self._heap)

    def leave(self, entry: Entry) -> None:
        """It waits here no more."""
        entry.line = None
        self.count -= 1
        self.rows -= entry.rows

    def first(self, now_ns: int) -> Entry | None:
        """The next to be served; not one whose deadline has passed, which is refused elsewhere."""
        heap = self._heap
        while heap:
            entry = heap[0][2]
            if entry.line is self and not (entry.deadline_ns and entry.deadline_ns <= now_ns):
                return entry
            heapq.heappop(heap)
        return None

    def renew(self, full_rows: int) -> None:
        """Some have left: how long do the rest wait? Of no interest while they fill a batch."""
        if self.count and self.rows < full_rows:
            self.since_ns = min((entry.arrived_ns for entry in self), default=0)
