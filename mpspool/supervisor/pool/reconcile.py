"""Desired slots against what runs: the actions that bring the two together. Pure.

supervisord's word counts for which process there is, the router's for who is READY or hangs, and the
slot machines' for when to start. An action is repeated at every call until what it wants is so,
except for a worker in `ending`, whose end is under way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mpspool.core.ids import WORKER_PREFIX, WorkerId
from mpspool.core.states import SlotState, WorkerState
from mpspool.supervisor.pool.slots import Slot, StartNow
from mpspool.supervisor.supervisord import ProcessInfo

Processes = Mapping[str, ProcessInfo]


@dataclass(frozen=True, slots=True)
class AddPrograms:
    """supervisord does not know these workers yet."""

    workers: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True)
class Adopt:
    """A worker runs that this pool did not start."""

    worker: WorkerId
    pid: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A slot's worker is gone and reaped."""

    worker: WorkerId
    status: int
    spawn_error: str


@dataclass(frozen=True, slots=True)
class Start:
    """Write the settings of this generation and start the worker."""

    worker: WorkerId
    generation: int


@dataclass(frozen=True, slots=True)
class MarkReady:
    """The router says that the slot's own generation takes requests."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class EndHung:
    """The router says that the slot's own generation hangs."""

    worker: WorkerId
    pid: int
    reason: str


@dataclass(frozen=True, slots=True)
class Remove:
    """A worker program nobody asked for: end its process (pid 0: none runs), then forget it."""

    program: str
    pid: int


Action = AddPrograms | Adopt | Ended | Start | MarkReady | EndHung | Remove


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What the router says of one worker."""

    generation: int
    pid: int
    state: str
    in_flight: int
    served: int
    hung: str
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
                found.get("weights", {}),
            )
    return reports


def reconcile(
    slots: Mapping[WorkerId, Slot],
    processes: Processes,
    *,
    reports: Mapping[str, WorkerReport],
    ending: Collection[WorkerId],
    now: float,
) -> list[Action]:
    """What to do now, in order.

    Args:
        slots: every slot that should have a worker.
        processes: every program supervisord knows, by name.
        reports: what the router says of each worker, by id.
        ending: workers that are being ended already.
        now: seconds of the clock the slots go by.
    """
    missing = tuple(worker for worker in slots if worker.program not in processes)
    actions: list[Action] = [AddPrograms(missing)] if missing else []
    for worker, slot in slots.items():
        process = processes.get(worker.program)
        if process is None:
            continue
        if slot.state is SlotState.OCCUPIED and 0 < slot.pid == process.pid:
            if worker not in ending:
                actions += _judged(worker, slot, reports.get(str(worker)))
        else:
            actions += _unlike(worker, slot, process, now)
    return actions + _strangers(slots, processes)


def _unlike(worker: WorkerId, slot: Slot, process: ProcessInfo, now: float) -> list[Action]:
    """The slot and supervisord differ on which process there is, or agree that there is none."""
    if slot.state is SlotState.OCCUPIED:
        return [Ended(worker, process.exit_status, process.spawn_error)]
    if process.pid:
        return [] if slot.state is SlotState.FATAL else [Adopt(worker, process.pid)]
    instruction = slot.tick(now)
    return [Start(worker, instruction.generation)] if isinstance(instruction, StartNow) else []


def _judged(worker: WorkerId, slot: Slot, report: WorkerReport | None) -> list[Action]:
    if report is None or report.generation != slot.generation:
        return []
    if report.hung:
        return [EndHung(worker, slot.pid, report.hung)]
    ready = report.state == WorkerState.READY.value and slot.ready_since is None
    return [MarkReady(worker)] if ready else []


def _strangers(wanted: Iterable[WorkerId], processes: Processes) -> list[Action]:
    known = {worker.program for worker in wanted}
    return [
        Remove(name, process.pid)
        for name, process in processes.items()
        if name.startswith(WORKER_PREFIX) and name not in known
    ]
