"""A look at a pool from outside: what its processes answer, and what the kernel knows of its workers."""

from __future__ import annotations

import os
import time

from mpspool.core import control, process
from mpspool.core.control import ControlError, Message
from mpspool.core.rundir import RunDir
from mpspool.supervisor import lock
from mpspool.supervisor.top.figures import Sample

_ANSWER_S = 1.0
_SILENT = "the pool does not answer: it is only starting, or very busy"
# A worker's PSS takes milliseconds per GB that it maps.
_MEMORY_EVERY_S = 5.0


class Sampler:
    """Takes samples of the pool in a run folder, which need not be there all the time."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._status: Message | None = None
        self._pss_bytes: dict[str, int] = {}
        self._measured_at = float("-inf")

    def take(self) -> Sample:
        """What there is to be had now; never raises for a pool that is not there or does not answer."""
        problem = self._ask_pool()
        router = latencies = None
        if self._status is not None:
            try:
                router = control.call(self._run.router_control, "snapshot", timeout_s=_ANSWER_S)
                latencies = control.call(self._run.router_control, "latencies", timeout_s=_ANSWER_S)
            except (ControlError, ValueError):
                problem = problem or "the router does not answer"
        return Sample(
            time.monotonic(),
            self._status,
            router,
            latencies,
            self._cpu_s(),
            dict(self._pss_bytes),
            len(os.sched_getaffinity(0)),
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            problem,
        )

    def _ask_pool(self) -> str:
        """Takes the status, or keeps the last one where a pool runs that does not answer. Returns what is wrong."""
        now = time.monotonic()
        due = now >= self._measured_at + _MEMORY_EVERY_S
        status = self._ask_status(memory=due)
        measured = due and status is not None
        if due and status is None:  # to count memory takes long where the machine is busy
            status = self._ask_status(memory=False)
        if status is None:
            if lock.holder(self._run):
                return "the pool process does not answer" if self._status else _SILENT
            self._status = None
            return f"no pool runs in {self._run.root}; waiting for one"
        self._status = status
        if due:
            self._measured_at = now
        if measured:
            self._pss_bytes = {
                worker["id"]: worker["memory"]["pss_bytes"]
                for worker in self._status["workers"]
                if worker.get("memory")
            }
        return ""

    def _ask_status(self, *, memory: bool) -> Message | None:
        arguments = {"memory": True} if memory else {}
        try:
            return control.call(self._run.pool_control, "status", timeout_s=_ANSWER_S, **arguments)
        except (ControlError, ValueError):
            return None

    def _cpu_s(self) -> dict[int, float]:
        workers = self._status["workers"] if self._status else []
        found = {worker["pid"]: process.stat(worker["pid"]) for worker in workers if worker["pid"]}
        return {pid: stat.cpu_s for pid, stat in found.items() if stat is not None}
