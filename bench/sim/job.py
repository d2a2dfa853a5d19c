"""A request on its way through the simulation, and what has become of it in the end."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from bench.sim.service import Service
from bench.sim.trace import Request
from mpspool.router.scheduling.entry import Entry


class Outcome(enum.IntEnum):
    """How a request ended.

    ANSWERED: a worker ran it.
    EXPIRED: its deadline passed before it was answered, or was too near to run it.
    REFUSED_LATE: on arrival, for it would not have met its deadline.
    REFUSED_FULL: too many waited.
    """

    ANSWERED = 0
    EXPIRED = 1
    REFUSED_LATE = 2
    REFUSED_FULL = 3


@dataclass(eq=False)  # slots would hide those of a compiled Entry
class Job(Entry):
    """What the scheduler is given.

    Attributes:
        request: as it arrived.
        service: what it is for.
        factor: its times are so many times the service's.
        alone_ns: what it took of a worker's time beside what others cost it on the device.
        overlap_ns: what those did.
        late: the worker found its deadline passed and did not run it.
    """

    request: Request | None = None
    service: Service | None = None
    factor: float = 1.0
    alone_ns: float = 0.0
    overlap_ns: float = 0.0
    late: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """What is kept of a request.

    Attributes:
        request: as it arrived.
        outcome: how it ended.
        at_s: when.
        alone_s, overlap_s: of a worker's time, as in Job; what is left of its latency it waited.
    """

    request: Request
    outcome: Outcome
    at_s: float
    alone_s: float
    overlap_s: float

    @property
    def latency_s(self) -> float:
        return self.at_s - self.request.time

    @property
    def queue_s(self) -> float:
        return self.latency_s - self.alone_s - self.overlap_s
