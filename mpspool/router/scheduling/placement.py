"""The workers of one model version: which takes the next dispatch. Pure.

Choosing costs the same with one worker and with hundreds: those that are idle, and those that will be soon, are in heaps.
What is in them may be out of date, and is checked when it comes up.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter

from mpspool.router.scheduling.load import Device, Limits, WorkerLoad

DISPATCHES = ("least_loaded", "round_robin")
# A second dispatch is put behind a running one only when that one ends within this time, so that
# nobody waits behind a busy worker while another may fall idle.
PIPELINE_NS = 2_000_000
# A batch that is not full grows while it waits, so that it does so to the last.
BATCH_PIPELINE_NS = 300_000
# Where so much waits for each worker that none will be idle long before the others, it may be sooner: router and worker
# then mostly wake up once for a result and what follows it.
BACKLOG_PIPELINE_NS = 16_000_000
# And sooner still where nobody is in a hurry, who would wait for what runs and for what is behind it.
PATIENT_PIPELINE_NS = 32_000_000
# A worker that is late by more may hang.
_OVERDUE_NS = 20_000_000


class Placement:
    """Who is idle, on which device, and who will be soon.

    Args:
        dispatch: "least_loaded", a worker on the device that runs least, or "round_robin".
        limits: what may run on a device.

    Attributes:
        workers: by name.
        open_count, idle_count, stay_count: of them, how many are sent more, are idle, and do not leave.
        held, rows: requests that they hold, and rows of the batches among them.
    """

    def __init__(self, dispatch: str, limits: Limits) -> None:
        self.govern(dispatch, limits)
        self._idle: dict[Device, list[tuple[int, int, WorkerLoad]]] = {}
        self._soon: list[tuple[int, int, WorkerLoad]] = []
        # Of open_count and idle_count, by device.
        self._open_on: Counter[Device] = Counter()
        self._idle_on: Counter[Device] = Counter()
        self.open_count = self.idle_count = self.stay_count = 0
        self.held = self.rows = 0
        self._serial = itertools.count()
        self.workers: dict[str, WorkerLoad] = {}

    def govern(self, dispatch: str, limits: Limits) -> None:
        """What holds from now on, as the class has it."""
        self._least_loaded = dispatch == "least_loaded"
        self._limits = limits

    @property
    def limited(self) -> bool:
        """See Limits.any."""
        return self._limits.any

    def add(self, worker: WorkerLoad) -> None:
        self.workers[worker.name] = worker
        self.settle(worker)

    def remove(self, worker: WorkerLoad) -> None:
        worker.leaving = True
        self.settle(worker)
        self.held -= worker.counted_held
        self.rows -= worker.counted_rows
        worker.counted_held = worker.counted_rows = 0
        del self.workers[worker.name]

    def idle_part(self, rows: int, long: bool) -> int:
        """A part of so many rows that wait, where each idle worker takes one that may; of long batches, or of others."""
        room = self._limits.room
        may = sum(
            min(idle, room(long, device.running, device.long)) for device, idle in self._idle_on.items()
        )
        return -(-rows // max(1, may))

    def even_part(self, rows: int, long: bool) -> int:
        """A worker's part of so many rows that wait and of those that run; no more than an idle one's of what waits."""
        most = self._limits.room(long)
        may = sum(min(count, most) for count in self._open_on.values())
        return min(self.idle_part(rows, long), -(-(rows + self.rows) // max(1, may)))

    def held_each(self) -> float:
        """How many requests each of those that are sent more holds, on average."""
        return self.held / max(1, self.open_count)

    def free_in_s(self, now_ns: int, enough_s: float) -> float:
        """How long until one of those that are sent more has run all it holds, by what that takes for sure; 0 where nobody knows.

        The least over all of them, or the first that is found to take no longer than `enough_s`.
        """
        least_s = math.inf
        for worker in self.workers.values():
            if worker.open:
                least_s = min(least_s, worker.left_s(now_ns))
                if least_s <= enough_s:
                    break
        return 0.0 if least_s == math.inf else least_s

    def settle(self, worker: WorkerLoad) -> None:
        """To be called after anything about a worker has changed."""
        held, rows = worker.held, worker.rows
        self.held += held - worker.counted_held
        self.rows += rows - worker.counted_rows
        worker.counted_held, worker.counted_rows = held, rows
        if worker.leaving == worker.stays:
            worker.stays = not worker.leaving
            self.stay_count += 1 if worker.stays else -1
        is_open = not (worker.leaving or worker.reserved)
        if is_open != worker.open:
            worker.open = is_open
            self.open_count += 1 if is_open else -1
            _count(self._open_on, worker.device, 1 if is_open else -1)
        idle = worker.idle
        if idle != worker.free:
            worker.free = idle
            self.idle_count += 1 if idle else -1
            _count(self._idle_on, worker.device, 1 if idle else -1)
            if idle:
                line = self._idle.setdefault(worker.device, [])
                heapq.heappush(line, (worker.last_sent, next(self._serial), worker))
        if idle:
            return
        if (end_ns := worker.end_ns()) is not None:
            heapq.heappush(self._soon, (end_ns, next(self._serial), worker))
            if len(self._soon) > 4 * len(self.workers) + 16:
                self._soon = [item for item in self._soon if self._holds(item)]
                heapq.heapify(self._soon)

    def idle(self, long: bool) -> WorkerLoad | None:
        """An idle worker whose device has room for such a dispatch."""
        best: WorkerLoad | None = None
        best_rank = (0, 0)
        for device, line in self._idle.items():
            while line and not _is_free(line[0]):
                heapq.heappop(line)
            if line and self._limits.allow(device, long):
                rank = (device.running if self._least_loaded else 0, line[0][0])
                if best is None or rank < best_rank:
                    best, best_rank = line[0][2], rank
        return best

    def soon(self, long: bool, now_ns: int, window_ns: int) -> WorkerLoad | None:
        """A busy worker that will have run all it holds within that time; not one that should have long ago."""
        due = self._next_soon()
        while due is not None and now_ns > due[0] + _OVERDUE_NS:
            heapq.heappop(self._soon)
            due = self._next_soon()
        if due is None or due[0] - window_ns > now_ns:
            return None
        worker = due[2]
        device = worker.device
        # It takes the place of what it is behind.
        return worker if self._limits.room(long, device.running - 1, device.long - worker.long) else None

    def look_again_ns(self, now_ns: int, window_ns: int) -> int | None:
        """When soon() will next have one, if nothing else happens before."""
        due = self._next_soon()
        at_ns = None if due is None else due[0] - window_ns
        return at_ns if at_ns is not None and at_ns > now_ns else None

    def _next_soon(self) -> tuple[int, int, WorkerLoad] | None:
        while self._soon and not self._holds(self._soon[0]):
            heapq.heappop(self._soon)
        return self._soon[0] if self._soon else None

    def _holds(self, item: tuple[int, int, WorkerLoad]) -> bool:
        return item[2].end_ns() == item[0]


def _count(counts: Counter[Device], device: Device, more: int) -> None:
    counts[device] += more
    if not counts[device]:
        del counts[device]


def _is_free(item: tuple[int, int, WorkerLoad]) -> bool:
    """Whether a worker is still idle, and has not been sent anything since."""
    return item[2].free and item[2].last_sent == item[0]
