"""The MPS server as a state machine: what befalls its clients, and what becomes of it. Pure: no process, no socket.

A client is a CUDA context, so a process may count more than once; the `number` of a client is its context id.

- A fatal fault hits every client: each is told, and is of no use from then on. New ones are refused until all it
  hit have left; then the server rebuilds itself.
- A client whose process ends while its work runs takes the server with it: that never comes back.
- terminate_client takes a client off without harm to anybody, whatever it does.

Source: NVIDIA's "Multi-Process Service", "Memory Protection and Error Containment" and "Client Early Termination";
what a client that is shot leaves behind is undefined there, and the worst here.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from mpspool.core.states import Lifecycle
from mpspool.mps.simulated import shares
from mpspool.mps.simulated.shares import Share

# CUDA's error numbers.
ECC_UNCORRECTABLE = 214
ILLEGAL_ADDRESS = 700
LAUNCH_FAILED = 719
MPS_CONNECTION_FAILED = 805
MPS_SERVER_NOT_READY = 807
MPS_MAX_CLIENTS_REACHED = 808
MPS_CLIENT_TERMINATED = 810

# The driver's event numbers.
XID_GRAPHICS_EXCEPTION = 13
XID_MEMORY_FAULT = 31
XID_OFF_THE_BUS = 79
XID_CONTAINED_MEMORY_ERROR = 94

_TEXTS = {
    ECC_UNCORRECTABLE: "uncorrectable ECC error encountered",
    ILLEGAL_ADDRESS: "an illegal memory access was encountered",
    LAUNCH_FAILED: "unspecified launch failure",
    MPS_SERVER_NOT_READY: "MPS server is not ready to accept new MPS client requests",
    MPS_CLIENT_TERMINATED: "client terminated",
}
_XIDS = {ILLEGAL_ADDRESS: XID_MEMORY_FAULT, ECC_UNCORRECTABLE: XID_CONTAINED_MEMORY_ERROR}


class ServerStatus(enum.Enum):
    """As get_server_status prints it."""

    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    FAULT = "FAULT"


SERVER_MOVES: Mapping[ServerStatus, frozenset[ServerStatus]] = {
    ServerStatus.INITIALIZING: frozenset({ServerStatus.ACTIVE, ServerStatus.FAULT}),
    ServerStatus.ACTIVE: frozenset({ServerStatus.FAULT}),
    ServerStatus.FAULT: frozenset({ServerStatus.INITIALIZING}),
}


class ClientState(enum.Enum):
    """What a client does; FAULT is for good. Whether its work would ever return is a field beside it."""

    IDLE = "IDLE"
    BUSY = "BUSY"
    FAULT = "FAULT"


@dataclass(frozen=True, slots=True)
class Say:
    """Send this line to the client."""

    number: int
    line: str


@dataclass(frozen=True, slots=True)
class Cut:
    """Close the client's connection: it is no client any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Log:
    """Write a line."""

    message: str


@dataclass(frozen=True, slots=True)
class Xid:
    """Have the driver report this event."""

    xid: int


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Make the GPU's contexts anew, then call ready()."""


Order = Say | Cut | Log | Xid | Rebuild


@dataclass(slots=True)
class Client:
    """One context of one process.

    Attributes:
        number: its context id.
        share: what it was given when it came; nothing changes that later.
        running: pieces of work on the GPU.
        hit: a fatal fault has hit it.
        wedged: its work never returns.
        said: it has sent a line.
    """

    pid: int
    number: int
    share: Share
    running: int = 0
    hit: bool = False
    wedged: bool = False
    said: bool = False

    @property
    def state(self) -> ClientState:
        if self.hit:
            return ClientState.FAULT
        return ClientState.BUSY if self.running else ClientState.IDLE

    @property
    def name(self) -> str:
        """As the server writes of it."""
        return f"{{PID: {self.pid}, Context ID: {self.number}}}"


@dataclass(slots=True)
class ServerState:
    """One server and its clients, by number.

    Each method takes something that has happened and returns what is to be done about it, in that order.

    Attributes:
        pid: the server's.
        broken: why it never comes back; "" while it may.
    """

    pid: int
    clients: dict[int, Client] = field(default_factory=dict)
    broken: str = ""
    _life: Lifecycle[ServerStatus] = field(
        default_factory=lambda: Lifecycle("MPS server", SERVER_MOVES, ServerStatus.INITIALIZING)
    )

    @property
    def status(self) -> ServerStatus:
        return self._life.state

    @property
    def busy(self) -> bool:
        """Whether anything runs on the GPU."""
        return any(client.state is ClientState.BUSY for client in self.clients.values())

    def ready(self) -> list[Order]:
        """It can take clients."""
        self._life.to(ServerStatus.ACTIVE, "ready")
        return [Log("Server is ACTIVE")]

    def attach(self, pid: int, number: int, share: Share) -> list[Order]:
        """A client has come; one that comes while the server cannot take it is refused and cut off."""
        if self.status is not ServerStatus.ACTIVE:
            return [Say(number, refusal(MPS_SERVER_NOT_READY)), Cut(number)]
        client = self.clients[number] = Client(pid, number, share)
        return [
            Log(f"Received new client request for {client.name}"),
            Log(f"Client {client.name} connected"),
            Log(f"Creating worker thread for client {client.name}"),
            Log(f"Status of client {client.name} is ACTIVE"),
            Say(number, f"CONNECTED {self.pid}\n"),
        ]

    def hear(self, number: int, line: str) -> list[Order]:
        """A client has said something. What it must not say is logged, and changes nothing."""
        client = self.clients[number]
        first, client.said = not client.said, True
        match line.split():
            case ["BUSY"]:
                client.running += 1
            case ["IDLE"] if client.running:
                client.running -= 1
            case ["FAULT", error] if error.isdigit():
                return [] if client.hit else self._fault(int(error), client.pid)
            case ["WANTS", *words] if first:
                try:
                    client.share = client.share.lowered(shares.wish(words))
                except ValueError as wrong:
                    return [Log(f"Client {client.name} wants what cannot be had: {wrong}")]
            case _:
                return [Log(f"Client {client.name} said {line!r}, which means nothing now")]
        return []

    def left(self, number: int) -> list[Order]:
        """A client's connection has ended."""
        client = self.clients.pop(number)
        if client.state is not ClientState.BUSY:
            return [Log(_exit_text(client)), *self._see_all_left()]
        # Driver 580 on an H200 came back from this; that it may be for good is what others report.
        self.broken = f"client {client.pid} ended while its work ran"
        return [Log(f"Client {client.name} ended while its work ran"), *self._hit_all(LAUNCH_FAILED)]

    def terminate(self, pid: int) -> list[Order]:
        """Every context of that process is cut off; one whose work runs is told why."""
        orders: list[Order] = []
        for client in [client for client in self.clients.values() if client.pid == pid]:
            orders.append(Log(f"Client {client.name} terminated"))
            if client.state is ClientState.BUSY:
                orders.append(Say(client.number, _fault_line(MPS_CLIENT_TERMINATED)))
            orders.append(Cut(client.number))
            del self.clients[client.number]
        return orders + self._see_all_left()

    def fault(self, culprit: int | None = None) -> list[Order]:
        """A fatal fault, of the process `culprit` where that is known."""
        return self._fault(LAUNCH_FAILED if culprit is None else ILLEGAL_ADDRESS, culprit)

    def ecc_error(self, pid: int | None = None) -> list[Order]:
        """The memory of that process, by default the first client's, has an error that cannot be corrected."""
        first = next((client.pid for client in self.clients.values()), None)
        return self._fault(ECC_UNCORRECTABLE, first if pid is None else pid)

    def wedge(self, pid: int) -> list[Order]:
        """The work of that process never returns from now on; nobody else is hurt, and nothing is logged."""
        orders: list[Order] = []
        for client in self.clients.values():
            if client.pid == pid and not client.hit:
                client.wedged = True
                orders.append(Say(client.number, "WEDGED\n"))
        return orders

    def lose_gpu(self) -> list[Order]:
        """The GPU has fallen off the bus."""
        self.broken = "the GPU is lost"
        return [Xid(XID_OFF_THE_BUS), Log("GPU is lost"), *self._hit_all(LAUNCH_FAILED)]

    def _fault(self, error: int, culprit: int | None) -> list[Order]:
        if self.status is ServerStatus.FAULT:
            return []
        # NVIDIA documents that the culprit is named. Driver 580 has other words, for whoever notices first.
        kind = "memory fault" if error == ILLEGAL_ADDRESS else "fault"
        first = list(self.clients.values())[:1]
        # An error of the GPU's memory is nobody's doing.
        blamed = None if error == ECC_UNCORRECTABLE else culprit
        named = [client for client in self.clients.values() if client.pid == blamed]
        return [
            Xid(_XIDS.get(error, XID_GRAPHICS_EXCEPTION)),
            *(Log(f"Client {client.name} encountered a fatal GPU error.") for client in first),
            Log("Server is handling a fatal GPU error."),
            *(Log(f"Client {client.name} triggered a fatal GPU {kind}") for client in named),
            *(Log(f"Client {client.name} on device 0 to be torn down") for client in self.clients.values()),
            *map(Log, ("The following devices will be reset:", "0")),
            Log("The following client process have a sticky error set:"),
            *(Log(str(pid)) for pid in dict.fromkeys(client.pid for client in self.clients.values())),
            *self._hit_all(error, culprit),
            *self._see_all_left(),
        ]

    def _hit_all(self, error: int, culprit: int | None = None) -> list[Order]:
        """To FAULT, with every client that was not hit: all by a bad access, others by what reaches them of it."""
        if self.status is not ServerStatus.FAULT:
            self._life.to(ServerStatus.FAULT, self.broken or f"error {error}")
        own = error == ILLEGAL_ADDRESS
        hit = [client for client in self.clients.values() if not client.hit]
        for client in hit:
            client.hit = True
        return [
            Say(client.number, _fault_line(error if own or client.pid == culprit else LAUNCH_FAILED))
            for client in hit
        ]

    def _see_all_left(self) -> list[Order]:
        if self.status is not ServerStatus.FAULT or self.clients or self.broken:
            return []
        self._life.to(ServerStatus.INITIALIZING, "all clients have left")
        return [
            Log("Destroy server context on device 0"),
            Log("Creating server context on device 0"),
            Rebuild(),
        ]


def refusal(error: int, text: str = "") -> str:
    """What a client that gets no server is told."""
    return f"REFUSED {error} SIMULATED {text or _TEXTS[error]}\n"


def _fault_line(error: int) -> str:
    return f"FAULT {error} SIMULATED {_TEXTS.get(error, 'a fatal fault')}\n"


def _exit_text(client: Client) -> str:
    """The driver's own, with its spelling: an ordinary end."""
    return f"Server failed to recevie command with status 806, assuming client {client.name} exit"
