"""Who gives way to those that serve, and how many at a time."""

from __future__ import annotations

import pytest

from mpspool.core.ids import ModelVersion, WorkerId
from mpspool.core.process import EXIT_NEVER
from mpspool.core.settings import ModelSettings, RestartSettings
from mpspool.core.states import SlotState, VersionPhase
from mpspool.supervisor.pool import pace
from mpspool.supervisor.pool.slots import Slot
from mpspool.supervisor.pool.status import Servable

ONE, TWO, OTHER = ModelVersion("m", 1), ModelVersion("m", 2), ModelVersion("other", 1)


def worker(model: ModelVersion, slot: int = 0) -> WorkerId:
    return WorkerId(model.name, model.version, "cpu0", slot)


def slot(*, ready: bool = False, started: bool = False) -> Slot:
    made = Slot("s", RestartSettings())
    if ready or started:
        made.started(1, 1, 0.0)
    if ready:
        made.ready(1.0)
    return made


def servable(model: ModelVersion, phase: VersionPhase) -> Servable:
    return Servable(ModelSettings(name=model.name, version=model.version, path="", slots=[]), phase)


def test_nobody_gives_way_where_nobody_serves() -> None:
    """A first start takes what it can get, whatever is READY of a version that does not serve yet."""
    known = [servable(model, VersionPhase.LOADING) for model in (ONE, OTHER)]
    slots = {worker(ONE): slot(ready=True), worker(ONE, 1): slot(started=True), worker(OTHER): slot()}
    assert pace.giving_way(known, slots) == set()


def test_a_version_gives_way_to_the_one_that_serves() -> None:
    """Another model's does not; a version whose workers have died is not one that serves."""
    known = [servable(ONE, VersionPhase.SERVING), servable(TWO, VersionPhase.LOADING)]
    known.append(servable(OTHER, VersionPhase.LOADING))
    slots = {worker(ONE): slot(ready=True), worker(TWO): slot(), worker(OTHER): slot()}
    assert pace.giving_way(known, slots) == {ONE, TWO}
    slots[worker(ONE)].ended(-9, 2.0)
    assert pace.giving_way(known, slots) == set()


def test_a_model_that_has_stopped_is_waited_for() -> None:
    """Its old version leaves and its next one comes as fast as they can, beside whoever else serves."""
    known = [servable(ONE, VersionPhase.LEAVING), servable(TWO, VersionPhase.LOADING)]
    known.append(servable(OTHER, VersionPhase.SERVING))
    slots = {worker(ONE): slot(ready=True), worker(TWO): slot(), worker(OTHER): slot(ready=True)}
    assert pace.giving_way(known, slots) == {OTHER}


def test_what_has_failed_leaves_at_once() -> None:
    """Those whose places it had taken may need its room."""
    known = [servable(ONE, VersionPhase.SERVING), servable(TWO, VersionPhase.FAILED)]
    slots = {worker(ONE): slot(ready=True), worker(TWO): slot(ready=True)}
    assert pace.giving_way(known, slots) == {ONE}


def test_who_is_missed() -> None:
    """Whoever was READY and is not; and whoever is on its way, but for one of a version that nobody waits for."""
    slots = {worker(ONE): slot(ready=True), worker(TWO): slot(started=True)}

    def missed(going: set[WorkerId] | None = None) -> bool:
        return pace.missed(slots, going or set(), {ONE, TWO})

    assert not missed()
    assert pace.missed(slots, set(), {ONE})
    slots[worker(ONE)].ended(-9, 2.0)
    assert missed()
    assert not missed({worker(ONE)})
    slots[worker(ONE)].started(2, 2, 3.0)
    assert missed()
    slots[worker(ONE)].ready(4.0)
    assert not missed()


def test_one_that_is_given_up_is_not_waited_for() -> None:
    """Else those that start workers would never give way again."""
    slots = {worker(ONE): slot(ready=True), worker(OTHER): slot(started=True)}
    assert pace.missed(slots, set(), {ONE})
    slots[worker(OTHER)].ended(EXIT_NEVER, 2.0)
    assert slots[worker(OTHER)].state is SlotState.FATAL
    assert not pace.missed(slots, set(), {ONE})


@pytest.mark.parametrize(("cores", "limit"), [(1, 1), (2, 1), (3, 1), (4, 2), (64, 32)])
def test_half_of_the_cores_may_load(cores: int, limit: int) -> None:
    """One always may."""
    assert pace.at_once(cores) == limit


def test_so_many_of_a_model_load_at_a_time() -> None:
    """The next one goes when one is READY, or has ended; other models and those that are waited for do not ask."""
    slots = {worker(TWO, number): slot() for number in range(3)} | {worker(OTHER): slot(started=True)}

    def may_go(giving_way: set[ModelVersion]) -> bool:
        return pace.may_go(worker(TWO, 2), pace.loading(slots, (), 10.0), giving_way, 1)

    assert may_go({TWO})
    slots[worker(TWO)].started(1, 1, 0.0)
    assert not may_go({TWO})
    assert may_go(set())
    slots[worker(TWO)].ready(1.0)
    assert may_go({TWO})
    slots[worker(TWO, 1)].started(2, 1, 1.0)
    assert not may_go({TWO})
    slots[worker(TWO, 1)].ended(1, 2.0)
    assert may_go({TWO})


def test_nobody_waits_for_one_that_hangs() -> None:
    """After a minute, or once it is being ended, the next one goes."""
    slots = {worker(TWO): slot(started=True), worker(TWO, 1): slot()}
    assert pace.loading(slots, (), 59.0) == [worker(TWO)]
    assert pace.loading(slots, (), 60.0) == []
    assert pace.loading(slots, [worker(TWO)], 1.0) == []


def test_who_is_started_again_is_not_one_that_loads() -> None:
    """A worker that serves and dies is missed: it neither waits for those that load nor counts among them."""
    again = slot(ready=True)
    again.ended(-9, 2.0)
    again.started(2, 2, 2.0)
    slots = {worker(ONE): again, worker(TWO): slot(started=True)}
    assert pace.loading(slots, (), 3.0) == [worker(TWO)]
