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
from dataclasses import dataclass

# Until then it is charged so much, and no less in the end.
LEAST_S = 0.001
_SLACK = 256
# Of those that were served: one that is urgent does not say how far the others have come, nor one that was not for long.
_RECENT = 16
# Parties: of more those are forgotten that would wait least for having asked before.
_MOST = 2**16


@dataclass(slots=True)
class _Ahead:
    """What of a party was let begin later than its account is.

    Attributes:
        next_s: when another one like the last would begin.
        after_s: how much later than its turn the last was next by its policy.
        most_after_s: of all of them.
    """

    next_s: float
    after_s: float
    most_after_s: float


class FairShare:
    """A clock and its parties. Seconds of worker time.

    Attributes:
        clock_s: how far those that were served have come.
    """

    def __init__(self) -> None:
        self.clock_s = 0.0
        self._turns_s: deque[float] = deque([0.0], maxlen=_RECENT)
        # The accounts: when what a party asks for next counts as arrived, by what it has had.
        self._next_s: dict[Hashable, float] = {}
        self._ahead: dict[Hashable, _Ahead] = {}
        self._most = _SLACK  # parties, before those are forgotten that can be

    def arrive(self, party: Hashable, cost_s: float) -> float:
        """When a request of this party counts as arrived, of whom nothing waits."""
        start_s = self.now(party)
        if (ahead := self._ahead.pop(party, None)) is not None:
            start_s = max(start_s, ahead.next_s)
        return self._place(party, start_s, start_s + cost_s)

    def follow(self, party: Hashable, cost_s: float, after_s: float) -> float:
        """The same of one of whom something waits: it goes on from there, though others that its policy puts before it have come further.

        But no request of it is next sooner than those that were served of late, or one that is not urgent would gather credit for those
        that are. What is urgent is let begin later, for that, than where the account is, which goes on from there: it is not for what is
        not urgent to wait for that.

        Args:
            party: whose.
            cost_s: what it is charged.
            after_s: how much later than its turn it is next by its policy.
        """
        own_s = self._next_s.get(party)
        at_s = min(self.clock_s, self.turn_s - after_s)
        if own_s is None:
            own_s = max(at_s, 0.0)
        start_s = max(at_s, own_s)
        ahead = self._ahead.get(party)
        if ahead is not None and after_s <= ahead.most_after_s:
            start_s = max(start_s, ahead.next_s + ahead.after_s - after_s)
        if start_s > own_s:
            most_after_s = after_s if ahead is None else max(after_s, ahead.most_after_s)
            self._ahead[party] = _Ahead(start_s + cost_s, after_s, most_after_s)
        return self._place(party, start_s, own_s + cost_s)

    def _place(self, party: Hashable, start_s: float, next_s: float) -> float:
        self._next_s[party] = next_s
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
        if (ahead := self._ahead.get(party)) is not None:
            ahead.next_s -= cost_s

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
        self._ahead.pop(party, None)

    def owe(self, party: Hashable, more_s: float, start_s: float = 0.0) -> None:
        """What a party was sent cost more than it was charged. `start_s`: when that counted as arrived, for one that was forgotten."""
        self._next_s[party] = self._next_s.get(party, start_s) + more_s
        if (ahead := self._ahead.get(party)) is not None:
            ahead.next_s += more_s

    def reach(self, party: Hashable, at_s: float) -> None:
        """What this party asks for next counts as arrived no sooner."""
        self._next_s[party] = max(self._next_s.get(party, 0.0), at_s)

    def _forget(self) -> None:
        """Those that have nothing ahead of the clock are as good as new. Looked for once in as many arrivals as there are."""
        self._next_s = {party: at_s for party, at_s in self._next_s.items() if at_s > self.clock_s}
        if (
            len(self._next_s) > _MOST
        ):  # each asks but once: nobody is ever served who had to wait, and the clock stands
            most = heapq.nlargest(_MOST // 2, self._next_s.items(), key=lambda known: known[1])
            self._next_s = dict(most)
        self._ahead = {
            party: ahead
            for party, ahead in self._ahead.items()
            if ahead.next_s > self.clock_s and len(self._ahead) <= _MOST
        }
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
