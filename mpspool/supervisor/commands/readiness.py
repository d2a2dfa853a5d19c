"""Whether a pool is ready, from its status, for `mpspool wait`. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mpspool.core.ids import ModelVersion
from mpspool.core.states import ModelVersionState, PoolState, SlotState, WorkerState
from mpspool.supervisor.report import GOING, by_version, refusal

Status = Mapping[str, Any]

_AVAILABLE = ModelVersionState.AVAILABLE.name


def verdict(status: Status, wanted: Collection[ModelVersion] = ()) -> str | None:
    """Whether these versions are served, each by all its workers; without any, the newest of every model, and at first those that
    a label stands for: until then the pool is STARTING.

    Args:
        status: as pool/status.py builds it.
        wanted: the versions.

    Returns:
        "" for ready; None for not yet, or not any more; else why not: a worker was given up, or a version is refused, though
        it may be tried again.
    """
    state = status["pool"]["state"]
    if state == PoolState.STOPPING.value:
        return None
    workers, versions = _workers(status, wanted), by_version(status)
    awaited = {one: versions.get(one, {}) for one in wanted or _newest(versions)}
    given_up = [_described(worker) for worker in workers if worker["state"] == SlotState.FATAL.value]
    if never := given_up or [why for one, version in awaited.items() if (why := refusal(one, version))]:
        return "; ".join(never)
    ready = all(version.get("state") == _AVAILABLE for version in awaited.values())
    if wanted:
        ready = ready and all(worker["state"] == WorkerState.READY.value for worker in workers)
    else:
        ready = ready and state == PoolState.RUNNING.value
    return "" if ready else None


def unready(status: Status, wanted: Collection[ModelVersion] = ()) -> str:
    """Who is not READY or AVAILABLE yet, and why where that is known."""
    waiting = [
        f"{process['name']}: {process['error']}" for process in status["processes"] if process.get("error")
    ]
    workers, versions = _workers(status, wanted), by_version(status)
    waiting += [_described(worker) for worker in workers if worker["state"] != WorkerState.READY.value]
    awaited = list(wanted) or _newest(versions)
    if not wanted:
        waiting += [
            f"{ModelVersion(model['name'], number)} has yet to be served"
            for model in status["models"]
            for number in model.get("to_come", ())
            if ModelVersion(model["name"], number) not in awaited
        ]
    for one in awaited:
        if one not in versions:
            waiting.append(f"{one} is not there; {_beside(status, one.name)}")
        elif versions[one]["state"] != _AVAILABLE:
            waiting.append(f"{one} is {versions[one]['state']}")
    return "; ".join(waiting) or f"the pool is {status['pool']['state']}"


def _described(worker: Status) -> str:
    """One worker's state, with the last error where there was one."""
    error = f" ({worker['error']})" if worker.get("error") else ""
    return f"{worker['id']} is {worker['state']}{error}"


def _workers(status: Status, wanted: Collection[ModelVersion]) -> list[Status]:
    return [
        worker
        for worker in status["workers"]
        if not wanted or ModelVersion(worker["model"], worker["version"]) in wanted
    ]


def _newest(versions: Mapping[ModelVersion, Status]) -> list[ModelVersion]:
    """Of each model, of those that stay; where all are on their way out, for another or for good, the last of them."""
    newest: dict[str, ModelVersion] = {}
    for one in sorted(versions, key=lambda one: (_stays(versions[one]), one)):
        newest[one.name] = one
    return list(newest.values())


def _stays(version: Status) -> bool:
    return version["state"] not in GOING or bool(version["error"])


def _beside(status: Status, name: str) -> str:
    """What there is where a version is missing."""
    models = {
        model["name"]: sorted(version["version"] for version in model["versions"])
        for model in status["models"]
    }
    if name not in models:
        return f"the pool's models: {', '.join(sorted(models)) or 'none'}"
    there = ", ".join(str(ModelVersion(name, number)) for number in models[name])
    return f"there is {there}" if there else f"{name} has no version"
