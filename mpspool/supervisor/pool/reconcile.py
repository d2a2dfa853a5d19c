"""Desired slots against what runs: the actions that bring the two together. Pure.

supervisord's word counts for which process there is, the router's for who is READY or hangs, and the slot
machines' for when to start, and for how long a start may take; which slots there should be is versions.py's to say.
What publishes a version's weights has a slot as a worker has, while they are wanted and not there; until then no
worker of that version starts. An action is repeated at every call until what it wants is so, except for a worker in
`ending`, whose end is under way: until that is over nothing is started in its slot, lest the end be the new one's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mpspool.core.ids import PUBLISH_PREFIX, WORKER_PREFIX, ModelVersion, WorkerId
from mpspool.core.states import SlotState, WorkerState
from mpspool.supervisor.pool.slots import Slot, StartNow
from mpspool.supervisor.supervisord import ProcessInfo, ProcessState

Processes = Mapping[str, ProcessInfo]
# What fills a slot: a worker, or the publisher of a version's weights.
Occupant = WorkerId | ModelVersion


@dataclass(frozen=True, slots=True)
class AddPrograms:
    """supervisord does not know these workers yet."""

    workers: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True)
class Adopt:
    """A process runs that this pool did not start."""

    who: Occupant
    pid: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A slot's process is gone and reaped."""

    who: Occupant
    status: int
    spawn_error: str


@dataclass(frozen=True, slots=True)
class Start:
    """Write the settings of this generation and start the process."""

    who: Occupant
    generation: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """The worker of this generation can never start: the weights of its version cannot be had."""

    worker: WorkerId
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class WantWeights:
    """A worker of this version is to start, and its weights are not there."""

    model: ModelVersion


@dataclass(frozen=True, slots=True)
class MarkReady:
    """The router says that the slot's own generation takes requests."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class MarkLost:
    """The router does not know the slot's own generation, which took requests."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class EndHung:
    """The router says that the slot's own generation hangs, or its start takes too long."""

    who: Occupant
    pid: int
    reason: str


@dataclass(frozen=True, slots=True)
class Remove:
    """A program that has no slot: end its process (pid 0: none runs), then forget it."""

    program: str
    pid: int


@dataclass(frozen=True, slots=True)
class Leave:
    """The worker is not wanted any more, and has nothing left to do but what it runs."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class Vacate:
    """The slot is not wanted any more, and has no process."""

    worker: WorkerId


Action = (
    AddPrograms
    | Adopt
    | Ended
    | Start
    | Refuse
    | WantWeights
    | MarkReady
    | MarkLost
    | EndHung
    | Leave
    | Vacate
    | Remove
)


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What the router says of one worker."""

    generation: int
    pid: int
    state: str
    in_flight: int
    served: int
    hung: str
    failed: str = ""
    weights: Mapping[str, Any] = field(default_factory=dict)


def worker_reports(snapshot: Mapping[str, Any] | None) -> dict[str, WorkerReport]:
    """The newest generation of each worker in the router's snapshot; nothing without one."""
    reports: dict[str, WorkerReport] = {}
    for found in (snapshot or {}).get("workers", []):
        known = reports.get(found["id"])
        if known is None or known.generation < found["generation"]:
            reports[found["id"]] = WorkerReport(
                found["generation"],
                found["pid"],
                found["state"],
                found["in_flight"],
                found["served"],
                found.get("hung", ""),
                found.get("failed", ""),
                found.get("weights", {}),
            )
    return reports


def reconcile(
    slots: Mapping[WorkerId, Slot],
    processes: Processes,
    *,
    publishers: Mapping[ModelVersion, Slot],
    missing: Mapping[ModelVersion, str],
    there: Collection[ModelVersion] = (),
    reports: Mapping[str, WorkerReport],
    heard_since: float | None,
    ending: Collection[WorkerId],
    unwanted: Collection[WorkerId] = (),
    held: Collection[WorkerId] = (),
    now: float,
) -> list[Action]:
    """What to do now, in order.

    Args:
        slots: every slot that should have a worker.
        processes: every program supervisord knows, by name.
        publishers: the slots of the versions whose weights are wanted and not there.
        missing: the versions whose weights are not there: why they will never be, "" while they may.
        there: the versions that there are: what publishes the weights of another is ended.
        reports: what the router says of each worker, by id.
        heard_since: since when the router has been heard without a break; None while it is not: then nobody
            can be READY, and no start takes too long.
        ending: workers that are being ended already.
        unwanted: slots that are to be given up, their workers' requests having been answered.
        held: slots that are to have no worker for now.
        now: seconds of the clock the slots go by.
    """
    unknown = tuple(worker for worker in slots if worker.program not in processes and worker not in unwanted)
    actions: list[Action] = [AddPrograms(unknown)] if unknown else []
    for worker, slot in slots.items():
        process = processes.get(worker.program)
        if worker in ending:
            continue
        if worker in unwanted:
            actions += _given_up(worker, slot, process)
        elif worker in held and (slot.state is not SlotState.OCCUPIED or process is not None):
            actions += [
                action for action in _given_up(worker, slot, process) if not isinstance(action, Vacate)
            ]
            if missing.get(worker.model_version) == "":
                actions.append(WantWeights(worker.model_version))
        elif process is None:
            continue
        elif slot.state is SlotState.OCCUPIED and 0 < slot.pid == process.pid:
            actions += _judged(worker, slot, reports.get(str(worker)), heard_since, now)
        else:
            actions += [_gated(action, missing) for action in _unlike(worker, slot, process, now)]
    for model, slot in publishers.items():
        process = processes.get(model.publisher, _not_running(model.publisher))
        if slot.state is not SlotState.OCCUPIED or not 0 < slot.pid == process.pid:
            actions += _unlike(model, slot, process, now)
        elif heard_since is not None and slot.overdue(now, heard_since):
            actions.append(EndHung(model, slot.pid, f"its weights are not published after {_limit(slot)}"))
    return actions + _strangers(slots, processes) + _done(publishers, there, processes)


def _unlike(who: Occupant, slot: Slot, process: ProcessInfo, now: float) -> list[Action]:
    """The slot and supervisord differ on which process there is, or agree that there is none."""
    if slot.state is SlotState.OCCUPIED:
        return [Ended(who, process.exit_status, process.spawn_error)]
    if process.pid:
        return [] if slot.state is SlotState.FATAL else [Adopt(who, process.pid)]
    instruction = slot.tick(now)
    return [Start(who, instruction.generation)] if isinstance(instruction, StartNow) else []


def _given_up(worker: WorkerId, slot: Slot, process: ProcessInfo | None) -> list[Action]:
    pid = process.pid if process else 0
    if slot.state is SlotState.OCCUPIED:
        if 0 < slot.pid == pid:
            return [Leave(worker)]
        status, error = (process.exit_status, process.spawn_error) if process else (-1, "")
        return [Ended(worker, status, error)]
    return [Adopt(worker, pid)] if pid and slot.state is not SlotState.FATAL else [Vacate(worker)]


def _not_running(program: str) -> ProcessInfo:
    """As supervisord would describe a publisher's program, which it learns of only when that is started."""
    return ProcessInfo(program, ProcessState.UNKNOWN, 0, -1)


def _gated(action: Action, missing: Mapping[ModelVersion, str]) -> Action:
    """What to do instead of a start that lacks weights; every other action is as it was."""
    match action:
        case Start(WorkerId() as worker, generation) if worker.model_version in missing:
            reason = missing[worker.model_version]
            return Refuse(worker, generation, reason) if reason else WantWeights(worker.model_version)
    return action


def _judged(
    worker: WorkerId, slot: Slot, report: WorkerReport | None, heard_since: float | None, now: float
) -> list[Action]:
    if report is not None and report.generation != slot.generation:
        report = None
    if report is not None and report.hung:
        return [EndHung(worker, slot.pid, report.hung)]
    if report is not None and report.state == WorkerState.READY.value:
        return [MarkReady(worker)] if slot.unready_since is not None else []
    if heard_since is None:
        return []
    if slot.unready_since is None:  # it was READY: it leaves, or nobody knows
        return [] if report is not None else [MarkLost(worker)]
    if slot.overdue(now, heard_since):
        return [EndHung(worker, slot.pid, _overdue(slot, report))]
    return []


def _overdue(slot: Slot, report: WorkerReport | None) -> str:
    if slot.is_lost:
        limit = f"{slot.lost_timeout_s:g} s"
        return (
            f"{report.state} and not READY again after {limit}"
            if report
            else f"unknown to the router for {limit}"
        )
    return f"still {report.state if report else WorkerState.STARTING.value} after {_limit(slot)}"


def _limit(slot: Slot) -> str:
    return f"{slot.start_timeout_s:g} s (start_timeout_s)"


def _strangers(wanted: Iterable[WorkerId], processes: Processes) -> list[Action]:
    known = {worker.program for worker in wanted}
    return [
        Remove(name, process.pid)
        for name, process in processes.items()
        if name.startswith(WORKER_PREFIX) and name not in known
    ]


def _done(
    publishers: Iterable[ModelVersion], there: Iterable[ModelVersion], processes: Processes
) -> list[Action]:
    """Publishers that have ended and are not wanted any more, and those of versions that are there no more."""
    wanted = {model.publisher for model in publishers}
    kept = {model.publisher for model in there}
    return [
        Remove(name, process.pid)
        for name, process in processes.items()
        if name.startswith(PUBLISH_PREFIX) and name not in wanted and not (process.pid and name in kept)
    ]
