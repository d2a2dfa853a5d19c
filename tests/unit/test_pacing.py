"""The distance between dispatches."""

from __future__ import annotations

import pytest

from mpspool.router.pacing import Pacing


@pytest.mark.parametrize(
    ("requests", "workers", "distance_s"), [(1, 0, 0.0), (8, 4, 0.0), (12, 4, 0.00075), (100, 4, 0.002)]
)
def test_the_distance_grows_with_the_crowd(requests: int, workers: int, distance_s: float) -> None:
    """None for two requests a worker, then a quarter of a millisecond for each, two at the most."""
    pacing = Pacing()
    pacing.renew(0, workers)
    pacing.arrived(requests)
    pacing.arrived(1)
    pacing.dispatched(10.0)
    assert pacing.wait_s(10.0) == pytest.approx(distance_s)
    assert pacing.wait_s(10.5) < 0
    pacing.renew(1, workers)
    assert pacing.wait_s(10.0) <= 0
