"""What one connection sends is read in turns: others do not wait for all of it."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest

from mpspool.core import http2_frames as frames
from mpspool.router.fronts import reading_turns
from mpspool.router.fronts.http2 import link as link_module
from mpspool.router.fronts.http2.connection import Connection
from mpspool.router.fronts.http2.headers import RequestHead, encode
from mpspool.router.fronts.http2.limits import Limits
from mpspool.router.fronts.http2.link import Link
from mpspool.router.fronts.http2.listener import Listener
from mpspool.router.fronts.http2.streams import Stream
from mpspool.router.fronts.http2.tls_link import TlsLink
from mpspool.router.memory import Memory
from tests.fakes.http2 import GREETING, REQUEST, Echo, Scene, Sink, data, headers, reset_codes, split

SERVER = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
CALLS = 500
MANY = b"".join(headers(number, end=True) for number in range(1, 2 * CALLS, 2))


def test_calls_of_one_read_begin_a_few_a_turn() -> None:
    """In their order, and each once."""
    connection = (scene := Scene().greet()).connection
    connection.receive(MANY, 0.0)
    begun = [len(scene.all)]
    while connection.behind:
        connection.go_on()
        begun.append(len(scene.all))
    assert begun[-1] == CALLS
    assert max(after - before for before, after in zip([0, *begun], begun, strict=False)) <= 8
    assert list(scene.all) == list(range(1, 2 * CALLS, 2))


@pytest.mark.parametrize("small", [data(1, b"x"), frames.frame(frames.PING, frames.ACK, 0, bytes(8))])
def test_so_are_small_frames(small: bytes) -> None:
    """Those that bring a byte, and those that bring nothing."""
    connection = (scene := Scene().greet()).connection
    scene.send(headers(1))
    connection.receive(small * 1500, 0.0)
    assert connection.behind
    assert len(scene.all[1].body) <= 512
    connection.go_on()
    connection.go_on()
    assert not connection.behind


@pytest.mark.parametrize("known", [True, False])
def test_what_is_turned_away_takes_less_of_a_turn(known: bool) -> None:
    """By far, where its header block is known. It is answered without a Stream, and what else it brings is no fault of its client's."""
    answer = encode((b":status", b"200"), (b"grpc-status", b"4"))
    turned: list[int] = []

    def turn_away(connection: Connection, stream_id: int, _head: RequestHead) -> None:
        turned.append(stream_id)
        connection.turn_away(stream_id, answer)

    connection = Connection(sink := Sink(), turn_away, Limits())
    connection.receive(GREETING, 0.0)
    begun = len(sink.sent)
    blocks = {
        n: REQUEST + encode((b"x-number", b"0" if known else b"%d" % n)) for n in range(1, 2 * CALLS, 2)
    }
    brought = [
        headers(n, block) + data(n, b"xyz", end=True) + frames.rst_stream(n, 8) for n, block in blocks.items()
    ]
    connection.receive(b"".join(brought), 0.0)
    turns = 1
    while connection.behind:
        assert len(turned) >= 20 * turns if known else len(turned) <= 8 * turns
        connection.go_on()
        turns += 1
    assert turned == list(range(1, 2 * CALLS, 2))
    sent = split(bytes(sink.sent[begun:]))
    assert [frame.stream for frame in sent if frame.kind == frames.HEADERS] == turned
    assert sent[0].payload == frames.NO_TABLE + answer
    assert {frame.payload for frame in sent[2:] if frame.kind == frames.HEADERS} == {answer}
    assert reset_codes(sent) == dict.fromkeys(turned, frames.ErrorCode.NO_ERROR)
    assert not connection.over
    assert not connection.streams
    assert connection.kept_header_bytes == 0
    connection.receive(headers(2 * CALLS + 1, end=True), 0.0)
    (last,) = split(bytes(sink.sent[begun:]))[len(sent) :]
    assert (last.kind, last.stream) == (frames.HEADERS, 2 * CALLS + 1)


def test_what_is_remembered_of_ended_streams_is_bounded() -> None:
    """The last thousand: what the peer still sends on them is no fault of its; of earlier ones it is."""
    connection = Connection(Sink(), lambda connection, number, _: connection.turn_away(number, b""), Limits())
    connection.receive(GREETING, 0.0)
    last = 20_001
    for number in range(1, last + 1, 2):
        connection.receive(headers(number), 0.0)
        assert len(connection._resets) <= 2048
    connection.receive(b"".join(data(last - 2 * ago, b"x") for ago in range(1000)), 0.0)
    while connection.behind:
        connection.go_on()
    assert connection._resets_left == Limits().resets
    connection.receive(data(1, b"x"), 0.0)
    assert connection._resets_left == Limits().resets - 1


@pytest.mark.parametrize("why", ["streams", "malformed", "draining"])
def test_blocks_that_begin_no_stream_are_read_a_few_a_turn(why: str) -> None:
    """They are decoded, too: of each field of theirs something may be new."""
    connection = (scene := Scene(Limits(streams=1, useless=10**6, resets=10**6)).greet()).connection
    scene.send(headers(1))
    if why == "draining":
        connection.go_away()
    blocks = [REQUEST + encode((b"x-number", b"%d" % n)) for n in range(200)]
    if why == "malformed":
        blocks = [block + encode((b"te", b"no")) for block in blocks]
    connection.receive(b"".join(headers(3 + 2 * n, block) for n, block in enumerate(blocks)), 0.0)
    turns = 1
    while connection.behind:
        assert connection.last_id // 2 <= 4 * turns
        connection.go_on()
        turns += 1
    assert connection.last_id == 401
    assert list(scene.all) == [1]


def test_so_are_long_blocks() -> None:
    """Each field of theirs may be a byte."""
    connection = (scene := Scene().greet()).connection
    long = [headers(number, b"\x84" * 1700, end=True) for number in range(1, 41, 2)]
    connection.receive(b"".join(long), 0.0)
    begun = [connection.last_id // 2 + 1]
    while connection.behind:
        connection.go_on()
        begun.append(connection.last_id // 2 + 1)
    assert begun[-1] == 20
    assert max(after - before for before, after in zip([0, *begun], begun, strict=False)) == 2
    assert not scene.complaints


@pytest.mark.parametrize("cut", [1, 4, len(frames.PREFACE)])
def test_a_preface_in_pieces_may_have_its_turns(cut: int) -> None:
    """What has been read of it is a part of it, and no frame."""
    connection = (scene := Scene(kind=Echo)).connection
    connection.receive(GREETING[:cut], 0.0)
    connection.go_on()
    connection.receive(GREETING[cut:] + headers(1, end=True), 0.0)
    assert not connection.over
    assert scene.all[1].told == ["head", "end"]


def test_a_body_is_read_at_once() -> None:
    """In frames of a usual size, as much as a read brings."""
    connection = (scene := Scene().greet()).connection
    connection.receive(headers(1) + data(1, bytes(2**14)) * 16, 0.0)
    assert not connection.behind
    assert len(scene.all[1].body) == 2**18


def test_what_comes_before_the_rest_was_read_is_read_after_it() -> None:
    """Also where a turn, or what came, ends within a frame."""
    sent = MANY + headers(2 * CALLS + 1) + data(2 * CALLS + 1, b"the last", end=True)
    for cut in range(3000, 3030):
        connection = (scene := Scene(kind=Echo).greet()).connection
        connection.receive(sent[:cut], 0.0)
        connection.receive(sent[cut:], 0.0)
        while connection.behind:
            connection.go_on()
        assert len(scene.all) == CALLS + 1
        assert scene.all[2 * CALLS + 1].body == b"the last"


def test_a_call_and_its_end_that_came_together_did_however_late_they_are_read() -> None:
    """Whoever floods does not gain by how long that takes."""
    connection = (scene := Scene().greet()).connection
    pairs = b"".join(headers(number) + frames.rst_stream(number, 8) for number in range(1, 2000, 2))
    connection.receive(pairs, 0.0)
    while connection.behind:
        connection.go_on()
    assert connection.over
    assert len(scene.all) == 513


def test_what_is_wrong_later_ends_the_connection_in_its_turn() -> None:
    """And what ended has no more turns."""
    connection = (scene := Scene().greet()).connection
    connection.receive(MANY + data(0, b"x"), 0.0)
    assert connection.behind
    while connection.behind:
        connection.go_on()
    assert connection.over
    assert scene.sink.closed
    connection = (scene := Scene().greet()).connection
    connection.receive(MANY, 0.0)
    connection.lost()
    connection.go_on()
    assert not connection.behind
    assert reset_codes(scene.sent()) == {}


class Transport(Sink):
    """As much of one as a Link asks for.

    Attributes:
        reads: whether it is read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads = True

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, _high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True


def test_what_it_takes_to_decrypt_is_of_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small records bring few bytes, of which there is little to read."""
    now_s = 0.0

    class Slow:
        ended = False

        def decrypt(self, data: bytes) -> bytes:
            nonlocal now_s
            now_s += 1.0
            return data

        def take(self) -> bytes:
            return b""

    async def run() -> None:
        link = TlsLink(Listener(lambda *_: pytest.fail("no call came"), Memory(2**30)), SERVER)
        link.connection_made(transport := Transport())  # type: ignore[arg-type]
        link._session, link._open = Slow(), True  # type: ignore[assignment]
        monkeypatch.setattr(link_module.time, "monotonic", lambda: now_s)
        link._waits = True
        link.data_received(GREETING[:1])
        assert not link._waits  # that was of this read, whatever there was in it
        assert not transport.reads
        while not transport.reads:
            await asyncio.sleep(0)
        assert not link.connection.over

    asyncio.run(run())


def test_what_waited_in_the_kernel_came_before_it_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a connection waited for its turn; what comes after that has not waited, however long nothing had come."""
    came: list[float] = []
    unread, now_s = 0, 0.0
    monkeypatch.setattr(link_module, "unread", lambda _transport: unread)
    monkeypatch.setattr(link_module.time, "monotonic", lambda: now_s)

    def open_stream(connection: Connection, stream_id: int, head: RequestHead) -> Stream:
        came.append(connection.came_s)
        return Echo(connection, stream_id, head, Scene())

    async def run() -> None:
        nonlocal unread, now_s
        link = Link(listener := Listener(open_stream, Memory(2**30)))
        link.connection_made(transport := Transport())  # type: ignore[arg-type]
        link.data_received(GREETING)
        for round_, unread in enumerate((1, 0)):
            first = 1 + 2 * round_ * (CALLS + 4)
            link.data_received(b"".join(headers(n, end=True) for n in range(first, first + 2 * CALLS, 2)))
            begun_s = now_s
            while not transport.reads:
                now_s += 0.001
                await asyncio.sleep(0)
            link.data_received(b"".join(headers(first + 2 * n, end=True) for n in range(CALLS, CALLS + 4)))
            first_s = begun_s + (now_s - begun_s) / 4 if unread else now_s
            assert came[-4:] == pytest.approx([first_s, *came[-3:-1], now_s])
            assert came[-4:] == sorted(came[-4:])
            now_s += 100.0
        link.connection_lost(None)
        await listener.close()

    asyncio.run(run())


def test_connections_tick_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nobody waits for thousands: of 25 no more than three at once, and each once in ten, whenever it came."""
    ticked: list[Link] = []
    monkeypatch.setattr(Link, "tick", lambda link, _now_s: ticked.append(link))

    async def run() -> None:
        listener = Listener(lambda *_: None, Memory(2**30))  # type: ignore[arg-type,return-value]
        links = [Link(listener) for _ in range(25)]
        for link in links:
            link.connection_made(Transport())  # type: ignore[arg-type]
        while len(ticked) < 50:
            before = len(ticked)
            listener._tick()
            assert len(ticked) - before <= 3
        assert set(ticked[:25]) == set(ticked[25:]) == set(links)
        listener._tick()
        late = Link(listener)
        late.connection_made(Transport())  # type: ignore[arg-type]
        for _ in range(9):
            listener._tick()
        assert len(ticked) == 76
        assert late in ticked
        for link in [*links, late]:
            link.connection_lost(None)
        listener._tick()
        assert len(ticked) == 76
        await listener.close()

    asyncio.run(run())


def test_connections_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has sent more than is read at once waits in line, and is not read meanwhile; who has sent less does not wait."""
    monkeypatch.setattr(reading_turns, "_TURN_S", 0.0)
    begun: list[tuple[Any, int]] = []

    async def run() -> None:
        listener = Listener(open_stream, Memory(2**30))
        transports = [Transport() for _ in range(3)]
        links = [Link(listener) for _ in range(3)]
        for link, transport in zip(links, transports, strict=True):
            link.connection_made(transport)  # type: ignore[arg-type]
            link.data_received(GREETING)
        for link in links[:2]:
            link.data_received(MANY)
        assert [transport.reads for transport in transports] == [False, False, True]
        links[2].data_received(headers(1, REQUEST, end=True))
        assert begun[-1] == (links[2].connection, 1)
        while not (transports[0].reads and transports[1].reads):
            before = len(begun)
            await asyncio.sleep(0)
            assert len(begun) - before <= 8
            first, second = (sum(one is link.connection for one, _ in begun) for link in links[:2])
            assert abs(first - second) <= 8
        assert len(begun) == 2 * CALLS + 1
        for link in links:
            link.connection_lost(None)
        await listener.close()

    def open_stream(connection: Any, stream_id: int, head: Any) -> Any:
        begun.append((connection, stream_id))
        return Echo(connection, stream_id, head, Scene())

    asyncio.run(run())
