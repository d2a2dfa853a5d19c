"""What the windows cost that a peer opens by little, and those who have to: the work is counted, clients are served."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest

from mpspool.core import http2_frames as frames
from mpspool.core.http2_frames import ErrorCode
from tests.fakes.http2 import LEAD, TAIL, Frame, Remembering, Scene, data, goaway_code, headers

MANY = 1000
MIB = 2**20


def initial_window(size: int) -> bytes:
    return frames.settings([(4, size)])


def waiting(window: int, size: int = 5000, kind: type[Remembering] = Remembering) -> Scene:
    """Streams 1, 3 and so on with such a window of their own, and answers of such a size."""
    scene = Scene(kind=kind).greet()
    scene.send(initial_window(window), *(headers(number, end=True) for number in range(1, 2 * MANY, 2)))
    body = bytes(size)
    for stream in list(scene.all.values()):
        scene.connection.respond(stream, LEAD, b"", body, TAIL)
    scene.sent()
    return scene


def shut(scene: Scene) -> None:
    """The connection's window is used up, by streams that have all of their answers then, or nothing more to send."""
    for number in range(1, 27, 2):
        scene.send(frames.window_update(number, 5000))
    scene.send(frames.window_update(27, 535))
    assert scene.connection.out_window == 0


def turns(scene: Scene, make, most: int) -> int:
    """How many of them it took to end the connection, or as many as there may be."""
    for turn in range(1, most + 1):
        sent = scene.send(make(turn))
        scene.check_counts()
        if scene.connection.over:
            assert goaway_code(sent) is ErrorCode.ENHANCE_YOUR_CALM
            assert scene.held == 0
            return turn
    return most


OPENED = {
    "alone": initial_window,
    "with a request": lambda turn: headers(2003 + 2 * turn) + initial_window(turn),
    "with data": lambda turn: data(2001, b"x") + initial_window(turn),
    "with a stream's": lambda turn: frames.window_update(1, 9) * 99 + initial_window(turn),
}


@pytest.mark.parametrize("case", OPENED)
def test_a_thousand_streams_whose_windows_are_opened_by_a_byte(case: str) -> None:
    """So many frames for 15 bytes of SETTINGS: within a second some, and no more, whatever else comes."""
    scene = waiting(0)
    scene.send(headers(2001), frames.window_update(0, MIB))
    assert turns(scene, OPENED[case], 9) == 4


def test_a_thousand_streams_that_the_connections_window_lets_go() -> None:
    """By a byte each, which they were given before: no more often."""
    scene = waiting(0)
    shut(scene)
    assert turns(scene, lambda turn: initial_window(turn) + frames.window_update(0, MANY), 9) == 5


def test_windows_that_are_changed_all_the_time() -> None:
    """Each change is of all streams, also where nothing goes; requests do not make up for it."""
    scene = waiting(0)
    shut(scene)
    taken = turns(scene, lambda turn: headers(2001 + 2 * (turn // 20)) + initial_window(turn % 2), 999)
    assert 200 < taken < 300


class Watched(Remembering):
    """Counts how often streams are looked at."""

    __slots__ = ("_queued",)
    looks = 0

    @property
    def queued(self) -> int:
        Watched.looks += 1
        return self._queued

    @queued.setter
    def queued(self, size: int) -> None:
        self._queued = size


@pytest.mark.parametrize("window", [MIB, 60])
def test_a_byte_of_the_connections_window(window: int) -> None:
    """It lets one byte go, and costs no look at the thousand that wait, be it for this window or for their own."""
    scene = waiting(window, kind=Watched)
    scene.send(frames.window_update(1, 60_000), frames.window_update(3, 60_000))
    assert scene.connection.out_window == 0
    for _ in range(3):
        before = Watched.looks
        (sent,) = scene.send(frames.window_update(0, 1))
        assert len(sent.payload) == 1
        assert Watched.looks - before < 40


# -- who is served, however much it takes in a second -----------------------------------------------------


def opened_again(sent: list[Frame]) -> bytes:
    """What a client answers that opens both windows for each frame as it comes."""
    return b"".join(
        frames.window_update(number, len(item.payload))
        for item in sent
        if item.kind == frames.DATA
        for number in (0, item.stream)
    )


@pytest.mark.parametrize(
    ("window", "streams", "most"),
    [
        (1, 50, 50),
        (20, 200, 300),
        (64, 900, 500),
        (1000, 900, 3000),
        (65_535, 900, 2000),
        (65_535, 200, 20_000),
    ],
)
def test_windows_that_are_opened_for_each_frame(window: int, streams: int, most: int) -> None:
    """Where the connection's is used up they become ever smaller parts of it."""
    scene = Scene().greet()
    scene.send(initial_window(window))
    chance = Random(window)
    got: defaultdict[int, bytes] = defaultdict(bytes)
    bodies: dict[int, bytes] = {}
    for first in range(1, 6 * streams, 2 * streams):
        numbers = range(first, first + 2 * streams, 2)
        scene.send(*(headers(number, end=True) for number in numbers))
        for number in numbers:
            bodies[number] = chance.randbytes(chance.randrange(1, most))
            scene.connection.respond(scene.all[number], LEAD, b"", bodies[number], TAIL)
        sent = scene.sent()
        while sent:
            for item in sent:
                if item.kind == frames.DATA:
                    got[item.stream] += item.payload
            sent = scene.send(opened_again(sent))
    assert not scene.connection.over
    assert got == bodies


def test_windows_that_are_opened_for_small_answers() -> None:
    """All streams that there may be are answered, and only then their windows are opened, a tick later."""
    scene = Scene().greet()
    numbers = range(1, 2048, 2)
    scene.send(*(headers(number, end=True) for number in numbers))
    for number in numbers:
        scene.connection.respond(scene.all[number], LEAD, b"", b"x", TAIL)
    scene.connection.tick(1.0)
    scene.send(opened_again(scene.sent()), frames.frame(frames.PING, 0, 0, bytes(8)) * 99)
    assert not scene.connection.over


def test_windows_that_grow_by_what_a_client_measures() -> None:
    """Twice as large each time, as stock clients have it, within a moment and with a thousand answers that wait."""
    scene = waiting(1024, 70_000)
    for power in range(11, 25):
        scene.send(initial_window(2**power), frames.window_update(0, 2**power))
        scene.send(frames.frame(frames.PING, 0, 0, bytes(8)))
    scene.send(frames.window_update(0, 2**27))
    assert not scene.connection.over
    assert scene.held == 0


def test_windows_that_become_smaller_and_larger_again() -> None:
    """As those of a client that is short of memory, with a thousand answers that wait for them or for the connection's."""
    scene = waiting(65_535, 70_000)
    for _ in range(10):
        scene.send(initial_window(128), frames.window_update(0, 1000))
        scene.send(initial_window(65_535), frames.window_update(0, 1000))
        scene.check_counts()
    scene.send(initial_window(MIB), frames.window_update(0, 2**27))
    assert not scene.connection.over
    assert scene.held == 0
