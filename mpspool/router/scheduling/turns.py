"""Between models that share a device: whose turn it is. Pure.

Start-time fair queueing, as between clients, but that a model has one place for all that it has waiting in a lane.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass

from mpspool.router.scheduling.fair_share import Lanes


@dataclass(slots=True)
class _Place:
    """When the next dispatch of a party counts as arrived, and how much later than that it is next by its policy."""

    start_s: float
    after_s: float


class Turns:
    """Of one device. A party is in a lane from when it first could have been sent something there until nothing of it waits for that."""

    def __init__(self) -> None:
        self._lanes = Lanes()
        # In the slow lane, or not.
        self._places: dict[bool, dict[Hashable, _Place]] = {False: {}, True: {}}

    @property
    def clock_s(self) -> float:
        """How far those that were served have come outside of the slow lane, in seconds of worker time."""
        return self._lanes.of(False).clock_s

    def start_s(self, party: Hashable, slow: bool, after_s: float) -> float:
        """When the next dispatch of a party counts as arrived.

        Who comes is where those are that are as urgent, and behind nobody less so.

        Args:
            party: whose.
            slow: it would be in the slow lane.
            after_s: how much later it is next by its policy.
        """
        places = self._places[slow]
        place = places.get(party)
        if place is None:
            if not places:
                self._lanes.catch_up(slow)
            lane = self._lanes.of(slow)
            alike = [other.start_s for other in places.values() if other.after_s <= after_s]
            place = places[party] = _Place(lane.now(party, min(alike, default=lane.clock_s)), after_s)
        place.after_s = after_s
        return self._lanes.beside(slow, place.start_s)

    def serve(
        self, party: Hashable, slow: bool, cost_s: float, could: Collection[Hashable], *, others: bool
    ) -> None:
        """A dispatch of this party is sent.

        Args:
            party: whose.
            slow: it is in the slow lane.
            cost_s: of it.
            could: all that could have been sent one in that lane now, this one included. What the rest wait for is not their turn, and
                they gather none.
            others: any could have been sent one in the other lane.
        """
        places = self._places[slow]
        place = places[party]
        start_s = place.start_s
        at_s = min(places[one].start_s for one in could)
        _lift(places.values(), at_s)
        place.start_s = start_s + cost_s
        lane = self._lanes.of(slow)
        lane.served(start_s)
        lane.reach(party, place.start_s)
        if not others and slow:  # the others go along
            self._lanes.catch_up(False)
            _lift(self._places[False].values(), self.clock_s)
        elif not others:
            for held in self._places[True].values():
                self._lanes.hold(start_s, held.start_s, held.after_s - place.after_s)

    def charge(self, party: Hashable, slow: bool, more_s: float) -> None:
        """What was sent took so much longer than it was charged for."""
        self._lanes.of(slow).owe(party, more_s)
        if (place := self._places[slow].get(party)) is not None:
            place.start_s += more_s

    def keep(self, waiting: Collection[Hashable], slow: Collection[Hashable]) -> None:
        """All leave but those of which something waits, and in the slow lane those of which something waits for that."""
        for places, stay in ((self._places[False], waiting), (self._places[True], slow)):
            for party in [one for one in places if one not in stay]:
                del places[party]

    def forget(self, party: Hashable) -> None:
        """It does not come again."""
        for slow, places in self._places.items():
            places.pop(party, None)
            self._lanes.of(slow).forget(party)


def _lift(places: Collection[_Place], at_s: float) -> None:
    """None of them is earlier than that any more."""
    for place in places:
        place.start_s = max(place.start_s, at_s)
