"""The stand-in's control daemon: answers commands, starts its server, hands clients on to it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpspool.mps.limits import max_clients
from mpspool.mps.simulated.commands import Quit, StartServer, TerminateClient, answer
from mpspool.mps.simulated.inventory import COMPUTE_CAPABILITY
from mpspool.mps.simulated.paths import Log, Paths
from mpspool.mps.simulated.state import MpsState, RefusedError

_MAX_MESSAGE_BYTES = 4096
_QUIT_LIMIT_S = 2.0


class AlreadyRunningError(Exception):
    """Another daemon holds this pipe folder."""


@dataclass(slots=True)
class _ServerProcess:
    """`ready` is set when it serves or has ended, `gone` when it has been reaped.

    `leaving` holds what to set when a process has no context left.
    """

    process: subprocess.Popen[bytes]
    channel: socket.socket
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    leaving: dict[int, asyncio.Event] = field(default_factory=dict)

    def tell(self, order: dict[str, Any], descriptors: list[int]) -> None:
        """A server that is gone is told nothing; its end is seen on the channel."""
        with contextlib.suppress(OSError):
            socket.send_fds(self.channel, [json.dumps(order).encode()], descriptors)


class ControlDaemon:
    """One daemon on one pipe folder, for the device that CUDA_VISIBLE_DEVICES names."""

    def __init__(self, paths: Paths, device_uuid: str) -> None:
        self._paths = paths
        self._state = MpsState(device_uuid, max_clients(COMPUTE_CAPABILITY))
        self._log = Log(paths.log / "control.log", "Control", sys.stderr)
        self._servers: dict[int, _ServerProcess] = {}
        self._quit = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serves until `quit` or a signal. Raises AlreadyRunningError, OSError."""
        lock = _lock(self._paths.lock)
        try:
            loop = asyncio.get_running_loop()
            for signum in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(signum, self._quit.set)
            control = await asyncio.start_unix_server(self._serve_command, str(_fresh(self._paths.control)))
            clients = _listen(_fresh(self._paths.clients))
            accepting = asyncio.create_task(self._accept_clients(clients))
            self._paths.pid.write_text(str(os.getpid()))
            self._log(f"Starting control daemon using socket {self._paths.control}")
            self._log(
                f"To connect clients to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={self._paths.pipe}"
            )
            await self._quit.wait()
            accepting.cancel()
            clients.close()
            await self._end_servers()
            control.close()
            for path in (self._paths.clients, self._paths.control, self._paths.pid):
                path.unlink(missing_ok=True)
            self._log("Exit")
        finally:
            os.close(lock)

    async def _serve_command(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One line in; the exit status as a line and the text out."""
        try:
            line = (await reader.readline()).decode(errors="replace").strip()
            self._log(f"Received command {line!r}")
            reply = answer(self._state, line)
            match reply.order:
                case StartServer(uid):
                    await self._server_for(uid)
                case TerminateClient(server, client):
                    await self._terminate(server, client)
                case Quit():
                    await self._end_servers()
                    self._quit.set()
            writer.write(f"{int(reply.failed)}\n{reply.text}".encode())
            await writer.drain()
        except ConnectionError as error:
            self._log(f"Lost a command's asker: {error}")
        finally:
            writer.close()

    async def _terminate(self, server_pid: int, client_pid: int) -> None:
        """Returns when the client is off the list, or its server has ended."""
        server = self._servers[server_pid]
        gone = server.leaving.setdefault(client_pid, asyncio.Event())
        server.tell({"op": "terminate", "pid": client_pid}, [])
        await gone.wait()

    async def _accept_clients(self, listener: socket.socket) -> None:
        while True:
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            task = asyncio.create_task(self._place(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _place(self, connection: socket.socket) -> None:
        """Hands a new client to its user's server, or tells it why not."""
        with connection:
            pid, uid = _peer(connection)
            self._log(f"NEW CLIENT {pid} from user {uid}")
            server = await self._server_for(uid)
            try:
                client = self._state.admit(server.process.pid, pid, _command(pid), _namespace(pid))
            except RefusedError as refusal:
                self._log(f"Client {pid} refused: {refusal}")
                with contextlib.suppress(OSError):
                    connection.send(f"REFUSED {refusal.cuda_error} SIMULATED {refusal}\n".encode())
                return
            order = {"op": "attach", "number": client.number, "pid": pid}
            server.tell(order, [connection.fileno()])

    async def _server_for(self, uid: int) -> _ServerProcess:
        """The user's server once it is ready (or has failed to become so), started where there is none."""
        known = self._state.server_for(uid)
        server = self._servers[known.pid] if known else self._start_server(uid)
        await server.ready.wait()
        return server

    def _start_server(self, uid: int) -> _ServerProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "mpspool.mps.simulated.server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        ours.setblocking(False)
        server = _ServerProcess(process, ours)
        self._servers[process.pid] = server
        self._state.server_started(process.pid, uid)
        self._log(f"Starting new server {process.pid} for user {uid}")
        asyncio.get_running_loop().add_reader(ours, self._hear, server)
        return server

    def _hear(self, server: _ServerProcess) -> None:
        pid = server.process.pid
        try:
            data = server.channel.recv(_MAX_MESSAGE_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            self._bury(server)
            return
        event = json.loads(data)
        if event["event"] == "ready":
            self._state.server_ready(pid)
            self._log(f"NEW SERVER {pid}: Ready")
            server.ready.set()
        else:
            self._state.left(pid, event["number"])
            self._log(f"Client {event['pid']} disconnected")
            if event["pid"] in server.leaving and event["pid"] not in self._state.servers[pid].client_pids:
                server.leaving.pop(event["pid"]).set()

    def _bury(self, server: _ServerProcess) -> None:
        pid = server.process.pid
        asyncio.get_running_loop().remove_reader(server.channel)
        server.channel.close()
        lost = self._state.server_ended(pid)
        del self._servers[pid]
        status = server.process.wait()
        self._log(f"Server {pid} exited with status {status}; {len(lost)} clients lost")
        for event in (server.ready, server.gone, *server.leaving.values()):
            event.set()

    async def _end_servers(self) -> None:
        servers = list(self._servers.values())
        for server in servers:
            server.tell({"op": "quit"}, [])
        for server in servers:
            try:
                async with asyncio.timeout(_QUIT_LIMIT_S):
                    await server.gone.wait()
            except TimeoutError:
                server.process.kill()
                await server.gone.wait()


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise AlreadyRunningError("An instance of this daemon is already running") from error
    return descriptor


def _fresh(path: Path) -> Path:
    """The path, without the socket that a killed predecessor left there."""
    path.unlink(missing_ok=True)
    return path


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(128)
    listener.setblocking(False)
    return listener


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Pid and uid of the process that connected, from the kernel."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    return pid, uid


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"


def _namespace(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0
