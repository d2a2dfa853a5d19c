"""Requests of one model version that can share a batch, in the order in which they are served. Pure."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Iterator

from mpspool.router.scheduling.entry import Entry, Kind

_SLACK = 64


class Line:
    """A part of a queue. What is over stays in it until it comes up.

    Attributes:
        kind: what is the same in all of them; None of those that share no batches.
        signature: of all of them, where they share batches.
        long: a slow lane is for each of them alone.
        slow: it is for them, alone or since a batch of them was to be long.
        fair: its clients take turns.
        begun_by: the client of its first.
        count, rows, all_rows: of those that wait and are still wanted; the last of all runs of those that take several.
        since_ns: no younger than the oldest of them, while they do not fill a batch.
        until_ns: till when, at the latest, they wait for more, by their deadlines, while they do not fill a batch; 0 where none has one.
    """

    __slots__ = (
        "_heap",
        "all_rows",
        "begun_by",
        "count",
        "kind",
        "long",
        "rows",
        "signature",
        "since_ns",
        "slow",
        "until_ns",
    )

    fair = False

    def __init__(self, kind: Kind | None, signature: str, long: bool, begun_by: str = "") -> None:
        self.kind = kind
        self.signature = signature
        self.long = long
        self.slow = long
        self.begun_by = begun_by
        self.count = 0
        self.rows = self.all_rows = 0
        self.since_ns = 0
        self.until_ns = 0
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
        if not self.count:
            self.until_ns = 0
        if entry.deadline_ns:
            self.until_ns = min(self.until_ns or entry.deadline_ns, entry.joins_until_ns)
        self.count += 1
        self.rows += entry.rows
        self.all_rows += entry.all_rows
        entry.line = self

    def leave(self, entry: Entry) -> None:
        """It waits here no more."""
        entry.line = None
        self.count -= 1
        self.rows -= entry.rows
        self.all_rows -= entry.all_rows
        if not self.count:
            self._heap.clear()  # who comes back may have another place

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
            self.until_ns = min((entry.joins_until_ns for entry in self if entry.deadline_ns), default=0)


class FairLine(Line):
    """One whose clients take turns. Whose turn it is, that client's first by policy and priority takes it."""

    __slots__ = ("_next", "_own", "_serial")

    fair = True

    def __init__(self, kind: Kind | None, signature: str, long: bool, begun_by: str = "") -> None:
        super().__init__(kind, signature, long, begun_by)
        # The next turn of each client, or one that it had before: what is out of date is seen when it comes up.
        self._next: list[tuple[float, int, str]] = []
        self._own: dict[str, _Own] = {}
        self._serial = itertools.count()

    def __iter__(self) -> Iterator[Entry]:
        return (entry for own in self._own.values() for entry in own.holders.values())

    def add(self, entry: Entry) -> None:
        self._count_in(entry)
        own = self._own.get(entry.client)
        if own is None:
            own = self._own[entry.client] = _Own()
        if own.add(entry, next(self._serial)):
            self._list(entry.client, own)

    def _list(self, client: str, own: _Own) -> None:
        """Its next turn is earlier than the one that is listed, or none is."""
        heapq.heappush(self._next, (*own.next_turn(), client))
        if len(self._next) > 2 * len(self._own) + _SLACK:
            self._next = [(*one.next_turn(), client) for client, one in self._own.items()]
            heapq.heapify(self._next)

    def leave(self, entry: Entry) -> None:
        super().leave(entry)
        own = self._own[entry.client]
        own.settle(entry)
        del own.holders[entry.order]
        if not own.holders:
            del self._own[entry.client]

    def holds(self, client: str) -> bool:
        """Whether anything of a client waits here."""
        return client in self._own

    def last_of(self, client: str) -> Entry | None:
        """Who holds the turn of a client that was given last."""
        own = self._own.get(client)
        return None if own is None else own.last()

    def take_over(self, last: Entry, left: Entry) -> None:
        """What last_of() has said takes the turn of one that has left, for its own; by its policy it is next as much later as before."""
        own = self._own[last.client]
        del own.holders[last.order]
        last.key += left.start_s - last.start_s
        last.start_s, last.order = left.start_s, left.order + 1  # not that one's, which stands for its turn
        last.charge_s, left.charge_s = left.charge_s, last.charge_s
        if own.add_turn(last):
            self._list(last.client, own)

    def delay(self, client: str, by_s: float) -> None:
        """All that waits of a client counts as arrived so much later, or earlier: it was charged for what went before."""
        own = self._own.get(client)
        if own is not None:
            own.owed_s += by_s
            if by_s < 0.0:
                self._list(client, own)

    def first(self, now_ns: int) -> Entry | None:
        while self._next:
            key, order, client = self._next[0]
            own = self._own.get(client)
            if own is None:
                heapq.heappop(self._next)
            elif (turn := own.next_turn()) != (key, order):
                heapq.heapreplace(self._next, (*turn, client))
            elif (first := self._first_in(own.heap, now_ns)) is not None:
                if first is not own.holders[order] or first.owed_s != own.owed_s:
                    own.give_turn(order, first)
                return first
            else:
                own.listed = False
                heapq.heappop(self._next)
        return None


class _Own:
    """What waits in a line of one client, and its turns, one for each.

    Attributes:
        heap: by policy and priority; those that have left, too.
        holders: of the turns, which somebody else may take, by order.
        owed_s: how much later each turn is than when it was given, beyond what it was then.
        listed: the line has a turn of this client listed.
    """

    __slots__ = ("_orders", "_turns", "heap", "holders", "listed", "owed_s")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Entry]] = []
        self.holders: dict[int, Entry] = {}
        self.owed_s = 0.0
        self.listed = False
        self._turns: list[tuple[float, int]] = []  # but for what is owed; those of who has left, too
        self._orders: list[int] = []  # of the turns, sorted; those of who has left, too

    def add(self, entry: Entry, serial: int) -> bool:
        """Returns whether the line has to list the next turn anew."""
        entry.owed_s = self.owed_s
        heapq.heappush(self.heap, (entry.own_key, serial, entry))
        anew = self.add_turn(entry)
        if len(self.heap) > 2 * len(self.holders) + _SLACK:
            self.heap = [item for item in self.heap if self.holders.get(item[2].order) is item[2]]
            heapq.heapify(self.heap)
        return anew

    def add_turn(self, entry: Entry) -> bool:
        """That of one that owes nothing beyond its key; as add()."""
        self.holders[entry.order] = entry
        turn = entry.key - self.owed_s, entry.order
        heapq.heappush(self._turns, turn)
        anew = not self.listed or self._turns[0] is turn
        self.listed = True
        bisect.insort(self._orders, entry.order)  # at the end, as a rule
        if len(self._turns) > 2 * len(self.holders) + _SLACK:
            self._turns = [(one.key - one.owed_s, order) for order, one in self.holders.items()]
            heapq.heapify(self._turns)
        if len(self._orders) > 2 * len(self.holders) + _SLACK:
            self._orders = sorted(self.holders)
        return anew

    def settle(self, entry: Entry) -> None:
        """What it owes stands in its key."""
        late_s = self.owed_s - entry.owed_s
        entry.key += late_s
        entry.start_s += late_s
        entry.owed_s = self.owed_s

    def next_turn(self) -> tuple[float, int]:
        """While anything waits."""
        while self._turns[0][1] not in self.holders:
            heapq.heappop(self._turns)
        at, order = self._turns[0]
        return at + self.owed_s, order

    def last(self) -> Entry:
        """While anything waits: who holds the turn that was given last. What it owes stands in its key."""
        while self._orders[-1] not in self.holders:
            self._orders.pop()
        last = self.holders[self._orders[-1]]
        self.settle(last)
        return last

    def give_turn(self, order: int, first: Entry) -> None:
        """The next turn is taken by whoever is first: its holder gets that one's."""
        holder = self.holders[order]
        self.settle(holder)
        holder.key, first.key = first.key, holder.key
        holder.start_s, first.start_s = first.start_s, holder.start_s
        holder.order, first.order = first.order, holder.order
        holder.charge_s, first.charge_s = first.charge_s, holder.charge_s
        holder.owed_s, first.owed_s = first.owed_s, holder.owed_s
        self.holders[holder.order], self.holders[order] = holder, first
