"""What a control daemon knows: its servers, their clients, and what the next ones get. Pure: no process, no socket.

One daemon serves one device.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from mpspool.mps.simulated.shares import Defaults, Share
from mpspool.mps.simulated.state import (
    MPS_CONNECTION_FAILED,
    MPS_MAX_CLIENTS_REACHED,
    MPS_SERVER_NOT_READY,
    ServerStatus,
)


class RefusedError(Exception):
    """A client that gets no server; `cuda_error` is what CUDA would tell it."""

    def __init__(self, cuda_error: int, message: str) -> None:
        super().__init__(message)
        self.cuda_error = cuda_error


@dataclass(frozen=True, slots=True)
class Client:
    """One context of one process, `number` its context id; `namespace` is the inode of its pid namespace."""

    pid: int
    number: int
    command: str
    namespace: int


@dataclass(slots=True)
class Server:
    """One MPS server.

    Attributes:
        share: the most that clients which come from now on can have.
        clients: by number.
        expected: clients that wait for it to be ready.
        retiring: it was told to end.
        clients_said: what it has said of its clients, for `simulate_clients`.
    """

    pid: int
    uid: int
    share: Share
    status: ServerStatus = ServerStatus.INITIALIZING
    clients: dict[int, Client] = field(default_factory=dict)
    expected: int = 0
    retiring: bool = False
    clients_said: list[dict[str, Any]] = field(default_factory=list)

    @property
    def client_pids(self) -> list[int]:
        """Each process once, in the order of its first context."""
        return list(dict.fromkeys(client.pid for client in self.clients.values()))

    @property
    def unused(self) -> bool:
        return not self.clients and not self.expected


class MpsState:
    """The servers of one daemon, by pid.

    Attributes:
        defaults: what servers and clients that come from now on are given.
        lost: the GPU is gone.
    """

    def __init__(self, device_uuid: str, max_clients: int, defaults: Defaults | None = None) -> None:
        self.device_uuid = device_uuid
        self.max_clients = max_clients
        self.defaults = defaults or Defaults()
        self.servers: dict[int, Server] = {}
        self.lost = False
        self._numbers = 0

    def server_for(self, uid: int) -> Server | None:
        """The server that a new client of this user belongs to, unless that is about to end."""
        return next(
            (server for server in self.servers.values() if server.uid == uid and not server.retiring), None
        )

    def in_the_way(self, uid: int) -> list[Server]:
        """The servers that must have ended before one can be started for this user.

        One user at a time: a server of another is asked to end once all its clients have left, and this user's
        clients wait until then. The other's go on coming to it meanwhile, so that a stranger who waits stops nobody.
        """
        return [server for server in self.servers.values() if server.uid != uid or server.retiring]

    def server_started(self, pid: int, uid: int) -> None:
        self.servers[pid] = Server(pid, uid, self.defaults.share(self.device_uuid))

    def share(self, server_pid: int) -> Share:
        """What a client that comes to this server now is given."""
        return replace(self.servers[server_pid].share, priority=self.defaults.priority)

    def server_moved(self, pid: int, status: ServerStatus) -> None:
        self.servers[pid].status = status

    def server_ended(self, pid: int) -> list[Client]:
        """Forgets the server and returns the clients it had."""
        server = self.servers.pop(pid, None)
        return list(server.clients.values()) if server else []

    def admit(self, server_pid: int, client_pid: int, command: str, namespace: int) -> Client:
        """Counts a new context in. Raises RefusedError where the server is gone, in FAULT or full."""
        server = self.servers.get(server_pid)
        if server is None:
            raise RefusedError(MPS_CONNECTION_FAILED, f"server {server_pid} is gone")
        if server.status is not ServerStatus.ACTIVE:
            raise RefusedError(MPS_SERVER_NOT_READY, f"server {server_pid} is in {server.status.value}")
        if len(server.clients) >= self.max_clients:
            raise RefusedError(MPS_MAX_CLIENTS_REACHED, f"all {self.max_clients} clients are connected")
        client = Client(client_pid, self._numbers, command, namespace)
        self._numbers += 1
        server.clients[client.number] = client
        return client

    def left(self, server_pid: int, number: int) -> Client | None:
        """Counts a context out; None for one that is out already."""
        server = self.servers.get(server_pid)
        return server.clients.pop(number, None) if server else None
