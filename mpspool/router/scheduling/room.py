"""What waits where room is limited, and which of it leaves for a newcomer when it is full. Pure.

Where clients share, what those have waiting who have most; of the same client, and where they do not, what a more urgent one
goes before.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from mpspool.router.scheduling.entry import Entry

_SLACK = 64
# So many clients make room for one request, at most.
_GIVERS = 8


class Room:
    """What waits. Nothing may be added or discarded while somebody goes through what leaves."""

    def add(self, entry: Entry, much: int = 1) -> None:
        """An entry waits that counts for so much."""
        raise NotImplementedError

    def discard(self, entry: Entry) -> None:
        """It waits no more, if it did."""
        raise NotImplementedError

    def leaving_for(self, first: Entry, much: int) -> Iterator[Entry]:
        """What may have to leave for a request that counts for so much, in this order."""
        raise NotImplementedError


class _Rank:
    """What waits of one priority. `much`: what each counts for."""

    __slots__ = ("_latest_ns", "_sorted", "much")

    def __init__(self) -> None:
        self.much: dict[Entry, int] = {}
        self._latest_ns = 0  # when the last had arrived, of all that were added
        self._sorted = True

    def add(self, entry: Entry, much: int) -> None:
        """What came back from a worker, or from a version that has gone, has waited for longer than others that are here."""
        self._sorted = self._sorted and entry.arrived_ns >= self._latest_ns
        self._latest_ns = max(self._latest_ns, entry.arrived_ns)
        self.much[entry] = much

    def last_first(self) -> Iterator[tuple[Entry, int]]:
        """By when they arrived. Sorted once for all that came out of order since the last time."""
        if not self._sorted:
            self.much = dict(sorted(self.much.items(), key=lambda item: item[0].arrived_ns))
            self._sorted = True
        return reversed(self.much.items())


class Ranks(Room):
    """By priority: what has less than a newcomer leaves for it, of the least the last to arrive first; not what has waited for as long as
    the difference is worth, so that nobody starves in a queue that stays full.

    Args:
        step_s: of waiting, that a step of priority goes before.

    Attributes:
        much: all of it.
    """

    def __init__(self, step_s: float) -> None:
        self._ranks: dict[int, _Rank] = {}
        self._step_ns = step_s * 1e9
        self.much = 0

    def add(self, entry: Entry, much: int = 1) -> None:
        rank = self._ranks.get(entry.priority)
        if rank is None:
            rank = self._ranks[entry.priority] = _Rank()
        rank.add(entry, much)
        self.much += much

    def discard(self, entry: Entry) -> None:
        rank = self._ranks.get(entry.priority)
        if rank is not None and entry in rank.much:
            self.much -= rank.much.pop(entry)
            if not rank.much and entry.priority:
                del self._ranks[entry.priority]

    def beyond(self, keeps: int) -> Iterator[Entry]:
        """Of the least priority the last first, what there is beyond so much."""
        spare = self.much - keeps
        for priority in sorted(self._ranks):
            for entry, much in self._ranks[priority].last_first():
                spare -= much
                if spare < 0:
                    return
                yield entry

    def leaving_for(self, first: Entry, much: int) -> Iterator[Entry]:  # noqa: ARG002
        for priority in sorted(self._ranks):
            steps = first.priority - priority
            if steps <= 0:
                return
            since_ns = first.arrived_ns - steps * self._step_ns
            for entry, _ in self._ranks[priority].last_first():
                if entry.arrived_ns <= since_ns:
                    break
                yield entry


class _Part:
    """What waits of one client; listed as so much or more, by that serial number."""

    __slots__ = ("listed", "serial", "waiting")

    def __init__(self, step_s: float) -> None:
        self.waiting = Ranks(step_s)
        self.listed = 0
        self.serial = -1


class Crowd(Room):
    """By client. A change, and to ask who has most, cost the logarithm of the clients.

    Args:
        step_s: of waiting, that a step of priority goes before among those of one client.
    """

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._parts: dict[str, _Part] = {}
        # The one with most is at the front once those have left that are listed as more than they are. What has
        # another number than its part is over: each is listed once.
        self._listed: list[tuple[int, int, _Part]] = []
        self._serial = itertools.count()

    def of(self, client: str) -> int:
        """How much waits of a client."""
        part = self._parts.get(client)
        return part.waiting.much if part is not None else 0

    def add(self, entry: Entry, much: int = 1) -> None:
        part = self._parts.get(entry.client)
        if part is None:
            part = self._parts[entry.client] = _Part(self._step_s)
        part.waiting.add(entry, much)
        if part.waiting.much > part.listed:
            self._list(part)
            if len(self._listed) > 2 * len(self._parts) + _SLACK:
                self._listed = []
                for one in self._parts.values():
                    self._list(one)

    def discard(self, entry: Entry) -> None:
        part = self._parts.get(entry.client)
        if part is not None:
            part.waiting.discard(entry)
            if not part.waiting.much:
                del self._parts[entry.client]

    def leaving_for(self, first: Entry, much: int) -> Iterator[Entry]:
        """What waits of whoever has most, then of who has second most, and so on, each from its least priority's last on. Each
        keeps as much as the newcomer's client has with it; and then of that client's what the newcomer goes before.
        """
        keeps = self.of(first.client) + much
        part = self._most()
        if part is not None and part.waiting.much > keeps:
            for other in self._largest(_GIVERS):
                yield from other.waiting.beyond(keeps)
        if (own := self._parts.get(first.client)) is not None:
            yield from own.waiting.leaving_for(first, much)

    def _largest(self, count: int) -> list[_Part]:
        """As many of those that have most."""
        found: list[_Part] = []
        listed: list[tuple[int, int, _Part]] = []
        while len(found) < count and (part := self._most()) is not None:
            found.append(part)
            listed.append(heapq.heappop(self._listed))
        for item in listed:
            heapq.heappush(self._listed, item)
        return found

    def _list(self, part: _Part) -> None:
        part.listed, part.serial = part.waiting.much, next(self._serial)
        heapq.heappush(self._listed, (-part.listed, part.serial, part))

    def _most(self) -> _Part | None:
        while self._listed:
            _, serial, part = self._listed[0]
            listed = serial == part.serial
            if listed and part.waiting.much == part.listed:
                return part
            heapq.heappop(self._listed)
            if listed and part.waiting.much:
                self._list(part)
        return None
