"""The segments of the model versions: published once, kept by descriptor, handed to every worker.

Whoever holds a descriptor keeps the segment alive: this process, and each worker that has mapped it. A
pool process that was killed gets it back from any worker that lives, and only without one publishes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from mpspool.core import log, segment_file, settings, weights
from mpspool.core.ids import ModelVersion
from mpspool.core.rundir import RunDir, write_file
from mpspool.core.settings import ModelSettings, PoolSettings, PublishSettings
from mpspool.core.states import SlotState
from mpspool.supervisor import programs
from mpspool.supervisor.pool.slots import Slot
from mpspool.supervisor.supervisord import Fault, Supervisord, SupervisordError

logger = log.get("weights")

_BACKLOG = 128
# Both sides send all they have to say at once.
_ANSWER_S = 10.0
# Of the thread that frees a segment.
_FREES_NICE = 10


@dataclass(slots=True)
class _Version:
    """One model version's weights.

    Attributes:
        publisher: the life of the process that publishes them, as a worker's slot has it.
        wanted: whether a worker of it is to run, or asks.
        descriptor: the segment's; None while there is none.
        private: why there will be none, and each worker reads the checkpoint for itself.
        settled: set once there is a segment, a reason for none, or no hope.
    """

    model: ModelSettings
    publisher: Slot
    wanted: bool = False
    descriptor: int | None = None
    private: str = ""
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def failed(self) -> str:
        """Why it can never be served, "" while it can."""
        return self.publisher.reason if self.publisher.state is SlotState.FATAL else ""


class Weights:
    """Has weights published when a worker needs them, and hands them out.

    Args:
        living: the pids of a version's workers.
        on_change: called when a version's weights are wanted by a worker, or have come.
    """

    def __init__(
        self,
        run: RunDir,
        config: PoolSettings,
        supervisord: Supervisord,
        living: Callable[[ModelVersion], Iterable[int]],
        on_change: Callable[[], None],
    ) -> None:
        self._run = run
        self._restart = config.restart
        self._supervisord = supervisord
        self._living = living
        self._on_change = on_change
        self._versions: dict[ModelVersion, _Version] = {}
        self._listener: socket.socket | None = None
        self._answering: set[asyncio.Task[None]] = set()

    # -- which versions there are -------------------------------------------------------------

    def add(self, model: ModelSettings) -> None:
        """A version that is to be served; what was known of it before counts no more."""
        version = ModelVersion(model.name, model.version)
        self.remove(version)
        if model.weights.shared != "off":
            publisher = Slot(version.publisher, self._restart, start_timeout_s=model.start_timeout_s)
            self._versions[version] = _Version(model, publisher)

    def versions(self) -> set[ModelVersion]:
        """Those that were added, and not removed, but for those whose weights are not shared."""
        return set(self._versions)

    def remove(self, model: ModelVersion) -> None:
        """A version whose workers have gone: its weights go with the last that holds them."""
        version = self._versions.pop(model, None)
        if version is not None:
            _free(version.descriptor)
            version.descriptor, version.private = None, "it is not served any more"
            version.settled.set()

    # -- what the pool asks -----------------------------------------------------------------------

    def missing(self) -> dict[ModelVersion, str]:
        """The versions whose weights are not there: why they can never be had, "" while they may."""
        return {
            model: version.failed
            for model, version in self._versions.items()
            if version.failed or not version.settled.is_set()
        }

    def publishers(self) -> dict[ModelVersion, Slot]:
        """The slots of the publishers that have something to do."""
        return {
            model: version.publisher
            for model, version in self._versions.items()
            if version.wanted and not version.settled.is_set()
        }

    def want(self, model: ModelVersion) -> bool:
        """Has the weights published, if nobody holds them. Returns False where that was known already."""
        version = self._versions[model]
        new = not version.wanted
        version.wanted = True
        return new

    # -- publishers -------------------------------------------------------------------------------

    async def start(self, model: ModelVersion, generation: int, *, gives_way: bool) -> None:
        """Takes the segment from a living worker, or else starts the publisher.

        Args:
            model: whose weights are wanted.
            generation: of the publisher.
            gives_way: whether the publisher leaves the processors to those that serve.

        Raises:
            SupervisordError: it could not be asked; a publisher that it cannot start has ended.
        """
        version = self._versions[model]
        if not self._recover(model, version):
            await self._publish(model, version, generation, gives_way=gives_way)

    def adopt(self, model: ModelVersion, pid: int) -> None:
        """A predecessor of ours has started this publisher."""
        slot = self._versions[model].publisher
        slot.started(pid, slot.generation + 1, time.monotonic())

    def ended(self, model: ModelVersion, status: int) -> None:
        """The publisher has ended without having handed over anything."""
        version = self._versions[model]
        reason = self._run.last_words(model.publisher)
        reason = reason or f"its weights could not be published: the publisher ended with status {status}"
        version.publisher.ended(status, time.monotonic(), reason)
        logger.warning("not published", model=str(model), reason=reason)
        if version.failed:
            version.settled.set()

    def end_hung(self, model: ModelVersion, pid: int, reason: str) -> None:
        """Kills the publisher, which counts as any other end."""
        logger.warning("publisher hangs", model=str(model), pid=pid, reason=reason)
        self._run.set_last_words(model.publisher, f"hung and killed: {reason}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _recover(self, model: ModelVersion, version: _Version) -> bool:
        for pid in self._living(model):
            if (descriptor := segment_file.find(pid, model)) is not None:
                logger.info("taken from a living worker", model=str(model), pid=pid)
                self._settle(version, descriptor, "")
                return True
        return False

    async def _publish(
        self, model: ModelVersion, version: _Version, generation: int, *, gives_way: bool
    ) -> None:
        self._run.set_last_words(model.publisher, "")
        settings.save(
            self._run.settings_file(model.publisher),
            PublishSettings(
                run_dir=str(self._run.root), model=msgspec.structs.replace(version.model, slots=[])
            ),
        )
        write_file(
            programs.conf_file(self._run, model.publisher),
            programs.publisher_conf(self._run, model, gives_way=gives_way).encode(),
        )
        pid = 0
        try:
            await self._forget(model)
            await self._supervisord.add([model.publisher])
            pid = await self._supervisord.start(model.publisher)
        except SupervisordError as error:
            if error.fault == Fault.SHUTDOWN_STATE:
                raise
            self._run.set_last_words(model.publisher, str(error))
        version.publisher.started(pid, generation, time.monotonic())
        logger.info("publishing", model=str(model), pid=pid, gives_way=gives_way)

    async def _forget(self, model: ModelVersion) -> None:
        """Has supervisord forget how the publisher was started before, unless one runs that nobody has seen yet."""
        try:
            await self._supervisord.remove(model.publisher)
        except SupervisordError as error:
            if error.fault != Fault.STILL_RUNNING:
                raise

    def _settle(self, version: _Version, descriptor: int | None, private: str) -> None:
        if version.settled.is_set():  # of a publisher that was started twice: the first one's holds
            _close(descriptor)
            return
        version.descriptor, version.private = descriptor, private
        version.settled.set()
        self._on_change()

    # -- the socket -------------------------------------------------------------------------------

    def listen(self) -> None:
        """Raises OSError."""
        self._run.weights_socket.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._listener.bind(str(self._run.weights_socket))
        self._run.weights_socket.chmod(0o600)
        self._listener.listen(_BACKLOG)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.settimeout(_ANSWER_S)
        task = asyncio.create_task(self._serve(connection))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                message, descriptor = await asyncio.to_thread(weights.receive, connection)
                answer, segment = await self._answer(message, descriptor)
                weights.send(connection, answer, segment)
            except (OSError, msgspec.DecodeError) as error:
                logger.warning("weights socket", error=str(error))

    async def _answer(
        self, message: weights.Message, descriptor: int | None
    ) -> tuple[weights.Message, int | None]:
        """Raises OSError for what cannot be answered."""
        match message:
            case weights.Offer(name, number, reason):
                version = self._versions.get(ModelVersion(name, number))
                if version is None or (descriptor is None and not reason):
                    _close(descriptor)
                    raise OSError(f"{name}@{number} was offered, which nobody needs")
                self._settle(version, descriptor, reason)
                return weights.Taken(), None
            case weights.Want(name, number):
                _close(descriptor)
                version = self._versions.get(ModelVersion(name, number))
                if version is None:
                    return weights.Offer(name, number, "weights.shared: off"), None
                if self.want(ModelVersion(name, number)):
                    self._on_change()
                await version.settled.wait()
                reason = version.private or version.failed
                return weights.Offer(name, number, reason, bool(version.failed)), version.descriptor
        raise OSError(f"{message} is an answer, not a question")

    def close(self) -> None:
        """The segments stay with the workers."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        for task in self._answering:
            task.cancel()
        for version in self._versions.values():
            if version.descriptor is not None:
                os.close(version.descriptor)


def _free(descriptor: int | None) -> None:
    """Closes it beside all else: whoever closes a segment last frees it, a tenth of a second a gigabyte."""
    if descriptor is not None:
        threading.Thread(target=_close_giving_way, args=(descriptor,), name="free", daemon=True).start()


def _close_giving_way(descriptor: int) -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _FREES_NICE)
    os.close(descriptor)


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)
