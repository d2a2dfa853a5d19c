"""A way to schedule, by name: what the router is told, and how the simulation stands its routers up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.sim.service import Service
from mpspool.core.settings import BatchingSettings, QueueSettings
from mpspool.router.scheduling import policy as policies
from mpspool.router.scheduling.load import Limits
from mpspool.router.scheduling.probe import probe
from mpspool.router.scheduling.queues import QueueRules
from mpspool.router.scheduling.scheduler import PoolRules, Scheduler
from mpspool.supervisor.config.scheduling import POLICIES
from mpspool.supervisor.planning.policies import PolicyError, find_policy

# What evens out how long jobs are; more makes an order of small differences in what alike ones have cost.
AGING = 3.0


def unfit(policy: str) -> str:
    """Why it cannot be had, or imported, and what to do; "" where it can."""
    try:
        reference = find_policy(policy)
    except PolicyError as error:
        return str(error)
    return "" if reference in POLICIES else probe(reference, ())


@dataclass(frozen=True, slots=True)
class Setup:
    """What is judged.

    Attributes:
        title: what it is called in tables.
        policy: a built-in one, an entry point's name or "module:attribute".
        aging: of sjf.
        dispatch: which worker is next.
        running, long, long_us: what may run on a device at once, and what is long.
        fair, refuse_late, max_requests: as in QueueRules.
        priority_s: as there; 0 where requests have no priorities.
        batching: services that batch do.
        apart: each worker has a queue of its own behind a load balancer that goes round.
        models: by service, what its queue is told in place of policy, max_requests and batching, and how it batches.
    """

    title: str
    policy: str = "fifo"
    aging: float = AGING
    dispatch: str = "least_loaded"
    running: int = 0
    long: int = 0
    long_us: float = 0.0
    fair: bool = False
    priority_s: float = 1.0
    refuse_late: bool = True
    max_requests: int = 10_000
    batching: bool = True
    apart: bool = False
    models: Mapping[str, tuple[QueueSettings, BatchingSettings | None]] = field(
        default_factory=dict, hash=False
    )

    def batching_of(self, service: Service) -> BatchingSettings | None:
        """How its requests are joined; None where they run one by one."""
        if service.name in self.models:
            return self.models[service.name][1]
        return service.batching if self.batching else None

    def scheduler(self, services: tuple[Service, ...]) -> Scheduler:
        """The router's own, told so."""
        rules = PoolRules(self.dispatch, Limits(self.running, self.long), self.long_us)
        queue = QueueSettings(policy=self.policy, max_queued_requests=self.max_requests)
        scheduler = Scheduler(rules, self._queue_rules(queue, None))
        for service in services:
            told, _ = self.models.get(service.name, (queue, None))
            scheduler.govern(service.version, self._queue_rules(told, self.batching_of(service)))
        return scheduler

    def _queue_rules(self, queue: QueueSettings, batching: BatchingSettings | None) -> QueueRules:
        return QueueRules(
            policy=policies.find(queue.policy, self.aging),
            max_requests=queue.max_queued_requests,
            batching=batching,
            priority_s=self.priority_s,
            fair=self.fair,
            refuse_late=self.refuse_late,
        )
