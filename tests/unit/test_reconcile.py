"""Desired slots against what runs."""

from __future__ import annotations

from mpspool.core.ids import WorkerId
from mpspool.core.settings import RestartSettings
from mpspool.supervisor.pool.reconcile import (
    Action,
    AddPrograms,
    Adopt,
    Ended,
    EndHung,
    MarkReady,
    Remove,
    Start,
    WorkerReport,
    reconcile,
    worker_reports,
)
from mpspool.supervisor.pool.slots import Slot
from mpspool.supervisor.supervisord import ProcessInfo, ProcessState

ONE = WorkerId("half", 1, "cpu0", 0)
TWO = WorkerId("half", 1, "cpu0", 1)


def slots(*workers: WorkerId) -> dict[WorkerId, Slot]:
    return {worker: Slot(str(worker), RestartSettings()) for worker in workers}


def runs(worker: WorkerId, pid: int) -> dict[str, ProcessInfo]:
    return {worker.program: ProcessInfo(worker.program, ProcessState.RUNNING, pid)}


def ended(worker: WorkerId, status: int = -1) -> dict[str, ProcessInfo]:
    return {worker.program: ProcessInfo(worker.program, ProcessState.EXITED, 0, status)}


def report(generation: int, pid: int, state: str = "READY", hung: str = "") -> dict[str, WorkerReport]:
    return {str(ONE): WorkerReport(generation, pid, state, 0, 0, hung)}


def actions(
    wanted: dict[WorkerId, Slot],
    processes: dict[str, ProcessInfo],
    reports: dict[str, WorkerReport] | None = None,
    ending: tuple[WorkerId, ...] = (),
    now: float = 0.0,
) -> list[Action]:
    return reconcile(wanted, processes, reports=reports or {}, ending=ending, now=now)


def occupied(pid: int = 7, generation: int = 3) -> dict[WorkerId, Slot]:
    wanted = slots(ONE)
    wanted[ONE].started(pid, generation)
    return wanted


def test_unknown_programs_are_added_before_anything_starts() -> None:
    """A worker must be known to supervisord first; all that are missing are added in one go."""
    assert actions(slots(ONE, TWO), {}) == [AddPrograms((ONE, TWO))]


def test_empty_slot_is_started() -> None:
    """A known program whose slot is empty and which does not run is started."""
    assert actions(slots(ONE), ended(ONE)) == [Start(ONE, 1)]


def test_running_worker_of_an_empty_slot_is_adopted_not_started() -> None:
    """What an earlier pool started stays: never two workers in a slot."""
    assert actions(slots(ONE), runs(ONE, 7)) == [Adopt(ONE, 7)]


def test_the_slot_s_own_worker_needs_nothing() -> None:
    """All is as it should be."""
    assert actions(occupied(), runs(ONE, 7)) == []


def test_death_is_noted_once_supervisord_has_reaped() -> None:
    """Until supervisord says so there may still be a process; then the end carries its status."""
    assert actions(occupied(), ended(ONE, 78)) == [Ended(ONE, 78, "")]


def test_another_pid_means_the_old_worker_ended() -> None:
    """A process that is not the slot's own is looked at again after the old one's end was noted."""
    assert actions(occupied(), runs(ONE, 8)) == [Ended(ONE, 0, "")]


def test_ready_counts_for_the_own_generation_only() -> None:
    """What the router says of an earlier generation or pid is not about this worker."""
    assert actions(occupied(), runs(ONE, 7), report(3, 7)) == [MarkReady(ONE)]
    assert actions(occupied(), runs(ONE, 7), report(2, 7)) == []


def test_ready_is_marked_once() -> None:
    """A worker that is known to be READY causes no further action."""
    wanted = occupied()
    wanted[ONE].ready(0.0)
    assert actions(wanted, runs(ONE, 7), report(3, 7)) == []


def test_hung_worker_is_ended_once() -> None:
    """The router's word ends it; while that is under way it is not ended again."""
    hung = report(3, 7, hung="no heartbeat")
    assert actions(occupied(), runs(ONE, 7), hung) == [EndHung(ONE, 7, "no heartbeat")]
    assert actions(occupied(), runs(ONE, 7), hung, ending=(ONE,)) == []


def test_backoff_is_waited_for() -> None:
    """A slot in BACKOFF is started when its time has come, and not before."""
    wanted = occupied()
    wanted[ONE].ended(-1, 0.0)
    wanted[ONE].started(8, 4)
    wanted[ONE].ended(-1, 0.0)
    due = wanted[ONE].due
    assert due is not None
    assert actions(wanted, ended(ONE), now=due - 0.1) == []
    assert actions(wanted, ended(ONE), now=due) == [Start(ONE, 5)]


def test_stranger_is_ended_then_forgotten() -> None:
    """A worker program nobody asked for goes; supervisord's other programs are not touched."""
    others = {"router": ProcessInfo("router", ProcessState.RUNNING, 1)}
    assert actions({}, runs(TWO, 9) | others) == [Remove(TWO.program, 9)]
    assert actions({}, ended(TWO) | others) == [Remove(TWO.program, 0)]


def test_the_newest_generation_speaks_for_a_worker() -> None:
    """While an old generation lingers in the router's snapshot, the new one's report counts."""

    def row(generation: int) -> dict[str, object]:
        return {"id": "a", "generation": generation, "pid": 1, "state": "READY", "in_flight": 0, "served": 0}

    assert worker_reports({"workers": [row(2), row(1)]})["a"].generation == 2
    assert worker_reports(None) == {}
