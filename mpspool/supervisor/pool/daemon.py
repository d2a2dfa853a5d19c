"""The MPS daemon of one GPU, as the pool sees it: asked how its server fares, and held so that its end is known at once.

One of our own runs under a wrapper, supervisord's child; an external one is somebody else's: it has no wrapper, and is
never ended or started again by us.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mpspool.core import log, process
from mpspool.core.settings import MpsSettings
from mpspool.mps.control import Control, ControlError, NotAnsweringError
from mpspool.mps.external import elsewhere
from mpspool.mps.server_log import ServerLog
from mpspool.supervisor import programs
from mpspool.supervisor.pool.domain import Server

logger = log.get("gpus")

_FAULT = "FAULT"
_LOOK_S = 1.0
# For what the server writes of a fault about when it says that there is one, by way of what its daemon prints where it is
# ours. Routing stops within 0.1 s of that.
_NAMES_S = 0.05


@dataclass(frozen=True, slots=True)
class Answer:
    """What a daemon said: the status of each of its servers by pid, and who their clients are, if that was asked."""

    servers: Mapping[int, str]
    clients: frozenset[int] | None = None

    @property
    def server(self) -> Server:
        return Server.FAULT if _FAULT in self.servers.values() else Server.USABLE


class Daemon:
    """One MPS daemon.

    Attributes:
        wrapper: supervisord's child that stands for it; 0 while there is none, and for an external one.
        server: the MPS server that the GPU's workers are clients of, as far as is known.
    """

    def __init__(self, settings: MpsSettings) -> None:
        self._settings = settings
        self._log = ServerLog(Path(settings.server_log))
        self._pidfd = -1
        self._silent_since: float | None = None
        # Its own: a daemon that hangs holds up nobody else.
        self._asker = ThreadPoolExecutor(1, thread_name_prefix="mps")
        self._visible = False
        self._elsewhere = ""
        self._looked_at = -math.inf
        self.wrapper = 0
        self.server = 0

    @property
    def external(self) -> bool:
        return self._settings.external

    @property
    def pipe_dir(self) -> str:
        return self._settings.pipe_dir

    def where_logged(self) -> str:
        """For people: what it has to say."""
        if not self.external:
            return f"mpspool logs {programs.mps_program(self._settings.device)}"
        folder = self._settings.log_dir
        return f"control.log and server.log of that daemon, which is not ours (perhaps in {folder})"

    # -- its processes ----------------------------------------------------------------------------

    def hold(self, pid: int, on_end: Callable[[], None]) -> bool:
        """Holds another wrapper than before, 0 for none. False where it has ended already."""
        self.let_go()
        self.wrapper = pid
        if not pid:
            return True
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        asyncio.get_running_loop().add_reader(self._pidfd, self._ended, on_end)
        return True

    def let_go(self) -> None:
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
        self._pidfd, self.wrapper = -1, 0

    def _ended(self, on_end: Callable[[], None]) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        on_end()

    def restart(self) -> None:
        """By its own `quit`, which its wrapper turns a signal into; supervisord starts it again."""
        logger.warning("restarting the MPS daemon", device=self._settings.device)
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    # -- asking -----------------------------------------------------------------------------------

    async def ask(self, *, clients: bool = False) -> Answer | None:
        """None where it does not say."""
        control = Control.of(self._settings, os.environ)
        loop = asyncio.get_running_loop()
        try:
            answer = await loop.run_in_executor(self._asker, _ask, control, self.server, clients)
        except ControlError as error:
            if self._silent_since is None:
                device = self._settings.device
                logger.warning("the MPS daemon does not answer", device=device, error=str(error))
                self._silent_since = time.monotonic()
            return None
        self._silent_since = None
        return answer

    def silent_s(self) -> float:
        """For how long it has not answered."""
        return time.monotonic() - (self._silent_since or time.monotonic())

    def see_server(self, answer: Answer) -> int:
        """Remembers who the server is now. Returns the one that has ended since, 0 for none."""
        before = self.server
        self.server = next(iter(answer.servers), 0)
        self._visible = self.external and process.alive(self.server)
        return before if before not in answer.servers else 0

    def server_has_ended(self) -> bool:
        """Of one that does not answer and has no wrapper whose end would tell it. Said once."""
        if not self._visible or process.alive(self.server):
            return False
        self._visible = False
        return True

    async def why_unlisted(self) -> str:
        """What keeps it from listing any worker of ours for as long as it runs; "" for nothing."""
        if self.external and time.monotonic() - self._looked_at >= _LOOK_S:
            self._looked_at = time.monotonic()
            loop = asyncio.get_running_loop()
            self._elsewhere = await loop.run_in_executor(self._asker, elsewhere, self.pipe_dir)
        return self._elsewhere

    def hit(self) -> list[int]:
        """The pids that a fatal fault has hit, be it that its server is well again."""
        return self._log.fault().hit

    async def culprits(self) -> list[int]:
        """The pids that its server names for a fault that has just come about."""
        await asyncio.sleep(_NAMES_S)
        return self._log.fault().culprits

    def forget_faults(self) -> None:
        """What its server has said by now is of no later fault."""
        self._log.forget()


def _ask(control: Control, server: int, clients: bool) -> Answer:
    """Of the known server alone, while it is there. Raises ControlError, also where a server ends meanwhile."""
    statuses: dict[int, str] = {}
    if server:
        try:
            statuses[server] = control.server_status(server)
        except NotAnsweringError:
            raise
        except ControlError:
            pass  # it has ended, perhaps
    if not statuses:
        statuses = {pid: control.server_status(pid) for pid in control.server_list()}
    if not clients:
        return Answer(statuses)
    found = {pid for known in statuses for pid in control.client_list(known)}
    return Answer(statuses, frozenset(found))
