"""An open-loop load generator that checks every answer; needs no TensorFlow.

    python -m bench.load --address 127.0.0.1:8500 --model half_plus_two --rate 200 --seconds 20

Requests leave at their appointed times whether or not earlier ones have been answered, and latency
counts from the appointed time: a server that stalls cannot hide it. Every request carries an input
that no other request carries, so an answer that was mixed up with another's counts as wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import math
import signal
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from mpspool.core import tfs

PREDICT = "/tensorflow.serving.PredictionService/Predict"
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_DT_FLOAT = 1
# x and x / 2 + 2 are both exact in float32 for whole x below this.
_EXACT_BELOW = 2**23
_KINDS = 20

Check = Callable[[bytes], bool]
Case = Callable[[int], tuple[bytes, Check]]


@dataclass(slots=True)
class Failure:
    """The requests that went wrong in one way; `sent_s` and `at_s`: when the first was sent, and failed."""

    code: str
    message: str
    sent_s: float
    at_s: float
    count: int = 1


@dataclass(frozen=True, slots=True)
class Report:
    """What became of the requests.

    Attributes:
        sent: requests sent; always ok + wrong + the sum of errors.
        ok: answered with the right value.
        wrong: answered with another value.
        errors: not answered, by gRPC status name.
        p50_ms ... max_ms: of the answered ones, from the appointed time; NaN without any.
        longest_gap_s: the longest time in which no right answer arrived.
        lag_ms: the longest a request left after its appointed time, the generator's own doing.
        seconds: from the first request's time to the last answer.
        start_s: the first request's time on this machine's CLOCK_MONOTONIC; other times count from it.
        failures: how requests went wrong, in the order of the first ones; of too many ways the first.
    """

    sent: int
    ok: int
    wrong: int
    errors: dict[str, int]
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    longest_gap_s: float
    lag_ms: float
    seconds: float
    start_s: float
    failures: list[Failure] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Every request was sent, answered and right."""
        return self.sent > 0 and self.ok == self.sent

    def to_json(self) -> str:
        """One JSON object; a percentile of nothing is null."""
        fields = dataclasses.asdict(self)
        return json.dumps(
            {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in fields.items()}
        )


def half_plus_two(
    model: str = "half_plus_two", batch: int = 1, version: int | None = None, first: int = 0
) -> Case:
    """Requests for y = x / 2 + 2: `batch` values each from `first` on, none used twice (in 8 million)."""

    def case(index: int) -> tuple[bytes, Check]:
        xs = [float((first + index * batch + k) % _EXACT_BELOW) for k in range(batch)]
        want = array("f", (x / 2 + 2 for x in xs))
        return _request(model, version, array("f", xs)), lambda body: _floats(body, "y") == want

    return case


def _request(model: str, version: int | None, values: array[float]) -> bytes:
    request = tfs.PredictRequest()
    request.model_spec.name = model
    if version is not None:
        request.model_spec.version.value = version
    tensor = request.inputs["x"]
    tensor.dtype = _DT_FLOAT
    tensor.tensor_shape.dim.add().size = len(values)
    tensor.tensor_content = values.tobytes()
    body: bytes = request.SerializeToString()
    return body


def _floats(body: bytes, output: str) -> array[float]:
    """An output's values, in either encoding; empty where the body is no vector of floats."""
    try:
        tensor = tfs.PredictResponse.FromString(body).outputs[output]
    except DecodeError:
        return array("f")
    if tensor.dtype != _DT_FLOAT or len(tensor.tensor_shape.dim) != 1:
        return array("f")
    values = array("f", tensor.float_val)
    values.frombytes(tensor.tensor_content)
    return values


class _Tally:
    """Counts outcomes as they arrive. Times are the event loop's."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.sent = 0
        self.lag = 0.0
        self._ok = 0
        self._wrong = 0
        self._errors: Counter[str] = Counter()
        self._latencies: list[float] = []
        self._gap = 0.0
        self._last_ok = self._last = start
        self._failures: dict[tuple[str, str], Failure] = {}

    def answered(self, due: float, sent: float, now: float, right: bool) -> None:
        self._last = now
        self._latencies.append(now - due)
        if right:
            self._ok += 1
            self._gap = max(self._gap, now - self._last_ok)
            self._last_ok = now
        else:
            self._wrong += 1
            self._note(sent, now, "WRONG", "the answer's value is not this request's")

    def failed(self, sent: float, now: float, code: str, message: str) -> None:
        self._last = now
        self._errors[code] += 1
        self._note(sent, now, code, message)

    def _note(self, sent: float, now: float, code: str, message: str) -> None:
        key = (code, message[:300])
        if known := self._failures.get(key):
            known.count += 1
            known.sent_s = min(known.sent_s, self._since_start(sent))
        elif len(self._failures) < _KINDS:
            self._failures[key] = Failure(*key, self._since_start(sent), self._since_start(now))

    def _since_start(self, moment: float) -> float:
        return round(moment - self.start, 3)

    def report(self) -> Report:
        ordered = sorted(self._latencies)

        def percentile(share: float) -> float:
            return (
                round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000, 3)
                if ordered
                else math.nan
            )

        return Report(
            sent=self.sent,
            ok=self._ok,
            wrong=self._wrong,
            errors=dict(self._errors),
            p50_ms=percentile(0.50),
            p90_ms=percentile(0.90),
            p99_ms=percentile(0.99),
            max_ms=percentile(1.0),
            longest_gap_s=round(max(self._gap, self._last - self._last_ok), 3),
            lag_ms=round(self.lag * 1000, 3),
            seconds=self._since_start(self._last),
            start_s=self.start,
            failures=list(self._failures.values()),
        )


async def generate(
    address: str,
    rate: float,
    seconds: float,
    *,
    case: Case | None = None,
    timeout_s: float = 10.0,
    connections: int = 1,
    wait_for_ready: bool = False,
    stop: asyncio.Event | None = None,
) -> Report:
    """Sends `rate` Predict requests a second for `seconds`, waits for all answers, and counts.

    Args:
        address: HOST:PORT of a PredictionService.
        rate: requests per second.
        seconds: for how long to send; all that was sent is then waited for.
        case: gives request n's body and the check of its answer; half_plus_two() by default.
        timeout_s: each request's deadline.
        connections: TCP connections to spread the requests over in turn.
        wait_for_ready: requests wait for a connection within their deadline, instead of failing.
        stop: set it to stop sending early.
    """
    make = case or half_plus_two()
    stop = stop or asyncio.Event()
    options = [*_UNLIMITED, ("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options) for _ in range(max(1, connections))]
    calls = [channel.unary_unary(PREDICT) for channel in channels]
    loop = asyncio.get_running_loop()
    tally = _Tally(loop.time())

    async def one(index: int, due: float) -> None:
        body, check = make(index)
        sent = loop.time()
        try:
            call = calls[index % len(calls)]
            answer = await call(body, timeout=timeout_s, wait_for_ready=wait_for_ready)
        except grpc.aio.AioRpcError as error:
            tally.failed(sent, loop.time(), error.code().name, error.details() or "")
        else:
            tally.answered(due, sent, loop.time(), check(answer))

    try:
        async with asyncio.TaskGroup() as tasks:
            while not stop.is_set() and tally.sent < round(rate * seconds):
                due = tally.start + tally.sent / rate
                await _until(due, stop)
                if stop.is_set():
                    break
                tally.lag = max(tally.lag, loop.time() - due)
                tasks.create_task(one(tally.sent, due))
                tally.sent += 1
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))
    return tally.report()


async def _until(due: float, stop: asyncio.Event) -> None:
    """Sleeps until the loop's clock shows `due`, or `stop` is set; lets other tasks run in any case."""
    delay = due - asyncio.get_running_loop().time()
    if delay <= 0:
        await asyncio.sleep(0)
        return
    try:
        async with asyncio.timeout(delay):
            await stop.wait()
    except TimeoutError:
        pass


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.load",
        description="Send requests at a fixed rate to a model that computes x / 2 + 2, check every answer, "
        "print the counts as JSON. Ctrl-C stops sending and still reports.",
        epilog="Exit status: 0 when every request was answered right, else 1.",
    )
    parser.add_argument("--address", default="127.0.0.1:8500", help="HOST:PORT of the gRPC front")
    parser.add_argument(
        "--model", default="half_plus_two", help="the model's name; it must compute x / 2 + 2"
    )
    parser.add_argument("--version", type=int, help="a model version; default: the latest")
    parser.add_argument("--rate", type=float, default=200.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--batch", type=int, default=1, help="values in one request")
    parser.add_argument("--first", type=int, default=0, help="the first value; each next one is one more")
    parser.add_argument("--timeout", type=float, default=10.0, help="each request's deadline, in seconds")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument(
        "--wait-for-ready", action="store_true", help="wait for a connection instead of failing"
    )
    return parser.parse_args(argv)


async def _run(options: argparse.Namespace) -> Report:
    stop = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    return await generate(
        options.address,
        options.rate,
        options.seconds,
        case=half_plus_two(options.model, options.batch, options.version, options.first),
        timeout_s=options.timeout,
        connections=options.connections,
        wait_for_ready=options.wait_for_ready,
        stop=stop,
    )


def main(argv: Sequence[str] | None = None) -> int:
    report = asyncio.run(_run(_arguments(argv)))
    print(report.to_json())
    return 0 if report.clean else 1


if __name__ == "__main__":
    sys.exit(main())
