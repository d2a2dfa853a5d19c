"""Whether a pool is ready, from its status, for `mpspool wait`. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from mpspool.core.ids import ModelVersion
from mpspool.core.states import ModelVersionState, PoolState, SlotState, WorkerState

Status = Mapping[str, Any]

_AVAILABLE = ModelVersionState.AVAILABLE.name
_GOING = {ModelVersionState.UNLOADING.name, ModelVersionState.END.name}


def verdict(status: Status, wanted: Collection[ModelVersion] = ()) -> str | None:
    """Whether these versions are served, each by all its workers; without any, the newest of every model.

    Args:
        status: as pool/status.py builds it.
        wanted: the versions.

    Returns:
        "" for ready; None for not yet; else why it will not be: a worker was given up, or a version is refused.
    """
    workers, versions = _workers(status, wanted), _versions(status)
    awaited = {one: versions.get(one, {}) for one in wanted or _newest(versions)}
    given_up = [_described(worker) for worker in workers if worker["state"] == SlotState.FATAL.value]
    if never := given_up or list(_refused(awaited)):
        return "; ".join(never)
    all_ready = (
        all(worker["state"] == WorkerState.READY.value for worker in workers)
        if wanted
        else status["pool"]["state"] == PoolState.RUNNING.value
    )
    available = all(version.get("state") == _AVAILABLE for version in awaited.values())
    return "" if all_ready and available else None


def unready(status: Status, wanted: Collection[ModelVersion] = ()) -> str:
    """Who is not READY or AVAILABLE yet, and why where that is known."""
    waiting = [
        f"{process['name']}: {process['error']}" for process in status["processes"] if process.get("error")
    ]
    workers, versions = _workers(status, wanted), _versions(status)
    waiting += [_described(worker) for worker in workers if worker["state"] != WorkerState.READY.value]
    for one in wanted or _newest(versions):
        if one not in versions:
            waiting.append(f"{one} is not there; {_beside(versions, one.name)}")
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


def _versions(status: Status) -> dict[ModelVersion, Status]:
    return {
        ModelVersion(model["name"], version["version"]): version
        for model in status["models"]
        for version in model["versions"]
    }


def _newest(versions: Mapping[ModelVersion, Status]) -> list[ModelVersion]:
    """Of each model, leaving aside those on their way out."""
    newest: dict[str, ModelVersion] = {}
    for one, version in sorted(versions.items()):
        if version["error"] or version["state"] not in _GOING:
            newest[one.name] = one
    return list(newest.values())


def _refused(versions: Mapping[ModelVersion, Status]) -> Iterator[str]:
    """Those that are not served, or not to requests that name no version, and why."""
    for one, version in versions.items():
        if error := version.get("error"):
            yield f"{one} is {'not served to all' if version['state'] == _AVAILABLE else 'not served'}: {error}"


def _beside(versions: Mapping[ModelVersion, Status], name: str) -> str:
    """What there is where a version is missing."""
    if numbers := sorted(one.version for one in versions if one.name == name):
        return f"there is {', '.join(str(ModelVersion(name, number)) for number in numbers)}"
    return f"the pool's models: {', '.join(sorted({one.name for one in versions})) or 'none'}"
