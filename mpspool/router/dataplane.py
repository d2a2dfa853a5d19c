"""The data plane: requests from any protocol on one side, workers on the other, the scheduler between.

A thin shell: the scheduler and the model table decide; this connects them to the link, to the workers
as they come, change and go, and to the futures that the protocols wait on.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from mpspool.core import log, messages
from mpspool.core.envelope import ModelSpecPeek
from mpspool.core.errors import Code, Lack, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.join import join
from mpspool.core.methods import Method
from mpspool.core.settings import BatchingSettings, QueueSettings, RouterSettings
from mpspool.core.states import DomainState, VersionPhase, WorkerState
from mpspool.router.accounts import Accounts, Recorder
from mpspool.router.asked import Asked
from mpspool.router.clients import Tally
from mpspool.router.fault_domains import FaultDomains
from mpspool.router.link import Link
from mpspool.router.memory import LONG_ANSWER_BYTES, START_BYTES, Admission, Memory
from mpspool.router.models import Models, Version, VersionStatus, Wanted
from mpspool.router.overview import Overview
from mpspool.router.pending import Head, Pending, abandoned, shutting_down
from mpspool.router.scheduling import rules
from mpspool.router.scheduling.batching import split
from mpspool.router.scheduling.entry import Entry
from mpspool.router.scheduling.load import Batch, Device
from mpspool.router.scheduling.scheduler import Refuse, Scheduler, Send
from mpspool.router.scheduling.suspicion import Blame
from mpspool.router.workers import JUDGE_S, Worker, Workers

logger = log.get("dataplane")

# What uvloop's timers go by.
_TIMER_NS = 1_000_000
# Shorter messages leave no room for answers that are to come.
_LARGE_BYTES = 2**20
# Between looks at how what is held goes on.
_MEMORY_NS = 1_000_000_000
# What is counted for a request that names no model of ours.
_NOBODYS = ModelVersion("", 0)
# Versions that are not served any more whose counts are told on, so that they are seen once more.
_GONE_VERSIONS = 5
# Of a worker that has promised nothing yet.
_STARTING = frozenset({WorkerState.STARTING, WorkerState.LOADING, WorkerState.WARMING})
# A class is asked for its members, and for one by its value, more slowly.
_OK: Final = Code.OK
_DEADLINE_EXCEEDED: Final = Code.DEADLINE_EXCEEDED
_CODES: Final = {code.value: code for code in Code}


class _MovedError(Exception):
    """Its version has gone before it was run."""


class Dataplane:
    """Serves what the fronts bring. Lives on one event loop; nothing here blocks it."""

    def __init__(self, settings: RouterSettings, recorder: Recorder, link: Callable[..., Link]) -> None:
        self._settings = settings
        self._recorder = recorder
        self.accounts = Accounts(recorder, settings.scheduling.fair_by, settings.simulated)
        self._scheduler = Scheduler(
            rules.pool_rules(settings), rules.queue_rules(settings, QueueSettings(), None)
        )
        self._told: dict[ModelVersion, object] = {}
        self._callers = rules.Callers(settings.scheduling.priority_key, settings.scheduling.fair_by)
        self._fair = settings.scheduling.fair_by != "none"
        self.memory = Memory(settings.max_queued_bytes)
        self._memory_ns = 0
        self._models = Models()
        self._gone: deque[ModelVersion] = deque()
        self._callbacks: list[Callable[[], None]] = []
        self._loop = asyncio.get_running_loop()
        # In place of a future that was awaited: the scheduler may know an entry until its deadline, but not keep its answer.
        self._over: asyncio.Future[bytes] = self._loop.create_future()
        self._over.cancel()
        self._pumping = False
        self._look: asyncio.TimerHandle | None = None
        self._look_ns = 0
        # Unlike any predecessor's, so that a worker can tell that its router was replaced.
        self.epoch = time.time_ns()
        self.draining = False
        self._link = link(self._on_message)
        self._workers = Workers(self.epoch, self._link, self._on_lost)
        self._overview = Overview(self._models, self._workers, self._scheduler, self.memory)
        self._domains = FaultDomains()
        self._ticker = self._loop.create_task(self._tick_for_ever())

    # -- what the fronts call ---------------------------------------------------------------------

    def admit(self, asked: Asked, size: int, start: bytes, head: Head) -> Admission:
        """Room for a message that is about to be read: what is returned goes to call(), or is released.

        Args:
            asked: what for.
            size: of the message.
            start: what is here of it.
            head: as of call().

        Raises:
            PoolError: it is refused before the rest is read.
        """
        spec = asked.spec_at_start(start)
        name = spec.name if spec is not None else ""
        client = self._callers.client(head.metadata, head.peer) if self._fair else None
        try:
            to_come = (0, 0)
            is_here = size <= max(len(start), START_BYTES)
            # For what clients make up there is no bound.
            if spec is not None and not (is_here and name in self.memory.limits):
                model = self._models.resolve(name, spec.version, spec.label).model
                if not is_here:
                    self._check_room(model, asked, spec, head)
                    if size >= _LARGE_BYTES:
                        to_come = self._scheduler.answers_to_come(model, asked.signature(spec), size)
            return self.memory.admit(size, name, client, to_come)
        except PoolError as error:
            meant = self._meant(spec)
            self.accounts.refused(asked.method, meant, error, self._tallies(head, meant))
            raise

    def _check_room(self, model: ModelVersion, asked: Asked, spec: ModelSpecPeek, head: Head) -> None:
        """Raises PoolError where a message that has yet to come would be refused for want of room, came it now and with one row.

        By REST its signature, and with it whether it shares batches, stands in what is to come. Where versions share the requests,
        it will be known which of them this one is for.
        """
        if not self._scheduler.may_be_full(model):
            return
        if spec.version is None and spec.label is None and self._models.is_shared(spec.name):
            return
        batching = self._scheduler.batching(model) if asked.told is None else None
        entry = Entry(
            model,
            asked.signature(spec),
            b"",
            time.monotonic_ns(),
            method=asked.method,
            rows=1 if batching is not None else 0,
            priority=self._callers.priority(head.metadata),
            client=self._callers.client(head.metadata, head.peer),
        )
        self._refuse(self._scheduler.expire(entry.arrived_ns))
        try:
            self._scheduler.check_room(entry)
        except PoolError:
            self._make_room(model)
            self._scheduler.check_room(entry)

    def _meant(self, spec: ModelSpecPeek | None) -> ModelVersion:
        """Whose a refused message is; nobody's where that is not known, or is made up."""
        if spec is not None:
            with contextlib.suppress(PoolError):
                return self._models.resolve(spec.name, spec.version, spec.label).model
        return _NOBODYS

    async def call(
        self,
        asked: Asked,
        body: bytes,
        deadline_ns: int,
        admission: Admission,
        head: Head,
    ) -> bytes:
        """Runs one request and returns its answer.

        Cancelling the task cancels the request.

        Args:
            asked: what for.
            body: the request as received.
            deadline_ns: CLOCK_MONOTONIC, 0 for none.
            admission: what admit() returned for it; it is released when nobody holds the body any more.
            head: who asks, and what was said besides.

        Raises:
            PoolError: what to answer instead.
        """
        admission.keep()  # we hold the body, too
        try:
            entry = self._entry(asked, body, deadline_ns, admission, head, None)
            while True:
                try:
                    return await self._run(entry, asked)
                except _MovedError:
                    admission.begin_again()
                    entry = self._entry(asked, body, deadline_ns, admission, head, entry)
        finally:
            admission.release()

    def _entry(
        self,
        asked: Asked,
        body: bytes,
        deadline_ns: int,
        admission: Admission,
        head: Head,
        moved: Pending | None,
    ) -> Pending:
        """What is to be queued: in place of `moved`, of which the version has gone, where that is given.

        Raises PoolError, counted, for a request that no worker could take, or that comes after the order to end.
        """
        model = _NOBODYS
        try:
            if self.draining and moved is None:
                raise shutting_down()
            spec = asked.spec(body)
            model = self._models.resolve(spec.name, spec.version, spec.label, head.metadata).model
            admission.belong(spec.name)
            entry = Pending(
                model,
                asked.signature(spec),
                body,
                time.monotonic_ns(),
                deadline_ns,
                asked.method,
                self._callers.priority(head.metadata),
                self._callers.client(head.metadata, head.peer),
                future=self._loop.create_future(),
                named=spec.version is not None or spec.label is not None,
                admission=admission,
            )
        except PoolError as error:
            admission.release()
            tallies = self._tallies(head, model) if moved is None else moved.tallies
            self.accounts.refused(asked.method, model, error, tallies)
            raise
        entry.examples = asked.examples(body)
        if moved is not None:
            entry.tallies, entry.arrived_ns, entry.let_in = moved.tallies, moved.arrived_ns, True
        elif self.accounts.wants_names:
            entry.tallies = self._tallies(head, model)
            self.accounts.arrived(entry, self._callers.name(head.metadata, head.peer))
        return entry

    def _tallies(self, head: Head, model: ModelVersion) -> Sequence[Tally]:
        """Where those who look see what becomes of a request that has come."""
        if not self.accounts.wants_names:
            return ()
        return self.accounts.asked(self._callers.name(head.metadata, head.peer), model)

    async def _run(self, entry: Pending, asked: Asked) -> bytes:
        """Its answer; in as many parts as its rows call for. Raises PoolError, and _MovedError."""
        batching = self._scheduler.batching(entry.model)
        if batching is not None:
            entry.rows, entry.kind = asked.rows(entry.body, entry.signature, batching, entry.examples)
            if entry.rows > batching.run_rows:
                if asked.goes_in_parts:
                    return await self._run_in_parts(entry, batching)
                entry.rows, entry.runs = batching.run_rows, entry.rows / batching.run_rows
        self._arrive(entry, (entry,))
        try:
            return await entry.future
        except asyncio.CancelledError:
            self._cancel(entry)
            raise
        finally:
            entry.future = self._over

    def _arrive(self, whole: Pending, parts: Sequence[Pending]) -> None:
        """Takes a request, as it is or in these parts, into its queue. Raises PoolError, counted, where it is refused at the door."""
        now_ns = time.monotonic_ns()
        try:
            stirs = self._take_in(parts, now_ns)
        except BaseException as error:
            for entry in parts:
                entry.let_go()
            if isinstance(error, PoolError):
                self.accounts.refused(whole.method, whole.model, error, whole.tallies)
            raise
        if stirs or (self._look is not None and now_ns >= self._look_ns):
            self._pump_soon()

    def _take_in(self, parts: Sequence[Pending], now_ns: int) -> bool:
        """As Scheduler.arrive_in_parts; before one is refused for want of room there, some is made."""
        self._refuse(self._scheduler.expire(now_ns))  # it is before nobody any more
        try:
            return self._scheduler.arrive_in_parts(parts, now_ns, evict=not self._pumping)
        except PoolError as error:
            if error.lack not in (Lack.REQUESTS, Lack.BATCHES) or not self._make_room(parts[0].model):
                raise
        return self._scheduler.arrive_in_parts(parts, now_ns)

    def _make_room(self, model: ModelVersion) -> bool:
        """What has come in this turn of the loop fills no queue while workers are idle: it is sent.

        Results that are here make room, too: in a flood, the loop would come to them after hundreds of refusals, and the workers
        wait for as long.

        Returns:
            Whether anything was sent, perhaps.

        Raises:
            PoolError: the version has gone meanwhile.
        """
        self._link.drain()
        if not self._pumping:
            return False
        self._pump()
        if not self._models.has(model):  # its last worker could not be reached
            raise PoolError(Code.UNAVAILABLE, f"{model} is not served any more")
        return True

    def _cancel(self, entry: Pending) -> None:
        if not entry.over:
            self._scheduler.cancel(entry)
            if self._scheduler.stirs:  # what is left may go another way
                self._pump_soon()
        elif not _is_moving(entry):
            return  # it was counted when it ended
        if entry.part is None:
            self.accounts.ended(entry, "", abandoned(entry, time.monotonic_ns()), None)

    async def _run_in_parts(self, whole: Pending, batching: BatchingSettings) -> bytes:
        """Runs a request of more rows than run at once over several workers, and puts it together in order."""
        try:
            ranges = split(whole.rows, batching)
        except PoolError as error:
            whole.let_go()
            self.accounts.refused(whole.method, whole.model, error, whole.tallies)
            raise
        parts = [whole.of_rows(start, stop, self._loop.create_future()) for start, stop in ranges]
        whole.admission.keep(len(parts) - 1)
        self._arrive(whole, parts)
        try:
            return await self._await_parts(whole, parts)
        except PoolError as error:
            self.accounts.failed(whole, error)
            raise
        except asyncio.CancelledError:
            self.accounts.ended(whole, "", abandoned(whole, time.monotonic_ns()), None)
            raise

    async def _await_parts(self, whole: Pending, parts: list[Pending]) -> bytes:
        """The first that fails ends them all. Raises _MovedError, too."""
        try:
            answers = await asyncio.gather(*(part.future for part in parts))
        except BaseException:
            for part in parts:
                self._cancel(part)
                part.future.cancel()
            raise
        else:
            # Of the other methods messages that follow one another are one: protobuf merges them.
            answer = _joined(answers) if whole.method is Method.PREDICT else b"".join(answers)
        finally:
            whole.admission.hold(-sum(part.kept_bytes for part in parts))
            sent_ns = [part.sent_ns for part in parts]
            whole.sent_ns = max(sent_ns) if all(sent_ns) else 0
            for part in parts:
                part.future = self._over
        last = max(parts, key=lambda part: part.sent_ns)
        effective_s = sum(part.effective_s for part in parts)
        self.accounts.ended(whole, "", _OK, last.outcome, effective_s, whole.rows)
        return answer

    def metadata(self, name: str, version: int | None, label: str | None = None) -> tuple[int, bytes]:
        """(version, serialised SignatureDefMap) of a model. Raises PoolError."""
        found = self._models.resolve(name, version, label)
        if not found.ready and not found.signatures:  # its workers have yet to tell a router that is new
            raise PoolError(Code.UNAVAILABLE, f"the signatures of {found.model} are not known yet; try again")
        return found.model.version, found.signatures

    def signatures(self, name: str, version: int | None) -> bytes:
        """A serialised SignatureDefMap: of one version, whether it takes requests or not. Raises PoolError."""
        if version is None:
            return self.metadata(name, None)[1]
        return self._models.signatures(ModelVersion(name, version))

    def labelled(self, name: str, label: str) -> int | None:
        """The number of the version that this label stands for; None where it stands for none."""
        return self._models.labelled(name, label)

    def status(self, name: str, version: int | None) -> list[VersionStatus]:
        """What GetModelStatus says, newest version first. Raises PoolError."""
        return self._models.status(name, version)

    def unready(self) -> str:
        """Why requests cannot be served; empty when they can."""
        if self.draining:
            return "shutting down"
        return self._models.unready(every=self._settings.readiness == "all")

    def on_change(self, callback: Callable[[], None]) -> None:
        """Calls back after a worker or a model version changed state."""
        self._callbacks.append(callback)

    # -- what the pool calls ----------------------------------------------------------------------

    def configure(self, settings: RouterSettings) -> None:
        """Takes other settings while it serves; ports, run folder and `fair_by` stay as they were."""
        if settings == self._settings:
            return
        logger.info("configured")
        self._settings = settings
        self._scheduler.govern_all(rules.pool_rules(settings))
        self._callers = rules.Callers(settings.scheduling.priority_key, settings.scheduling.fair_by)
        self.memory.limit_bytes = settings.max_queued_bytes
        self._told.clear()  # what holds for a queue follows from both
        self._pump_soon()  # there may be room for what waits
        self._changed()  # when it is ready may be another matter now

    def want(
        self, models: list[dict[str, Any]], restarts: dict[str, int], slots: dict[str, str] | None = None
    ) -> None:
        """Takes the pool's list of what should exist and what has failed.

        Args:
            models: every version that there should be.
            restarts: how often each slot was filled again, by worker id.
            slots: the state of every slot that there should be, by worker id.
        """
        wanted = {}
        for item in models:
            model = ModelVersion(item["name"], item["version"])
            wanted[model] = Wanted(
                quorum=item["quorum"],
                failed=item["failed"],
                refused=item["refused"],
                opens=item["opens"],
                leaves=item["phase"] == VersionPhase.LEAVING.value,
                weight=item["weight"],
                labels=item["labels"],
                to_come=item["to_come"],
                metadata=[(key, value) for key, value in item["metadata"]],
            )
            self._workers.hang_timeout_s[model] = item["hang_timeout_s"]
            self._models.get(model).was_available |= item["proved"]
            self._govern(model, item)
            self._scheduler.close(model, closed=self.draining or wanted[model].leaves)
        self.memory.limits = rules.byte_limits(models, self.memory.limit_bytes)
        self.memory.sharing = rules.sharing_bytes(models)
        self._models.want(wanted)
        self._overview.restarts = restarts
        self._overview.slots = slots or {}
        for version in self._models.all():
            self._fail_without_hope(version)
        self._forget_gone()
        self._changed()
        if self._scheduler.stirs:
            self._pump_soon()

    def _forget_gone(self) -> None:
        for model in self._models.gone():
            self._refuse(self._scheduler.forget(model))
            self._told.pop(model, None)
            self._workers.hang_timeout_s.pop(model, None)
            self._gone.append(model)
            logger.info("gone", model=str(model))
        while len(self._gone) > _GONE_VERSIONS:
            model = self._gone.popleft()
            if not self._models.has(model):  # it has not come back
                self._recorder.forget(model.name, model.version)

    def _govern(self, model: ModelVersion, item: Mapping[str, Any]) -> None:
        told = rules.told(item)
        if self._told.get(model) != told:
            self._told[model] = told
            self._scheduler.govern(model, rules.queue_rules(self._settings, *told))
            self._pump_soon()

    def condemn(
        self,
        domain: str,
        generations: Mapping[str, int],
        culprits: Collection[str] | None,
        reason: str,
        *,
        comes_back: bool = True,
    ) -> None:
        """Gives up a device's workers, for it has failed, and runs their requests elsewhere.

        Args:
            domain: the device.
            generations: of each worker that was on it, by its id; some may have gone already.
            culprits: those of them that caused it; None where nobody knows, and any of them may have.
            reason: what befell the device.
            comes_back: the device will be used again.
        """
        self._domains.condemned(domain, self._loop.time(), comes_back=comes_back)
        for worker in self._workers:
            if generations.get(str(worker.id)) == worker.generation and not worker.hung:
                self._workers.condemn(worker, reason, reason, _blame(worker, culprits))
        self._see_suspects()

    def clear(self, device: str, since_s: float) -> None:
        """Workers of it died, and the device was well at `since_s` (CLOCK_MONOTONIC)."""
        self._domains.well(device, since_s)
        self._see_suspects()

    def devices(self, devices: list[dict[str, Any]]) -> None:
        """How the GPUs fare, for the snapshot; forgotten where the pool does not say it again for a while."""
        for found in devices:
            if found["state"] == DomainState.LOST.value:
                self._domains.up(found["device"])
        self._overview.devices(devices)

    def _fail_without_hope(self, version: Version) -> None:
        """Refuses what waits for a version whose last worker has gone and will not be replaced."""
        if version.failed and not version.leaves and not version.workers:
            self._refuse(self._scheduler.fail(version.model, f"{version.model}: {version.failed}"))
        elif version.leaves and not version.workers:
            self._move(self._scheduler.fail(version.model, f"{version.model} is not served any more"))

    def _move(self, refusals: list[Refuse]) -> None:
        """What waited for a version that has gone is for the one in its place, where it did not ask for that one alone."""
        for refusal in refusals:
            entry = refusal.entry
            assert isinstance(entry, Pending)
            if entry.named or entry.future.done():
                self._refuse([refusal])
            else:
                entry.future.set_exception(_MovedError())

    async def drain(self, timeout_s: float) -> int:
        """Accepts nothing more and waits until all is answered. Returns how many were refused after all."""
        self.draining = True
        self._changed()
        for version in self._models.all():
            self._scheduler.close(version.model)
        self._pump_soon()
        end = self._loop.time() + timeout_s
        while (left := self._scheduler.unfinished()) and self._loop.time() < end:
            await asyncio.sleep(0.01)
        self._refuse(self._scheduler.abandon(f"This server has shut down; {timeout_s:g} s were not enough"))
        return left

    def snapshot(self) -> dict[str, Any]:
        """The control socket's answer: models, workers, queue."""
        return self._overview.snapshot(draining=self.draining)

    def tasks(self, last_s: float) -> Iterator[dict[str, Any]]:
        """See Overview.tasks()."""
        return self._overview.tasks(last_s, self._settings.simulated)

    def answers_most(self, name: str) -> int | None:
        """Of a model, as Models.answers_most()."""
        return self._models.answers_most(name)

    # -- what workers say -------------------------------------------------------------------------

    def _on_message(self, identity: bytes, message: messages.FromWorker, frames: list[bytes]) -> None:
        if isinstance(message, messages.Hello):
            if worker := self._workers.hello(identity, message):
                self._on_state(worker, message)
        elif (worker := self._workers.sender(identity, message.epoch)) is None:
            return
        elif isinstance(message, messages.Result):
            self._on_result(worker, message, frames)
        else:
            self._on_leaving(worker)

    def _on_state(self, worker: Worker, hello: messages.Hello) -> None:
        model = worker.id.model_version
        if worker.failed:
            self._on_failed(worker)
        if worker.state is WorkerState.READY:
            self._models.get(model).signatures = hello.signatures
            self._recorder.loaded(model.name, model.version, hello.loaded)
            self._scheduler.join(worker.name, model, hello.credits, worker.id.device, worker.domain)
            if self._domains.refuses(worker.domain):
                self._scheduler.leave(worker.name)
            self._domains.up(worker.domain)
            self._see_suspects()
            logger.info("ready", worker=worker.name, engine=worker.engine)
        self._recount(model)
        self._pump_soon()

    def _on_failed(self, worker: Worker) -> None:
        """Its device has failed: nothing more is sent there. What is there already waits for the pool's verdict."""
        logger.error("device failed", worker=worker.name, domain=worker.domain, why=worker.failed)
        if not worker.domain:
            self._workers.condemn(worker, worker.failed, f"cannot use its device: {worker.failed}")
            return
        for other in self._workers:
            if other.domain == worker.domain:
                self._scheduler.leave(other.name)
        self._domains.failed(worker.domain, worker.failed, self._loop.time())
        self._see_suspects()

    def _see_suspects(self) -> None:
        serving = {
            worker.domain for worker in self._workers if worker.state is WorkerState.READY and worker.domain
        }
        self._scheduler.hold_suspects = self._domains.holds_suspects(serving)
        self._pump_soon()

    def _see_domains(self) -> None:
        """Without a pool process nobody says what befell a device; its successor ends those that are condemned."""
        for domain, reason in self._domains.overdue(self._loop.time()):
            mine = {str(one.id): one.generation for one in self._workers if one.domain == domain}
            self.condemn(domain, mine, None, f"{domain}: {reason}")
        if self._scheduler.hold_suspects:
            self._see_suspects()

    def _on_result(self, worker: Worker, result: messages.Result, frames: list[bytes]) -> None:
        worker.unpack(result.dispatch)
        # DEADLINE_EXCEEDED is how a worker answers what it has not run.
        ran = any(outcome.code != _DEADLINE_EXCEEDED for outcome in result.outcomes)
        now_ns = time.monotonic_ns()
        device = self._scheduler.device(worker.name)
        batch = self._scheduler.finished(worker.name, result.dispatch, ran, now_ns)
        if batch is None or device is None:
            return  # of a worker that was given up, or sent twice
        try:
            self._take_result(worker, device, batch, result, frames)
        except Exception:
            # It has been given back, and comes to nobody any more: who waits for it is told.
            logger.exception("a result was not taken in", worker=worker.name)
            error = PoolError(Code.INTERNAL, "The answer of a worker could not be read")
            left = [entry for entry in batch.entries if not entry.over]
            for entry in left:
                self._scheduler.answered(entry, ran=False)
            self._refuse([Refuse(entry, error) for entry in left])
        self._pump_soon()

    def _take_result(
        self, worker: Worker, device: Device, batch: Batch, result: messages.Result, frames: list[bytes]
    ) -> None:
        """Counts what was run, and answers each request of it that is still wanted."""
        device.ran(result.busy_us / 1e6, batch.alone)
        worker_id = str(worker.id)
        self._overview.task_log.add(worker_id, result.began_ns, result.busy_us, len(batch.entries))
        worker.served += len(batch.entries)
        worker.busy_us += result.busy_us
        model = batch.entries[0].model
        costs = self._scheduler.costs
        joined = batch.together and not result.apart
        self.accounts.ran(batch, result, self._scheduler.batching(model) if joined else None)
        if joined and (rows := _answered_rows(batch.entries, result)):
            runs = batch.entries[0].runs  # what takes several is a batch by itself
            costs.observe(model, batch.entries[0].signature, 0, result.busy_us / runs, rows)
        long_bodies = iter(frames)
        for entry, outcome in zip(batch.entries, result.outcomes, strict=True):
            body = next(long_bodies) if outcome.body is None else outcome.body
            took_us = outcome.took_us
            if outcome.run_us and not joined:
                costs.observe(model, entry.signature, entry.size, took_us)
            charged_us = result.busy_us if len(result.runs) == 1 else took_us
            effective_s = charged_us * batch.alone / 1e6
            assert isinstance(entry, Pending)
            if entry.tallies:  # of what nobody waits for any more, too
                part_us = batch.part(entry) * result.busy_us if joined else took_us
                for tally in entry.tallies:
                    tally.effective_s += part_us * batch.alone / 1e6
            if not entry.over:
                self._answer(entry, worker_id, outcome, body, effective_s, together=batch.together)
        if result.apart and self._scheduler.keep_apart(batch.entries[0]):
            logger.info("requests are not joined", model=str(model), signature=batch.entries[0].signature)

    def _answer(
        self,
        entry: Pending,
        worker_id: str,
        outcome: messages.Outcome,
        body: bytes,
        effective_s: float,
        *,
        together: bool,
    ) -> None:
        code = _CODES[outcome.code]
        if entry.part is None:
            rows = entry.rows if together else 0
            self.accounts.ended(entry, worker_id, code, outcome, effective_s, rows)
        else:
            # Without the answer, which this would keep for as long as the scheduler knows the entry.
            entry.outcome, entry.effective_s = msgspec.structs.replace(outcome, body=None), effective_s
        self._scheduler.answered(entry, ran=code is not _DEADLINE_EXCEEDED, size=len(body))
        if entry.future.done():
            return  # cancelled, and its task has not run yet
        if code is not _OK:
            entry.future.set_exception(PoolError(code, outcome.message))
        elif entry.part is None:
            entry.future.set_result(body)
        else:
            self._keep(entry, body)

    def _keep(self, part: Pending, answer: bytes) -> None:
        """The answer to some rows, until the others have theirs: it counts as one that waits for its client."""
        try:
            part.admission.check_answer(len(answer))
        except PoolError as error:
            part.future.set_exception(error)
            return
        part.kept_bytes = len(answer)
        part.admission.hold(part.kept_bytes)
        part.future.set_result(answer)

    def _on_leaving(self, worker: Worker) -> None:
        worker.state = WorkerState.DRAINING
        self._scheduler.leave(worker.name)
        self._link.send(worker.identity, messages.Goodbye(self.epoch), [])
        self._recount(worker.id.model_version)

    def _on_lost(self, worker: Worker, why: str, blame: Blame) -> None:
        """Runs its requests elsewhere; what it was running is a suspect where it may be the cause."""
        held = self._scheduler.in_flight(worker.name)
        model = worker.id.model_version
        if worker.state in _STARTING and self._is_wanted(model):
            self._recorder.not_loaded(model.name, model.version, worker.path)
        if worker.state is WorkerState.DRAINING and not held:
            logger.info("worker left", worker=worker.name, pid=worker.pid)
        else:
            logger.warning("worker lost", worker=worker.name, pid=worker.pid, why=why, held=held)
            if worker.domain and not worker.hung:
                self._domains.died(worker.domain, self._loop.time())
                self._see_suspects()
        self._refuse(self._scheduler.lost(worker.name, worker.running(), time.monotonic_ns(), blame))
        self._recount(model)
        self._pump_soon()

    def _is_wanted(self, model: ModelVersion) -> bool:
        """Whether a worker of it that ends as it starts fails: others are told to."""
        return not self.draining and self._models.has(model) and not self._models.get(model).leaves

    # -- doing ------------------------------------------------------------------------------------

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(JUDGE_S)
            try:
                self._tick(time.monotonic_ns())
            except Exception:
                logger.exception("tick failed")  # the next one may not

    def _tick(self, now_ns: int) -> None:
        self._refuse(self._scheduler.expire(now_ns))
        if self._scheduler.stirs:
            self._pump_soon()
        self._workers.judge(now_ns, self._scheduler.predicted_us)
        if now_ns >= self._memory_ns:
            self._memory_ns = now_ns + _MEMORY_NS
            self.memory.tick()
        self._see_domains()

    def _pump_soon(self) -> None:
        """Dispatches once for all that happens in this turn of the loop."""
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        now_ns = time.monotonic_ns()
        self._refuse(self._scheduler.expire(now_ns))
        for order in self._scheduler.dispatch(now_ns):
            if isinstance(order, Refuse):
                self._refuse([order])
                continue
            worker = self._workers.get(order.worker.encode())
            # One that is lost to an order before this one has nothing: what it was to run waits again.
            if worker is not None and not self._send(worker, order, now_ns):
                self._workers.lose(worker, "unreachable")
        self._look_again(now_ns)

    def _send(self, worker: Worker, order: Send, now_ns: int) -> bool:
        """False where the worker cannot be reached any more."""
        try:
            packed, frames = worker.pack(order.dispatch, [entry.body for entry in order.entries])
            requests = [
                messages.Request(body, entry.deadline_ns, entry.part, entry.method)
                for body, entry in zip(packed, order.entries, strict=True)
            ]
            dispatch = messages.Dispatch(self.epoch, order.dispatch, requests, order.together)
            self._expect_answers(order)
            return self._link.send(worker.identity, dispatch, frames)
        except Exception:
            # It would fail for the next worker, too; the orders after this one are to be sent all the same.
            logger.exception("a dispatch was not sent", worker=worker.name)
            worker.unpack(order.dispatch)
            self._scheduler.finished(worker.name, order.dispatch, False, now_ns)
            error = PoolError(Code.INTERNAL, "The request could not be sent to a worker")
            for entry in order.entries:
                self._scheduler.answered(entry, ran=False)
            self._refuse([Refuse(entry, error) for entry in order.entries])
            self._pump_soon()
            return True

    def _expect_answers(self, order: Send) -> None:
        """Long answers are here before their requests are let go, and are copied: they count from when these are sent."""
        for entry in order.entries:
            assert isinstance(entry, Pending)
            if not entry.expects and (size := self._scheduler.answer_bytes(entry)) >= LONG_ANSWER_BYTES:
                entry.expects = True
                entry.admission.expect(size)

    def _look_again(self, now_ns: int) -> None:
        """What waits for a moment to come goes out then, though nothing happens."""
        due_ns = self._scheduler.look_again_ns(now_ns)
        if due_ns is None or (self._look is not None and self._look_ns <= due_ns):
            return
        if self._look is not None:
            self._look.cancel()
        self._look_ns = due_ns
        # A shorter time would be none to uvloop, which then asks again and again until it is over.
        delay_s = max(_TIMER_NS, due_ns - now_ns) / 1e9
        self._look = self._loop.call_later(delay_s, self._on_look)

    def _on_look(self) -> None:
        self._look = None
        self._pump_soon()

    def _refuse(self, refusals: list[Refuse]) -> None:
        for refusal in refusals:
            entry = refusal.entry
            assert isinstance(entry, Pending)
            if entry.part is None:
                self.accounts.failed(entry, refusal.error)
            if not entry.future.done():
                entry.future.set_exception(refusal.error)

    def _recount(self, model: ModelVersion) -> None:
        workers, ready = self._workers.count(model)
        self._models.count(model, workers, ready)
        self._fail_without_hope(self._models.get(model))
        self._forget_gone()
        self._changed()

    def _changed(self) -> None:
        for callback in self._callbacks:
            callback()

    async def close(self) -> None:
        self._ticker.cancel()
        if self._look is not None:
            self._look.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._ticker
        self._workers.close()
        self._link.close()


def _is_moving(entry: Pending) -> bool:
    """Whether its version has gone, and it was to begin again in another."""
    future = entry.future
    return future.done() and not future.cancelled() and isinstance(future.exception(), _MovedError)


def _blame(worker: Worker, culprits: Collection[str] | None) -> Blame:
    """What the failure of its device says against what a worker ran; None for culprits where nobody knows."""
    if culprits is None:
        return Blame.PERHAPS
    return Blame.SURELY if str(worker.id) in culprits else Blame.NONE


def _answered_rows(entries: Sequence[Entry], result: messages.Result) -> int:
    """Rows of a batch that were run, by which its like is known on arrival.

    Not those of a request that is wrong, or late, which cost next to nothing; its signature may be made up, too.
    """
    return sum(
        entry.rows for entry, outcome in zip(entries, result.outcomes, strict=True) if outcome.code == _OK
    )


def _joined(answers: Sequence[bytes]) -> bytes:
    """The answer to a request of Predict from those to its parts. Raises PoolError."""
    try:
        return join(answers)
    except ValueError as error:
        text = f"The parts that the request was run in do not go together: {error}"
        raise PoolError(Code.INTERNAL, text) from error
