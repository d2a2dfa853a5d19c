"""What Prometheus reads: requests as they finish, and the data plane's snapshot at each scrape.

A label's values come from what is configured, never from what a client sent: a request that named no
model version of ours is counted under an empty one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

import mpspool
from mpspool.core import process
from mpspool.core.errors import Code, Lack
from mpspool.core.ids import ModelVersion
from mpspool.core.messages import LoadReport, Outcome
from mpspool.core.methods import Method
from mpspool.core.settings import RouterSettings
from mpspool.core.states import ModelVersionState, SlotState, WorkerState
from mpspool.router.metrics import gpus as gpu_metrics
from mpspool.router.metrics import tensorflow_serving as tfs_metrics
from mpspool.router.metrics.connections import Connected, ConnectionCollector
from mpspool.router.metrics.labels import VERSION, WORKER, worker_labels
from mpspool.router.metrics.requests import SECONDS, RequestCollector, VersionCounts, WorkerCounts

# As `mpspool status` has them: an occupied slot is in the state of its worker.
SLOT_STATES = (
    *(state.value for state in SlotState if state is not SlotState.OCCUPIED),
    *(state.value for state in WorkerState),
)

# A class is asked for its members more slowly.
_OK: Final = Code.OK
_NOT_FOUND: Final = Code.NOT_FOUND


class Observed(Protocol):
    """What the collector asks of the data plane."""

    def snapshot(self) -> dict[str, Any]: ...


class Metrics:
    """Counts requests and renders the exposition. One per router, with a registry of its own."""

    def __init__(self, settings: RouterSettings) -> None:
        self._registry = CollectorRegistry()
        self._versions: dict[tuple[str, int], VersionCounts] = {}
        self._workers: dict[str, WorkerCounts] = {}
        self._others: dict[tuple[str, Code, str, int | None], int] = {}
        # Answers that were not kept, by model: whose version they are of is not known any more.
        self._unkept: dict[tuple[str, Lack], int] = {}
        # Of versions that are not told any more: of models that are, and of those that are not.
        self._past: dict[str, VersionCounts] = {}
        self._gone = VersionCounts()
        self._loads: dict[tuple[str, int], tfs_metrics.Loads] = {}
        self._look_ups: dict[str, tfs_metrics.LookUps] = {}
        self._builds = tfs_metrics.Builds()
        self._collector: _SnapshotCollector | None = None
        self._requests = RequestCollector(self._versions, self._workers, self._others, self._unkept)
        self._registry.register(self._requests)
        self._registry.register(_BuildInfo(settings.simulated))
        self._connections = ConnectionCollector()
        self._registry.register(self._connections)

    def observe(self, dataplane: Observed) -> None:
        """Adds the data plane's snapshot to what is rendered."""
        self._collector = _SnapshotCollector(dataplane)
        self._registry.register(self._collector)

    def observe_connections(self, front: str, connected: Connected) -> None:
        """Adds the connections of one of the fronts: "grpc" or "http"."""
        self._connections.add(front, connected)

    async def measure(self) -> None:
        """Looks at the workers' memory for the next exposition; beside the loop, for it takes milliseconds per GB."""
        if self._collector is not None:
            await self._collector.measure()

    def finished(
        self,
        method: Method,
        model: str,
        version: int,
        worker: str,
        code: Code,
        total_s: float,
        queue_s: float,
        outcome: Outcome | None,
        effective_s: float = 0.0,
        rows: int = 0,
    ) -> None:
        """Counts a request to run a model whose answer is known.

        Args:
            method: what it was.
            model: of ours, or "" where the request named none.
            version: of that model, or 0.
            worker: who answered it; "" where no worker did.
            code: what the client is told.
            total_s: arrival to answer; 0 for what was refused at the door, which counts in no histogram.
            queue_s: arrival to the last dispatch.
            outcome: the worker's own times, where it reported them.
            effective_s: what it would have taken with its device to itself; all else is waiting.
            rows: of one that was sent to be joined with others; 0 of another.
        """
        if not worker and code is _NOT_FOUND:
            model, version = "", 0
        counts = self._of(model, version)
        mine = counts.methods[method] or counts.method(method)
        mine.codes[code] = mine.codes.get(code, 0) + 1
        if total_s:
            (mine.answered if code is _OK else mine.failed).observe(total_s)
            (counts.joined_queue if rows else counts.queue).observe(queue_s)
        if rows:
            counts.input_rows.observe(rows)
        if outcome is not None and outcome.run_us:
            counts.parse.observe(outcome.parse_us / 1e6)
            (mine.joined if rows else mine.alone).observe(outcome.run_us / 1e6)
            counts.encode.observe(outcome.encode_us / 1e6)
            counts.effective.observe(effective_s)
            counts.waiting.observe(max(0.0, total_s - effective_s))
        if worker:
            by_worker = self._workers.get(worker)
            if by_worker is None:
                by_worker = self._workers[worker] = WorkerCounts()
            by_worker.codes[code] = by_worker.codes.get(code, 0) + 1
            by_worker.total_s += total_s

    def _of(self, model: str, version: int) -> VersionCounts:
        counts = self._versions.get((model, version))
        if counts is None:
            counts = self._versions[model, version] = VersionCounts()
        return counts

    def batch(
        self, model: str, version: int, requests: int, rows: int, padding: int = 0, run_s: float = 0.0
    ) -> None:
        """Counts a run of what was sent to be joined: its requests, their rows, those added, and its time."""
        counts = self._of(model, version)
        counts.batch_requests.observe(requests)
        counts.batch_rows.observe(rows)
        counts.batch_runs.observe(run_s)
        counts.padded(rows + padding, padding)

    def examples(self, model: str, version: int, count: int) -> None:
        """Counts the examples of a request that finished() counts as answered."""
        counts = self._of(model, version)
        counts.examples.observe(count)

    def lacked(self, model: str, version: int, lack: Lack) -> None:
        """Says of a request that finished(), or answered(), counts for want of what it was refused."""
        counts = self._of(model, version)
        counts.lacks[lack] = counts.lacks.get(lack, 0) + 1

    def unkept(self, model: str, lack: Lack = Lack.ANSWERS) -> None:
        """Says that an answer, which finished() has counted, was not kept until its client would have taken it.

        Args:
            model: whose; one that is gone by now counts as none.
            lack: BYTES for a message that was not kept until the rest of it would have come.
        """
        if model and self._tells_of(model):
            self._unkept[model, lack] = self._unkept.get((model, lack), 0) + 1
        else:
            self.lacked("", 0, lack)

    def _tells_of(self, model: str) -> bool:
        return any(name == model for name, _ in (*self._versions, *self._loads))

    def loaded(self, model: str, version: int, report: LoadReport) -> None:
        """Counts a worker that became READY."""
        loads = self._loads_of(model, version, report.path)
        loads.succeeded += 1
        loads.load_us += report.load_us
        if report.warmup_records:
            loads.warmups.observe(report.warmup_us)
            loads.warmup_records += report.warmup_records
        self._builds.count += report.graphs
        self._builds.total_us += report.graphs_us

    def not_loaded(self, model: str, version: int, path: str) -> None:
        """Counts a worker that ended before it was READY."""
        self._loads_of(model, version, path).failed += 1

    def _loads_of(self, model: str, version: int, path: str) -> tfs_metrics.Loads:
        found = self._loads.setdefault((model, version), tfs_metrics.Loads())
        found.path = path
        return found

    def looked_up(self, model: str, code: Code, total_s: float) -> None:
        """Counts what was asked over REST and ran no model, as TensorFlow Serving does.

        Args:
            model: of ours, or "".
            code: what the client was told.
            total_s: arrival to answer.
        """
        found = self._look_ups.setdefault(model, tfs_metrics.LookUps())
        found.codes[code] = found.codes.get(code, 0) + 1
        if code is _OK:
            found.answered.observe(total_s * 1e6)

    def forget(self, model: str, version: int) -> None:
        """What was counted of a version is not told any more, but for what is told of its model, or of all."""
        counts = self._versions.pop((model, version), None)
        if counts is not None:
            self._past.setdefault(model, VersionCounts()).add(counts)
        self._loads.pop((model, version), None)
        if not self._tells_of(model):
            self._gone.add(self._past.pop(model, VersionCounts()))
            for lack in Lack:
                self._unkept.pop((model, lack), None)
            self._look_ups.pop(model, None)
        for key in [key for key in self._others if key[2:] == (model, version)]:
            del self._others[key]
        for worker in [name for name in self._workers if name.startswith(f"{model}@{version}.")]:
            del self._workers[worker]

    def answered(self, method: str, code: Code, model: str = "", version: int | None = None) -> None:
        """Counts a request that runs no model, or that the front answered by itself.

        Args:
            method: a method of the serving API, or "" for any other.
            code: what the client is told.
            model: of ours, or "" where the request named none.
            version: of that model; None where the request was about no single one.
        """
        key = (method, code, model, version)
        self._others[key] = self._others.get(key, 0) + 1

    def refusals(self) -> list[dict[str, Any]]:
        """How many requests were refused for want of room or time, by model, version and reason; texts, "" for what is not known."""
        return [
            {"model": model, "version": version, "reason": reason, "count": count}
            for (model, version, reason), count in self._requests.refused()
        ]

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """The metrics as text and its content type, in the format that an Accept header asks for."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # it compares a version that is no number with one
            encode, content_type = choose_encoder("")
        return encode(self._registry), content_type

    def monitoring(self) -> tuple[bytes, str]:
        """TensorFlow Serving's metrics, then ours, as text, and its content type."""
        ours, content_type = self.exposition("")
        return tfs_metrics.page(self._counted()).encode(errors="replace") + ours, content_type

    def _counted(self) -> tfs_metrics.Counted:
        models = {model: VersionCounts() for model, _ in self._versions}
        whole = VersionCounts()
        for model, counts in (
            *((model, counts) for (model, _), counts in self._versions.items()),
            *self._past.items(),
        ):
            whole.add(counts)
            models.setdefault(model, VersionCounts()).add(counts)
        whole.add(self._gone)
        refused = Counter[tuple[str, Code]]()
        for (method, code, model, _), count in self._others.items():
            if not model:
                refused[method, code] += count
        return tfs_metrics.Counted(models, whole, self._loads.values(), self._look_ups, refused, self._builds)

    def latencies(self) -> dict[str, Any]:
        """How many Predict requests took how long, for whoever asks again and takes the difference.

        Returns:
            `bounds_s`, and under `models` by model version how many took at most each of them; as the last, all.
        """
        named = {ModelVersion(*key): counts for key, counts in self._versions.items() if key[0]}
        models = {
            str(version): counts.histogram("latency").cumulated(SECONDS) for version, counts in named.items()
        }
        return {
            "bounds_s": list(SECONDS),
            "models": {name: told for name, told in models.items() if told[-1]},
        }


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
        yield GaugeMetricFamily(
            "mpspool_held_bytes",
            "Bytes of requests that are read, wait or run, of long answers to those that workers have, and of answers that wait for their clients.",
            value=snapshot["held_bytes"],
        )
        yield GaugeMetricFamily(
            "mpspool_held_bytes_limit",
            "max_queued_bytes: requests that would make held bytes more are refused.",
            value=snapshot["held_bytes_limit"],
        )
        yield from self._versions(snapshot)
        yield self._states(snapshot)
        yield self._slots(snapshot)
        yield from self._workers(snapshot)
        yield from self._devices(snapshot)
        if devices := snapshot["devices"]:
            yield from gpu_metrics.families(devices)

    def _versions(self, snapshot: dict[str, Any]) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "mpspool_model_version_state",
            "TensorFlow Serving's ModelVersionStatus.State: 10 START, 20 LOADING, 30 AVAILABLE, "
            "40 UNLOADING, 50 END.",
            labels=VERSION,
        )
        error = GaugeMetricFamily(
            "mpspool_model_version_error",
            "1 for a version that is not served, or only to who asks for it, with the reason.",
            labels=(*VERSION, "error"),
        )
        queued = GaugeMetricFamily(
            "mpspool_queued_requests", "Requests that wait for a worker.", labels=VERSION
        )
        queued_limit = GaugeMetricFamily(
            "mpspool_queued_requests_limit",
            "max_queued_requests: requests beyond so many that wait are refused.",
            labels=VERSION,
        )
        queued_slow = GaugeMetricFamily(
            "mpspool_queued_slow_requests", "Of those, requests that wait for the slow lane.", labels=VERSION
        )
        failures = CounterMetricFamily(
            "mpspool_policy_failures",
            "Requests that went in the order of arrival, for their policy failed or could not be had.",
            labels=VERSION,
        )
        spent = CounterMetricFamily(
            "mpspool_policy_seconds",
            "What a policy of somebody's own has taken of the router's time.",
            labels=VERSION,
        )
        for labels, version in _model_versions(snapshot):
            state.add_metric(labels, ModelVersionState[version["state"]].value)
            if version["error"]:
                error.add_metric((*labels, version["error"]), 1)
            queued.add_metric(labels, version["queued"])
            queued_limit.add_metric(labels, version["queued_limit"])
            queued_slow.add_metric(labels, version["queued_slow"])
            failures.add_metric(labels, version["policy_failures"])
            spent.add_metric(labels, version["policy_s"])
        yield state
        yield error
        yield queued
        yield queued_limit
        yield queued_slow
        yield failures
        yield spent

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

    def _devices(self, snapshot: dict[str, Any]) -> Iterator[Metric]:
        """What runs on each GPU, or on the CPU slots together, and how it shares them."""
        running = GaugeMetricFamily(
            "mpspool_device_running", "Dispatches that run on a device now.", labels=("device",)
        )
        busy = CounterMetricFamily(
            "mpspool_device_busy_seconds",
            "Time that dispatches took on a device, each by itself: two at once count twice.",
            labels=("device",),
        )
        effective = CounterMetricFamily(
            "mpspool_device_effective_seconds",
            "The time that they would have taken one after the other; the rest they waited for each other.",
            labels=("device",),
        )
        for device in snapshot["tasks"]:
            labels = (device["device"],)
            running.add_metric(labels, device["running"])
            busy.add_metric(labels, device["busy_s"])
            effective.add_metric(labels, device["effective_s"])
        yield running
        yield busy
        yield effective

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
