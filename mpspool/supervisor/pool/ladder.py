"""How a worker is ended: step by step, each with its limit, the hardest last. Pure.

Under MPS a client that is shot while its work runs may take the server down, and all its other clients. So one that still
hears is asked to leave: it finishes what it runs, waits for the GPU, and goes. One that does not, or could not, is cut off
its server, and killed only then.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

_DUMP_S = 0.5
# As long as a daemon takes on a busy machine: who is killed before it is cut off may take all others of the GPU down.
_CUT_OFF_S = 10.0
_KILL_S = 5.0
_LOST_S = 2.0
_LEAST_KILL_S = 1.0
# Of the time for leaving: what workers may take by themselves, and then the MPS daemon.
_LEAVE_SHARE = 0.6
_CUT_OFF_SHARE = 0.2


class Step(enum.Enum):
    """What is done to a worker."""

    LEAVE = "LEAVE"  # SIGTERM: drain, synchronise, go
    DUMP = "DUMP"  # a stack dump into its log
    CUT_OFF = "CUT_OFF"  # terminate_client
    KILL = "KILL"


@dataclass(frozen=True, slots=True)
class Rung:
    """One step and how long it may take; a worker that is gone by then needs no further one."""

    step: Step
    limit_s: float


Ladder = tuple[Rung, ...]


def leaving(limit_s: float) -> Ladder:
    """For workers that are no longer wanted, in about `limit_s` in all."""
    leave_s, cut_off_s = limit_s * _LEAVE_SHARE, min(_CUT_OFF_S, limit_s * _CUT_OFF_SHARE)
    return (
        Rung(Step.LEAVE, leave_s),
        Rung(Step.CUT_OFF, cut_off_s),
        Rung(Step.KILL, max(_LEAST_KILL_S, limit_s - leave_s - cut_off_s)),
    )


def retiring(limit_s: float) -> Ladder:
    """For workers that may take all of `limit_s` to finish what they run; nobody waits for their places."""
    return (Rung(Step.LEAVE, limit_s), Rung(Step.CUT_OFF, _CUT_OFF_S), Rung(Step.KILL, _KILL_S))


# For one that hangs: it would not hear that it is to leave.
HUNG: Ladder = (Rung(Step.DUMP, _DUMP_S), Rung(Step.CUT_OFF, _CUT_OFF_S), Rung(Step.KILL, _KILL_S))
# For one whose device has failed: what it runs will not be finished, and others wait for its end.
LOST: Ladder = (Rung(Step.CUT_OFF, _LOST_S), Rung(Step.KILL, _LOST_S))
