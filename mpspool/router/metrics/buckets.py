"""Histograms in plain numbers: the client library's own objects take a lock for each observation.

A value that several metrics tell, each by bounds of its own, is counted once, by the bounds of all of them. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate

Bounds = tuple[float, ...]


def exponential(first: float, factor: float, count: int) -> Bounds:
    """So many bounds, each so many times the one before it."""
    return tuple(accumulate(range(count - 1), lambda bound, _: bound * factor, initial=first))


def united(*several: Iterable[float]) -> Bounds:
    """All of them, ascending."""
    return tuple(sorted({bound for bounds in several for bound in bounds}))


class Buckets:
    """A histogram on fixed bounds, ascending.

    Attributes:
        bounds: those.
        total: the sum of what was observed.
    """

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, other: Buckets) -> None:
        """Counts what the other has, whose bounds are the same, as well."""
        self._counts = [mine + its for mine, its in zip(self._counts, other._counts, strict=True)]
        self.total += other.total

    @property
    def count(self) -> int:
        """How many were observed."""
        return sum(self._counts)

    def cumulated(self, bounds: Bounds | None = None) -> list[int]:
        """How many were at most each bound, and as the last, all: of its own, or of others that are among these."""
        found = list(accumulate(self._counts))
        return found if bounds is None else [found[place] for place in _places(self.bounds, bounds)]


def together(several: Iterable[Buckets], bounds: Bounds) -> Buckets:
    """What was observed in all of them, whose bounds these are."""
    whole = Buckets(bounds)
    for one in several:
        whole.add(one)
    return whole


@lru_cache(64)
def _places(fine: Bounds, bounds: Bounds) -> list[int]:
    return [*map(fine.index, bounds), len(fine)]
