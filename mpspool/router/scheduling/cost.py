"""What a request or a batch will cost a worker, learned from what such have cost. Pure.

Where rows are known, by their number: between sizes that were seen it is interpolated, beyond them extended in
proportion. Where they are not, by the size class of the body. A version that is new is expected to cost what the one
before it does, until it has been seen what it costs itself.

The first run of a size may compile, tune and allocate, and take a thousand times what all others do. So what was seen but once
is a guess, by which nobody is refused or put into the slow lane who costs that; where the second took less, that is what all
others cost, and where a larger size took less again and again, so does this one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

_WEIGHT = 0.2  # of the newest observation in the moving averages
_MOST = 4.0  # times the average is what an observation counts for at the most: one stall is not what all others cost
_MAX_SIGNATURES = 1024  # kept of a version, of each sort: those that were seen last


class _Known(NamedTuple):
    """What bodies of a size class cost, and whether such were seen but once."""

    cost_us: float
    once: bool


@dataclass(slots=True)
class _Curve:
    """Cost over rows: a moving average for each class of sizes, in the order of the rows.

    Attributes:
        once: of each class, whether it was seen but once.
        taken_over: of each, whether it is another version's, for it was not seen of this one.
    """

    classes: list[int] = field(default_factory=list)
    rows: list[float] = field(default_factory=list)
    cost_us: list[float] = field(default_factory=list)
    once: list[bool] = field(default_factory=list)
    taken_over: list[bool] = field(default_factory=list)

    def for_another(self) -> Self:
        """What is known of it, as a starting point."""
        taken_over = [True] * len(self.classes)
        return type(self)(
            list(self.classes), list(self.rows), list(self.cost_us), list(self.once), taken_over
        )

    def observe(self, rows: int, cost_us: float) -> None:
        size_class = rows.bit_length()
        at = bisect_left(self.classes, size_class)
        if at == len(self.classes) or self.classes[at] != size_class:
            self.classes.insert(at, size_class)
            self.rows.insert(at, 0.0)
            self.cost_us.insert(at, 0.0)
            self.once.insert(at, True)
            self.taken_over.insert(at, False)
            self._begin(at, rows, cost_us)
        elif self.taken_over[at]:
            self._begin(at, rows, cost_us)
        else:
            weight = _weight(self.cost_us[at], cost_us, once=self.once[at])
            self.rows[at] += weight * (rows - self.rows[at])
            self.cost_us[at] = _averaged(self.cost_us[at], cost_us, weight)
            self.once[at] = False

    def _begin(self, at: int, rows: int, cost_us: float) -> None:
        self.rows[at], self.cost_us[at] = float(rows), float(cost_us)
        self.once[at], self.taken_over[at] = True, False

    def least_per_row(self) -> float:
        return min(cost_us / rows for rows, cost_us in zip(self.rows, self.cost_us, strict=True))

    def predict(self, rows: int) -> float:
        at = bisect_left(self.rows, rows)
        if at == len(self.rows):
            return self.cost_us[-1] * rows / self.rows[-1]
        cost_us = self._between(at - 1, at, rows)
        high = self._seen_again(at)
        # By first runs it would be more than what larger ones take.
        if high < len(self.rows) and (high > at or (at and self.once[at - 1])):
            return min(cost_us, self.cost_us[high])
        return cost_us

    def at_least(self, rows: int) -> float:
        """By the classes that were seen again, and no more than predicted: of fewer rows than any of them has their part of it, of more what the most took."""
        high = bisect_left(self.rows, rows)
        low = high - 1
        while low >= 0 and self.once[low]:
            low -= 1
        high = self._seen_again(high)
        if low >= 0:
            sure_us = self._between(low, high, rows)
        elif high < len(self.rows):
            sure_us = self.cost_us[high] * rows / self.rows[high]
        else:
            return 0.0
        return min(sure_us, self.predict(rows))

    def _seen_again(self, at: int) -> int:
        """The first class from there on that was; their number where none was."""
        while at < len(self.rows) and self.once[at]:
            at += 1
        return at

    def _between(self, low: int, high: int, rows: int) -> float:
        """On the line between what these two classes cost; what the one does that there is."""
        if high == len(self.rows):
            return self.cost_us[low]
        if low < 0:
            return self.cost_us[high]
        part = (rows - self.rows[low]) / (self.rows[high] - self.rows[low])
        return self.cost_us[low] + part * (self.cost_us[high] - self.cost_us[low])


@dataclass(slots=True)
class _Costs:
    """What is known of one model version: by signature and size class of the body, and by signature over rows.

    Attributes:
        taken_over_by_size, taken_over: what another version costs, while nothing like it has been seen of this one.
    """

    by_size: OrderedDict[tuple[str, int], _Known] = field(default_factory=OrderedDict)
    by_rows: OrderedDict[str, _Curve] = field(default_factory=OrderedDict)
    taken_over_by_size: OrderedDict[tuple[str, int], _Known] = field(default_factory=OrderedDict)
    taken_over: OrderedDict[str, _Curve] = field(default_factory=OrderedDict)

    def curve(self, signature: str) -> _Curve | None:
        return self.by_rows.get(signature) or self.taken_over.get(signature)

    def of_size(self, signature: str, size: int) -> _Known | None:
        key = (signature, size.bit_length())
        return self.by_size.get(key) or self.taken_over_by_size.get(key)


class CostTable:
    """Moving averages of worker time, by model version and signature, and by rows or size class of the body."""

    def __init__(self) -> None:
        self._of: dict[Hashable, _Costs] = {}

    def take_over(self, model: Hashable, others: Iterable[Hashable]) -> None:
        """Until something like it is seen of a version, it costs what it does with the last of these that knows."""
        for other in others:
            if (known := self._of.get(other)) is not None and other != model:
                costs = self._of.setdefault(model, _Costs())
                costs.taken_over_by_size.update(known.by_size)
                for signature, curve in known.by_rows.items():
                    costs.taken_over[signature] = curve.for_another()
                _trim(costs.taken_over_by_size)
                _trim(costs.taken_over)

    def observe(self, model: Hashable, signature: str, size: int, cost_us: float, rows: int = 0) -> None:
        """A request of so many bytes, or a batch of so many rows, took a worker this long."""
        costs = self._of.get(model)
        if costs is None:
            costs = self._of[model] = _Costs()
        if rows:
            curve = costs.by_rows.get(signature)
            if curve is None:
                curve = costs.taken_over.pop(signature) if signature in costs.taken_over else _Curve()
                costs.by_rows[signature] = curve
            curve.observe(rows, cost_us)
            _keep(costs.by_rows, signature)
        else:
            key = (signature, size.bit_length())
            known = costs.by_size.get(key)
            if known is None:
                costs.taken_over_by_size.pop(key, None)
                costs.by_size[key] = _Known(cost_us, once=True)
            else:
                weight = _weight(known.cost_us, cost_us, once=known.once)
                costs.by_size[key] = _Known(_averaged(known.cost_us, cost_us, weight), once=False)
            _keep(costs.by_size, key)

    def forget(self, model: Hashable) -> None:
        """There is no such version any more."""
        self._of.pop(model, None)

    def predict(self, model: Hashable, signature: str, size: int, rows: int = 0) -> float | None:
        """Microseconds of worker time, or None where nothing like it has been seen."""
        costs = self._of.get(model)
        if costs is None:
            return None
        if rows:
            curve = costs.curve(signature)
            return curve.predict(rows) if curve is not None else None
        known = costs.of_size(signature, size)
        return known.cost_us if known is not None else None

    def at_least(self, model: Hashable, signature: str, size: int, rows: int = 0) -> float:
        """Microseconds that it takes for sure, by what was seen more than once; 0 where nothing was."""
        costs = self._of.get(model)
        if costs is None:
            return 0.0
        if rows:
            curve = costs.curve(signature)
            return curve.at_least(rows) if curve is not None else 0.0
        known = costs.of_size(signature, size)
        return known.cost_us if known is not None and not known.once else 0.0

    def least_per_row(self, model: Hashable, signature: str) -> float:
        """Microseconds for each row in the best batch that was seen; 0 where none was."""
        costs = self._of.get(model)
        curve = costs.curve(signature) if costs is not None else None
        return curve.least_per_row() if curve is not None else 0.0


def _weight(known_us: float, cost_us: float, *, once: bool) -> float:
    """Of the newest observation: all, where it took less than the only one before it."""
    return 1.0 if once and cost_us < known_us else _WEIGHT


def _averaged(known_us: float, cost_us: float, weight: float) -> float:
    """The average after one more. One that is 0, from a clock that did not move, can grow, too."""
    return known_us + weight * (min(cost_us, _MOST * max(known_us, 1.0)) - known_us)


def _keep(table: OrderedDict[Any, Any], key: Hashable) -> None:
    """This one was seen last; where there are too many, the one that was not for longest goes."""
    table.move_to_end(key)
    _trim(table)


def _trim(table: OrderedDict[Any, Any]) -> None:
    while len(table) > _MAX_SIGNATURES:
        table.popitem(last=False)
