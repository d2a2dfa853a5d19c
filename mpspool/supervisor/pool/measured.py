"""How much memory the workers have, looked at for no longer than whoever asks can wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from mpspool.core import process
from mpspool.core.ids import WorkerId

# What is not looked at by then is told as it was found last; `mpspool top` waits for a second.
LOOK_S = 0.6


class Measured:
    """What was found of each worker last.

    A look takes milliseconds for each mapped GB, and the pool process gives way to who serves: at sixty workers, on processors that
    all want, that is more than anybody waits for. So a look ends, and the next one begins with those that were looked at the
    longest ago. Several who ask together wait for one.
    """

    def __init__(self) -> None:
        # The longest ago first.
        self._found: dict[WorkerId, tuple[int, process.Memory]] = {}
        self._looking = asyncio.Lock()
        self._begun_at = 0.0

    async def memory(self, pids: Mapping[WorkerId, int]) -> dict[WorkerId, process.Memory]:
        """Of these, where anything was found of them.

        Args:
            pids: of the workers' processes; 0 where there is none.
        """
        asked_at = time.monotonic()
        async with self._looking:
            if self._begun_at <= asked_at:
                self._begun_at = time.monotonic()
                await asyncio.to_thread(self._look, pids)
        return {
            worker: self._found[worker][1]
            for worker, pid in pids.items()
            if worker in self._found and self._found[worker][0] == pid
        }

    def _look(self, pids: Mapping[WorkerId, int]) -> None:
        end = time.monotonic() + LOOK_S
        found = {worker: known for worker, known in self._found.items() if pids.get(worker) == known[0]}
        for worker in [*(worker for worker in pids if worker not in found), *found]:
            found.pop(worker, None)
            memory = process.memory(pids[worker])
            if memory is not None:
                found[worker] = pids[worker], memory
            if time.monotonic() > end:
                break
        self._found = found
