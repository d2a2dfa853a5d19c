"""Who asks for how much, and gets how much, for whoever looks: `mpspool clients`. Pure.

There is one of these for each look, and none otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mpspool.core.errors import Code, Lack

# Names are the clients' own to make up: of so many, each with a model, is known who they are; of the others what they are together.
MOST = 1024
# Told so many at a time: the router has other things to do between two parts.
PART = 128


class Tally:
    """What one client asks of one model.

    Attributes:
        asked: requests that came.
        answered: of those.
        refused: of those, for want of room or of time.
        failed: of those, for any other reason; given up by the client, too.
        left: of those that were let in, how many are over.
        waited_s: these, together, until a worker was sent them, or they were over.
        longest_s: of these, the longest.
        effective_s: of devices, as Overview's, that they took, answered or not.
    """

    __slots__ = (
        "answered",
        "asked",
        "effective_s",
        "failed",
        "left",
        "longest_s",
        "refused",
        "waited_s",
    )

    def __init__(self) -> None:
        self.asked = self.answered = self.refused = self.failed = self.left = 0
        self.waited_s = self.longest_s = self.effective_s = 0.0

    def ended(self, code: Code, lack: Lack | None) -> None:
        """One of them is over."""
        if code is Code.OK:
            self.answered += 1
        elif lack is not None:
            self.refused += 1
        else:
            self.failed += 1

    def waited(self, for_s: float) -> None:
        """One that was let in, and is over, waited for so long."""
        self.left += 1
        self.waited_s += for_s
        self.longest_s = max(self.longest_s, for_s)

    def counts(self) -> dict[str, float]:
        """By name."""
        return {
            "asked": self.asked,
            "answered": self.answered,
            "refused": self.refused,
            "failed": self.failed,
            "left": self.left,
            "waited_s": self.waited_s,
            "longest_s": self.longest_s,
            "effective_s": self.effective_s,
        }


class Clients:
    """What came since it was begun.

    Args:
        by: "none", "peer" or "metadata:KEY", as `fair_by`.
        simulated: what is a stand-in, "" for nothing.
        most: pairs of a client and a model that are told by name.
    """

    def __init__(self, by: str = "none", simulated: str = "", most: int = MOST) -> None:
        self.by = by
        self.simulated = simulated
        self._most = most
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._others = Tally()

    def asks(self, client: str, model: str) -> Tally:
        """A request has come: where what becomes of it is to be counted. A model that is none of ours is ""."""
        found = self._tallies.get((client, model))
        if found is None:
            if len(self._tallies) < self._most:
                found = self._tallies[client, model] = Tally()
            else:
                found = self._others
        found.asked += 1
        return found

    def told(self) -> Iterator[dict[str, Any]]:
        """Piece by piece: `clients`, each with its name, a model's and what is counted of both; none of those of the others."""
        rows = list(self._tallies.items())
        for start in range(0, len(rows), PART):
            yield {
                "clients": [
                    {"client": client, "model": model, **tally.counts()}
                    for (client, model), tally in rows[start : start + PART]
                ]
            }
        if self._others.asked:
            yield {"clients": [{"client": None, "model": None, **self._others.counts()}]}
