"""Workers whose end is under way: nothing is started in their slots until it is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet

from mpspool.core.ids import WorkerId
from mpspool.core.rundir import RunDir
from mpspool.supervisor.pool import ladder
from mpspool.supervisor.pool.ladder import Ladder
from mpspool.supervisor.pool.workers import Workers


class Endings(AbstractSet[WorkerId]):
    """The workers that are being ended.

    Args:
        on_end: called when one of these ends is over.
    """

    def __init__(self, run: RunDir, workers: Workers, on_end: Callable[[], None]) -> None:
        self._run = run
        self._workers = workers
        self._on_end = on_end
        self._tasks: dict[WorkerId, asyncio.Task[None]] = {}
        self._begun: dict[WorkerId, float] = {}
        self._leaving: set[WorkerId] = set()
        self._hastening: set[asyncio.Task[None]] = set()

    def __contains__(self, worker: object) -> bool:
        return worker in self._tasks

    def __iter__(self) -> Iterator[WorkerId]:
        return iter(list(self._tasks))

    def __len__(self) -> int:
        return len(self._tasks)

    def begun_after(self, moment: float) -> list[WorkerId]:
        """Those whose end has begun after that, in seconds of time.monotonic()."""
        return [worker for worker, begun in self._begun.items() if begun > moment]

    def hung(self, worker: WorkerId, reason: str) -> None:
        """Ends one that hangs: with a stack dump in its log, if it can still give one."""
        self._begin([worker], f"hung and killed: {reason}", ladder.HUNG)

    def leave(self, workers: Iterable[WorkerId], reason: str, limit_s: float) -> None:
        """Has those go that are not wanted any more: they finish what they run first, for so long."""
        self._leaving.update(self._begin(workers, reason, ladder.retiring(limit_s)))

    def lost(self, workers: Iterable[WorkerId], reason: str) -> None:
        """Ends those whose device, or MPS, has left them: soon, and all at once; others wait for those that leave, too."""
        gone = list(workers)
        if late := self._leaving.intersection(gone):
            self._leaving -= late
            task = asyncio.create_task(self._workers.end(late, ladder.LOST))
            self._hastening.add(task)
            task.add_done_callback(self._hastening.discard)
        self._begin(gone, f"ended: {reason}", ladder.LOST)

    def _begin(self, workers: Iterable[WorkerId], words: str, steps: Ladder) -> list[WorkerId]:
        """Returns those whose end was not under way."""
        if chosen := [worker for worker in workers if worker not in self._tasks]:
            task = asyncio.create_task(self._end(chosen, words, steps))
            self._tasks.update(dict.fromkeys(chosen, task))
            self._begun.update(dict.fromkeys(chosen, time.monotonic()))
        return chosen

    async def _end(self, workers: list[WorkerId], words: str, steps: Ladder) -> None:
        try:
            for worker in workers:
                self._run.set_last_words(worker.program, words)
            await self._workers.end(workers, steps)
        finally:
            for worker in workers:
                del self._tasks[worker], self._begun[worker]
                self._leaving.discard(worker)
            self._on_end()

    async def close(self) -> None:
        """Breaks off what is under way."""
        tasks = {*self._tasks.values(), *self._hastening}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
