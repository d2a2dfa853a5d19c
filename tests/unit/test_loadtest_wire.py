"""The load test's HTTP/2, against the h2 library as the server; no socket."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hpack import Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from mpspool.core import http2_frames as frames
from mpspool.core.errors import Code
from mpspool.core.metadata import MetadataError
from mpspool.loadtest.request import Request, header_block, timeout
from mpspool.loadtest.wire import LAST_STREAM, Call, Connection, WireError

H2 = h2.connection.H2Connection
BLOCK = header_block("/a.B/C", "host:1", [("x-key", "value")], 5.0)
HEAD = [(":status", "200"), ("content-type", "application/grpc")]
OK = [("grpc-status", "0")]


class Server:
    """h2's, which answers each request with what `answer` makes of its body, and pumps bytes both ways.

    Args:
        answer: body without gRPC's prefix -> body, or "CODE text" for a status.
        settings: of the server's first frame.
        cuts: how many bytes the client is given at once, in turn.
        last_stream: of the client.
    """

    def __init__(
        self,
        answer: Callable[[bytes], bytes | str] = lambda body: body,
        settings: dict[int, int] | None = None,
        cuts: list[int] | None = None,
        last_stream: int = LAST_STREAM,
    ) -> None:
        self.h2 = H2(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self.sent: list[bytes] = []
        self.client = Connection(self.sent.append, last_stream=last_stream)
        self.bodies: dict[int, bytes] = {}
        self.headers: list[dict[str, str]] = []
        self.resets: list[int] = []
        self._answer = answer
        self._cuts = cuts or [2**20]
        self._left: dict[int, bytes] = {}
        self.client.open()
        self.h2.initiate_connection()
        if settings:
            self.h2.update_settings(settings)

    def call(self, body: bytes) -> Call:
        call = Call(Request(BLOCK, body), keep=True)
        self.client.start(call)
        return call

    def pump(self) -> list[Call]:
        """Until neither side has anything to say."""
        over: list[Call] = []
        while True:
            data = b"".join(self.sent)
            self.sent.clear()
            self._events(self.h2.receive_data(data) if data else [])
            back = self.h2.data_to_send()
            if not data and not back:
                return over
            for piece in self._pieces(back):
                over += self.client.receive(piece)

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        at, turn = 0, 0
        while at < len(data):
            size = self._cuts[turn % len(self._cuts)]
            yield data[at : at + size]
            at, turn = at + size, turn + 1

    def _events(self, events: list[h2.events.Event]) -> None:
        self.resets += [event.stream_id for event in events if isinstance(event, h2.events.StreamReset)]
        for event in events:
            match event:
                case h2.events.RequestReceived():
                    self.headers.append(dict(event.headers))
                    self.bodies[event.stream_id] = b""
                case h2.events.DataReceived():
                    self.bodies[event.stream_id] += event.data
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case h2.events.StreamEnded() if event.stream_id not in self.resets:
                    self._reply(event.stream_id)
                case h2.events.WindowUpdated():
                    for stream in list(self._left):
                        self._go_on(stream)

    def _reply(self, stream: int) -> None:
        body = self.bodies[stream]
        flag, length = struct.unpack(">BI", body[:5])
        assert (flag, length) == (0, len(body) - 5)
        answer = self._answer(body[5:])
        if isinstance(answer, str):
            code, _, text = answer.partition(" ")
            self.h2.send_headers(
                stream, [*HEAD, ("grpc-status", code), ("grpc-message", text)], end_stream=True
            )
            return
        self.h2.send_headers(stream, HEAD)
        self._left[stream] = struct.pack(">BI", 0, len(answer)) + answer
        self._go_on(stream)

    def _go_on(self, stream: int) -> None:
        """As much of an answer as the client allows."""
        while left := self._left[stream]:
            size = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size, len(left))
            if not size:
                return
            self.h2.send_data(stream, left[:size])
            self._left[stream] = left[size:]
        del self._left[stream]
        self.h2.send_headers(stream, OK, end_stream=True)


def texts(calls: list[Call]) -> list[bytes]:
    return [b"".join(call.parts or ())[5:] for call in calls]


def test_calls_are_answered() -> None:
    """Many calls on one connection are answered with their own bodies, and the server saw gRPC's headers."""
    server = Server()
    server.pump()
    assert server.client.ready
    calls = [server.call(b"%d" % n) for n in range(100)]
    over = server.pump()
    assert over == calls
    assert texts(over) == [b"%d" % n for n in range(100)]
    assert {call.code for call in over} == {0}
    assert all(
        headers
        == {
            ":method": "POST",
            ":scheme": "http",
            ":path": "/a.B/C",
            ":authority": "host:1",
            "content-type": "application/grpc",
            "user-agent": "mpspool-bench",
            "te": "trailers",
            "grpc-timeout": "5000000u",
            "x-key": "value",
        }
        for headers in server.headers
    )


@settings(max_examples=60)
@given(
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=20),
    sizes=st.lists(st.integers(0, 60_000), min_size=1, max_size=6),
)
def test_it_does_not_matter_how_bytes_come(cuts: list[int], sizes: list[int]) -> None:
    """However the server's bytes are cut, each answer is whole."""
    server = Server(cuts=cuts if sum(sizes) < 50_000 else [cut * 997 for cut in cuts])
    server.pump()
    for size in sizes:
        server.call(bytes(size))
    over = server.pump()
    assert texts(over) == [bytes(size) for size in sizes]
    assert [call.length for call in over] == [size + 5 for size in sizes]


@settings(max_examples=40)
@given(
    window=st.integers(0, 200_000),
    frame=st.integers(16384, 100_000),
    sizes=st.lists(st.integers(0, 400_000), min_size=1, max_size=5),
)
def test_windows_and_frames_of_the_server_are_kept(window: int, frame: int, sizes: list[int]) -> None:
    """Large requests arrive whole in frames and windows of the server's size: h2 refuses any byte more."""
    codes = h2.settings.SettingCodes
    server = Server(settings={codes.INITIAL_WINDOW_SIZE: window, codes.MAX_FRAME_SIZE: frame})
    server.pump()
    calls = [server.call(bytes([size % 251]) * size) for size in sizes]
    over = server.pump()
    if not window:
        # The server opens no stream's window: the bodies wait, and the windows can grow later.
        assert not over
        server.h2.update_settings({codes.INITIAL_WINDOW_SIZE: 50_000})
        over = server.pump()
    assert sorted(texts(over)) == sorted(bytes([size % 251]) * size for size in sizes)
    assert len(over) == len(calls)


def test_no_more_streams_than_the_server_allows() -> None:
    """With two streams allowed, the third call waits for one to be over: h2 refuses a third."""
    server = Server(settings={h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 2})
    server.pump()
    calls = [server.call(b"%d" % n) for n in range(9)]
    assert server.client.count == 9
    assert [call.waited for call in calls] == [False] * 2 + [True] * 7
    assert texts(server.pump()) == [b"%d" % n for n in range(9)]


def test_status_and_text() -> None:
    """A call that fails has the code and the text, percent-decoded."""
    server = Server(lambda _: "8 no%20room")
    server.pump()
    server.call(b"x")
    (call,) = server.pump()
    assert (call.code, call.text, call.length) == (Code.RESOURCE_EXHAUSTED, "no room", 0)


def test_header_blocks_that_change_the_table() -> None:
    """Trailers that are equal in bytes and not in meaning, for the table has moved between them, are told apart."""
    texts_seen = iter(range(10**6))
    server = Server(lambda _: f"9 text-{next(texts_seen) % 7}-{'x' * 300}")
    server.pump()
    for n in range(200):
        server.call(b"x")
        (call,) = server.pump()
        assert call.text == f"text-{n % 7}-{'x' * 300}"


def test_a_stream_that_is_reset() -> None:
    """A reset has the code that gRPC gives it; one that was refused unseen says so."""
    for error, code, refused in (
        (frames.ErrorCode.REFUSED_STREAM, Code.UNAVAILABLE, True),
        (frames.ErrorCode.ENHANCE_YOUR_CALM, Code.RESOURCE_EXHAUSTED, False),
        (frames.ErrorCode.PROTOCOL_ERROR, Code.INTERNAL, False),
        (99, Code.INTERNAL, False),
    ):
        server = Server()
        server.pump()
        call = server.call(b"x")
        (over,) = server.client.receive(
            frames.frame(frames.RST_STREAM, 0, call.stream, int(error).to_bytes(4, "big"))
        )
        assert (over.code, over.refused) == (code, refused)


def test_goaway() -> None:
    """Calls above the server's last stream are refused, those below go on, and the connection takes no more."""
    server = Server()
    server.pump()
    first, second = server.call(b"1"), server.call(b"2")
    payload = first.stream.to_bytes(4, "big") + bytes(4) + b"bye"
    assert server.client.receive(frames.frame(frames.GOAWAY, 0, 0, payload)) == [second]
    assert second.refused
    assert "bye" in server.client.closing
    assert texts(server.pump()) == [b"1"]


def test_stream_ids_are_used_up() -> None:
    """Above the last stream id the connection says that it takes no more, and those in flight are answered."""
    server = Server(last_stream=5)
    server.pump()
    for n in range(3):
        assert not server.client.closing
        server.call(b"%d" % n)
    assert server.client.closing
    assert len(server.pump()) == 3


def test_a_call_is_cancelled() -> None:
    """The server is told; what it still sends to that stream is ignored."""
    server = Server()
    server.pump()
    call = server.call(b"x")
    server.client.cancel(call)
    assert server.client.count == 0
    assert server.pump() == []
    assert server.resets == [call.stream]
    server.call(b"y")
    assert texts(server.pump()) == [b"y"]


def test_what_waited_for_a_call_that_is_cancelled_is_sent() -> None:
    """A server that has nothing left to answer says nothing that could set it off."""
    server = Server(settings={h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 1})
    server.pump()
    first = server.call(b"x")
    server.call(b"y")
    server.client.cancel(first)
    server.client.start_waiting()
    assert texts(server.pump()) == [b"y"]


def test_an_answer_before_the_request_is_whole() -> None:
    """A server that refuses a large request at its head ends the call, and the rest is not sent."""
    server = Server()
    server.pump()
    call = server.call(bytes(200_000))
    server.h2.receive_data(b"".join(server.sent))
    server.sent.clear()
    server.h2.send_headers(call.stream, [*HEAD, ("grpc-status", "8")], end_stream=True)
    (over,) = server.client.receive(server.h2.data_to_send())
    assert over.code == Code.RESOURCE_EXHAUSTED
    server.pump()
    assert server.resets == [call.stream]


def test_pings_and_settings_are_answered() -> None:
    """h2 gets its ping back, and sees its settings acknowledged."""
    server = Server()
    server.pump()
    server.h2.ping(b"12345678")
    server.h2.update_settings({h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 7})
    assert not server.client.receive(server.h2.data_to_send())
    kinds = {type(event) for event in server.h2.receive_data(b"".join(server.sent))}
    assert {h2.events.PingAckReceived, h2.events.SettingsAcknowledged} <= kinds


def test_much_is_received() -> None:
    """More than the windows hold comes on one connection: they are opened again."""
    server = Server(lambda _: bytes(2**20))
    server.pump()
    over: list[Call] = []
    for _ in range(600):
        call = Call(Request(BLOCK, b"x"))
        server.client.start(call)
        over += server.pump()
        if server.h2.outbound_flow_control_window > 2**31 - 2**28 and len(over) > 260:
            break
    else:
        raise AssertionError("the connection's window was never opened again")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP/2"),
        (frames.frame(frames.PING, 0, 0, bytes(8)), "HTTP/2"),
        (frames.settings(()) + frames.frame(frames.HEADERS, 4, 1, bytes(20_000))[:9], "20000 bytes"),
        (frames.settings(()) + frames.frame(frames.CONTINUATION, 4, 1), "broken off"),
        (
            frames.settings(())
            + frames.frame(frames.HEADERS, 0, 1)
            + frames.frame(frames.PING, 0, 0, bytes(8)),
            "broken off",
        ),
        (frames.settings(()) + frames.frame(frames.HEADERS, 4, 1, b"\xff\xff\xff"), "header block"),
        (frames.settings(()) + frames.frame(frames.PUSH_PROMISE, 4, 1), "push"),
        (frames.settings([(frames.Setting.MAX_FRAME_SIZE, 5)]), "5 bytes"),
        (frames.settings(()) + frames.window_update(0, 2**31 - 1), "window"),
    ],
)
def test_what_is_no_http2(data: bytes, text: str) -> None:
    """A server that breaks the protocol is told by what it did."""
    client = Connection(lambda _: None)
    client.open()
    with pytest.raises(WireError, match=text):
        client.receive(data)


def test_what_was_over_before_is_told() -> None:
    """A call whose answer is in the same bytes is over; the other is lost with the connection."""
    client = Connection(lambda _: None)
    client.open()
    client.receive(frames.settings(()))
    first, second = Call(Request(BLOCK, b"x")), Call(Request(BLOCK, b"x"))
    client.start(first)
    client.start(second)
    answer = frames.frame(frames.HEADERS, 5, 1, Encoder().encode([*HEAD, *OK]))
    with pytest.raises(WireError) as raised:
        client.receive(answer + frames.frame(frames.PUSH_PROMISE, 4, 3))
    assert raised.value.over == [first]
    assert first.code == Code.OK
    assert client.lost() == [second]


@given(data=st.binary(max_size=200), cut=st.integers(0, 200))
def test_any_bytes_are_borne(data: bytes, cut: int) -> None:
    """Whatever a server sends, it is an answer or a WireError."""
    client = Connection(lambda _: None)
    client.open()
    client.receive(frames.settings(()))
    client.start(Call(Request(BLOCK, b"x")))
    try:
        client.receive(data[:cut])
        client.receive(data[cut:])
    except WireError:
        pass


def test_padded_and_continued_frames() -> None:
    """Padding, priorities and header blocks in pieces are read as any other; h2 sends none by itself."""
    server = Server()
    server.pump()
    call = server.call(b"x")
    block = H2(h2.config.H2Configuration(client_side=False)).encoder.encode([*HEAD])
    data = frames.frame(frames.HEADERS, frames.HAS_PRIORITY, call.stream, bytes(5) + block[:1])
    data += frames.frame(frames.CONTINUATION, frames.END_HEADERS, call.stream, block[1:])
    data += frames.frame(frames.DATA, frames.PADDED, call.stream, b"\x03\x00\x00\x00\x00\x01yppp")
    data += frames.frame(
        frames.HEADERS,
        frames.END_HEADERS | frames.END_STREAM,
        call.stream,
        b"\x00\x0bgrpc-status\x010",
    )
    (over,) = server.client.receive(data)
    assert (over.code, over.length, texts([over])) == (0, 6, [b"y"])


@pytest.mark.parametrize(
    ("http", "code"),
    [("503", Code.UNAVAILABLE), ("404", Code.UNIMPLEMENTED), ("200", Code.UNKNOWN), ("418", Code.UNKNOWN)],
)
def test_an_answer_without_a_status(http: str, code: Code) -> None:
    """Where there is no grpc-status it is made of HTTP's, as gRPC's clients do."""
    server = Server()
    server.pump()
    call = server.call(b"x")
    server.h2.receive_data(b"".join(server.sent))
    server.h2.send_headers(call.stream, [(":status", http)], end_stream=True)
    (over,) = server.client.receive(server.h2.data_to_send())
    assert over.code == code
    assert "no grpc-status" in over.text


def test_timeouts() -> None:
    """grpc-timeout has eight digits at most, and is never zero."""
    assert timeout(0.25) == "250000u"
    assert timeout(1e-9) == "1u"
    assert timeout(3600) == "3600000m"
    assert timeout(1e6) == "1000000S"


@pytest.mark.parametrize(
    ("key", "value"),
    [("Upper", "x"), ("grpc-timeout", "1S"), ("te", "x"), ("x", "ü"), ("", "x"), ("x", "y" * 17_000)],
)
def test_metadata_that_cannot_be_sent(key: str, value: str) -> None:
    """It is refused before the load."""
    with pytest.raises(MetadataError):
        header_block("/a.B/C", "host:1", [(key, value)], 1.0)


def test_binary_metadata() -> None:
    """The value of a key in -bin goes in base64 without padding, as gRPC sends it."""
    assert b"x-bin\x07w7w2MjM" not in BLOCK
    assert b"5-bin" not in BLOCK
    assert b"x-bin\x04w7xh" not in BLOCK
    assert b"\x05x-bin\x04w7xh" in header_block("/a.B/C", "h", [("x-bin", "üa")], 1.0)
