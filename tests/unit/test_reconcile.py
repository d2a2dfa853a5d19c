"""Desired slots against what runs."""

from __future__ import annotations

import pytest

from mpspool.core.ids import ModelVersion, WorkerId
from mpspool.core.settings import RestartSettings
from mpspool.supervisor.pool.reconcile import (
    Action,
    AddPrograms,
    Adopt,
    Ended,
    EndHung,
    MarkLost,
    MarkReady,
    Refuse,
    Remove,
    Start,
    WantWeights,
    WorkerReport,
    reconcile,
    worker_reports,
)
from mpspool.supervisor.pool.slots import Slot
from mpspool.supervisor.supervisord import ProcessInfo, ProcessState

ONE = WorkerId("half", 1, "cpu0", 0)
TWO = WorkerId("half", 1, "cpu0", 1)
MODEL = ModelVersion("half", 1)


def slots(*workers: WorkerId) -> dict[WorkerId, Slot]:
    """Each with 60 s for a start, and 35 s for one that is lost sight of."""
    limits = {"start_timeout_s": 60.0, "lost_timeout_s": 35.0}
    return {worker: Slot(str(worker), RestartSettings(), **limits) for worker in workers}


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
    publishers: dict[ModelVersion, Slot] | None = None,
    missing: dict[ModelVersion, str] | None = None,
    heard_since: float | None = 0.0,
    there: tuple[ModelVersion, ...] = (MODEL,),
) -> list[Action]:
    return reconcile(
        wanted,
        processes,
        publishers=publishers or {},
        missing=missing or {},
        there=there,
        reports=reports or {},
        heard_since=heard_since,
        ending=ending,
        now=now,
    )


def occupied(pid: int = 7, generation: int = 3) -> dict[WorkerId, Slot]:
    wanted = slots(ONE)
    wanted[ONE].started(pid, generation, 0.0)
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
    wanted[ONE].lost(5.0)
    assert actions(wanted, runs(ONE, 7), report(3, 7)) == [MarkReady(ONE)], "seen again"


def test_hung_worker_is_ended_once() -> None:
    """The router's word ends it; while that is under way it is not ended again, and nothing takes its place."""
    hung = report(3, 7, hung="no heartbeat")
    assert actions(occupied(), runs(ONE, 7), hung) == [EndHung(ONE, 7, "no heartbeat")]
    assert actions(occupied(), runs(ONE, 7), hung, ending=(ONE,)) == []
    assert actions(occupied(), ended(ONE), ending=(ONE,)) == []


@pytest.mark.parametrize(
    ("reports", "state"),
    [
        ({}, "STARTING"),
        (report(2, 7), "STARTING"),
        (report(3, 7, "WARMING"), "WARMING"),
    ],
)
def test_a_start_that_takes_too_long_is_ended(reports: dict[str, WorkerReport], state: str) -> None:
    """Whatever the router knows of it: at the limit it is ended, once, for a reason that names limit and key."""
    late = EndHung(ONE, 7, f"still {state} after 60 s (start_timeout_s)")
    assert actions(occupied(), runs(ONE, 7), reports, now=59.9) == []
    assert actions(occupied(), runs(ONE, 7), reports, now=60.0) == [late]
    assert actions(occupied(), runs(ONE, 7), reports, now=60.0, ending=(ONE,)) == []
    assert actions(occupied(), runs(ONE, 7), report(3, 7), now=1e9) == [MarkReady(ONE)], "just in time"


def test_no_start_takes_too_long_while_the_router_is_silent() -> None:
    """Nobody can get READY then: the time counts from when it is heard again."""
    assert actions(occupied(), runs(ONE, 7), now=1e9, heard_since=None) == []
    assert actions(occupied(), runs(ONE, 7), now=129.9, heard_since=70.0) == []
    assert isinstance(actions(occupied(), runs(ONE, 7), now=130.0, heard_since=70.0)[0], EndHung)


def test_a_worker_that_the_router_has_lost_sight_of_has_its_time() -> None:
    """It was READY, and its process is still there: dead behind a stopped launcher, or unknown to a new router."""
    wanted = occupied()
    wanted[ONE].ready(0.0)
    assert actions(wanted, runs(ONE, 7), now=500.0) == [MarkLost(ONE)]
    assert actions(wanted, runs(ONE, 7), now=500.0, heard_since=None) == []
    assert actions(wanted, runs(ONE, 7), report(3, 7, "DRAINING"), now=500.0) == [], "it leaves"
    wanted[ONE].lost(500.0)
    assert actions(wanted, runs(ONE, 7), now=534.9) == []
    late = EndHung(ONE, 7, "unknown to the router for 35 s")
    assert actions(wanted, runs(ONE, 7), now=535.0) == [late]


def test_backoff_is_waited_for() -> None:
    """A slot in BACKOFF is started when its time has come, and not before."""
    wanted = occupied()
    wanted[ONE].ended(-1, 0.0)
    wanted[ONE].started(8, 4, 0.0)
    wanted[ONE].ended(-1, 0.0)
    due = wanted[ONE].due
    assert due is not None
    assert actions(wanted, ended(ONE), now=due - 0.1) == []
    assert actions(wanted, ended(ONE), now=due) == [Start(ONE, 5)]


def test_no_worker_starts_before_its_weights_are_there() -> None:
    """They are wanted instead, by every start of that version and of no other; what runs is left alone."""
    other = WorkerId("half", 2, "cpu0", 0)
    known = ended(ONE) | ended(other)
    assert actions(slots(ONE, other), known, missing={MODEL: ""}) == [WantWeights(MODEL), Start(other, 1)]
    assert actions(slots(ONE, other), known) == [Start(ONE, 1), Start(other, 1)]
    assert actions(slots(ONE), runs(ONE, 7), missing={MODEL: ""}) == [Adopt(ONE, 7)]
    assert actions(occupied(), ended(ONE, 1), missing={MODEL: ""}) == [Ended(ONE, 1, "")]


def test_a_worker_whose_weights_can_never_be_had_is_refused() -> None:
    """With the publisher's reason, and only when it would start: the one that runs has its weights."""
    never = {MODEL: "the checkpoint is cut"}
    assert actions(slots(ONE), ended(ONE), missing=never) == [Refuse(ONE, 1, "the checkpoint is cut")]
    assert actions(occupied(), runs(ONE, 7), missing=never) == []


def publisher(slot: Slot, process: ProcessInfo | None, now: float = 0.0) -> list[Action]:
    """What is done about the publisher of wanted weights."""
    found = {process.name: process} if process else {}
    return actions({}, found, now=now, publishers={MODEL: slot})


def test_publishing_takes_no_longer_than_a_start() -> None:
    """A publisher that does not get done is ended too: no worker of its version starts before."""
    slot = Slot("publisher", RestartSettings(), start_timeout_s=60.0)
    slot.started(9, 1, 0.0)
    late = EndHung(MODEL, 9, "its weights are not published after 60 s (start_timeout_s)")
    assert publisher(slot, publishing(9), 59.9) == []
    assert publisher(slot, publishing(9), 60.0) == [late]


def publishing(pid: int, status: int = 0) -> ProcessInfo:
    state = ProcessState.RUNNING if pid else ProcessState.EXITED
    return ProcessInfo(MODEL.publisher, state, pid, status)


def test_wanted_weights_are_published() -> None:
    """Also by a program that supervisord does not know yet; one that runs already is adopted."""
    slot = Slot("publisher", RestartSettings())
    assert publisher(slot, None) == [Start(MODEL, 1)]
    assert publisher(slot, publishing(0)) == [Start(MODEL, 1)]
    assert publisher(slot, publishing(9)) == [Adopt(MODEL, 9)]


def test_a_publisher_is_left_to_its_work_and_started_again_after_its_pause() -> None:
    """Its end is noted with its status, that of one that supervisord has forgotten as a death."""
    slot = Slot("publisher", RestartSettings(retries=2))
    slot.started(9, 1, 0.0)
    assert publisher(slot, publishing(9)) == []
    assert publisher(slot, publishing(0, 1)) == [Ended(MODEL, 1, "")]
    assert publisher(slot, None) == [Ended(MODEL, -1, "")]
    slot.ended(1, 0.0)
    assert publisher(slot, publishing(0, 1)) == [Start(MODEL, 2)]
    slot.started(10, 2, 0.0)
    slot.ended(1, 0.0)
    due = slot.due
    assert due is not None
    assert publisher(slot, publishing(0, 1), due - 0.1) == []
    assert publisher(slot, publishing(0, 1), due) == [Start(MODEL, 3)]


@pytest.mark.parametrize(("pid", "then"), [(9, []), (0, [Remove(MODEL.publisher, 0)])])
def test_a_publisher_that_is_not_wanted_is_forgotten_once_it_has_ended(pid: int, then: list[Action]) -> None:
    """Until then it is on its way out by itself."""
    assert actions({}, {MODEL.publisher: publishing(pid)}) == then


def test_a_publisher_of_a_version_that_is_not_there_any_more_is_ended() -> None:
    """It may hang: nobody waits for it, and nothing else would end it. Then it is forgotten as any other."""
    found = {MODEL.publisher: publishing(9)}
    assert actions({}, found, there=(ModelVersion("half", 2),)) == [Remove(MODEL.publisher, 9)]
    assert actions({}, {MODEL.publisher: publishing(0)}, there=()) == [Remove(MODEL.publisher, 0)]


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
