"""Between models that share a device: whose turn it is. Pure.

Start-time fair queueing, as between clients, but that a model has one place for all that it has waiting in a lane.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

from mpspool.router.scheduling.fair_share import Lanes


class Turns:
    """Of one device. A party is in a lane from when it first could have been sent something there until nothing of it waits for that."""

    def __init__(self) -> None:
        self._lanes = Lanes()
        # In the slow lane, or not: when the next dispatch of each party counts as arrived.
        self._starts: dict[bool, dict[Hashable, float]] = {False: {}, True: {}}

    @property
    def clock_s(self) -> float:
        """How far those that were served have come outside of the slow lane, in seconds of worker time."""
        return self._lanes.of(False).clock_s

    def start_s(self, party: Hashable, slow: bool) -> float:
        """When the next dispatch of a party counts as arrived. `slow`: it would be in the slow lane."""
        starts = self._starts[slow]
        start_s = starts.get(party)
        if start_s is None:
            if not starts:
                self._lanes.catch_up(slow)
            start_s = starts[party] = self._lanes.of(slow).now(party)
        return start_s

    def serve(self, party: Hashable, slow: bool, cost_s: float, could: Collection[Hashable]) -> None:
        """A dispatch of this party is sent.

        Args:
            party: whose.
            slow: it is in the slow lane.
            cost_s: of it.
            could: all that could have been sent one in that lane now, this one included. Its clock does not pass them, whatever the
                order; what others wait for is not their turn, and they gather none.
        """
        starts = self._starts[slow]
        next_s = starts[party] + cost_s
        at_s = min(starts[one] for one in could)
        for one, start_s in starts.items():
            if start_s < at_s:
                starts[one] = at_s
        starts[party] = next_s
        lane = self._lanes.of(slow)
        lane.served(at_s)
        lane.owe(party, 0.0, next_s)

    def charge(self, party: Hashable, slow: bool, more_s: float) -> None:
        """What was sent took so much longer than it was charged for."""
        self._lanes.of(slow).owe(party, more_s)
        if party in self._starts[slow]:
            self._starts[slow][party] += more_s

    def keep(self, waiting: Collection[Hashable], slow: Collection[Hashable]) -> None:
        """All leave but those of which something waits, and in the slow lane those of which something waits for that."""
        for starts, stay in ((self._starts[False], waiting), (self._starts[True], slow)):
            for party in [one for one in starts if one not in stay]:
                del starts[party]

    def level_lanes(self) -> None:
        """The slow lane has another width: what it was held back by is over, and so are the turns that it would have for that."""
        self._lanes.catch_up(True)
        slow = self._starts[True]
        for party, start_s in slow.items():
            slow[party] = max(start_s, self.clock_s)

    def forget(self, party: Hashable) -> None:
        """It does not come again."""
        for slow, starts in self._starts.items():
            starts.pop(party, None)
            self._lanes.of(slow).forget(party)
