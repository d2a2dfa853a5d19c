"""Another configuration while the pool runs: whether it can be had, and what is left to do until it holds everywhere.

It is taken up in one step: its file takes the place of the former one, and the pool process begins again as after its
own death, with all processes running on. What the file does not have then leaves, what is new comes, and workers that were
started with other settings are renewed, one after another.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec

from mpspool.core import log, settings
from mpspool.core.control import Message
from mpspool.core.ids import ModelVersion, WorkerId
from mpspool.core.rundir import RunDir
from mpspool.core.settings import PoolSettings, RemoteSettings, WorkerSettings
from mpspool.core.states import SlotState, VersionPhase
from mpspool.supervisor import settings_files, shares
from mpspool.supervisor.pool.changes import Changes, abandoned, compare, merged, renews
from mpspool.supervisor.pool.renewals import Renewals
from mpspool.supervisor.pool.servables import Places, Servables
from mpspool.supervisor.pool.slots import Slot
from mpspool.supervisor.pool.workers import Workers
from mpspool.supervisor.remote.place import COPYING
from mpspool.supervisor.supervisord import SupervisordError

logger = log.get("reload")

# To read and check a configuration takes seconds; a folder that hangs, for ever.
_READ_S = 45.0
# Whether a version is served depends on these.
_JUDGED = {"base_path", "allow_signature_changes", "start_timeout_s"}
_WORDS = "asked to leave, to come back with the settings of another configuration"


def digest(config: PoolSettings) -> str:
    """Tells one configuration from another."""
    return hashlib.sha256(settings.encode(config)).hexdigest()[:16]


def former_places(run: RunDir, workers: list[WorkerId]) -> Places:
    """The slots of these workers as they were started; those that never were are left out."""
    found: Places = {}
    for worker in workers:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            last = settings.load(run.settings_file(worker.program), WorkerSettings)
            found[worker] = last.model, last.slot
    return found


async def reload_with(run: RunDir, models: list[Message]) -> tuple[int, str]:
    """Has `mpspool reload` read the configuration with these models. Its exit status, and what it says where that is not 0."""
    words = ["-P", "-m", "mpspool", "reload", "--no-wait", "--models-from", "-", "--run-dir", str(run.root)]
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, *words), stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    try:
        errors = await _follow(child, json.dumps(models).encode())
    except TimeoutError:
        child.kill()
        with contextlib.suppress(TimeoutError):  # what hangs in the kernel does not end by it
            async with asyncio.timeout(1.0):
                await child.wait()
        return (
            1,
            f"the configuration could not be checked in {_READ_S:g} s: does a folder hang that it names?",
        )
    except asyncio.CancelledError:
        child.kill()
        raise
    if not child.returncode:
        return 0, ""
    lines = errors.splitlines()
    text = "; ".join(line.removeprefix("error: ") for line in lines if line)
    return child.returncode or 0, text or "mpspool reload ended without a word"


async def _follow(child: asyncio.subprocess.Process, document: bytes) -> str:
    """Hands it its input; what it says of errors. Raises TimeoutError: it reads for too long. Copying has all its time."""
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    async with asyncio.timeout(_READ_S) as limit:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it says why
            child.stdin.write(document)
            await child.stdin.drain()
        child.stdin.close()
        errors = asyncio.create_task(child.stderr.read())
        try:
            async for line in child.stdout:
                if line.startswith(COPYING.encode()):
                    limit.reschedule(None)
            await child.wait()
            return (await errors).decode(errors="replace")
        finally:
            errors.cancel()


class Reload:
    """Answers the control ops "reload" and "reloaded", and renews the workers that a reload concerns.

    Args:
        slots: the pool's own, by worker.
        place: has a slot for each place that is new.
        end_fetchers: ends what copies from these; raises SupervisordError.
        begin_again: ends this pool, for one with what its settings file has then.
        stopping: whether the pool ends.
    """

    def __init__(
        self,
        config: PoolSettings,
        run: RunDir,
        slots: Mapping[WorkerId, Slot],
        servables: Servables,
        workers: Workers,
        renewals: Renewals,
        place: Callable[[], None],
        end_fetchers: Callable[[Iterable[RemoteSettings]], Awaitable[None]],
        begin_again: Callable[[], None],
        stopping: Callable[[], bool],
    ) -> None:
        self._config = config
        self._run = run
        self._slots = slots
        self._servables = servables
        self._workers = workers
        self._renewals = renewals
        self._place = place
        self._end_fetchers = end_fetchers
        self._begin_again = begin_again
        self._stopping = stopping
        self._taken_up = False
        self._standing_in: set[WorkerId] = set()
        self._renewed = False
        self._error = ""

    # -- the control socket -----------------------------------------------------------------------

    async def reload(self, request: Message) -> Message:
        """The control op "reload": takes up "settings", or refuses them whole ("refused": key and text of each).

        With "check" it says what would change, and nothing does. Where another configuration has been taken up since "over",
        the digest of the one that there was, they may have been read before that one: they are to be read again ("overtaken").
        """
        if self._stopping():
            return {"error": "the pool is being stopped"}
        if self._taken_up:  # what this one is compared with is not what will be there
            return {"error": "another configuration is being taken up: ask again"}
        if request.get("over", present := digest(self._config)) != present:
            return {"overtaken": True}
        asked = msgspec.convert(request["settings"], PoolSettings, strict=False)
        changes = compare(self._config, asked)
        if changes.refused:
            return {"refused": [[found.key, found.text] for found in changes.refused]}
        config = merged(self._config, asked)
        if not changes and config.mps_daemons == self._config.mps_daemons:
            config = self._config
        answer = {
            "settings": digest(config),
            "lines": changes.lines(),
            "changed": [*changes.added, *changes.models],
            "failed": self._failed(),
        }
        if request.get("check") or (config is self._config and not self._error):
            return answer
        if self._renewals.turn.locked() and self._renewed:
            return {
                "error": "workers are being renewed by `mpspool mps set --restart`; wait until that is over"
            }
        self._taken_up = True
        try:
            # First, so that none runs on with what its settings say no more. Whoever begins again adds what is missing.
            await self._end_fetchers(abandoned(self._config, config))
            self._servables.try_again(_reworked(changes))
            settings_files.write(self._run, config)
        except SupervisordError as error:
            return {"error": f"nothing was changed: {error}"}
        finally:
            self._begin_again()
        logger.info(
            "reload", settings=answer["settings"], changes=[": ".join(line) for line in changes.lines()]
        )
        return answer

    async def reloaded(self, _request: Message) -> Message:
        """The control op "reloaded": which configuration there is, and what is missing until it holds everywhere."""
        return {
            "settings": digest(self._config),
            "waits": self._waits(),
            "failed": self._failed(),
            "served": self._servables.served(),
        }

    def _waits(self) -> list[str]:
        waits = self._servables.pending()
        waits += [f"{worker} has yet to leave" for worker in self._servables.surplus if not self._error]
        if not self._error:
            waits += [
                f"{worker} runs with its former settings" for worker in self._slots if self.stale(worker)
            ]
        for worker, slot in self._slots.items():
            if worker not in self._servables.surplus and _is_coming(slot):
                waits.append(f"{worker} is not READY")
        if not self._renewed:
            waits.append("the pool looks at its workers")
        return waits

    def _failed(self) -> list[tuple[str, str]]:
        """What does not come about: the model, and why."""
        found = self._servables.failed()
        found += [
            (worker.model, f"{worker} was given up: {slot.reason}")
            for worker, slot in self._slots.items()
            if slot.state is SlotState.FATAL
        ]
        return [*found, *([("", self._error)] if self._error else [])]

    # -- what the pool asks -----------------------------------------------------------------------

    def is_taken_up(self) -> bool:
        """Whether this pool has taken up a configuration, and makes room for the next one."""
        return self._taken_up

    def stale(self, worker: WorkerId) -> bool:
        """Whether a worker was started with other settings than its next generation gets, but for `mpspool mps set`."""
        slot_now = self._slots.get(worker)
        if worker in self._servables.surplus or slot_now is None or not slot_now.pid:
            return False  # what is started next has the new ones
        return self.differs(worker)

    def differs(self, worker: WorkerId) -> bool:
        """As stale(), whether its last generation runs or not."""
        last = self._workers.last(worker)
        if last is None:
            return False
        model, slot = self._workers.place(worker)
        slot = self._workers.overridden(worker).but_for(slot, last.slot)
        return renews(last, shares.settings_for(model, slot), slot)

    def leaving(self) -> set[WorkerId]:
        """The surplus slots that are to go now: what they make room for is there, and has what it needs."""
        surplus = self._servables.surplus - self._standing_in
        idle = {worker for worker in surplus if worker in self._slots and not self._slots[worker].pid}
        settled = {model for model in {worker.model_version for worker in surplus} if self._is_settled(model)}
        return idle | {worker for worker in surplus if worker.model_version in settled}

    def _is_settled(self, model: ModelVersion) -> bool:
        """Whether the slots that a version is to have make it AVAILABLE, and none of them is on its way."""
        version = self._servables.of(model.name).get(model.version)
        if version is None or version.phase is not VersionPhase.SERVING:
            return False
        mine = {
            worker: slot
            for worker, slot in self._slots.items()
            if worker.model_version == model and worker not in self._servables.surplus
        }
        if any(_is_coming(slot) for slot in mine.values()) or (
            not self._renewed and any(map(self.stale, mine))
        ):
            return False
        ready = sum(slot.state is SlotState.OCCUPIED for slot in mine.values())
        return ready >= self._servables.of(model.name).quorum

    # -- renewing ---------------------------------------------------------------------------------

    async def renew(self) -> None:
        """Renews what is stale, until nothing is, or one does not come back."""
        try:
            async with self._renewals.turn:
                while not self._error and (stale := next(filter(self.stale, list(self._slots)), None)):
                    await self._renew(stale)
        finally:
            self._renewed = True

    async def _renew(self, worker: WorkerId) -> None:
        other = await self._have_stand_in(worker)
        wrong = self._why_given_up(other)
        if not wrong:
            _, wrong = await self._renewals.renew_where(worker, self.stale, _WORDS)
        if other is not None:
            self._standing_in.discard(other)
        if wrong and worker in self._slots:
            self._error = f"{worker} {wrong}; workers after it run with what they had"
            logger.error("not renewed", worker=str(worker), why=wrong)

    def _why_given_up(self, stand_in: WorkerId | None) -> str:
        """Where a worker cannot even be started with the new settings, the one that serves is left alone."""
        slot = self._slots.get(stand_in) if stand_in is not None else None
        if slot is None or slot.state is not SlotState.FATAL:
            return ""
        return f"runs with its former settings, for with the new ones {stand_in} was given up: {slot.reason}"

    async def _have_stand_in(self, worker: WorkerId) -> WorkerId | None:
        """Has another worker serve where there is no other of this version; it leaves with what is surplus."""
        others = [other for other in self._slots if other.model_version == worker.model_version]
        if any(other != worker and self._slots[other].serves for other in others):
            return None
        other = self._servables.stand_in(worker)
        self._standing_in.add(other)
        self._place()
        if wrong := await self._renewals.why_unready(other):
            logger.warning("no other worker serves meanwhile", worker=str(worker), why=f"{other} {wrong}")
        return other


def _reworked(changes: Changes) -> list[str]:
    """The models of which a version that failed may not fail now."""
    return [
        name
        for name, found in changes.models.items()
        if found.renewed or found.slots_added or found.slots_renewed or _JUDGED.intersection(found.told)
    ]


def _is_coming(slot: Slot) -> bool:
    return slot.state is not SlotState.FATAL and not slot.serves
