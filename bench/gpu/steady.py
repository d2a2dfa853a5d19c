"""A load that goes on through faults: closed loop, no two requests alike, every answer compared."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Self

import grpc
import grpc.aio
import numpy as np

from bench.models import MODELS, Model, check, inputs_for
from bench.protocols import Tfs

_TIMEOUT_S = 60.0
_PAUSE_S = 0.05
RIGHT, WRONG = "OK", "WRONG"


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of the requests of some time.

    Attributes:
        right: answered, and right.
        failed: all others, by gRPC status name or WRONG.
        longest_gap_s: the longest time without a right answer.
    """

    right: int
    failed: dict[str, int]
    longest_gap_s: float


class Steady:
    """`concurrency` requests of the tower in flight until the block ends.

    Alike bodies would not do: one that two workers were lost to is kept out. So each has another first row, and the
    other rows have one right answer, known from the start.
    """

    def __init__(self, address: str, batch: int, concurrency: int) -> None:
        self._address, self._concurrency = address, concurrency
        self._model: Model = MODELS["tower"]
        self._protocol = Tfs()
        self._inputs = inputs_for(self._model, batch)
        answer = self._protocol.call(address, self._protocol.encode(self._model, self._inputs))
        self._expected = self._protocol.decode(answer)["y"]
        check(self._model, self._inputs, {"y": self._expected})
        self._numbers = itertools.count(1)
        self._outcomes: list[tuple[float, str]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="steady", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join()

    def between(self, start: float, end: float) -> Outcomes:
        """Of those that ended in that time (time.time())."""
        return summary(list(self._outcomes), start, end)

    async def _run(self) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self._address, options) as channel:
            call = channel.unary_unary(self._protocol.path)
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._concurrency):
                    tasks.create_task(self._one_after_another(call))

    async def _one_after_another(self, call: grpc.aio.UnaryUnaryMultiCallable) -> None:
        while not self._end.is_set():
            try:
                answer = await call(self._body(), timeout=_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                self._outcomes.append((time.time(), error.code().name))
                await asyncio.sleep(_PAUSE_S)
            else:
                self._outcomes.append((time.time(), RIGHT if self._is_right(answer) else WRONG))

    def _body(self) -> bytes:
        x = self._inputs["x"].copy()
        x[0, 0] = next(self._numbers)
        return self._protocol.encode(self._model, {"x": x})

    def _is_right(self, answer: bytes) -> bool:
        got, want = self._protocol.decode(answer)["y"], self._expected
        tolerance = self._model.tolerance * float(np.abs(want).max())
        return got.shape == want.shape and bool(np.allclose(got[1:], want[1:], atol=tolerance))


def summary(outcomes: list[tuple[float, str]], start: float, end: float) -> Outcomes:
    """Pure. `outcomes`: when, and RIGHT, WRONG or a status name."""
    within = [(at, what) for at, what in outcomes if start <= at <= end]
    right = sorted(at for at, what in within if what == RIGHT)
    gaps = [later - earlier for earlier, later in itertools.pairwise([start, *right, end])]
    failed = Counter(what for _, what in within if what != RIGHT)
    return Outcomes(len(right), dict(failed), max(gaps))
