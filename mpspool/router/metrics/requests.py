"""Counts of requests, kept in plain numbers: the client library's own objects take a lock for each one.

What is counted here becomes the client library's families when somebody scrapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from mpspool.core.errors import Code, Lack
from mpspool.core.methods import Method
from mpspool.router.metrics.bounds import (
    BATCH_SIZES,
    EXAMPLES,
    GRAPH_RUN_US,
    LATENCY_US,
    MAX_SIZES,
    QUEUING_US,
    seconds,
)
from mpspool.router.metrics.buckets import Bounds, Buckets, together, united
from mpspool.router.metrics.labels import VERSION, WORKER, worker_labels

# fmt: off
SECONDS = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.075,
    0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)
# fmt: on
SIZES = tuple(float(2**power) for power in range(13))


# What TensorFlow Serving's metrics tell by bounds of their own, too.
_LATENCIES = united(SECONDS, seconds(LATENCY_US))
_QUEUED = united(SECONDS, seconds(QUEUING_US))
_RUNS = united(SECONDS, seconds(LATENCY_US), seconds(GRAPH_RUN_US))


class MethodCounts:
    """What was counted of one method of a model version.

    Attributes:
        codes: requests, by what they were answered.
        answered, failed: from arrival to the answer, where that is one and where it is an error.
        alone, joined: TensorFlow's time, of runs of one request and of those that were sent to be joined.
    """

    __slots__ = ("alone", "answered", "codes", "failed", "joined")

    def __init__(self) -> None:
        self.codes: dict[Code, int] = {}
        self.answered, self.failed = Buckets(_LATENCIES), Buckets(_LATENCIES)
        self.alone, self.joined = Buckets(_RUNS), Buckets(_RUNS)

    def add(self, other: MethodCounts) -> None:
        """Counts what the other has as well."""
        for code, count in other.codes.items():
            self.codes[code] = self.codes.get(code, 0) + count
        for name in ("answered", "failed", "alone", "joined"):
            getattr(self, name).add(getattr(other, name))


class VersionCounts:
    """What was counted of one model version.

    Attributes:
        methods: by number; None of those that nobody has asked for.
        lacks: for want of what requests were refused.
        queue, joined_queue: from arrival to the last dispatch, of those that ran alone and of those sent to be joined.
        parse, encode: a worker's time for a request, beside the run.
        effective, waiting: a request's time as its device sees it, and the rest.
        batch_requests, batch_rows: of each run of what was sent to be joined.
        batch_runs: TensorFlow's time for each.
        batch_sizes: the rows of each, padding and all.
        paddings: how many of them were padding, by size.
        input_rows: of each request that was sent to be joined.
        examples: of each request that has some.
    """

    __slots__ = (
        "batch_requests",
        "batch_rows",
        "batch_runs",
        "batch_sizes",
        "effective",
        "encode",
        "examples",
        "input_rows",
        "joined_queue",
        "lacks",
        "methods",
        "paddings",
        "parse",
        "queue",
        "waiting",
    )

    def __init__(self) -> None:
        self.methods: list[MethodCounts | None] = [None] * len(Method)
        self.lacks: dict[Lack, int] = {}
        self.queue, self.joined_queue = Buckets(_QUEUED), Buckets(_QUEUED)
        self.parse, self.encode = Buckets(SECONDS), Buckets(SECONDS)
        self.effective, self.waiting = Buckets(SECONDS), Buckets(SECONDS)
        self.batch_requests, self.batch_rows = Buckets(SIZES), Buckets(SIZES)
        self.batch_runs = Buckets(_RUNS)
        self.batch_sizes, self.input_rows = Buckets(BATCH_SIZES), Buckets(BATCH_SIZES)
        self.paddings: dict[int, Buckets] = {}
        self.examples = Buckets(EXAMPLES)

    def method(self, method: Method) -> MethodCounts:
        """That method's own."""
        mine = self.methods[method]
        if mine is None:
            mine = self.methods[method] = MethodCounts()
        return mine

    def asked(self) -> Iterator[tuple[Method, MethodCounts]]:
        """Every method that somebody has asked for."""
        return ((Method(number), counts) for number, counts in enumerate(self.methods) if counts is not None)

    def padded(self, size: int, padding: int) -> None:
        """Counts a run of so many rows, of which so many were padding."""
        self.batch_sizes.observe(size)
        found = self.paddings.get(size)
        if found is None:
            size = size if len(self.paddings) < MAX_SIZES else 0
            found = self.paddings.setdefault(size, Buckets(BATCH_SIZES))
        found.observe(padding)

    def add(self, other: VersionCounts) -> None:
        """Counts what the other has of TensorFlow Serving's metrics as well."""
        for method, counts in other.asked():
            self.method(method).add(counts)
        for size, padding in other.paddings.items():
            self.paddings.setdefault(size, Buckets(BATCH_SIZES)).add(padding)
        for name in ("joined_queue", "batch_runs", "batch_sizes", "input_rows", "examples"):
            getattr(self, name).add(getattr(other, name))

    def histogram(self, name: str) -> Buckets:
        """One of _HISTOGRAMS."""
        mine = [counts for _, counts in self.asked()]
        if name == "latency":
            return together([one for counts in mine for one in (counts.answered, counts.failed)], _LATENCIES)
        if name == "run":
            return together([one for counts in mine for one in (counts.alone, counts.joined)], _RUNS)
        if name == "queue":
            return together([self.queue, self.joined_queue], _QUEUED)
        found: Buckets = getattr(self, name)
        return found


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
        unkept: answers, and messages, that were not kept, by model and what there was too little of.
    """

    def __init__(
        self,
        versions: Mapping[tuple[str, int], VersionCounts],
        workers: Mapping[str, WorkerCounts],
        others: Mapping[tuple[str, Code, str, int | None], int],
        unkept: Mapping[tuple[str, Lack], int],
    ) -> None:
        self._versions = versions
        self._workers = workers
        self._others = others
        self._unkept = unkept

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not render yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield self._requests()
        yield self._refusals()
        yield from self._by_worker()
        for attribute, (name, text) in _HISTOGRAMS.items():
            family = HistogramMetricFamily(f"mpspool_{name}", text, labels=VERSION)
            bounds = SIZES if attribute.startswith("batch_") else SECONDS
            for key, counts in self._versions.items():
                buckets = counts.histogram(attribute)
                family.add_metric(_labels(*key), _samples(buckets, bounds), buckets.total)
            yield family

    def _requests(self) -> Metric:
        family = CounterMetricFamily(
            "mpspool_requests",
            "Requests answered, by canonical status code.",
            labels=(*VERSION, "method", "code"),
        )
        found: Counter[tuple[str, ...]] = Counter()  # what named no model of ours is in both
        for key, counts in self._versions.items():
            for (method, code), count in _by_api(counts).items():
                found[*_labels(*key), method, code.name] += count
        for (method, code, model, version), count in self._others.items():
            found[model, "" if version is None else str(version), method, code.name] += count
        return _filled(family, found)

    def _refusals(self) -> Metric:
        family = CounterMetricFamily(
            "mpspool_refusals",
            "Requests refused for want of room or time: queue_requests (max_queued_requests), queue_batches "
            "(max_enqueued_batches), bytes (max_queued_bytes), late (could not have met their deadlines; of no model those of which too much was over when they were read); and answers that "
            "were not kept for clients which take none (answers, of a model and no version); messages that made way before they were whole "
            "are bytes, of no version.",
            labels=(*VERSION, "reason"),
        )
        found: Counter[tuple[str, ...]] = Counter(
            {(*_labels(*key), lack.value): 0 for key in self._versions for lack in Lack}
        )
        for labels, count in self.refused():
            found[labels] += count
        return _filled(family, found)

    def refused(self) -> Iterator[tuple[tuple[str, ...], int]]:
        """By model, version and reason, how many were; nothing of which none was."""
        for key, counts in self._versions.items():
            for lack, count in counts.lacks.items():
                yield (*_labels(*key), lack.value), count
        for (model, lack), count in self._unkept.items():
            yield (model, "", lack.value), count

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


def _filled(family: CounterMetricFamily, counts: Mapping[tuple[str, ...], int]) -> CounterMetricFamily:
    """With these counts, by their labels: a series that is told twice is refused by who scrapes."""
    for labels, count in counts.items():
        family.add_metric(labels, count)
    return family


def _by_api(counts: VersionCounts) -> dict[tuple[str, Code], int]:
    """REST's methods together with those of gRPC."""
    found: Counter[tuple[str, Code]] = Counter()
    for method, mine in counts.asked():
        for code, count in mine.codes.items():
            found[method.api, code] += count
    return found


def _samples(buckets: Buckets, bounds: Bounds) -> list[tuple[str, float]]:
    """As the client library wants them."""
    shown = [*map(floatToGoString, bounds), "+Inf"]
    return list(zip(shown, map(float, buckets.cumulated(bounds)), strict=True))


def _labels(model: str, version: int) -> tuple[str, str]:
    return (model, str(version)) if model else ("", "")
