"""What lies between two samples of a pool: rates, shares of time, quantiles. Pure.

Busy time is exact: the router counts what each worker spent on the requests it answered, and knows how long the one
it runs has been running. What it spent between two samples, by the time between them, is the mean number of requests
that the slot was running: at most one. Over the slots of a device these add up to the device's, and their mean is the
device's task density.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from mpspool.core.ids import ModelVersion
from mpspool.core.states import WorkerState
from mpspool.supervisor.cpus import pinned

Status = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """A look at a pool.

    Attributes:
        at: when, in seconds of any clock, the same throughout.
        status: as `status --json`, perhaps an earlier one; None where no pool runs.
        router: its snapshot; None where it does not answer.
        latencies: as the router's "latencies" call has them.
        cpu_s: the processor time of each worker's process so far, by pid.
        pss_bytes: by worker id, perhaps of some seconds ago.
        cpus: of the machine.
        memory_bytes: of the machine.
        problem: why something is missing; "" for nothing.
    """

    at: float
    status: Status | None
    router: Status | None = None
    latencies: Status | None = None
    cpu_s: Mapping[int, float] = field(default_factory=dict)
    pss_bytes: Mapping[str, int] = field(default_factory=dict)
    cpus: int = 1
    memory_bytes: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """One slot. None stands for what is not known (yet).

    Attributes:
        rate: requests answered a second.
        busy: the share of the time in which it ran a request.
        cpu: processors in use, on average.
        gpu_bytes: what its process has of the device's memory.
    """

    id: str
    device: str
    model: str
    state: str
    pid: int
    generation: int
    restarts: int
    in_flight: int
    served: int
    error: str
    rate: float | None = None
    busy: float | None = None
    cpu: float | None = None
    pss_bytes: int | None = None
    gpu_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """A GPU, or the CPU slots of the machine, "cpu0".

    Attributes:
        slots: of all models.
        running: the mean number of requests that ran there at the same time.
        use: of the GPU by any kernel; of the workers' CPUs by them.
        used_bytes: of the GPU's memory; on the CPU, what the workers have of the machine's.
    """

    name: str
    state: str = ""
    product: str = ""
    error: str = ""
    simulated: bool = False
    slots: int = 0
    running: float | None = None
    use: float | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    xids: Mapping[str, int] = field(default_factory=dict)

    @property
    def density(self) -> float | None:
        return self.running / self.slots if self.running is not None and self.slots else None


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """One model version, or all of them. Quantiles are of the last samples, in seconds.

    Attributes:
        refused: requests a second that there was no room or time for.
    """

    name: str
    state: str = ""
    error: str = ""
    ready: int = 0
    slots: int = 0
    queued: int = 0
    running: float | None = None
    rate: float | None = None
    refused: float | None = None
    p50_s: float | None = None
    p99_s: float | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """All there is to show; `pool` is the status' own object, None where no pool runs."""

    pool: Status | None
    total: ModelFigures
    devices: Sequence[DeviceFigures] = ()
    models: Sequence[ModelFigures] = ()
    workers: Sequence[WorkerFigures] = ()
    in_flight: int = 0
    problems: Sequence[str] = ()


def figures(samples: Sequence[Sample]) -> Figures:
    """The last sample against the one before; quantiles over all of them.

    Args:
        samples: at least one, in the order of time.
    """
    last = samples[-1]
    problems = [last.problem] if last.problem else []
    if last.status is None:
        return Figures(None, ModelFigures("all"), problems=problems)
    before = samples[-2] if len(samples) > 1 else None
    workers = _workers(last, before)
    models = _models(samples, workers)
    return Figures(
        last.status["pool"],
        _total(samples, models, workers),
        _devices(last, workers),
        models,
        workers,
        in_flight=sum(worker.in_flight for worker in workers),
        problems=[*problems, *_told(last.status)],
    )


def _told(status: Status) -> list[str]:
    """What the pool says is wrong; what a worker says because of its device, not again."""
    named = [(device["device"], device) for device in status.get("devices", ())]
    named += [(process["name"], process) for process in status["processes"]]
    named += [(worker["id"], worker) for worker in status["workers"]]
    told: dict[str, str] = {}
    for name, what in named:
        error = what.get("error", "")
        if error and not any(known in error for known in told):
            told[error] = f"{name}: {error}"
    return list(told.values())


# -- workers --------------------------------------------------------------------------------------


def _workers(last: Sample, before: Sample | None) -> list[WorkerFigures]:
    assert last.status is not None
    now, then = _reports(last), _reports(before)
    elapsed_s = last.at - before.at if before else 0.0
    same_router = _epoch(last) == _epoch(before)
    shares = {
        worker: size
        for device in last.status.get("devices", ())
        for worker, size in device["workers"].items()
    }
    found = []
    for worker in last.status["workers"]:
        key = worker["id"], worker["generation"]
        report = now.get(key)
        earlier = then.get(key) if same_router else None
        rates: tuple[float | None, float | None] = (None, None)
        if report is not None and elapsed_s > 0 and _epoch(before):
            rates = _rates(report, earlier, elapsed_s)
        found.append(
            WorkerFigures(
                id=worker["id"],
                device=worker["device"],
                model=str(ModelVersion(worker["model"], worker["version"])),
                state=worker["state"],
                pid=worker["pid"],
                generation=worker["generation"],
                restarts=worker["restarts"],
                in_flight=report["in_flight"] if report else worker["in_flight"],
                served=report["served"] if report else worker["served"],
                error=worker.get("error", ""),
                rate=rates[0],
                busy=rates[1],
                cpu=_cpu(worker["pid"], last, before),
                pss_bytes=last.pss_bytes.get(worker["id"]) if worker["pid"] else None,
                gpu_bytes=shares.get(worker["id"]),
            )
        )
    return found


def _reports(sample: Sample | None) -> dict[tuple[str, int], Status]:
    """The router's word on each worker."""
    if sample is None or sample.router is None:
        return {}
    return {(worker["id"], worker["generation"]): worker for worker in sample.router["workers"]}


def _epoch(sample: Sample | None) -> int:
    return sample.router["epoch"] if sample and sample.router else 0


def _rates(now: Status, then: Status | None, elapsed_s: float) -> tuple[float, float]:
    """(requests a second, share of the time); a worker, or router, that is new counts from 0."""
    served = now["served"] - (then["served"] if then else 0)
    busy_s = _spent_s(now) - (_spent_s(then) if then else 0.0)
    return max(0.0, served / elapsed_s), min(1.0, max(0.0, busy_s / elapsed_s))


def _spent_s(report: Status) -> float:
    spent: float = report["busy_s"] + report["running_s"]
    return spent


def _cpu(pid: int, last: Sample, before: Sample | None) -> float | None:
    if before is None or pid not in last.cpu_s or pid not in before.cpu_s or last.at <= before.at:
        return None
    return max(0.0, (last.cpu_s[pid] - before.cpu_s[pid]) / (last.at - before.at))


# -- devices --------------------------------------------------------------------------------------


def _devices(sample: Sample, workers: Sequence[WorkerFigures]) -> list[DeviceFigures]:
    """The GPUs that the pool tells of, then whatever else has slots."""
    assert sample.status is not None
    told = {device["device"]: device for device in sample.status.get("devices", ())}
    names = [*told, *dict.fromkeys(worker.device for worker in workers if worker.device not in told)]
    return [
        _device(name, told.get(name), sample, [one for one in workers if one.device == name])
        for name in names
    ]


def _device(
    name: str, told: Status | None, sample: Sample, workers: Sequence[WorkerFigures]
) -> DeviceFigures:
    running = total(worker.busy for worker in workers)
    if told is None and name.startswith("cpu"):
        cpu = total(worker.cpu for worker in workers)
        return DeviceFigures(
            name,
            slots=len(workers),
            running=running,
            use=None if cpu is None else cpu / _cpus(name, sample),
            used_bytes=_sum(worker.pss_bytes for worker in workers),
            total_bytes=sample.memory_bytes or None,
        )
    told = told or {}
    return DeviceFigures(
        name,
        state=told.get("state", ""),
        product=told.get("name", ""),
        error=told.get("error", ""),
        simulated=bool(told.get("simulated")),
        slots=len(workers),
        running=running,
        use=told.get("utilisation"),
        used_bytes=told.get("memory_used_bytes"),
        total_bytes=told.get("memory_total_bytes"),
        temperature_c=told.get("temperature_c"),
        power_w=told.get("power_w"),
        power_limit_w=told.get("power_limit_w"),
        xids=told.get("xids", {}),
    )


def _cpus(device: str, sample: Sample) -> int:
    """Those that the workers are pinned to; all where one is not."""
    assert sample.status is not None
    sets = [worker["cpus"] for worker in sample.status["workers"] if worker["device"] == device]
    return pinned(sets) or sample.cpus


# -- models ---------------------------------------------------------------------------------------


def _models(samples: Sequence[Sample], workers: Sequence[WorkerFigures]) -> list[ModelFigures]:
    last = samples[-1]
    assert last.status is not None
    queued = {
        (model["name"], version["version"]): version["queued"]
        for model in (last.router or {}).get("models", ())
        for version in model["versions"]
    }
    found = []
    for model in last.status["models"]:
        for version in model["versions"]:
            name = str(ModelVersion(model["name"], version["version"]))
            mine = [worker for worker in workers if worker.model == name]
            rate, p50_s, p99_s = _latency(samples, name)
            found.append(
                ModelFigures(
                    name,
                    state=version["state"],
                    error=version["error"],
                    ready=_ready(mine),
                    slots=len(mine),
                    queued=queued.get((model["name"], version["version"]), 0),
                    running=total(worker.busy for worker in mine),
                    rate=rate,
                    refused=_refused(samples, (model["name"], version["version"])),
                    p50_s=p50_s,
                    p99_s=p99_s,
                )
            )
    return found


def _total(
    samples: Sequence[Sample], models: Sequence[ModelFigures], workers: Sequence[WorkerFigures]
) -> ModelFigures:
    rate, p50_s, p99_s = _latency(samples, None)
    return ModelFigures(
        "all",
        ready=_ready(workers),
        slots=len(workers),
        queued=sum(model.queued for model in models),
        running=total(worker.busy for worker in workers),
        rate=rate,
        refused=_refused(samples, None),
        p50_s=p50_s,
        p99_s=p99_s,
    )


def _ready(workers: Sequence[WorkerFigures]) -> int:
    return sum(worker.state == WorkerState.READY.value for worker in workers)


def _refused(samples: Sequence[Sample], version: tuple[str, int] | None) -> float | None:
    """A second, between the last two samples of one router: of a model's version, or of all, and of no version."""
    last, before = samples[-1], samples[-2] if len(samples) > 1 else None
    if before is None or not _epoch(last) or _epoch(last) != _epoch(before) or last.at <= before.at:
        return None
    return max(0, _refusals(last, version) - _refusals(before, version)) / (last.at - before.at)


def _refusals(sample: Sample, version: tuple[str, int] | None) -> int:
    assert sample.router is not None
    asked = None if version is None else (version[0], str(version[1]))
    return sum(
        one["count"]
        for one in sample.router["refusals"]
        if asked is None or asked == (one["model"], one["version"])
    )


def _latency(samples: Sequence[Sample], model: str | None) -> tuple[float | None, float | None, float | None]:
    """Rate between the last two samples, median and 99 % over as many as one router has answered to."""
    known = [sample for sample in samples if sample.latencies and sample.router]
    one_router = [sample for sample in known if _epoch(sample) == _epoch(samples[-1])]
    if len(one_router) < 2 or one_router[-1] is not samples[-1]:
        return None, None, None
    counts = [_counts(sample, model) for sample in one_router]
    elapsed_s = one_router[-1].at - one_router[-2].at
    assert samples[-1].latencies is not None
    bounds_s = samples[-1].latencies["bounds_s"]
    over_all = _difference(counts[-1], counts[0])
    answered = _difference(counts[-1], counts[-2])[-1:]
    rate = sum(answered) / elapsed_s if elapsed_s > 0 else None
    return rate, quantile(bounds_s, over_all, 0.5), quantile(bounds_s, over_all, 0.99)


def _counts(sample: Sample, model: str | None) -> list[int]:
    """Cumulative, of one version or of all; empty where none was asked yet."""
    assert sample.latencies is not None
    models = sample.latencies["models"]
    chosen = models.values() if model is None else [models.get(model, [])]
    return [sum(column) for column in zip(*(counts for counts in chosen if counts), strict=True)]


def _difference(last: Sequence[int], first: Sequence[int]) -> list[int]:
    return [one - (first[index] if first else 0) for index, one in enumerate(last)]


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Of a histogram, as Prometheus' histogram_quantile(): evenly spread within a bucket.

    Args:
        bounds: the buckets' upper bounds, ascending.
        counts: how many are at most each bound, and as the last one all.
        share: 0 to 1.

    Returns:
        The highest bound for what lies above; None where there is nothing.
    """
    if not counts or counts[-1] <= 0:
        return None
    rank = share * counts[-1]
    index = bisect_left(counts, rank)
    if index >= len(bounds):
        return bounds[-1]
    low, below = (bounds[index - 1], counts[index - 1]) if index else (0.0, 0)
    return low + (bounds[index] - low) * (rank - below) / (counts[index] - below)


def total(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def steady(samples: Sequence[Sample], window_s: float) -> list[Sample]:
    """The samples to keep: those of the last `window_s`, and one more to compare with."""
    recent = [one for one, following in pairwise(samples) if following.at > samples[-1].at - window_s]
    return [*recent, samples[-1]]
