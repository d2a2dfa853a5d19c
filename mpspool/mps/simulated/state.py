"""What a control daemon knows: its servers, their clients and status. Pure: no process, no socket.

One daemon serves one device. A client is a CUDA context, so a process may count more than once; the
`number` of a client is its context id, unique within its server.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

# CUDA's error numbers, which the documentation names for a client that cannot have a server.
MPS_CONNECTION_FAILED = 805
MPS_MAX_CLIENTS_REACHED = 808


class ServerStatus(enum.Enum):
    """As get_server_status prints it."""

    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"


class RefusedError(Exception):
    """A client that gets no server; `cuda_error` is what CUDA would tell it."""

    def __init__(self, cuda_error: int, message: str) -> None:
        super().__init__(message)
        self.cuda_error = cuda_error


@dataclass(frozen=True, slots=True)
class Client:
    """One context of one process. `namespace` is the inode of its pid namespace."""

    pid: int
    number: int
    command: str
    namespace: int


@dataclass(slots=True)
class Server:
    """One MPS server; `clients` by number."""

    pid: int
    uid: int
    status: ServerStatus = ServerStatus.INITIALIZING
    clients: dict[int, Client] = field(default_factory=dict)

    @property
    def client_pids(self) -> list[int]:
        """Each process once, in the order of its first context."""
        return list(dict.fromkeys(client.pid for client in self.clients.values()))


class MpsState:
    """The servers of one daemon, by pid."""

    def __init__(self, device_uuid: str, max_clients: int) -> None:
        self.device_uuid = device_uuid
        self.max_clients = max_clients
        self.default_active_thread_percentage = 100.0
        self.servers: dict[int, Server] = {}
        self._numbers = 0

    def server_for(self, uid: int) -> Server | None:
        """The server that a new client of this user belongs to; None where one must be started."""
        return next((server for server in self.servers.values() if server.uid == uid), None)

    def server_started(self, pid: int, uid: int) -> None:
        self.servers[pid] = Server(pid, uid)

    def server_ready(self, pid: int) -> None:
        self.servers[pid].status = ServerStatus.ACTIVE

    def server_ended(self, pid: int) -> list[Client]:
        """Forgets the server and returns the clients it had."""
        server = self.servers.pop(pid, None)
        return list(server.clients.values()) if server else []

    def admit(self, server_pid: int, client_pid: int, command: str, namespace: int) -> Client:
        """Counts a new context in. Raises RefusedError where the server is gone or full."""
        server = self.servers.get(server_pid)
        if server is None:
            raise RefusedError(MPS_CONNECTION_FAILED, f"server {server_pid} is gone")
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
