"""The other end of an HTTP/2 connection: where its bytes go, streams that remember, and frames by hand."""

from __future__ import annotations

from typing import NamedTuple

from mpspool.core import http2_frames as frames
from mpspool.core.http2_frames import ErrorCode
from mpspool.router.fronts.http2.connection import Connection
from mpspool.router.fronts.http2.headers import RequestHead, encode
from mpspool.router.fronts.http2.limits import Limits
from mpspool.router.fronts.http2.streams import Buffer, Stream

LEAD = encode((b":status", b"200"))
TAIL = encode((b"grpc-status", b"0"))
REQUEST = encode(
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/B"), (b"content-type", b"application/grpc")
)
GREETING = frames.PREFACE + frames.settings(())


class Frame(NamedTuple):
    """One that the server sent."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def split(data: bytes) -> list[Frame]:
    """All frames, which have to be whole."""
    found = []
    position = 0
    while position < len(data):
        word, flags, stream = frames.FRAME_HEADER.unpack_from(data, position)
        end = position + frames.FRAME_HEADER_BYTES + (word >> 8)
        assert end <= len(data)
        found.append(Frame(word & 0xFF, flags, stream, data[position + frames.FRAME_HEADER_BYTES : end]))
        position = end
    return found


class Sink:
    """What a connection sends to; as a transport it may be told to take nothing more."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.sent += data

    def writelines(self, list_of_data: list[Buffer]) -> None:
        for data in list_of_data:
            self.write(bytes(data))

    def close(self) -> None:
        self.closed = True


class Remembering(Stream):
    """Keeps what it is told, and answers nothing by itself."""

    __slots__ = ("body", "scene", "told")

    def __init__(self, connection: Connection, stream_id: int, head: RequestHead, scene: Scene) -> None:
        super().__init__(connection, stream_id, head)
        self.scene = scene
        self.body = b""
        self.told: list[str] = []

    def on_head(self) -> None:
        self.told.append("head")

    def on_data(self, data: bytes, start: int, stop: int) -> None:
        assert self.open
        assert start < stop
        self.body += data[start:stop]

    def on_end(self) -> None:
        assert self.open
        self.told.append("end")

    def on_drained(self) -> None:
        self.told.append("drained")

    def on_reset(self) -> None:
        self.told.append("reset")

    def on_stalled(self) -> None:
        self.told.append("stalled")

    def on_held(self, change: int) -> None:
        self.scene.held += change
        assert self.scene.held >= 0


class Echo(Remembering):
    """Answers with what it was sent."""

    __slots__ = ()

    def on_end(self) -> None:
        super().on_end()
        self.connection.respond(self, LEAD, b"", self.body, TAIL)


class Scene:
    """A connection, its sink and all its streams.

    Attributes:
        held: bytes that wait for the peer.
        complaints: codes and texts.
    """

    def __init__(self, limits: Limits | None = None, kind: type[Remembering] = Remembering) -> None:
        self.sink = Sink()
        self.all: dict[int, Remembering] = {}
        self.held = 0
        self.complaints: list[tuple[ErrorCode, str]] = []
        self._kind = kind
        self._read = 0
        self.connection = Connection(
            self.sink,
            self._open,
            limits or Limits(),
            peer="1.2.3.4:5",
            complain=lambda code, text: self.complaints.append((code, text)),
        )

    def _open(self, connection: Connection, stream_id: int, head: RequestHead) -> Stream:
        stream = self.all[stream_id] = self._kind(connection, stream_id, head, self)
        return stream

    def greet(self) -> Scene:
        """Exchanges prefaces; the server's frames of that are not shown any more."""
        self.send(GREETING)
        self.sent()
        return self

    def send(self, *parts: bytes) -> list[Frame]:
        """What the server answers to these frames."""
        self.receive(b"".join(parts))
        return self.sent()

    def receive(self, data: bytes) -> None:
        """These bytes come, at the time of the last tick, and are read, in as many turns as that takes."""
        self.connection.receive(data, self.connection.now_s)
        while self.connection.behind:
            self.connection.go_on()

    def sent(self) -> list[Frame]:
        """What it has sent since this was asked last."""
        new = bytes(self.sink.sent[self._read :])
        self._read = len(self.sink.sent)
        return split(new)

    def check_counts(self) -> None:
        """Nothing is kept for streams that are not open, and of what waits nothing could go."""
        connection = self.connection
        assert all(stream.open for stream in connection.streams.values())
        assert set(connection._waiting) == {
            stream
            for stream in connection.streams.values()
            if stream.lead or (stream.out_window > 0 if stream.queued else stream.tail)
        }
        assert connection.paused or connection.out_window <= 0 or not connection._waiting
        assert self.held == sum(
            stream.queued + stream.cut + len(stream.lead) + len(stream.tail)
            for stream in connection.streams.values()
        )
        assert all(not stream.open for id_, stream in self.all.items() if id_ not in connection.streams)


def headers(stream_id: int, block: bytes = REQUEST, *, end: bool = False, whole: bool = True) -> bytes:
    flags = (frames.END_STREAM if end else 0) | (frames.END_HEADERS if whole else 0)
    return frames.frame(frames.HEADERS, flags, stream_id, block)


def data(stream_id: int, payload: bytes = b"", *, end: bool = False) -> bytes:
    return frames.frame(frames.DATA, frames.END_STREAM if end else 0, stream_id, payload)


def goaway_code(sent: list[Frame]) -> ErrorCode | None:
    """Of the connection's end; None where it did not."""
    codes = [
        ErrorCode(int.from_bytes(frame.payload[4:8], "big")) for frame in sent if frame.kind == frames.GOAWAY
    ]
    return codes[-1] if codes else None


def reset_codes(sent: list[Frame]) -> dict[int, ErrorCode]:
    """Stream -> why it was reset."""
    return {
        frame.stream: ErrorCode(int.from_bytes(frame.payload, "big"))
        for frame in sent
        if frame.kind == frames.RST_STREAM
    }
