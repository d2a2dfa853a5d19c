"""Flow control both ways: nothing past a window, everything in the end, and what waits is counted."""

from __future__ import annotations

import pytest

from mpspool.core import http2_frames as frames
from mpspool.core.http2_frames import NO_TABLE, ErrorCode, Setting
from mpspool.router.fronts.http2.limits import Limits
from mpspool.router.fronts.http2.streams import Buffer, headers_frame
from tests.fakes.http2 import LEAD, TAIL, Echo, Frame, Scene, Sink, data, goaway_code, headers, reset_codes

MIB = 2**20
# What a response's status waits with.
TAIL_BYTES = len(headers_frame(1, TAIL))


def asked(*ids: int) -> Scene:
    scene = Scene().greet()
    for number in ids:
        scene.send(headers(number, end=True))
    return scene


def answer(scene: Scene, stream_id: int, body: bytes) -> None:
    scene.connection.respond(scene.all[stream_id], LEAD, b"", body, TAIL)


def bodies(sent: list[Frame]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for item in sent:
        if item.kind == frames.DATA:
            found[item.stream] = found.get(item.stream, b"") + item.payload
    return found


def settings(**values: int) -> bytes:
    return frames.settings([(Setting[name.upper()], value) for name, value in values.items()])


def test_an_answer_is_cut_into_frames_of_the_peers_size() -> None:
    """16 KiB as long as it has said nothing, and what it says from then on."""
    scene = asked(1, 3)
    answer(scene, 1, bytes(40_000))
    assert [len(item.payload) for item in scene.sent() if item.kind == frames.DATA] == [16384, 16384, 7232]
    scene.send(settings(max_frame_size=100_000), frames.window_update(0, 100_000))
    answer(scene, 3, bytes(50_000))
    assert [len(item.payload) for item in scene.sent() if item.kind == frames.DATA] == [50_000]


@pytest.mark.parametrize("frame_bytes", [2**14, 2**20, 2**24 - 1])
def test_no_more_goes_at_once_than_the_transport_is_asked_about(
    frame_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large frames the peer takes: after each piece the transport says whether it takes more."""
    scene = asked(1)
    pieces: list[int] = []

    def take(self: Sink, parts: list[Buffer]) -> None:
        pieces.append(sum(map(len, parts)))
        scene.connection.pause()

    scene.send(
        settings(max_frame_size=frame_bytes, initial_window_size=2**30), frames.window_update(0, 2**30)
    )
    monkeypatch.setattr(Sink, "writelines", take)
    answer(scene, 1, bytes(3 * MIB))
    assert len(pieces) == 1
    assert pieces[0] <= 2**18 + 2**10


def test_an_answer_waits_for_its_streams_window() -> None:
    """What does not fit is counted as held, all of it until the peer has taken the last; trailers come last."""
    scene = asked(1)
    scene.send(frames.window_update(0, MIB))
    answer(scene, 1, bytes(100_000))
    assert len(bodies(scene.sent())[1]) == 65_535
    assert scene.held == 100_000 + TAIL_BYTES
    assert len(bodies(scene.send(frames.window_update(1, 10_000)))[1]) == 10_000
    assert scene.held == 100_000 + TAIL_BYTES
    sent = scene.send(frames.window_update(1, 30_000))
    assert len(bodies(sent)[1]) == 24_465
    assert sent[-1].kind == frames.HEADERS
    assert scene.held == 0
    assert not scene.connection.streams


def test_answers_share_the_connections_window() -> None:
    """They take turns, and none is forgotten."""
    scene = asked(1, 3, 5)
    for number in (1, 3, 5):
        answer(scene, number, bytes(50_000))
    total = bodies(scene.sent())
    turns = set()
    while scene.held:
        got = bodies(scene.send(frames.window_update(0, 10_000)))
        turns.update(got)
        for number, part in got.items():
            total[number] = total.get(number, b"") + part
    assert {number: len(body) for number, body in total.items()} == {1: 50_000, 3: 50_000, 5: 50_000}
    assert turns == {3, 5}
    scene.check_counts()


def test_a_smaller_initial_window_counts_for_open_streams() -> None:
    """Theirs may go below zero, and has to come back before anything is sent."""
    scene = asked(1)
    answer(scene, 1, bytes(70_000))
    scene.sent()
    assert bodies(scene.send(settings(initial_window_size=1000), frames.window_update(0, MIB))) == {}
    assert scene.all[1].out_window == 1000 - 65_535
    assert bodies(scene.send(frames.window_update(1, 64_535))) == {}
    assert len(bodies(scene.send(frames.window_update(1, 5000)))[1]) == 4465


def test_a_larger_initial_window_sends_what_waits() -> None:
    """Without any WINDOW_UPDATE for the stream."""
    scene = asked(1)
    scene.send(frames.window_update(0, MIB))
    answer(scene, 1, bytes(100_000))
    scene.sent()
    assert len(bodies(scene.send(settings(initial_window_size=100_000)))[1]) == 34_465


def test_a_stream_window_that_settings_make_too_large() -> None:
    """The sum is beyond what there can be: the connection ends."""
    scene = asked(1)
    scene.send(frames.window_update(1, 2**31 - 1 - 65_535))
    assert goaway_code(scene.send(settings(initial_window_size=65_536))) is ErrorCode.FLOW_CONTROL_ERROR


def test_a_transport_that_takes_no_more_is_waited_for() -> None:
    """Nothing is written while it is paused, small answers neither; all of it afterwards."""
    scene = asked(1, 3)
    scene.connection.pause()
    answer(scene, 1, b"small")
    answer(scene, 3, bytes(30_000))
    assert scene.sent() == []
    lead = len(headers_frame(1, LEAD))
    assert scene.held == 30_005 + 2 * (lead + TAIL_BYTES) + len(NO_TABLE)
    scene.connection.resume()
    assert {number: len(body) for number, body in bodies(scene.sent()).items()} == {1: 5, 3: 30_000}
    assert scene.held == 0
    assert not scene.connection.streams


@pytest.mark.parametrize("window", [0, 7])
def test_headers_need_no_window(window: int) -> None:
    """They go as soon as the transport takes more, though nothing of what comes behind them may: a client may wait for them."""
    scene = asked(1)
    scene.send(settings(initial_window_size=window))
    scene.connection.pause()
    answer(scene, 1, b"small answer")
    scene.send(settings(initial_window_size=0))
    scene.check_counts()
    scene.connection.resume()
    assert [item.kind for item in scene.sent()] == [frames.HEADERS]
    scene.check_counts()
    assert bodies(scene.send(frames.window_update(1, 100))) == {1: b"small answer"}
    assert not scene.connection.streams


def test_a_transport_that_is_full_in_the_middle() -> None:
    """After each piece it is asked whether it takes more."""
    scene = asked(1)
    scene.send(settings(initial_window_size=10 * MIB), frames.window_update(0, 10 * MIB))
    write = scene.sink.writelines

    def full(parts) -> None:
        write(parts)
        scene.connection.pause()

    scene.sink.writelines = full  # type: ignore[method-assign]
    answer(scene, 1, bytes(MIB))
    first = len(bodies(scene.sent())[1])
    assert 2**18 <= first < 2**18 + 16384
    total = first
    for _ in range(3):
        scene.connection.resume()
        total += len(bodies(scene.sent())[1])
    assert total == MIB
    assert scene.held == 0


@pytest.mark.parametrize("window", [100_000, 10 * MIB])
@pytest.mark.parametrize(("size", "copied"), [(MIB, True), (2**18, False)])
def test_a_part_of_a_long_answer_does_not_keep_it(window: int, size: int, copied: bool) -> None:
    """What the transport still has when its stream has gone, which counts no more, is a copy; of a short one nothing is copied."""
    scene = asked(1)
    body = bytes(size)
    pieces: list[Buffer] = []
    scene.sink.writelines = pieces.extend  # type: ignore[method-assign]
    scene.send(settings(initial_window_size=window), frames.window_update(0, 10 * MIB))
    answer(scene, 1, body)
    while scene.held:
        scene.send(frames.window_update(1, window))
    views = [len(part) for part in pieces if isinstance(part, memoryview) and part.obj is body]
    assert sum(views) == (0 if copied else size)
    assert sum(map(len, pieces)) > size


def test_what_waits_goes_with_its_stream() -> None:
    """A reset, or the connection's end, lets go of it."""
    scene = asked(1, 3)
    for number in (1, 3):
        answer(scene, number, bytes(100_000))
    assert scene.held == 200_000 + 2 * TAIL_BYTES
    scene.send(frames.rst_stream(3, ErrorCode.CANCEL))
    assert scene.held == 100_000 + TAIL_BYTES
    scene.connection.lost()
    assert scene.held == 0
    assert scene.all[3].told[-1] == "reset"


def test_messages_of_a_stream_in_parts() -> None:
    """Headers once, data as it comes, the drain is told, trailers at the end."""
    scene = asked(1)
    scene.send(frames.window_update(0, MIB))
    stream = scene.all[1]
    scene.connection.send(stream, LEAD, (b"one",), last=False)
    scene.connection.send(stream, b"", (bytes(70_000),), last=False)
    assert len(bodies(scene.sent())[1]) == 65_535
    assert "drained" not in stream.told
    scene.send(frames.window_update(1, MIB))
    assert "drained" in stream.told
    scene.connection.send(stream, b"", (), TAIL, last=True)
    assert scene.sent()[-1].flags & frames.END_STREAM


def test_small_bodies_cost_no_window_updates() -> None:
    """Only when half of the connection's window is used, it is given back."""
    scene = Scene().greet()
    updates = []
    for number in range(1, 41, 2):
        updates += scene.send(headers(number), data(number, bytes(MIB - 9), end=True))
    assert {(item.kind, item.stream) for item in updates} == {(frames.WINDOW_UPDATE, 0)}
    assert len(updates) == 2


def test_a_message_that_was_admitted_needs_no_more_windows() -> None:
    """Its stream, with a frame's padding, and the connection take all of it at once, and not more than there can be."""
    scene = Scene().greet()
    scene.send(headers(1), data(1, b"x"))
    scene.connection.expect(scene.all[1], 40 * MIB)
    told = {item.stream: int.from_bytes(item.payload, "big") for item in scene.sent()}
    assert told == {1: 39 * MIB + 257, 0: 24 * MIB + 1}
    for _ in range(40):
        assert scene.send(data(1, bytes(MIB))) == [] or scene.connection._in_window >= 8 * MIB
    assert reset_codes(scene.send(data(1, bytes(257)))) == {1: ErrorCode.FLOW_CONTROL_ERROR}
    scene.send(headers(3))
    scene.connection.expect(scene.all[3], 2**31 + 5)
    assert scene.all[3].in_window == 2**31 - 1
    assert scene.connection._in_window == 2**31 - 1


def padded(stream_id: int, payload: bytes, padding: int, *, end: bool = False) -> bytes:
    flags = frames.PADDED | (frames.END_STREAM if end else 0)
    return frames.frame(frames.DATA, flags, stream_id, bytes([padding]) + payload + bytes(padding))


@pytest.mark.parametrize("padding", [0, 1, 255])
@pytest.mark.parametrize("piece", [64, 1000, 16_000])
def test_a_message_in_padded_frames(padding: int, piece: int) -> None:
    """What is around its data is given back: it comes whole from a client that pads each frame and keeps to the windows."""
    scene = Scene(Limits(window_bytes=70_000, connection_window_bytes=100_000), Echo).greet()
    windows = {0: 100_000, 1: 70_000}
    body = bytes(range(256)) * 800
    scene.send(headers(1))
    scene.connection.expect(scene.all[1], len(body))
    for start in range(0, len(body), piece):
        for item in scene.sent():
            assert item.kind == frames.WINDOW_UPDATE
            windows[item.stream] += int.from_bytes(item.payload, "big")
        part = body[start : start + piece]
        windows = {number: window - len(part) - padding - 1 for number, window in windows.items()}
        assert min(windows.values()) >= 0
        scene.receive(padded(1, part, padding, end=start + piece >= len(body)))
    assert scene.all[1].body == body
    assert scene.connection._in_window == windows[0]


def test_padding_of_what_is_not_wanted() -> None:
    """Nothing is given back of a stream that is over, or is by that frame."""
    scene = Scene(kind=Echo).greet()
    sent = scene.send(headers(1), padded(1, b"x", 200, end=True), headers(3), frames.rst_stream(3, 8))
    sent += scene.send(padded(3, b"x", 200))
    assert frames.WINDOW_UPDATE not in {item.kind for item in sent}


def test_data_past_the_connections_window() -> None:
    """Ends the connection, whatever the streams' windows are."""
    scene = Scene(Limits(connection_window_bytes=100_000)).greet()
    scene.connection._in_window = 10
    assert goaway_code(scene.send(headers(1), data(1, bytes(11)))) is ErrorCode.FLOW_CONTROL_ERROR


@pytest.mark.parametrize("size", [0, 1, 8 * 1024, 8 * 1024 + 1, 16_384, 65_535])
def test_answers_of_any_size_are_whole(size: int) -> None:
    """By the short way or the long one."""
    scene = asked(1)
    body = bytes(range(256)) * 256
    scene.connection.respond(scene.all[1], LEAD, b"12345"[: min(5, 65_535 - size)], body[:size], TAIL)
    sent = scene.sent()
    got = bodies(sent).get(1, b"")
    assert got == b"12345"[: min(5, 65_535 - size)] + body[:size]
    assert [item.flags & 1 for item in sent] == [0] * (len(sent) - 1) + [1]
