"""Counts of requests, kept in plain numbers: the client library's own objects take a lock for each one.

What is counted here becomes the client library's families when somebody scrapes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from mpspool.core.errors import Code, Lack
from mpspool.core.methods import Method
from mpspool.router.labels import VERSION, WORKER, worker_labels

# fmt: off
SECONDS = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.075,
    0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)
# fmt: on
SIZES = tuple(float(2**power) for power in range(13))


class Buckets:
    """A histogram on fixed bounds."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def cumulated(self) -> list[int]:
        """How many were at most each bound; as the last, all."""
        return list(accumulate(self._counts))

    def samples(self) -> list[tuple[str, float]]:
        """As the client library wants them."""
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        return list(zip(bounds, map(float, self.cumulated()), strict=True))


class VersionCounts:
    """What was counted of one model version."""

    __slots__ = (
        "batch_requests",
        "batch_rows",
        "codes",
        "effective",
        "encode",
        "lacks",
        "latency",
        "parse",
        "queue",
        "run",
        "waiting",
    )

    def __init__(self) -> None:
        self.codes: dict[tuple[Method, Code], int] = {}
        self.lacks: dict[Lack, int] = {}
        self.latency, self.queue = Buckets(SECONDS), Buckets(SECONDS)
        self.parse, self.run, self.encode = Buckets(SECONDS), Buckets(SECONDS), Buckets(SECONDS)
        self.effective, self.waiting = Buckets(SECONDS), Buckets(SECONDS)
        self.batch_requests, self.batch_rows = Buckets(SIZES), Buckets(SIZES)


class WorkerCounts:
    """What was counted of one worker slot."""

    __slots__ = ("codes", "total_s")

    def __init__(self) -> None:
        self.codes: dict[Code, int] = {}
        self.total_s = 0.0


_HISTOGRAMS = {
    "latency": ("request_seconds", "Requests that run a model, from arrival to answer."),
    "queue": ("queue_seconds", "Requests that run a model, from arrival to the last dispatch."),
    "parse": ("worker_parse_seconds", "Decoding a request in its worker."),
    "run": ("worker_run_seconds", "TensorFlow's time for a request, or for the batch that it was in."),
    "encode": ("worker_encode_seconds", "Encoding a response in its worker."),
    "effective": (
        "effective_seconds",
        "What a request, or the batch that it was in, would have kept its device busy with nothing beside it.",
    ),
    "waiting": (
        "waiting_seconds",
        "All else of a request's time: in the queue, and beside others on its device.",
    ),
    "batch_requests": ("batch_requests", "Requests of each run, of those that were sent to be joined."),
    "batch_rows": ("batch_rows", "Their rows, without padding."),
}


class RequestCollector(Collector):
    """Renders the counts, which others go on changing.

    Args:
        versions: by name and version of a model; ("", 0) for requests that named none of ours.
        workers: by slot.
        others: requests that run no model: by method, code, model and version.
    """

    def __init__(
        self,
        versions: Mapping[tuple[str, int], VersionCounts],
        workers: Mapping[str, WorkerCounts],
        others: Mapping[tuple[str, Code, str, int | None], int],
    ) -> None:
        self._versions = versions
        self._workers = workers
        self._others = others

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not render yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield self._requests()
        yield self._refusals()
        yield from self._by_worker()
        for attribute, (name, text) in _HISTOGRAMS.items():
            family = HistogramMetricFamily(f"mpspool_{name}", text, labels=VERSION)
            for key, counts in self._versions.items():
                buckets: Buckets = getattr(counts, attribute)
                family.add_metric(_labels(*key), buckets.samples(), buckets.total)
            yield family

    def _requests(self) -> Metric:
        family = CounterMetricFamily(
            "mpspool_requests",
            "Requests answered, by canonical status code.",
            labels=(*VERSION, "method", "code"),
        )
        for key, counts in self._versions.items():
            for (method, code), count in _by_api(counts.codes).items():
                family.add_metric((*_labels(*key), method, code.name), count)
        for (method, code, model, version), count in self._others.items():
            number = "" if version is None else str(version)
            family.add_metric((model, number, method, code.name), count)
        return family

    def _refusals(self) -> Metric:
        family = CounterMetricFamily(
            "mpspool_refusals",
            "Requests refused for want of room or time: queue_requests (max_queued_requests), queue_batches "
            "(max_enqueued_batches), bytes (max_queued_bytes), late (could not have met their deadlines).",
            labels=(*VERSION, "reason"),
        )
        for key, counts in self._versions.items():
            for lack in Lack:
                family.add_metric((*_labels(*key), lack.value), counts.lacks.get(lack, 0))
        return family

    def _by_worker(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "mpspool_worker_requests",
            "Requests answered by one worker slot.",
            labels=(*WORKER, "code"),
        )
        seconds = SummaryMetricFamily(
            "mpspool_worker_request_seconds",
            "From arrival to the answer of one worker slot.",
            labels=WORKER,
        )
        for worker, counts in self._workers.items():
            labels = worker_labels(worker)
            for code, count in counts.codes.items():
                requests.add_metric((*labels, code.name), count)
            seconds.add_metric(labels, sum(counts.codes.values()), counts.total_s)
        yield requests
        yield seconds


def _by_api(codes: Mapping[tuple[Method, Code], int]) -> dict[tuple[str, Code], int]:
    """REST's methods together with those of gRPC."""
    found: Counter[tuple[str, Code]] = Counter()
    for (method, code), count in codes.items():
        found[method.api, code] += count
    return found


def _labels(model: str, version: int) -> tuple[str, str]:
    return (model, str(version)) if model else ("", "")
