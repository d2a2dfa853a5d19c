"""How things stand, from the slots, supervisord's processes and the router's snapshot. Pure.

For scripts, the `status --json` object; for the router, which versions there should be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mpspool.core.ids import WORKER_PREFIX, ModelVersion, WorkerId
from mpspool.core.process import Memory
from mpspool.core.settings import ModelSettings, PoolSettings, SlotSettings
from mpspool.core.states import ModelVersionState, PoolState, SlotState, VersionPhase, WorkerState
from mpspool.supervisor.pool.reconcile import Processes, WorkerReport, worker_reports
from mpspool.supervisor.pool.slots import Slot
from mpspool.supervisor.pool.versions import Fact, Route
from mpspool.supervisor.programs import mps_program
from mpspool.supervisor.supervisord import ProcessInfo

Status = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Servable:
    """A model version that is served, or to be.

    Attributes:
        reason: why it is not loaded, leaves, or does not answer what names no version; "" while all is well.
        opens: it takes requests as soon as enough of its workers are READY.
        weight: its share of the requests that name no version, beside the other versions'; 0 for none.
        route: of its model, as said by hand.
        to_come: of the versions of its model that a label stands for, while it is loaded for the first time, those that have yet to be
            served.
    """

    settings: ModelSettings
    phase: VersionPhase = VersionPhase.LOADING
    reason: str = ""
    opens: bool = True
    weight: int = 1
    route: Route = field(default_factory=Route)
    to_come: Sequence[int] = ()

    @property
    def id(self) -> ModelVersion:
        return ModelVersion(self.settings.name, self.settings.version)

    def model_labels(self) -> dict[str, int]:
        """Its model's version labels, and the number that each stands for."""
        return self.settings.labels | self.route.labels


@dataclass(frozen=True, slots=True)
class View:
    """All that the status is made of.

    Attributes:
        servables: model by model, oldest version first.
        places: of each slot, the version that it is for, and where it is.
        pids: of the processes that run TensorFlow, where they are there.
        memory: of the same processes; empty where nobody asked for it.
        foreground_pid: of `mpspool start`.
        router: its last snapshot; None while it does not answer.
        errors: why a process cannot do its work, in its own words, by program.
        devices: the GPUs as mps/telemetry.py has them in its messages.
        orders: what was said of versions by hand, by model: see Versions.orders().
    """

    settings: PoolSettings
    servables: Sequence[Servable]
    slots: Mapping[WorkerId, Slot]
    places: Mapping[WorkerId, tuple[ModelSettings, SlotSettings]]
    processes: Processes
    pids: Mapping[WorkerId, int]
    memory: Mapping[WorkerId, Memory]
    router: Mapping[str, Any] | None
    foreground_pid: int
    errors: Mapping[str, str] = field(default_factory=dict)
    stopping: bool = False
    devices: Sequence[Status] = ()
    orders: Mapping[str, Status] = field(default_factory=dict)


def places(models: Iterable[ModelSettings]) -> dict[WorkerId, tuple[ModelSettings, SlotSettings]]:
    """Every slot of these model versions, in their order."""
    return {
        WorkerId(model.name, model.version, slot.device, slot.slot): (model, slot)
        for model in models
        for slot in model.slots
    }


def build(view: View) -> Status:
    """The object scripts read: names and values stay."""
    reports = worker_reports(view.router)
    stand_ins = {mps_program(daemon.device) for daemon in view.settings.mps_daemons if daemon.simulated}
    workers = [
        {
            **_worker(
                worker, slot, view.places[worker][1], reports.get(str(worker)), view.pids.get(worker, 0)
            ),
            **_memory(view.memory.get(worker)),
        }
        for worker, slot in view.slots.items()
    ]
    pool = {
        "state": _pool_state(view, workers).value,
        "pid": view.foreground_pid,
        "run_dir": view.settings.run_dir,
        "grpc_port": view.settings.router.grpc_port,
        "grpc_socket_path": view.settings.router.grpc_socket_path,
        "tls": _tls(view.settings),
        "rest_port": view.settings.router.rest_port,
        "mps": view.settings.mps,
        "slow_lane": view.settings.router.scheduling.slow_lane,
        "fair_by": view.settings.router.scheduling.fair_by,
    }
    return {
        "pool": {**pool, **_simulated(view.settings.router.simulated)},
        "devices": list(view.devices),
        "models": _with_orders(_with_labels(_models(view), view.servables), view.orders),
        "refusals": view.router.get("refusals", []) if view.router is not None else [],
        "workers": workers,
        "processes": [
            {
                **_process(process, view.errors.get(process.name, "")),
                **_simulated(process.name in stand_ins),
            }
            for process in view.processes.values()
            if not process.name.startswith(WORKER_PREFIX)
        ],
    }


def _tls(settings: PoolSettings) -> str:
    """Of the gRPC port: "off", "server", or "mutual" where clients must have a certificate."""
    if settings.router.tls is None:
        return "off"
    return "mutual" if settings.router.tls.verify_client else "server"


def for_router(
    servables: Iterable[Servable], slots: Mapping[WorkerId, Slot], reports: Mapping[str, WorkerReport]
) -> Status:
    """The arguments of the router's "models" call: which versions there are, and how their slots fare."""
    proved = {worker.model_version for worker, slot in slots.items() if slot.proved}
    versions = [
        {
            "name": servable.id.name,
            "version": servable.id.version,
            "phase": servable.phase.value,
            "quorum": servable.settings.quorum,
            "failed": servable.reason if servable.phase is VersionPhase.FAILED else "",
            "refused": servable.reason if servable.phase is VersionPhase.SERVING else "",
            "proved": servable.opens and servable.id in proved,
            "opens": servable.opens,
            "weight": servable.weight,
            "labels": servable.model_labels(),
            "to_come": list(servable.to_come),
            "metadata": [rule[:2] for rule in servable.route.metadata if rule[2] == servable.id.version],
            "hang_timeout_s": servable.settings.hang_timeout_s,
            "batching": msgspec.to_builtins(servable.settings.batching),
            "queue": msgspec.to_builtins(servable.settings.queue),
        }
        for servable in servables
    ]
    restarts = {str(worker): slot.restarts for worker, slot in slots.items()}
    states = {str(worker): _worker_state(slot, reports.get(str(worker))) for worker, slot in slots.items()}
    return {"models": versions, "restarts": restarts, "slots": states}


def facts(slots: Mapping[WorkerId, Slot]) -> dict[ModelVersion, Fact]:
    """How the workers of each version that has slots fare."""
    mine: dict[ModelVersion, list[Slot]] = {}
    for worker, slot in slots.items():
        mine.setdefault(worker.model_version, []).append(slot)
    return {model: _fact(found) for model, found in mine.items()}


def _fact(slots: Sequence[Slot]) -> Fact:
    ready = sum(slot.serves for slot in slots)
    given_up = [slot.reason for slot in slots if slot.state is SlotState.FATAL]
    return Fact(ready, len(slots) - ready - len(given_up), next(iter(given_up), ""))


def _worker(
    worker: WorkerId, slot: Slot, place: SlotSettings, report: WorkerReport | None, pid: int
) -> Status:
    current = _current(slot, report)
    described: Status = {
        "id": str(worker),
        "model": worker.model,
        "version": worker.version,
        "device": worker.device,
        "slot": worker.slot,
        "generation": slot.generation,
        "pid": pid,
        "state": _worker_state(slot, report),
        "restarts": slot.restarts,
        "in_flight": current.in_flight if current else 0,
        "served": current.served if current else 0,
        "cpus": place.cpus,
    }
    if slot.reason:
        described["error"] = slot.reason
    return {**described, **_simulated(place.simulated)}


def _memory(memory: Memory | None) -> Status:
    if memory is None:
        return {}
    return {
        "memory": {
            "pss_bytes": memory.pss,
            "private_bytes": memory.private,
            "shared_bytes": memory.shared,
        }
    }


def _process(process: ProcessInfo, error: str) -> Status:
    described: Status = {"name": process.name, "state": process.state.value, "pid": process.pid}
    return {**described, "error": error} if error else described


def _worker_state(slot: Slot, report: WorkerReport | None) -> str:
    """The router's word on a worker that lives, else the slot's own state."""
    if slot.state is not SlotState.OCCUPIED:
        return str(slot.state.value)
    current = _current(slot, report)
    return current.state if current else WorkerState.STARTING.value


def _current(slot: Slot, report: WorkerReport | None) -> WorkerReport | None:
    """The report where it is about the worker that the slot has now."""
    return report if report is not None and report.generation == slot.generation else None


def _pool_state(view: View, workers: Iterable[Status]) -> PoolState:
    if view.stopping:
        return PoolState.STOPPING
    if any(servable.to_come for servable in view.servables):
        return PoolState.STARTING
    # What comes beside a version that serves, or goes, is no part of how the pool fares.
    counted = {servable.id for servable in view.servables if servable.opens}
    mine = [worker for worker in workers if ModelVersion(worker["model"], worker["version"]) in counted]
    if all(worker["state"] == WorkerState.READY.value for worker in mine):
        return PoolState.RUNNING
    slots = [slot for worker, slot in view.slots.items() if worker.model_version in counted]
    if all(slot.proved or slot.state is SlotState.FATAL for slot in slots):
        return PoolState.DEGRADED
    return PoolState.STARTING


def _with_labels(models: Sequence[Status], servables: Iterable[Servable]) -> list[Status]:
    """With the version labels of each that has some, the number that each stands for, and while it waits for some of these, which."""
    named = {one.id.name: one for one in servables}
    return [_with_labels_of(model, named.get(model["name"])) for model in models]


def _with_labels_of(model: Status, servable: Servable | None) -> Status:
    labels = servable.model_labels() if servable else {}
    to_come = servable.to_come if servable else ()
    return {**model, **({"labels": labels} if labels else {}), **({"to_come": to_come} if to_come else {})}


def _with_orders(models: Sequence[Status], orders: Mapping[str, Status]) -> list[Status]:
    """With what was said by hand of each; one that was unloaded whole has no versions."""
    unloaded = orders.keys() - {model["name"] for model in models}
    whole = [*models, *({"name": name, "versions": []} for name in sorted(unloaded))]
    return [
        {**model, "by_hand": orders[model["name"]]} if model["name"] in orders else model for model in whole
    ]


def _models(view: View) -> list[Status]:
    """As the router sees them; without it, a version is LOADING until it is known to have failed."""
    policies = {servable.id.name: servable.settings.queue.policy for servable in view.servables}
    if view.router is not None and view.router.get("models"):
        reports = worker_reports(view.router)
        places = {name: place for place, name in enumerate(policies)}
        return [
            {
                "name": model["name"],
                "versions": [
                    {
                        **_version(model["name"], version, reports),
                        "policy": policies.get(model["name"], "fifo"),
                        "batch_rows": version["batch_rows"],
                        **_policy(version),
                    }
                    for version in model["versions"]
                ],
            }
            for model in sorted(view.router["models"], key=lambda model: places.get(model["name"], -1))
        ]
    models: dict[str, list[Status]] = {}
    for servable in view.servables:
        failed = servable.phase is VersionPhase.FAILED
        batching = servable.settings.batching
        models.setdefault(servable.id.name, []).append(
            {
                "version": servable.id.version,
                "state": (ModelVersionState.END if failed else ModelVersionState.LOADING).name,
                "error": servable.reason if failed else "",
                "policy": servable.settings.queue.policy,
                "batch_rows": batching.run_rows if batching else 0,
            }
        )
    return [{"name": name, "versions": versions} for name, versions in models.items()]


def _version(model: str, found: Mapping[str, Any], reports: Mapping[str, WorkerReport]) -> Status:
    described: Status = {"version": found["version"], "state": found["state"], "error": found["error"]}
    mine = ModelVersion(model, found["version"])
    ready = [
        report.weights
        for name, report in reports.items()
        if report.state == WorkerState.READY.value and WorkerId.parse(name).model_version == mine
    ]
    # All its workers bind them alike; where one does not, it is the one to look at.
    return {**described, "weights": max(ready, key=_privacy)} if ready else described


def _policy(found: Mapping[str, Any]) -> Status:
    """What is wrong with that of a version."""
    return {name: told for name in ("policy_error", "policy_slow_ms") if (told := found.get(name))}


def _privacy(weights: Mapping[str, Any]) -> tuple[int, int]:
    return weights.get("excess_bytes", 0), weights.get("private_bytes", 0)


def _simulated(what: str | bool) -> Status:
    return {"simulated": what} if what else {}
