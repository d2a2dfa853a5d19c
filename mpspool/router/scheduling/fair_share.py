"""Fair shares: when a request counts as arrived, so that nobody gets more by asking for more. Pure.

Start-time fair queueing: each party's requests are spaced by what they cost, on a clock that shows how far those that
were served have come. Who asks for little is always at the front of it; who floods is spaced ahead of the others.

What nobody knows the cost of is charged for when it is sent, where its cost is known by then; else for what it has taken,
when it has ended.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Hashable

# Until then it is charged so much, and no less in the end.
LEAST_S = 0.001
_SLACK = 256
# Of those that were served: one that is urgent does not say how far the others have come, nor one that was not for long.
_RECENT = 16
# Parties: of more those are forgotten that would wait least for having asked before.
_MOST = 2**16


class FairShare:
    """A clock and its parties. Seconds of worker time.

    Attributes:
        clock_s: how far those that were served have come.
    """

    def __init__(self) -> None:
        self.clock_s = 0.0
        self._turns_s: deque[float] = deque([0.0], maxlen=_RECENT)
        self._next_s: dict[Hashable, float] = {}
        self._most = _SLACK  # parties, before those are forgotten that can be

    def arrive(self, party: Hashable, cost_s: float, earliest_s: float = math.inf) -> float:
        """When a request of this party counts as arrived, as now() has it."""
        start_s = self.now(party, earliest_s)
        self._next_s[party] = start_s + cost_s
        if len(self._next_s) > self._most:
            self._forget()
        return start_s

    def now(self, party: Hashable, earliest_s: float = math.inf) -> float:
        """When a request of this party would count as arrived: no later than `earliest_s` but for what it owes."""
        return max(min(self.clock_s, earliest_s), self._next_s.get(party, 0.0))

    def refund(self, party: Hashable, cost_s: float) -> None:
        """A request of this party leaves without having been run."""
        if party in self._next_s:
            self._next_s[party] -= cost_s

    @property
    def turn_s(self) -> float:
        """Whose turn it is: of the last few that were served the latest, by when it counted as arrived and how much later it was next."""
        return max(self._turns_s)

    def served(self, start_s: float, after_s: float = 0.0) -> None:
        """A request that counted as arrived then is being run; by its policy it was next so much later."""
        self.clock_s = max(self.clock_s, start_s)
        self._turns_s.append(start_s + after_s)

    def catch_up(self, at_s: float) -> None:
        """Nobody has waited: it has come as far as another."""
        self.clock_s = max(self.clock_s, at_s)

    def forget(self, party: Hashable) -> None:
        """It does not come again."""
        self._next_s.pop(party, None)

    def owe(self, party: Hashable, more_s: float, start_s: float = 0.0) -> None:
        """What a party was sent cost more than it was charged. `start_s`: when that counted as arrived."""
        self._next_s[party] = max(self._next_s.get(party, 0.0), start_s) + more_s

    def _forget(self) -> None:
        """Those that have nothing ahead of the clock are as good as new. Looked for once in as many arrivals as there are."""
        self._next_s = {party: at_s for party, at_s in self._next_s.items() if at_s > self.clock_s}
        if (
            len(self._next_s) > _MOST
        ):  # each asks but once: nobody is ever served who had to wait, and the clock stands
            most = heapq.nlargest(_MOST // 2, self._next_s.items(), key=lambda known: known[1])
            self._next_s = dict(most)
        self._most = max(_SLACK, 2 * len(self._next_s))


class Lanes:
    """Two of them: for the slow lane, and for all else. Parties have an account in each.

    Who comes to a lane where others wait begins where that lane is, which may be far behind the other one. A lane where nothing
    waits goes along with the other.

    Attributes:
        held_s: how far the slow lane was left behind while it was held back: beside the other's its times count as so much later, or
            it would make up for all of that once it is not.
    """

    def __init__(self) -> None:
        self._fast = FairShare()
        self._slow = FairShare()
        self.held_s = 0.0

    def of(self, slow: bool) -> FairShare:
        """The slow lane's, or the other one."""
        return self._slow if slow else self._fast

    def catch_up(self, slow: bool) -> None:
        """Nothing has waited in this lane."""
        if slow:
            self._slow.catch_up(self._fast.clock_s - self.held_s)
        else:
            self._fast.catch_up(self._slow.clock_s + self.held_s)

    def beside(self, slow: bool, at_s: float) -> float:
        """A time of this lane's beside the other's."""
        return at_s + self.held_s if slow else at_s

    def hold(self, served_s: float, first_s: float, after_s: float) -> None:
        """One was served, and another waits on in the slow lane, for want of room there.

        Args:
            served_s: when the one counted as arrived.
            first_s: and the other.
            after_s: how much later than that the other is next by its policy, beyond what the one was. That is its policy's, and
                nothing that it was held back by.
        """
        first_s = max(first_s, self._slow.clock_s)
        self.held_s = max(self.held_s, served_s - first_s - max(0.0, after_s))
