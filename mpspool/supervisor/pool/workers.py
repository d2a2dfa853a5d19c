"""The worker processes: their programs, their settings files, and how they are ended."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import glob
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from mpspool.core import log, process, settings, slot_lock
from mpspool.core.ids import FETCH_PREFIX, PUBLISH_PREFIX, WORKER_PREFIX, WorkerId
from mpspool.core.rundir import RunDir, write_file
from mpspool.core.settings import ModelSettings, MpsSettings, PoolSettings, SlotSettings, WorkerSettings
from mpspool.mps.control import Control, ControlError, NotAnsweringError
from mpspool.supervisor import programs, shares
from mpspool.supervisor.pool import ladder, signals
from mpspool.supervisor.pool.ladder import Ladder, Rung, Step
from mpspool.supervisor.shares import Override
from mpspool.supervisor.supervisord import ProcessInfo, Supervisord, SupervisordError

logger = log.get("workers")

# Two, so that a worker parses the next batch while its device runs this one.
CREDITS = 2
# How often a worker that stays is asked to leave: less often than it beats (worker/link.py), for it counts the beats
# between in which it hears nothing, and goes after some.
SAY_AGAIN_S = 0.5
_UNHELD_S = 1.0
_ASK_AGAIN_S = 1.0
# How long a daemon is waited for that is asked whether it answers.
_ANSWER_S = 0.5
_OVERRIDES = "overrides"
# Of programs that come and go, and were removed, those whose logs are kept.
_KEPT_LOGS = 50
_REMOVED = (WORKER_PREFIX, PUBLISH_PREFIX, FETCH_PREFIX)


class _Overrides(msgspec.Struct, frozen=True, kw_only=True):
    """What the pool's successor reads, by model and place."""

    workers: dict[str, Override] = {}


@dataclass(slots=True)
class _Watched:
    """A worker process that we hold by its pidfd, so that no signal ever reaches another's pid."""

    pid: int
    pidfd: int
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def signal(self, signum: signal.Signals) -> None:
        """A launcher relays all but SIGKILL and SIGSTOP."""
        signals.send(self.pidfd, signum)

    def ask_to_leave(self) -> None:
        """SIGTERM; and a stopped one must wake up to leave."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)


@dataclass(slots=True)
class _Asked:
    """Whether an MPS daemon answers, as it is being asked.

    Attributes:
        pid: of the process that stood for the daemon.
        task: the asking.
        heard_at: when it was over, where nobody has waited for that.
    """

    pid: int
    task: asyncio.Task[bool]
    heard_at: float = math.inf

    def is_void(self, pid: int) -> bool:
        """Whether what was said is of another process, or was said too long ago."""
        is_old = time.monotonic() > self.heard_at + _ASK_AGAIN_S
        return self.task.done() and (self.pid != pid or is_old)


class Workers:
    """Performs what reconcile() and the slots decided.

    Args:
        places: every slot that there is now, with the model version that it is for.
        on_end: called when a watched worker has ended, or there is another reason to look.
    """

    def __init__(
        self,
        run: RunDir,
        config: PoolSettings,
        supervisord: Supervisord,
        places: Mapping[WorkerId, tuple[ModelSettings, SlotSettings]],
        on_end: Callable[[], None],
    ) -> None:
        self._run = run
        self._config = config
        self._places = places
        self._supervisord = supervisord
        self._on_end = on_end
        self._watched: dict[WorkerId, _Watched] = {}
        self._answered: dict[str, int] = {}
        self._ask_again_at: dict[str, float] = {}
        self._asking: dict[str, _Asked] = {}
        self._overrides = self._recall()

    async def add(self, workers: Iterable[WorkerId]) -> None:
        """Makes supervisord know these workers. Raises SupervisordError."""
        names = []
        for worker in workers:
            write_file(programs.conf_file(self._run, worker.program), self._conf(worker))
            names.append(worker.program)
        await self._supervisord.add(names)

    def _conf(self, worker: WorkerId) -> bytes:
        model, slot = self.place(worker)
        return programs.worker_conf(self._run, worker, slot, allocator=model.gpu_allocator).encode()

    def place(self, worker: WorkerId) -> tuple[ModelSettings, SlotSettings]:
        """Its model and slot, with what its next generation gets."""
        model, slot = self._places[worker]
        override = self._overrides.get(_place(worker))
        return model, override.over(slot) if override else slot

    def running(self, worker: WorkerId) -> SlotSettings | None:
        """The slot as the worker's last generation was given it; None before the first."""
        found = self.last(worker)
        return found.slot if found else None

    def overridden(self, worker: WorkerId) -> Override:
        """What its next generation gets by `mpspool mps set`."""
        return self._overrides.get(_place(worker), Override())

    def override(self, overrides: Mapping[WorkerId, Override]) -> None:
        """Changes what their next generations get, also for a pool process after this one. Raises OSError: nothing has changed."""
        changed = dict(self._overrides)
        for worker, override in overrides.items():
            changed[_place(worker)] = override.upon(changed.get(_place(worker), Override()))
        settings.save(self._run.settings_file(_OVERRIDES), _Overrides(workers=changed))
        self._overrides = changed

    def _recall(self) -> dict[str, Override]:
        try:
            return settings.load(self._run.settings_file(_OVERRIDES), _Overrides).workers
        except (OSError, msgspec.DecodeError):
            return {}

    def ask_to_leave(self, worker: WorkerId) -> None:
        """It finishes what it has, and ends. To be said every SAY_AGAIN_S to one that stays.

        What supervisord has just forked has supervisord's own handlers, and what is said to it before it executes its
        program is lost.
        """
        if (watched := self._watched.get(worker)) is not None:
            watched.ask_to_leave()

    async def remove(self, program: str, pid: int) -> None:
        """Ends a program that is not ours to run, and forgets it once it is over."""
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return
        # First: a pool process that is killed here leaves a program, which its successor finds.
        for file in (
            programs.conf_file(self._run, program),
            self._run.settings_file(program),
            self._run.lock_file(program),
            self._run.error_file(program),
            *self._run.progress.glob(f"{glob.escape(program)}.[0-9]*"),
        ):
            file.unlink(missing_ok=True)
        await self._supervisord.remove(program)
        with contextlib.suppress(OSError):
            os.utime(self._run.log_file(program))
        self._forget_logs()

    def _forget_logs(self) -> None:
        """Of the programs that were removed, by this pool process or one before it, the last ones' logs are kept."""
        removed: list[tuple[int, str]] = []
        for file in self._run.logs.glob("*.log"):
            program = file.name.removesuffix(".log")
            if program.startswith(_REMOVED) and not programs.conf_file(self._run, program).exists():
                with contextlib.suppress(OSError):
                    removed.append((file.stat().st_mtime_ns, program))
        for _, program in sorted(removed)[:-_KEPT_LOGS]:
            for log_file in self._run.logs.glob(f"{glob.escape(program)}.log*"):
                log_file.unlink(missing_ok=True)

    async def start(self, worker: WorkerId, generation: int, *, gives_way: bool) -> int:
        """Writes the settings of this generation and starts its process.

        Args:
            worker: which.
            generation: of its process.
            gives_way: whether it leaves the processors to those that serve until it is READY.

        Returns:
            The pid, 0 for a process that has ended already.

        Raises:
            SupervisordError: it could not be started.
        """
        model, slot = self.place(worker)
        if _content(programs.conf_file(self._run, worker.program)) != self._conf(worker):
            await self._supervisord.remove(worker.program)  # its environment has changed
            await self.add([worker])
        self._run.set_last_words(worker.program, "")
        # The router may still read the page of the generation that has just died, none before that.
        self._run.progress_file(worker.program, generation - 2).unlink(missing_ok=True)
        settings.save(
            self._run.settings_file(worker.program),
            WorkerSettings(
                run_dir=str(self._run.root),
                worker=str(worker),
                generation=generation,
                credits=CREDITS,
                model=shares.settings_for(model, slot),
                slot=slot,
                gives_way=gives_way,
            ),
        )
        return await self._supervisord.start(worker.program)

    def generation(self, worker: WorkerId) -> int:
        """The one its settings file was last written for, 0 where there is none."""
        found = self.last(worker)
        return found.generation if found else 0

    def last(self, worker: WorkerId) -> WorkerSettings | None:
        """What its last generation was given; None before the first."""
        try:
            return settings.load(self._run.settings_file(worker.program), WorkerSettings)
        except (OSError, msgspec.DecodeError):
            return None

    def watch(self, worker: WorkerId, pid: int) -> None:
        """Holds the process until forget(); one that is gone, or not supervisord's, is left alone."""
        watched = self._watched.get(worker)
        if watched is not None and watched.pid == pid:
            return
        self.forget(worker)
        found = process.stat(pid)
        if found is None or found.ppid != os.getppid():
            return
        try:
            watched = _Watched(pid, os.pidfd_open(pid))
        except ProcessLookupError:
            return
        self._watched[worker] = watched
        asyncio.get_running_loop().add_reader(watched.pidfd, self._ended, watched)

    def pid(self, worker: WorkerId) -> int:
        """Of the process that runs TensorFlow, which holds the slot's lock; 0 where there is none (yet)."""
        return slot_lock.holder(self._run.lock_file(worker.program))

    def forget(self, worker: WorkerId) -> None:
        if (watched := self._watched.pop(worker, None)) is not None:
            asyncio.get_running_loop().remove_reader(watched.pidfd)
            os.close(watched.pidfd)

    def close(self) -> None:
        """Lets go of all; they run on."""
        for worker in list(self._watched):
            self.forget(worker)

    def unreaped(self) -> bool:
        """Whether a worker has ended that is still held: supervisord has not said so yet."""
        return any(watched.gone.is_set() for watched in self._watched.values())

    def _ended(self, watched: _Watched) -> None:
        asyncio.get_running_loop().remove_reader(watched.pidfd)
        watched.gone.set()
        self._on_end()

    async def why(self, worker: WorkerId, exit_status: int, spawn_error: str) -> str:
        """Why it ended, in one line: its own last words, else supervisord's."""
        if words := self._run.last_words(worker.program):
            return words
        if exit_status == process.EXIT_UNKNOWN:
            return "ended after its nursery had, so nobody knows how"
        if exit_status == process.EXIT_REFUSED:
            return "the nursery could not fork it; see mpspool logs nursery"
        if exit_status > 0:
            return f"exit status {exit_status}"
        with contextlib.suppress(SupervisordError):
            if words := await self._supervisord.how_it_ended(worker.program):
                return words
        return spawn_error or "ended without being asked to"

    async def end(self, workers: Iterable[WorkerId], steps: Ladder) -> None:
        """Ends them, all at once. One that is not held has gone, and supervisord has yet to say so."""
        held = [(worker, self._watched[worker]) for worker in workers if worker in self._watched]
        if held:
            await self._end(held, steps)
        else:
            await asyncio.sleep(_UNHELD_S)

    async def end_all(self, end: float) -> int:
        """Ends every worker, all at once.

        Args:
            end: when all should be gone, in time.monotonic()'s seconds.

        Returns:
            How many are still there.
        """
        watched = list(self._watched.items())
        await self._end(watched, ladder.leaving(max(0.0, end - time.monotonic())))
        return sum(not held.gone.is_set() for _, held in watched)

    async def _end(self, workers: list[tuple[WorkerId, _Watched]], steps: Ladder) -> None:
        """Takes those that are still there from step to step."""
        # Held before anything ends: afterwards the slot's lock may be its next generation's.
        forked = {worker: signals.hold(self.pid(worker)) for worker, _ in workers}
        try:
            for number, rung in enumerate(steps):
                late = [(worker, held) for worker, held in workers if not held.gone.is_set()]
                if not late:
                    return
                if number and steps[0].step is Step.LEAVE:
                    names = [str(worker) for worker, _ in late]
                    logger.warning("did not leave in time", workers=names, next=rung.step.value)
                await self._step(rung, late, forked)
        finally:
            for pidfd in forked.values():
                if pidfd >= 0:
                    os.close(pidfd)

    async def _step(
        self, rung: Rung, workers: list[tuple[WorkerId, _Watched]], forked: Mapping[WorkerId, int]
    ) -> None:
        match rung.step:
            case Step.LEAVE:
                await _leave([held for _, held in workers], rung.limit_s)
            case Step.DUMP:
                dumps = [
                    signals.dump(held.pidfd, self._run.log_file(worker.program), held.gone, rung.limit_s)
                    for worker, held in workers
                ]
                await asyncio.gather(*dumps)
            case Step.CUT_OFF:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(rung.limit_s):
                        await self._cut_off([worker for worker, _ in workers])
            case Step.KILL:
                for worker, held in workers:
                    signals.send(forked[worker], signal.SIGKILL)
                    held.signal(signal.SIGKILL)
                await _gone([held for _, held in workers], rung.limit_s)

    async def mps_answers(self, worker: WorkerId, processes: Mapping[str, ProcessInfo]) -> bool:
        """Whether the worker's MPS daemon takes clients: CUDA would run without MPS, and not say so.

        True where it needs none. Asked once for each process that stands for the daemon; one that is not ours, which
        has no such process here, at each start, and while it does not answer once a second. One that takes long to say
        anything is waited for by nobody: False meanwhile, and `on_end` is called when that is over.
        """
        daemon = self._daemon(worker)
        if daemon is None:
            return True
        if daemon.external:
            if time.monotonic() < self._ask_again_at.get(daemon.pipe_dir, 0.0):
                return False
            if (answers := await self._answers(daemon, 0)) is False:
                self._ask_again_at[daemon.pipe_dir] = time.monotonic() + _ASK_AGAIN_S
            return bool(answers)
        process_info = processes.get(programs.mps_program(daemon.device))
        pid = process_info.pid if process_info else 0
        if not pid or self._answered.get(daemon.device) != pid:
            answers = bool(pid) and await self._answers(daemon, pid)
            self._answered[daemon.device] = pid if answers else 0
        return bool(self._answered[daemon.device])

    async def _answers(self, daemon: MpsSettings, pid: int) -> bool | None:
        """Whether a daemon answers; None for what has yet to be seen.

        Args:
            daemon: which.
            pid: of the process that stands for it: what was asked of another one does not count.
        """
        asked = self._asking.get(daemon.pipe_dir)
        if asked is None or asked.is_void(pid):
            task = asyncio.create_task(asyncio.to_thread(Control.of(daemon, os.environ).answers))
            self._asking[daemon.pipe_dir] = asked = _Asked(pid, task)
            await asyncio.wait([task], timeout=_ANSWER_S)
            if not task.done():
                task.add_done_callback(functools.partial(self._hear_late, asked))
        if not asked.task.done():
            return None
        del self._asking[daemon.pipe_dir]
        return asked.task.result()

    def _hear_late(self, asked: _Asked, _task: asyncio.Task[bool]) -> None:
        asked.heard_at = time.monotonic()
        self._on_end()

    def _daemon(self, worker: WorkerId) -> MpsSettings | None:
        _, slot = self._places[worker]
        daemons = self._config.mps_daemons if slot.mps_pipe else []
        return next((found for found in daemons if found.device == slot.device), None)

    async def _cut_off(self, workers: Iterable[WorkerId]) -> None:
        """Takes them off their MPS daemons' servers."""
        clients: dict[str, tuple[MpsSettings, set[int]]] = {}
        for worker in workers:
            if (daemon := self._daemon(worker)) and (pid := self.pid(worker)):
                clients.setdefault(daemon.device, (daemon, set()))[1].add(pid)
        await asyncio.gather(*(self._cut_off_from(daemon, pids) for daemon, pids in clients.values()))

    async def _cut_off_from(self, daemon: MpsSettings, pids: set[int]) -> None:
        try:
            await asyncio.to_thread(_terminate_clients, Control.of(daemon, os.environ), pids)
        except ControlError as error:
            logger.warning("the MPS daemon did not end its clients", device=daemon.device, error=str(error))


def _place(worker: WorkerId) -> str:
    """What a worker of the next version has, too."""
    return f"{worker.model}.{worker.device}.{worker.slot}"


def _terminate_clients(control: Control, pids: set[int]) -> None:
    """Raises ControlError for the last that was not ended; all were tried."""
    failed: ControlError | None = None
    for server in control.server_list():
        for pid in pids.intersection(control.client_list(server)):
            try:
                control.terminate_client(server, pid)
            except NotAnsweringError:
                raise
            except ControlError as error:
                failed = error
    if failed is not None:
        raise failed


async def _leave(workers: Iterable[_Watched], timeout_s: float) -> None:
    """Has them leave, and says it again to those that stay (Workers.ask_to_leave)."""
    end = time.monotonic() + timeout_s
    left = list(workers)
    while left and (left_s := end - time.monotonic()) > 0:
        for worker in left:
            worker.ask_to_leave()
        await _gone(left, min(SAY_AGAIN_S, left_s))
        left = [worker for worker in left if not worker.gone.is_set()]


async def _gone(workers: Iterable[_Watched], timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            for worker in workers:
                await worker.gone.wait()


def _content(file: Path) -> bytes:
    """Empty where there is none."""
    try:
        return file.read_bytes()
    except OSError:
        return b""
