"""The stand-in's control daemon: answers commands, starts its server, hands clients on to it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mpspool.mps.limits import max_clients
from mpspool.mps.simulated import commands, shares
from mpspool.mps.simulated.commands import Answer, Fail, Quit, StartServer, TellClients, TerminateClient
from mpspool.mps.simulated.daemon_state import MpsState, RefusedError
from mpspool.mps.simulated.figures import Figures
from mpspool.mps.simulated.inventory import COMPUTE_CAPABILITY
from mpspool.mps.simulated.paths import Paths, write_log
from mpspool.mps.simulated.server import MAX_MESSAGE_BYTES
from mpspool.mps.simulated.state import MPS_SERVER_NOT_READY, ServerStatus, refusal

_QUIT_LIMIT_S = 2.0
_LOOK_LIMIT_S = 2.0
_POLL_S = 0.2
_LEFT_POLL_S = 0.02


class AlreadyRunningError(Exception):
    """Another daemon holds this pipe folder."""


@dataclass(slots=True)
class _ServerProcess:
    """`ready` is set when clients need not wait: it serves, refuses them or has ended; `gone` when it has been reaped.

    `looked` is set when it has said how its clients are, `leaving` holds what to set when a process has no context
    left.
    """

    process: subprocess.Popen[bytes]
    channel: socket.socket
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    leaving: dict[int, asyncio.Event] = field(default_factory=dict)

    def tell(self, op: str, *descriptors: int, **arguments: Any) -> None:
        """A server that is gone is told nothing; its end is seen on the channel."""
        with contextlib.suppress(OSError):
            socket.send_fds(self.channel, [json.dumps({"op": op, **arguments}).encode()], descriptors)


class ControlDaemon:
    """One daemon on one pipe folder, for the device that CUDA_VISIBLE_DEVICES names."""

    def __init__(self, paths: Paths, environ: Mapping[str, str], *, log_files: bool) -> None:
        """`log_files`: its servers write to server.log, and not to our stderr.

        Raises:
            ValueError: the environment limits clients in a way that cannot be understood.
        """
        uuid = environ.get("CUDA_VISIBLE_DEVICES", "all")
        self._paths = paths
        self._state = MpsState(uuid, max_clients(COMPUTE_CAPABILITY), shares.of_environment(environ))
        self._log = functools.partial(write_log, "Control")
        self._log_files = log_files
        self._figures = Figures(paths.figures, uuid, environ)
        self._state.lost = self._figures.lost
        self._servers: dict[int, _ServerProcess] = {}
        self._quit = asyncio.Event()
        self._server_gone = asyncio.Event()
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
            self._figures.write()
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
            self._figures.close()
            self._log("Exit with status 0")
        finally:
            os.close(lock)

    # -- commands ---------------------------------------------------------------------------------

    async def _serve_command(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One line in; the exit status as a line and the text out."""
        hang_s = 0.0
        try:
            line = (await reader.readline()).decode(errors="replace").strip()
            self._log(f"Received command {line!r}")
            reply = commands.answer(self._state, line)
            if reply.order is not None:
                reply = await self._obey(reply)
            writer.write(f"{int(reply.failed)}\n{reply.text}".encode())
            await writer.drain()
            if reply.order == Fail("daemon-death"):
                os.kill(os.getpid(), signal.SIGKILL)
            if isinstance(reply.order, Fail):
                hang_s = reply.order.seconds
        except ConnectionError as error:
            self._log(f"Lost a command's asker: {error}")
        finally:
            writer.close()
        if hang_s:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            time.sleep(hang_s)  # noqa: ASYNC251 - it hangs, as a whole

    async def _obey(self, reply: Answer) -> Answer:
        """Does what the answer has left to do, and returns what is to be printed."""
        match reply.order:
            case StartServer(uid):
                if self._state.lost:
                    return commands.refuse("the GPU is lost")
                await self._server_for(uid)
            case TerminateClient(server, client):
                await self._terminate(server, client)
            case Quit(limit_s):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(limit_s):
                        await self._all_left()
                await self._end_servers()
                self._quit.set()
            case TellClients():
                return Answer(await self._clients())
            case Fail():
                await self._fail(reply.order)
        return reply

    async def _all_left(self) -> None:
        """Returns when no server has a client."""
        while not all(server.unused for server in self._state.servers.values()):
            await asyncio.sleep(_LEFT_POLL_S)

    async def _terminate(self, server_pid: int, client_pid: int) -> None:
        """Returns when the client is off the list, or its server has ended."""
        server = self._servers[server_pid]
        gone = server.leaving.setdefault(client_pid, asyncio.Event())
        server.tell("terminate", pid=client_pid)
        await gone.wait()

    async def _clients(self) -> str:
        """A line of JSON for each; of a server that does not answer, what it said last."""
        for server in list(self._servers.values()):
            await self._look(server)
        return "".join(
            json.dumps({"simulated": True, "server": server.pid, **client}) + "\n"
            for server in self._state.servers.values()
            for client in server.clients_said
        )

    async def _look(self, server: _ServerProcess) -> None:
        """Returns when everything that the server was told before is done."""
        server.looked.clear()
        server.tell("look")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_LIMIT_S):
                await server.looked.wait()

    async def _fail(self, order: Fail) -> None:
        """Returns when it has happened; the daemon's own death is still to come."""
        self._log(f"Told to fail: {order.what}")
        servers = [self._servers[order.server]] if order.server else list(self._servers.values())
        match order.what:
            case "server-fault":
                servers[0].tell("fault", pid=order.client)
            case "ecc":
                servers[0].tell("ecc", pid=order.client)
            case "client-wedge":
                servers[0].tell("wedge", pid=order.client)
            case "server-death":
                servers[0].process.kill()
                await servers[0].gone.wait()
            case "gpu-lost":
                self._state.lost = True
                self._figures.lose()
                for server in servers:
                    server.tell("lose")
        if order.what not in ("server-death", "daemon-death", "daemon-hang"):
            for server in servers:
                await self._look(server)

    # -- clients ----------------------------------------------------------------------------------

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
            known = self._state.server_for(uid)
            ready = known is not None and known.status is not ServerStatus.INITIALIZING
            state = "Server already exists" if ready else "Server is not ready, push client to pending list"
            self._log(f"NEW CLIENT {pid} from user {uid}: {state}")
            if self._state.lost:
                self._refuse(connection, pid, RefusedError(MPS_SERVER_NOT_READY, "the GPU is lost"))
                return
            server = await self._server_for(uid, connection)
            if server is None:
                self._log(f"Client {pid} did not wait")
                return
            try:
                client = self._state.admit(server.process.pid, pid, _command(pid), _namespace(pid))
            except RefusedError as refused:
                self._refuse(connection, pid, refused)
                return
            share = asdict(self._state.share(server.process.pid))
            server.tell("attach", connection.fileno(), number=client.number, pid=pid, share=share)

    def _refuse(self, connection: socket.socket, pid: int, refused: RefusedError) -> None:
        self._log(f"Client {pid} refused: {refused}")
        with contextlib.suppress(OSError):
            connection.send(refusal(refused.cuda_error, str(refused)).encode())

    # -- servers ----------------------------------------------------------------------------------

    async def _server_for(self, uid: int, waiting: socket.socket | None = None) -> _ServerProcess | None:
        """The user's server once it is ready (or has failed to become so), started where there is none.

        While a server of another user has clients, this waits; None where `waiting`, the client, is gone before.
        """
        while (known := self._state.server_for(uid)) is None and (others := self._state.in_the_way(uid)):
            for other in others:
                if other.unused and not other.retiring:
                    other.retiring = True
                    self._servers[other.pid].tell("quit")
            self._server_gone.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._server_gone.wait()
            if waiting is not None and _hung_up(waiting):
                return None
        server = self._servers[known.pid] if known else self._start_server(uid)
        expecting = self._state.servers[server.process.pid]
        expecting.expected += 1
        await server.ready.wait()
        expecting.expected -= 1
        return server

    def _start_server(self, uid: int) -> _ServerProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.ExitStack() as stack:
            log = stack.enter_context(self._paths.server_log.open("a")) if self._log_files else None
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "mpspool.mps.simulated.server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=log,
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
        try:
            data = server.channel.recv(MAX_MESSAGE_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            self._bury(server)
            return
        event = json.loads(data)
        match event.pop("event"):
            case "status":
                self._see_status(server, ServerStatus(event["status"]))
            case "left":
                self._see_left(server, event["number"], event["pid"])
            case "xid":
                self._figures.report(event["xid"])
            case "figures":
                self._state.servers[server.process.pid].clients_said = event["clients"]
                self._figures.update(event, self._all_clients())
                server.looked.set()
                server.tell("seen")

    def _see_status(self, server: _ServerProcess, status: ServerStatus) -> None:
        pid = server.process.pid
        self._state.server_moved(pid, status)
        if status is ServerStatus.INITIALIZING:
            server.ready.clear()
            return
        self._log(
            f"NEW SERVER {pid}: Ready" if status is ServerStatus.ACTIVE else f"Server {pid} is in FAULT"
        )
        server.ready.set()

    def _see_left(self, server: _ServerProcess, number: int, client: int) -> None:
        pid = server.process.pid
        self._state.left(pid, number)
        self._log(f"Client {client} disconnected")
        if client in server.leaving and client not in self._state.servers[pid].client_pids:
            server.leaving.pop(client).set()

    def _bury(self, server: _ServerProcess) -> None:
        pid = server.process.pid
        asyncio.get_running_loop().remove_reader(server.channel)
        server.channel.close()
        lost = self._state.server_ended(pid)
        del self._servers[pid]
        status = server.process.wait()
        self._log(f"Server {pid} exited with status {status}; {len(lost)} clients lost")
        self._figures.update({}, self._all_clients())
        for event in (server.ready, server.gone, server.looked, *server.leaving.values(), self._server_gone):
            event.set()

    def _all_clients(self) -> list[dict[str, Any]]:
        return [client for server in self._state.servers.values() for client in server.clients_said]

    async def _end_servers(self) -> None:
        servers = list(self._servers.values())
        for server in servers:
            server.tell("quit")
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


def _hung_up(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


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
