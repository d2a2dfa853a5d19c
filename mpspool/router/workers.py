"""The workers that said Hello: who is admitted, and when one counts as lost.

A thin shell around the liveness rule: it brings together what a worker says of itself with the kernel's
word on its process, a pidfd that tells its death and the progress page that outlives it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mpspool.core import log, messages, process
from mpspool.core.ids import ModelVersion, WorkerId
from mpspool.core.inbox import InboxWriter, Place
from mpspool.core.messages import INLINE_MAX_BYTES
from mpspool.core.progress import ProgressReader
from mpspool.core.states import WorkerState
from mpspool.core.weights import WeightsReport
from mpspool.router.link import Link
from mpspool.router.liveness import BEAT_TIMEOUT_NS, LOADING_BEAT_TIMEOUT_NS, hung
from mpspool.router.scheduling.suspicion import Blame

logger = log.get("workers")

# How often judge() is to be called.
JUDGE_S = 0.1
# After a pause of our own (a suspended machine, a throttled container) the workers' heartbeats are
# old through no fault of theirs: they get twice this long to beat again.
_PAUSE_NS = 500_000_000
_HANG_TIMEOUT_S = 30.0
# Bodies that are no longer stay in a dispatch's message, however many they are: to place them costs more than to copy them.
_SHORT_BYTES = 1024


@dataclass(slots=True, eq=False)
class Worker:
    """A worker process that said Hello.

    Attributes:
        identity: its address on the link, one for each generation of a slot.
        inbox: where the bodies go that it is sent, see pack(); None where it cannot be opened.
        path: of its version's folder.
        engine: what runs its model, known once it is READY.
        weights: where its variables lie, known once it is READY.
        served: requests that it answered.
        busy_us: what those took of its time.
        domain: the device that fails for all workers on it at once; "" where each fails by itself.
        failed: why it can use its device no more, in its own words.
        hung: why it counts as hung, "" while it does not.
    """

    identity: bytes
    id: WorkerId
    generation: int
    pid: int
    pidfd: int
    progress: ProgressReader
    inbox: InboxWriter | None = None
    state: WorkerState = WorkerState.STARTING
    path: str = ""
    engine: str = ""
    weights: WeightsReport = field(default_factory=WeightsReport)
    served: int = 0
    busy_us: int = 0
    domain: str = ""
    failed: str = ""
    hung: str = ""

    @property
    def name(self) -> str:
        return self.identity.decode()

    def pack(self, dispatch: int, bodies: list[bytes]) -> tuple[list[bytes | Place | None], list[bytes]]:
        """What stands for each body in a dispatch's message, and the frames that follow it.

        Bodies that together are long go to the inbox.
        """
        packed: list[bytes | Place | None] = list(bodies)
        frames: list[bytes] = []
        if sum(map(len, bodies)) <= INLINE_MAX_BYTES:
            return packed, frames
        placed = [index for index, body in enumerate(bodies) if len(body) > _SHORT_BYTES]
        places: Sequence[Place | None] = [None] * len(placed)
        if self.inbox is not None and placed:
            places = self.inbox.put(dispatch, [bodies[index] for index in placed])
        for index, place in zip(placed, places, strict=True):
            if place is not None:
                packed[index] = place
            elif len(bodies[index]) > INLINE_MAX_BYTES:
                packed[index] = None
                frames.append(bodies[index])
        return packed, frames

    def unpack(self, dispatch: int) -> None:
        """It has given a dispatch back."""
        if self.inbox is not None:
            self.inbox.release(dispatch)

    def close(self) -> None:
        os.close(self.pidfd)
        self.progress.close()
        if self.inbox is not None:
            self.inbox.close()

    def running(self) -> tuple[int, int] | None:
        """The (dispatch, index) that it runs, or ran when it died; None while it is idle."""
        progress = self.progress.read()
        return (progress.dispatch, progress.index) if progress.dispatch else None

    def running_s(self, now_ns: int) -> float:
        """How long it has been running its request; 0 while it is idle."""
        progress = self.progress.read()
        return max(0, now_ns - progress.started_ns) / 1e9 if progress.dispatch else 0.0


class Workers:
    """Every worker that is connected, and those that hang until their process has ended.

    Args:
        epoch: of this router: a worker that was not welcomed in it is a stranger.
        link: answers workers, and is drained before a death counts.
        lost: called with a worker, the reason, and what that says against what it ran, when its requests are
            to run elsewhere: once when it hangs or its device failed, and once when its process has ended or
            cannot be reached.

    Attributes:
        epoch: the same.
        hang_timeout_s: the least time a request may run before its worker counts as hung, by version.
    """

    def __init__(self, epoch: int, link: Link, lost: Callable[[Worker, str, Blame], None]) -> None:
        self.epoch = epoch
        self._link = link
        self._lost = lost
        self._workers: dict[bytes, Worker] = {}
        self._loop = asyncio.get_running_loop()
        self._judged_ns = time.monotonic_ns()
        self._paused_until_ns = 0
        self.hang_timeout_s: dict[ModelVersion, float] = {}

    def __iter__(self) -> Iterator[Worker]:
        return iter(list(self._workers.values()))

    def get(self, identity: bytes) -> Worker | None:
        return self._workers.get(identity)

    def sender(self, identity: bytes, epoch: int) -> Worker | None:
        """The worker that sent a message under `epoch`; a stranger is asked for a Hello instead."""
        worker = self._workers.get(identity)
        if worker is None or epoch != self.epoch:
            self._link.send(identity, messages.WhoAreYou(self.epoch), [])
            return None
        return worker

    def count(self, model: ModelVersion) -> tuple[int, int]:
        """Workers of a version, and those of them that are READY."""
        mine = [worker for worker in self if worker.id.model_version == model]
        return len(mine), sum(worker.state is WorkerState.READY for worker in mine)

    # -- admission --------------------------------------------------------------------------------

    def hello(self, identity: bytes, hello: messages.Hello) -> Worker | None:
        """Takes a Hello, which is the first or tells a new state.

        Returns:
            The worker if its state is new, None where nothing changed or it is not admitted.
        """
        worker = self._workers.get(identity) or self._admit(identity, hello)
        if worker is None:
            return None
        if hello.epoch != self.epoch:
            self._link.send(identity, messages.Welcome(self.epoch), [])
        state = WorkerState(hello.state)
        if worker.hung or state is worker.state:
            return None
        worker.state, worker.engine, worker.weights = state, hello.engine, hello.weights
        worker.failed = hello.failed
        return worker

    def _admit(self, identity: bytes, hello: messages.Hello) -> Worker | None:
        """Takes in a worker that was not known, or says why not."""
        if hello.protocol != messages.PROTOCOL:
            self._refuse(identity, f"you speak protocol {hello.protocol}, this router {messages.PROTOCOL}")
            return None
        if hello.epoch:  # known to a predecessor of ours: this Hello is not a full one
            self._link.send(identity, messages.WhoAreYou(self.epoch), [])
            return None
        worker_id = WorkerId.parse(hello.worker)
        for other in [worker for worker in self if worker.id == worker_id]:
            if other.generation > hello.generation:
                self._refuse(identity, f"generation {other.generation} has this slot")
                return None
            self.lose(other, "replaced")
        try:
            pidfd = os.pidfd_open(hello.pid)
        except ProcessLookupError:
            return None  # its last words
        try:
            progress = ProgressReader(Path(hello.progress))
        except OSError as error:
            os.close(pidfd)
            logger.warning("no progress page", worker=identity.decode(), error=str(error))
            return None
        worker = Worker(
            *(identity, worker_id, hello.generation, hello.pid, pidfd, progress, _inbox(hello)),
            domain=hello.domain,
            path=hello.loaded.path,
        )
        self._workers[identity] = worker
        self._loop.add_reader(pidfd, self._on_death, worker)
        return worker

    def _refuse(self, identity: bytes, reason: str) -> None:
        self._link.send(identity, messages.Refused(self.epoch, reason), [])

    # -- liveness ---------------------------------------------------------------------------------

    def judge(self, now_ns: int, predicted_us: Callable[[str], float | None]) -> None:
        """Loses those that hang. `predicted_us` gives what a worker's dispatch was predicted to cost."""
        if now_ns - self._judged_ns > JUDGE_S * 1e9 + _PAUSE_NS:
            self._paused_until_ns = now_ns + 2 * _PAUSE_NS
        self._judged_ns = now_ns
        if now_ns < self._paused_until_ns:
            return
        for worker in self:
            if not worker.hung and (reason := self._hung(worker, now_ns, predicted_us)):
                self.condemn(worker, reason, f"hangs: {reason}")

    def condemn(self, worker: Worker, reason: str, why: str, blame: Blame = Blame.SURELY) -> None:
        """Gives up a worker whose process is still there: nothing it says counts any more.

        Args:
            worker: not condemned yet.
            reason: what whoever ends it is told.
            why: the same, for the log.
            blame: what that says against what it runs.
        """
        worker.hung = reason
        worker.state = WorkerState.FAILED
        self._lost(worker, why, blame)

    def _hung(self, worker: Worker, now_ns: int, predicted_us: Callable[[str], float | None]) -> str:
        serves = worker.state in (WorkerState.READY, WorkerState.DRAINING)
        return hung(
            worker.progress.read(),
            lambda: process.stat(worker.pid),
            now_ns,
            predicted_us(worker.name),
            self.hang_timeout_s.get(worker.id.model_version, _HANG_TIMEOUT_S),
            BEAT_TIMEOUT_NS if serves else LOADING_BEAT_TIMEOUT_NS,
        )

    def _on_death(self, worker: Worker) -> None:
        self._link.drain()  # its last answers may be here already
        if self._workers.get(worker.identity) is worker:
            self.lose(worker, "died")

    def lose(self, worker: Worker, why: str) -> None:
        """Forgets a worker whose process has ended."""
        del self._workers[worker.identity]
        self._loop.remove_reader(worker.pidfd)
        self._lost(worker, why, Blame.PERHAPS)
        worker.close()

    def close(self) -> None:
        for worker in self:
            self._loop.remove_reader(worker.pidfd)
            worker.close()


def _inbox(hello: messages.Hello) -> InboxWriter | None:
    if not hello.inbox:
        return None
    try:
        return InboxWriter(hello.inbox)
    except (OSError, ValueError) as error:
        logger.warning("bodies of requests go by the socket", worker=hello.worker, error=str(error))
        return None
