"""What a request or a batch will cost a worker, learned from what such have cost. Pure.

Where rows are known, by their number: between sizes that were seen it is interpolated, beyond them extended in
proportion. Where they are not, by the size class of the body. A version that is new is expected to cost what the one
before it does, until it has been seen what it costs itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self

_WEIGHT = 0.2  # of the newest observation in the moving averages
_MOST = 4.0  # times the average is what an observation counts for at the most: one stall is not what all others cost
_MAX_SIGNATURES = 1024  # kept of a version, of each sort: those that were seen last


@dataclass(slots=True)
class _Curve:
    """Cost over rows: a moving average for each class of sizes, in the order of the rows.

    Attributes:
        taken_over: the classes that are another version's, until they are seen.
        once: those that were seen but once.
    """

    classes: list[int] = field(default_factory=list)
    rows: list[float] = field(default_factory=list)
    cost_us: list[float] = field(default_factory=list)
    taken_over: set[int] = field(default_factory=set)
    once: set[int] = field(default_factory=set)

    def for_another(self) -> Self:
        """What is known of it, as a starting point."""
        once = set(self.once)
        return type(self)(list(self.classes), list(self.rows), list(self.cost_us), set(self.classes), once)

    def observe(self, rows: int, cost_us: float) -> None:
        size_class = rows.bit_length()
        at = bisect_left(self.classes, size_class)
        if size_class in self.taken_over:
            self.taken_over.remove(size_class)
            self.once.add(size_class)
            self.rows[at], self.cost_us[at] = float(rows), float(cost_us)
        elif at < len(self.classes) and self.classes[at] == size_class:
            self.rows[at] += _WEIGHT * (rows - self.rows[at])
            self.cost_us[at] = _learned(self.cost_us[at], cost_us, once=size_class in self.once)
            self.once.discard(size_class)
        else:
            self.once.add(size_class)
            self.classes.insert(at, size_class)
            self.rows.insert(at, float(rows))
            self.cost_us.insert(at, float(cost_us))

    def seen_once(self, rows: int) -> bool:
        """Whether what so many rows are predicted to cost is what a class that was seen but once has."""
        at = bisect_left(self.rows, rows)
        beside = self.classes[max(0, at - 1) : at + 1]
        return any(size_class in self.once for size_class in beside)

    def least_per_row(self) -> float:
        return min(cost_us / rows for rows, cost_us in zip(self.rows, self.cost_us, strict=True))

    def predict(self, rows: int) -> float:
        at = bisect_left(self.rows, rows)
        if at == 0:
            return self.cost_us[0]
        if at == len(self.rows):
            return self.cost_us[-1] * rows / self.rows[-1]
        low, high = self.rows[at - 1], self.rows[at]
        part = (rows - low) / (high - low)
        return self.cost_us[at - 1] + part * (self.cost_us[at] - self.cost_us[at - 1])


@dataclass(slots=True)
class _Costs:
    """What is known of one model version: by signature and size class of the body, and by signature over rows.

    Attributes:
        once: of by_size_us and taken_over_us, those that were seen but once.
        taken_over_us, taken_over: what another version costs, while nothing like it has been seen of this one.
    """

    by_size_us: OrderedDict[tuple[str, int], float] = field(default_factory=OrderedDict)
    once: set[tuple[str, int]] = field(default_factory=set)
    by_rows: OrderedDict[str, _Curve] = field(default_factory=OrderedDict)
    taken_over_us: OrderedDict[tuple[str, int], float] = field(default_factory=OrderedDict)
    taken_over: OrderedDict[str, _Curve] = field(default_factory=OrderedDict)

    def curve(self, signature: str) -> _Curve | None:
        return self.by_rows.get(signature) or self.taken_over.get(signature)


class CostTable:
    """Moving averages of worker time, by model version and signature, and by rows or size class of the body."""

    def __init__(self) -> None:
        self._of: dict[Hashable, _Costs] = {}

    def take_over(self, model: Hashable, others: Iterable[Hashable]) -> None:
        """Until something like it is seen of a version, it costs what it does with the last of these that knows."""
        for other in others:
            if (known := self._of.get(other)) is not None and other != model:
                costs = self._of.setdefault(model, _Costs())
                new = known.by_size_us.keys() - costs.by_size_us.keys()
                costs.once = (costs.once - new) | (known.once & new)
                for key, cost_us in known.by_size_us.items():
                    costs.taken_over_us[key] = cost_us
                for signature, curve in known.by_rows.items():
                    costs.taken_over[signature] = curve.for_another()
                _trim(costs.taken_over_us)
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
            known_us = costs.by_size_us.get(key)
            if known_us is None:
                costs.taken_over_us.pop(key, None)
                costs.by_size_us[key] = cost_us
                costs.once.add(key)
            else:
                costs.by_size_us[key] = _learned(known_us, cost_us, once=key in costs.once)
                costs.once.discard(key)
            _keep(costs.by_size_us, key)
            if len(costs.once) > _MAX_SIGNATURES:
                costs.once &= costs.by_size_us.keys() | costs.taken_over_us.keys()

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
        key = (signature, size.bit_length())
        cost_us = costs.by_size_us.get(key)
        return costs.taken_over_us.get(key) if cost_us is None else cost_us

    def seen_once(self, model: Hashable, signature: str, size: int, rows: int = 0) -> bool:
        """Whether predict() says what was seen but once, and may have been a first run's cost."""
        costs = self._of.get(model)
        if costs is None:
            return False
        if rows:
            curve = costs.curve(signature)
            return curve is not None and curve.seen_once(rows)
        return (signature, size.bit_length()) in costs.once

    def at_least(self, model: Hashable, signature: str, rows: int) -> float:
        """Microseconds that a batch of so many rows takes for sure: of more than were seen, what the largest did; 0 where none was."""
        curve = self._curve(model, signature)
        return curve.predict(min(rows, int(curve.rows[-1]))) if curve is not None else 0.0

    def least_per_row(self, model: Hashable, signature: str) -> float:
        """Microseconds for each row in the best batch that was seen; 0 where none was."""
        curve = self._curve(model, signature)
        return curve.least_per_row() if curve is not None else 0.0

    def _curve(self, model: Hashable, signature: str) -> _Curve | None:
        costs = self._of.get(model)
        return costs.curve(signature) if costs is not None else None


def _learned(known_us: float, cost_us: float, *, once: bool) -> float:
    """The average after one more. One that is 0, from a clock that did not move, can grow, too.

    The first run of a size may compile, tune and allocate: where it was the only one so far, one that took less is what all others cost.
    """
    if once and cost_us < known_us:
        return cost_us
    return known_us + _WEIGHT * (min(cost_us, _MOST * max(known_us, 1.0)) - known_us)


def _keep(table: OrderedDict[Any, Any], key: Hashable) -> None:
    """This one was seen last; where there are too many, the one that was not for longest goes."""
    table.move_to_end(key)
    _trim(table)


def _trim(table: OrderedDict[Any, Any]) -> None:
    while len(table) > _MAX_SIGNATURES:
        table.popitem(last=False)
