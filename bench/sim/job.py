"""A request on its way through the simulation, and what has become of it in the end."""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass

import msgspec

from bench.sim.service import Service
from bench.sim.trace import Request
from mpspool.core.settings import BatchingSettings
from mpspool.router.scheduling.batching import split
from mpspool.router.scheduling.entry import Entry

# A body says nothing but how long it is, and longer ones cost memory only.
_LONGEST_BODY = 1 << 20

# How the router's record names the signatures of what it does not take apart: one worker runs its parts, in turn.
_WHOLE = ("REST ", "MultiInference ")

_body = functools.lru_cache(maxsize=1024)(bytes)


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


class Whole:
    """A request as it arrived, and what the scheduler is given for it.

    Args:
        request: as it arrived.
        service: what it is for.
        batching: how the setup joins and divides its requests; None for not at all.
        now_ns: the time.

    Attributes:
        request: as it arrived.
        jobs: one, or one for each part that it runs in.
        ended: it has its answer, or never will.

    Raises:
        PoolError: it has more rows than a request may have.
    """

    __slots__ = ("ended", "jobs", "request")

    def __init__(
        self, request: Request, service: Service, batching: BatchingSettings | None, now_ns: int
    ) -> None:
        self.request = request
        self.ended = False
        if batching is None:
            self.jobs = [Job(self, request, service, now_ns)]
            return
        ranges = split(request.rows, batching)
        if len(ranges) == 1 or request.signature.startswith(_WHOLE):
            self.jobs = [Job(self, request, service, now_ns, min(request.rows, batching.run_rows))]
            return
        parts = [_part(request, stop - start) for start, stop in ranges]
        self.jobs = [Job(self, part, service, now_ns, part.rows) for part in parts]

    @property
    def answered(self) -> bool:
        """Every part is."""
        return all(job.over for job in self.jobs)


def _part(request: Request, rows: int) -> Request:
    share = rows / request.rows
    return msgspec.structs.replace(
        request, rows=rows, bytes=int(request.bytes * share), cost_us=request.cost_us * share
    )


class Job(Entry):
    """What the scheduler is given.

    Args:
        whole: whose it is.
        request: as it arrived, or the part of it that this is.
        service: what it is for.
        now_ns: the time.
        rows: that count in a batch; 0 where it is not joined with others.

    Attributes:
        whole: whose it is.
        request: as it arrived, or the part of it that this is.
        factor: its times are so many times the service's.
        alone_ns: what it took of a worker's time beside what others cost it on the device.
        overlap_ns: what those did.
        late: the worker found its deadline passed and did not run it.
    """

    def __init__(self, whole: Whole, request: Request, service: Service, now_ns: int, rows: int = 0) -> None:
        super().__init__(
            service.version,
            request.signature,
            _body(min(request.bytes, _LONGEST_BODY)),
            now_ns,
            now_ns + int(request.deadline_ms * 1e6) if request.deadline_ms else 0,
            rows=rows,
            kind=(request.signature, b"", b""),
            priority=request.priority,
            client=request.client,
        )
        self.whole = whole
        self.request = request
        alone_us = service.alone_ns(request.rows) / 1000
        self.factor = request.cost_us / alone_us if request.cost_us else 1.0
        self.alone_ns = self.overlap_ns = 0.0
        self.late = False


@dataclass(frozen=True, slots=True)
class Ended:
    """What is kept of a request.

    Attributes:
        request: as it arrived.
        outcome: how it ended.
        at_s: when.
        alone_s, overlap_s: of workers' time, as in Job, of all parts; what is left of its latency it waited: less than none where
            parts ran side by side for longer than it did.
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
