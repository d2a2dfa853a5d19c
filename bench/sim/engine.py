"""The simulation: a clock, an event queue, and around the router's own scheduler what the router does with it."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bench.sim.arrivals import Load
from bench.sim.device import Device
from bench.sim.job import Ended, Job, Outcome, Whole
from bench.sim.service import Pool, Service
from bench.sim.setup import Setup
from bench.sim.trace import Request
from bench.sim.worker import Run, Worker
from mpspool.core.errors import Code, Lack, PoolError
from mpspool.router.scheduling.policy import Own
from mpspool.router.scheduling.scheduler import Refuse, Scheduler

_TICK_NS = 100_000_000


@dataclass(slots=True)
class Record:
    """What a simulation leaves.

    Attributes:
        ended: every request, in the order in which they ended.
        batches: rows of each batch that ran, by service.
        dispatches: how many there were.
        devices, workers: as they are at the end.
        end_s: of the simulated time.
        wall_s: what it took.
        scheduler_s: what of that was the schedulers'.
        policy_failures, policy_error: on how many requests a policy of a user's own failed, and why on the first.
    """

    devices: list[Device[Run]]
    workers: list[Worker]
    ended: list[Ended] = field(default_factory=list)
    batches: dict[str, list[int]] = field(default_factory=dict)
    dispatches: int = 0
    end_s: float = 0.0
    wall_s: float = 0.0
    scheduler_s: float = 0.0
    policy_failures: int = 0
    policy_error: str = ""


class Simulation:
    """A pool under a load.

    Args:
        pool: its devices and workers.
        setup: how it is scheduled.
        load: what arrives.
        seconds: for how long; what has arrived by then is finished.
        seed: of the load.
    """

    def __init__(self, pool: Pool, setup: Setup, load: Load, seconds: float, seed: int) -> None:
        self.now_ns = 0
        self._load = load
        self._arrivals = load.requests(seconds, seed)
        self._events: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._serial = itertools.count()
        self._pumps: list[_Router] = []
        self._services = {service.name: service for service in pool.services}
        self._batching = {service.name: setup.batching_of(service) for service in pool.services}
        self._link_ns = int(pool.link_us * 1000)
        self._priorities = setup.priority_s > 0
        devices = [Device[Run](f"gpu{n}", pool.parallel, pool.loss) for n in range(pool.gpus)]
        self.record = Record(devices, [])
        self._routers: dict[str, Iterator[_Router]] = {}
        self._all: list[_Router] = []
        self._under_way = 0
        self._stand_up(pool, setup, devices)

    def _stand_up(self, pool: Pool, setup: Setup, devices: list[Device[Run]]) -> None:
        places: list[tuple[Service, Device[Run], str]] = [
            (service, device, f"{service.name}.{device.name}.{slot}")
            for service in pool.services
            for slot in range(pool.workers(service))
            for device in devices
        ]
        whole = None if setup.apart else _Router(self, setup.scheduler(pool.services))
        rounds: dict[str, list[_Router]] = {service.name: [] for service in pool.services}
        for service, device, name in places:
            batching = self._batching[service.name]
            worker = Worker(name, service, batching, device, self._enter, self._answer)
            router = whole or _Router(self, setup.scheduler(pool.services))
            router.join(worker, pool.credits)
            if router not in self._all:
                self._all.append(router)
            if router not in rounds[service.name]:
                rounds[service.name].append(router)
            self.record.workers.append(worker)
        self._routers = {name: itertools.cycle(found) for name, found in rounds.items()}

    def run(self) -> Record:
        """Until all that arrived has ended."""
        start_s = time.thread_time()
        self._arrive_next()
        for router in self._all:
            self.at(_TICK_NS, router.tick, None)
        events = self._events
        while True:
            if self._pumps and (not events or events[0][0] > self.now_ns):
                self._pumps.pop().pump()
                continue
            if not events:
                break
            self.now_ns, _, call, what = heapq.heappop(events)
            call(what)
        for device in self.record.devices:
            device.advance(self.now_ns)
        self.record.end_s = self.now_ns / 1e9
        self.record.wall_s = time.thread_time() - start_s
        self.record.scheduler_s = sum(router.spent_ns for router in self._all) / 1e9
        versions = [service.version for service in self._services.values()]
        policies = [router.scheduler.policy(version) for router in self._all for version in versions]
        for policy in {id(policy): policy for policy in policies}.values():
            if isinstance(policy, Own):
                self.record.policy_failures += policy.failures
                self.record.policy_error = self.record.policy_error or policy.error
        return self.record

    def at(self, at_ns: int, call: Callable[[Any], None], what: object) -> None:
        heapq.heappush(self._events, (at_ns, next(self._serial), call, what))

    # -- clients ----------------------------------------------------------------------------------

    def _arrive_next(self) -> None:
        request = next(self._arrivals, None)
        if request is not None:
            self.at(int(request.time * 1e9), self._arrive, (request, True))

    def _arrive(self, what: tuple[Request, bool]) -> None:
        request, leads = what
        if leads:
            self._arrive_next()
        self._under_way += 1
        whole = Whole(request, self._services[request.model], self._batching[request.model], self.now_ns)
        if not self._priorities:
            for job in whole.jobs:
                job.priority = 0
        next(self._routers[request.model]).arrive(whole)

    def end(self, whole: Whole, outcome: Outcome) -> None:
        """A request has its answer or its refusal."""
        self._under_way -= 1
        alone_s = sum(job.alone_ns for job in whole.jobs) / 1e9
        overlap_s = sum(job.overlap_ns for job in whole.jobs) / 1e9
        self.record.ended.append(Ended(whole.request, outcome, self.now_ns / 1e9, alone_s, overlap_s))
        if (request := self._load.after(whole.request, self.now_ns / 1e9)) is not None:
            self.at(max(self.now_ns + 1, int(request.time * 1e9)), self._arrive, (request, False))

    # -- routers ----------------------------------------------------------------------------------

    def pump_soon(self, router: _Router) -> None:
        """Once for all that happens at this moment."""
        self._pumps.append(router)

    def send(self, worker: Worker, run: Run) -> None:
        self.record.dispatches += 1
        worker.send(run, self.now_ns + self._link_ns)

    @property
    def idle(self) -> bool:
        """Nothing is to come but ticks."""
        return len(self._events) < len(self._all) and not self._pumps

    def next_tick_ns(self) -> int:
        """Where nothing is under way, when something is to come: a trace may be silent for a day."""
        silent_ns = 0 if self._under_way or not self._events else self._events[0][0] - self.now_ns
        return self.now_ns + max(1, math.ceil(silent_ns / _TICK_NS)) * _TICK_NS

    # -- workers and devices ----------------------------------------------------------------------

    def _enter(self, run: Run, at_ns: int) -> None:
        if at_ns > self.now_ns:
            self.at(at_ns, self._entered, run)
        else:
            self._entered(run)

    def _entered(self, run: Run) -> None:
        run.enter(self.now_ns)
        self._see_device(run.worker.device)

    def _see_device(self, device: Device[Run]) -> None:
        if (due_ns := device.due_ns()) is not None:
            self.at(max(due_ns, self.now_ns), self._device_due, (device, device.version))

    def _device_due(self, what: tuple[Device[Run], int]) -> None:
        device, version = what
        if device.version != version:
            return
        for run in device.ended(self.now_ns):
            run.leave(self.now_ns)
        self._see_device(device)

    def _answer(self, run: Run, at_ns: int) -> None:
        self.at(at_ns + self._link_ns, run.worker.result, run)


class _Router:
    """What the data plane does around a scheduler: it pumps, looks again, learns costs and answers."""

    def __init__(self, simulation: Simulation, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.spent_ns = 0
        self._simulation = simulation
        self._workers: dict[str, Worker] = {}
        self._pumping = False
        self._look_ns = 0

    def join(self, worker: Worker, credits_: int) -> None:
        worker.result = self.result
        self._workers[worker.name] = worker
        self.scheduler.join(worker.name, worker.service.version, credits_, worker.device.name)

    def arrive(self, whole: Whole) -> None:
        start_ns = time.thread_time_ns()
        self._refuse(self.scheduler.expire(self._simulation.now_ns))
        try:
            stirs = self._take_in(whole.jobs)
        except PoolError as error:
            late = error.code is Code.DEADLINE_EXCEEDED
            self._simulation.end(whole, Outcome.REFUSED_LATE if late else Outcome.REFUSED_FULL)
            return
        finally:
            self.spent_ns += time.thread_time_ns() - start_ns
        if stirs or 0 < self._look_ns <= self._simulation.now_ns:
            self._pump_soon()

    def _take_in(self, jobs: list[Job]) -> bool:
        """What has come at this moment fills no queue while workers are idle: it is sent first. Raises PoolError."""
        now_ns = self._simulation.now_ns
        try:
            return self.scheduler.arrive_in_parts(jobs, now_ns, evict=not self._pumping)
        except PoolError as error:
            if not self._pumping or error.lack not in (Lack.REQUESTS, Lack.BATCHES):
                raise
        self.pump()
        return self.scheduler.arrive_in_parts(jobs, now_ns)

    def tick(self, _: object) -> None:
        simulation = self._simulation
        self._refuse(self.scheduler.expire(simulation.now_ns))
        if not simulation.idle:
            simulation.at(simulation.next_tick_ns(), self.tick, None)

    def _pump_soon(self) -> None:
        if self._pumping:
            return
        self._pumping = True
        self._simulation.pump_soon(self)

    def pump(self) -> None:
        self._pumping = False
        simulation = self._simulation
        now_ns = simulation.now_ns
        start_ns = time.thread_time_ns()
        refusals = self.scheduler.expire(now_ns)
        orders = self.scheduler.dispatch(now_ns)
        due_ns = self.scheduler.look_again_ns(now_ns)
        self.spent_ns += time.thread_time_ns() - start_ns
        self._refuse(refusals)
        for order in orders:
            if isinstance(order, Refuse):
                self._refuse([order])
                continue
            worker = self._workers[order.worker]
            simulation.send(worker, Run(worker, order))
        if due_ns is not None and (self._look_ns <= now_ns or due_ns < self._look_ns):
            self._look_ns = due_ns
            simulation.at(due_ns, self._look, due_ns)

    def _look(self, due_ns: int) -> None:
        if due_ns == self._look_ns:
            self._pump_soon()

    def result(self, run: Run) -> None:
        """A worker says what became of a dispatch."""
        scheduler = self.scheduler
        start_ns = time.thread_time_ns()
        scheduler.finished(run.worker.name, run.order.dispatch, run.ran, self._simulation.now_ns)
        first = run.jobs[0]
        if run.order.together and run.ran:
            rows = sum(job.rows for job in run.jobs if not job.late)
            scheduler.costs.observe(first.model, first.signature, 0, run.busy_ns / 1000, rows)
            self._simulation.record.batches.setdefault(first.model.name, []).append(rows)
        for job in run.jobs:
            if not job.late and not run.order.together:
                cost_us = (job.alone_ns + job.overlap_ns) / 1000
                scheduler.costs.observe(job.model, job.signature, job.size, cost_us)
            if not job.over:
                scheduler.answered(job, ran=not job.late)
                self._end(job, Outcome.EXPIRED if job.late else Outcome.ANSWERED)
        self.spent_ns += time.thread_time_ns() - start_ns
        self._pump_soon()

    def _refuse(self, refusals: list[Refuse]) -> None:
        for refusal in refusals:
            assert isinstance(refusal.entry, Job)
            late = refusal.error.code is Code.DEADLINE_EXCEEDED
            self._end(refusal.entry, Outcome.EXPIRED if late else Outcome.REFUSED_FULL)

    def _end(self, job: Job, outcome: Outcome) -> None:
        """The first part that fails ends the whole."""
        whole = job.whole
        if whole.ended or (outcome is Outcome.ANSWERED and not whole.answered):
            return
        whole.ended = True
        for part in whole.jobs:
            if not part.over:
                self.scheduler.cancel(part)
        self._simulation.end(whole, outcome)
