"""What a connection reads: frames out of bytes that come in pieces of any size."""

from __future__ import annotations

from typing import Final

from mpspool.core import http2_frames as frames
from mpspool.core.http2_frames import (
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
from mpspool.router.fronts.http2.headers import HeaderDecoder, RequestHead
from mpspool.router.fronts.http2.limits import Limits
from mpspool.router.fronts.http2.sending import Output, Sender
from mpspool.router.fronts.http2.streams import Stream

# A header block, or SETTINGS, of more bytes than this on the wire ends the connection.
_MAX_BLOCK_BYTES = 64 * 1024
_MAX_CONTINUATIONS = 32
# The most that a DATA frame has beside its data: the last one of a message has to fit into its stream's window with it.
_MOST_PADDING_BYTES = 256
# A padded frame with less data brings nothing: it is answered by a WINDOW_UPDATE.
_LEAST_PADDED_BYTES = 64
# Frames that are read in one turn, before others have theirs, and as how many of them a header block counts: some tenths of a millisecond.
# Each few bytes of it count as one more: a field of it may be one byte.
_FRAMES_OF_TURN: Final = 512
_FRAMES_OF_BLOCK: Final = 128
_BYTES_AS_FRAME: Final = 8
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


class Receiver(Sender):
    """The reading half of a connection; what the frames mean is for those who derive from it.

    DATA is handed on as it comes, everything else when it is whole.

    Attributes:
        limits: see there.
        greeted: the peer speaks HTTP/2.
        over: the connection has ended, and nothing is read any more.
        behind: what has come was too much for one turn; the rest waits for go_on().
        came_s: when the header block that was read last came, as far as that is known.
        knew_block: that header block had come before.
        turn_left: frames that may be read before others have their turn.
        last_id: the highest stream that the peer has begun.
    """

    def __init__(self, output: Output, limits: Limits, peer: str, now_s: float) -> None:
        super().__init__(output, limits.control_bytes, now_s)
        self.limits = limits
        self.greeted = self.over = self.behind = False
        self.came_s = now_s
        self.last_id = 0
        self.turn_left = 0
        self.knew_block = False
        self._heard = True
        self._headers = HeaderDecoder(peer, limits.header_list_bytes)
        # What has come and is not read, from there on.
        self._rest = b""
        self._read = 0
        # When the first of it may have come, and the last: all of it at even times, as far as anyone knows.
        self._first_s = self._last_s = now_s
        # The DATA frame that is being read: bytes to come, of padding, whose they are, whether they are the last.
        self._left = self._padding = 0
        self._into: Stream | None = None
        self._ends = False
        # The header block that is being read: stream, flags, parts.
        self._block: tuple[int, int, list[bytes]] | None = None
        self._in_window = limits.connection_window_bytes

    # -- what is made of it -----------------------------------------------------------------------

    def on_greeting(self) -> None:
        """The peer's preface is there, and ours has been sent."""
        raise NotImplementedError

    def on_control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """A frame that is neither DATA nor of a header block. Raises ProtocolError."""
        raise NotImplementedError

    def on_block(self, flags: int, stream_id: int, head: RequestHead) -> None:
        """A whole header block. Raises ProtocolError."""
        raise NotImplementedError

    def receiver(self, stream_id: int, size: int) -> Stream | None:
        """Whose DATA of that size that is; None where it is to be thrown away. Raises ProtocolError."""
        raise NotImplementedError

    def on_end(self, stream: Stream) -> None:
        """The peer has ended its side. Raises ProtocolError."""
        raise NotImplementedError

    def complain(self, code: ErrorCode, text: str) -> None:
        """The peer did something wrong."""
        raise NotImplementedError

    def lost(self) -> None:
        """The connection has ended: so has every stream."""
        raise NotImplementedError

    # -- reading ----------------------------------------------------------------------------------

    def receive(self, data: bytes, now_s: float, waited_s: float = 0.0) -> None:
        """The next bytes from the peer, the time, and for how long the first of them may have waited to be read."""
        if self.over:
            return
        self.now_s = self._last_s = now_s
        self._first_s = now_s - waited_s
        self._heard = True
        if self._rest:
            data = self._rest[self._read :] + data
            self._rest, self._read = b"", 0
        self._read_on(data, 0)

    def go_on(self) -> None:
        """With what has come."""
        self.behind = False
        if self.over:
            return
        data, position = self._rest, self._read
        self._rest, self._read = b"", 0
        self._read_on(data, position)

    def _read_on(self, data: bytes, position: int) -> None:
        try:
            if self.greeted:
                self._walk(data, position)
            else:
                self._greet(data)
        except ProtocolError as error:
            self.fail(error.code, str(error))

    def _greet(self, data: bytes) -> None:
        """Waits for the preface and the head of the first frame, which is SETTINGS; then reads on."""
        if not PREFACE.startswith(data[: len(PREFACE)]):
            if data.startswith(_HTTP_1_METHODS):
                self.complain(ErrorCode.HTTP_1_1_REQUIRED, "the peer speaks HTTP/1")
                self.output.write(_HTTP_1)
                self.lost()
                self.output.close()
                return
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "this is not HTTP/2")
        if len(data) < len(PREFACE) + FRAME_HEADER_BYTES:
            self._rest = data
            return
        word, flags, _ = FRAME_HEADER.unpack_from(data, len(PREFACE))
        self.greeted = True
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
        self.on_greeting()
        self._walk(data, len(PREFACE))

    def _walk(self, data: bytes, position: int) -> None:
        """Reads frames that are whole, and of DATA what is there, for one turn."""
        end = len(data)
        if self._left or self._padding:
            position = self._on_payload(data, position, end)
        max_frame = self.limits.frame_bytes
        self.turn_left = _FRAMES_OF_TURN
        self.behind = False
        while end - position >= FRAME_HEADER_BYTES and not self.over:
            if self.turn_left <= 0:
                self._rest, self._read, self.behind = data, position, True
                return
            self.turn_left -= 1
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
                self.count_useless()
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
                    self.turn_left -= _FRAMES_OF_BLOCK + size // _BYTES_AS_FRAME
                    self.came_s = self._first_s + (self._last_s - self._first_s) * position / end
                    self._on_headers(flags, stream_id, payload)
                elif kind == CONTINUATION:
                    self.turn_left -= size // _BYTES_AS_FRAME
                    self._on_continuation(flags, payload)
                else:
                    self.on_control(kind, flags, stream_id, payload)
        if position < end and not self.over:
            self._rest = data[position:]

    def _on_data(self, data: bytes, start: int, end: int, size: int, flags: int, stream_id: int) -> int:
        """Begins a DATA frame; returns where it has been read to."""
        window = self._in_window = self._in_window - size
        if window < 0:
            raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the connection's window")
        if window < self.limits.connection_window_bytes >> 1:
            self._open_window(self.limits.connection_window_bytes)
        padding, around, least = 0, 0, 1
        if flags & PADDED:
            padding = data[start] if size else 0
            around, least = padding + 1, _LEAST_PADDED_BYTES
            start, size = start + 1, size - around
            if size < 0:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "padding that is longer than its frame")
        stream = self.receiver(stream_id, size + around)
        if size >= least:
            self.useless = min(self.useless, 0)
        elif not flags & END_STREAM:
            self.count_useless()
        if around and stream is not None and not flags & END_STREAM:
            self._give_back(stream, around)
        self._left, self._padding, self._into, self._ends = size, padding, stream, bool(flags & END_STREAM)
        return self._on_payload(data, start, end)

    def _on_payload(self, data: bytes, position: int, end: int) -> int:
        """Goes on with a DATA frame, or with one that is skipped; returns where it has been read to."""
        stop = min(position + self._left, end)
        stream = self._into
        if stop > position:
            self._left -= stop - position
            if stream is not None and stream.open:
                stream.received += stop - position
                stream.on_data(data, position, stop)
        if self._left:
            return stop
        if self._ends and stream is not None and stream.open:
            self._ends = False
            self.on_end(stream)
        skipped = min(self._padding, end - stop)
        self._padding -= skipped
        return stop + skipped

    def _on_headers(self, flags: int, stream_id: int, block: bytes) -> None:
        if not stream_id & 1:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}")
        if flags & (PADDED | HAS_PRIORITY):
            block = _unwrap(flags, block)
        if flags & END_HEADERS:
            self.on_block(flags, stream_id, self._decode(block))
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
            self.on_block(first_flags, stream_id, self._decode(b"".join(parts)))

    def _decode(self, block: bytes) -> RequestHead:
        self.knew_block = self._headers.knows(block)
        return self._headers.decode(block)

    def count_useless(self, count: int = 1) -> None:
        self.useless += count
        if self.useless > self.limits.useless:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that bring nothing")

    # -- the peer's windows -----------------------------------------------------------------------

    def expect(self, stream: Stream, size: int) -> None:
        """Lets the peer send `size` bytes more of a stream without waiting for us, padded or not."""
        window = min(size + _MOST_PADDING_BYTES, MAX_WINDOW)
        if stream.receiving and stream.open and stream.in_window < window:
            increment = window - stream.in_window
            stream.in_window += increment
            self.output.write(frames.window_update(stream.id, increment))
        self._open_window(min(size, MAX_WINDOW))

    def _give_back(self, stream: Stream, size: int) -> None:
        """What took a part of the stream's window and is none of its message: that would not come whole otherwise."""
        stream.in_window += size
        self.write_control(frames.window_update(stream.id, size))

    def _open_window(self, size: int) -> None:
        if self._in_window < size:
            self.output.write(frames.window_update(0, size - self._in_window))
            self._in_window = size


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
