"""What is told of the data plane: to the pool and `mpspool status` by the control socket, and to Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from mpspool.router.memory import Memory
from mpspool.router.models import Models
from mpspool.router.scheduling.policy import Own
from mpspool.router.scheduling.scheduler import Scheduler
from mpspool.router.task_log import TaskLog
from mpspool.router.workers import Worker, Workers

# The pool tells how the GPUs fare once a second.
_DEVICES_S = 10.0


class Overview:
    """Args:
        models, workers, scheduler, memory: the data plane's.

    Attributes:
        restarts: how often each slot was filled again, by worker id.
        slots: the state of every slot that there should be, by worker id.
        task_log: what ran.
    """

    def __init__(self, models: Models, workers: Workers, scheduler: Scheduler, memory: Memory) -> None:
        self._models = models
        self._workers = workers
        self._scheduler = scheduler
        self._memory = memory
        self.restarts: Mapping[str, int] = {}
        self.slots: Mapping[str, str] = {}
        self.task_log = TaskLog(time.monotonic_ns())
        self._devices: list[dict[str, Any]] = []
        self._devices_until = 0.0

    def devices(self, devices: list[dict[str, Any]]) -> None:
        """How the GPUs fare; forgotten where it is not said again for a while."""
        self._devices = devices
        self._devices_until = time.monotonic() + _DEVICES_S

    def snapshot(self, *, draining: bool) -> dict[str, Any]:
        """Models, workers, queue."""
        models: dict[str, list[dict[str, Any]]] = {}
        for version in self._models.all():
            policy = self._scheduler.policy(version.model)
            own = policy if isinstance(policy, Own) else None
            batching = self._scheduler.batching(version.model)
            models.setdefault(version.model.name, []).append(
                {
                    "version": version.model.version,
                    "state": version.state.name,
                    "error": version.error(),
                    "queued": self._scheduler.queued(version.model),
                    "queued_limit": self._scheduler.queued_limit(version.model),
                    "queued_slow": self._scheduler.queued_slow(version.model),
                    "batch_rows": batching.run_rows if batching else 0,
                    "policy_failures": own.failures if own else 0,
                    "policy_error": own.error if own else "",
                    "policy_s": own.spent_s if own else 0.0,
                    "policy_slow_ms": own.takes_s * 1e3 if own and own.is_slow else 0.0,
                }
            )
        return {
            "epoch": self._workers.epoch,
            "draining": draining,
            "models": [{"name": name, "versions": versions} for name, versions in models.items()],
            "workers": [self._describe(worker) for worker in self._workers],
            "queued": self._scheduler.unfinished(),
            "held_bytes": self._memory.used,
            "held_bytes_limit": self._memory.limit_bytes,
            "restarts": self.restarts,
            "slots": self.slots,
            "devices": self._devices if time.monotonic() < self._devices_until else [],
            "tasks": [
                {
                    "device": device.name,
                    "running": device.running,
                    "busy_s": device.busy_s,
                    "effective_s": device.effective_s,
                }
                for device in self._scheduler.devices()
            ],
        }

    def tasks(self, last_s: float, simulated: str) -> Iterator[dict[str, Any]]:
        """What ran where and when in the last so many seconds, piece by piece: no piece takes long to make.

        Yields:
            First the time, the devices and, of each worker that runs something now, since when (CLOCK_MONOTONIC); then
            the parts of TaskLog; at the end where the record begins.
        """
        now_ns = time.monotonic_ns()
        running = {str(worker.id): self._scheduler.running_since_ns(worker.name) for worker in self._workers}
        # Found now: what ends while this is told is among those that run.
        parts = self.task_log.parts(now_ns - int(last_s * 1e9))
        yield {
            "now_ns": now_ns,
            "simulated": simulated,
            "devices": [device.name for device in self._scheduler.devices()],
            "running": {worker: since_ns for worker, since_ns in running.items() if since_ns is not None},
        }
        yield from parts
        yield self.task_log.begins()

    def _describe(self, worker: Worker) -> dict[str, Any]:
        return {
            "id": str(worker.id),
            "generation": worker.generation,
            "pid": worker.pid,
            "state": worker.state.value,
            "in_flight": self._scheduler.in_flight(worker.name),
            "served": worker.served,
            "busy_s": worker.busy_us / 1e6,
            "running_s": worker.running_s(time.monotonic_ns()),
            "engine": worker.engine,
            "weights": msgspec.to_builtins(worker.weights),
            "failed": worker.failed,
            "hung": worker.hung,
        }
