"""The control daemon's commands: a line in, a text and what to do about it out. Pure.

Names and arguments are NVIDIA's ("Multi-Process Service", nvidia-cuda-mps-control and "Client Early Termination"). Answers,
lists and refusals are as driver 580's daemon has them, for which a refusal is an answer like any other: its program exits
with 0. What is marked SIMULATED is our own: the refusal of arguments, and the commands that begin with simulate_, which
have the stand-in fail, tell of it what the real one would not, and exit with 1 where that cannot be done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mpspool.mps.simulated import FAULTS, shares
from mpspool.mps.simulated.daemon_state import MpsState, Server

# How long a daemon hangs that is not told how long.
FOR_GOOD_S = 1e9
_UUID_CHARS = len("GPU-cb1213a3-d6a4-be7f")
_PS_HEAD = ("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND")
_PS_ROW = "{:<9} {:<9} {:<14} {:<25} {:<14} {:<15}\n"


@dataclass(frozen=True, slots=True)
class StartServer:
    """Start a server for this user, unless one runs."""

    uid: int


@dataclass(frozen=True, slots=True)
class TerminateClient:
    """Cut every context of this process off its server."""

    server: int
    client: int


@dataclass(frozen=True, slots=True)
class Quit:
    """End all servers, then the daemon: once no client is left, or after so many seconds; None for as long as it takes."""

    limit_s: float | None


@dataclass(frozen=True, slots=True)
class TellClients:
    """Ask the servers how their clients are, and print that."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Have something fail: one of FAULTS, on this server, by this client; None where there is none to name.

    `seconds` is how long it lasts, of what ends by itself.
    """

    what: str
    server: int | None = None
    client: int | None = None
    seconds: float = 0.0


Order = StartServer | TerminateClient | Quit | TellClients | Fail


@dataclass(frozen=True, slots=True)
class Answer:
    """`text` is printed as it is; `failed` makes the command exit with 1; `order` is still to be done.

    Where the order fails, its reason is printed instead.
    """

    text: str = ""
    failed: bool = False
    order: Order | None = None


class _UsageError(Exception):
    """A known command with arguments it does not take."""


class _RefusedError(Exception):
    """The real daemon's own words for what it does not do."""


Command = Callable[[MpsState, list[str]], Answer]


def answer(state: MpsState, line: str) -> Answer:
    """Answers one line; an empty one with nothing."""
    words = line.split()
    if not words:
        return Answer()
    command = _COMMANDS.get(words[0])
    if command is None:
        return Answer(f'Unknown command "{words[0]}"\n')
    try:
        return command(state, words[1:])
    except _RefusedError as error:
        return Answer(f"{error}\n")
    except (_UsageError, ValueError) as error:
        return refuse(f"{words[0]}: {error}")


def refuse(reason: str) -> Answer:
    return Answer(f"SIMULATED: {reason}\n", failed=True)


def _lines(values: list[int]) -> Answer:
    return Answer("".join(f"{value}\n" for value in values))


def _expect(words: list[str], count: int, what: str) -> None:
    if len(words) != count:
        raise _UsageError(f"expects {what}")


def _number(words: list[str]) -> int:
    if len(words) != 1 or not words[0].isdigit():
        raise _UsageError("expects one PID")
    return int(words[0])


def _server(state: MpsState, words: list[str]) -> Server:
    pid = _number(words)
    if pid not in state.servers:
        raise _RefusedError(f"Server {pid} not found")
    return state.servers[pid]


def _get_server_list(state: MpsState, _words: list[str]) -> Answer:
    return _lines(list(state.servers))


def _get_server_status(state: MpsState, words: list[str]) -> Answer:
    return Answer(f"{_server(state, words).status.value}\n")


def _start_server(state: MpsState, words: list[str]) -> Answer:
    if len(words) != 2 or words[0] != "-uid":
        raise _UsageError("expects -uid UID")
    uid = _number(words[1:])
    for server in state.in_the_way(uid):
        if not server.unused:
            raise _UsageError(f"server {server.pid} of user {server.uid} has clients")
    return Answer(order=StartServer(uid))


def _get_client_list(state: MpsState, words: list[str]) -> Answer:
    return _lines(_server(state, words).client_pids)


def _get_device_client_list(state: MpsState, words: list[str]) -> Answer:
    servers = [_server(state, words)] if words else list(state.servers.values())
    clients = [client for server in servers for client in server.clients.values()]
    device = ["[0] 00:00.0, SIMULATED GPU\n"] if servers else []
    return Answer("".join([*device, *(f"{client.pid}.{client.number}\n" for client in clients)]))


def _ps(state: MpsState, words: list[str]) -> Answer:
    if words and words[0] != "-p":
        raise _UsageError("expects nothing or -p PID")
    servers = [_server(state, words[1:])] if words else list(state.servers.values())
    if not servers:
        raise _RefusedError("Server not found")
    uuid = state.device_uuid[:_UUID_CHARS]
    rows = [
        (client.pid, client.number, server.pid, uuid, client.namespace, client.command)
        for server in servers
        for client in server.clients.values()
    ]
    return Answer("".join(_PS_ROW.format(*row) for row in [_PS_HEAD, *rows]))


def _terminate_client(state: MpsState, words: list[str]) -> Answer:
    _expect(words, 2, "a server's and a client's PID")
    pid, client = _number(words[:1]), _number(words[1:])
    if pid not in state.servers:
        raise _RefusedError(f"Server {pid} not found\nServer {pid} not found!\n1")
    if client not in state.servers[pid].client_pids:
        raise _RefusedError(f"Invalid process {client}!\n1")
    return Answer("0\n", order=TerminateClient(pid, client))


def _quit(_state: MpsState, words: list[str]) -> Answer:
    if words and words[0] != "-t":
        raise _UsageError("expects nothing or -t SECONDS")
    return Answer(order=Quit(_number(words[1:]) if words else None))


# -- what clients are given --------------------------------------------------------------------


def _get_default_active_thread_percentage(state: MpsState, _words: list[str]) -> Answer:
    return Answer(f"{state.defaults.thread_percentage}\n")


def _set_default_active_thread_percentage(state: MpsState, words: list[str]) -> Answer:
    _expect(words, 1, "a percentage")
    state.defaults.thread_percentage = shares.percentage(words[0])
    return _get_default_active_thread_percentage(state, [])


def _get_active_thread_percentage(state: MpsState, words: list[str]) -> Answer:
    return Answer(f"{_server(state, words).share.thread_percentage}\n")


def _set_active_thread_percentage(state: MpsState, words: list[str]) -> Answer:
    _expect(words, 2, "a server's PID and a percentage")
    server = _server(state, words[:1])
    server.share = replace(server.share, thread_percentage=shares.percentage(words[1]))
    return Answer(f"{server.share.thread_percentage}\n")


def _get_default_device_pinned_mem_limit(state: MpsState, words: list[str]) -> Answer:
    """A device that nothing was set for has no limit, and no text."""
    device = words[0] if words else "0"
    return _limit(state.defaults.limits.get(device))


def _set_default_device_pinned_mem_limit(state: MpsState, words: list[str]) -> Answer:
    """A name that is no device's is taken, as NVIDIA's does, and counts for nothing."""
    _expect(words, 2, "a device and a limit")
    state.defaults.limit(words[0], shares.memory_bytes(words[1]))
    return Answer()


def _get_device_pinned_mem_limit(state: MpsState, words: list[str]) -> Answer:
    _expect(words, 2, "a server's PID and a device")
    server = _server(state, words[:1])
    return _limit(server.share.pinned_mem_bytes if shares.is_device(words[1], state.device_uuid) else None)


def _set_device_pinned_mem_limit(state: MpsState, words: list[str]) -> Answer:
    _expect(words, 3, "a server's PID, a device and a limit")
    server = _server(state, words[:1])
    limit_bytes = shares.memory_bytes(words[2])
    if shares.is_device(words[1], state.device_uuid):
        server.share = replace(server.share, pinned_mem_bytes=limit_bytes)
    return Answer()


def _limit(limit_bytes: int | None) -> Answer:
    return Answer(f"{shares.memory_text(limit_bytes)}\n" if limit_bytes is not None else "")


def _get_default_client_priority(state: MpsState, _words: list[str]) -> Answer:
    return Answer(f"{state.defaults.priority}\n")


def _set_default_client_priority(state: MpsState, words: list[str]) -> Answer:
    _expect(words, 1, "a priority")
    state.defaults.priority = shares.priority(words[0])
    return Answer()


# -- the stand-in's own ------------------------------------------------------------------------


def _simulate_clients(_state: MpsState, _words: list[str]) -> Answer:
    return Answer(order=TellClients())


def _simulate_fault(state: MpsState, words: list[str]) -> Answer:
    what, *more = words or [""]
    if what not in FAULTS:
        raise _UsageError(f"expects one of {', '.join(FAULTS)}")
    if len(more) > bool(FAULTS[what]):
        raise _UsageError(f"{what} takes {FAULTS[what] or 'nothing'}")
    text = f"SIMULATED: {what}\n"
    if what == "daemon-hang":
        return Answer(text, order=Fail(what, seconds=_seconds(more[0]) if more else FOR_GOOD_S))
    if what in ("daemon-death", "gpu-lost"):
        return Answer(text, order=Fail(what))
    client = _number(more) if more else None
    servers = [server for server in state.servers.values() if client in (None, *server.client_pids)]
    if not servers:
        raise _UsageError("there is no server" if client is None else f"there is no client {client}")
    server = servers[0]
    if what == "client-wedge" and client is None:
        if not server.clients:
            raise _UsageError("there is no client")
        client = server.client_pids[0]
    return Answer(text, order=Fail(what, server.pid, client))


def _seconds(word: str) -> float:
    seconds = float(word)
    if not 0 < seconds <= FOR_GOOD_S:
        raise _UsageError(f"{word!r} is no number of seconds")
    return seconds


_COMMANDS: dict[str, Command] = {
    "get_server_list": _get_server_list,
    "get_server_status": _get_server_status,
    "start_server": _start_server,
    "get_client_list": _get_client_list,
    "get_device_client_list": _get_device_client_list,
    "ps": _ps,
    "terminate_client": _terminate_client,
    "get_default_active_thread_percentage": _get_default_active_thread_percentage,
    "set_default_active_thread_percentage": _set_default_active_thread_percentage,
    "get_active_thread_percentage": _get_active_thread_percentage,
    "set_active_thread_percentage": _set_active_thread_percentage,
    "get_default_device_pinned_mem_limit": _get_default_device_pinned_mem_limit,
    "set_default_device_pinned_mem_limit": _set_default_device_pinned_mem_limit,
    "get_device_pinned_mem_limit": _get_device_pinned_mem_limit,
    "set_device_pinned_mem_limit": _set_device_pinned_mem_limit,
    "get_default_client_priority": _get_default_client_priority,
    "set_default_client_priority": _set_default_client_priority,
    "quit": _quit,
    "simulate_clients": _simulate_clients,
    "simulate_fault": _simulate_fault,
}
