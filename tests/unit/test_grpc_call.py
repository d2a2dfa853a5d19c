"""Calls of gRPC whose connection has waited for its turn, and those that last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mpspool.core import http2_frames as frames
from mpspool.core.errors import Code
from mpspool.core.http2_frames import ErrorCode
from mpspool.router.fronts import health
from mpspool.router.fronts.grpc_call import Call, Method, Unary
from mpspool.router.fronts.grpc_server import Server
from mpspool.router.fronts.http2.connection import Connection
from mpspool.router.fronts.http2.headers import encode
from mpspool.router.fronts.http2.limits import Limits
from mpspool.router.memory import Admission, Memory
from tests.fakes.http2 import GREETING, REQUEST, Sink, data, headers, reset_codes, split

LIMIT_BYTES = 100_000
RUN = encode((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/Run"))
RUN += encode((b"content-type", b"application/grpc"))
WATCH = encode(
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", f"/{health.SERVICE}/Watch".encode()),
    (b"content-type", b"application/grpc"),
)


async def turns_until(found: Callable[[], bool]) -> None:
    """Lets the loop turn until that is so."""
    end_s = time.monotonic() + 30
    while not found():
        assert time.monotonic() < end_s
        await asyncio.sleep(0)


def status(code: Code) -> bytes:
    return encode((b"grpc-status", b"%d" % code))


class Counting(Server):
    """Remembers what it has turned away."""

    def __init__(self, methods: dict[str, Method], memory: Memory) -> None:
        super().__init__(methods, memory, 2**20)
        self.late: list[str] = []

    def too_late(self, path: str, *, timed: bool) -> None:
        assert timed is (path == "/a/Run")
        self.late.append(path)


class Scene:
    """A server whose methods of its own answer at once, one as if it ran a model, and one connection of it."""

    def __init__(self, methods: dict[str, Method] | None = None) -> None:
        self.memory = Memory(LIMIT_BYTES)
        self.called: list[bytes] = []
        self.sink = Sink()
        own = Unary(self._call, lambda size, _start, _head: self.memory.admit(size))
        self.server = Counting(
            {"/a/B": own, "/a/Run": replace(own, timed=True), **(methods or {})}, self.memory
        )
        self.connection = Connection(self.sink, self.server._open, Limits(), now_s=time.monotonic())
        self.receive(GREETING)
        self.sink.sent.clear()

    async def _call(self, body: bytes, _call: Call, admission: Admission) -> bytes:
        admission.release()
        self.called.append(body)
        return body

    def receive(self, *parts: bytes, ago_s: float = 0.0) -> None:
        self.connection.receive(b"".join(parts), time.monotonic() - ago_s)


def timed(number: int, timeout: bytes, block: bytes = REQUEST) -> bytes:
    block += encode((b"grpc-timeout", timeout))
    return headers(number, block) + data(number, bytes(5), end=True)


def test_a_deadline_counts_from_when_its_call_came() -> None:
    """Not from when its connection had its turn: what has expired meanwhile is not run, and costs an answer and nothing else."""

    async def run() -> None:
        scene = Scene()
        scene.receive(timed(1, b"500m"), timed(3, b"9S"), frames.rst_stream(1, ErrorCode.CANCEL), ago_s=1.0)
        refused, reset = split(bytes(scene.sink.sent))
        assert (refused.kind, refused.flags) == (frames.HEADERS, frames.END_HEADERS | frames.END_STREAM)
        assert status(Code.DEADLINE_EXCEEDED) in refused.payload
        assert reset_codes([refused, reset]) == {1: ErrorCode.NO_ERROR}
        assert list(scene.connection.streams) == [3]
        await turns_until(lambda: not scene.connection.streams)
        assert scene.called == [b""]
        assert status(Code.OK) in scene.sink.sent
        assert not scene.connection.over

    asyncio.run(run())


@pytest.mark.parametrize(("ago_s", "called"), [(4.0, 3), (6.0, 1), (11.0, 0)])
def test_what_runs_a_model_is_not_begun_with_less_than_half_of_its_time(ago_s: float, called: int) -> None:
    """It would be late, and make others late; what runs none has all of its time. Calls that bring no deadline have the server's."""

    async def run() -> None:
        scene = Scene()
        scene.server.timeout_ns = 10 * 10**9
        end = data(1, bytes(5), end=True)
        scene.receive(headers(1, RUN) + end, timed(3, b"10S", RUN), timed(5, b"10S"), ago_s=ago_s)
        assert scene.server.late == ["/a/Run", "/a/Run", "/a/B"][: 3 - called]
        await turns_until(lambda: len(scene.called) == called)
        await turns_until(lambda: not scene.connection.streams)
        assert len(scene.called) == called

    asyncio.run(run())


def test_what_is_no_call_needs_its_connection_no_longer() -> None:
    """Though what it is told waits for the client to take it."""

    async def run() -> None:
        scene = Scene()
        scene.receive(frames.settings(((frames.Setting.INITIAL_WINDOW_SIZE, 0),)))
        get = encode((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/a/Run"))
        scene.receive(headers(1, get, end=True))
        assert list(scene.connection.streams) == [1]
        assert not scene.connection.is_needed()

    asyncio.run(run())


def test_one_that_takes_nothing_is_told_when_it_does() -> None:
    """What its calls are told that have expired waits, and counts, as all that it does not take."""

    async def run() -> None:
        scene = Scene()
        scene.connection.pause()
        sent = len(scene.sink.sent)
        for number in range(1, 2001, 4):
            scene.receive(timed(number, b"1S"), timed(number + 2, b"3S", RUN), ago_s=2.0)
        assert len(scene.server.late) == len(scene.connection.streams) == 1000
        assert len(scene.sink.sent) == sent
        assert not scene.connection.over
        assert scene.memory.used > 0
        scene.connection.resume()
        assert bytes(scene.sink.sent).count(status(Code.DEADLINE_EXCEEDED)) == 1000
        assert not scene.connection.streams
        assert scene.memory.used == 0
        assert not scene.called

    asyncio.run(run())


def test_what_waited_to_be_read_came_at_even_times() -> None:
    """Of one read that had waited for a second: the first that long ago, the last just now. What is read after it has not waited."""

    async def run() -> None:
        scene = Scene()
        now_s = time.monotonic()
        scene.connection.receive(b"".join(timed(number, b"9S") for number in range(1, 1001, 2)), now_s, 1.0)
        while scene.connection.behind:
            scene.connection.tick(now_s + 5)
            scene.connection.go_on()
        came_s = [call.deadline_ns / 1e9 - 9 - now_s for call in scene.connection.streams.values()]
        assert came_s == sorted(came_s)
        assert came_s[0] == pytest.approx(-1.0, abs=0.01)
        assert came_s[250] == pytest.approx(-0.5, abs=0.01)
        assert came_s[-1] == pytest.approx(0.0, abs=0.01)
        scene.connection.receive(timed(1001, b"9S"), now_s)
        assert scene.connection.came_s == now_s
        await turns_until(lambda: not scene.connection.streams)

    asyncio.run(run())


def test_a_call_behind_the_message_of_another_came_behind_it() -> None:
    """Of one read, and in one turn: it has not waited as long as what it is behind."""

    async def run() -> None:
        scene = Scene()
        long = headers(1) + data(1, b"\0" + (90_000).to_bytes(4, "big") + bytes(90_000), end=True)
        scene.connection.receive(long + timed(3, b"1S", RUN), time.monotonic(), 0.9)
        assert not scene.server.late
        assert 3 in scene.connection.streams
        await turns_until(lambda: len(scene.called) == 2)

    asyncio.run(run())


class Ready:
    """A pool, and how often it was asked whether it is ready."""

    def __init__(self) -> None:
        self.reason, self.asked = "", 0
        self.tell: Callable[[], None] = lambda: None

    def unready(self) -> str:
        self.asked += 1
        return self.reason

    def on_change(self, callback: Callable[[], None]) -> None:
        self.tell = callback


def watched() -> tuple[Scene, Ready]:
    ready = Ready()
    scene: Any = None
    methods = health.Health(ready, ()).methods(lambda size, _start, _head: scene.memory.admit(size))
    scene = Scene(methods)
    return scene, ready


def test_calls_that_last_count_as_what_they_take() -> None:
    """They may last for ever, and connections have many: the bound is of these, too."""

    async def run() -> None:
        scene, _ = watched()
        numbers = range(1, 201, 2)
        scene.receive(*(headers(number, WATCH) for number in numbers))
        while scene.connection.behind:
            scene.connection.go_on()
        assert 0 < len(scene.connection.streams) <= LIMIT_BYTES // 4096
        assert scene.memory.used <= LIMIT_BYTES
        assert status(Code.RESOURCE_EXHAUSTED) in scene.sink.sent
        scene.connection.lost()
        assert scene.memory.used == 0
        await asyncio.sleep(0)

    asyncio.run(run())


def test_who_watches_is_woken_when_something_has_changed() -> None:
    """Every worker that comes or goes may have changed it, and there may be thousands who watch."""

    async def run() -> None:
        scene, ready = watched()
        scene.receive(*(headers(number, WATCH) + data(number, bytes(5), end=True) for number in (1, 3, 5)))
        await turns_until(lambda: ready.asked >= 3)
        ready.tell()
        await turns_until(lambda: ready.asked >= 4)
        before = ready.asked
        for _ in range(100):
            ready.tell()
            await asyncio.sleep(0)
        assert ready.asked <= before + 100 + 3
        sent = len(scene.sink.sent)
        ready.reason = "no worker"
        ready.tell()
        await turns_until(lambda: len(scene.sink.sent) > sent)
        scene.connection.lost()
        await asyncio.sleep(0)

    asyncio.run(run())
