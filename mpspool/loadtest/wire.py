"""gRPC's side of a client over HTTP/2, as much of it as a load needs: no socket and no clock in it.

Bytes go out through a callable and come in through receive(), which tells the calls that are over. Answers are not
decoded: their bytes are counted, and the status is looked at. Header blocks have to be followed in their order, for
they may change the table that later ones refer to; those that change nothing are remembered by their bytes, so that the
usual answer costs two look-ups.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from urllib.parse import unquote

from hpack import Decoder, HPACKError

from mpspool.core import http2_frames as frames
from mpspool.core.errors import Code
from mpspool.core.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HAS_PRIORITY,
    HEADERS,
    LARGEST_FRAME_BYTES,
    MAX_WINDOW,
    NO_TABLE,
    PADDED,
    PREFACE,
    STREAM_ID_MASK,
    ErrorCode,
    Setting,
)
from mpspool.loadtest.request import Request

LAST_STREAM = STREAM_ID_MASK
# The server gets back so much of a window at once.
_RETURNED_BYTES = 2**28
_REMEMBERED_BLOCKS = 64
_MAX_BLOCK_BYTES = 2**18
# A frame's header: length (in two parts), type, flags, stream.
_read_header = struct.Struct(">BHBBI").unpack_from
# What a gRPC client makes of a stream's end without a status (grpc/doc/PROTOCOL-HTTP2.md); of all others INTERNAL.
_CODE_OF_RESET = {
    ErrorCode.STREAM_CLOSED: Code.UNKNOWN,
    ErrorCode.REFUSED_STREAM: Code.UNAVAILABLE,
    ErrorCode.CANCEL: Code.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: Code.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: Code.PERMISSION_DENIED,
}
# Of HTTP's status where there is none of gRPC's (grpc/doc/http-grpc-status-mapping.md); of all others UNKNOWN.
_CODE_OF_HTTP = {
    400: Code.INTERNAL,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.UNIMPLEMENTED,
    429: Code.UNAVAILABLE,
    502: Code.UNAVAILABLE,
    503: Code.UNAVAILABLE,
    504: Code.UNAVAILABLE,
}


class WireError(Exception):
    """The server does not keep to the protocol: the connection is of no use any more.

    Attributes:
        over: the calls that were over before, with what was read last.
    """

    over: Sequence[Call] = ()


class Head(NamedTuple):
    """What a header block says: gRPC's status, -1 for none, its text, and HTTP's status, 0 for none."""

    code: int
    text: str
    http: int


class Call:
    """A request on its way.

    Attributes:
        request: what is sent.
        due: when it was to be sent; the caller's business.
        sent: when it was handed over; the caller's business.
        stream: its id; 0 before it has one.
        length: bytes of the answer so far, gRPC's prefix among them.
        parts: pieces of the answer, where they are to be kept; else None.
        code: gRPC's status once it is over; -1 before.
        text: that of the status.
        refused: the server has not looked at it, and says so: it may be sent again.
        again: it was; the caller's business.
        waited: the server allowed no more streams when it was handed over.
    """

    __slots__ = (
        "again", "code", "due", "granted", "http", "length", "parts", "refused", "request", "room", "sent", "stream",
        "text", "unsent", "waited",
    )  # fmt: skip

    def __init__(self, request: Request, due: float = 0.0, sent: float = 0.0, *, keep: bool = False) -> None:
        self.request = request
        self.due = due
        self.sent = sent
        self.stream = 0
        self.length = 0
        self.parts: list[bytes] | None = [] if keep else None
        self.code = -1
        self.text = ""
        self.refused = False
        self.again = False
        self.waited = False
        self.http = 200
        self.unsent: memoryview | None = None
        self.room = 0
        self.granted = 0


class Connection:
    """One connection.

    Args:
        send: takes bytes for the server.
        last_stream: no id above it is used.

    Attributes:
        calls: those in flight, by stream: in the order in which they were sent.
        ready: the server has spoken HTTP/2.
        closing: why nothing more can be started here; "" while it can.
    """

    def __init__(self, send: Callable[[bytes], object], *, last_stream: int = LAST_STREAM) -> None:
        self.calls: dict[int, Call] = {}
        self.ready = False
        self.closing = ""
        self.send = send
        self._last = last_stream
        self._next = 1
        self._waiting: deque[Call] = deque()  # the server allows no more streams
        self._blocked: dict[int, Call] = {}  # the server allows no more bytes
        self._greeted = False  # the first header block is on its way
        # What the server allows.
        self._most = LAST_STREAM
        self._frame = DEFAULT_FRAME_BYTES
        self._window = DEFAULT_WINDOW
        self._stream_window = DEFAULT_WINDOW
        # What is read.
        self._decoder = Decoder()
        self._heads: dict[bytes, Head] = {}
        self._rest = b""
        self._left = 0  # bytes of a DATA frame that are still to come
        self._left_of: tuple[int, int] = (0, 0)  # its stream and flags
        self._block: tuple[int, int, list[bytes]] | None = None  # stream, flags, parts
        self._received = 0

    def open(self) -> None:
        """Says hello: windows as large as there are, for it is not the client that is to be measured."""
        hello = frames.settings(((Setting.ENABLE_PUSH, 0), (Setting.INITIAL_WINDOW_SIZE, MAX_WINDOW)))
        self.send(PREFACE + hello + frames.window_update(0, MAX_WINDOW - DEFAULT_WINDOW))

    def start(self, call: Call) -> None:
        """Sends it, or as much of it as the server allows now."""
        if len(self.calls) >= self._most or self._waiting:
            call.waited = True
            self._waiting.append(call)
        else:
            self._start(call)

    def _start(self, call: Call) -> None:
        stream = call.stream = self._next
        self._next = stream + 2
        if self._next > self._last:
            self.closing = "its stream ids are used up"
        self.calls[stream] = call
        request = call.request
        size = request.size
        if self._greeted and size <= self._frame and size <= self._window and size <= self._stream_window:
            self._window -= size
            number = stream.to_bytes(4, "big")
            self.send(b"".join((request.head, number, request.middle, number, request.body)))
            return
        block = request.block if self._greeted else NO_TABLE + request.block
        self._greeted = True
        self.send(frames.frame(HEADERS, END_HEADERS, stream, block))
        call.unsent = memoryview(request.body)
        call.room = self._stream_window
        if not self._pump(call):
            self._blocked[stream] = call

    def _pump(self, call: Call) -> bool:
        """Sends what may be sent of a body; whether that was the rest."""
        unsent = call.unsent
        assert unsent is not None
        room = min(self._window, call.room, len(unsent))
        if room <= 0 < len(unsent):
            return False
        self._window -= room
        call.room -= room
        out: list[bytes | memoryview] = []
        for begin in range(0, room, self._frame):
            piece = unsent[begin : min(begin + self._frame, room)]
            last = END_STREAM if begin + len(piece) == len(unsent) else 0
            out += [
                len(piece).to_bytes(3, "big"),
                bytes((DATA, last)),
                call.stream.to_bytes(4, "big"),
                piece,
            ]
        self.send(b"".join(out))
        call.unsent = unsent[room:] if room < len(unsent) else None
        return call.unsent is None

    def cancel(self, call: Call) -> None:
        """Forgets it and tells the server."""
        if call.stream:
            self.calls.pop(call.stream, None)
            self._blocked.pop(call.stream, None)
            self._reset(call.stream)
        else:
            self._waiting.remove(call)

    def lost(self) -> list[Call]:
        """The connection is gone: whatever was on its way."""
        found = [*self.calls.values(), *self._waiting]
        self.calls.clear()
        self._waiting.clear()
        self._blocked.clear()
        return found

    @property
    def count(self) -> int:
        """How many are on their way."""
        return len(self.calls) + len(self._waiting)

    def pending(self) -> Iterable[Call]:
        """Whatever is on its way, in the order in which it came."""
        yield from self.calls.values()
        yield from self._waiting

    def receive(self, data: bytes) -> list[Call]:
        """The calls that are over with it. Raises WireError."""
        over: list[Call] = []
        try:
            self._receive(data, over)
        except WireError as error:
            error.over = over
            raise
        return over

    def _receive(self, data: bytes, over: list[Call]) -> None:
        calls, heads = self.calls, self._heads
        end = len(data)
        at = 0
        if self._left:
            at = self._go_on(data, over)
        elif self._rest:
            data = self._rest + data
            end = len(data)
            self._rest = b""
        while end - at >= 9:
            high, low, kind, flags, stream = _read_header(data, at)
            size = high << 16 | low
            begin = at + 9
            if (
                kind == DATA
                and not flags & PADDED
                and size <= DEFAULT_FRAME_BYTES
                and self._block is None
                and self.ready
            ):
                got = min(size, end - begin)
                at = begin + got
                self._received += got
                if (call := calls.get(stream)) is not None:
                    self._data(call, data, begin, at)
                if got < size:
                    self._left, self._left_of = size - got, (stream, flags)
                    break
                if flags & END_STREAM and call is not None:
                    self._finish(call, Head(-1, "", 0), over)
                continue
            if size > DEFAULT_FRAME_BYTES or not self.ready:
                self._check(kind, flags, size)
            if begin + size > end:
                break
            at = begin + size
            if (
                kind == HEADERS
                and flags & END_HEADERS
                and not flags & (PADDED | HAS_PRIORITY)
                and not self._block
            ):
                block = data[begin:at]
                self._headers(stream, flags, heads.get(block) or self._decode(block), over)
            else:
                self._other(kind, flags, stream, data[begin:at], over)
        if at < end:
            self._rest = data[at:]
        if self._received >= _RETURNED_BYTES:
            self.send(frames.window_update(0, self._received))
            self._received = 0
        self.start_waiting()

    def start_waiting(self) -> None:
        """Sends what had to wait, as far as the server allows more by now. To be called after calls were cancelled."""
        while self._waiting and len(self.calls) < self._most and not self.closing:
            self._start(self._waiting.popleft())

    def _go_on(self, data: bytes, over: list[Call]) -> int:
        """The rest of a DATA frame; where it ends."""
        stream, flags = self._left_of
        at = min(self._left, len(data))
        self._left -= at
        self._received += at
        call = self.calls.get(stream)
        if call is not None:
            self._data(call, data, 0, at)
            if not self._left and flags & END_STREAM:
                self._finish(call, Head(-1, "", 0), over)
        return at

    def _data(self, call: Call, data: bytes, begin: int, end: int) -> None:
        call.length += end - begin
        if call.parts is not None:
            call.parts.append(data[begin:end])
        if call.length - call.granted >= _RETURNED_BYTES:
            self.send(frames.window_update(call.stream, call.length - call.granted))
            call.granted = call.length

    def _check(self, kind: int, flags: int, size: int) -> None:
        """What is wrong with a frame before it has come."""
        if not self.ready and (kind != frames.SETTINGS or flags & ACK):
            raise WireError("what answers does not speak HTTP/2")
        if size > DEFAULT_FRAME_BYTES:
            raise WireError(f"a frame of {size} bytes, where {DEFAULT_FRAME_BYTES} are allowed")

    def _other(self, kind: int, flags: int, stream: int, payload: bytes, over: list[Call]) -> None:
        """Whatever is not the usual answer."""
        if (self._block is not None) != (kind == CONTINUATION):
            raise WireError("a header block that is broken off")
        match kind:
            case frames.DATA:
                self._padded_data(flags, stream, payload, over)
            case frames.HEADERS:
                self._block = (stream, flags, [_stripped(payload, flags)])
                self._block_goes_on(flags, over)
            case frames.CONTINUATION:
                self._continuation(flags, stream, payload, over)
            case frames.RST_STREAM:
                self._stream_reset(stream, payload, over)
            case frames.SETTINGS:
                if not flags & ACK:
                    self._settings(payload)
            case frames.PING:
                if not flags & ACK:
                    self.send(frames.frame(frames.PING, ACK, 0, payload))
            case frames.GOAWAY:
                self._goaway(payload, over)
            case frames.WINDOW_UPDATE:
                self._window_update(stream, payload)
            case frames.PUSH_PROMISE:
                raise WireError("a push, which nobody allowed")
            case _:  # PRIORITY, and what is not known has to be ignored
                pass

    def _padded_data(self, flags: int, stream: int, payload: bytes, over: list[Call]) -> None:
        self._received += len(payload)
        call = self.calls.get(stream)
        if call is None:
            return
        content = _stripped(payload, flags & PADDED)
        self._data(call, content, 0, len(content))
        if flags & END_STREAM:
            self._finish(call, Head(-1, "", 0), over)

    def _continuation(self, flags: int, stream: int, payload: bytes, over: list[Call]) -> None:
        assert self._block is not None
        expected, _, parts = self._block
        if stream != expected:
            raise WireError("a header block that is broken off")
        parts.append(payload)
        if sum(map(len, parts)) > _MAX_BLOCK_BYTES:
            raise WireError(f"a header block of more than {_MAX_BLOCK_BYTES} bytes")
        self._block_goes_on(flags, over)

    def _block_goes_on(self, flags: int, over: list[Call]) -> None:
        assert self._block is not None
        stream, first_flags, parts = self._block
        if flags & END_HEADERS:
            self._block = None
            block = b"".join(parts)
            self._headers(stream, first_flags, self._heads.get(block) or self._decode(block), over)

    def _decode(self, block: bytes) -> Head:
        table = self._decoder.header_table
        before = table.maxsize, len(table.dynamic_entries), table.dynamic_entries and table.dynamic_entries[0]
        try:
            fields = dict(self._decoder.decode(block, raw=True))
            found = Head(
                int(fields.get(b"grpc-status", b"-1")),
                unquote(fields.get(b"grpc-message", b"").decode("latin-1")),
                int(fields.get(b":status", b"0")),
            )
        except (HPACKError, ValueError) as error:
            raise WireError(f"a header block that cannot be read: {error}") from error
        after = table.maxsize, len(table.dynamic_entries), table.dynamic_entries and table.dynamic_entries[0]
        # The newest entry itself, and not one that is equal: a full table forgets one for each that comes.
        if before[:2] != after[:2] or before[2] is not after[2] or len(self._heads) >= _REMEMBERED_BLOCKS:
            self._heads.clear()
        else:
            self._heads[block] = found
        return found

    def _headers(self, stream: int, flags: int, head: Head, over: list[Call]) -> None:
        call = self.calls.get(stream)
        if call is None:
            return
        if flags & END_STREAM:
            self._finish(call, head, over)
        elif head.http >= 200:
            call.http = head.http

    def _finish(self, call: Call, head: Head, over: list[Call]) -> None:
        del self.calls[call.stream]
        if call.unsent is not None:
            self._blocked.pop(call.stream, None)
            self._reset(call.stream)
        if head.code >= 0:
            call.code, call.text = head.code, head.text
        else:
            http = head.http or call.http
            call.code = _CODE_OF_HTTP.get(http, Code.UNKNOWN)
            call.text = "the answer has no grpc-status" + (f"; HTTP status {http}" if http != 200 else "")
        over.append(call)

    def _reset(self, stream: int) -> None:
        self.send(frames.rst_stream(stream, ErrorCode.CANCEL))

    def _stream_reset(self, stream: int, payload: bytes, over: list[Call]) -> None:
        call = self.calls.pop(stream, None)
        if call is None:
            return
        self._blocked.pop(stream, None)
        number = int.from_bytes(payload, "big")
        call.code = _CODE_OF_RESET.get(number, Code.INTERNAL)  # type: ignore[call-overload]
        call.text = f"the server reset the stream: {_name(number)}"
        call.refused = number == ErrorCode.REFUSED_STREAM
        over.append(call)

    def _settings(self, payload: bytes) -> None:
        try:
            found = dict(frames.parse_settings(payload))
        except struct.error as error:
            raise WireError("half a setting") from error
        self.ready = True
        self._most = found.get(Setting.MAX_CONCURRENT_STREAMS, self._most)
        self._frame = found.get(Setting.MAX_FRAME_SIZE, self._frame)
        if not DEFAULT_FRAME_BYTES <= self._frame <= LARGEST_FRAME_BYTES:
            raise WireError(
                f"frames of {self._frame} bytes at most, where HTTP/2 has them from {DEFAULT_FRAME_BYTES} on"
            )
        self.send(frames.frame(frames.SETTINGS, ACK, 0))
        if Setting.INITIAL_WINDOW_SIZE in found:
            grown = found[Setting.INITIAL_WINDOW_SIZE] - self._stream_window
            self._stream_window += grown
            for call in self._blocked.values():
                call.room += grown
            self._unblock()

    def _window_update(self, stream: int, payload: bytes) -> None:
        size = int.from_bytes(payload, "big") & STREAM_ID_MASK
        if not stream:
            self._window += size
            if self._window > MAX_WINDOW:
                raise WireError("a window beyond what HTTP/2 has")
            if self._blocked:
                self._unblock()
        elif (call := self._blocked.get(stream)) is not None:
            call.room += size
            if self._pump(call):
                del self._blocked[stream]

    def _unblock(self) -> None:
        for stream, call in list(self._blocked.items()):
            if self._pump(call):
                del self._blocked[stream]
            elif self._window <= 0:
                return

    def _goaway(self, payload: bytes, over: list[Call]) -> None:
        last, number = (
            int.from_bytes(payload[:4], "big") & STREAM_ID_MASK,
            int.from_bytes(payload[4:8], "big"),
        )
        why = payload[8:].decode("utf-8", "replace")
        self.closing = f"the server ends the connection: {_name(number)}{f', {why}' if why else ''}"
        refused = [call for stream, call in self.calls.items() if stream > last]
        for call in refused:
            del self.calls[call.stream]
            self._blocked.pop(call.stream, None)
        refused += self._waiting
        self._waiting.clear()
        for call in refused:
            call.code, call.text, call.refused = Code.UNAVAILABLE, self.closing, True
        over += refused


def _stripped(payload: bytes, flags: int) -> bytes:
    """Without padding and priority."""
    begin, end = 0, len(payload)
    if flags & PADDED and payload:
        begin, end = 1, end - payload[0]
    if flags & HAS_PRIORITY:
        begin += 5
    if begin > end or (flags & PADDED and not payload):
        raise WireError("a frame with more padding than it is long")
    return payload[begin:end]


def _name(number: int) -> str:
    try:
        return ErrorCode(number).name
    except ValueError:
        return f"error {number}"
