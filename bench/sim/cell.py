"""One simulation to be run, and the search for the highest rate that a setup bears."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from bench.sim.arrivals import Load, Open
from bench.sim.engine import Simulation
from bench.sim.figures import Figures, judge, part_of
from bench.sim.service import Pool
from bench.sim.setup import Setup

_WARM = 0.15  # part of the time before anything counts
_STEPS = 7


@dataclass(frozen=True, slots=True)
class Cell:
    """A pool, a setup and a load."""

    pool: Pool
    setup: Setup
    load: Load
    seconds: float
    seed: int = 1

    def run(self) -> Figures:
        gc.disable()  # it would look for cycles among all the requests again and again
        try:
            record = Simulation(self.pool, self.setup, self.load, self.seconds, self.seed).run()
        finally:
            gc.enable()
        return judge(record, self.seconds, _WARM * self.seconds)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest rate at which a cell stays within a limit.

    Attributes:
        cell: with an Open load, whose rate is the highest one tried.
        limit_ms: what p99 may be, by service.
        low: a rate that is surely borne.
    """

    cell: Cell
    limit_ms: dict[str, float]
    low: float

    def run(self) -> float:
        """By bisection; the same requests at every rate."""
        load = self.cell.load
        assert isinstance(load, Open)
        low, high = self.low, load.rate
        for _ in range(_STEPS):
            rate = (low + high) / 2
            cell = dataclasses.replace(self.cell, load=dataclasses.replace(load, rate=rate))
            low, high = (rate, high) if self._bears(cell.run()) else (low, rate)
        return low

    def _bears(self, figures: Figures) -> bool:
        return all(
            part_of(figures.services, name).p99_ms <= most_ms for name, most_ms in self.limit_ms.items()
        )


Task = Cell | Capacity
Key = tuple[Any, ...]


def run_all(tasks: dict[Key, Task], processes: int, done: Callable[[int], None]) -> dict[Key, Any]:
    """Each task's result, by its key; the longest ones had better come first.

    Args:
        tasks: by their keys.
        processes: that run them.
        done: told after each, how many there are by now.

    Raises:
        Whatever one of them does, or Ctrl-C: those that have not begun by then are not run.
    """
    if processes == 1:
        found = {}
        for key, task in tasks.items():
            found[key] = task.run()
            done(len(found))
        return found
    with ProcessPoolExecutor(processes) as executor:
        futures = {key: executor.submit(_run, task) for key, task in tasks.items()}
        try:
            for count, future in enumerate(as_completed(futures.values()), 1):
                future.result()
                done(count)
        except BaseException:  # Ctrl-C is one
            executor.shutdown(cancel_futures=True)
            raise
        return {key: future.result() for key, future in futures.items()}


def _run(task: Task) -> Any:
    return task.run()
