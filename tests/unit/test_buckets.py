"""Histograms that are counted once and told by several bounds."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from mpspool.router.metrics.buckets import Buckets, exponential, together, united

COARSE, OTHER = (1.0, 10.0, 100.0), (2.0, 10.0, 50.0, 1000.0)


def counted(values: list[float], bounds: tuple[float, ...]) -> list[int]:
    return [sum(value <= bound for value in values) for bound in (*bounds, math.inf)]


@given(values=st.lists(st.floats(0, 2000)))
def test_each_bounds_are_told_as_if_they_were_the_only_ones(values: list[float]) -> None:
    """What is counted by the bounds of two is the same by the bounds of each, and of both together."""
    both = united(COARSE, OTHER)
    buckets = Buckets(both)
    for value in values:
        buckets.observe(value)
    for bounds in (COARSE, OTHER, both):
        assert buckets.cumulated(bounds) == counted(values, bounds)
    assert buckets.cumulated() == counted(values, both)
    assert buckets.count == len(values)


@given(first=st.lists(st.floats(0, 2000)), second=st.lists(st.floats(0, 2000)))
def test_several_are_told_as_one(first: list[float], second: list[float]) -> None:
    """As if all had been observed in one place; those themselves stay as they are."""
    several = [Buckets(COARSE), Buckets(COARSE)]
    for one, values in zip(several, (first, second), strict=True):
        for value in values:
            one.observe(value)
    whole = together(several, COARSE)
    assert whole.cumulated() == counted(first + second, COARSE)
    assert math.isclose(whole.total, sum(first) + sum(second))
    assert [one.count for one in several] == [len(first), len(second)]


def test_bounds_that_grow() -> None:
    """Each so many times the one before it; of several, each once."""
    assert exponential(1, 2, 4) == (1, 2, 4, 8)
    assert united((1.0, 3.0), (2.0, 3.0)) == (1.0, 2.0, 3.0)
