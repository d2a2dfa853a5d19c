"""The router's end of the link: what it takes in at one turn of its loop."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

import pytest
import zmq

from mpspool.core.messages import Outcome, Result, encode
from mpspool.router.link import Link
from tests.conftest import short_dir


@pytest.mark.parametrize(
    ("size", "drains", "turns"), [(2**10, False, 1), (2**21, False, 3), (2**21, True, 1)]
)
def test_long_answers_are_taken_in_one_by_one(size: int, drains: bool, turns: int) -> None:
    """Who waits for the first lets its request go before the next is here: else there are several of both at once. To drain takes all of them."""

    async def run() -> None:
        found: list[int] = []
        turn = 0

        def receive(_identity: bytes, message: Any, frames: list[bytes]) -> None:
            assert message.outcomes == [Outcome(0, None, "", 1, 1, 1)]
            assert list(map(len, frames)) == [size]
            found.append(turn)

        with short_dir() as folder:
            link = Link(folder / "link", receive)
            with zmq.Context() as context, closing(context.socket(zmq.DEALER)) as worker:
                worker.setsockopt(zmq.IDENTITY, b"worker")
                worker.connect(f"ipc://{folder / 'link'}")
                for number in range(3):
                    result = Result(1, number, [Outcome(0, None, "", 1, 1, 1)], 1, 1)
                    worker.send_multipart([encode(result), bytes(size)])
                worker.poll(100, zmq.POLLIN)  # its messages go to the link's own thread meanwhile
                async with asyncio.timeout(20):
                    while len(found) < 3:
                        turn += 1
                        if drains:
                            link.drain()
                        await asyncio.sleep(0)
            link.close()
        assert len(set(found)) == turns

    asyncio.run(run())
