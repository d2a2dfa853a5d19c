"""What a request or a batch will cost a worker, learned from what such have cost. Pure.

Where rows are known, by their number: between sizes that were seen it is interpolated, beyond them extended in
proportion. Where they are not, by the size class of the body.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable
from dataclasses import dataclass, field

_WEIGHT = 0.2  # of the newest observation in the moving averages
_MAX_SIGNATURES = 1024  # a signature's name is the client's choice


@dataclass(slots=True)
class _Curve:
    """Cost over rows: a moving average for each class of sizes, in the order of the rows."""

    classes: list[int] = field(default_factory=list)
    rows: list[float] = field(default_factory=list)
    cost_us: list[float] = field(default_factory=list)

    def observe(self, rows: int, cost_us: float) -> None:
        size_class = rows.bit_length()
        at = bisect_left(self.classes, size_class)
        if at < len(self.classes) and self.classes[at] == size_class:
            self.rows[at] += _WEIGHT * (rows - self.rows[at])
            self.cost_us[at] += _WEIGHT * (cost_us - self.cost_us[at])
        else:
            self.classes.insert(at, size_class)
            self.rows.insert(at, float(rows))
            self.cost_us.insert(at, float(cost_us))

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


class CostTable:
    """Moving averages of worker time, by model version and signature, and by rows or size class of the body."""

    def __init__(self) -> None:
        self._by_size_us: dict[tuple[Hashable, str, int], float] = {}
        self._by_rows: dict[tuple[Hashable, str], _Curve] = {}

    def observe(self, model: Hashable, signature: str, size: int, cost_us: float, rows: int = 0) -> None:
        """A request of so many bytes, or a batch of so many rows, took a worker this long."""
        if rows:
            curve = self._by_rows.get((model, signature))
            if curve is None and len(self._by_rows) < _MAX_SIGNATURES:
                curve = self._by_rows[model, signature] = _Curve()
            if curve is not None:
                curve.observe(rows, cost_us)
            return
        key = (model, signature, size.bit_length())
        known = self._by_size_us.get(key)
        if known is not None:
            self._by_size_us[key] = known + _WEIGHT * (cost_us - known)
        elif len(self._by_size_us) < _MAX_SIGNATURES:
            self._by_size_us[key] = cost_us

    def predict(self, model: Hashable, signature: str, size: int, rows: int = 0) -> float | None:
        """Microseconds of worker time, or None where nothing like it has been seen."""
        if rows:
            curve = self._by_rows.get((model, signature))
            return curve.predict(rows) if curve is not None else None
        return self._by_size_us.get((model, signature, size.bit_length()))

    def least_per_row(self, model: Hashable, signature: str) -> float:
        """Microseconds for each row in the best batch that was seen; 0 where none was."""
        curve = self._by_rows.get((model, signature))
        return curve.least_per_row() if curve is not None else 0.0
