"""A generator process: sends as it is told on its standard input, and tells on its standard output what became of it.

It does nothing else while it sends: what is to be seen of it, and what follows from its counts, is others' business.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
from functools import partial
from typing import BinaryIO

import uvloop

from mpspool.loadtest import messages
from mpspool.loadtest.link import Link, UnreachableError, secure
from mpspool.loadtest.loops import Loop, loop_for
from mpspool.loadtest.messages import Answer, Ask, Job, Phase, Result, Stop
from mpspool.loadtest.request import Request
from mpspool.loadtest.wire import Call

_UNKNOWN = 2
_UNAVAILABLE = 14
_DEADLINE_EXCEEDED = 4


async def ask(order: Ask) -> Answer:
    """One call."""
    over: asyncio.Future[Call] = asyncio.get_running_loop().create_future()

    def finished(_link: Link, call: Call, _now: float) -> None:
        if not over.done():
            over.set_result(call)

    link = Link(order.host, order.port, finished, secure=secure(order.tls))
    try:
        await link.connect()
        async with asyncio.timeout(order.timeout_s):
            link.start(Call(Request(order.block, order.message), keep=True))
            call = await over
    except UnreachableError as error:
        return Answer(_UNAVAILABLE, str(error), b"")
    except TimeoutError:
        return Answer(_DEADLINE_EXCEEDED, f"no answer within {order.timeout_s:g} s", b"")
    finally:
        link.close()
    return Answer(call.code, call.text, b"".join(call.parts or ())[5:])


class Generator:
    """What a process does, order by order."""

    def __init__(self, out: BinaryIO) -> None:
        self._say = partial(messages.write, out)
        self._job: Job | None = None
        self._lengths: dict[int, int] = {}
        self._loop: Loop | None = None
        self._form: tuple[int, int, float, int] | None = None
        self._running: asyncio.Task[None] | None = None
        self._stopped = False

    async def obey(self, reader: asyncio.StreamReader) -> None:
        """Until the orders end."""
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                size = int.from_bytes(await reader.readexactly(messages.HEAD_BYTES), "big")
                order = messages.decode_to_generator(await reader.readexactly(size))
                match order:
                    case Ask():
                        self._running = asyncio.create_task(self._answer(order))
                    case Job():
                        self._job = order
                    case Phase():
                        self._running = asyncio.create_task(self._run(order))
                    case Stop():
                        self._stopped = True
                        if self._loop is not None:
                            self._loop.stop()
        if self._loop is not None:
            self._loop.close()

    # The command waits for a word of both, and nobody else says that they failed.

    async def _answer(self, order: Ask) -> None:
        try:
            self._say(await ask(order))
        except Exception as error:  # noqa: BLE001
            self._say(Answer(_UNKNOWN, _failed(error), b""))

    async def _run(self, phase: Phase) -> None:
        try:
            self._say(await self._made_for(phase).run(phase, self._say))
        except Exception as error:  # noqa: BLE001
            self._say(Result(error=_failed(error)))

    def _made_for(self, phase: Phase) -> Loop:
        """The loop of the phase before, where it has the same form."""
        assert self._job is not None
        form = phase.in_flight, phase.streams, phase.rate, phase.connections
        if self._loop is None or form != self._form:
            if self._loop is not None:
                self._loop.close()
            self._loop, self._form = loop_for(self._job, phase, self._lengths), form
        if self._stopped:  # told so before there was one
            self._loop.stop()
        return self._loop


def _failed(error: Exception) -> str:
    return f"a generator process failed: {error or type(error).__name__}"


async def _main() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(2**22)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as out:
        await Generator(out).obey(reader)


if __name__ == "__main__":
    # Nothing that is made for each request is part of a cycle.
    gc.disable()
    uvloop.run(_main())
