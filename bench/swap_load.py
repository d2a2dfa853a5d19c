"""An open loop that keeps what became of each request, and which version answered it; needs no TensorFlow.

    python -m bench.swap_load PORT RATE RECORD.npz

Requests leave at random times (Poisson), whether or not earlier ones have been answered, until standard input ends;
what is on its way then is waited for, and the record is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import random
import sys
from array import array
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Self

import numpy as np
import uvloop
from google.protobuf.message import DecodeError

from bench import embedding
from mpspool.core import tfs
from mpspool.loadtest.link import Link
from mpspool.loadtest.request import Request, header_block
from mpspool.loadtest.timer import Timer
from mpspool.loadtest.wire import Call

_PREDICT = "/tensorflow.serving.PredictionService/Predict"
_BODIES, _IDS = 256, 16
_CONNECTIONS = 8
_DEADLINE_S = 10.0
_SENT_AT_ONCE = 32
_KINDS = 20
# Sums of the same few numbers, whatever their order.
_TOLERANCE = 1e-4
_PREFIX_BYTES = 5

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
Integers = np.ndarray[tuple[int], np.dtype[np.int32]]


@dataclass(frozen=True, slots=True)
class Requests:
    """What became of requests, in the order in which they were over. Times are CLOCK_MONOTONIC in seconds.

    Attributes:
        due: when each was to be sent.
        sent: when it was.
        over: when it was answered, or failed.
        version: which one answered; 0 where it failed, by status or by a wrong value.
        failures: how they failed; of too many ways the first.
    """

    due: Floats
    sent: Floats
    over: Floats
    version: Integers
    failures: tuple[str, ...] = ()

    @classmethod
    def read(cls, file: Path) -> Self:
        with np.load(file) as record:
            arrays = (record["due"], record["sent"], record["over"], record["version"])
            return cls(*arrays, tuple(map(str, record["failures"])))

    def write(self, file: Path) -> None:
        np.savez(
            file,
            due=self.due,
            sent=self.sent,
            over=self.over,
            version=self.version,
            failures=np.array(self.failures, dtype=np.str_),
        )

    def where(self, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Self:
        """Those of them."""
        return type(self)(
            self.due[chosen], self.sent[chosen], self.over[chosen], self.version[chosen], self.failures
        )

    def due_in(self, begin: float, end: float) -> Self:
        return self.where((self.due >= begin) & (self.due < end))

    def __len__(self) -> int:
        return len(self.due)

    @property
    def failed(self) -> int:
        return int((self.version == 0).sum())

    @property
    def latencies_ms(self) -> Floats:
        """Of all of them, from when each was due."""
        latencies: Floats = (self.over - self.due) * 1000
        return latencies


def bodies() -> list[bytes]:
    """The requests, which are sent in turn: a few random rows of the table each."""
    ids = np.random.default_rng(5).integers(0, embedding.ROWS, (_BODIES, _IDS), dtype=np.int64)
    return [embedding.request(row) for row in ids]


class _Answers:
    """Which version an answer is from; each body is looked into once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes], int] = {}
        self._sums: dict[int, float] = {}

    def version(self, number: int, answer: bytes) -> int:
        """0 for one that is not as the first answer to the same request was: all versions have the same weights."""
        key = number, answer
        if (found := self._known.get(key)) is None:
            found = self._known[key] = self._look(number, answer)
        return found

    def _look(self, number: int, answer: bytes) -> int:
        try:
            response = tfs.PredictResponse.FromString(answer[_PREFIX_BYTES:])
        except DecodeError:
            return 0
        tensor = response.outputs["sum"]
        values = tensor.float_val or np.frombuffer(tensor.tensor_content, np.float32)
        if len(values) != 1:
            return 0
        expected = self._sums.setdefault(number, values[0])
        is_right = abs(values[0] - expected) <= _TOLERANCE * abs(expected)
        return int(response.model_spec.version.value) if is_right else 0


class _Load:
    def __init__(self, port: int, rate: float) -> None:
        block = header_block(_PREDICT, f"127.0.0.1:{port}", [], _DEADLINE_S)
        self._turn = itertools.cycle([Request(block, body, number) for number, body in enumerate(bodies())])
        self._links = [Link("127.0.0.1", port, self._finished) for _ in range(_CONNECTIONS)]
        self._at = 0
        self._rate = rate
        self._random = random.Random(0)
        self._timer = Timer()
        self._due = 0.0
        self._in_flight = 0
        self._drained = asyncio.Event()
        self._answers = _Answers()
        self._times = array("d"), array("d"), array("d")
        self._versions = array("i")
        self._failures: dict[str, None] = {}

    async def run(self, stop: asyncio.Event) -> Requests:
        """Raises UnreachableError."""
        await asyncio.gather(*(link.connect() for link in self._links))
        self._due = monotonic()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._timer.fd, self._send_due)
        self._timer.set(self._due)
        await stop.wait()
        loop.remove_reader(self._timer.fd)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DEADLINE_S):
                while self._in_flight:
                    self._drained.clear()
                    await self._drained.wait()
        for link in self._links:
            for call in link.expire(monotonic()):
                self._note(call.due, call.sent, 0, "no answer")
            link.close()
        due, sent, over = (np.array(times) for times in self._times)
        return Requests(due, sent, over, np.array(self._versions, np.int32), tuple(self._failures))

    def _send_due(self) -> None:
        for _ in range(_SENT_AT_ONCE):
            now = monotonic()
            if self._due > now:
                break
            self._at = (self._at + 1) % len(self._links)
            link = self._links[self._at]
            if link.usable:
                self._in_flight += 1
                link.start(Call(next(self._turn), self._due, now, keep=True))
            else:
                self._note(self._due, now, 0, "the connection is lost")
            self._due += self._random.expovariate(self._rate)
        self._timer.set(self._due)

    def _finished(self, _link: Link, call: Call, now: float) -> None:
        self._in_flight -= 1
        self._drained.set()
        version, why = 0, ""
        if call.code:
            why = f"status {call.code}: {call.text}"
        elif not (version := self._answers.version(call.request.number, b"".join(call.parts or ()))):
            why = "a wrong answer"
        self._note(call.due, call.sent, version, why, now)

    def _note(self, due: float, sent: float, version: int, why: str, now: float | None = None) -> None:
        for times, time in zip(self._times, (due, sent, monotonic() if now is None else now), strict=True):
            times.append(time)
        self._versions.append(version)
        if why and len(self._failures) < _KINDS:
            self._failures[why] = None


async def _main(port: str, rate: str, record: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    (await _Load(int(port), float(rate)).run(stop)).write(Path(record))


if __name__ == "__main__":
    # It stands for clients that have CPUs of their own.
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    # Nothing that is made for each request is part of a cycle.
    gc.disable()
    uvloop.run(_main(*sys.argv[1:]))
