"""What `mpspool mps` asks of the pool: what each worker gets of its GPU, other values for its next generations, and
these generations now.

MPS changes nothing for a client that lives, so a worker gets new values by leaving and coming back: one at a time, each
after the one before is READY again, so that requests go to the others meanwhile.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any

from mpspool.core import log, progress
from mpspool.core.control import Message
from mpspool.core.ids import WorkerId
from mpspool.core.rundir import RunDir
from mpspool.core.settings import PoolSettings, SlotSettings
from mpspool.core.states import SlotState
from mpspool.mps.environment import inherited
from mpspool.supervisor import shares
from mpspool.supervisor.pool.endings import Endings
from mpspool.supervisor.pool.slots import Slot
from mpspool.supervisor.pool.workers import SAY_AGAIN_S, Workers
from mpspool.supervisor.shares import Override

logger = log.get("renewals")

# How long a worker that runs nothing may take to go, before it counts as hung.
_LEAVE_S = 30.0
# Beyond its start limit: the wait after a start that failed, say.
_PATIENCE_S = 60.0
_POLL_S = 0.05
_WORDS = "asked to leave, to come back with what `mpspool mps set` gives it"


class Renewals:
    """Answers the control ops "mps_show" and "mps_set".

    Args:
        slots: the pool's own, by worker.
        stopping: whether the pool ends.

    Attributes:
        turn: held by whoever renews workers.
    """

    def __init__(
        self,
        config: PoolSettings,
        run: RunDir,
        slots: Mapping[WorkerId, Slot],
        workers: Workers,
        endings: Endings,
        stopping: Callable[[], bool],
    ) -> None:
        self._config = config
        self._run = run
        self._slots = slots
        self._workers = workers
        self._endings = endings
        self._stopping = stopping
        self.turn = asyncio.Lock()
        self._planned: set[tuple[WorkerId, int]] = set()

    def planned(self, worker: WorkerId, generation: int) -> bool:
        """Whether that generation's end was asked for here, and says nothing against it."""
        return (worker, generation) in self._planned

    async def show(self, _request: Message) -> Message:
        """What each worker runs with, and what its next generation gets."""
        return {
            "mps": self._config.mps,
            "daemons": [
                {
                    "device": daemon.device,
                    "pipe_dir": daemon.pipe_dir,
                    "external": daemon.external,
                    "simulated": daemon.simulated,
                }
                for daemon in self._config.mps_daemons
            ],
            "workers": [self._shown(worker) for worker in self._under_mps()],
        }

    async def set(self, request: Message) -> AsyncIterator[Message]:
        """Gives workers other values; with "restart" renews those that do not run with theirs, an answer a worker.

        Args:
            request: "model" or "worker" (null for all), "restart", and by the names of Override's fields, lists of
                values of which a slot takes its own in turn.
        """
        chosen, wrong = self._chosen(request.get("model"), request.get("worker"))
        given = {name: values for name in Override.__struct_fields__ if (values := request.get(name))}
        overrides = {
            worker: Override(**{name: shares.in_turn(values, worker.slot) for name, values in given.items()})
            for worker in chosen
        }
        wrong = wrong or self._misfit(overrides)
        if not wrong and request.get("restart") and self.turn.locked():
            wrong = "workers are being renewed already; wait until that is over, or leave --restart out"
        if wrong:
            yield {"error": wrong}
            return
        if given:
            self._workers.override(overrides)
            logger.info("mps set", workers=[str(worker) for worker in chosen], **given)
        warnings = self._warnings({worker.device for worker in chosen}) if "pinned_bytes" in given else []
        yield {"set": [self._shown(worker) for worker in chosen], "warnings": warnings}
        if request.get("restart"):
            async with self.turn:
                for worker in chosen:
                    renewed, wrong = await self.renew_where(worker, self._differs, _WORDS)
                    if worker not in self._slots:
                        continue  # its version is served no more, and whoever came in its place has these values
                    if wrong:
                        yield {"error": f"{worker} {wrong}; the workers after it were left as they are"}
                        return
                    yield {"renewed" if renewed else "unchanged": self._shown(worker)}

    async def renew_where(
        self, worker: WorkerId, differs: Callable[[WorkerId], bool], words: str
    ) -> tuple[bool, str]:
        """Renews a worker that has a slot and differs. Whether it had to be, and why it is not.

        Args:
            worker: which; its slot may have gone, and may go meanwhile.
            differs: whether it does not run with its values, asked when it is READY.
            words: why it leaves.
        """
        wrong = await self.why_unready(worker) if worker in self._slots else ""
        if wrong or worker not in self._slots or not differs(worker):
            return False, wrong
        return True, await self.renew(worker, words)

    def _under_mps(self) -> list[WorkerId]:
        return [worker for worker in self._slots if self._workers.place(worker)[1].mps_pipe]

    def _shown(self, worker: WorkerId) -> dict[str, Any]:
        occupied = self._slots[worker].state is SlotState.OCCUPIED
        running = self._workers.running(worker) if occupied else None
        return {
            "worker": str(worker),
            "generation": self._slots[worker].generation,
            "running": self._message(running) if running else None,
            "next": self._message(self._workers.place(worker)[1]),
        }

    def _message(self, slot: SlotSettings) -> Message:
        """Daemons of ours and workers inherit what we have inherited: supervisord starts us all."""
        own_daemon = any(daemon.device == slot.device for daemon in self._config.own_daemons())
        return shares.as_message(slot, inherited(os.environ, slot.gpu_uuid), own_daemon=own_daemon)

    def _chosen(self, model: str | None, worker: str | None) -> tuple[list[WorkerId], str]:
        """The workers meant, and why there is none."""
        ours = self._under_mps()
        if not ours:
            return [], "no worker of this pool runs under MPS: there is nothing to set"
        if worker is not None:
            found = [one for one in ours if str(one) == worker]
            return (
                found,
                "" if found else f"no worker {worker!r} runs under MPS; there are {_list(map(str, ours))}",
            )
        found = [one for one in ours if model in (None, one.model)]
        known = _list(dict.fromkeys(one.model for one in ours))
        return found, "" if found else f"no model {model!r} has workers under MPS; there are {known}"

    def _misfit(self, overrides: Mapping[WorkerId, Override]) -> str:
        places = ((worker, self._workers.place(worker), override) for worker, override in overrides.items())
        texts = (shares.misfit(model, override.over(slot)) for worker, (model, slot), override in places)
        return next(filter(None, texts), "")

    def _warnings(self, devices: Collection[str]) -> list[str]:
        slots = (self._workers.place(worker)[1] for worker in self._under_mps() if worker.device in devices)
        return shares.overcommitted(slots)

    async def why_unready(self, worker: WorkerId) -> str:
        """Waits until a worker is READY. Why it is not, "" where it is."""
        slot = self._slots[worker]
        if slot.state is SlotState.FATAL:
            return f"was given up ({slot.reason})"
        return (
            "" if await self._ready(worker, slot, 0) else f"is not READY ({slot.reason or 'it is starting'})"
        )

    def _differs(self, worker: WorkerId) -> bool:
        """Whether its next generation gets other values than it runs with."""
        shown = self._shown(worker)
        return bool(shown["running"] != shown["next"])

    async def renew(self, worker: WorkerId, words: str) -> str:
        """Has a worker leave and come back. Why it did not, "" where it did.

        Args:
            worker: one that has a slot.
            words: why it leaves.
        """
        slot = self._slots[worker]
        generation = slot.generation
        self._planned.add((worker, generation))
        self._run.set_last_words(worker.program, words)
        await self._leave(worker, generation)
        renewed = await self._ready(worker, slot, generation)
        self._planned.discard((worker, generation))
        return "" if renewed else f"did not get READY again ({slot.reason or 'it is starting'})"

    async def _leave(self, worker: WorkerId, generation: int) -> None:
        """Has a worker finish what it has and go, and waits for that.

        A request that it runs is the router's to judge, as ever, by its model's hang_timeout_s. Only a worker that runs
        none and stays is ended from here.
        """
        slot = self._slots[worker]
        asked_at = -math.inf
        idle_since = time.monotonic()
        while slot.generation == generation and slot.state is SlotState.OCCUPIED and not self._stopping():
            if time.monotonic() >= asked_at + SAY_AGAIN_S:
                self._workers.ask_to_leave(worker)
                asked_at = time.monotonic()
            if progress.runs_a_request(self._run.progress_file(worker.program, generation)):
                idle_since = time.monotonic()
            elif time.monotonic() > idle_since + _LEAVE_S and worker not in self._endings:
                self._endings.hung(worker, f"runs nothing, and did not leave within {_LEAVE_S:g} s")
            await asyncio.sleep(_POLL_S)

    async def _ready(self, worker: WorkerId, slot: Slot, after: int) -> bool:
        """Waits until a generation after that one is READY; False where none will be, or it takes too long."""
        end = time.monotonic() + slot.start_timeout_s + _PATIENCE_S
        while not slot.serves or slot.generation <= after:
            if self._slots.get(worker) is not slot:
                return False  # its version is not served any more
            if slot.state is SlotState.FATAL or self._stopping() or time.monotonic() > end:
                return False
            await asyncio.sleep(_POLL_S)
        return True


def _list(names: Any) -> str:
    return ", ".join(names)
