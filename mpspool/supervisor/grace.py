"""How the grace time is divided: what is in flight gets all that the ending itself does not need. Pure."""

from __future__ import annotations

# For workers that leave, and for the kill of those that do not.
WORKERS_S = 3.0
# For supervisord's end and the last processes; MPS daemons take their time to `quit`.
_INFRASTRUCTURE_S = 2.5
_MPS_S = 11.0
# A short grace time is halved at each step instead.
_LEAST_SHARE = 0.5


def pool_s(grace_s: float, *, mps: bool) -> float:
    """Of the whole time, what the pool may take to drain the router and end the workers."""
    return _but(grace_s, _MPS_S if mps else _INFRASTRUCTURE_S)


def drain_s(pool_s: float) -> float:
    """Of the pool's time, what requests in flight may take."""
    return _but(pool_s, WORKERS_S)


def _but(time_s: float, needed_s: float) -> float:
    return max(time_s * _LEAST_SHARE, time_s - needed_s)
