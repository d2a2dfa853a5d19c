"""Slot by slot from one version to the next: which slots have no worker meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from mpspool.core.ids import ModelVersion, WorkerId
from mpspool.core.states import SlotState
from mpspool.supervisor.pool.slots import Slot


def held(
    slots: Mapping[WorkerId, Slot], before: ModelVersion, after: ModelVersion, *, may_start: bool = True
) -> set[WorkerId]:
    """The slots of both versions that are to have no worker now: the other version has the place, or is to have it.

    One place after the other is taken over: its old worker leaves, then the new one starts, and the next place follows
    once that one is READY. No further place follows one whose new worker was given up.

    Args:
        slots: of the pool.
        before: the version that has the places.
        after: the version that takes them over.
        may_start: whether its workers can be started; not before its weights are there.
    """
    found = set()
    turn_is_taken = not may_start
    for worker, slot in slots.items():
        if worker.model_version != after:
            continue
        if slot.state is SlotState.FATAL:
            turn_is_taken = True
            continue
        old = WorkerId(before.name, before.version, worker.device, worker.slot)
        old_slot = slots.get(old)
        was_ready = slot.ready_since is not None
        if turn_is_taken and not was_ready:
            found.add(worker)
            continue
        turn_is_taken = turn_is_taken or not was_ready
        if old_slot is not None:
            found.add(old)
            if old_slot.state is SlotState.OCCUPIED:
                found.add(worker)
    return found
