"""The pool's GPUs: how they fare, and what is done when one fails.

The MPS daemon of each is asked once a second, and at once when there is a reason to; the driver is read once a second.
What is found moves the GPU's Domain, and the Domain says what to do: the router is told first, so that nothing more is
sent there, then all workers of the GPU are ended, and started again one after another. The workers of other GPUs are
not touched. Without MPS a GPU's workers fail one by one, and only its loss concerns them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpspool.core import log
from mpspool.core.ids import WorkerId
from mpspool.core.settings import MpsSettings, PoolSettings
from mpspool.core.states import DomainState, SlotState
from mpspool.mps.simulated import state_file
from mpspool.mps.simulated.inventory import simulated_number
from mpspool.mps.simulated.nvml import Nvml
from mpspool.mps.telemetry import GpuReading, Telemetry, as_message
from mpspool.supervisor import programs
from mpspool.supervisor.pool.daemon import Answer, Daemon
from mpspool.supervisor.pool.domain import SILENT_S, AwaitDaemon, Domain, RestartDaemon, Server
from mpspool.supervisor.pool.endings import Endings
from mpspool.supervisor.pool.reconcile import Processes, WorkerReport
from mpspool.supervisor.pool.slots import Slot
from mpspool.supervisor.pool.workers import Workers

logger = log.get("gpus")

_PERIOD_S = 1.0
# A worker that takes longer to get READY does not hold up the others of its GPU.
_IN_LINE_S = 60.0


@dataclass(slots=True, eq=False)
class _Gpu:
    """One GPU.

    Attributes:
        daemon: of MPS; None without.
        reading: what the driver said last.
        doubtful: workers that may not be clients of the daemon's server.
        noted, answered: how many things have happened that the daemon is to be asked about at once, and how many of
            them its last answer came after.
        ending: all on it are being ended: it does not recover before that has come to its end.
        condemned: the generations that a fault has hit.
        pids: of the workers since it was well last, or began to recover; those that have ended too, for the server may name
            one.
    """

    name: str
    uuid: str
    simulated: bool
    domain: Domain
    daemon: Daemon | None = None
    reading: GpuReading | None = None
    noted: int = 0
    answered: int = 0
    ending: bool = False
    doubtful: set[WorkerId] = field(default_factory=set)
    condemned: set[tuple[WorkerId, int]] = field(default_factory=set)
    pids: dict[int, WorkerId] = field(default_factory=dict)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def ask_now(self) -> None:
        """Nothing is started until it has answered."""
        self.noted += 1
        self.wake.set()

    @property
    def unasked(self) -> bool:
        return self.noted != self.answered


class Gpus:
    """The GPUs of a pool; it may have none.

    Args:
        config: the pool's.
        slots: the pool's own, by worker.
        acting: held while slots and processes are brought together: what is decided here is not decided in between.
        tell_router: calls the router's control socket with an op and its arguments.
        look: has the pool reconcile soon.
        make_daemon: of the settings of an MPS daemon.
        telemetry: of the GPUs; None for what their driver says.
    """

    def __init__(
        self,
        config: PoolSettings,
        slots: Mapping[WorkerId, Slot],
        workers: Workers,
        endings: Endings,
        acting: asyncio.Lock,
        tell_router: Callable[..., Awaitable[Any]],
        look: Callable[[], None],
        *,
        make_daemon: Callable[[MpsSettings], Daemon] = Daemon,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._slots = slots
        self._workers = workers
        self._endings = endings
        self._acting = acting
        self._tell_router = tell_router
        self._look = look
        self._gpus = _gpus(config, make_daemon)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="nvml")
        uuids = [gpu.uuid for gpu in self._gpus.values()]
        self._telemetry = telemetry or Telemetry(uuids, _nvml(config))
        self._tasks: set[asyncio.Task[None]] = set()
        self.stopping = False

    async def watch_for_ever(self) -> None:
        """Asks each daemon and the driver, and acts on what they say."""
        watches = [self._watch(gpu, gpu.daemon) for gpu in self._gpus.values() if gpu.daemon]
        await asyncio.gather(*watches, *([self._read_for_ever()] if self._gpus else []))
        await asyncio.Event().wait()  # there is none

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for gpu in self._gpus.values():
            if gpu.daemon:
                gpu.daemon.let_go()
        # After a reading that is under way: nothing breaks that off, and NVML must not be let go of meanwhile.
        self._reader.submit(self._telemetry.close)
        self._reader.shutdown(wait=False)

    # -- what the pool asks -----------------------------------------------------------------------

    def may_start(self, worker: WorkerId) -> bool:
        """Not on a GPU that has failed; and one that recovers is filled one by one."""
        gpu = self._gpus.get(worker.device)
        if gpu is None:
            return True
        if gpu.unasked or gpu.domain.state in (DomainState.FAULTED, DomainState.LOST):
            return False
        if gpu.domain.state is DomainState.SERVING:
            return True
        since = time.monotonic() - _IN_LINE_S
        return not any(
            slot.state is SlotState.OCCUPIED and slot.unready_since is not None and slot.unready_since > since
            for _, slot in self._on(gpu)
        )

    def failed(self, device: str) -> bool:
        """Whether all workers on it are being ended."""
        gpu = self._gpus.get(device)
        return gpu is not None and gpu.domain.state in (DomainState.FAULTED, DomainState.LOST)

    def lost(self, device: str) -> str:
        """Why nothing can ever be started on it, "" while it can."""
        gpu = self._gpus.get(device)
        return (
            f"{device} is lost: {gpu.domain.reason}" if gpu and gpu.domain.state is DomainState.LOST else ""
        )

    def hit(self, worker: WorkerId, generation: int) -> bool:
        """Whether that worker ended with all others of its GPU."""
        gpu = self._gpus.get(worker.device)
        return gpu is not None and ((worker, generation) in gpu.condemned or self.failed(worker.device))

    def daemon(self, device: str) -> Daemon:
        """The MPS daemon of a device that has one."""
        daemon = self._gpus[device].daemon
        assert daemon is not None
        return daemon

    def messages(self) -> list[dict[str, Any]]:
        """How each fares, as `status --json` has it."""
        return [self._message(gpu) for gpu in self._gpus.values()]

    # -- what the pool tells ----------------------------------------------------------------------

    def see(self, processes: Processes) -> None:
        """Supervisord's processes, in every round. Nobody is a client of a daemon that came in another's place."""
        for gpu in self._gpus.values():
            if gpu.daemon is None or gpu.daemon.external:
                continue
            found = processes.get(programs.mps_program(gpu.name))
            pid, before = found.pid if found else 0, gpu.daemon.wrapper
            if pid == before:
                continue
            if not gpu.daemon.hold(pid, functools.partial(self._wrapper_ended, gpu)):
                self._look()
            if before:
                self._fault(gpu, "its MPS daemon has ended")
            elif pid:  # perhaps before our time
                self._doubt(gpu, [worker for worker, slot in self._on(gpu) if slot.ready_since is not None])

    def take(self, reports: Mapping[str, WorkerReport], *, new: bool) -> None:
        """What the router says of the workers: under MPS one that cannot use its GPU any more is not the only one.

        Args:
            reports: of each worker, by id.
            new: it is another router than before, and knows of no fault.
        """
        for gpu in filter(_under_mps, self._gpus.values()):
            if new and self.failed(gpu.name):
                self._spawn(self._condemn(gpu, gpu.domain.reason, None))
            for worker, slot in self._on(gpu):
                report = reports.get(str(worker))
                if report and report.failed and report.generation == slot.generation and not report.hung:
                    self._fault(gpu, f"{worker}: {report.failed}")

    def ready(self, worker: WorkerId) -> None:
        if (gpu := self._gpus.get(worker.device)) and gpu.daemon:
            self._doubt(gpu, [worker])
            self._see_recovered(gpu)

    def ended(self, worker: WorkerId) -> None:
        """One that ended by itself may have been hit by what hits the others, too."""
        if (gpu := self._gpus.get(worker.device)) and gpu.daemon:
            gpu.ask_now()

    def given_up(self, worker: WorkerId) -> None:
        if gpu := self._gpus.get(worker.device):
            self._see_recovered(gpu)

    # -- asking -----------------------------------------------------------------------------------

    async def _read_for_ever(self) -> None:
        """What the driver says of the GPUs."""
        loop = asyncio.get_running_loop()
        while True:
            readings = await loop.run_in_executor(self._reader, self._telemetry.read)
            for gpu in self._gpus.values():
                reading = readings.get(gpu.uuid, GpuReading(gpu.uuid))
                if reading.lost:
                    self._gone(gpu, reading.lost)
                gpu.reading = reading
                self._note_pids(gpu)
            await self._tell_router("devices", devices=self.messages())
            await asyncio.sleep(_PERIOD_S)

    def _message(self, gpu: _Gpu) -> dict[str, Any]:
        return as_message(
            gpu.name,
            gpu.reading or GpuReading(gpu.uuid),
            gpu.domain.state.value,
            gpu.domain.reason,
            faults=gpu.domain.faults,
            workers={str(worker): pid for pid, worker in gpu.pids.items()},
            simulated=gpu.simulated,
        )

    def _note_pids(self, gpu: _Gpu) -> None:
        on = dict(self._on(gpu))
        now = {pid: worker for worker in on if (pid := self._workers.pid(worker))}
        kept = gpu.pids
        if gpu.domain.state is DomainState.SERVING and not gpu.unasked:
            # Whose end nobody has noticed yet is still to be asked about.
            unnoticed = {worker for worker, slot in on.items() if slot.state is SlotState.OCCUPIED}
            unnoticed.difference_update(now.values())
            kept = {pid: worker for pid, worker in kept.items() if worker in unnoticed}
        gpu.pids = {**kept, **now}

    async def _watch(self, gpu: _Gpu, daemon: Daemon) -> None:
        if daemon.external:  # those that are READY were so perhaps before our time
            self._doubt(gpu, [worker for worker, slot in self._on(gpu) if slot.ready_since is not None])
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PERIOD_S):
                    await gpu.wake.wait()
            gpu.wake.clear()
            if (daemon.wrapper or daemon.external) and not self.stopping:
                await self._ask_and_judge(gpu, daemon)

    async def _ask_and_judge(self, gpu: _Gpu, daemon: Daemon) -> None:
        was_unasked, noted = gpu.unasked, gpu.noted
        wrapper = daemon.wrapper
        clients = self._present(gpu)
        asked = {worker: self._workers.pid(worker) for worker in gpu.doubtful}
        asked_s = time.monotonic()
        answer = await daemon.ask(clients=bool(asked))
        if answer is None and self._waits_for_answer(gpu, daemon):
            self._fault(gpu, f"its MPS daemon has not answered for {SILENT_S:g} s")
        if answer is not None and answer.server is Server.FAULT:
            self._fault(gpu, "its MPS server is in FAULT")
        elif answer is not None and was_unasked and gpu.pids.keys() & daemon.hit():
            # It is well as soon as the last that it hit has ended, and TensorFlow ends at once.
            self._fault(gpu, "its MPS server had a fatal fault")
        if answer is not None:
            gpu.answered = noted
        async with self._acting:  # no round is under way that does not know of it
            if daemon.wrapper != wrapper or self.stopping:
                return
            if answer is not None:
                self._see_server(gpu, daemon, answer)
                if answer.clients is not None:
                    self._judge_doubtful(gpu, asked, answer.clients)
            elif daemon.server_has_ended():
                self._fault(gpu, "its MPS server has ended, with its daemon")
            self._tick(gpu, daemon, max(clients, self._present(gpu)), answer)
        if was_unasked and answer is not None and not self.failed(gpu.name):
            await self._tell_router("clear", device=gpu.name, since_s=asked_s)
        if was_unasked or gpu.domain.state is not DomainState.SERVING:
            self._look()

    def _waits_for_answer(self, gpu: _Gpu, daemon: Daemon) -> bool:
        """Whether a worker has been kept from starting for long by a daemon of ours that says nothing.

        Those READY serve on.
        """
        unready = any(
            slot.ready_since is None and slot.state is not SlotState.FATAL for _, slot in self._on(gpu)
        )
        return unready and not daemon.external and daemon.silent_s() >= SILENT_S

    def _see_server(self, gpu: _Gpu, daemon: Daemon, answer: Answer) -> None:
        serves = any(slot.ready_since is not None for _, slot in self._on(gpu))
        if (ended := daemon.see_server(answer)) and serves:
            self._fault(gpu, f"its MPS server {ended} has ended")

    def _tick(self, gpu: _Gpu, daemon: Daemon, clients: int, answer: Answer | None) -> None:
        if gpu.ending:
            return
        before = gpu.domain.state
        match gpu.domain.tick(time.monotonic(), clients, answer.server if answer else Server.SILENT):
            case RestartDaemon():
                daemon.restart()
            case AwaitDaemon():
                what = "not ours to restart: its workers come back once it takes clients"
                logger.warning("waiting for the MPS daemon", device=gpu.name, pipe=daemon.pipe_dir, why=what)
        if before is DomainState.FAULTED and gpu.domain.state is DomainState.RECOVERING:
            daemon.forget_faults()
            gpu.pids.clear()
        if gpu.domain.state is DomainState.LOST is not before:
            logger.error("GPU lost", device=gpu.name, reason=gpu.domain.reason)
        self._see_recovered(gpu)

    def _doubt(self, gpu: _Gpu, workers: Iterable[WorkerId]) -> None:
        """The daemon is asked whether they are its clients."""
        gpu.doubtful.update(workers)
        if gpu.doubtful:
            gpu.wake.set()

    def _judge_doubtful(self, gpu: _Gpu, asked: Mapping[WorkerId, int], clients: frozenset[int]) -> None:
        """Ends those that are no clients: they would run on without MPS, if at all."""
        gpu.doubtful.difference_update(asked)
        strays = [
            worker
            for worker, pid in asked.items()
            if pid
            and pid not in clients
            and pid == self._workers.pid(worker)
            and self._slots[worker].ready_since is not None
            and worker not in self._endings
        ]
        reason = "it was no client of its MPS daemon any more"
        for worker in strays:
            logger.error("not attached", worker=str(worker), generation=self._slots[worker].generation)
        if len(strays) == self._present(gpu):
            if strays:
                self._fault(gpu, "its workers are no clients of its MPS daemon")
            return
        self._endings.lost(strays, reason)

    # -- acting -----------------------------------------------------------------------------------

    def _gone(self, gpu: _Gpu, reason: str) -> None:
        """The driver says that it is not there any more, or cannot be used without a reset."""
        if not self.stopping and gpu.domain.lost(reason):
            logger.error("GPU lost", device=gpu.name, reason=reason)
            self._end_all_soon(gpu, reason)

    def _fault(self, gpu: _Gpu, reason: str) -> None:
        if self.stopping or not gpu.domain.fault(reason, time.monotonic()):
            return
        logger.error("GPU failed", device=gpu.name, reason=reason)
        self._end_all_soon(gpu, reason)

    def _end_all_soon(self, gpu: _Gpu, reason: str) -> None:
        gpu.ending = True
        self._spawn(self._end_all(gpu, reason))

    async def _end_all(self, gpu: _Gpu, reason: str) -> None:
        """Ends every worker on the GPU; the router is told first, and who caused it where the server's log says."""
        try:
            await self._condemn_and_end(gpu, reason)
        finally:
            gpu.ending = False
            gpu.wake.set()
            self._look()

    async def _condemn_and_end(self, gpu: _Gpu, reason: str) -> None:
        self._note_pids(gpu)
        named = await gpu.daemon.culprits() if gpu.daemon else []
        culprits = [str(gpu.pids[pid]) for pid in named if pid in gpu.pids]
        if named:
            logger.error("caused by", device=gpu.name, pids=named, workers=culprits)
        external = gpu.daemon is not None and gpu.daemon.external
        # A client of an external daemon may be nobody of ours.
        await self._condemn(gpu, reason, culprits if culprits or (named and external) else None)
        async with self._acting:
            hit = [worker for worker, slot in self._on(gpu) if slot.state is SlotState.OCCUPIED]
            gpu.condemned.update((worker, self._slots[worker].generation) for worker in hit)
            for worker in gpu.pids.values():  # TensorFlow ends by itself where its GPU fails
                if slot := self._slots.get(worker):
                    slot.excuse()
            self._endings.lost(hit, f"{gpu.name} failed: {reason}")

    async def _condemn(self, gpu: _Gpu, reason: str, culprits: list[str] | None) -> None:
        generations = {
            str(worker): slot.generation for worker, slot in self._on(gpu) if slot.state is SlotState.OCCUPIED
        }
        await self._tell_router(
            "condemn",
            device=gpu.name,
            workers=generations,
            culprits=culprits,
            reason=f"{gpu.name}: {reason}",
            comes_back=gpu.domain.state is not DomainState.LOST,
        )

    def _see_recovered(self, gpu: _Gpu) -> None:
        if gpu.domain.state is DomainState.RECOVERING and all(
            slot.state is SlotState.FATAL or (slot.ready_since is not None and worker not in self._endings)
            for worker, slot in self._on(gpu)
        ):
            gpu.domain.recovered(time.monotonic())
            gpu.condemned.clear()
            logger.info("GPU recovered", device=gpu.name)

    # -- bookkeeping ------------------------------------------------------------------------------

    def _on(self, gpu: _Gpu) -> list[tuple[WorkerId, Slot]]:
        return [(worker, slot) for worker, slot in self._slots.items() if worker.device == gpu.name]

    def _present(self, gpu: _Gpu) -> int:
        """Workers on it that have a process."""
        return sum(slot.state is SlotState.OCCUPIED for _, slot in self._on(gpu))

    def _wrapper_ended(self, gpu: _Gpu) -> None:
        self._fault(gpu, "its MPS daemon has ended")
        self._look()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("failed", exc_info=error)


def _gpus(config: PoolSettings, make_daemon: Callable[[MpsSettings], Daemon]) -> dict[str, _Gpu]:
    """Those that have a slot, by device."""
    daemons = {daemon.device: daemon for daemon in config.mps_daemons}
    found = {}
    for slot in (slot for model in config.models for slot in model.slots if slot.gpu_uuid):
        daemon = daemons.get(slot.device)
        found[slot.device] = _Gpu(
            slot.device,
            slot.gpu_uuid,
            slot.simulated,
            Domain(slot.device, config.restart, own_daemon=daemon is None or not daemon.external),
            make_daemon(daemon) if daemon else None,
        )
    return found


def _nvml(config: PoolSettings) -> Any:
    """NVML, or its stand-in for stand-ins; None for the driver's own."""
    slots = [slot for model in config.models for slot in model.slots if slot.gpu_uuid]
    if not any(slot.simulated for slot in slots):
        return None
    files = {daemon.gpu_uuid: Path(daemon.log_dir) / state_file.NAME for daemon in config.mps_daemons}
    return Nvml(1 + max(simulated_number(slot.gpu_uuid) for slot in slots), files.get)


def _under_mps(gpu: _Gpu) -> bool:
    return gpu.daemon is not None
