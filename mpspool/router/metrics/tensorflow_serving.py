"""TensorFlow Serving's metrics, as its Prometheus page has them: names, labels, bounds and text. Pure.

Dashboards and alerts that were made for it go on working; docs/metrics.md says of each metric what it is here. What it
registers under "/tensorflow/serving/request_count" is ":tensorflow:serving:request_count" on its page. A family is there
before it has a sample, as there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mpspool.core.errors import Code
from mpspool.core.methods import Method
from mpspool.router.metrics.bounds import (
    BATCH_SIZES,
    EXAMPLES,
    GRAPH_RUN_US,
    LATENCY_US,
    QUEUING_US,
    US,
    seconds,
)
from mpspool.router.metrics.buckets import Bounds, Buckets, together
from mpspool.router.metrics.requests import VersionCounts

# A BatchingSession is given no name for its threads there, however they are called in the parameters.
_THREAD_POOL = ""
# Of its two runtimes, the one that runs a Session.
_RUNTIME = "TF1"
# What its front door and its models' own counters leave out.
_UNCOUNTED = frozenset({Method.MULTI_INFERENCE})
_COUNTED_APIS = frozenset(method.api for method in Method if method not in _UNCOUNTED)


class Family(NamedTuple):
    """A metric: what it is, by which labels, and what that says."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


_SERVING, _BATCHING = ":tensorflow:serving:", ":tensorflow:serving:batching_session:"
_CORE, _LOADER = ":tensorflow:core:", ":tensorflow:cc:saved_model:"
LOAD_ATTEMPTS = Family(
    f"{_LOADER}load_attempt_count",
    "counter",
    ("model_path", "status"),
    "Loads of a version, one for each worker.",
)
LOAD_LATENCY = Family(
    f"{_LOADER}load_latency", "counter", ("model_path",), "Microseconds that those took which succeeded."
)
SESSION_RUNS = Family(f"{_CORE}direct_session_runs", "counter", (), "Runs of a model, alone or joined.")
GRAPH_BUILDS = Family(
    f"{_CORE}graph_build_calls", "counter", (), "Calls that workers compiled before they were READY."
)
GRAPH_BUILD_TIME = Family(f"{_CORE}graph_build_time_usecs", "counter", (), "Microseconds that took.")
GRAPH_RUN_TIME = Family(f"{_CORE}graph_run_time_usecs", "counter", (), "Microseconds of those runs.")
GRAPH_RUN_TIMES = Family(f"{_CORE}graph_run_time_usecs_histogram", "histogram", (), "Microseconds of each.")
GRAPH_RUNS = Family(f"{_CORE}graph_runs", "counter", (), "Runs of a model, alone or joined.")
INPUT_BATCH_SIZE = Family(
    f"{_BATCHING}input_batch_size", "histogram", (), "Rows of each request that was sent to be joined."
)
PADDING_SIZE = Family(
    f"{_BATCHING}padding_size",
    "histogram",
    ("execution_batch_size",),
    "Rows of padding, by the rows of the run.",
)
PROCESSED_BATCH_SIZE = Family(
    f"{_BATCHING}processed_batch_size", "histogram", (), "Rows of each run, padding and all."
)
QUEUING_LATENCY = Family(
    f"{_BATCHING}queuing_latency",
    "histogram",
    ("thread_pool_name",),
    "Microseconds from arrival to the last dispatch, of what was sent to be joined.",
)
WRAPPED_RUNS = Family(f"{_BATCHING}wrapped_run_count", "counter", (), "Runs of what was sent to be joined.")
WARMUP_LATENCY = Family(
    f"{_SERVING}model_warmup_latency",
    "histogram",
    ("model_path", "status"),
    "Microseconds of a warm-up by recorded requests, one for each worker.",
)
WARMUP_RECORDS = Family(
    f"{_SERVING}model_warmup_records_read",
    "counter",
    ("model_path", "status"),
    "Recorded requests that those ran.",
)
REQUEST_COUNT = Family(
    f"{_SERVING}request_count",
    "counter",
    ("model_name", "status"),
    "Requests answered, but for MultiInference.",
)
EXAMPLES_TOTAL = Family(
    f"{_SERVING}request_example_count_total",
    "counter",
    ("model",),
    "Examples of requests that were answered.",
)
EXAMPLE_COUNTS = Family(
    f"{_SERVING}request_example_counts",
    "histogram",
    ("model",),
    "Examples of each request that was answered.",
)
REQUEST_LATENCY = Family(
    f"{_SERVING}request_latency",
    "histogram",
    ("model_name", "API", "entrypoint"),
    "Microseconds from arrival to the answer, where that is no error.",
)
RUNTIME_LATENCY = Family(
    f"{_SERVING}runtime_latency",
    "histogram",
    ("model_name", "API", "runtime"),
    "TensorFlow's microseconds for a request, or for the batch that it was in.",
)
# By name, as there.
FAMILIES = tuple(sorted(value for value in globals().values() if isinstance(value, Family)))


@dataclass(slots=True)
class Loads:
    """What became of the workers of a model version as they started."""

    path: str = ""
    succeeded: int = 0
    failed: int = 0
    load_us: int = 0
    warmups: Buckets = field(default_factory=lambda: Buckets(LATENCY_US))
    warmup_records: int = 0


@dataclass(slots=True)
class LookUps:
    """What was asked over REST and runs no model: status and metadata, and what is nothing that there is."""

    codes: dict[Code, int] = field(default_factory=dict)
    answered: Buckets = field(default_factory=lambda: Buckets(LATENCY_US))


@dataclass(slots=True)
class Builds:
    """Graphs compiled, of all models."""

    count: int = 0
    total_us: int = 0


@dataclass(frozen=True, slots=True)
class Counted:
    """What the page is made of.

    Attributes:
        models: by name, "" for requests that named none of ours.
        all: of those, and of models that have gone.
        loads: of each version.
        look_ups: by model.
        refused: by method, requests that were answered before it was known whose they are.
        builds: of graphs.
    """

    models: Mapping[str, VersionCounts]
    all: VersionCounts
    loads: Iterable[Loads]
    look_ups: Mapping[str, LookUps]
    refused: Mapping[tuple[str, Code], int]
    builds: Builds


def page(counted: Counted) -> str:
    """The text."""
    lines = _Lines()
    found = {**_of_loads(counted), **_of_runs(counted), **_of_batches(counted), **_of_requests(counted)}
    for family in FAMILIES:
        lines.head(family)
        for labels, value in found[family]:
            lines.sample(family, labels, value)
    return lines.text()


class _Histogram(NamedTuple):
    """What Buckets have, in the unit and by the bounds that are shown."""

    bounds: Bounds
    cumulated: list[int]
    total: float


_Value = int | _Histogram
# By label values.
_Samples = list[tuple[tuple[str, ...], _Value]]


def _of_us(buckets: Buckets, bounds_us: Bounds) -> _Histogram:
    """What was counted in seconds."""
    return _Histogram(bounds_us, buckets.cumulated(seconds(bounds_us)), buckets.total * US)


def _as_it_is(buckets: Buckets, bounds: Bounds) -> _Histogram:
    return _Histogram(bounds, buckets.cumulated(), buckets.total)


def _of_loads(counted: Counted) -> dict[Family, _Samples]:
    attempts: _Samples = []
    warm: _Samples = []
    records: _Samples = []
    latencies: _Samples = []
    for loads in counted.loads:
        for status, count in (("success", loads.succeeded), ("fail", loads.failed)):
            if count:
                attempts.append(((loads.path, status), count))
        if loads.succeeded:
            latencies.append(((loads.path,), loads.load_us))
        if loads.warmups.count:
            warm.append(((loads.path, Code.OK.name), _as_it_is(loads.warmups, LATENCY_US)))
            records.append(((loads.path, Code.OK.name), loads.warmup_records))
    return {
        LOAD_ATTEMPTS: attempts,
        LOAD_LATENCY: latencies,
        WARMUP_LATENCY: warm,
        WARMUP_RECORDS: records,
        GRAPH_BUILDS: [((), counted.builds.count)],
        GRAPH_BUILD_TIME: [((), counted.builds.total_us)],
    }


def _of_runs(counted: Counted) -> dict[Family, _Samples]:
    runs = [counts.alone for _, counts in counted.all.asked()]
    whole = together([*runs, counted.all.batch_runs], counted.all.batch_runs.bounds)
    return {
        SESSION_RUNS: [((), whole.count)],
        GRAPH_RUNS: [((), whole.count)],
        GRAPH_RUN_TIME: [((), round(whole.total * US))],
        GRAPH_RUN_TIMES: [((), _of_us(whole, GRAPH_RUN_US))],
    }


def _of_batches(counted: Counted) -> dict[Family, _Samples]:
    found = counted.all
    return {
        WRAPPED_RUNS: [((), found.batch_runs.count)],
        QUEUING_LATENCY: [((_THREAD_POOL,), _of_us(found.joined_queue, QUEUING_US))],
        INPUT_BATCH_SIZE: [((), _as_it_is(found.input_rows, BATCH_SIZES))],
        PROCESSED_BATCH_SIZE: [((), _as_it_is(found.batch_sizes, BATCH_SIZES))],
        PADDING_SIZE: [
            ((str(size) if size else "",), _as_it_is(padding, BATCH_SIZES))
            for size, padding in sorted(found.paddings.items())
        ],
    }


def _of_requests(counted: Counted) -> dict[Family, _Samples]:
    latencies: _Samples = []
    runtimes: _Samples = []
    examples: _Samples = []
    totals: _Samples = []
    for model, found in counted.models.items():
        runs: dict[str, list[Buckets]] = {}
        for method, mine in found.asked():
            if method in _UNCOUNTED:
                continue
            runs.setdefault(method.api, []).extend((mine.alone, mine.joined))
            if mine.answered.count:
                latencies.append(((model, *_door(method)), _of_us(mine.answered, LATENCY_US)))
        for api, several in runs.items():
            whole = together(several, several[0].bounds)
            if whole.count:
                runtimes.append(((model, api, _RUNTIME), _of_us(whole, LATENCY_US)))
        if found.examples.count:
            examples.append(((model,), _as_it_is(found.examples, EXAMPLES)))
            totals.append(((model,), round(found.examples.total)))
    for model, looked_up in counted.look_ups.items():
        if looked_up.answered.count:
            latencies.append(((model, "", "REST"), _as_it_is(looked_up.answered, LATENCY_US)))
    return {
        REQUEST_COUNT: _count(counted),
        REQUEST_LATENCY: latencies,
        RUNTIME_LATENCY: runtimes,
        EXAMPLE_COUNTS: examples,
        EXAMPLES_TOTAL: totals,
    }


def _door(method: Method) -> tuple[str, str]:
    """API and entry point, as they are called there: over REST by the last word of the path."""
    return (method.api.lower(), "REST") if method.is_rest else (method.api, "GRPC")


def _count(counted: Counted) -> _Samples:
    found: dict[tuple[str, ...], int] = {}
    for model, code, count in _answers(counted):
        found[model, code.name] = found.get((model, code.name), 0) + count
    return list(found.items())


def _answers(counted: Counted) -> Iterator[tuple[str, Code, int]]:
    for model, found in counted.models.items():
        for method, mine in found.asked():
            if method not in _UNCOUNTED:
                yield from ((model, code, count) for code, count in mine.codes.items())
    for model, looked_up in counted.look_ups.items():
        yield from ((model, code, count) for code, count in looked_up.codes.items())
    for (api, code), count in counted.refused.items():
        if api in _COUNTED_APIS:
            yield "", code, count


class _Lines:
    """The text format, version 0.0.4."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def text(self) -> str:
        return "".join(self._lines)

    def head(self, family: Family) -> None:
        self._lines.append(f"# HELP {family.name} {family.text}\n# TYPE {family.name} {family.kind}\n")

    def sample(self, family: Family, labels: tuple[str, ...], value: _Value) -> None:
        named = zip(family.labels, labels, strict=True)
        pairs = ",".join(f'{name}="{escaped(label)}"' for name, label in named)
        if isinstance(value, int):
            self._lines.append(f"{family.name}{{{pairs}}} {value}\n")
            return
        lead = f"{family.name}_bucket{{{pairs}{',' if pairs else ''}le="
        shown = [*map(bound_text, value.bounds), "+Inf"]
        lines = [f'{lead}"{bound}"}} {count}\n' for bound, count in zip(shown, value.cumulated, strict=True)]
        lines.append(f"{family.name}_sum{{{pairs}}} {_sum_text(value.total)}\n")
        lines.append(f"{family.name}_count{{{pairs}}} {value.cumulated[-1]}\n")
        self._lines += lines


def escaped(label: str) -> str:
    """A label's value, as it stands between quotes. TensorFlow Serving leaves a line feed as it is, which no parser takes."""
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def bound_text(bound: float) -> str:
    """A bound as its page has it: six digits."""
    return f"{bound:.6g}"


def _sum_text(total: float) -> str:
    """More digits than there, where six are all: a rate of a large sum would be steps."""
    return f"{total:.0f}" if total.is_integer() else repr(round(total, 3))
