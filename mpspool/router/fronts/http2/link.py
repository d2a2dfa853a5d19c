"""A socket with its HTTP/2 connection."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, cast

from mpspool.core import log
from mpspool.core.http2_frames import ErrorCode
from mpspool.router.fronts.http2.connection import Connection
from mpspool.router.fronts.http2.gathering import Gathered
from mpspool.router.fronts.http2.sending import Output
from mpspool.router.fronts.sockets import address_of, peer_name, unread, unsent

if TYPE_CHECKING:
    from mpspool.router.fronts.http2.listener import Listener

logger = log.get("http2")

# A socket's buffer of our own, past the kernel's, before answers wait in their streams.
_HIGH_WATER_BYTES = 2**18
# The same while answers that are not taken hold all that they should.
_LOW_WATER_BYTES = 2**14
# A socket is read many times in a row, 256 KB each, before another is: who takes longer than this with one read makes way, and
# so does who has sent more than is read in one turn.
_SLICE_S = 0.002
# For a peer to take the last bytes and close its side.
LINGER_S = 0.5


class Link(asyncio.Protocol):
    """One socket with its Connection.

    Attributes:
        address: the peer's, without its port.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        # Since when too little has gone of what the transport has, and what it has when enough has gone.
        self._stuck_s: float | None = None
        self._least = 0
        # In the transport's buffer, as far as it is counted as held, and whose.
        self._buffered = 0
        self._client: str | None = None
        # Since when nothing more was read, for others' sake, and whether what is read next has come meanwhile.
        self._paused_s = 0.0
        self._waits = False
        self._water_bytes = _HIGH_WATER_BYTES
        self._gone = False
        self._over_s: float | None = None
        self._said = False
        self.address = ""
        # The last stream that there was, as of the last tick, and until when one began, or was needed.
        self._last_id = 0
        self._quiet_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class
        listener = self._listener
        self._gathered = Gathered(self.output(transport), transport, listener.gathering)
        self.connection = Connection(
            self._gathered,
            listener.open_stream,
            listener.limits,
            peer=peer_name(transport.get_extra_info("peername")),
            complain=self.complain,
            handed=self._count_anew,
            now_s=listener.now_s(),
        )
        self.address = address_of(transport.get_extra_info("peername"))
        if not listener.has_room(self.address):
            self.complain(ErrorCode.REFUSED_STREAM, f"{listener.max_connections} connections are open")
            self.connection.over = True
            transport.abort()
            return
        self._quiet_s = listener.now_s()
        transport.set_write_buffer_limits(_HIGH_WATER_BYTES)
        listener.joined(self)

    def output(self, transport: asyncio.Transport) -> Output:
        """Where the connection's bytes go."""
        return transport

    def data_received(self, data: bytes) -> None:
        begun_s = time.monotonic()
        waited_s = begun_s - self._paused_s if self._waits else 0.0
        self._waits = False
        self.read(data, begun_s, waited_s)
        late = self.connection.behind or time.monotonic() - begun_s > _SLICE_S
        if late and not self._transport.is_closing():
            self._paused_s = begun_s
            self._transport.pause_reading()
            self._listener.turns.take(self)

    def read(self, data: bytes, now_s: float, waited_s: float) -> None:
        """What came by the socket, the time, and for how long it may have waited."""
        try:
            self.connection.receive(data, now_s, waited_s)
        except Exception:
            logger.exception("connection failed")
            self.connection.fail(ErrorCode.INTERNAL_ERROR, "the server failed")

    def go_on(self) -> None:
        """It is its turn again."""
        if self._transport.is_closing():
            return
        try:
            self.connection.go_on()
        except Exception:
            logger.exception("connection failed")
            self.connection.fail(ErrorCode.INTERNAL_ERROR, "the server failed")
        if self.connection.behind:
            self._listener.turns.take(self)
        elif not self._transport.is_closing():
            self._waits = unread(self._transport) > 0
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self.connection.pause()
        self._count_anew()
        self._demand_taking(self._listener.now_s())

    def resume_writing(self) -> None:
        self._stuck_s = None
        self._count_anew()
        self.connection.resume()

    def connection_lost(self, _error: Exception | None) -> None:
        self._listener.links.pop(self, None)
        self._let_go()

    def _count_anew(self) -> None:
        """What was handed to the transport and has not gone waits for the peer, as what is queued here does."""
        self._count(0 if self._gone else self._transport.get_write_buffer_size())
        if self._buffered:
            self._listener.memory.waiting.watch(self)

    def _count(self, buffered: int) -> None:
        """The answers of one client after the other count for the last one."""
        client = self.connection.client
        if buffered != self._buffered or client != self._client:
            memory = self._listener.memory
            memory.hold(-self._buffered, client=self._client)
            memory.hold(buffered, client=client)
            self._buffered, self._client = buffered, client

    def _let_go(self) -> None:
        self._gone = True
        self.connection.lost()
        self._count(0)
        self._listener.memory.waiting.forget(self)

    # -- where bytes are short --------------------------------------------------------------------

    def holds(self, model: str | None) -> int:
        if model is not None:
            return sum(stream.held_of(model) for stream in self.connection.streams.values())
        self._count_anew()
        return self._buffered + self.connection.held

    def moved(self) -> int:
        """What the peer's kernel has."""
        return self.connection.sent - self._transport.get_write_buffer_size() - unsent(self._transport)

    def missing(self) -> int:
        return 0

    def make_way(self) -> None:
        text = "it takes nothing of what it asked for, or too little, and others want the room"
        self.complain(ErrorCode.ENHANCE_YOUR_CALM, text)
        if self._buffered:
            self._let_go()
            self._transport.abort()
        else:
            self.connection.cancel_blocked()

    def _settle_water(self) -> None:
        """While too much waits for peers, this one is handed something only when it has taken all but a little."""
        water_bytes = _LOW_WATER_BYTES if self._listener.memory.lacks_answers else _HIGH_WATER_BYTES
        if water_bytes != self._water_bytes:
            self._water_bytes = water_bytes
            self._transport.set_write_buffer_limits(water_bytes)

    def _demand_taking(self, now_s: float) -> None:
        self._stuck_s = now_s
        self._least = self._buffered - self._listener.limits.least(self._buffered)

    def quiet_s(self) -> float | None:
        """Since when nothing that its peer asked is needed, and it has all that it was answered; None while something is."""
        if self._transport.get_write_buffer_size() or self.connection.is_needed():
            return None
        return self._quiet_s

    def leave(self) -> None:
        """Ends the connection, of which nothing is needed: what the peer begins meanwhile it may begin elsewhere."""
        text = f"{self._listener.max_connections} connections are open, and for this one nothing runs"
        self.connection.fail(ErrorCode.NO_ERROR, text)
        asyncio.get_running_loop().call_later(LINGER_S, self.abort)

    def tick(self, now_s: float) -> None:
        self.connection.tick(now_s)
        if self.connection.last_id != self._last_id or self.connection.is_needed():
            self._last_id, self._quiet_s = self.connection.last_id, now_s
        self._count_anew()
        if self._buffered or self.connection.held:
            self._listener.memory.waiting.watch(self)
        else:
            self._listener.memory.waiting.forget(self)
        self._settle_water()
        if self._stuck_s is not None and self._buffered <= self._least:
            self._demand_taking(now_s)
        if self._stuck_s is not None and now_s - self._stuck_s >= self._listener.limits.stall_s:
            self.complain(ErrorCode.NO_ERROR, "it takes nothing of what is sent, or too little")
            self._transport.abort()
        if self.connection.over:
            self._over_s = self._over_s or now_s
            if now_s - self._over_s >= self._listener.limits.greeting_s:
                self._transport.abort()

    def end(self) -> None:
        """Sends what there is, and says that nothing follows; the peer then closes."""
        self.connection.go_away()
        self.connection.lost()
        self.write_end()

    def write_end(self) -> None:
        self._gathered.flush()
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()

    def eof_received(self) -> None:
        """The peer sends no more: the transport closes now, once what it has been given is sent."""
        self._gathered.flush()

    def abort(self) -> None:
        self._transport.abort()

    def complain(self, code: ErrorCode, text: str) -> None:
        """The peer did something wrong."""
        if not self._said:
            self._said = True
            self._listener.complaints.say(
                peer_name(self._transport.get_extra_info("peername")), code.name, text
            )
