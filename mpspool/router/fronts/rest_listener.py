"""The REST port: its sockets, and what bounds the connections that aiohttp itself leaves open."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import HttpVersion11, StreamReader, web, web_protocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import EMPTY_PAYLOAD

from mpspool.core import log
from mpspool.router.fronts.complaints import Complaints
from mpspool.router.fronts.http2.limits import Limits
from mpspool.router.fronts.http2.listener import TICK_S
from mpspool.router.fronts.making_way import Asking, MakingWay
from mpspool.router.fronts.reading_turns import Turns
from mpspool.router.fronts.sockets import BACKLOG, address_of, bind, peer_name

logger = log.get("rest")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# Of a connection by gRPC: what is alike here is as it is there.
_GRPCS = Limits()
# Without a whole request, or between two of them. Longer than the proxies before us keep theirs: it is they who close.
IDLE_S = 120.0
# With a body, or an answer, of which less than such a part comes, or is taken, or less than so many bytes.
STALL_S = _GRPCS.stall_s
# For the last of an answer, less than a full buffer, before its connection may make way.
_TAKES_S = 10.0
# Of one line of a request's head; as many as all the headers of a request have by gRPC.
LINE_BYTES = _GRPCS.header_list_bytes
# Of a head, and of what stands between the parts of a body and behind them: aiohttp bounds each line of it, and their number.
_HEAD_BYTES = 64 * 1024
# So many lines are given to aiohttp at once: as those of chunks they take a millisecond or two, until somebody has read these.
_LINES = 512
_TOO_LONG = f"A head, or what is no part of a body, has more than {_HEAD_BYTES} bytes"

# Requests of one connection that are read while an earlier one waits for its answer: nobody counts them.
_PIPELINED = 2
web_protocol.MAX_MSG_QUEUE_SIZE = _PIPELINED


def least_of(size: int) -> int:
    """How many of so many bytes have to come, or be taken, within STALL_S."""
    return _GRPCS.least(size)


def set_server_header(answer: web.StreamResponse) -> None:
    """To be called before an answer begins to be sent: aiohttp says what the server is made of where it has no name."""
    answer.headers["Server"] = "mpspool"


class RestListener:
    """Takes connections for an aiohttp server. One whose client takes nothing of an answer, or too little, is closed.

    For one too many, another is closed of which nothing runs (MakingWay): who opens connections, or begins requests, and does no
    more is not to keep out those who ask whether this server lives. Where all have requests that run, it is the new one.

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
        # Those without a request that runs: since when, and whether one has begun. Some may be closed.
        self._idle: dict[web.RequestHandler, tuple[float, bool]] = {}
        self._making_way: MakingWay[_Connection] = MakingWay(self._asking, self._end)
        self._turns = Turns(logger)
        # What each connection's client has still to take when it has taken enough, and since when it has not.
        self._stuck: dict[_Connection, tuple[int, float]] = {}

    async def start(self, server: web.Server, host: str, port: int) -> int:
        """Listens at every address that the host stands for; returns the port. Raises OSError."""
        self._server = server
        self._loop = asyncio.get_running_loop()
        for listening in bind(host, port):
            self._servers.append(
                await self._loop.create_server(lambda: _Newcomer(self._take), sock=listening, backlog=BACKLOG)
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
        """To be the application's first, for it says which connections have a request: one that is whole, or admitted()."""
        connection = request.protocol
        self._idle[connection] = time.monotonic(), True
        if request.content.is_eof():
            self.admitted(request)
        try:
            return await handler(request)
        finally:
            self._idle[connection] = time.monotonic(), False

    def admitted(self, request: web.Request) -> None:
        """It is in the data plane, or is answered at once: its connection makes way for no other until it has its answer."""
        self._idle.pop(request.protocol, None)

    def give_up(self, transport: asyncio.WriteTransport, why: str) -> None:
        """Ends the connection of a client that takes too little."""
        self.complaints.say(_peer(transport), "STALLED", why)
        transport.abort()

    def _take(self, transport: asyncio.BaseTransport) -> asyncio.Protocol | None:
        """What reads of it; None where there is no room for one more, and none can be made."""
        address = address_of(transport.get_extra_info("peername"))
        if self.open_connections >= self.max_connections and not self._making_way.make_room(address):
            self._refuse(transport)
            return None
        connection = _Connection(self._turns, self._server, address, loop=self._loop, **self._server._kwargs)  # noqa: SLF001  as it does itself
        self._idle[connection] = time.monotonic(), False
        return connection

    def _end(self, connection: _Connection) -> bool:
        if connection.is_gone or self._quiet(connection)[0] is None:
            return False
        del self._idle[connection]
        self._refuse(connection.own_transport)
        connection.abort()  # it does not wait for the client to take what there is
        return True

    def _refuse(self, transport: asyncio.BaseTransport) -> None:
        self.complaints.say(_peer(transport), "REFUSED", f"{self.max_connections} connections are open")

    def _connections(self) -> list[_Connection]:
        return cast("list[_Connection]", self._server.connections)

    def _quiet(self, connection: _Connection) -> tuple[float | None, bool]:
        """Since when no request of it runs, and whether one has begun; None while one does, or its client has a while to take the answer."""
        since_s, begun = self._idle.get(connection, (None, False))
        if since_s is None or connection.writing_paused:
            return None, False
        if connection.own_transport.get_write_buffer_size() and time.monotonic() - since_s < _TAKES_S:
            return None, False
        return since_s, begun

    def _asking(self) -> list[Asking[_Connection]]:
        return [(one, one.address, *self._quiet(one)) for one in self._connections()]

    def _tick(self) -> None:
        now_s = self._loop.time()
        stuck = {}
        connections = set(self._connections())
        self._idle = {one: quiet for one, quiet in self._idle.items() if one in connections}
        for connection in connections:
            transport = connection.own_transport
            if not (connection.writing_paused or transport.is_closing()):
                continue
            left = transport.get_write_buffer_size()
            least, since_s = self._stuck.get(connection, (left, now_s))
            if left <= least:
                least, since_s = left - least_of(left), now_s
            stuck[connection] = least, since_s
            if now_s - since_s >= STALL_S:
                self.give_up(transport, "it takes nothing of its answer, or too little")
        self._stuck = stuck
        self.complaints.tick()
        self._making_way.tick()
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
    """Refuses heads that are too long or say what is not known here, and ends a body as soon as it does not go on as HTTP.

    aiohttp does not add up the lines of a head, and says of such a body to nobody before its request has an answer. It reads at once
    what has come at once: of many lines it has a part here, and the next when others have had their turns.

    Attributes:
        address: the peer's, without its port: to ask for it again costs more than all else that is asked of thousands.
        is_gone: it is no connection any more.
        own_transport: its socket's, also once aiohttp has closed it: that waits until the client has taken all.
    """

    __slots__ = (
        "_behind",
        "_body",
        "_in_line",
        "_lines_bytes",
        "_refused",
        "_seen",
        "_turns",
        "address",
        "is_gone",
        "own_transport",
    )

    own_transport: asyncio.WriteTransport

    def __init__(self, turns: Turns, server: web.Server, address: str, **settings: Any) -> None:
        super().__init__(server, **settings)
        self.address = address
        self.is_gone = False
        self._turns = turns
        self._in_line = False
        self._behind = b""  # what has come and aiohttp does not have yet
        self._body: StreamReader = EMPTY_PAYLOAD  # the last that has begun
        # What has come since anything has begun, or gone on.
        self._lines_bytes = 0
        self._refused = False
        # Of what has begun so much has been looked at.
        self._seen = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.own_transport = cast("asyncio.WriteTransport", transport)  # uvloop's is none by its class
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.is_gone = True
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not data:  # aiohttp goes on with what it has kept
            self._give(data)
            return
        self._behind += data
        self._give_part()
        if self._behind:
            self._pause_transport_reading()
            self._resume_transport_reading()

    def go_on(self) -> None:
        self._in_line = False
        if not self._is_held():
            self._give_part()
            self._resume_transport_reading()

    def abort(self) -> None:
        self.own_transport.abort()

    def _resume_transport_reading(self) -> None:
        """For aiohttp, which would have more: what has come already is first, in its turns."""
        if self._is_held():
            return
        if not self._behind:
            super()._resume_transport_reading()
        elif not self._in_line:
            self._in_line = True
            self._turns.take(self)

    def _is_held(self) -> bool:
        """Whether aiohttp is given nothing: what it has is not read yet. It says so by _resume_transport_reading()."""
        return self._reading_paused or self._buffer_paused

    def _give_part(self) -> None:
        end = _end_of_part(self._behind)
        part, self._behind = self._behind[:end], self._behind[end:]
        self._give(part)

    def _give(self, data: bytes) -> None:
        if self._refused or self._close or self._force_close:
            self._behind = b""
            return  # of what ends aiohttp reads nothing, either
        body, there = self._body, self._body.total_bytes
        super().data_received(data)
        if self._look() or body.total_bytes > there:
            self._lines_bytes = 0
            return
        self._lines_bytes += len(data)
        if self._lines_bytes > _HEAD_BYTES:
            self._messages.append(self._refusal())
            self._end_body()
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        set_server_header(resp)
        return await super().finish_response(request, resp, start_time)

    def _look(self) -> int:
        """At what has begun since it was looked at last; returns how much that is."""
        new = self._request_count - self._seen
        self._seen = self._request_count
        for place in range(-new, 0):
            message, body = self._messages[place]
            if isinstance(message, web_protocol._ErrInfo):  # noqa: SLF001  what was no HTTP
                self._end_body(message.message)
            elif (wrong := _wrong(message)) is not None:
                self._messages[place] = self._refusal(*wrong)
            else:
                self._body = body
                if message.upgrade:  # of what comes behind it aiohttp drops a part
                    self._messages[place] = message._replace(should_close=True), body
        return new

    def _refusal(self, status: int = 400, why: str = _TOO_LONG) -> tuple[Any, StreamReader]:
        """What aiohttp answers by that, and by the end of the connection; until then nothing is read."""
        self._refused = True
        error = HttpProcessingError(code=status, message=why)
        return web_protocol._ErrInfo(status, error, why), EMPTY_PAYLOAD  # noqa: SLF001

    def _end_body(self, why: str = _TOO_LONG) -> None:
        if not self._body.is_eof():
            self._body.feed_eof()  # first: where the request has its answer aiohttp waits for no more than this
            self._body.set_exception(web.RequestPayloadError(why))


def _end_of_part(data: bytes) -> int:
    """Where the last of so many lines ends: a head has some of them, a chunk of any length two."""
    at = 0
    for _ in range(_LINES):
        at = data.find(b"\r", at) + 1
        if not at:
            return len(data)
    return at


def _wrong(message: Any) -> tuple[int, str] | None:
    """For which status, and why, a head is refused that aiohttp takes."""
    if sum(len(name) + len(value) for name, value in message.raw_headers) > _HEAD_BYTES:
        return 400, _TOO_LONG
    if message.chunked and message.version < HttpVersion11:
        return 400, "HTTP/1.0 has no Transfer-Encoding"
    if message.chunked and message.headers["Transfer-Encoding"].lower() != "chunked":
        return 501, "Of Transfer-Encoding there is chunked, and no other"
    return None


class _Newcomer(asyncio.Protocol):
    """A connection of which it is seen now whose it is.

    Args:
        take: returns its protocol; None where it is not taken.
    """

    def __init__(self, take: Callable[[asyncio.BaseTransport], asyncio.Protocol | None]) -> None:
        self._take = take

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        protocol = self._take(transport)
        if protocol is None:
            cast("asyncio.WriteTransport", transport).abort()  # uvloop's is none by its class
            return
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


def _peer(transport: asyncio.BaseTransport) -> str:
    return peer_name(transport.get_extra_info("peername"))
