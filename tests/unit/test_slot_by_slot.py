"""Slot by slot from one version to the next."""

from __future__ import annotations

from mpspool.core.ids import ModelVersion, WorkerId
from mpspool.core.process import EXIT_NEVER
from mpspool.core.settings import RestartSettings
from mpspool.supervisor.pool.slot_by_slot import held
from mpspool.supervisor.pool.slots import Slot

BEFORE, AFTER = ModelVersion("m", 1), ModelVersion("m", 2)


def worker(model: ModelVersion, slot: int) -> WorkerId:
    return WorkerId(model.name, model.version, "cpu0", slot)


def places(count: int) -> dict[WorkerId, Slot]:
    """The old version with a worker in each, the new one with none."""
    slots = {}
    for model in (BEFORE, AFTER):
        for number in range(count):
            slot = slots[worker(model, number)] = Slot("s", RestartSettings())
            if model is BEFORE:
                slot.started(1 + number, 1, 0.0)
                slot.ready(0.0)
    return slots


def shown(slots: dict[WorkerId, Slot]) -> list[str]:
    return sorted(f"{one.version}.{one.slot}" for one in held(slots, BEFORE, AFTER))


def test_one_place_changes_hands_after_the_other() -> None:
    """The old worker leaves, the new one starts when it has gone, and the next place follows once that is READY."""
    slots = places(3)
    assert shown(slots) == ["1.0", "2.0", "2.1", "2.2"]
    slots[worker(BEFORE, 0)].ended(0, 1.0, hit=True)
    assert shown(slots) == ["1.0", "2.1", "2.2"]
    slots[worker(AFTER, 0)].started(9, 1, 1.0)
    assert shown(slots) == ["1.0", "2.1", "2.2"]
    slots[worker(AFTER, 0)].ready(2.0)
    assert shown(slots) == ["1.0", "1.1", "2.1", "2.2"]


def test_no_place_follows_one_whose_new_worker_was_given_up() -> None:
    """It goes back to the old version, whose other workers stay."""
    slots = places(2)
    slots[worker(BEFORE, 0)].ended(0, 1.0, hit=True)
    slots[worker(AFTER, 0)].started(9, 1, 1.0)
    slots[worker(AFTER, 0)].ended(EXIT_NEVER, 2.0)
    assert shown(slots) == ["2.1"]


def test_no_place_changes_hands_before_the_weights_are_there() -> None:
    """The old worker would leave for nobody."""
    slots = places(2)
    assert sorted(str(one) for one in held(slots, BEFORE, AFTER, may_start=False)) == [
        "m@2.cpu0.0",
        "m@2.cpu0.1",
    ]


def test_what_is_left_of_a_version_that_leaves_holds_its_place() -> None:
    """The new worker starts when the old one has gone, or its slot."""
    slots = places(2)
    for number in range(2):
        slots[worker(BEFORE, number)].ended(0, 1.0, hit=True)
    slots[worker(AFTER, 0)].started(9, 1, 1.0)
    slots[worker(AFTER, 0)].ready(2.0)
    assert shown(slots) == ["1.0", "1.1"]
    del slots[worker(BEFORE, 0)], slots[worker(BEFORE, 1)]
    assert shown(slots) == []
