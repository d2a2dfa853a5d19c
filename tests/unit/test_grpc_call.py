"""Calls of gRPC whose connection has waited for its turn, and those that last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from mpspool.core.errors import Code
from mpspool.router.fronts import health
from mpspool.router.fronts.grpc_call import Call, Method, Unary
from mpspool.router.fronts.grpc_server import Server
from mpspool.router.fronts.http2.connection import Connection
from mpspool.router.fronts.http2.headers import encode
from mpspool.router.fronts.http2.limits import Limits
from mpspool.router.memory import Admission, Memory
from tests.fakes.http2 import GREETING, REQUEST, Sink, data, headers

LIMIT_BYTES = 100_000
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


class Scene:
    """A server whose only method of its own answers at once, and one connection of it."""

    def __init__(self, methods: dict[str, Method] | None = None) -> None:
        self.memory = Memory(LIMIT_BYTES)
        self.called: list[bytes] = []
        self.sink = Sink()
        own = Unary(self._call, lambda size, _start, _head: self.memory.admit(size))
        self.server = Server({"/a/B": own, **(methods or {})}, self.memory, 2**20)
        self.connection = Connection(self.sink, self.server._open, Limits(), now_s=time.monotonic())
        self.receive(GREETING)
        self.sink.sent.clear()

    async def _call(self, body: bytes, _call: Call, admission: Admission) -> bytes:
        admission.release()
        self.called.append(body)
        return body

    def receive(self, *parts: bytes, ago_s: float = 0.0) -> None:
        self.connection.receive(b"".join(parts), time.monotonic() - ago_s)


def timed(number: int, timeout: bytes) -> bytes:
    block = REQUEST + encode((b"grpc-timeout", timeout))
    return headers(number, block) + data(number, bytes(5), end=True)


def test_a_deadline_counts_from_when_its_call_came() -> None:
    """Not from when its connection had its turn: what has expired meanwhile is not run, and costs an answer and nothing else."""

    async def run() -> None:
        scene = Scene()
        scene.receive(timed(1, b"500m"), timed(3, b"9S"), ago_s=1.0)
        assert status(Code.DEADLINE_EXCEEDED) in scene.sink.sent
        assert not any(number == 1 for number in scene.connection.streams)
        await turns_until(lambda: not scene.connection.streams)
        assert scene.called == [b""]
        assert status(Code.OK) in scene.sink.sent

    asyncio.run(run())


def test_what_waits_for_its_turn_has_come_before_it() -> None:
    """Of one read, calls that are read in later turns; a tick in between changes nothing of that."""

    async def run() -> None:
        scene = Scene()
        calls = [timed(number, b"9S") for number in range(1, 41, 2)]
        scene.receive(*calls, ago_s=0.3)
        assert scene.connection.behind
        began = len(scene.connection.streams)
        scene.connection.tick(time.monotonic())
        past_ns = time.monotonic_ns() - 300_000_000
        scene.connection.go_on()
        late = list(scene.connection.streams.values())[began:]
        assert late
        assert all(isinstance(call, Call) and call.deadline_ns < past_ns + 9_000_000_000 for call in late)

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
