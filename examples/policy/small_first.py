"""A scheduling policy: small requests first."""

from __future__ import annotations

from mpspool.router.scheduling.policy import Waiting

_S_PER_BYTE = 0.5e-6


def small_first(waiting: Waiting) -> float:
    """A megabyte more is as good as having arrived half a second later."""
    return waiting.arrived_s + _S_PER_BYTE * waiting.size
