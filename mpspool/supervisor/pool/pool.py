"""The pool process: brings what runs together with what was asked for, and says how things stand.

It can be killed at any time: serving goes on without it, and its successor adopts what runs from
supervisord's processes, the router's snapshot and the records it keeps in the run folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

from mpspool.core import log, process, progress, settings
from mpspool.core.control import ControlServer, Message, Watch
from mpspool.core.ids import ModelVersion, WorkerId
from mpspool.core.rundir import RunDir
from mpspool.core.settings import PoolSettings
from mpspool.core.states import NO_SLOT, NOT_SERVED, SlotState, VersionPhase
from mpspool.supervisor import cpus, grace, lock, programs, settings_files
from mpspool.supervisor.pool import fetchers, pace, reconcile, slot_by_slot, status
from mpspool.supervisor.pool.endings import Endings
from mpspool.supervisor.pool.gpus import Gpus
from mpspool.supervisor.pool.handover import Handover
from mpspool.supervisor.pool.kept import Kept
from mpspool.supervisor.pool.measured import Measured
from mpspool.supervisor.pool.reload import Reload, digest, former_places, reload_with
from mpspool.supervisor.pool.renewals import Renewals
from mpspool.supervisor.pool.router_link import RouterLink
from mpspool.supervisor.pool.router_watch import RouterWatch
from mpspool.supervisor.pool.servables import Places, Servables
from mpspool.supervisor.pool.slots import GiveUp, Slot, SlotRecord, StartAt
from mpspool.supervisor.pool.successions import Successions
from mpspool.supervisor.pool.versions import Fact
from mpspool.supervisor.pool.weights import Weights
from mpspool.supervisor.pool.workers import Workers
from mpspool.supervisor.supervisord import Fault, ProcessInfo, Supervisord, SupervisordError

logger = log.get("pool")

_RECORDS = "slots"
_SIGNATURES = "signatures"
_PERIOD_S = 1.0
_SOON_S = 0.02
# For an order's first effect to be known to all.
_TOLD_S = 5.0
# Beyond what a request may take: a worker's way out.
_GO_S = 10.0
# For a worker to say hello to a router that came anew, once it has run what it was running.
_HELLO_S = 5.0
# Of the session of supervisord, of us and of what both start, while nobody waits for that.
_NICE = 10
_BEGINS_AGAIN: Message = {"error": "the pool process begins again", "again": True}
# Rounds after which it knows what this pool process began with.
_TOLD_AFTER = 2


class _Records(msgspec.Struct, frozen=True):
    """What the pool's successor reads, by worker id."""

    slots: dict[str, SlotRecord] = {}


class Pool:
    """One pool of workers.

    Args:
        config: the resolved plan.
    """

    def __init__(self, config: PoolSettings) -> None:
        self._config = config
        self._run = RunDir(Path(config.run_dir))
        self._supervisord = Supervisord(self._run.supervisord_socket)
        records = self._recall()
        former = former_places(self._run, [WorkerId.parse(worker) for worker in records])
        self._record = Kept(self._run.settings_file(_RECORDS))
        self._servables = Servables(self._run, config, self._look, former)
        self._workers = Workers(self._run, config, self._supervisord, self._servables.places, self._look)
        self._weights = Weights(self._run, config, self._supervisord, self._living, self._look)
        self._slots: dict[WorkerId, Slot] = {}
        self._servables.keep({WorkerId.parse(worker) for worker in records})
        self._endings = Endings(self._run, self._workers, self._look)
        self._renewals = Renewals(
            config, self._run, self._slots, self._workers, self._endings, lambda: self._stopping
        )
        self._handover = Handover(_TOLD_S)
        self._reloading = asyncio.Lock()
        self._reload = Reload(
            config,
            self._run,
            self._slots,
            self._servables,
            self._workers,
            self._renewals,
            lambda: self._place({}),
            functools.partial(fetchers.end, self._run, self._supervisord),
            self._handover.begin,
            lambda: self._stopping,
        )
        self._place(records)
        self._processes: dict[str, ProcessInfo] = {}
        self._router = RouterLink(self._run, self._on_snapshot, self._look)
        self._router_watch = RouterWatch(self._run, self._router_pid, lambda: self._router.heard_at)
        self._successions = Successions(
            self._servables.settings, self._router.signatures, self._run.settings_file(_SIGNATURES)
        )
        self._giving_way: set[ModelVersion] = set()
        self._nice: int | None = None
        self._at_once = pace.at_once(cpus.read_topology().cores)
        self._stopping = False
        self._rounds = 0
        self._wake = asyncio.Event()
        self._watch = Watch(self._last_status)
        self._acting = asyncio.Lock()
        self._gpus = Gpus(
            _with_places(config, self._servables.places),
            self._slots,
            self._workers,
            self._endings,
            self._acting,
            self._router.ask,
            self._look,
        )
        self._looked = asyncio.Event()
        self._measured = Measured()
        self._prepared = False
        self._trouble = ""

    async def serve(self) -> bool:
        """Runs until SIGTERM or SIGINT. The workers stay: they are ended by `stop`, not by our end.

        Returns:
            Whether another pool is to take over, with what the settings file has now.
        """
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, self._handover.end)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._pass_on_hangup)
        control = ControlServer(
            self._run.pool_control,
            {
                "status": self._status,
                "watch": self._watch,
                "stop": self._stop,
                "attached": self._is_attached,
                "mps_show": self._renewals.show,
                "mps_set": self._renewals.set,
                "load": functools.partial(self._ordered, self._servables.load),
                "unload": functools.partial(self._ordered, self._servables.unload),
                "rollback": functools.partial(self._ordered, self._servables.rollback),
                "route": functools.partial(self._ordered, self._set_route),
                "reload": self._reload.reload,
                "reload_models": self._reload_models,
                "reloaded": self._reloaded,
            },
        )
        await control.start()
        self._weights.listen()
        tasks = [asyncio.create_task(self._reconcile_for_ever()), asyncio.create_task(self._router.follow())]
        tasks.append(asyncio.create_task(self._router_watch.watch_for_ever()))
        tasks.append(asyncio.create_task(self._gpus.watch_for_ever()))
        tasks.append(asyncio.create_task(self._servables.watch_for_ever()))
        renewing = asyncio.create_task(self._renew())
        tasks.append(asyncio.create_task(self._handover.wait()))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in (*tasks, renewing):
                task.cancel()
            await asyncio.gather(*tasks, renewing, return_exceptions=True)
            await self._gpus.close()
            await self._endings.close()
            await control.close()
            self._weights.close()
            self._servables.close()
            self._workers.close()
        return self._handover.is_followed

    # -- another configuration --------------------------------------------------------------------

    def _pass_on_hangup(self) -> None:
        """The order to reload is for whoever says what comes of it."""
        if pid := lock.recorded_pid(self._run):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGHUP)

    async def _reload_models(self, request: Message) -> Message:
        """The control op "reload_models": has "models" served, in place of those that are configured.

        The configuration is read and planned by `mpspool reload`, in a process of its own, which asks us in its turn. One
        after the other: those that wait while this pool takes one up are for the next pool, which does not begin before
        they are told.
        """
        async with self._reloading:
            if self._reload.is_taken_up():
                return _BEGINS_AGAIN
            with self._handover.asking():
                exit_status, error = await reload_with(self._run, request["models"])
            if exit_status and self._reload.is_taken_up():  # `mpspool reload` came before it
                return _BEGINS_AGAIN
            return {"exit_status": exit_status, "refused": error, "settings": self._taken_up()}

    def _taken_up(self) -> str:
        """The digest of the configuration that holds, or will when this pool has begun again."""
        return digest(settings.load(self._run.settings_file(programs.POOL), PoolSettings))

    async def _have_programs(self) -> None:
        """Has supervisord run what the configuration needs and the former one did not."""
        settings_files.write_derived(self._run, self._config)
        needed = [programs.mps_program(daemon.device) for daemon in self._config.own_daemons()]
        needed += [programs.NURSERY] if programs.forks(self._config) else []
        needed += fetchers.watched(self._config.remotes)
        if missing := [program for program in needed if program not in self._processes]:
            logger.info("programs", added=missing)
            await self._supervisord.add(missing)

    async def _renew(self) -> None:
        """Renews the workers that another configuration has left with former settings, if there are any."""
        await self._first_look()
        try:
            await self._reload.renew()
        except Exception:
            logger.exception("renewing failed")
        self._look()

    async def _reloaded(self, request: Message) -> Message:
        """The control op "reloaded", which the router has to know of, too."""
        if self._handover.is_under_way:
            return {"settings": self._taken_up(), "waits": ["the pool process begins again"], "failed": []}
        await self._first_look()
        answer = await self._reload.reloaded(request)
        if not self._router.knows(self._for_router()) or self._rounds < _TOLD_AFTER:
            answer["waits"].append("the router has yet to be told")
        return answer

    # -- reconciling ------------------------------------------------------------------------------

    def _look(self) -> None:
        """Something happened: reconcile now."""
        self._wake.set()

    async def _reconcile_for_ever(self) -> None:
        while True:
            self._wake.clear()
            try:
                async with self._acting:
                    acted = await self._reconcile()
                await self._tell_router()
                self._rounds += 1
            except SupervisordError as error:
                acted = False
                if error.fault == Fault.SHUTDOWN_STATE:
                    self._stopping = self._gpus.stopping = True
                    self._looked.set()  # it tells nothing any more
                else:
                    logger.warning("supervisord refused", reason=str(error))
            self._watch.changed()
            if not acted:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._patience_s()):
                        await self._wake.wait()

    def _patience_s(self) -> float:
        """How long nothing can be due."""
        if self._workers.unreaped():
            return _SOON_S
        slots = (*self._slots.values(), *self._weights.publishers().values())
        dues = [due for due in (*(slot.due for slot in slots), self._servables.due()) if due is not None]
        # What was due and had to wait for something is woken by that.
        left_s = [due - time.monotonic() for due in dues]
        return max(_SOON_S, min([_PERIOD_S, *(one for one in left_s if one > -_SOON_S)]))

    async def _reconcile(self) -> bool:
        """One round; True when something was done, so that another should follow at once."""
        self._processes = await self._supervisord.processes()
        trouble = "" if self._prepared or self._stopping else await self._prepare()
        self._looked.set()
        self._gpus.see(self._processes)
        for worker, slot in self._slots.items():
            if slot.due is not None and self._gpus.lost(worker.device):
                slot.due = time.monotonic()  # there is nothing to wait for
        for worker, slot in self._slots.items():
            if slot.state is SlotState.OCCUPIED and self._processes_pid(worker.program) == slot.pid:
                self._workers.watch(worker, slot.pid)
                page = self._run.progress_file(worker.program, slot.generation)
                if slot.is_lost and progress.runs_a_request(page):
                    slot.runs(time.monotonic())
        moved = not self._stopping and await self._step()
        unwanted = self._unwanted()
        actions = reconcile.reconcile(
            self._slots,
            self._processes,
            publishers=self._weights.publishers(),
            missing=self._weights.missing(),
            there=self._weights.versions(),
            reports=self._router.reports(),
            heard_since=self._router.heard_since(),
            ending=self._endings,
            unwanted=unwanted,
            held=self._held(),
            now=time.monotonic(),
        )
        self._giving_way = pace.giving_way(self._servables.all(), self._slots)
        self._yield(missed=pace.missed(self._there(), unwanted.union(self._endings), self._giving_way))
        done = False
        for action in actions:
            if not self._stopping or isinstance(action, reconcile.Ended | reconcile.Adopt):
                try:
                    done |= await self._perform(action)
                except OSError as error:  # the next round finds it again
                    trouble = str(error)
        self._say_trouble(trouble)
        if done or moved:
            records = {str(worker): slot.record() for worker, slot in self._slots.items()}
            self._record.save(settings.readable(_Records(records)))
        else:
            self._record.again()
        return done or moved

    async def _prepare(self) -> str:
        """What is to be there before anything else. Returns why it is not, "" where it is."""
        try:
            await self._have_programs()
        except OSError as error:
            return str(error)
        self._prepared = True
        return ""

    def _say_trouble(self, trouble: str) -> None:
        """What keeps something from being done, once for as long as it does."""
        if trouble and trouble != self._trouble:
            logger.warning("not done, and tried again every second", reason=trouble)
        self._trouble = trouble

    def _yield(self, *, missed: bool) -> None:
        """What is in this session, supervisord, the nursery and launchers, leaves the processors to router and workers."""
        nice = 0 if missed or self._stopping else _NICE
        if nice != self._nice and process.set_session_nice(nice, shared=True):
            self._nice = nice

    # -- versions ---------------------------------------------------------------------------------

    async def _ordered(self, order: Callable[[Message], Awaitable[Message]], request: Message) -> Message:
        """Answers an order by hand when the router has been told what comes of it; where another pool takes over, it is that one's."""
        if self._handover.is_under_way:
            return _BEGINS_AGAIN
        with self._handover.ordering():
            answer = await order(request)
            rounds = self._rounds
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TOLD_S):
                    while "error" not in answer and self._rounds < rounds + 2:
                        self._look()
                        await asyncio.sleep(_SOON_S)
            return answer

    async def _set_route(self, request: Message) -> Message:
        """The control op "route": clients that name no version are not sent to one that could not be theirs."""
        for before, after in self._servables.would_share(request):
            by_hand = after.version < before.version
            why = await self._successions.unfit(before, after, by_hand=by_hand)
            if why is None:
                return {"error": f"the signatures of {after} are not known yet; try again"}
            if why:
                return {
                    "error": f"{after} cannot have a share of the requests that name no version: {why}, and --label and"
                    " --metadata send it those of clients of its own"
                }
        return await self._servables.set_route(request)

    def _there(self) -> dict[WorkerId, Slot]:
        """The slots of all devices but those that are lost."""
        return {worker: slot for worker, slot in self._slots.items() if not self._gpus.lost(worker.device)}

    async def _step(self) -> bool:
        """Takes every version as far as it can go. True when one has moved."""
        # Of a version whose devices are all lost nothing is known but that it has slots.
        facts = {worker.model_version: Fact() for worker in self._slots} | status.facts(
            self._there() or self._slots
        )
        await self._successions.keep(self._servables.stops_first())
        replaced = {model: self._servables.to_replace(model) for model in facts}
        for model, fact in facts.items():
            if (other := replaced[model]) is not None:
                unfit = await self._unfit(other, model) if fact.ready else None
                facts[model] = dataclasses.replace(fact, unfit=unfit)
        for model, other in replaced.items():
            if (
                self._servables.to_replace(model) != other
            ):  # by an order, or what lies there, that came meanwhile
                facts[model] = dataclasses.replace(facts[model], unfit=None)
                self._look()
        moved = self._servables.step(facts, time.monotonic())
        if moved:
            self._successions.forget()
            self._place({})
        return moved

    async def _unfit(self, before: ModelVersion, after: ModelVersion) -> str | None:
        """As Successions.unfit(); "" too where nobody will ever know."""
        there = {model for model, _ in self._servables}
        if before not in there and self._successions.forgot(before):
            return ""
        by_hand = self._servables.is_by_hand(before, after)
        return await self._successions.unfit(before, after, by_hand=by_hand)

    def _place(self, records: Mapping[str, SlotRecord]) -> None:
        """Has a slot for every place, and weights for every version that there is.

        Args:
            records: of the slots as a pool before this one has left them.
        """
        there = {servable.id: servable for servable in self._servables.all()}
        known = self._weights.versions()
        for model in known - there.keys():
            self._weights.remove(model)
        for worker, (mine, _) in self._servables.places.items():
            servable = there[worker.model_version]
            slot = self._slots.get(worker)
            again = (
                servable.phase is VersionPhase.LOADING and slot is not None and slot.state is SlotState.FATAL
            )
            if slot is None or again:
                record = records.get(str(worker)) or SlotRecord(generation=slot.generation if slot else 0)
                if record.state is SlotState.FATAL and self._reload.differs(worker):
                    record = SlotRecord(generation=record.generation, restarts=record.restarts)
                slot = self._slots[worker] = Slot(str(worker), self._config.restart, record)
                if worker.model_version not in known or again:
                    self._weights.add(mine)
                    known.add(worker.model_version)
            slot.start_timeout_s = mine.start_timeout_s
            slot.lost_timeout_s = min(mine.start_timeout_s, mine.hang_timeout_s + _HELLO_S)

    def _held(self) -> set[WorkerId]:
        """Where versions change slot by slot, the slots whose place the other version has."""
        missing = self._weights.missing()
        return {
            worker
            for before, after in self._servables.turns()
            for worker in slot_by_slot.held(self._slots, before, after, may_start=after not in missing)
        }

    def _unwanted(self) -> set[WorkerId]:
        """The slots of versions that leave and have answered all, and of those that failed beside others."""
        idle = self._router.idle()
        servables = self._servables.all()
        serving = {servable.id.name for servable in servables if servable.phase is VersionPhase.SERVING}
        given_up = {
            servable.id
            for servable in servables
            if (servable.phase is VersionPhase.LEAVING and servable.id in idle)
            or (servable.phase is VersionPhase.FAILED and servable.id.name in serving)
        }
        unwanted = {worker for worker in self._slots if worker.model_version in given_up}
        return unwanted | self._reload.leaving()

    def _pid(self, worker: WorkerId) -> int:
        """Of the process that runs TensorFlow; 0 where there is none (yet)."""
        return self._workers.pid(worker) or (0 if self._is_forked(worker) else self._slots[worker].pid)

    def _is_forked(self, worker: WorkerId) -> bool:
        return self._servables.places[worker][1].start == "fork"

    def _as_logged(self, worker: WorkerId, pid: int) -> dict[str, int]:
        """Supervisord's child under the name it goes by: of a forked worker it is the launcher."""
        return {"launcher" if self._is_forked(worker) else "pid": pid}

    def _living(self, model: ModelVersion) -> list[int]:
        """The processes that run a version's workers."""
        mine = [worker for worker in self._slots if worker.model_version == model]
        return [pid for pid in map(self._pid, mine) if pid]

    def _processes_pid(self, program: str) -> int:
        found = self._processes.get(program)
        return found.pid if found else 0

    def _router_pid(self) -> int:
        """0 too where nothing is expected of it any more."""
        return 0 if self._stopping else self._processes_pid(programs.ROUTER)

    async def _perform(self, action: reconcile.Action) -> bool:
        """False for what cannot be done yet."""
        match action:
            case reconcile.AddPrograms(workers):
                await self._workers.add(workers)
            case reconcile.Start(ModelVersion() as model, generation):
                await self._weights.start(model, generation, gives_way=self._publishing_gives_way(model))
            case reconcile.Adopt(ModelVersion() as model, pid):
                self._weights.adopt(model, pid)
            case reconcile.Ended(ModelVersion() as model, exit_status):
                self._weights.ended(model, exit_status)
            case reconcile.WantWeights(model):
                return self._weights.want(model)
            case reconcile.Adopt(WorkerId() as worker, pid):
                self._slots[worker].started(pid, max(1, self._workers.generation(worker)), time.monotonic())
                self._workers.watch(worker, pid)
                logger.info("worker adopted", worker=str(worker), **self._as_logged(worker, pid))
            case reconcile.Refuse(worker, generation, reason):
                self._slots[worker].started(0, generation, time.monotonic())
                self._note_end(worker, process.EXIT_NEVER, reason)
            case reconcile.Start(WorkerId() as worker, generation):
                return await self._fill(worker, max(generation, self._workers.generation(worker) + 1))
            case reconcile.Ended(WorkerId() as worker, exit_status, spawn_error):
                await self._ended(worker, exit_status, spawn_error)
            case reconcile.MarkReady(worker):
                self._mark_ready(worker)
            case reconcile.MarkLost(worker):
                self._slots[worker].lost(time.monotonic())
                logger.info("worker unknown to the router", worker=str(worker))
            case reconcile.EndHung(ModelVersion() as model, pid, reason):
                self._weights.end_hung(model, pid, reason)
                return False  # until it is reaped the same is found again
            case reconcile.EndHung(WorkerId() as worker, pid, reason):
                if self._gpus.failed(worker.device):
                    return False  # all on it are being ended, this one too
                logger.warning(
                    "worker hangs", worker=str(worker), **self._as_logged(worker, pid), reason=reason
                )
                self._endings.hung(worker, reason)
            case reconcile.Leave(worker):
                leaving = self._endings.begun_after(time.monotonic() - pace.LEAVING_S)
                if not pace.may_go(worker, leaving, self._giving_way, self._at_once):
                    return False
                logger.info(
                    "worker leaves", worker=str(worker), **self._as_logged(worker, self._slots[worker].pid)
                )
                reason = NO_SLOT if worker in self._servables.surplus else NOT_SERVED
                self._endings.leave([worker], reason, self._leave_s(worker))
            case reconcile.Vacate(worker):
                del self._slots[worker]
                self._servables.vacated(worker)
                if not any(other.model_version == worker.model_version for other in self._slots):
                    self._weights.remove(worker.model_version)
            case reconcile.Remove(program, pid):
                logger.info("removing", program=program, pid=pid)
                await self._workers.remove(program, pid)
                return not pid  # until it is reaped the same is found again
        return True

    def _publishing_gives_way(self, model: ModelVersion) -> bool:
        """Not where a worker of it that was READY waits for its weights, whoever serves beside it."""
        mine = {worker: slot for worker, slot in self._slots.items() if worker.model_version == model}
        return model in self._giving_way and not pace.missed(mine, self._endings, self._giving_way)

    def _mark_ready(self, worker: WorkerId) -> None:
        slot = self._slots[worker]
        slot.ready(time.monotonic())
        logger.info("worker ready", worker=str(worker), generation=slot.generation, pid=self._pid(worker))
        self._gpus.ready(worker)

    # -- MPS --------------------------------------------------------------------------------------

    async def _is_attached(self, request: Message) -> Message:
        """For a worker that is warm: whether its MPS daemon counts it among its clients; null where nobody says.

        "never" says why it cannot, where that is known, and "see" where to look.
        """
        worker = WorkerId.parse(request["worker"])
        daemon = self._gpus.daemon(worker.device)
        answer = await daemon.ask(clients=True)
        clients = answer.clients if answer else None
        attached = None if clients is None else self._workers.pid(worker) in clients
        never = await daemon.why_unlisted() if attached is False else ""
        return {"attached": attached, "never": never, "see": daemon.where_logged()}

    # -- ends and starts --------------------------------------------------------------------------

    async def _fill(self, worker: WorkerId, generation: int) -> bool:
        """Starts a worker in its slot. False where its device is not to be had yet, or others load."""
        if reason := self._gpus.lost(worker.device):
            self._slots[worker].started(0, generation, time.monotonic())
            self._note_end(worker, process.EXIT_NEVER, reason)
            return True
        loading = pace.loading(self._slots, self._endings, time.monotonic())
        if not self._slots[worker].proved and not pace.may_go(
            worker, loading, self._giving_way, self._at_once
        ):
            return False
        if not self._gpus.may_start(worker) or not await self._workers.mps_answers(worker, self._processes):
            return False
        await self._start(worker, generation)
        return True

    async def _start(self, worker: WorkerId, generation: int) -> None:
        slot = self._slots[worker]
        gives_way = worker.model_version in self._giving_way and not slot.proved
        try:
            pid = await self._workers.start(worker, generation, gives_way=gives_way)
        except SupervisordError as error:
            if error.fault == Fault.SHUTDOWN_STATE:
                raise
            slot.started(0, generation, time.monotonic())
            self._note_end(worker, -1, str(error))
            return
        slot.started(pid, generation, time.monotonic())
        self._workers.watch(worker, pid)
        logger.info(
            "worker started", worker=str(worker), generation=generation, **self._as_logged(worker, pid)
        )

    async def _ended(self, worker: WorkerId, exit_status: int, spawn_error: str) -> None:
        self._workers.forget(worker)
        reason = await self._workers.why(worker, exit_status, spawn_error)
        if lost := self._gpus.lost(worker.device):
            exit_status, reason = process.EXIT_NEVER, lost
        self._note_end(worker, exit_status, reason)
        self._gpus.ended(worker)

    def _note_end(self, worker: WorkerId, exit_status: int, reason: str) -> None:
        slot = self._slots[worker]
        if worker in self._unwanted() | self._held():
            logger.info("worker left", worker=str(worker), generation=slot.generation)
            slot.ended(0, time.monotonic(), reason, hit=True)
            return
        hit = not self._gpus.lost(worker.device) and (
            self._gpus.hit(worker, slot.generation) or self._renewals.planned(worker, slot.generation)
        )
        instruction = slot.ended(exit_status, time.monotonic(), reason, hit=hit)
        event = {"worker": str(worker), "generation": slot.generation, "reason": reason}
        match instruction:
            case GiveUp(reason=final):
                logger.error("slot given up", **{**event, "reason": final})
                self._gpus.given_up(worker)
            case StartAt(at):
                logger.warning("worker ended", **event, next_start_in_s=round(at - time.monotonic(), 1))
            case _:
                logger.warning("worker ended", **event)

    def _leave_s(self, worker: WorkerId) -> float:
        """What it may take to finish what it runs."""
        return max(self._config.grace_s, self._servables.places[worker][0].hang_timeout_s) + _GO_S

    def _recall(self) -> Mapping[str, SlotRecord]:
        """The slots as a pool before this one recorded them."""
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return settings.load(self._run.settings_file(_RECORDS), _Records).slots
        return {}

    # -- the router -------------------------------------------------------------------------------

    def _on_snapshot(self, reports: Mapping[str, reconcile.WorkerReport], new: bool) -> None:
        self._gpus.take(reports, new=new)
        self._watch.changed()

    async def _tell_router(self) -> None:
        """What should exist, at every change and after every reconnect."""
        if self._router.snapshot is not None:
            await self._router.tell(self._for_router())

    def _for_router(self) -> Message:
        message = status.for_router(self._servables.all(), self._slots, self._router.reports())
        return {**message, "settings": msgspec.to_builtins(self._config.router)}

    # -- the control socket -----------------------------------------------------------------------

    async def _status(self, request: Message) -> Message:
        """The status; each worker's memory too where the request says "memory", which takes a moment."""
        await self._first_look()
        return await self._describe(await self._router.present(), memory="memory" in request)

    async def _last_status(self, _request: Message) -> Message:
        """As the router told it last: it tells every change of state at once, what it counts once a second."""
        await self._first_look()
        return await self._describe(self._router.snapshot, memory=False)

    async def _first_look(self) -> None:
        """Before a first look at supervisord's processes nothing is known; a router that is there has its say."""
        await self._looked.wait()
        await self._router.first_word()

    async def _describe(self, router: Message | None, *, memory: bool) -> Message:
        pids = {worker: self._pid(worker) for worker in self._slots}
        found = await self._measured.memory(pids) if memory else {}
        return status.build(
            status.View(
                self._config,
                self._servables.all(),
                self._slots,
                self._servables.places,
                self._processes,
                pids,
                found,
                router,
                lock.recorded_pid(self._run),
                self._errors(),
                self._stopping,
                self._gpus.messages(),
                self._servables.orders(),
            )
        )

    def _errors(self) -> dict[str, str]:
        """Why the router does not serve, the nursery does not fork, or a version was not copied, where they said so; and our own trouble."""
        trouble = f"{self._trouble} (in {self._run.root}): what that keeps from being done is tried again every second"
        ours = {programs.POOL: trouble} if self._trouble else {}
        asked = [programs.NURSERY, *([programs.ROUTER] if self._router.snapshot is None else [])]
        asked += [remote.program for remote in self._config.remotes]
        return ours | {program: words for program in asked if (words := self._run.last_words(program))}

    async def _stop(self, request: Message) -> Message:
        """Drains the router, then ends the workers; nothing is started from here on."""
        grace_s = float(request["grace_s"])
        end = time.monotonic() + grace_s
        self._stopping = self._gpus.stopping = True
        self._watch.changed()
        unanswered = await self._router.drain(grace.drain_s(grace_s))
        async with self._acting:  # a start that was under way is over, and known
            if not self._processes:  # we have just been started, and know of no worker yet
                with contextlib.suppress(SupervisordError):
                    await self._reconcile()
            left = await self._workers.end_all(end)
        self._look()
        return {"left": left, "unanswered": unanswered}


def _with_places(config: PoolSettings, places: Places) -> PoolSettings:
    """With the slots that are there besides those configured."""
    models = [msgspec.structs.replace(model, slots=[slot]) for model, slot in places.values()]
    return msgspec.structs.replace(config, models=[*config.models, *models])


def main(settings_file: str) -> int:
    """`python -m mpspool.supervisor SETTINGS`."""
    process.die_with_parent(os.getppid())
    log.configure(process="pool")
    while asyncio.run(_serve(Path(settings_file))):
        pass
    return 0


async def _serve(settings_file: Path) -> bool:
    """Serves what the file has. Returns whether it has something else now."""
    return await Pool(settings.load(settings_file, PoolSettings)).serve()
