"""One GPU as a fault domain: what befalls it, and what is to be done about that. Pure.

A fatal fault hits every client of the GPU's MPS server, and the server takes new ones only after all it hit have
ended. So they are ended together, and come back one after another once the server, or a new daemon in its place,
takes clients again. Faults in a row make the GPU wait longer each time, as slots do; a GPU whose server does not
come back is lost, as is one that the driver says is gone: nothing is started on it any more.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from mpspool.core.settings import RestartSettings
from mpspool.core.states import DOMAIN_MOVES, DomainState, Lifecycle
from mpspool.supervisor.pool.slots import delay_s

# A GPU that has served this long since its last fault is as good as new.
PROVEN_S = 60.0
# How long a server that has lost its last client may take to be ACTIVE again; and how long anything else may take: a
# daemon to answer, or to be there again, a client to end.
REBUILD_S = 3.0
SILENT_S = 30.0
MAX_DAEMON_RESTARTS = 3


class Server(enum.Enum):
    """What the MPS daemon says of its server."""

    USABLE = "USABLE"  # ACTIVE, starting, or to be started with the next client
    FAULT = "FAULT"
    SILENT = "SILENT"  # nobody answers


@dataclass(frozen=True, slots=True)
class RestartDaemon:
    """Its server does not come back by itself."""


@dataclass(frozen=True, slots=True)
class AwaitDaemon:
    """Its server does not come back by itself, and its daemon is not ours: whoever runs that has to see to it."""


class Domain:
    """A GPU's state, moved by what is seen of it.

    Args:
        name: the device, "gpu0".
        restart: how long it waits after faults in a row.
        own_daemon: its MPS daemon can be started again by us; one that cannot is waited for as long as it takes.

    Attributes:
        reason: why it is FAULTED, RECOVERING or LOST; "" while it serves.
        faults: how often it was FAULTED or LOST.
    """

    def __init__(self, name: str, restart: RestartSettings, *, own_daemon: bool = True) -> None:
        self._life = Lifecycle(name, DOMAIN_MOVES, DomainState.SERVING)
        self._restart = restart
        self._row = 0
        self._due = 0.0
        self._served_since = 0.0
        self._waiting: tuple[str, float] | None = None  # what for, since when
        self._own_daemon = own_daemon
        self._daemon_restarts = 0
        self._awaiting = False
        self.reason = ""
        self.faults = 0

    @property
    def state(self) -> DomainState:
        return self._life.state

    def fault(self, reason: str, now: float) -> bool:
        """A fault that hits all clients. False where it is no news: they are being ended already."""
        if self.state not in (DomainState.SERVING, DomainState.RECOVERING):
            return False
        if self.state is DomainState.SERVING and now - self._served_since >= PROVEN_S:
            self._row = 0
        self._row += 1
        self.faults += 1
        self._due = now + delay_s(self._row, self._restart)
        self._waiting = None
        self._daemon_restarts = 0
        self._awaiting = False
        self._to(DomainState.FAULTED, reason)
        return True

    def lost(self, reason: str) -> bool:
        """The GPU is gone for good. False where that is known."""
        if self.state is DomainState.LOST:
            return False
        self.faults += self.state is not DomainState.FAULTED
        self._to(DomainState.LOST, reason)
        return True

    def tick(self, now: float, clients: int, server: Server) -> RestartDaemon | AwaitDaemon | None:
        """Moves a FAULTED domain on.

        Args:
            now: seconds of any clock, the same throughout.
            clients: workers on the GPU whose processes are still there.
            server: what the daemon says.

        Returns:
            What to do for it, once.
        """
        if self.state is not DomainState.FAULTED:
            return None
        if not clients and server is Server.USABLE:
            if now >= self._due:
                self._to(DomainState.RECOVERING, self.reason)
            return None
        waits_for = "clients" if clients else server.value
        if self._waiting is None or self._waiting[0] != waits_for:
            self._waiting = waits_for, now
        rebuilds = not clients and server is Server.FAULT and not self._daemon_restarts
        if now - self._waiting[1] < (REBUILD_S if rebuilds else SILENT_S):
            return None
        if not self._own_daemon:
            awaiting, self._awaiting = self._awaiting, True
            return None if awaiting else AwaitDaemon()
        self._waiting = None
        if self._daemon_restarts == MAX_DAEMON_RESTARTS:
            again = f"{MAX_DAEMON_RESTARTS} restarts of its MPS daemon did not help"
            self.lost(f"{self.reason}; {again}: the GPU may need a reset")
            return None
        self._daemon_restarts += 1
        return RestartDaemon()

    def recovered(self, now: float) -> None:
        """Every slot on it has a READY worker again, or never will. Repeating it changes nothing."""
        if self.state is DomainState.RECOVERING:
            self._served_since = now
            self._to(DomainState.SERVING, "")

    def _to(self, state: DomainState, reason: str) -> None:
        self._life.to(state, reason or "recovered")
        self.reason = reason
