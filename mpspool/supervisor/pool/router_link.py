"""The router as the pool process sees it: its snapshots, what it was told, and what it is asked."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mpspool.core import log
from mpspool.core.control import ControlError, Message, acall, astream
from mpspool.core.ids import ModelVersion
from mpspool.core.rundir import RunDir
from mpspool.core.states import ModelVersionState
from mpspool.supervisor.pool.kept import Kept
from mpspool.supervisor.pool.reconcile import WorkerReport, worker_reports

logger = log.get("pool")

_RECONNECT_S = 0.1
_SETTLE_S = 1.0
# For its present word; after that its last one does.
_ANSWER_S = 0.5
# It says something once a second.
_BREAK_S = 5.0


class RouterLink:
    """The pool process' end of the router's control socket.

    Args:
        run: where that is.
        take: is given each snapshot's reports of workers, and whether it is the first of this connection.
        look: called when there is something to reconcile.

    Attributes:
        snapshot: the last one; None while the router is not there.
        heard_at: when it said something last, by time.monotonic(); 0 before.
    """

    def __init__(
        self,
        run: RunDir,
        take: Callable[[Mapping[str, WorkerReport], bool], None],
        look: Callable[[], None],
    ) -> None:
        self._run = run
        self._models = Kept(run.router_models)
        self._take = take
        self._look = look
        self.snapshot: Message | None = None
        self.heard_at = self._heard_since = 0.0
        self._told: Message | None = None
        self._settled = asyncio.Event()

    async def follow(self) -> None:
        """Its snapshots, for ever. While it is not there, supervisord is made to look after it."""
        while True:
            with contextlib.suppress(ControlError, ValueError):
                async with contextlib.aclosing(astream(self._run.router_control, "watch")) as snapshots:
                    async for snapshot in snapshots:
                        self._hear(snapshot)
            if self.snapshot is not None:
                logger.warning("the router went away")
            self.snapshot = self._told = None
            self._look()
            await asyncio.sleep(_RECONNECT_S)

    def _hear(self, snapshot: Message) -> None:
        before, after = self.reports(), worker_reports(snapshot)
        new = self.snapshot is None
        if self.heard_since() is None:
            self._heard_since = time.monotonic()
        self.heard_at = time.monotonic()
        self.snapshot = snapshot
        self._take(after, new)
        self._settled.set()
        if new or _essences(before) != _essences(after):
            self._look()

    def heard_since(self) -> float | None:
        """Since when without a break, on its side or on ours, by time.monotonic(); None while it is silent."""
        silent = self.snapshot is None or time.monotonic() - self.heard_at > _BREAK_S
        return None if silent else self._heard_since

    def reports(self) -> Mapping[str, WorkerReport]:
        """What it says of the workers, by their ids."""
        return worker_reports(self.snapshot)

    def idle(self) -> set[ModelVersion]:
        """The versions that it sends nothing any more, and that nothing waits for."""
        return {
            ModelVersion(model["name"], version["version"])
            for model in (self.snapshot or {}).get("models", ())
            for version in model["versions"]
            if version["state"] == ModelVersionState.UNLOADING.name and not version["queued"]
        }

    async def first_word(self) -> None:
        """Waits until it has had its say, though not long, and once only."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                await self._settled.wait()
        self._settled.set()

    async def present(self) -> Message | None:
        """A snapshot of this moment; the last one where it does not answer soon."""
        with contextlib.suppress(ControlError, ValueError):
            return await acall(self._run.router_control, "snapshot", timeout_s=_ANSWER_S)
        return self.snapshot

    async def ask(self, op: str, **arguments: Any) -> None:
        """A call whose answer says nothing; a router that is not there is not told."""
        with contextlib.suppress(ControlError, ValueError):
            await acall(self._run.router_control, op, **arguments)

    async def signatures(self, model: ModelVersion) -> bytes:
        """A serialised SignatureDefMap; nothing while it does not know. Raises ControlError."""
        asked = {"model": model.name, "version": model.version}
        answer = await acall(self._run.router_control, "signatures", timeout_s=_ANSWER_S, **asked)
        return base64.b64decode(answer["signatures"])

    def knows(self, message: Message) -> bool:
        """Whether that is what it was told last."""
        return message == self._told

    async def tell(self, message: Message) -> None:
        """What should exist; nothing is sent where it has been told the same. Its successor finds it in a file."""
        if self.knows(message):
            self._models.again()
            return
        self._models.save(msgspec.json.encode(message))
        with contextlib.suppress(ControlError):
            await acall(self._run.router_control, "models", **message)
            self._told = message

    async def drain(self, timeout_s: float) -> int:
        """Has it finish what it has. Returns how many requests were not answered in time."""
        with contextlib.suppress(ControlError, TimeoutError):
            async with (
                asyncio.timeout(timeout_s + 1),
                contextlib.aclosing(
                    astream(self._run.router_control, "drain", timeout_s=timeout_s)
                ) as answers,
            ):
                async for answer in answers:
                    logger.info("router drained", left=answer["left"])
                    return int(answer["left"])
        return 0


def _essences(reports: Mapping[str, WorkerReport]) -> dict[str, tuple[int, int, str, str]]:
    """What of them can make a difference to the slots."""
    return {
        name: (report.generation, report.pid, report.state, report.hung) for name, report in reports.items()
    }
