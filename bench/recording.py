"""What it costs the router to record what ran where and when, beside a whole dispatch; and to tell it.

    python -m bench.recording

Times are of this process' CPU, the least of some rounds: others on the machine hardly count.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from mpspool.core.ids import ModelVersion
from mpspool.router.metrics.buckets import Buckets
from mpspool.router.metrics.requests import SECONDS
from mpspool.router.scheduling.entry import Entry
from mpspool.router.scheduling.load import Device
from mpspool.router.scheduling.queues import QueueRules
from mpspool.router.scheduling.scheduler import PoolRules, Scheduler, Send
from mpspool.router.task_log import SIZE, TaskLog

_ROUNDS = 7
_WORKERS = [f"half_plus_two@1.gpu0.{slot}" for slot in range(4)]
_MODEL = ModelVersion("half_plus_two", 1)
_COST_US = 500


@dataclass(frozen=True, slots=True)
class Figures:
    """All that is measured.

    Attributes:
        scheduler_ns: a dispatch of one request from its arrival to its answer, the device's clock included.
        device_ns: that clock alone: brought up to now twice, and what ran summed up.
        log_ns: adding it to the log.
        histograms_ns: its effective and its waiting time.
        told_ms, longest_ms: making and encoding the answer with a full log; the longest that nothing else was done.
    """

    scheduler_ns: float
    device_ns: float
    log_ns: float
    histograms_ns: float
    told_ms: float
    longest_ms: float

    @property
    def recording_ns(self) -> float:
        return self.device_ns + self.log_ns + self.histograms_ns

    @property
    def share(self) -> float:
        """Of what the scheduler and the recording take together."""
        return self.recording_ns / (self.scheduler_ns + self.log_ns + self.histograms_ns)


def measure(count: int = 20_000) -> Figures:
    """With so many dispatches in a round."""
    told_ms, longest_ms = _tell()
    return Figures(
        scheduler_ns=_least_ns(_through_the_scheduler, count),
        device_ns=_least_ns(_device, count),
        log_ns=_least_ns(_log, count),
        histograms_ns=_least_ns(_histograms, count),
        told_ms=told_ms,
        longest_ms=longest_ms,
    )


def _least_ns(run: Callable[[int], None], count: int) -> float:
    """For each of so many."""
    found = []
    for _ in range(_ROUNDS):
        start_ns = time.process_time_ns()
        run(count)
        found.append((time.process_time_ns() - start_ns) / count)
    return min(found)


def _through_the_scheduler(count: int) -> None:
    scheduler = Scheduler(PoolRules(), QueueRules())
    for worker in _WORKERS:
        scheduler.join(worker, _MODEL, 2, "gpu0")
    for number in range(count):
        now_ns = number * 1_000_000
        scheduler.arrive(Entry(_MODEL, "", b"%d" % number, now_ns, now_ns + 10**9), now_ns)
        for order in scheduler.dispatch(now_ns):
            assert isinstance(order, Send)
            ended_ns = now_ns + _COST_US * 1000
            batch = scheduler.finished(order.worker, order.dispatch, now_ns=ended_ns)
            assert batch is not None
            for entry in batch.entries:
                scheduler.costs.observe(_MODEL, "", entry.size, _COST_US)
                scheduler.answered(entry, ran=True)


def _device(count: int) -> None:
    device = Device("gpu0", running=2)
    for number in range(count):
        device.advance(2 * number)
        device.advance(2 * number + 1)
        device.ran(0.0005, 0.7)


def _log(count: int) -> None:
    log = TaskLog()
    for number in range(count):
        log.add(_WORKERS[number % len(_WORKERS)], number * 1_000_000, _COST_US, 1)


def _histograms(count: int) -> None:
    effective, waiting = Buckets(SECONDS), Buckets(SECONDS)
    for _ in range(count):
        effective.observe(0.0005)
        waiting.observe(max(0.0, 0.002 - 0.0005))


def _tell() -> tuple[float, float]:
    """(all of a full log, the longest stretch), in milliseconds."""
    log = TaskLog()
    for number in range(SIZE + 1000):
        log.add(_WORKERS[number % len(_WORKERS)], number * 1_000_000, _COST_US, 1)
    found = []
    for _ in range(_ROUNDS):
        stretches = []
        parts = log.parts(0)
        start_ns = time.process_time_ns()
        while part := next(parts, None):
            _ = json.dumps(part).encode() + b"\n"
            end_ns = time.process_time_ns()
            stretches.append((end_ns - start_ns) / 1e6)
            start_ns = end_ns
        found.append((sum(stretches), max(stretches)))
    return min(found)


def main() -> None:
    found = measure()
    print("ns for a dispatch of one request")
    for name, value in (
        ("through the scheduler, with its device's clock", found.scheduler_ns),
        ("recording", found.recording_ns),
        ("  the device's clock, brought up to now twice", found.device_ns),
        ("  TaskLog.add", found.log_ns),
        ("  effective and waiting time of the request", found.histograms_ns),
    ):
        print(f"{name:50}{value:8.0f}")
    print(
        f"Recording is {found.share:.0%} of both together; a request costs the router far more: its way in and out."
    )
    print(f"Telling a full log of {SIZE:,}: {found.told_ms:.1f} ms, {found.longest_ms:.2f} ms at a stretch.")


if __name__ == "__main__":
    main()
