"""The REST port: its sockets, and what bounds the connections that aiohttp itself leaves open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import StreamReader, web, web_protocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import EMPTY_PAYLOAD

from mpspool.core import log
from mpspool.router.fronts.complaints import Complaints
from mpspool.router.fronts.http2.listener import TICK_S
from mpspool.router.fronts.sockets import BACKLOG, bind, peer_name

logger = log.get("rest")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# Without a whole request, or between two of them. Longer than the proxies before us keep theirs: it is they who close.
IDLE_S = 120.0
# With a body, or an answer, of which less than such a part comes, or is taken, or less than so many bytes.
STALL_S = 60.0
_LEAST_PART, _LEAST_BYTES = 10, 4096
# Of one line of a request's head; as many as all the headers of a request have by gRPC.
LINE_BYTES = 16 * 1024


# Requests of one connection that are read while an earlier one waits for its answer: nobody counts them.
_PIPELINED = 2
web_protocol.MAX_MSG_QUEUE_SIZE = _PIPELINED


def least_of(size: int) -> int:
    """How many of so many bytes have to come, or be taken, within STALL_S."""
    return max(size // _LEAST_PART, _LEAST_BYTES)


class RestListener:
    """Takes connections for an aiohttp server. One whose client takes nothing of an answer, or too little, is closed.

    For one too many, that asks nothing for the longest is closed: who opens connections and does no more is not to keep out
    those who ask whether this server lives. Where all have requests, it is the new one.

    Args:
        max_connections: at once.

    Attributes:
        max_connections: the same; it may change.
        complaints: of bad connections.
        aiohttp_logger: for aiohttp to write to; what is no HTTP gets a few lines there, and not each a stack of calls.
    """

    def __init__(self, max_connections: int) -> None:
        self.max_connections = max_connections
        self.complaints = Complaints(asyncio.get_running_loop().time, logger)
        self.aiohttp_logger = logging.Logger("aiohttp", logging.DEBUG)  # noqa: LOG001  this front's own
        self.aiohttp_logger.parent = logging.getLogger()
        self.aiohttp_logger.addFilter(self._is_ours)
        self._servers: list[asyncio.Server] = []
        self._ticker: asyncio.TimerHandle | None = None
        # Without a request, the last to have had one last. Some may be closed.
        self._idle: dict[web.RequestHandler, None] = {}
        # What each connection's client has still to take when it has taken enough, and since when it has not.
        self._stuck: dict[web.RequestHandler, tuple[int, float]] = {}

    async def start(self, server: web.Server, host: str, port: int) -> int:
        """Listens at every address that the host stands for; returns the port. Raises OSError."""
        self._server = server
        self._loop = asyncio.get_running_loop()
        for listening in bind(host, port):
            self._servers.append(
                await self._loop.create_server(self._connection, sock=listening, backlog=BACKLOG)
            )
            port = port or listening.getsockname()[1]
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        return port

    def close(self) -> None:
        """Takes no more connections; those that there are go on."""
        for server in self._servers:
            server.close()
        if self._ticker is not None:
            self._ticker.cancel()
        self.complaints.flush()

    @property
    def open_connections(self) -> int:
        return len(self._server.connections)

    @web.middleware
    async def watch(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """To be the application's first, for it says which connections have a request."""
        connection = request.protocol
        self._idle.pop(connection, None)
        try:
            return await handler(request)
        finally:
            self._idle[connection] = None

    def _connection(self) -> asyncio.Protocol:
        if self.open_connections >= self.max_connections and not self._close_idle():
            return _TooMany(self.complaints, self.max_connections)
        connection = _Connection(self._server, loop=self._loop, **self._server._kwargs)  # noqa: SLF001  as it does itself
        self._idle[connection] = None
        return connection

    def _close_idle(self) -> bool:
        """Whether there was one to close."""
        for connection in self._idle:
            transport = connection.transport
            if transport is not None and not connection.writing_paused:
                del self._idle[connection]
                self.complaints.say(
                    _peer(transport), "REFUSED", f"{self.max_connections} connections are open"
                )
                connection.force_close()
                return True
        return False

    def _tick(self) -> None:
        now_s = self._loop.time()
        stuck = {}
        connections = set(self._server.connections)
        self._idle = {one: None for one in self._idle if one in connections}
        for connection in connections:
            if connection.transport is None or not connection.writing_paused:
                continue
            left = connection.transport.get_write_buffer_size()
            least, since_s = self._stuck.get(connection, (left, now_s))
            if left <= least:
                least, since_s = left - least_of(left), now_s
            stuck[connection] = least, since_s
            if now_s - since_s >= STALL_S:
                text = "it takes nothing of its answer, or too little"
                self.complaints.say(_peer(connection.transport), "STALLED", text)
                connection.transport.abort()
        self._stuck = stuck
        self.complaints.tick()
        self._ticker = self._loop.call_later(TICK_S, self._tick)

    def _is_ours(self, record: logging.LogRecord) -> bool:
        """Whether aiohttp writes of a failure, and not of what anyone may send."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        peer = record.args[0] if isinstance(record.args, tuple) and record.args else ""
        self.complaints.say(str(peer), "BAD_REQUEST", " ".join(error.message.split()))
        return False


class _Connection(web.RequestHandler):
    """Ends a body as soon as it does not go on as HTTP: aiohttp says so to nobody before its request has an answer."""

    __slots__ = ("_body",)

    def __init__(self, server: web.Server, **settings: Any) -> None:
        super().__init__(server, **settings)
        self._body: StreamReader = EMPTY_PAYLOAD  # the last that has begun

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """What comes behind a request for another protocol is read when that has its answer."""
        found = await super().finish_response(request, resp, start_time)
        self._look()
        return found

    def _look(self) -> None:
        """At what has begun."""
        for message, body in self._messages:
            if not isinstance(message, web_protocol._ErrInfo):  # noqa: SLF001  what was no HTTP
                self._body = body
            elif not self._body.is_eof():
                self._body.feed_eof()  # first: where the request has its answer aiohttp waits for no more than this
                self._body.set_exception(web.RequestPayloadError(message.message))


class _TooMany(asyncio.Protocol):
    """A connection that is not taken."""

    def __init__(self, complaints: Complaints, most: int) -> None:
        self._complaints = complaints
        self._most = most

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._complaints.say(_peer(transport), "REFUSED", f"{self._most} connections are open")
        cast("asyncio.WriteTransport", transport).abort()  # uvloop's is none by its class


def _peer(transport: asyncio.BaseTransport) -> str:
    return peer_name(transport.get_extra_info("peername"))
