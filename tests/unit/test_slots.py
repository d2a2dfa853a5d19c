"""The slot machine: when a worker is started again, waited for, or given up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpspool.core.process import EXIT_NEVER
from mpspool.core.settings import RestartSettings
from mpspool.core.states import InvalidTransitionError, SlotState
from mpspool.supervisor.pool.slots import PROVEN_S, GiveUp, Instruction, Slot, StartAt, StartNow, delay_s

SETTINGS = RestartSettings(retries=3, backoff_s=1.0, max_backoff_s=10.0)


def live(slot: Slot, at: float, ready_s: float | None, status: int = -1) -> tuple[Instruction, float]:
    """One worker's life, begun when the slot wants it: the instruction at its end, and when that was."""
    instruction = slot.tick(at)
    if isinstance(instruction, StartAt):
        at = instruction.at
        instruction = slot.tick(at)
    assert isinstance(instruction, StartNow)
    slot.started(100, instruction.generation, at)
    if ready_s is not None:
        slot.ready(at)
        at += ready_s
    return slot.ended(status, at, "it died"), at


def test_empty_slot_starts_its_first_generation() -> None:
    """A new slot wants a worker at once, of generation 1."""
    assert Slot("s", SETTINGS).tick(0.0) == StartNow(1)


def test_occupied_slot_wants_nothing() -> None:
    """While its worker lives, time changes nothing."""
    slot = Slot("s", SETTINGS)
    slot.started(7, 1, 0.0)
    assert slot.tick(1e9) is None
    assert (slot.state, slot.pid) == (SlotState.OCCUPIED, 7)


def test_never_ready_backs_off_and_is_given_up_after_the_retries() -> None:
    """First restart at once, then 1 s, 2 s, and FATAL after the third restart in a row."""
    slot = Slot("s", SETTINGS)
    assert [live(slot, 0.0, None)[0] for _ in range(4)] == [
        StartNow(2),
        StartAt(1.0),
        StartAt(1.0 + 2.0),
        GiveUp("not READY after 3 restarts: it died"),
    ]
    assert (slot.state, slot.restarts, slot.tick(1e9)) == (SlotState.FATAL, 3, None)


def test_exit_never_is_final_at_once() -> None:
    """A worker that says it can never work is not tried again, and its reason is kept."""
    slot = Slot("s", SETTINGS)
    assert live(slot, 0.0, None, EXIT_NEVER)[0] == GiveUp("it died")
    assert slot.reason == "it died"


def test_what_a_worker_says_that_was_hit_is_not_final() -> None:
    """Whatever its exit status: READY before, it is no fault of its own; loading, it may be, and is counted."""
    slot = Slot("s", SETTINGS)
    for generation in (1, 2):
        slot.started(100, generation, 0.0)
        slot.ready(0.0)
        assert slot.ended(EXIT_NEVER, 1.0, "hit", hit=True) == StartNow(generation + 1)
    ends = []
    for generation in range(3, 7):
        slot.started(100, generation, 0.0)
        ends.append(slot.ended(EXIT_NEVER, 1.0, "hit", hit=True))
        slot.tick(1e9)
    assert ends == [StartNow(4), StartAt(2.0), StartAt(3.0), GiveUp("not READY after 3 restarts: hit")]


def test_a_slot_in_which_nothing_can_be_started_is_given_up() -> None:
    """As on a GPU that is lost: no process has said so, but the pool."""
    slot = Slot("s", SETTINGS)
    slot.started(0, 1, 0.0)
    assert slot.ended(EXIT_NEVER, 1.0, "gpu0 is lost") == GiveUp("gpu0 is lost")


def test_dying_young_but_ready_backs_off_without_end() -> None:
    """READY for less than the proof: the pauses grow to the most and the slot is never FATAL."""
    slot, at, pauses = Slot("s", SETTINGS), 0.0, []
    for _ in range(12):
        instruction, at = live(slot, at, 1.0)
        pauses.append(instruction.at - at if isinstance(instruction, StartAt) else 0.0)
    assert pauses == [0, 1, 2, 4, 8, 10, 10, 10, 10, 10, 10, 10]


def test_a_proven_worker_starts_the_count_anew() -> None:
    """READY for long enough: its end is followed by a restart at once, whatever came before."""
    slot, at = Slot("s", SETTINGS), 0.0
    for _ in range(4):
        _, at = live(slot, at, 1.0)
    assert live(slot, at, PROVEN_S)[0] == StartNow(6)


def test_an_end_that_was_its_devices_does_not_count() -> None:
    """Said later, and once for each end; of a worker that was never READY it may be the device that has it to blame."""
    slot = Slot("s", SETTINGS)
    live(slot, 0.0, 1.0)
    assert live(slot, 1.0, 1.0)[0] == StartAt(2.0 + 1.0)
    slot.excuse()
    slot.excuse()
    assert slot.tick(2.0) == StartNow(3)
    assert live(slot, 2.0, 1.0)[0] == StartAt(3.0 + 1.0), "the first end counts still"
    other = Slot("s", SETTINGS)
    live(other, 0.0, None)
    other.excuse()
    assert live(other, 0.0, None)[0] == StartAt(1.0)


def test_ready_takes_the_unready_restarts_back() -> None:
    """FATAL counts restarts in a row without READY: one that was READY in between breaks the row."""
    slot, at = Slot("s", SETTINGS), 0.0
    for ready_s in (None, None, None, 1.0, None, None):
        instruction, at = live(slot, at, ready_s)
    assert isinstance(instruction, StartAt)
    assert isinstance(live(slot, at, None)[0], GiveUp)


def test_no_retries_gives_up_at_the_first_death() -> None:
    """retries=0 means none."""
    assert isinstance(live(Slot("s", RestartSettings(retries=0)), 0.0, None)[0], GiveUp)


def test_a_worker_in_an_occupied_slot_is_refused() -> None:
    """Two workers in one slot are an illegal move."""
    slot = Slot("s", SETTINGS)
    slot.started(7, 1, 0.0)
    with pytest.raises(InvalidTransitionError):
        slot.started(8, 2, 0.0)


def test_adopted_worker_is_no_restart() -> None:
    """A worker found running counts as started, not as started again."""
    slot = Slot("s", SETTINGS)
    slot.started(7, 5, 0.0)
    assert (slot.generation, slot.restarts) == (5, 0)


def limited() -> Slot:
    """Its worker, started at 5, has until 105; once it was READY it may be lost sight of for 30 s."""
    slot = Slot("s", SETTINGS, start_timeout_s=100.0, lost_timeout_s=30.0)
    slot.started(7, 1, 5.0)
    return slot


def test_a_start_may_take_so_long() -> None:
    """Not READY at its limit a worker is overdue; what nobody could have seen does not count against it."""
    slot = limited()
    assert [slot.overdue(now, 0.0) for now in (5.0, 104.9, 105.0, 1e9)] == [False, False, True, True]
    assert [slot.overdue(now, 50.0) for now in (149.9, 150.0)] == [False, True]
    slot.ended(-1, 105.0)
    assert not slot.overdue(1e9, 0.0)
    slot.started(8, 2, 200.0)
    assert [slot.overdue(now, 0.0) for now in (299.9, 300.0)] == [False, True]


def test_a_ready_worker_is_overdue_only_once_it_is_lost() -> None:
    """From then on it has its time for that; being seen again takes that back, and is no new proof."""
    slot = limited()
    slot.ready(50.0)
    assert not slot.overdue(1e9, 0.0)
    slot.lost(200.0)
    slot.lost(220.0)
    assert [slot.overdue(now, 0.0) for now in (229.9, 230.0)] == [False, True]
    assert [slot.overdue(now, 300.0) for now in (329.9, 330.0)] == [False, True]
    slot.runs(225.0)
    assert [slot.overdue(now, 0.0) for now in (254.9, 255.0)] == [False, True], "it was heard of no sooner"
    slot.runs(299.0)
    assert [slot.overdue(now, 0.0) for now in (299.9, 300.0)] == [False, True], "the other limit holds, too"
    slot.ready(260.0)
    assert (slot.overdue(1e9, 0.0), slot.ready_since) == (False, 50.0)
    slot.lost(300.0)
    assert slot.ended(-1, 400.0) == StartNow(2), "it had proved itself"


def test_overdue_goes_on_from_the_record() -> None:
    """The pool's successor counts from the same start."""
    record = limited().record()
    slot = Slot("s", SETTINGS, record, start_timeout_s=100.0)
    assert [slot.overdue(now, 0.0) for now in (104.9, 105.0)] == [False, True]


@pytest.mark.parametrize(("row", "wait_s"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 4), (6, 10), (10_000, 10)])
def test_delay_doubles_up_to_the_most(row: int, wait_s: float) -> None:
    """The pause by the number of restarts in a row, without overflow."""
    assert delay_s(row, SETTINGS) == wait_s


LIVES = st.lists(st.one_of(st.none(), st.floats(0, 100)), max_size=30)


@given(lives=LIVES, cut=st.integers(0, 30), retries=st.integers(0, 5))
def test_a_slot_goes_on_from_its_record(lives: list[float | None], cut: int, retries: int) -> None:
    """Recorded and restored at any point, a slot decides as if nothing had happened."""
    settings = RestartSettings(retries=retries)
    kept, restored, at = Slot("s", settings), Slot("s", settings), 0.0
    for number, ready_s in enumerate(lives):
        if number == cut:
            restored = Slot("s", settings, restored.record())
        instruction, end = live(kept, at, ready_s)
        assert live(restored, at, ready_s) == (instruction, end)
        at = end
        if isinstance(instruction, GiveUp):
            break
    assert restored.record() == kept.record()


@given(lives=LIVES, retries=st.integers(0, 5))
def test_generations_only_grow_and_fatal_needs_unready_restarts(
    lives: list[float | None], retries: int
) -> None:
    """Each start is a new generation; a slot is given up exactly after `retries` unready restarts in a row."""
    slot, at, row = Slot("s", RestartSettings(retries=retries)), 0.0, 0
    for number, ready_s in enumerate(lives, start=1):
        instruction, at = live(slot, at, ready_s)
        assert slot.generation == number
        row = 1 if ready_s is not None else row + 1
        assert isinstance(instruction, GiveUp) == (ready_s is None and row > retries)
        if isinstance(instruction, GiveUp):
            break
