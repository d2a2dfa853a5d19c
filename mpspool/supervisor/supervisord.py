"""supervisord's XML-RPC interface over its UNIX socket, typed; every call opens its own connection.

supervisord reaps only when its main loop turns, at least once a second and once for each connection
that comes in: a call made just after a death may still show the process RUNNING, the next does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import http.client
import re
import socket
import xmlrpc.client
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LOG_TAIL_BYTES = 16_384


class ProcessState(enum.Enum):
    """supervisord's process states, by its own names."""

    STOPPED = "STOPPED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    BACKOFF = "BACKOFF"
    STOPPING = "STOPPING"
    EXITED = "EXITED"
    FATAL = "FATAL"
    UNKNOWN = "UNKNOWN"


class Fault(enum.IntEnum):
    """The faults we tell apart (supervisor.xmlrpc.Faults)."""

    SHUTDOWN_STATE = 6
    BAD_NAME = 10
    ALREADY_STARTED = 60
    NOT_RUNNING = 70
    ALREADY_ADDED = 90
    STILL_RUNNING = 91


class SupervisordError(Exception):
    """supervisord is not there (`fault` None), or refused what was asked."""

    def __init__(self, message: str, fault: int | None = None) -> None:
        super().__init__(message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One program. `pid` is 0 when none runs; `exit_status` is -1 for a death by signal."""

    name: str
    state: ProcessState
    pid: int
    exit_status: int = 0
    spawn_error: str = ""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _UnixTransport(xmlrpc.client.Transport):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__()
        self._path = path
        self._timeout_s = timeout_s

    def make_connection(self, _host: Any) -> http.client.HTTPConnection:
        return _UnixConnection(self._path, self._timeout_s)


def call(socket_path: Path, method: str, *arguments: Any, timeout_s: float = 10.0) -> Any:
    """Asks supervisord once, blocking. Raises SupervisordError."""
    transport = _UnixTransport(str(socket_path), timeout_s)
    try:
        with xmlrpc.client.ServerProxy("http://localhost", transport=transport) as proxy:
            return getattr(proxy.supervisor, method)(*arguments)
    except xmlrpc.client.Fault as fault:
        raise SupervisordError(f"{method}: {fault.faultString}", fault.faultCode) from fault
    except (OSError, http.client.HTTPException, xmlrpc.client.Error) as error:
        raise SupervisordError(f"supervisord does not answer on {socket_path}: {error}") from error


class Supervisord:
    """The calls the pool and the foreground process make, one at a time, off the event loop."""

    def __init__(self, socket_path: Path) -> None:
        self._socket_path = socket_path
        self._turn = asyncio.Lock()

    async def _call(self, method: str, *arguments: Any) -> Any:
        async with self._turn:
            return await asyncio.to_thread(call, self._socket_path, method, *arguments)

    async def processes(self) -> dict[str, ProcessInfo]:
        """Every program, by name. Makes supervisord reap what has ended."""
        return {found.name: found for found in map(_info, await self._call("getAllProcessInfo"))}

    async def process(self, name: str) -> ProcessInfo:
        """Raises SupervisordError with Fault.BAD_NAME for a program that is not there."""
        return _info(await self._call("getProcessInfo", name))

    async def add(self, names: list[str]) -> None:
        """Takes in the programs of these names from the include folder; known ones stay as they are."""
        await self._call("reloadConfig")
        for name in names:
            try:
                await self._call("addProcessGroup", name)
            except SupervisordError as error:
                if error.fault != Fault.ALREADY_ADDED:
                    raise

    async def remove(self, name: str) -> None:
        """Forgets a program that is over; one that is not there is no error."""
        try:
            await self._call("removeProcessGroup", name)
        except SupervisordError as error:
            if error.fault != Fault.BAD_NAME:
                raise

    async def end(self, name: str) -> None:
        """Ends a program, waits until it is over, and forgets it; one that is not there is no error."""
        try:
            await self._call("stopProcess", name)
        except SupervisordError as error:
            if error.fault not in (Fault.NOT_RUNNING, Fault.BAD_NAME):
                raise
        await self.remove(name)

    async def start(self, name: str) -> int:
        """Starts a program and returns its pid; that of the one already running where there is one."""
        try:
            await self._call("startProcess", name, False)
        except SupervisordError as error:
            if error.fault != Fault.ALREADY_STARTED:
                raise
        return (await self.process(name)).pid

    async def how_it_ended(self, name: str) -> str:
        """Supervisord's own words on the program's last end ("terminated by SIGKILL"), "" if not found."""
        tail = str(await self._call("readLog", -_LOG_TAIL_BYTES, 0))
        found = re.findall(rf"exited: {re.escape(name)} \((.*?); (?:not )?expected\)", tail)
        return str(found[-1]) if found else ""

    async def shutdown(self) -> None:
        """Begins supervisord's end; from then on every call fails with Fault.SHUTDOWN_STATE."""
        await self._call("shutdown")

    async def turn(self) -> None:
        """Makes supervisord's loop turn, whatever it answers: it reaps, restarts and goes on stopping."""
        with contextlib.suppress(SupervisordError):
            await self._call("getState")


def _info(found: dict[str, Any]) -> ProcessInfo:
    return ProcessInfo(
        name=found["name"],
        state=ProcessState(found["statename"]),
        pid=found["pid"],
        exit_status=found["exitstatus"],
        spawn_error=found["spawnerr"],
    )
