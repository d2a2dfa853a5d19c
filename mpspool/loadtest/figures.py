"""What follows from what the generators counted: percentiles, and the median over the repeats with its spread. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mpspool.loadtest.messages import Failure, Result
from mpspool.loadtest.tally import WRONG, pattern

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
# What a table shows of a level, in this order.
FIGURES = ("rate", "mean_ms", *QUANTILES, "max_ms")

# A generator that is this busy may be what is measured.
BUSY = 0.9
# Requests of an open loop are late that leave later than this, where that is a part of the latency that counts.
_LATE_MS, _LATE_PART = 0.25, 0.1
# What was due and not sent is missing in the latencies, where it is more than this part of what was sent.
_UNSENT_PART = 0.01

Floats = np.ndarray[tuple[int], np.dtype[np.float32]]


def percentile(ordered: Sequence[float] | Floats, part: float) -> float | None:
    """The least value that at least this part of all are not above; None where it would only be the largest.

    Args:
        ordered: the values, ascending.
        part: 0.99 for p99.
    """
    count = len(ordered)
    rank = math.ceil(round(part * count, 6))
    return float(ordered[rank - 1]) if 0 < rank < count or (rank and part >= 1) else None


@dataclass(frozen=True, slots=True)
class Run:
    """One repeat, all processes together.

    Attributes:
        sent, right, failed: requests; failed by code.
        seconds: how long it was sent.
        figures: `rate` (right answers a second), and in milliseconds the FIGURES of the right ones' latency; None for
            what so few do not tell.
        busy: the largest share of a process' time in which it ran or waited for a CPU.
        waited: the part of that in which it waited for one.
        cpu_us: of the generators, for each request; None where there was none.
        late_ms: the 99th percentile of how late an open loop's requests were sent; None in a closed one.
        stream_waits: requests that waited in the client until the server allowed another stream.
        unsent: requests of an open loop that were due before its end, and were not sent.
    """

    sent: int
    right: int
    failed: dict[str, int]
    seconds: float
    figures: dict[str, float | None]
    busy: float
    waited: float
    cpu_us: float | None
    late_ms: float | None = None
    stream_waits: int = 0
    unsent: int = 0


def run_of(results: Sequence[Result]) -> Run:
    """What the processes counted in one repeat, as one."""
    latency_ms = _sorted_ms(result.latencies_s for result in results)
    late_ms = _sorted_ms(result.lateness_s for result in results)
    seconds = max(result.seconds for result in results)
    sent = sum(result.sent for result in results)
    failed: dict[str, int] = {}
    for failure in failures_of(results):
        failed[failure.code] = failed.get(failure.code, 0) + failure.count
    figures: dict[str, float | None] = {
        "rate": sum(result.in_time for result in results) / seconds if seconds else None,
        "mean_ms": float(latency_ms.mean(dtype=np.float64)) if len(latency_ms) else None,
    }
    figures |= {name: percentile(latency_ms, part) for name, part in QUANTILES.items()}
    figures["max_ms"] = percentile(latency_ms, 1)
    busy, waited = max(map(_busy, results))
    return Run(
        sent=sent,
        right=sum(result.right for result in results),
        failed=failed,
        seconds=seconds,
        figures=figures,
        busy=busy,
        waited=waited,
        cpu_us=sum(result.cpu_s for result in results) / sent * 1e6 if sent else None,
        late_ms=percentile(late_ms, 0.99) or percentile(late_ms, 1),
        stream_waits=sum(result.stream_waits for result in results),
        unsent=sum(result.unsent for result in results),
    )


def _sorted_ms(parts: Iterable[bytes]) -> Floats:
    found: Floats = np.sort(np.frombuffer(b"".join(parts), np.float32)) * np.float32(1000)
    return found


def _busy(result: Result) -> tuple[float, float]:
    """The share of its time in which a process was not idle, and in which it waited for a CPU."""
    if not result.seconds:
        return 0.0, 0.0
    waited_s = result.waited_s or 0.0
    return min(1.0, (result.cpu_s + waited_s) / result.seconds), min(1.0, waited_s / result.seconds)


def failures_of(results: Iterable[Result]) -> list[Failure]:
    """How requests went wrong, those of one way together, in the order of their number.

    Answers of different lengths to one request are told by the processes themselves; where it is two processes whose
    answers differ, it is one here.
    """
    counts: dict[tuple[str, str], Failure] = {}
    lengths: dict[int, int] = {}
    for result in results:
        for failure in result.failures:
            _count(counts, failure)
        for number, length in result.lengths.items():
            if lengths.setdefault(number, length) != length:
                text = f"two processes got answers of {lengths[number]} and {length} bytes to one request"
                _count(counts, Failure(WRONG, text, 1))
    return sorted(counts.values(), key=lambda one: -one.count)


def _count(counts: dict[tuple[str, str], Failure], failure: Failure) -> None:
    key = failure.code, pattern(failure.text)
    first = counts.get(key, Failure(failure.code, failure.text, 0))
    counts[key] = Failure(first.code, first.text, first.count + failure.count)


@dataclass(frozen=True, slots=True)
class Figure:
    """The median over the repeats, and how far they are from each other as a part of it; None where nothing is known."""

    median: float | None
    spread: float | None = None


def figure(values: Iterable[float | None]) -> Figure:
    known = [value for value in values if value is not None]
    if not known:
        return Figure(None)
    median = statistics.median(known)
    return Figure(median, (max(known) - min(known)) / median if median and len(known) > 1 else None)


def digits(wanted: float) -> str:
    """A concurrency or a rate, with all its digits."""
    return f"{wanted:.12g}"


@dataclass(frozen=True, slots=True)
class Level:
    """All repeats of one concurrency or rate.

    Attributes:
        wanted: requests in flight, or a second.
        is_open: whether it is a rate.
        runs: the repeats.
        failures: how requests went wrong.
        server: what the server says of it; see server.breakdown().
    """

    wanted: float
    is_open: bool
    runs: list[Run]
    failures: list[Failure] = field(default_factory=list)
    server: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{digits(self.wanted)}/s" if self.is_open else digits(self.wanted)

    @property
    def mean_ms(self) -> float:
        """Of the right ones of all repeats together, as the server's own times are; 0 where there are none."""
        right = sum(run.right for run in self.runs)
        spent_ms = sum((run.figures["mean_ms"] or 0.0) * run.right for run in self.runs)
        return spent_ms / right if right else 0.0

    def sum(self, what: Callable[[Run], int]) -> int:
        return sum(map(what, self.runs))

    @property
    def failed(self) -> dict[str, int]:
        """By code, the most frequent first."""
        counts: dict[str, int] = {}
        for run in self.runs:
            for code, count in run.failed.items():
                counts[code] = counts.get(code, 0) + count
        return dict(sorted(counts.items(), key=lambda item: -item[1]))

    def figure(self, name: str) -> Figure:
        """One of FIGURES. Not known where a repeat with answers does not know it: the largest is that of all repeats."""
        if any(run.right and run.figures[name] is None for run in self.runs):
            return Figure(None)
        return figure(run.figures[name] for run in self.runs)

    def of(self, what: Callable[[Run], float | None]) -> Figure:
        return figure(map(what, self.runs))

    def limits(self) -> list[str]:
        """What of the figures is the generator's own."""
        found = []
        busy, waited = self.of(lambda run: run.busy).median, self.of(lambda run: run.waited).median
        if busy is not None and waited is not None and busy > BUSY:
            of_it = f", {waited:.0%} of it waiting for a CPU that others had" if waited > busy / 3 else ""
            found.append(
                f"the generator was the limit: a process of it was busy {busy:.0%} of the time{of_it}"
            )
        late = self.of(lambda run: run.late_ms).median
        p99 = self.figure("p99").median or self.figure("max_ms").median
        if late is not None and late > _LATE_MS and (p99 is None or late > _LATE_PART * p99):
            of_all = f", of {p99:.3g} ms in all" if p99 is not None else ""
            found.append(f"the generator sent late: {late:.3g} ms at p99{of_all}")
        sent, unsent = self.sum(lambda run: run.sent), self.sum(lambda run: run.unsent)
        if unsent > _UNSENT_PART * sent:
            found.append(f"the generator did not send what was due: {unsent:,} requests of {sent + unsent:,}")
        return found
