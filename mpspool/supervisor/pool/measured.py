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
    longest ago. Who asks meanwhile waits for its end.
    """

    def __init__(self) -> None:
        # The longest ago first.
        self._found: dict[WorkerId, tuple[int, process.Memory]] = {}
        self._looking: asyncio.Future[None] | None = None

    async def memory(self, pids: Mapping[WorkerId, int]) -> dict[WorkerId, process.Memory]:
        """Of these, where anything was found of them.

        Args:
            pids: of the workers' processes; 0 where there is none.
        """
        if self._looking is None:
            self._looking = asyncio.get_running_loop().run_in_executor(None, self._look, pids)
            self._looking.add_done_callback(self._looked)
        await asyncio.shield(self._looking)
        return {
            worker: self._found[worker][1]
            for worker, pid in pids.items()
            if worker in self._found and self._found[worker][0] == pid
        }

    def _looked(self, _: object) -> None:
        self._looking = None

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
