"""A worker process: it runs the dispatches it was sent one after another, on a core and a share of a device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from bench.sim.device import Device
from bench.sim.job import Job
from bench.sim.service import Service
from mpspool.core.settings import BatchingSettings
from mpspool.router.scheduling.scheduler import Send


class Run:
    """A dispatch on its way through a worker.

    Attributes:
        worker: whose it is.
        order: what it was told.
        jobs: those that run, one by one or together.
        busy_ns: of the worker's time, so far.
        ran: anything was run.
    """

    def __init__(self, worker: Worker, order: Send) -> None:
        self.worker = worker
        self.order = order
        self.jobs: list[Job] = order.entries  # type: ignore[assignment]  # what arrived were Jobs
        self.busy_ns = 0.0
        self.ran = False
        self._step = 0
        self._began_ns = 0
        self._device_ns = self._after_ns = self._alone_ns = 0.0

    def begin(self, now_ns: int) -> None:
        """Its next step starts at `now_ns`, which may be to come."""
        service = self.worker.service
        if self.order.together:
            rows, factor = self._gather(now_ns)
        else:
            while self._step < len(self.jobs) and self._is_late(self.jobs[self._step], now_ns):
                self._step += 1
            if self._step == len(self.jobs):
                self.worker.ended(self, now_ns)
                return
            job = self.jobs[self._step]
            rows, factor = job.request.rows, job.factor
        if not rows:
            self.worker.ended(self, now_ns)
            return
        self.ran = True
        self._began_ns = now_ns
        before_ns = factor * service.before.ns(rows)
        self._device_ns = factor * service.device.ns(rows)
        self._after_ns = factor * service.after.ns(rows)
        self._alone_ns = before_ns + self._device_ns + self._after_ns
        self.worker.enter(self, now_ns + int(before_ns))

    def _gather(self, now_ns: int) -> tuple[int, float]:
        """The rows of a batch, padding included, and its factor: the mean of theirs."""
        on_time = [job for job in self.jobs if not self._is_late(job, now_ns)]
        rows = sum(job.request.rows for job in on_time)
        if not rows:
            return 0, 1.0
        batching = self.worker.batching
        padding = batching.padding(rows) if batching else 0
        return rows + padding, sum(job.request.rows * job.factor for job in on_time) / rows

    def _is_late(self, job: Job, now_ns: int) -> bool:
        job.late = bool(job.deadline_ns) and job.deadline_ns <= now_ns
        return job.late

    def enter(self, now_ns: int) -> None:
        """Its CPU time before is over."""
        self.worker.device.enter(now_ns, self._device_ns, self.worker.service.width, self)

    def leave(self, now_ns: int) -> None:
        """Its time on the device is over."""
        end_ns = now_ns + int(self._after_ns)
        took_ns = end_ns - self._began_ns
        self.busy_ns += took_ns
        for job in self.jobs if self.order.together else self.jobs[self._step : self._step + 1]:
            if not job.late:
                job.alone_ns = self._alone_ns
                job.overlap_ns = took_ns - self._alone_ns
        self._step += 1
        if self.order.together or self._step == len(self.jobs):
            self.worker.ended(self, end_ns)
        else:
            self.begin(end_ns)


class Worker:
    """One worker.

    Args:
        name: as the scheduler calls it.
        service: what it runs.
        batching: how requests were joined; None for not at all.
        device: where.
        enter: calls a Run's enter() at a time.
        answer: called with a Run and when it ended, which may be to come.

    Attributes:
        ran_s: what its dispatches took of its time.
        result: called with a Run when what it says of it has arrived.
    """

    result: Callable[[Run], None]

    def __init__(
        self,
        name: str,
        service: Service,
        batching: BatchingSettings | None,
        device: Device[Run],
        enter: Callable[[Run, int], None],
        answer: Callable[[Run, int], None],
    ) -> None:
        self.name, self.service, self.device, self.enter = name, service, device, enter
        self.batching = batching
        self.ran_s = 0.0
        self._answer = answer
        self._waiting: deque[tuple[int, Run]] = deque()
        self._running = False
        self._free_ns = 0

    def send(self, run: Run, here_ns: int) -> None:
        """It has this to run from then on."""
        self._waiting.append((here_ns, run))
        if not self._running:
            self._next()

    def _next(self) -> None:
        here_ns, run = self._waiting.popleft()
        self._running = True
        run.begin(max(self._free_ns, here_ns))

    def ended(self, run: Run, now_ns: int) -> None:
        """A dispatch is over at `now_ns`, which may be to come."""
        self._free_ns = now_ns
        self._running = False
        self.ran_s += run.busy_ns / 1e9
        self._answer(run, now_ns)
        if self._waiting:
            self._next()
