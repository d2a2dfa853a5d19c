"""Requests of one model version that can share a batch, in the order in which they are served. Pure."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Iterator

from mpspool.router.entry import Entry

_SLACK = 64


class Line:
    """A part of a queue. What is over stays in it until it comes up.

    Attributes:
        kind: what is the same in all of them.
        signature: of all of them, where they share batches.
        long: a slow lane is for each of them alone.
        fair: its clients take turns.
        count, rows: of those that wait and are still wanted.
        since_ns: no younger than the oldest of them, while they do not fill a batch.
    """

    __slots__ = ("_heap", "count", "kind", "long", "rows", "signature", "since_ns")

    fair = False

    def __init__(self, kind: Hashable, signature: str, long: bool) -> None:
        self.kind = kind
        self.signature = signature
        self.long = long
        self.count = 0
        self.rows = 0
        self.since_ns = 0
        self._heap: list[tuple[float, int, Entry]] = []

    def __iter__(self) -> Iterator[Entry]:
        """Those that wait and are still wanted, in no order; once each, though one that came back is in the heap twice."""
        return iter({entry: None for _, _, entry in self._heap if entry.line is self})

    def add(self, entry: Entry) -> None:
        self._count_in(entry)
        heapq.heappush(self._heap, (entry.key, entry.order, entry))
        if len(self._heap) > 2 * self.count + _SLACK:
            self._heap = [item for item in self._heap if item[2].line is self]
            heapq.heapify(self._heap)

    def _count_in(self, entry: Entry) -> None:
        if not self.count or entry.arrived_ns < self.since_ns:
            self.since_ns = entry.arrived_ns
        self.count += 1
        self.rows += entry.rows
        entry.line = self

    def leave(self, entry: Entry) -> None:
        """It waits here no more."""
        entry.line = None
        self.count -= 1
        self.rows -= entry.rows

    def first(self, now_ns: int) -> Entry | None:
        """The next to be served; not one whose deadline has passed, which is refused elsewhere."""
        return self._first_in(self._heap, now_ns)

    def _first_in(self, heap: list[tuple[float, int, Entry]], now_ns: int) -> Entry | None:
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


class FairLine(Line):
    """One whose clients take turns. Whose turn it is, that client's first by policy and priority takes it."""

    __slots__ = ("_holders", "_own", "_serial", "_turns")

    fair = True

    def __init__(self, kind: Hashable, signature: str, long: bool) -> None:
        super().__init__(kind, signature, long)
        self._turns: list[tuple[float, int]] = []
        self._holders: dict[int, Entry] = {}
        self._own: dict[str, _Own] = {}
        self._serial = itertools.count()

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._holders.values())

    def add(self, entry: Entry) -> None:
        self._count_in(entry)
        self._holders[entry.order] = entry
        heapq.heappush(self._turns, (entry.key, entry.order))
        if len(self._turns) > 2 * self.count + _SLACK:
            self._turns = [(holder.key, order) for order, holder in self._holders.items()]
            heapq.heapify(self._turns)
        own = self._own.get(entry.client)
        if own is None:
            own = self._own[entry.client] = _Own()
        own.count += 1
        heapq.heappush(own.heap, (entry.own_key, next(self._serial), entry))
        if len(own.heap) > 2 * own.count + _SLACK:
            own.heap = [item for item in own.heap if item[2].line is self]
            heapq.heapify(own.heap)

    def leave(self, entry: Entry) -> None:
        super().leave(entry)
        del self._holders[entry.order]
        own = self._own[entry.client]
        own.count -= 1
        if not own.count:
            del self._own[entry.client]

    def first(self, now_ns: int) -> Entry | None:
        while self._turns:
            holder = self._holders.get(self._turns[0][1])
            if (
                holder is not None
                and (first := self._first_in(self._own[holder.client].heap, now_ns)) is not None
            ):
                if first is not holder:
                    self._change_turns(holder, first)
                return first
            heapq.heappop(self._turns)
        return None

    def _change_turns(self, one: Entry, other: Entry) -> None:
        one.key, other.key = other.key, one.key
        one.start_s, other.start_s = other.start_s, one.start_s
        one.order, other.order = other.order, one.order
        self._holders[one.order], self._holders[other.order] = one, other


class _Own:
    """What waits in a line of one client."""

    __slots__ = ("count", "heap")

    def __init__(self) -> None:
        self.count = 0
        self.heap: list[tuple[float, int, Entry]] = []
