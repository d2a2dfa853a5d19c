"""A device that jobs share: each of those that overlap gets the same part of it.

With widths w of the jobs on it, `parallel` p and a loss l, each of n jobs runs at

    min(1, p / sum(w)) / (1 + l * (n - 1))

of the speed that it has alone. All run at one speed, so that one clock of work done serves for all of them, and each
job's end is a place on it: entering and ending cost O(log n).
"""

from __future__ import annotations

import heapq
import math
from typing import Generic, TypeVar

_Job = TypeVar("_Job")


class Device(Generic[_Job]):
    """One device.

    Attributes:
        name: the device's.
        version: changes whenever due_ns() does.
        work_ns: what was done, as it would take one after another.
        busy_ns: how long anything ran.
        overlap_ns: how long jobs ran beyond what they would have alone.
        jobs_ns: the integral over time of the number of jobs.
    """

    def __init__(self, name: str, parallel: float = 1.0, loss: float = 0.0) -> None:
        self.name = name
        self.version = 0
        self.work_ns = self.busy_ns = self.jobs_ns = 0.0
        self._parallel, self._loss = parallel, loss
        self._done_ns = 0.0  # by each job that has been here all the time
        self._at_ns = 0
        self._speed = 1.0
        self._width = 0.0
        self._jobs: list[tuple[float, int, float, _Job]] = []
        self._entered = 0

    @property
    def overlap_ns(self) -> float:
        return self.jobs_ns - self.work_ns

    def enter(self, now_ns: int, work_ns: float, width: float, job: _Job) -> None:
        """A job begins; alone it would take `work_ns`."""
        self.advance(now_ns)
        self._entered += 1
        heapq.heappush(self._jobs, (self._done_ns + work_ns, self._entered, width, job))
        self._width += width
        self._change()

    def due_ns(self) -> int | None:
        """When the next job ends if none enters before."""
        if not self._jobs:
            return None
        return self._at_ns + math.ceil((self._jobs[0][0] - self._done_ns) / self._speed - 1e-6)

    def ended(self, now_ns: int) -> list[_Job]:
        """Those that have ended by now, at due_ns()."""
        self.advance(now_ns)
        jobs: list[_Job] = []
        while self._jobs and self._jobs[0][0] <= self._done_ns + 1.0:  # a nanosecond is what rounding makes
            _, _, width, job = heapq.heappop(self._jobs)
            self._width -= width
            jobs.append(job)
        self._change()
        return jobs

    def advance(self, now_ns: int) -> None:
        """Time passes."""
        count = len(self._jobs)
        passed_ns = now_ns - self._at_ns
        self._at_ns = now_ns
        if count:
            done_ns = passed_ns * self._speed
            self._done_ns += done_ns
            self.work_ns += count * done_ns
            self.busy_ns += passed_ns
            self.jobs_ns += count * passed_ns

    def _change(self) -> None:
        self.version += 1
        count = len(self._jobs)
        if not count:
            self._done_ns = self._width = 0.0  # rounding errors do not pile up
        elif self._width > 0.0:
            self._speed = min(1.0, self._parallel / self._width) / (1.0 + self._loss * (count - 1))
