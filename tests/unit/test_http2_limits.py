"""What one connection may cost: each limit, the way around it that is known, and those who are not meant."""

from __future__ import annotations

import pytest
from hpack.hpack import encode_integer

from mpspool.core import http2_frames as frames
from mpspool.core.http2_frames import ErrorCode
from mpspool.router.fronts.http2.headers import encode
from mpspool.router.fronts.http2.limits import Limits
from mpspool.router.fronts.http2.streams import Buffer
from tests.fakes.http2 import GREETING, REQUEST, Echo, Scene, data, goaway_code, headers, reset_codes

frame = frames.frame
CALM = ErrorCode.ENHANCE_YOUR_CALM


def flood(scene: Scene, make, most: int) -> int:
    """How many of them were taken before the connection ended."""
    for count in range(most):
        sent = scene.send(make(2 * count + 1))
        if scene.sink.closed:
            assert goaway_code(sent) is CALM
            assert not scene.connection.streams
            return count
    return most


def test_more_streams_than_allowed_are_refused() -> None:
    """REFUSED_STREAM, so that the client tries again; the others go on, and one that ends makes room."""
    scene = Scene(Limits(streams=3)).greet()
    scene.send(*(headers(number) for number in (1, 3, 5)))
    assert reset_codes(scene.send(headers(7), data(7, b"x", end=True))) == {7: ErrorCode.REFUSED_STREAM}
    assert 7 not in scene.all
    scene.send(frames.rst_stream(1, 8), headers(9))
    assert 9 in scene.all


def test_a_refused_streams_headers_still_count_for_the_table() -> None:
    """Later blocks that name what came in it are read right."""
    scene = Scene(Limits(streams=1)).greet()
    scene.send(headers(1))
    scene.send(headers(3, REQUEST + b"\x40\x03x-a\x01b"), frames.rst_stream(1, 8))
    scene.send(headers(5, REQUEST + b"\xbe"))
    assert scene.all[5].head.metadata == {"x-a": "b"}


def test_headers_over_the_limit_reach_their_stream_as_such() -> None:
    """They are the request's fault, not the connection's."""
    scene = Scene(Limits(header_list_bytes=500)).greet()
    scene.send(headers(1, REQUEST + encode((b"x", b"y" * 600)), end=True), headers(3))
    assert scene.all[1].head.oversized
    assert not scene.all[3].head.oversized


def test_headers_of_all_streams_are_bounded_together() -> None:
    """However few bytes on the wire: of what the table has once each request may be made up four times. What ends makes room."""
    scene = Scene().greet()
    entry = b"\x40\x01a" + encode_integer(3900, 7) + b"v" * 3900
    scene.send(headers(1, REQUEST + bytes(entry)))
    sent = scene.send(*(headers(number, REQUEST + b"\xbe" * 4) for number in range(3, 2047, 2)))
    assert set(reset_codes(sent).values()) == {ErrorCode.REFUSED_STREAM}
    open_ids = set(scene.connection.streams)
    assert 60 < len(open_ids) < 70
    assert sum(len(stream.head.metadata["a"]) for stream in scene.all.values()) <= 2**20
    scene.send(frames.rst_stream(3, 8), headers(2047, REQUEST + b"\xbe" * 4))
    assert set(scene.connection.streams) == open_ids - {3} | {2047}
    for number in list(scene.connection.streams):
        scene.send(frames.rst_stream(number, 8))
    assert scene.connection.kept_header_bytes == 0


def test_usual_headers_fit_for_all_streams() -> None:
    """A name, a trace and an identifier of each request's own are nothing unusual."""
    scene = Scene().greet()
    for number in range(1, 2049, 2):
        own = (
            (b"user-agent", b"grpc-python/1.80.0 grpc-c/53.0.0 (linux; chttp2)"),
            (b"x-tenant", b"somebody"),
            (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-%016x-01" % number),
            (b"x-request-id", b"f81d4fae-7dec-11d0-a765-%012x" % number),
        )
        scene.send(headers(number, REQUEST + encode((b"grpc-timeout", b"%dm" % number), *own)))
    assert len(scene.connection.streams) == 1024


@pytest.mark.parametrize("size", [0, 1, 3000])
def test_continuations_without_end(size: int) -> None:
    """Empty or not, some are enough."""
    scene = Scene().greet()
    scene.send(headers(1, whole=False))
    taken = flood(scene, lambda _: frame(frames.CONTINUATION, 0, 1, bytes(size)), 100)
    assert taken < 40


def test_rapid_reset() -> None:
    """CVE-2023-44487: requests that are taken back at once are counted, and the connection ended."""
    scene = Scene().greet()
    assert flood(scene, lambda n: headers(n) + frames.rst_stream(n, 8), 2000) == 512
    assert all(stream.told == ["head", "reset"] for stream in scene.all.values())


def test_resets_of_what_ran_for_a_while_are_not_counted() -> None:
    """Clients whose deadlines pass under load, of 20 ms for example, are not sent away."""
    scene = Scene().greet()
    for begun in range(2000):
        now_s = begun / 1000
        if begun % 1000 == 0:
            scene.connection.tick(now_s)
        scene.connection.receive(headers(2 * begun + 1), now_s)
        if begun >= 20:
            scene.connection.receive(frames.rst_stream(2 * (begun - 20) + 1, 8), now_s)
    assert not scene.connection.over
    assert len(scene.connection.streams) == 20


@pytest.mark.parametrize(
    ("timeout", "counted"), [(b"3m", False), (b"300u", False), (b"5m", True), (b"1S", True)]
)
def test_resets_at_a_deadline_of_milliseconds_are_not_counted(timeout: bytes, *, counted: bool) -> None:
    """Half of a call's time, which begins before it is read, is enough; who gives up sooner has not waited for its end."""
    scene = Scene().greet()
    block = REQUEST + encode((b"grpc-timeout", timeout))
    for begun in range(600):
        now_s = begun / 1000
        scene.connection.receive(headers(2 * begun + 1, block), now_s)
        if begun >= 2:
            scene.connection.receive(frames.rst_stream(2 * (begun - 2) + 1, 8), now_s)
    assert scene.connection.over == counted


@pytest.mark.parametrize("timeout", [b"0n", b"1n", b"4m", b"none"])
def test_a_deadline_excuses_no_reset_that_comes_with_its_request(timeout: bytes) -> None:
    """However short it is: nothing of it is over."""
    scene = Scene().greet()
    block = REQUEST + encode((b"grpc-timeout", timeout))
    assert flood(scene, lambda n: headers(n, block) + frames.rst_stream(n, 8), 2000) == 512


def test_resets_at_once_are_counted_whatever_else_comes() -> None:
    """A few milliseconds between request and reset make no difference."""
    scene = Scene().greet()
    for begun in range(600):
        now_s = begun / 1000
        scene.connection.receive(headers(2 * begun + 1), now_s)
        if begun >= 2:
            scene.connection.receive(frames.rst_stream(2 * (begun - 2) + 1, 8), now_s)
    assert scene.connection.over


MADE = {
    "window by 0": lambda n: headers(n) + frames.window_update(n, 0),
    "window too large": lambda n: headers(n) + frames.window_update(n, 2**31 - 1),
    "data after the end": lambda n: headers(n, end=True) + data(n, b"x"),
    "headers after the end": lambda n: headers(n, end=True) + headers(n, end=True),
    "priority of a wrong size": lambda n: headers(n) + frame(frames.PRIORITY, 0, n, b"x"),
    "malformed": lambda n: headers(n, REQUEST[1:]),
    "content-length": lambda n: headers(n, REQUEST + encode((b"content-length", b"1")), end=True),
}


@pytest.mark.parametrize("case", MADE)
def test_made_you_reset(case: str) -> None:
    """CVE-2025-8671: what makes us reset is counted as well, and what ran for it is told."""
    scene = Scene().greet()
    assert flood(scene, MADE[case], 2000) == 512
    assert all(
        stream.told[-1] == "reset" or case == "priority of a wrong size" for stream in scene.all.values()
    )


USELESS = {
    "pings": frame(frames.PING, 0, 0, bytes(8)),
    "settings": frames.settings(()),
    "priorities": frame(frames.PRIORITY, 0, 7, bytes(5)),
    "unknown frames": frame(0x42, 0, 0, b"x"),
    "empty data": data(1),
    "padding": frame(frames.DATA, frames.PADDED, 1, b"\xff" + bytes(255)),
    "a little data and padding": frame(frames.DATA, frames.PADDED, 1, b"\0x"),
    "windows": frames.window_update(0, 1),
    "acknowledgements": frame(frames.SETTINGS, frames.ACK, 0),
    "resets of what is over": frames.rst_stream(3, 8),
}


@pytest.mark.parametrize("case", USELESS)
def test_floods_that_bring_nothing(case: str) -> None:
    """Each kind ends the connection within a second's worth."""
    scene = Scene().greet()
    scene.send(headers(1), headers(3), frames.rst_stream(3, 8))
    most = 100 if USELESS[case][3] == frames.SETTINGS else 2000
    assert most // 2 < flood(scene, lambda _: USELESS[case], 5000) <= most


def test_settings_are_few() -> None:
    """More entries than there are settings are no settings."""
    scene = Scene().greet()
    assert goaway_code(scene.send(frames.settings([(4, size) for size in range(33)]))) is CALM


def test_requests_and_time_make_up_for_useless_frames() -> None:
    """Clients ping and open windows for each of their requests, some for as long as they live."""
    scene = Scene(kind=Echo).greet()
    noise = frames.window_update(0, 5) + frame(frames.PING, 0, 0, bytes(8))
    for number in range(1, 10_001, 2):
        scene.send(headers(number), noise, data(number, b"x", end=True), noise)
    for now_s in range(100):
        scene.connection.tick(float(now_s))
        scene.send(noise * 500)
    assert not scene.connection.over


def test_data_that_is_taken_makes_up_for_windows() -> None:
    """A client that opens its window by a little for each frame that it takes reads a large answer to the end."""
    scene = Scene(kind=Echo).greet()
    scene.send(headers(1))
    scene.connection.expect(scene.all[1], 2**23)
    for _ in range(8):
        scene.send(data(1, bytes(2**20)))
    scene.send(data(1, end=True))
    rounds = 0
    while scene.held:
        scene.send(frames.window_update(0, 1000), frames.window_update(1, 1000))
        rounds += 1
    assert rounds > 5000
    assert not scene.connection.over


@pytest.mark.parametrize("provoking", [frame(frames.PING, 0, 0, bytes(8)), frames.settings(())])
def test_answers_do_not_pile_up_for_a_peer_that_does_not_read(provoking: bytes) -> None:
    """While the transport is full, some are kept and no more; also where requests hide them."""
    scene = Scene().greet()
    scene.connection.pause()
    for number in range(1, 2001, 2):
        scene.send(headers(number), provoking * 50, frames.rst_stream(number, 8) if number % 16 else b"")
        if scene.sink.closed:
            break
    assert scene.sink.closed
    assert len(scene.sink.sent) < 70_000


def test_refusals_do_not_pile_up_either() -> None:
    """An answer waits in its stream, and the streams are bounded; its headers count as what is held."""
    scene = Scene(Limits(streams=10), Echo).greet()
    scene.connection.pause()
    for number in range(1, 101, 2):
        scene.send(headers(number, end=True))
    assert len(scene.connection.streams) == 10
    assert len(scene.sink.sent) < 2000
    scene.check_counts()
    scene.sent()
    held = scene.held
    scene.connection.resume()
    assert held == sum(len(item.payload) + frames.FRAME_HEADER_BYTES for item in scene.sent())
    assert scene.held == 0


@pytest.mark.parametrize("begun", [b"", GREETING[:24], GREETING[:30]])
def test_silence_after_connecting(begun: bytes) -> None:
    """Who does not begin within ten seconds is sent away."""
    scene = Scene()
    scene.send(begun)
    scene.connection.tick(9.0)
    assert not scene.sink.closed
    scene.connection.tick(10.0)
    assert scene.sink.closed


def test_a_peer_is_asked_whether_it_is_alive() -> None:
    """After two minutes without a byte; it has 20 s to answer, and is asked again later."""
    scene = Scene().greet()
    tick = scene.connection.tick
    tick(0.0)
    tick(119.0)
    assert scene.sent() == []
    tick(120.0)
    (ping,) = scene.sent()
    assert (ping.kind, ping.flags) == (frames.PING, 0)
    scene.send(frame(frames.PING, frames.ACK, 0, ping.payload))
    tick(130.0)
    tick(249.0)
    assert scene.sent() == []
    tick(250.0)
    assert len(scene.sent()) == 1
    tick(269.0)
    assert not scene.connection.over
    tick(270.0)
    assert scene.connection.over


def test_a_peer_that_takes_a_long_answer_is_not_asked() -> None:
    """It may have opened its windows for all of it, and say nothing until it has it: a ping would wait behind all that waits."""
    scene = Scene().greet()
    scene.send(headers(1, end=True), frames.window_update(1, 2**30), frames.window_update(0, 2**30))
    connection, write = scene.connection, scene.sink.writelines

    def full(parts: list[Buffer]) -> None:
        write(parts)
        connection.pause()

    scene.sink.writelines = full  # type: ignore[method-assign]
    connection.respond(scene.all[1], b"\x88", b"", bytes(9 * 2**18), b"\x88")
    for now_s in range(1, 400):
        connection.tick(float(now_s))
        if now_s % 50 == 0:
            connection.resume()
    assert not connection.over
    assert {item.kind for item in scene.sent()} == {frames.HEADERS, frames.DATA}


def test_a_body_that_stops_arriving() -> None:
    """Its stream is told after a minute without 4 KiB of it, and not before."""
    scene = Scene().greet()
    scene.send(headers(1), headers(3), headers(5, end=True))
    for now_s in (30.0, 59.0):
        scene.connection.tick(now_s)
        scene.send(data(1, bytes(2047)), data(3, bytes(2048)))
    scene.connection.tick(60.0)
    assert "stalled" in scene.all[1].told
    assert "stalled" not in scene.all[3].told + scene.all[5].told


def test_a_body_that_arrives_slower_than_is_demanded() -> None:
    """Its stream is told, however often something of it comes; a faster one has its time each minute anew."""
    scene = Scene().greet()
    scene.send(headers(1), headers(3))
    for number in (1, 3):
        scene.all[number].demand(20_000)
    for now_s in range(1, 180):
        scene.connection.tick(float(now_s))
        scene.send(data(1, bytes(320)), data(3, bytes(350)))
        assert "stalled" not in scene.all[3].told
        if now_s < 60:
            assert "stalled" not in scene.all[1].told
    assert scene.all[1].told.count("stalled") >= 1


def test_an_answer_that_is_not_taken() -> None:
    """After a minute its stream is reset; where the connection's own window is shut, the connection ends."""
    for ids, ends in (((1,), False), ((1, 3), True)):
        scene = Scene().greet()
        scene.send(*(headers(number, end=True) for number in ids))
        scene.send(frames.window_update(0, 50_000)) if not ends else None
        for number in ids:
            scene.connection.respond(scene.all[number], b"", b"", bytes(70_000), b"x")
        scene.sent()
        for now_s in (0.0, 59.0):
            scene.connection.tick(now_s)
        assert scene.sent() == []
        scene.connection.tick(60.0)
        sent = scene.sent()
        assert scene.connection.over is ends
        assert reset_codes(sent) == ({} if ends else {1: ErrorCode.CANCEL})
        assert scene.held == 0


def test_an_answer_that_took_long_to_make_has_its_time_as_well() -> None:
    """The minute begins when there is something to take."""
    scene = Scene().greet()
    scene.send(frames.settings([(4, 0)]), headers(1, end=True))
    scene.connection.tick(300.0)
    scene.connection.respond(scene.all[1], b"", b"", b"x", b"x")
    scene.connection.tick(359.0)
    assert scene.all[1].open
    scene.connection.tick(360.0)
    assert not scene.all[1].open


@pytest.mark.parametrize("size", [600, 700])
def test_an_answer_that_is_taken_slowly(size: int) -> None:
    """A tenth of what waits, or 4 KiB, has to be taken in each minute, however often it is a little."""
    scene = Scene().greet()
    scene.send(frames.window_update(0, 10**6), headers(1, end=True))
    scene.connection.respond(scene.all[1], b"", b"", bytes(65_535 + 400_000), b"x")
    for now_s in range(1, 121):
        scene.connection.tick(float(now_s))
        scene.send(frames.window_update(1, size))
    assert not scene.connection.over
    assert scene.all[1].open is (size == 700)


@pytest.mark.parametrize("size", [600, 800])
def test_answers_that_a_connection_takes_slowly(size: int) -> None:
    """The same of all together where it is the connection's window, or its socket, that is shut."""
    scene = Scene().greet()
    scene.send(frames.settings([(4, 10**6)]), headers(1, end=True), headers(3, end=True))
    for number in (1, 3):
        scene.connection.respond(scene.all[number], b"", b"", bytes(65_535 // number + 200_000), b"x")
    for now_s in range(1, 121):
        scene.connection.tick(float(now_s))
        scene.send(frames.window_update(0, size))
    assert scene.connection.over is (size == 600)
    assert scene.held == (0 if size == 600 else scene.all[1].held + scene.all[3].held)


def test_one_stream_that_is_shut_beside_one_that_is_taken() -> None:
    """It is reset though the socket takes no more at the moment; the other goes on."""
    scene = Scene().greet()
    scene.send(frames.settings([(4, 0)]), headers(1, end=True), headers(3, end=True))
    for number in (1, 3):
        scene.connection.respond(scene.all[number], b"", b"", bytes(200_000), b"x")
    for now_s in range(1, 121):
        scene.connection.resume()
        scene.send(frames.window_update(0, 1000), frames.window_update(3, 1000))
        scene.connection.pause()
        scene.connection.tick(float(now_s))
    assert (scene.all[1].open, scene.all[3].open) == (False, True)
    assert scene.held == scene.all[3].held
