"""A server's side of one HTTP/2 connection (RFC 9113), without a socket.

Bytes and the time come in by receive() and tick(); what is to be sent goes out by the Output that the
connection was made with. Whatever the peer does, nothing raises: a broken protocol ends the connection with
the code that the RFC has for it, and what it costs to break it is counted against a budget.

What the peer may send is bounded by flow control for what nobody has asked for yet: a stream's first window
is small, and expect() opens it for a message that was admitted. The connection's own window is given back as
it is used, for what comes is either admitted or thrown away.
"""

from __future__ import annotations

from collections.abc import Callable

from mpspool.router.http2 import frames
from mpspool.router.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    HAS_PRIORITY,
    HEADERS,
    MAX_WINDOW,
    PADDED,
    PREFACE,
    STREAM_ID_MASK,
    ErrorCode,
    ProtocolError,
    Setting,
)
from mpspool.router.http2.headers import HeaderDecoder, RequestHead
from mpspool.router.http2.limits import Limits
from mpspool.router.http2.sending import Output, Sender
from mpspool.router.http2.streams import Stream

# A header block, or SETTINGS, of more bytes than this on the wire ends the connection.
_MAX_BLOCK_BYTES = 64 * 1024
_MAX_CONTINUATIONS = 32
# Streams that we ended early: what the peer still sends on them is no fault of its.
_REMEMBERED_RESETS = 1024
_HTTP_1 = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b"This port speaks gRPC, that is HTTP/2, and nothing else.\n"
)
_HTTP_1_METHODS = (
    b"GET ",
    b"POST ",
    b"PUT ",
    b"HEAD ",
    b"DELETE ",
    b"OPTIONS ",
    b"PATCH ",
    b"CONNECT ",
    b"TRACE ",
)


class Connection(Sender):
    """One connection.

    Args:
        output: takes what is to be sent.
        open_stream: makes the Stream of a request.
        limits: see there.
        peer: who it is, for RequestHead.
        held: told how many bytes more, or fewer, wait for the peer to take them.
        complain: told what the peer did wrong; for a stream, or, the last time, for the connection.
        now_s: the time.

    Attributes:
        over: it has ended, and nothing is read any more.
    """

    def __init__(
        self,
        output: Output,
        open_stream: Callable[[Connection, int, RequestHead], Stream],
        limits: Limits,
        *,
        peer: str = "",
        held: Callable[[int], None] = lambda _bytes: None,
        complain: Callable[[ErrorCode, str], None] = lambda _code, _text: None,
        now_s: float = 0.0,
    ) -> None:
        super().__init__(output, held, limits.control_bytes, now_s)
        self.limits = limits
        self.over = False
        self._open_stream = open_stream
        self._complain = complain
        self._headers = HeaderDecoder(peer, limits.header_list_bytes)
        self._greeted = False
        self._rest = b""
        # The DATA frame that is being read: bytes to come, of padding, whose they are, whether they are the last.
        self._left = self._padding = 0
        self._into: Stream | None = None
        self._ends = False
        # The header block that is being read: stream, flags, parts, their size.
        self._block: tuple[int, int, list[bytes]] | None = None
        self._in_window = limits.connection_window_bytes
        self._last_id = 0
        self._goaway_id: int | None = None
        self._resets: dict[int, None] = {}
        self._resets_left = limits.resets
        self._heard = True
        self._heard_s = self._begun_s = now_s
        self._pinged_s: float | None = None
        self._control = {
            frames.PRIORITY: self._on_priority,
            frames.RST_STREAM: self._on_rst_stream,
            frames.SETTINGS: self._on_settings,
            frames.PUSH_PROMISE: self._on_push_promise,
            frames.PING: self._on_ping,
            frames.GOAWAY: self._on_goaway,
            frames.WINDOW_UPDATE: self._on_window_update,
        }

    # -- what the shell calls ---------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """The next bytes from the peer."""
        if self.over:
            return
        self._heard = True
        try:
            if self._rest:
                data = self._rest + data
                self._rest = b""
            if self._greeted:
                self._walk(data)
            else:
                self._greet(data)
        except ProtocolError as error:
            self.fail(error.code, str(error))

    def tick(self, now_s: float) -> None:
        """To be called about once a second."""
        self.now_s = now_s
        self.useless = 0
        self._resets_left = self.limits.resets
        if self._heard:
            self._heard, self._heard_s, self._pinged_s = False, now_s, None
        if not self._greeted:
            if now_s - self._begun_s >= self.limits.greeting_s:
                self.fail(ErrorCode.NO_ERROR, "nothing that begins an HTTP/2 connection came in time")
        elif self._pinged_s is not None:
            if now_s - self._pinged_s >= self.limits.ping_s:
                self.fail(ErrorCode.NO_ERROR, "a ping was not answered")
        elif now_s - self._heard_s >= self.limits.silence_s:
            self._pinged_s = now_s
            self.output.write(frames.frame(frames.PING, 0, 0, bytes(8)))
        self._see_stalls(now_s - self.limits.stall_s)

    def _see_stalls(self, before_s: float) -> None:
        for stream in list(self.streams.values()):
            if stream.touched_s > before_s or not stream.open:
                continue
            if stream.queued:
                if self.out_window <= 0:
                    self.fail(ErrorCode.NO_ERROR, "it takes nothing of what it asked for")
                    return
                self._reset(stream, ErrorCode.CANCEL, "it takes nothing of what it asked for")
            elif stream.receiving:
                stream.on_stalled()

    def go_away(self) -> None:
        """Takes no more streams; those that there are go on."""
        if self._goaway_id is None and not self.over:
            self._goaway_id = self._last_id
            if self._greeted:
                self.output.write(frames.goaway(self._last_id, ErrorCode.NO_ERROR))

    def fail(self, code: ErrorCode, text: str) -> None:
        """Ends the connection, and says why."""
        if self.over:
            return
        self._complain(code, text)
        if self._greeted:
            self.output.write(frames.goaway(self._last_id, code, text))
        self.lost()
        self.output.close()

    def lost(self) -> None:
        """The connection has ended: so has every stream."""
        self.over = True
        for stream in list(self.streams.values()):
            self._drop(stream)

    # -- what streams call, besides what Sender has -----------------------------------------------

    def expect(self, stream: Stream, size: int) -> None:
        """Lets the peer send `size` bytes more of a stream without waiting for us."""
        if stream.receiving and stream.open and stream.in_window < size:
            increment = min(size, MAX_WINDOW) - stream.in_window
            stream.in_window += increment
            self.output.write(frames.window_update(stream.id, increment))
        self._open_window(min(size, MAX_WINDOW))

    def _open_window(self, size: int) -> None:
        if self._in_window < size:
            self.output.write(frames.window_update(0, size - self._in_window))
            self._in_window = size

    # -- reading frames ---------------------------------------------------------------------------

    def _greet(self, data: bytes) -> None:
        """Waits for the preface and the head of the first frame, which is SETTINGS; then reads on."""
        if not PREFACE.startswith(data[: len(PREFACE)]):
            if data.startswith(_HTTP_1_METHODS):
                self._complain(ErrorCode.HTTP_1_1_REQUIRED, "the peer speaks HTTP/1")
                self.output.write(_HTTP_1)
                self.lost()
                self.output.close()
                return
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "this is not HTTP/2")
        if len(data) < len(PREFACE) + FRAME_HEADER_BYTES:
            self._rest = data
            return
        word, flags, _ = FRAME_HEADER.unpack_from(data, len(PREFACE))
        self._greeted = True
        self.output.write(
            frames.settings(
                (
                    (Setting.MAX_CONCURRENT_STREAMS, self.limits.streams),
                    (Setting.INITIAL_WINDOW_SIZE, self.limits.window_bytes),
                    (Setting.MAX_FRAME_SIZE, self.limits.frame_bytes),
                    (Setting.MAX_HEADER_LIST_SIZE, self.limits.header_list_bytes),
                )
            )
            + frames.window_update(0, self.limits.connection_window_bytes - frames.DEFAULT_WINDOW)
        )
        if word & 0xFF != frames.SETTINGS or flags & ACK:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if self._goaway_id is not None:
            self.output.write(frames.goaway(0, ErrorCode.NO_ERROR))
        self._walk(data[len(PREFACE) :])

    def _walk(self, data: bytes) -> None:
        """Reads all frames that are whole, and of DATA what is there."""
        position, end = 0, len(data)
        if self._left or self._padding:
            position = self._on_payload(data, 0, end)
        max_frame = self.limits.frame_bytes
        while end - position >= FRAME_HEADER_BYTES and not self.over:
            word, flags, stream_id = FRAME_HEADER.unpack_from(data, position)
            size, kind = word >> 8, word & 0xFF
            stream_id &= STREAM_ID_MASK
            if size > max_frame:
                raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            if self._block is not None and (kind != CONTINUATION or stream_id != self._block[0]):
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
            start = position + FRAME_HEADER_BYTES
            if kind == DATA:
                if flags & PADDED and size and start == end:
                    break  # how much padding is not here yet
                position = self._on_data(data, start, end, size, flags, stream_id)
            elif kind > CONTINUATION:
                self._count_useless()
                self._left, self._padding, self._into, self._ends = 0, size, None, False
                position = self._on_payload(data, start, end)
            elif size > _MAX_BLOCK_BYTES:
                raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, f"a frame of {size} bytes that is not DATA")
            elif end - start < size:
                break
            else:
                position = start + size
                payload = data[start:position]
                if kind == HEADERS:
                    self._on_headers(flags, stream_id, payload)
                elif kind == CONTINUATION:
                    self._on_continuation(flags, payload)
                else:
                    self._control[kind](flags, stream_id, payload)
        if position < end and not self.over:
            self._rest = data[position:]

    def _on_data(self, data: bytes, start: int, end: int, size: int, flags: int, stream_id: int) -> int:
        """Begins a DATA frame; returns where it has been read to."""
        window = self._in_window = self._in_window - size
        if window < 0:
            raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the connection's window")
        if window < self.limits.connection_window_bytes >> 1:
            self._open_window(self.limits.connection_window_bytes)
        padding = 0
        if flags & PADDED:
            padding = data[start] if size else 0
            start, size = start + 1, size - 1 - padding
            if size < 0:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "padding that is longer than its frame")
        stream = self._receiver(stream_id, size + padding + (1 if flags & PADDED else 0))
        if size:
            self.useless = 0
        elif not flags & END_STREAM:
            self._count_useless()
        self._left, self._padding, self._into, self._ends = size, padding, stream, bool(flags & END_STREAM)
        return self._on_payload(data, start, end)

    def _receiver(self, stream_id: int, size: int) -> Stream | None:
        """Whose DATA that is; None where it is to be thrown away."""
        stream = self.streams.get(stream_id)
        if stream is None:
            self._on_closed(stream_id)
        elif not stream.receiving:
            self._reset(stream, ErrorCode.STREAM_CLOSED, "DATA after the end of its stream")
        elif size > stream.in_window:
            self._reset(stream, ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond its stream's window")
        else:
            stream.in_window -= size
            return stream
        return None

    def _on_payload(self, data: bytes, position: int, end: int) -> int:
        """Goes on with a DATA frame, or with one that is skipped; returns where it has been read to."""
        stop = min(position + self._left, end)
        stream = self._into
        if stop > position:
            self._left -= stop - position
            if stream is not None and stream.open:
                stream.received += stop - position
                stream.touched_s = self.now_s
                stream.on_data(data, position, stop)
        if self._left:
            return stop
        if self._ends and stream is not None and stream.open:
            self._ends = False
            self._on_end(stream)
        skipped = min(self._padding, end - stop)
        self._padding -= skipped
        return stop + skipped

    def _on_end(self, stream: Stream) -> None:
        stream.receiving = False
        length = stream.head.content_length
        if length >= 0 and length != stream.received:
            self._reset(stream, ErrorCode.PROTOCOL_ERROR, "content-length is not the length")
        else:
            stream.on_end()

    def _on_headers(self, flags: int, stream_id: int, block: bytes) -> None:
        if not stream_id & 1:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}")
        if flags & (PADDED | HAS_PRIORITY):
            block = _unwrap(flags, block)
        if flags & END_HEADERS:
            self._on_block(flags, stream_id, self._headers.decode(block))
        else:
            self._block = stream_id, flags, [block]

    def _on_continuation(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        stream_id, first_flags, parts = self._block
        parts.append(payload)
        if len(parts) > _MAX_CONTINUATIONS or sum(map(len, parts)) > _MAX_BLOCK_BYTES:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "a header block without end")
        if flags & END_HEADERS:
            self._block = None
            self._on_block(first_flags, stream_id, self._headers.decode(b"".join(parts)))

    def _on_block(self, flags: int, stream_id: int, head: RequestHead) -> None:
        if stream_id > self._last_id:
            self._last_id = stream_id
            if self._goaway_id is None:
                self._begin(flags, stream_id, head)
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            self._on_closed(stream_id)
        elif not stream.receiving:
            self._reset(stream, ErrorCode.STREAM_CLOSED, "HEADERS after the end of its stream")
        elif not flags & END_STREAM or head.path or head.method:
            self._reset(
                stream, ErrorCode.PROTOCOL_ERROR, "trailers that do not end their stream, or are none"
            )
        else:
            self._on_end(stream)

    def _begin(self, flags: int, stream_id: int, head: RequestHead) -> None:
        if len(self.streams) >= self.limits.streams:
            self._count_useless()
            self.write_control(frames.rst_stream(stream_id, ErrorCode.REFUSED_STREAM))
            self.remember_reset(stream_id)
            return
        if head.malformed:
            self._refuse(stream_id, ErrorCode.PROTOCOL_ERROR, head.malformed)
            return
        self.useless = 0
        stream = self.streams[stream_id] = self._open_stream(self, stream_id, head)
        stream.receiving = not flags & END_STREAM
        stream.on_head()
        if flags & END_STREAM and stream.open:
            self._on_end(stream)

    # -- the other frames -------------------------------------------------------------------------

    def _on_priority(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "PRIORITY of the connection")
        self._count_useless()
        if len(payload) != 5:
            self._refuse(stream_id, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY of a wrong size")

    def _on_rst_stream(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM of a wrong size")
        self._check_begun(stream_id)
        stream = self.streams.get(stream_id)
        if stream is None:
            self._count_useless()
            return
        if stream.opened_s == self.now_s:
            self._spend_reset()
        self._drop(stream)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "SETTINGS of a stream")
        if len(payload) % 6 or (flags & ACK and payload):
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
        self._count_useless()
        if flags & ACK:
            return
        for key, value in frames.parse_settings(payload):
            if key == Setting.ENABLE_PUSH and value > 1:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH of {value}")
            if key == Setting.INITIAL_WINDOW_SIZE:
                self.resize_windows(value)
            elif key == Setting.MAX_FRAME_SIZE:
                self.resize_frames(value)
        self.write_control(frames.frame(frames.SETTINGS, ACK, 0))

    def _on_push_promise(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "PING of a stream")
        if len(payload) != 8:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "PING of a wrong size")
        self._count_useless()
        if not flags & ACK:
            self.write_control(frames.frame(frames.PING, ACK, 0, payload))

    def _on_goaway(self, _flags: int, stream_id: int, payload: bytes) -> None:
        """The peer begins nothing more, and closes when it has its answers."""
        self._count_useless()
        if stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "GOAWAY of a stream")
        if len(payload) < 8:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY of a wrong size")

    def _on_window_update(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong size")
        self._count_useless()
        increment = int.from_bytes(payload, "big") & STREAM_ID_MASK
        if not stream_id:
            if not increment:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
            self.open_out_window(increment)
        elif (stream := self.streams.get(stream_id)) is None:
            self._check_begun(stream_id)
        elif not increment:
            self._reset(stream, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
        elif stream.out_window + increment > MAX_WINDOW:
            self._reset(stream, ErrorCode.FLOW_CONTROL_ERROR, "a stream's window beyond 2**31-1")
        else:
            stream.out_window += increment
            if stream.queued:
                self.push(stream)

    # -- streams that end early -------------------------------------------------------------------

    def _check_begun(self, stream_id: int) -> None:
        if not stream_id & 1 or stream_id > self._last_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"a frame on stream {stream_id}, which is idle")

    def _on_closed(self, stream_id: int) -> None:
        """DATA or HEADERS on a stream that is no more: nothing wrong where it was us who ended it early."""
        self._check_begun(stream_id)
        self._count_useless()
        if stream_id not in self._resets and (self._goaway_id is None or stream_id <= self._goaway_id):
            self._refuse(stream_id, ErrorCode.STREAM_CLOSED, "a frame on a closed stream")

    def _reset(self, stream: Stream, code: ErrorCode, text: str) -> None:
        self._drop(stream)
        self._refuse(stream.id, code, text)

    def _refuse(self, stream_id: int, code: ErrorCode, text: str) -> None:
        """Resets a stream for what the peer did; there may be no such stream."""
        self._complain(code, f"stream {stream_id}: {text}")
        self._spend_reset()
        self.write_control(frames.rst_stream(stream_id, code))
        self.remember_reset(stream_id)

    def _spend_reset(self) -> None:
        """What is begun and reset at once, by whomever, costs us and not the peer."""
        self._resets_left -= 1
        if self._resets_left < 0:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "too many streams were reset")

    def remember_reset(self, stream_id: int) -> None:
        resets = self._resets
        resets[stream_id] = None
        if len(resets) > _REMEMBERED_RESETS:
            del resets[next(iter(resets))]

    def _drop(self, stream: Stream) -> None:
        self.forget(stream)
        stream.on_reset()

    def _count_useless(self) -> None:
        self.useless += 1
        if self.useless > self.limits.useless:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that bring nothing")


def _unwrap(flags: int, payload: bytes) -> bytes:
    """A header block without padding and priority."""
    start = stop = 0
    if flags & PADDED:
        if not payload:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "HEADERS without its padding's length")
        start, stop = 1, payload[0]
    if flags & HAS_PRIORITY:
        start += 5
    if start + stop > len(payload):
        raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "padding that is longer than its frame")
    return payload[start : len(payload) - stop]
