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
from mpspool.core.states import ModelVersionState, PoolState, SlotState, WorkerState
from mpspool.supervisor.pool.reconcile import Processes, WorkerReport, worker_reports
from mpspool.supervisor.pool.slots import Slot
from mpspool.supervisor.programs import mps_program
from mpspool.supervisor.supervisord import ProcessInfo

Status = dict[str, Any]


@dataclass(frozen=True, slots=True)
class View:
    """All that the status is made of.

    Attributes:
        pids: of the processes that run TensorFlow, where they are there.
        memory: of the same processes; empty where nobody asked for it.
        foreground_pid: of `mpspool start`.
        router: its last snapshot; None while it does not answer.
        errors: why a process cannot do its work, in its own words, by program.
        devices: the GPUs as mps/telemetry.py has them in its messages.
    """

    settings: PoolSettings
    slots: Mapping[WorkerId, Slot]
    processes: Processes
    pids: Mapping[WorkerId, int]
    memory: Mapping[WorkerId, Memory]
    router: Mapping[str, Any] | None
    foreground_pid: int
    errors: Mapping[str, str] = field(default_factory=dict)
    stopping: bool = False
    devices: Sequence[Status] = ()


def desired(settings: PoolSettings) -> dict[WorkerId, tuple[ModelSettings, SlotSettings]]:
    """Every slot of the pool, in the order of the settings."""
    return {
        WorkerId(model.name, model.version, slot.device, slot.slot): (model, slot)
        for model in settings.models
        for slot in model.slots
    }


def build(view: View) -> Status:
    """The object scripts read: names and values stay."""
    reports = worker_reports(view.router)
    places = desired(view.settings)
    stand_ins = {mps_program(daemon.device) for daemon in view.settings.mps_daemons if daemon.simulated}
    workers = [
        {
            **_worker(worker, slot, places[worker][1], reports.get(str(worker)), view.pids.get(worker, 0)),
            **_memory(view.memory.get(worker)),
        }
        for worker, slot in view.slots.items()
    ]
    pool = {
        "state": _pool_state(view, workers).value,
        "pid": view.foreground_pid,
        "run_dir": view.settings.run_dir,
        "grpc_port": view.settings.grpc_port,
        "rest_port": view.settings.rest_port,
        "mps": view.settings.mps,
    }
    return {
        "pool": {**pool, **_simulated(view.settings.simulated)},
        "devices": list(view.devices),
        "models": _models(view),
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


def for_router(
    settings: PoolSettings, slots: Mapping[WorkerId, Slot], reports: Mapping[str, WorkerReport]
) -> Status:
    """The arguments of the router's "models" call: which versions should exist, and how their slots fare."""
    failed = failures(slots)
    proved = {worker.model_version for worker, slot in slots.items() if slot.proved}
    versions = {
        worker.model_version: {
            "name": model.name,
            "version": model.version,
            "quorum": model.quorum,
            "failed": failed.get(worker.model_version, ""),
            "proved": worker.model_version in proved,
            "hang_timeout_s": model.hang_timeout_s,
            "batching": msgspec.to_builtins(model.batching),
            "queue": msgspec.to_builtins(model.queue),
        }
        for worker, (model, _) in desired(settings).items()
    }
    restarts = {str(worker): slot.restarts for worker, slot in slots.items()}
    states = {str(worker): _worker_state(slot, reports.get(str(worker))) for worker, slot in slots.items()}
    return {"models": list(versions.values()), "restarts": restarts, "slots": states}


def failures(slots: Mapping[WorkerId, Slot]) -> dict[ModelVersion, str]:
    """The versions that no slot will ever serve, each with the reason of its first slot."""
    states: dict[ModelVersion, list[Slot]] = {}
    for worker, slot in slots.items():
        states.setdefault(worker.model_version, []).append(slot)
    return {
        version: mine[0].reason
        for version, mine in states.items()
        if all(slot.state is SlotState.FATAL for slot in mine)
    }


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
    if all(worker["state"] == WorkerState.READY.value for worker in workers):
        return PoolState.RUNNING
    if all(slot.proved or slot.state is SlotState.FATAL for slot in view.slots.values()):
        return PoolState.DEGRADED
    return PoolState.STARTING


def _models(view: View) -> list[Status]:
    """As the router sees them; without it, a version is LOADING until it is known to have failed."""
    policies = {model.name: model.queue.policy for model in view.settings.models}
    if view.router is not None and view.router.get("models"):
        reports = worker_reports(view.router)
        places = {model.name: place for place, model in enumerate(view.settings.models)}
        return [
            {
                "name": model["name"],
                "versions": [
                    {
                        **_version(model["name"], version, reports),
                        "policy": policies.get(model["name"], "fifo"),
                        **_policy_error(version),
                    }
                    for version in model["versions"]
                ],
            }
            for model in sorted(view.router["models"], key=lambda model: places.get(model["name"], -1))
        ]
    failed = failures(view.slots)
    models: dict[str, list[Status]] = {}
    for model in view.settings.models:
        reason = failed.get(ModelVersion(model.name, model.version))
        state = ModelVersionState.LOADING if reason is None else ModelVersionState.END
        models.setdefault(model.name, []).append(
            {
                "version": model.version,
                "state": state.name,
                "error": reason or "",
                "policy": model.queue.policy,
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


def _policy_error(found: Mapping[str, Any]) -> Status:
    return {"policy_error": error} if (error := found.get("policy_error")) else {}


def _privacy(weights: Mapping[str, Any]) -> tuple[int, int]:
    return weights.get("excess_bytes", 0), weights.get("private_bytes", 0)


def _simulated(what: str | bool) -> Status:
    return {"simulated": what} if what else {}
