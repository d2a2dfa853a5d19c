"""The control daemon's commands: a line in, a text and what to do about it out. Pure.

Names, arguments and the lists' formats are NVIDIA's ("Multi-Process Service", nvidia-cuda-mps-control
and "Client Early Termination"). The texts of refusals are not documented; these are our own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mpspool.mps.simulated.state import MpsState, Server

_UUID_CHARS = len("GPU-cb1213a3-d6a4-be7f")


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
    """End all servers, their clients cut off, then the daemon."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`text` is printed as it is; `failed` makes the command exit with 1; `order` is still to be done."""

    text: str = ""
    failed: bool = False
    order: StartServer | TerminateClient | Quit | None = None


class _UsageError(Exception):
    """A known command with arguments it does not take."""


Command = Callable[[MpsState, list[str]], Answer]


def answer(state: MpsState, line: str) -> Answer:
    """Answers one line; an empty one with nothing."""
    words = line.split()
    if not words:
        return Answer()
    command = _COMMANDS.get(words[0])
    if command is None:
        return _refuse(f"unknown command {words[0]!r}")
    try:
        return command(state, words[1:])
    except _UsageError as error:
        return _refuse(f"{words[0]}: {error}")


def _refuse(reason: str) -> Answer:
    return Answer(f"SIMULATED: {reason}\n", failed=True)


def _lines(values: list[int]) -> Answer:
    return Answer("".join(f"{value}\n" for value in values))


def _number(words: list[str]) -> int:
    if len(words) != 1 or not words[0].isdigit():
        raise _UsageError("expects one PID")
    return int(words[0])


def _server(state: MpsState, words: list[str]) -> Server:
    pid = _number(words)
    if pid not in state.servers:
        raise _UsageError(f"no server {pid}")
    return state.servers[pid]


def _get_server_list(state: MpsState, _words: list[str]) -> Answer:
    return _lines(list(state.servers))


def _get_server_status(state: MpsState, words: list[str]) -> Answer:
    return Answer(f"{_server(state, words).status.value}\n")


def _start_server(_state: MpsState, words: list[str]) -> Answer:
    if len(words) != 2 or words[0] != "-uid":
        raise _UsageError("expects -uid UID")
    return Answer(order=StartServer(_number(words[1:])))


def _get_client_list(state: MpsState, words: list[str]) -> Answer:
    return _lines(_server(state, words).client_pids)


def _get_device_client_list(state: MpsState, words: list[str]) -> Answer:
    servers = [_server(state, words)] if words else list(state.servers.values())
    pids = [pid for server in servers for pid in server.client_pids]
    return Answer("".join([f"Device {state.device_uuid}\n", *(f"{pid}\n" for pid in pids)]))


def _ps(state: MpsState, words: list[str]) -> Answer:
    if words and words[0] != "-p":
        raise _UsageError("expects nothing or -p PID")
    only = _number(words[1:]) if words else None
    rows = [
        f"{client.pid} {client.number} {server.pid} {state.device_uuid[:_UUID_CHARS]} {client.namespace}"
        f" {client.command}\n"
        for server in state.servers.values()
        for client in server.clients.values()
        if only in (None, client.pid)
    ]
    return Answer("".join(["PID ID SERVER DEVICE NAMESPACE COMMAND\n", *rows]))


def _terminate_client(state: MpsState, words: list[str]) -> Answer:
    if len(words) != 2:
        raise _UsageError("expects a server's and a client's PID")
    server = _server(state, words[:1])
    client = _number(words[1:])
    if client not in server.client_pids:
        raise _UsageError(f"server {server.pid} has no client {client}")
    return Answer(order=TerminateClient(server.pid, client))


def _get_default_active_thread_percentage(state: MpsState, _words: list[str]) -> Answer:
    return Answer(f"{state.default_active_thread_percentage}\n")


def _quit(_state: MpsState, _words: list[str]) -> Answer:
    return Answer(order=Quit())


_COMMANDS: dict[str, Command] = {
    "get_server_list": _get_server_list,
    "get_server_status": _get_server_status,
    "start_server": _start_server,
    "get_client_list": _get_client_list,
    "get_device_client_list": _get_device_client_list,
    "ps": _ps,
    "terminate_client": _terminate_client,
    "get_default_active_thread_percentage": _get_default_active_thread_percentage,
    "quit": _quit,
}
