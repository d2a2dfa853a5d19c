"""The rules of RFC 9113, frame by frame: what is answered, what ends a stream, what ends the connection."""

from __future__ import annotations

import pytest

from mpspool.core import http2_frames as frames
from mpspool.core.http2_frames import ErrorCode, Setting
from mpspool.router.fronts.http2.headers import encode
from mpspool.router.fronts.http2.limits import Limits
from tests.fakes.http2 import (
    GREETING,
    LEAD,
    REQUEST,
    TAIL,
    Echo,
    Scene,
    data,
    goaway_code,
    headers,
    reset_codes,
)

frame = frames.frame


def greeted(kind=Echo, limits: Limits | None = None) -> Scene:
    return Scene(limits, kind).greet()


def test_prefaces_are_exchanged() -> None:
    """Ours begins with SETTINGS, and acknowledges the peer's."""
    scene = Scene()
    assert scene.send(GREETING[:10]) == []
    sent = scene.send(GREETING[10:])
    assert [item.kind for item in sent] == [frames.SETTINGS, frames.WINDOW_UPDATE, frames.SETTINGS]
    told = dict(frames.parse_settings(sent[0].payload))
    assert told[Setting.MAX_CONCURRENT_STREAMS] == 1024
    assert told[Setting.MAX_FRAME_SIZE] == 2**20
    assert sent[2].flags == frames.ACK


def test_a_request_is_answered() -> None:
    """Headers, data and the end come to its stream, and its answer goes out in order."""
    scene = greeted()
    sent = scene.send(headers(1), data(1, b"abc"), data(1, b"def", end=True))
    assert [(item.kind, item.flags, item.stream) for item in sent] == [
        (frames.HEADERS, frames.END_HEADERS, 1),
        (frames.DATA, 0, 1),
        (frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1),
    ]
    assert sent[1].payload == b"abcdef"
    assert scene.all[1].told == ["head", "end"]
    assert not scene.connection.streams


def test_only_the_first_block_tells_the_peer_that_there_is_no_table() -> None:
    """One size update to 0, whatever the peer allows; later blocks are the same bytes every time."""
    scene = greeted()
    blocks = [scene.send(headers(number), data(number, b"x", end=True))[0].payload for number in (1, 3, 5)]
    assert blocks == [b"\x20" + LEAD, LEAD, LEAD]


def test_the_end_may_come_with_the_headers_with_no_data_or_with_trailers() -> None:
    """Three ways of having said all."""
    scene = greeted()
    scene.send(headers(1, end=True))
    scene.send(headers(3), data(3, b"x"), data(3, end=True))
    scene.send(headers(5), data(5, b"y"), headers(5, encode((b"x-trailer", b"1")), end=True))
    assert [scene.all[number].told for number in (1, 3, 5)] == [["head", "end"]] * 3
    assert [scene.all[number].body for number in (1, 3, 5)] == [b"", b"x", b"y"]


def test_headers_in_parts_padded_and_with_priority() -> None:
    """CONTINUATION, padding and the old priority are all read over."""
    scene = greeted()
    cut = len(REQUEST) // 2
    scene.send(headers(1, REQUEST[:cut], end=True, whole=False))
    scene.send(frame(frames.CONTINUATION, frames.END_HEADERS, 1, REQUEST[cut:]))
    flags = frames.END_HEADERS | frames.END_STREAM | frames.PADDED | frames.HAS_PRIORITY
    scene.send(frame(frames.HEADERS, flags, 3, b"\x07" + bytes(5) + REQUEST + bytes(7)))
    assert [scene.all[number].head.path for number in (1, 3)] == ["/a/B", "/a/B"]


@pytest.mark.parametrize("size", [0, 1, 5, 1000])
def test_padding_is_no_data(size: int) -> None:
    """It counts for the windows and reaches nobody, in one piece or byte by byte."""
    padded = frame(frames.DATA, frames.PADDED | frames.END_STREAM, 1, b"\x09" + bytes(size) + bytes(9))
    for step in (len(padded), 1):
        scene = greeted()
        scene.send(headers(1))
        for start in range(0, len(padded), step):
            scene.send(padded[start : start + step])
        assert scene.all[1].body == bytes(size)
        assert scene.all[1].told == ["head", "end"]
        assert scene.connection._in_window == Limits().connection_window_bytes - size - 10


def test_pings_and_settings_are_answered() -> None:
    """A ping's answer has its bytes; the answer to one of ours, and to our settings, needs none."""
    scene = greeted()
    (pong,) = scene.send(frame(frames.PING, 0, 0, b"12345678"))
    assert (pong.kind, pong.flags, pong.payload) == (frames.PING, frames.ACK, b"12345678")
    (ack,) = scene.send(frames.settings([(Setting.HEADER_TABLE_SIZE, 0), (99, 1)]))
    assert (ack.kind, ack.flags) == (frames.SETTINGS, frames.ACK)
    assert (
        scene.send(frame(frames.PING, frames.ACK, 0, bytes(8)), frame(frames.SETTINGS, frames.ACK, 0)) == []
    )


def test_what_is_not_known_is_read_over() -> None:
    """Frames of other types, the peer's GOAWAY and priorities change nothing."""
    scene = greeted()
    scene.send(frame(0x42, 0xFF, 7, bytes(70_000)), frame(0x10, 0, 0))
    scene.send(frame(frames.PRIORITY, 0, 9, bytes(5)), frame(frames.GOAWAY, 0, 0, bytes(20)))
    scene.send(headers(1), data(1, b"x", end=True))
    assert scene.all[1].told == ["head", "end"]
    assert not scene.connection.over


BAD_CONNECTIONS = {
    "not HTTP": (b"\x16\x03\x01" + bytes(30), None),
    "first frame no SETTINGS": (frames.PREFACE + frame(frames.PING, 0, 0, bytes(8)), "PROTOCOL_ERROR"),
    "first frame an ACK": (frames.PREFACE + frame(frames.SETTINGS, 1, 0), "PROTOCOL_ERROR"),
    "even stream": (GREETING + headers(2), "PROTOCOL_ERROR"),
    "stream 0": (GREETING + headers(0), "PROTOCOL_ERROR"),
    "data on stream 0": (GREETING + data(0, b"x"), "PROTOCOL_ERROR"),
    "data on an idle stream": (GREETING + data(1, b"x"), "PROTOCOL_ERROR"),
    "data on an even stream": (GREETING + headers(3) + data(2, b"x"), "PROTOCOL_ERROR"),
    "reset of an idle stream": (GREETING + frames.rst_stream(1, 8), "PROTOCOL_ERROR"),
    "reset of stream 0": (GREETING + frames.rst_stream(0, 8), "PROTOCOL_ERROR"),
    "reset of a wrong size": (GREETING + headers(1) + frame(frames.RST_STREAM, 0, 1, b"x"), "FRAME_SIZE_ERROR"),
    "window of an idle stream": (GREETING + frames.window_update(1, 1), "PROTOCOL_ERROR"),
    "window by 0": (GREETING + frames.window_update(0, 0), "PROTOCOL_ERROR"),
    "window too large": (GREETING + frames.window_update(0, 2**31 - 1), "FLOW_CONTROL_ERROR"),
    "window of a wrong size": (GREETING + frame(frames.WINDOW_UPDATE, 0, 0, b"x"), "FRAME_SIZE_ERROR"),
    "headers of a closed stream": (GREETING + headers(1, end=True) + headers(1), "STREAM_CLOSED"),
    "an older stream": (GREETING + headers(5) + headers(3), "STREAM_CLOSED"),
    "continuation of nothing": (GREETING + frame(frames.CONTINUATION, 4, 1, b""), "PROTOCOL_ERROR"),
    "block interrupted": (GREETING + headers(1, whole=False) + data(1, b"x"), "PROTOCOL_ERROR"),
    "block interrupted by what is unknown": (GREETING + headers(1, whole=False) + frame(0x42, 0, 0), "PROTOCOL_ERROR"),
    "block of another stream": (
        GREETING + headers(1, whole=False) + frame(frames.CONTINUATION, 4, 3, b""), "PROTOCOL_ERROR",
    ),
    "block that is none": (GREETING + headers(1, b"\x80"), "COMPRESSION_ERROR"),
    "frame too large": (GREETING + frame(frames.DATA, 0, 1, bytes(2**20 + 1)), "FRAME_SIZE_ERROR"),
    "header block too large": (GREETING + headers(1, bytes(70_000)), "ENHANCE_YOUR_CALM"),
    "padding too long": (GREETING + headers(1) + frame(frames.DATA, frames.PADDED, 1, b"\x05abcd"), "PROTOCOL_ERROR"),
    "padding without its length": (GREETING + headers(1) + frame(frames.DATA, frames.PADDED, 1), "PROTOCOL_ERROR"),
    "padded headers too long": (GREETING + frame(frames.HEADERS, frames.PADDED | 4, 1, b"\x05abcd"), "PROTOCOL_ERROR"),
    "padded headers empty": (GREETING + frame(frames.HEADERS, frames.PADDED | 4, 1), "FRAME_SIZE_ERROR"),
    "priority too short": (GREETING + frame(frames.HEADERS, frames.HAS_PRIORITY | 4, 1, b"1234"), "PROTOCOL_ERROR"),
    "priority of a wrong size of no stream": (GREETING + frame(frames.PRIORITY, 0, 1, bytes(4)), "FRAME_SIZE_ERROR"),
    "priority of the connection": (GREETING + frame(frames.PRIORITY, 0, 0, bytes(5)), "PROTOCOL_ERROR"),
    "settings of a stream": (GREETING + frame(frames.SETTINGS, 0, 1), "PROTOCOL_ERROR"),
    "settings of a wrong size": (GREETING + frame(frames.SETTINGS, 0, 0, bytes(5)), "FRAME_SIZE_ERROR"),
    "settings acknowledged with some": (GREETING + frame(frames.SETTINGS, 1, 0, bytes(6)), "FRAME_SIZE_ERROR"),
    "push that is neither": (GREETING + frames.settings([(2, 2)]), "PROTOCOL_ERROR"),
    "initial window too large": (GREETING + frames.settings([(4, 2**31)]), "FLOW_CONTROL_ERROR"),
    "frame size too small": (GREETING + frames.settings([(5, 16_383)]), "PROTOCOL_ERROR"),
    "frame size too large": (GREETING + frames.settings([(5, 2**24)]), "PROTOCOL_ERROR"),
    "push promise": (GREETING + frame(frames.PUSH_PROMISE, 4, 1, bytes(4)), "PROTOCOL_ERROR"),
    "ping of a stream": (GREETING + frame(frames.PING, 0, 1, bytes(8)), "PROTOCOL_ERROR"),
    "ping of a wrong size": (GREETING + frame(frames.PING, 0, 0, bytes(7)), "FRAME_SIZE_ERROR"),
    "goaway of a stream": (GREETING + frame(frames.GOAWAY, 0, 1, bytes(8)), "PROTOCOL_ERROR"),
    "goaway of a wrong size": (GREETING + frame(frames.GOAWAY, 0, 0, bytes(7)), "FRAME_SIZE_ERROR"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_CONNECTIONS)
def test_what_ends_the_connection(case: str) -> None:
    """A GOAWAY with the code of the RFC, one complaint, no stream left, and nothing is read any more."""
    sent, code = BAD_CONNECTIONS[case]
    scene = Scene(kind=Echo)
    answer = scene.send(sent)
    assert goaway_code(answer) == (None if code is None else ErrorCode[code])
    assert scene.sink.closed
    assert len(scene.complaints) == 1
    assert not scene.connection.streams
    assert scene.send(headers(9, end=True)) == []
    assert 9 not in scene.all


BAD_STREAMS = {
    "malformed": (headers(1, REQUEST[1:]), "PROTOCOL_ERROR"),
    "window by 0": (headers(1) + frames.window_update(1, 0), "PROTOCOL_ERROR"),
    "window too large": (headers(1) + frames.window_update(1, 2**31 - 1), "FLOW_CONTROL_ERROR"),
    "data past the window": (headers(1) + 2 * data(1, bytes(2**20)), "FLOW_CONTROL_ERROR"),
    "trailers that do not end it": (headers(1) + headers(1), "PROTOCOL_ERROR"),
    "trailers that are a request": (headers(1) + headers(1, end=True), "PROTOCOL_ERROR"),
    "trailers with a path": (headers(1) + headers(1, encode((b":path", b"/a/B")), end=True), "PROTOCOL_ERROR"),
    "trailers with a scheme": (headers(1) + headers(1, encode((b":scheme", b"http")), end=True), "PROTOCOL_ERROR"),
    "trailers with a status": (headers(1) + headers(1, encode((b":status", b"200")), end=True), "PROTOCOL_ERROR"),
    "trailers of a connection": (headers(1) + headers(1, encode((b"connection", b"x")), end=True), "PROTOCOL_ERROR"),
    "priority of a wrong size": (headers(1) + frame(frames.PRIORITY, 0, 1, bytes(4)), "FRAME_SIZE_ERROR"),
    "content-length too large": (
        headers(1, REQUEST + encode((b"content-length", b"5"))) + data(1, b"1234", end=True), "PROTOCOL_ERROR",
    ),
    "content-length too small": (
        headers(1, REQUEST + encode((b"content-length", b"5"))) + data(1, b"1234") + data(1, b"56", end=True),
        "PROTOCOL_ERROR",
    ),
    "content-length without data": (headers(1, REQUEST + encode((b"content-length", b"5")), end=True), "PROTOCOL_ERROR"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_STREAMS)
def test_what_ends_a_stream(case: str) -> None:
    """RST_STREAM with the code of the RFC, the stream's handler is told, and the connection goes on."""
    sent, code = BAD_STREAMS[case]
    scene = greeted()
    assert reset_codes(scene.send(sent)) == {1: ErrorCode[code]}
    assert 1 not in scene.all or scene.all[1].told[-1] == "reset"
    assert not scene.connection.streams
    scene.send(headers(3), data(3, b"x", end=True))
    assert scene.all[3].told == ["head", "end"]


@pytest.mark.parametrize("late", [data(1, b"x"), headers(1, encode((b"x", b"y")), end=True)])
def test_what_comes_after_the_end_of_a_stream(late: bytes) -> None:
    """While its answer is being made, it is reset with STREAM_CLOSED."""
    scene = Scene().greet()
    scene.send(headers(1, end=True))
    assert reset_codes(scene.send(late)) == {1: ErrorCode.STREAM_CLOSED}
    assert scene.all[1].told == ["head", "end", "reset"]


def test_data_on_a_stream_that_was_answered() -> None:
    """It is reset with STREAM_CLOSED, for the peer had ended it."""
    scene = greeted()
    scene.send(headers(1, end=True))
    assert reset_codes(scene.send(data(1, b"x"))) == {1: ErrorCode.STREAM_CLOSED}


def test_an_answer_before_the_end_asks_for_no_more() -> None:
    """RST_STREAM with NO_ERROR follows it; what was on its way is thrown away, and its window given back."""
    scene = Scene().greet()
    scene.send(headers(1), data(1, b"x"))
    scene.connection.send(scene.all[1], tail=TAIL, last=True)
    sent = scene.sent()
    assert [item.kind for item in sent] == [frames.HEADERS, frames.RST_STREAM]
    assert reset_codes(sent) == {1: ErrorCode.NO_ERROR}
    for _ in range(9):
        sent = scene.send(data(1, bytes(2**20)))
        assert {item.kind for item in sent} <= {frames.WINDOW_UPDATE}
    assert scene.send(headers(1, encode((b"x", b"y")), end=True)) == []
    assert scene.connection._in_window > Limits().connection_window_bytes // 2
    assert scene.all[1].body == b"x"
    assert scene.all[1].told == ["head"]


def test_a_stream_that_is_refused_within_its_data() -> None:
    """Its handler hears nothing of the rest of the frame, nor of its end."""

    class Refusing(Echo):
        __slots__ = ()

        def on_data(self, data: bytes, start: int, stop: int) -> None:
            super().on_data(data, start, stop)
            self.connection.send(self, tail=TAIL, last=True)

    scene = greeted(Refusing)
    whole = headers(1) + data(1, bytes(1000), end=True)
    scene.send(whole[:-500])
    assert scene.send(whole[-500:]) == []
    assert scene.all[1].told == ["head"]
    assert len(scene.all[1].body) == 500


def test_a_reset_ends_a_stream() -> None:
    """Its handler is told once; another reset, and a window, for what is no more are nothing."""
    scene = Scene().greet()
    scene.send(headers(1), frames.rst_stream(1, ErrorCode.CANCEL))
    assert scene.all[1].told == ["head", "reset"]
    assert scene.send(frames.rst_stream(1, ErrorCode.CANCEL), frames.window_update(1, 5)) == []
    scene.connection.send(scene.all[1], LEAD, (b"late",), last=True)
    assert scene.sent() == []


def test_a_lost_connection_ends_every_stream() -> None:
    """All handlers are told, and nothing is sent any more."""
    scene = Scene().greet()
    scene.send(headers(1), headers(3), data(3, b"x", end=True))
    scene.connection.lost()
    assert [scene.all[number].told[-1] for number in (1, 3)] == ["reset", "reset"]
    scene.connection.respond(scene.all[3], LEAD, b"", b"late", TAIL)
    assert scene.sent() == []


def test_going_away() -> None:
    """What is there is answered; what is begun later is not begun, and nothing of it is an error."""
    scene = Scene().greet()
    scene.send(headers(1))
    scene.connection.go_away()
    scene.connection.go_away()
    (goaway,) = scene.sent()
    assert goaway.payload == (1).to_bytes(4, "big") + bytes(4)
    assert scene.send(headers(3), data(3, b"x"), data(3, end=True), frames.rst_stream(3, 8)) == []
    assert 3 not in scene.all
    scene.send(data(1, b"x", end=True))
    scene.connection.respond(scene.all[1], LEAD, b"", b"answer", TAIL)
    assert [item.payload for item in scene.sent() if item.kind == frames.DATA] == [b"answer"]


def test_a_connection_that_ends_while_it_goes_away() -> None:
    """Its end names no later stream than it said before (RFC 9113, section 6.8): what is not begun can be sent again."""
    scene = Scene().greet()
    scene.send(headers(1))
    scene.connection.go_away()
    scene.send(headers(3))
    scene.sent()
    scene.connection.fail(ErrorCode.NO_ERROR, "a ping was not answered")
    (goaway,) = scene.sent()
    assert goaway.payload[:4] == (1).to_bytes(4, "big")


@pytest.mark.parametrize("method", [b"GET", b"POST", b"HEAD"])
def test_http_1_is_told_what_this_is(method: bytes) -> None:
    """A person with curl reads a line of text, and the connection ends."""
    scene = Scene()
    scene.receive(method + b" / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert scene.sink.sent.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"gRPC" in scene.sink.sent
    assert scene.sink.closed
