"""HTTP/2 connections on asyncio: sockets, the clock, and what all connections share.

In clear text only; with TLS, create_server() takes a context that offers "h2" by ALPN, and nothing else changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable
from typing import cast

from mpspool.core import log, unix_socket
from mpspool.core.http2_frames import ErrorCode
from mpspool.router.http2.connection import Connection
from mpspool.router.http2.headers import RequestHead
from mpspool.router.http2.limits import Limits
from mpspool.router.http2.streams import Stream

logger = log.get("http2")

TICK_S = 1.0
# In the kernel's queue, until we accept them.
_BACKLOG = 1024
# A socket's buffer of our own, past the kernel's, before answers wait in their streams.
_HIGH_WATER_BYTES = 2**18
# For a peer to take the last bytes and close its side.
_LINGER_S = 0.5
# Addresses that a name may stand for on a machine that does not have them all.
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class _Link(asyncio.Protocol):
    """One socket with its Connection."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._stuck_s: float | None = None
        # In the transport's buffer, as far as it is counted as held.
        self._buffered = 0
        self._over_s: float | None = None
        self._said = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class
        listener = self._listener
        self.connection = Connection(
            transport,
            listener.open_stream,
            listener.limits,
            peer=_name(transport.get_extra_info("peername")),
            held=listener.held,
            complain=self._complain,
            now_s=listener.now_s(),
        )
        if len(listener.links) >= listener.max_connections:
            self._complain(ErrorCode.REFUSED_STREAM, f"{listener.max_connections} connections are open")
            self.connection.over = True
            transport.abort()
            return
        transport.set_write_buffer_limits(_HIGH_WATER_BYTES)
        listener.joined(self)

    def data_received(self, data: bytes) -> None:
        try:
            self.connection.receive(data)
        except Exception:
            logger.exception("connection failed")
            self.connection.fail(ErrorCode.INTERNAL_ERROR, "the server failed")

    def pause_writing(self) -> None:
        self.connection.pause()
        self._stuck_s = self._listener.now_s()
        self._count(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._stuck_s = None
        self._count(self._transport.get_write_buffer_size())
        self.connection.resume()

    def connection_lost(self, _error: Exception | None) -> None:
        self._listener.links.discard(self)
        self._count(0)
        self.connection.lost()

    def _count(self, buffered: int) -> None:
        """What was handed to the transport and has not gone waits for the peer, as what is queued here does."""
        if buffered != self._buffered:
            self._listener.held(buffered - self._buffered)
            self._buffered = buffered

    def tick(self, now_s: float) -> None:
        self.connection.tick(now_s)
        buffered = self._transport.get_write_buffer_size()
        if self._stuck_s is not None and buffered < self._buffered:
            self._stuck_s = now_s
        self._count(buffered)
        if self._stuck_s is not None and now_s - self._stuck_s >= self._listener.limits.stall_s:
            self._complain(ErrorCode.NO_ERROR, "it takes nothing of what is sent")
            self._transport.abort()
        if self.connection.over:
            self._over_s = self._over_s or now_s
            if now_s - self._over_s >= self._listener.limits.greeting_s:
                self._transport.abort()

    def end(self) -> None:
        """Sends what there is, and says that nothing follows; the peer then closes."""
        self.connection.go_away()
        self.connection.lost()
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()

    def abort(self) -> None:
        self._transport.abort()

    def _complain(self, code: ErrorCode, text: str) -> None:
        if not self._said:
            self._said = True
            logger.info(
                "bad connection",
                peer=_name(self._transport.get_extra_info("peername")),
                code=code.name,
                why=text,
            )


class Listener:
    """Takes connections.

    Args:
        open_stream: makes the Stream of a request.
        held: told how many bytes more, or fewer, wait for peers to take them.
        limits: of each connection.
        max_connections: at once.

    Attributes:
        links: the connections that are open.
    """

    def __init__(
        self,
        open_stream: Callable[[Connection, int, RequestHead], Stream],
        held: Callable[[int], None],
        limits: Limits | None = None,
        max_connections: int = 10_000,
    ) -> None:
        self.open_stream = open_stream
        self.held = held
        self.limits = limits or Limits()
        self.max_connections = max_connections
        self.links: set[_Link] = set()
        self._loop = asyncio.get_running_loop()
        self._servers: list[asyncio.Server] = []
        self._paths: list[str] = []
        self._ticker: asyncio.TimerHandle | None = None

    def now_s(self) -> float:
        return self._loop.time()

    async def start(self, host: str, port: int) -> int:
        """Listens at every address that the host stands for; returns the port. Raises OSError."""
        for listening in bind(host, port):
            self._servers.append(
                await self._loop.create_server(lambda: _Link(self), sock=listening, backlog=_BACKLOG)
            )
            port = port or listening.getsockname()[1]
        return port

    async def start_at(self, path: str) -> None:
        """Listens at a UNIX socket, too. Raises OSError."""
        listening = unix_socket.bind(path)
        self._servers.append(
            await self._loop.create_unix_server(lambda: _Link(self), sock=listening, backlog=_BACKLOG)
        )
        self._paths.append(path)

    def joined(self, link: _Link) -> None:
        self.links.add(link)
        if self._ticker is None:
            self._ticker = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        now_s = self.now_s()
        for link in list(self.links):
            link.tick(now_s)
        self._ticker = self._loop.call_later(TICK_S, self._tick) if self.links else None

    def go_away(self) -> None:
        """Tells all peers to begin nothing more on the connections that they have; new ones are taken."""
        for link in list(self.links):
            link.connection.go_away()

    async def close(self) -> None:
        """Ends everything: what has been answered is sent, what runs is reset."""
        for server in self._servers:
            server.close()
        for path in self._paths:
            with contextlib.suppress(OSError):
                os.unlink(path)
        for link in list(self.links):
            link.end()
        end_s = self.now_s() + _LINGER_S
        while self.links and self.now_s() < end_s:
            await asyncio.sleep(0.005)
        for link in list(self.links):
            link.abort()
        while self.links:
            await asyncio.sleep(0)
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None


def bind(host: str, port: int) -> list[socket.socket]:
    """A socket for every address of a name, all with one port. "::" takes IPv4, too.

    Raises:
        OSError: none of them can be had, or one is taken.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    problem: OSError | None = None
    for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
        try:
            sockets.append(_bind(family, address, port))
        except OSError as error:
            if error.errno not in _NOT_HERE:
                for bound in sockets:
                    bound.close()
                raise
            problem = error
            continue
        port = port or sockets[0].getsockname()[1]
    if not sockets:
        raise problem or OSError(errno.EADDRNOTAVAIL, f"{host} has no address")
    return sockets


def _bind(family: int, address: tuple[object, ...], port: int) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
        bound.bind((address[0], port, *address[2:]))
    except OSError:
        bound.close()
        raise
    return bound


def _name(address: object) -> str:
    """As "127.0.0.1:1234"; empty for what is gone already."""
    if not isinstance(address, tuple):
        return ""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
