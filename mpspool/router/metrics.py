"""What Prometheus reads: requests as they finish, and the data plane's snapshot at each scrape.

A label's values come from what is configured, never from what a client sent: a request that named no
model version of ours is counted under an empty one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

import mpspool
from mpspool.core import process
from mpspool.core.errors import Code
from mpspool.core.ids import ModelVersion
from mpspool.core.messages import Outcome
from mpspool.core.settings import RouterSettings
from mpspool.core.states import ModelVersionState, SlotState, WorkerState
from mpspool.router import gpu_metrics
from mpspool.router.labels import VERSION, WORKER, worker_labels

# fmt: off
_BUCKETS_S = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.075,
    0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)
# fmt: on
# As `mpspool status` has them: an occupied slot is in the state of its worker.
SLOT_STATES = (
    *(state.value for state in SlotState if state is not SlotState.OCCUPIED),
    *(state.value for state in WorkerState),
)


class Observed(Protocol):
    """What the collector asks of the data plane."""

    def snapshot(self) -> dict[str, Any]: ...


class Metrics:
    """Counts requests and renders the exposition. One per router, with a registry of its own."""

    def __init__(self, settings: RouterSettings) -> None:
        self._registry = CollectorRegistry()
        self._requests = self._counter(
            "requests", "Requests answered, by canonical status code.", (*VERSION, "method", "code")
        )
        self._worker_requests = self._counter(
            "worker_requests", "Predict requests answered by one worker slot.", (*WORKER, "code")
        )
        self._worker_latency = Summary(
            "mpspool_worker_request_seconds",
            "Predict, from arrival to the answer of one worker slot.",
            WORKER,
            registry=self._registry,
        )
        self._latency = self._histogram("request_seconds", "Predict, from arrival to answer.")
        self._queue = self._histogram("queue_seconds", "Predict, from arrival to its last dispatch.")
        self._parse = self._histogram("worker_parse_seconds", "Decoding a request in its worker.")
        self._run = self._histogram("worker_run_seconds", "TensorFlow's time for a request.")
        self._encode = self._histogram("worker_encode_seconds", "Encoding a response in its worker.")
        self._versions: dict[tuple[str, int], _VersionSeries] = {}
        self._by_worker: dict[tuple[str, Code], Counter] = {}
        self._latency_by_worker: dict[str, Summary] = {}
        self._by_method: dict[tuple[str, Code, str, int | None], Counter] = {}
        self._collector: _SnapshotCollector | None = None
        self._registry.register(_BuildInfo(settings.simulated))

    def _counter(self, name: str, text: str, labels: Iterable[str]) -> Counter:
        return Counter(f"mpspool_{name}_total", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"mpspool_{name}", text, VERSION, buckets=_BUCKETS_S, registry=self._registry)

    def observe(self, dataplane: Observed) -> None:
        """Adds the data plane's snapshot to what is rendered."""
        self._collector = _SnapshotCollector(dataplane)
        self._registry.register(self._collector)

    async def measure(self) -> None:
        """Looks at the workers' memory for the next exposition; beside the loop, for it takes milliseconds per GB."""
        if self._collector is not None:
            await self._collector.measure()

    def finished(
        self,
        model: str,
        version: int,
        worker: str,
        code: Code,
        total_s: float,
        queue_s: float,
        outcome: Outcome | None,
    ) -> None:
        """Counts a Predict request whose answer is known.

        Args:
            model: of ours, or "" where the request named none.
            version: of that model, or 0.
            worker: who answered it; "" where no worker did.
            code: what the client is told.
            total_s: arrival to answer; 0 for what was refused at the door, which counts in no histogram.
            queue_s: arrival to the last dispatch.
            outcome: the worker's own times, where it reported them.
        """
        if code is Code.NOT_FOUND and not worker:
            model, version = "", 0
        series = self._versions.get((model, version)) or self._version_series(model, version)
        (series.codes.get(code) or self._code_series(series, code)).inc()
        if total_s:
            series.latency.observe(total_s)
            series.queue.observe(queue_s)
        if outcome is not None and outcome.run_us:
            series.parse.observe(outcome.parse_us / 1e6)
            series.run.observe(outcome.run_us / 1e6)
            series.encode.observe(outcome.encode_us / 1e6)
        if worker:
            (self._by_worker.get((worker, code)) or self._worker_series(worker, code)).inc()
            (self._latency_by_worker.get(worker) or self._worker_latency_series(worker)).observe(total_s)

    def answered(self, method: str, code: Code, model: str = "", version: int | None = None) -> None:
        """Counts a request that is no Predict, or that the front answered by itself.

        Args:
            method: a method of the serving API, or "" for any other.
            code: what the client is told.
            model: of ours, or "" where the request named none.
            version: of that model; None where the request was about no single one.
        """
        key = (method, code, model, version)
        child = self._by_method.get(key)
        if child is None:
            child = self._requests.labels(model, "" if version is None else str(version), method, code.name)
            self._by_method[key] = child
        child.inc()

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """The metrics as text and its content type, in the format that an Accept header asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def latencies(self) -> dict[str, Any]:
        """How many Predict requests took how long, for whoever asks again and takes the difference.

        Returns:
            `bounds_s`, and under `models` by model version how many took at most each of them; as the last, all.
        """
        counts: dict[str, list[int]] = {}
        for family in self._latency.collect():
            for sample in family.samples:
                if sample.name.endswith("_bucket") and sample.labels["model"]:
                    version = ModelVersion(sample.labels["model"], int(sample.labels["version"]))
                    counts.setdefault(str(version), []).append(int(sample.value))
        return {"bounds_s": list(_BUCKETS_S), "models": counts}

    def _version_series(self, model: str, version: int) -> _VersionSeries:
        labels = (model, str(version)) if model else ("", "")
        series = _VersionSeries(
            labels,
            latency=self._latency.labels(*labels),
            queue=self._queue.labels(*labels),
            parse=self._parse.labels(*labels),
            run=self._run.labels(*labels),
            encode=self._encode.labels(*labels),
        )
        self._versions[model, version] = series
        return series

    def _code_series(self, series: _VersionSeries, code: Code) -> Counter:
        child = self._requests.labels(*series.labels, "Predict", code.name)
        series.codes[code] = child
        return child

    def _worker_series(self, worker: str, code: Code) -> Counter:
        child = self._worker_requests.labels(*worker_labels(worker), code.name)
        self._by_worker[worker, code] = child
        return child

    def _worker_latency_series(self, worker: str) -> Summary:
        child = self._worker_latency.labels(*worker_labels(worker))
        self._latency_by_worker[worker] = child
        return child


@dataclass(frozen=True, slots=True)
class _VersionSeries:
    """The label children of one model version: looking them up anew costs more than counting."""

    labels: tuple[str, str]
    latency: Histogram
    queue: Histogram
    parse: Histogram
    run: Histogram
    encode: Histogram
    codes: dict[Code, Counter] = field(default_factory=dict)


class _BuildInfo(Collector):
    def __init__(self, simulated: str) -> None:
        self._simulated = f"SIMULATED {simulated}" if simulated else ""

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "mpspool_build_info",
            "Always 1. `simulated` says which devices are stand-ins.",
            labels=("version", "simulated"),
        )
        info.add_metric((mpspool.__version__, self._simulated), 1)
        yield info


class _SnapshotCollector(Collector):
    """Turns one snapshot of the data plane into gauges, at each scrape."""

    def __init__(self, dataplane: Observed) -> None:
        self._dataplane = dataplane
        self._memory: dict[int, process.Memory] = {}

    async def measure(self) -> None:
        pids = [worker["pid"] for worker in self._dataplane.snapshot()["workers"]]
        self._memory = await asyncio.to_thread(_memory_of, pids)

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not take a snapshot yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        snapshot = self._dataplane.snapshot()
        yield GaugeMetricFamily(
            "mpspool_draining", "1 while the pool shuts down.", value=float(snapshot["draining"])
        )
        yield from self._versions(snapshot)
        yield self._states(snapshot)
        yield self._slots(snapshot)
        yield from self._workers(snapshot)
        if devices := snapshot["devices"]:
            yield from gpu_metrics.families(devices)

    def _versions(self, snapshot: dict[str, Any]) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "mpspool_model_version_state",
            "TensorFlow Serving's ModelVersionStatus.State: 10 START, 20 LOADING, 30 AVAILABLE, "
            "40 UNLOADING, 50 END.",
            labels=VERSION,
        )
        queued = GaugeMetricFamily(
            "mpspool_queued_requests", "Requests that wait for a worker.", labels=VERSION
        )
        for labels, version in _model_versions(snapshot):
            state.add_metric(labels, ModelVersionState[version["state"]].value)
            queued.add_metric(labels, version["queued"])
        yield state
        yield queued

    def _states(self, snapshot: dict[str, Any]) -> Metric:
        counts = {
            (*labels, state.value): 0 for labels, _ in _model_versions(snapshot) for state in WorkerState
        }
        for worker in snapshot["workers"]:
            key = (*worker_labels(worker["id"])[:2], worker["state"])
            counts[key] = counts.get(key, 0) + 1
        family = GaugeMetricFamily(
            "mpspool_workers", "Connected worker processes by state.", labels=(*VERSION, "state")
        )
        for labels_and_state, count in counts.items():
            family.add_metric(labels_and_state, count)
        return family

    def _slots(self, snapshot: dict[str, Any]) -> Metric:
        """Of every slot that there should be, filled or not; nothing while the pool has not told."""
        counts: dict[tuple[str, str, str], int] = {}
        for name, state in snapshot["slots"].items():
            version = worker_labels(name)[:2]
            for known in SLOT_STATES:
                counts.setdefault((*version, known), 0)
            counts[*version, state] = counts.get((*version, state), 0) + 1
        family = GaugeMetricFamily(
            "mpspool_slots",
            "Worker slots that there should be, by state as in `mpspool status`.",
            labels=(*VERSION, "state"),
        )
        for labels_and_state, count in counts.items():
            family.add_metric(labels_and_state, count)
        return family

    def _workers(self, snapshot: dict[str, Any]) -> Iterator[Metric]:
        in_flight = GaugeMetricFamily(
            "mpspool_worker_in_flight_requests", "Requests sent to a worker slot.", labels=WORKER
        )
        busy = CounterMetricFamily(
            "mpspool_worker_busy_seconds",
            "Time of a worker slot spent on requests it has answered: its rate is how busy the slot is.",
            labels=WORKER,
        )
        in_slot: dict[tuple[str, str, str, str], tuple[int, float]] = {}
        for worker in snapshot["workers"]:
            # A slot has two workers while a hung one is being replaced.
            labels = worker_labels(worker["id"])
            held, busy_s = in_slot.get(labels, (0, 0.0))
            in_slot[labels] = held + worker["in_flight"], busy_s + worker["busy_s"]
        for labels, (held, busy_s) in in_slot.items():
            in_flight.add_metric(labels, held)
            busy.add_metric(labels, busy_s)
        restarts = CounterMetricFamily(
            "mpspool_worker_restarts", "Times the pool filled a worker slot again.", labels=WORKER
        )
        for name, count in snapshot["restarts"].items():
            restarts.add_metric(worker_labels(name), count)
        yield in_flight
        yield busy
        yield restarts
        yield from self._workers_memory(snapshot)

    def _workers_memory(self, snapshot: dict[str, Any]) -> Iterator[Metric]:
        """Of the workers that are connected, as the kernel and they themselves count it."""
        memory = GaugeMetricFamily(
            "mpspool_worker_memory_bytes",
            "Memory of a worker process: pss adds up over workers, private is its own alone, shared others map too.",
            labels=(*WORKER, "kind"),
        )
        weights = GaugeMetricFamily(
            "mpspool_worker_weights_bytes",
            "A worker's variables: shared in the one copy, private, or excess: private memory nobody expected.",
            labels=(*WORKER, "kind"),
        )
        for worker in snapshot["workers"]:
            labels = worker_labels(worker["id"])
            if (found := self._memory.get(worker["pid"])) is not None:
                for kind in ("pss", "private", "shared"):
                    memory.add_metric((*labels, kind), getattr(found, kind))
            if worker["state"] == WorkerState.READY.value:
                for kind in ("shared", "private", "excess"):
                    weights.add_metric((*labels, kind), worker["weights"][f"{kind}_bytes"])
        yield memory
        yield weights


def _memory_of(pids: Iterable[int]) -> dict[int, process.Memory]:
    return {pid: memory for pid in pids if (memory := process.memory(pid)) is not None}


def _model_versions(snapshot: dict[str, Any]) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    for model in snapshot["models"]:
        for version in model["versions"]:
            yield (model["name"], str(version["version"])), version
