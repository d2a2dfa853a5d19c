"""Who makes way where bytes are short. Pure.

Bytes are held for messages that come, and for answers that are taken. Where something would be refused for lack of them,
those who do not use what they hold are ended first, the largest before others, until it fits:

- who has brought, or taken, less than is demanded of it for three ticks in a row;
- whose message has hardly begun, for what is much smaller than all that it lacks: announcing a size costs nothing, and those
  who announce another as soon as one is ended are not to keep everybody out.

As long as there is room nobody is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from mpspool.core.errors import Code, Lack, PoolError

# Of what it holds so much has to come, or be taken, in a tick, or so many bytes: a tenth, or 4 KiB, a minute.
_LEAST_PART, _LEAST_BYTES = 600, 64
# In a row, with less than that.
_TICKS = 3
# A message of which no more than such a part has come makes way for what is no larger than such a part of the rest.
_BEGUN_PART = 8
# Looking through thousands that hold bytes takes milliseconds: of all time no more than such a part.
_LONG_LOOK_S, _BETWEEN_LOOKS = 0.001, 10


class Holder(Protocol):
    """Who holds bytes that others may want."""

    def holds(self, model: str | None) -> int:
        """How many of a model's, counted anew; of None in all."""

    def moved(self) -> int:
        """How many of them have come, or been taken: that differs by what has since it was asked last."""

    def missing(self) -> int:
        """How many have yet to come."""

    def make_way(self) -> None:
        """Lets go of them, at once, and says why."""


class _Pace:
    """How it goes on.

    Attributes:
        moved: as of the last tick.
        late: ticks in a row in which too little did.
    """

    __slots__ = ("late", "moved")

    def __init__(self, moved: int) -> None:
        self.moved = moved
        self.late = 0


class Holders:
    """Those of one kind: messages that are not whole, or answers that are not taken.

    Args:
        now_s: the time.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._paces: dict[Holder, _Pace] = {}
        self._next_look_s = 0.0

    def __len__(self) -> int:
        return len(self._paces)

    def watch(self, holder: Holder) -> None:
        """From now on, if it is not watched."""
        if holder not in self._paces:
            self._paces[holder] = _Pace(holder.moved())

    def forget(self, holder: Holder) -> None:
        """It holds nothing any more, or is whole; perhaps it was not watched."""
        self._paces.pop(holder, None)

    def tick(self) -> None:
        """To be called about once a second."""
        for holder, pace in list(self._paces.items()):
            moved, held = holder.moved(), holder.holds(None)
            enough = not held or moved - pace.moved >= max(held // _LEAST_PART, _LEAST_BYTES)
            pace.late = 0 if enough else pace.late + 1
            pace.moved = moved

    def idle(self, model: str | None, size: int) -> list[Holder]:
        """Those that are to make way for so many bytes of a model's, or of None for all, in this order; all are counted anew.

        Nobody where it took long to look, and that was just now.
        """
        begun_s = self._now_s()
        if begun_s < self._next_look_s:
            return []
        found = []
        for holder, pace in list(self._paces.items()):
            held = holder.holds(model)
            if held > 0 and (pace.late >= _TICKS or _has_hardly_begun(holder, held, size)):
                found.append((held, holder))
        found.sort(key=_bytes, reverse=True)
        self._next_look_s = next_look_s(begun_s, self._now_s())
        return [holder for _, holder in found]


def next_look_s(begun_s: float, ended_s: float) -> float:
    """When thousands may be looked through again, after a look from then to then."""
    took_s = ended_s - begun_s
    return begun_s + took_s * _BETWEEN_LOOKS if took_s > _LONG_LOOK_S else begun_s


def made_way() -> PoolError:
    """What a client is told whose message was not waited for."""
    text = "Bytes are short, and of this request too little has come: others have its room; try again later, or send it sooner"
    return PoolError(Code.RESOURCE_EXHAUSTED, text, Lack.BYTES)


def _bytes(found: tuple[int, Holder]) -> int:
    return found[0]


def _has_hardly_begun(holder: Holder, held: int, size: int) -> bool:
    missing = holder.missing()
    return missing >= size * _BEGUN_PART and (held - missing) * _BEGUN_PART <= held
