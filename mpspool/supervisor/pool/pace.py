"""Beside workers that serve, who is not missed starts, loads and leaves in their spare time, and not all at once. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from mpspool.core.ids import ModelVersion, WorkerId
from mpspool.core.states import SlotState, VersionPhase
from mpspool.supervisor.pool.slots import Slot
from mpspool.supervisor.pool.status import Servable

# So long others wait for a worker that loads, and for one that leaves: it may hang, or finish a long request.
_IN_LINE_S = 60.0
LEAVING_S = 5.0


def giving_way(servables: Iterable[Servable], slots: Mapping[WorkerId, Slot]) -> set[ModelVersion]:
    """The versions that nobody waits for: another of their model serves, or the same one does and gets more workers.

    Of one that has failed nothing is to be there any more, and what it holds is given back at once.
    """
    known = list(servables)
    ready = {worker.model_version for worker, slot in slots.items() if slot.serves}
    serving = {one.id.name for one in known if one.phase is VersionPhase.SERVING and one.id in ready}
    return {one.id for one in known if one.id.name in serving and one.phase is not VersionPhase.FAILED}


def missed(
    slots: Mapping[WorkerId, Slot], going: Collection[WorkerId], giving_way: Collection[ModelVersion]
) -> bool:
    """Whether a worker is waited for, and so are those that start it.

    Args:
        slots: the pool's.
        going: the workers that are being ended, or are to be.
        giving_way: the versions that nobody waits for; a worker that was READY is missed in these, too.
    """
    return any(
        not slot.serves
        and slot.state is not SlotState.FATAL
        and worker not in going
        and (slot.proved or worker.model_version not in giving_way)
        for worker, slot in slots.items()
    )


def at_once(cores: int) -> int:
    """How many workers of a model may be on their way in, or out, at a time: each takes a processor meanwhile.

    Args:
        cores: how many there are for all.
    """
    return max(1, cores // 2)


def loading(slots: Mapping[WorkerId, Slot], ending: Collection[WorkerId], now: float) -> list[WorkerId]:
    """The workers on their way in whose slots have never had one that was READY.

    Those that take long are left out, lest the others wait for one that hangs.

    Args:
        slots: the pool's.
        ending: the workers that are being ended.
        now: seconds of the clock the slots go by.
    """
    since = now - _IN_LINE_S
    return [
        worker
        for worker, slot in slots.items()
        if slot.state is SlotState.OCCUPIED
        and not slot.proved
        and slot.unready_since is not None
        and slot.unready_since > since
        and worker not in ending
    ]


def may_go(
    worker: WorkerId, under_way: Iterable[WorkerId], giving_way: Collection[ModelVersion], limit: int
) -> bool:
    """Whether a worker may go in, or out, now.

    Args:
        worker: one that is not missed.
        under_way: the pool's workers that go the same way.
        giving_way: the versions that nobody waits for.
        limit: how many of a model may be under way at a time.
    """
    others = sum(other.model == worker.model for other in under_way)
    return worker.model_version not in giving_way or others < limit
