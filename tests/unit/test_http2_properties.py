"""For any input: how it is cut changes nothing, nothing raises, nothing leaks, and messages arrive whole."""

from __future__ import annotations

import itertools

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, StreamEnded, StreamReset
from h2.settings import SettingCodes
from hypothesis import given, settings
from hypothesis import strategies as st

from mpspool.core import http2_frames as frames
from mpspool.router.fronts.http2.headers import encode
from mpspool.router.fronts.http2.limits import Limits
from tests.fakes.http2 import GREETING, Echo, Remembering, Scene, data, headers

HEAD = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/B"), (b":authority", b"x")]
ids = st.integers(0, 9)
small = st.binary(max_size=40)
a_frame = st.one_of(
    st.builds(lambda i, e: headers(i, end=e), ids, st.booleans()),
    st.builds(lambda i, e, p: data(i, p, end=e), ids, st.booleans(), small),
    st.builds(frames.window_update, ids, st.integers(0, 2**31 - 1)),
    st.builds(lambda i: frames.rst_stream(i, 8), ids),
    st.builds(lambda k, v: frames.settings([(k, v)]), st.integers(0, 8), st.integers(0, 2**32 - 1)),
    st.builds(lambda p: frames.frame(frames.PING, 0, 0, p), st.binary(min_size=8, max_size=8)),
    st.builds(frames.frame, st.integers(0, 12), st.integers(0, 255), ids, small),
    st.builds(lambda i: headers(i, whole=False), ids),
    st.builds(lambda i: frames.frame(frames.CONTINUATION, 4, i), ids),
)
a_right_frame = st.one_of(
    st.builds(lambda n, p: headers(n) + data(n, p, end=True), st.sampled_from(range(1, 99, 2)), small),
    st.builds(lambda p: frames.frame(frames.PING, 0, 0, p), st.binary(min_size=8, max_size=8)),
    st.builds(lambda n, p: frames.frame(0x42, 0, n, p), ids, small),
)


def cut(whole: bytes, at: list[int]) -> list[bytes]:
    places = sorted({0, len(whole), *(place % (len(whole) + 1) for place in at)})
    return [whole[start:stop] for start, stop in itertools.pairwise(places)]


def outcome(pieces: list[bytes], kind: type[Remembering]):
    scene = Scene(Limits(streams=3), kind)
    for piece in pieces:
        scene.receive(piece)
        scene.check_counts()
    told = {number: (stream.told, stream.body) for number, stream in scene.all.items()}
    return bytes(scene.sink.sent), told, scene.sink.closed, scene.complaints


@given(st.lists(a_frame | a_right_frame, max_size=20), st.lists(st.integers(0, 5000), max_size=30))
def test_how_the_input_is_cut_changes_nothing(sent: list[bytes], at: list[int]) -> None:
    """Bytes out, what streams are told, and the end are the same, for right and for wrong frames."""
    whole = GREETING + b"".join(sent)
    assert outcome(cut(whole, at), Echo) == outcome([whole], Echo)


@given(st.lists(a_right_frame, max_size=6))
def test_byte_by_byte(sent: list[bytes]) -> None:
    """The finest cut of all."""
    whole = GREETING + b"".join(sent)
    assert outcome([bytes([byte]) for byte in whole], Echo) == outcome([whole], Echo)


@given(
    st.lists(a_frame | small, max_size=30),
    st.lists(st.sampled_from(["pause", "resume", "tick", "go_away", "answer"]), max_size=10),
    st.booleans(),
)
def test_frame_soups(sent: list[bytes], doings: list[str], echo: bool) -> None:
    """Whatever comes, in whatever state: nothing raises, and at the end nothing is left of any stream."""
    scene = Scene(Limits(streams=3, control_bytes=100), Echo if echo else Remembering)
    scene.receive(GREETING)
    for number, piece in enumerate(sent):
        scene.receive(piece)
        scene.check_counts()
        if number < len(doings):
            _do(scene, doings[number], number)
            scene.check_counts()
    scene.connection.lost()
    scene.check_counts()
    assert scene.held == 0
    assert not scene.connection.streams
    for stream in scene.all.values():
        assert stream.told.count("reset") + stream.told.count("end") >= 1 or "head" in stream.told
        assert stream.told.count("reset") <= 1
        assert stream.told.count("end") <= 1


def _do(scene: Scene, what: str, number: int) -> None:
    if what == "tick":
        scene.connection.tick(40.0 * number)
    elif what == "answer":
        for stream in list(scene.connection.streams.values()):
            scene.connection.respond(
                stream, b"\x88", b"12345", bytes(100_000 * (number % 2)), encode((b"a", b"b"))
            )
    elif not (scene.connection.over and what == "go_away"):
        getattr(scene.connection, what)()


class Client:
    """h2's client, with windows and frames of its choice, against a connection of ours that echoes."""

    def __init__(self, window: int, frame_bytes: int) -> None:
        self.scene = Scene(Limits(window_bytes=70_000, connection_window_bytes=100_000), Echo)
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self.h2.initiate_connection()
        self.h2.update_settings(
            {SettingCodes.INITIAL_WINDOW_SIZE: window, SettingCodes.MAX_FRAME_SIZE: frame_bytes}
        )
        self.got: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.unread: list[tuple[int, int]] = []
        self._seen = 0
        self.exchange()

    def exchange(self) -> None:
        """Both ways until nothing is left to say."""
        while True:
            self.scene.receive(self.h2.data_to_send())
            new = bytes(self.scene.sink.sent[self._seen :])
            self._seen += len(new)
            for event in self.h2.receive_data(new):
                assert not isinstance(event, StreamReset), event
                if isinstance(event, DataReceived):
                    self.got[event.stream_id] = self.got.get(event.stream_id, b"") + event.data
                    self.unread.append((event.flow_controlled_length, event.stream_id))
                elif isinstance(event, StreamEnded):
                    self.ended.add(event.stream_id)
            if not new:
                return

    def read(self) -> None:
        """Takes what came, and opens the windows by as much."""
        for size, number in self.unread:
            self.h2.acknowledge_received_data(size, number)
        self.unread.clear()
        self.exchange()


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 200_000), min_size=1, max_size=6),
    st.sampled_from([1, 1000, 65_535, 2**20]),
    st.sampled_from([16_384, 2**18]),
    st.randoms(use_true_random=False),
)
def test_every_message_arrives_whole_both_ways(
    sizes: list[int], window: int, frame_bytes: int, chance
) -> None:
    """Any windows, any frame sizes, requests interleaved and answers read at any time."""
    if window == 1:
        sizes = [size % 50 for size in sizes]
    client = Client(window, frame_bytes)
    left: dict[int, bytes] = {}
    bodies: dict[int, bytes] = {}
    for size in sizes:
        number = client.h2.get_next_available_stream_id()
        client.h2.send_headers(number, HEAD)
        bodies[number] = left[number] = chance.randbytes(size)
    client.exchange()
    while left:
        number = chance.choice(list(left))
        stream = client.scene.all[number]
        client.scene.connection.expect(stream, len(left[number]))
        client.exchange()
        size = min(
            client.h2.local_flow_control_window(number), client.h2.max_outbound_frame_size, len(left[number])
        )
        size = chance.randint(min(1, size), size)
        rest = left[number][size:]
        padding = chance.choice([None, None, 9]) if rest else None
        if padding is not None and client.h2.local_flow_control_window(number) < size + 10:
            padding = None
        client.h2.send_data(number, left[number][:size], end_stream=not rest, pad_length=padding)
        left[number] = rest
        if not rest:
            del left[number]
        client.exchange()
        if chance.random() < 0.3:
            client.read()
    while client.unread:
        client.read()
    assert {number: client.got.get(number, b"") for number in bodies} == bodies
    assert client.ended == set(bodies)
    assert client.scene.held == 0
    assert not client.scene.connection.streams
