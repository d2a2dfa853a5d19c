"""Which versions of a model have workers, and which of them answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mpspool.core.settings import VersionPolicy
from mpspool.core.states import VersionPhase
from mpspool.supervisor.pool.versions import (
    ROLLING,
    STOP_FIRST,
    Fact,
    Found,
    Retries,
    Route,
    Versions,
    chosen,
)

LOADING, SERVING = VersionPhase.LOADING, VersionPhase.SERVING
LEAVING, FAILED = VersionPhase.LEAVING, VersionPhase.FAILED
READY, COMING, GONE = Fact(ready=2), Fact(ready=1, coming=1), Fact(there=False)
BROKEN = Fact(reason="it does not load")


def found(*numbers: int) -> dict[int, Found]:
    return {number: Found(f"/m/{number}", "whole") for number in numbers}


def model(*numbers: int, policy: VersionPolicy | None = None) -> Versions:
    """With these folders, and the newest loaded and serving."""
    versions = Versions("m", policy or VersionPolicy(), retries=Retries(2, 60.0), found=found(*numbers))
    versions.step({}, 0.0)
    versions.step(dict.fromkeys(numbers, READY), 0.0)
    return versions


def phases(versions: Versions) -> dict[int, VersionPhase]:
    return {version.number: version.phase for version in versions}


def settle(versions: Versions, facts: dict[int, Fact], ends: dict[int, Fact] | None = None) -> None:
    """Steps until nothing moves: what leaves goes, what is loaded ends as it is said here or in the facts."""
    ends = {**facts, **(ends or {})}
    for _ in range(20):
        now = {
            version.number: GONE if version.phase is LEAVING else ends.get(version.number, READY)
            for version in versions
            if version.phase is not FAILED
        }
        if not versions.step(now, 0.0):
            return
    raise AssertionError("it goes on for ever")


def routed(versions: Versions) -> int | None:
    version = versions.routed()
    return version.number if version else None


def test_the_first_version_takes_requests_as_soon_as_its_quorum_is_ready() -> None:
    """Nobody else does: it need not wait for all its workers."""
    versions = Versions("m", VersionPolicy(), found=found(1))
    assert versions.step({}, 0.0)
    (version,) = versions
    assert versions.opens(version)
    assert not versions.step({1: Fact(coming=2)}, 0.0)
    assert versions.step({1: COMING}, 0.0)
    assert phases(versions) == {1: SERVING}


def test_what_should_be_served_and_is_not_yet_is_to_come() -> None:
    """Before it is begun, too; not where it has failed, nor beside what serves in its place."""
    versions = Versions("m", VersionPolicy(specific=(1, 2, 3)), found=found(1, 2))
    assert versions.to_come() == {1, 2}
    versions.step({}, 0.0)
    assert versions.to_come() == {1, 2}
    versions.step({2: READY}, 0.0)
    assert (phases(versions), versions.to_come()) == ({1: LOADING, 2: SERVING}, {1})
    versions.step({1: BROKEN, 2: READY}, 0.0)
    assert (phases(versions), versions.to_come()) == ({1: FAILED, 2: SERVING}, set())


def test_a_new_version_takes_over_when_all_its_workers_are_ready() -> None:
    """Until then it takes nothing; the old one leaves only after that, and is forgotten when it has gone."""
    versions = model(1)
    versions.found = found(1, 2)
    versions.step({1: READY}, 0.0)
    assert phases(versions) == {1: SERVING, 2: LOADING}
    assert not versions.step({1: READY, 2: COMING}, 0.0)
    assert routed(versions) == 1
    assert not versions.opens(next(one for one in versions if one.number == 2))
    versions.step({1: READY, 2: READY}, 0.0)
    assert (phases(versions), routed(versions)) == ({1: SERVING, 2: SERVING}, 2)
    versions.step({1: READY, 2: READY}, 0.0)
    assert phases(versions) == {1: LEAVING, 2: SERVING}
    assert not versions.step({1: READY, 2: READY}, 0.0)
    versions.step({1: GONE, 2: READY}, 0.0)
    assert phases(versions) == {2: SERVING}


def test_a_version_that_fails_takes_no_requests_and_is_tried_again() -> None:
    """As often as configured, so long after each other; the old one serves on."""
    versions = model(1)
    versions.found = found(1, 2)
    versions.step({1: READY}, 0.0)
    now = 0.0
    for failures in (1, 2):
        versions.step({1: READY, 2: BROKEN}, now)
        version = versions.get(2)
        assert version is not None
        assert (version.phase, version.reason, version.failures) == (FAILED, "it does not load", failures)
        assert versions.due() == now + 60.0
        assert not versions.step({1: READY}, now + 59.0)
        now += 60.0
        assert versions.step({1: READY}, now)
        assert version.phase is LOADING
    versions.step({1: READY, 2: BROKEN}, now)
    assert (versions.due(), routed(versions), phases(versions)) == (None, 1, {1: SERVING, 2: FAILED})
    assert not versions.step({1: READY}, now + 1e6)


def test_a_version_whose_files_changed_is_tried_again_at_once() -> None:
    """Whatever its retries; one that looks broken before it is loaded never is."""
    versions = model(1)
    versions.found = {**found(1), 2: Found("/m/2", "short", "saved_model.pb is cut short")}
    versions.step({1: READY}, 0.0)
    assert phases(versions) == {1: SERVING, 2: FAILED}
    assert not versions.step({1: READY}, 1e6)
    versions.found = {**found(1), 2: Found("/m/2", "other", "saved_model.pb is empty")}
    versions.step({1: READY}, 1e6)
    assert [version.reason for version in versions] == ["", "saved_model.pb is empty"]
    versions.found = found(1, 2)
    versions.step({1: READY}, 1e6)
    assert phases(versions) == {1: SERVING, 2: LOADING}


def test_a_version_whose_files_changed_is_tried_again_where_a_newer_one_fails_too() -> None:
    """Without the newer one it is what is meant; once, unless they change again, and not while they look broken."""
    versions = model(1)
    for number in (2, 3):
        versions.found = found(*range(1, number + 1))
        versions.step({1: READY}, 0.0)
        versions.retries = Retries(0, 60.0)
        versions.step({1: READY, number: BROKEN}, 0.0)
    assert phases(versions) == {1: SERVING, 2: FAILED, 3: FAILED}
    assert not versions.step({1: READY}, 0.0)
    versions.found = {**found(1, 3), 2: Found("/m/2", "short", "saved_model.pb is cut short")}
    assert not versions.step({1: READY}, 0.0)
    versions.found = {**found(1, 3), 2: Found("/m/2", "other")}
    assert versions.step({1: READY}, 0.0)
    assert (phases(versions), routed(versions)) == ({1: SERVING, 2: LOADING, 3: FAILED}, 1)
    versions.step({1: READY, 2: BROKEN}, 0.0)
    assert not versions.step({1: READY}, 1e6)
    versions.found = {**found(1, 3), 2: Found("/m/2", "once more")}
    versions.step({1: READY}, 1e6)
    versions.step({1: READY, 2: READY}, 1e6)
    settle(versions, {1: READY, 2: READY})
    assert phases(versions) == {2: SERVING, 3: FAILED}


@pytest.mark.parametrize("now", [Found("/m/1", "other"), Found("/other/1", "whole")])
def test_workers_with_the_former_files_go_first(now: Found) -> None:
    """Of a version that failed, those that are READY would answer beside those that have other files; with the same files they stay."""
    versions = Versions("m", VersionPolicy(), quorum=2, retries=Retries(2, 60.0), found=found(1))
    one_failed = {1: Fact(ready=1, reason="it does not load")}
    versions.step({}, 0.0)
    versions.step(one_failed, 0.0)
    assert versions.step(one_failed, 60.0)
    assert phases(versions) == {1: LOADING}
    versions.step(one_failed, 60.0)
    versions.found = {1: now}
    assert versions.step(one_failed, 60.0)
    assert phases(versions) == {1: LEAVING}
    assert not versions.step(one_failed, 60.0)
    versions.step({}, 60.0)
    assert [(version.phase, version.found) for version in versions] == [(LOADING, now)]


def test_beside_what_serves_a_version_waits_for_its_former_workers_to_go() -> None:
    """They leave as it has failed: slot by slot none of the others gives its place up for that."""
    versions = model(1)
    versions.swap, versions.found = ROLLING, found(1, 2)
    versions.step({1: READY}, 0.0)
    versions.step({1: READY, 2: BROKEN}, 0.0)
    versions.found = {**found(1), 2: Found("/m/2", "other")}
    assert not versions.step({1: READY, 2: BROKEN}, 0.0)
    assert versions.step({1: READY}, 0.0)
    assert phases(versions) == {1: SERVING, 2: LOADING}


@pytest.mark.parametrize("swap", ["surge", STOP_FIRST])
def test_nobody_makes_way_for_what_is_known_to_be_broken(swap: str) -> None:
    """Also when it is asked for by hand, and where it breaks while it waits for another try; whole again it is loaded."""
    versions = Versions("m", VersionPolicy(), found=found(1), swap=swap)
    versions.step({}, 0.0)
    versions.step({1: READY}, 0.0)
    versions.found = {**found(1), 2: Found("/m/2", "whole", "its batching_params.pbtxt is of no use")}
    versions.step({1: READY}, 0.0)
    orders: list[Callable[[], None]] = [
        lambda: versions.load(None),
        lambda: versions.load(2),
        versions.try_again,
    ]
    for order in orders:
        order()
        versions.step({1: READY}, 100.0)
        assert phases(versions) == {1: SERVING, 2: FAILED}
    versions.found = found(1, 2)
    versions.step({1: READY}, 100.0)
    assert phases(versions)[2 if swap == "surge" else 1] is (LOADING if swap == "surge" else LEAVING)


def test_a_version_that_finds_no_room_waits_for_it() -> None:
    """It says why, however often it was tried; what serves stays. With room it is loaded, and retries count from there."""
    versions = model(1, 2, policy=VersionPolicy(all=True))
    versions.step({2: READY}, 0.0)
    versions.step({1: READY, 2: READY}, 0.0)
    room: list[str] = ["no room on gpu0"]
    versions.no_room = lambda number: room[0] if number == 3 else ""
    versions.found = found(1, 2, 3)
    both = {1: READY, 2: READY}
    assert versions.step(both, 0.0)
    for now in range(1, 20):
        assert not versions.step(both, float(now))
    waiting = versions.get(3)
    assert waiting is not None
    assert (phases(versions), waiting.reason) == ({1: SERVING, 2: SERVING, 3: FAILED}, "no room on gpu0")
    assert versions.due() == 20.0
    room[0] = ""
    assert versions.step(both, 20.0)
    assert (waiting.phase, waiting.failures, routed(versions)) == (LOADING, 0, 2)


def test_slot_by_slot_no_room_is_needed() -> None:
    """The version takes the places of the other; beside versions that stay it needs its own."""
    for policy, phase in ((VersionPolicy(), LOADING), (VersionPolicy(all=True), FAILED)):
        versions = model(1, policy=policy)
        versions.swap, versions.no_room = ROLLING, lambda _number: "no room on gpu0"
        versions.found = found(1, 2)
        versions.step({1: READY}, 0.0)
        assert phases(versions) == {1: SERVING, 2: phase}


def test_a_version_with_other_signatures_is_refused() -> None:
    """Not before all its workers are READY, when they are known; and it is not tried again."""
    versions = model(1)
    versions.found = found(1, 2)
    versions.step({1: READY}, 0.0)
    assert not versions.step({1: READY, 2: Fact(ready=2, unfit=None)}, 0.0)
    versions.step({1: READY, 2: Fact(ready=2, unfit="it has no input 'x'")}, 0.0)
    assert (phases(versions), versions.due(), routed(versions)) == ({1: SERVING, 2: FAILED}, None, 1)


def test_a_folder_that_goes_ends_nothing() -> None:
    """What is served stays; where an older folder is left, that one takes over."""
    versions = model(2)
    versions.found = {}
    assert not versions.step({2: READY}, 0.0)
    assert (phases(versions), routed(versions)) == ({2: SERVING}, 2)
    versions.found = found(1)
    versions.step({2: READY}, 0.0)
    versions.step({1: READY, 2: READY}, 0.0)
    assert routed(versions) == 1
    versions.step({1: READY, 2: READY}, 0.0)
    assert phases(versions) == {1: SERVING, 2: LEAVING}


def test_folders_that_are_renamed_beside_others() -> None:
    """Their versions leave, the newest among them only once another answers; the others stay."""
    versions = model(1, 2, 3, policy=VersionPolicy(all=True))
    while versions.step({one.number: READY for one in versions}, 0.0):
        pass
    assert set(phases(versions).values()) == {SERVING}
    versions.found = found(1, 2)
    versions.step({one.number: READY for one in versions}, 0.0)
    versions.step({one.number: READY for one in versions}, 0.0)
    assert (phases(versions), routed(versions)) == ({1: SERVING, 2: SERVING, 3: LEAVING}, 2)
    versions.found = found(2)
    versions.step({1: READY, 2: READY, 3: GONE}, 0.0)
    assert phases(versions) == {1: LEAVING, 2: SERVING}


def test_versions_that_follow_faster_than_they_load_do_not_starve() -> None:
    """The one that loads is let finish, and takes over; then the newest is loaded, and those between never."""
    versions = model(1)
    served = []
    for newest in range(2, 100):
        versions.found = found(newest - 1, newest)
        facts = dict.fromkeys([one.number for one in versions if one.phase is SERVING], READY)
        loading = [one.number for one in versions if one.phase is LOADING]
        if newest % 3 == 0:
            facts |= dict.fromkeys(loading, READY)
        else:
            facts |= dict.fromkeys(loading, COMING)
        versions.step(facts, 0.0)
        assert len(list(versions)) <= 3
        if routed(versions) not in served:
            served.append(routed(versions))
    assert len(served) > 15


def test_where_there_is_no_room_for_two_the_old_one_goes_first() -> None:
    """And comes back where the new one fails, which is not tried again then: that would be to stop once more."""
    versions = Versions("m", VersionPolicy(), found=found(1), swap=STOP_FIRST)
    versions.step({}, 0.0)
    versions.step({1: READY}, 0.0)
    versions.found = found(1, 2)
    versions.step({1: READY}, 0.0)
    assert phases(versions) == {1: LEAVING}
    assert not versions.step({1: READY}, 0.0)
    versions.step({1: GONE}, 0.0)
    assert phases(versions) == {2: LOADING}
    versions.step({2: BROKEN}, 0.0)
    assert phases(versions) == {1: LOADING, 2: FAILED}
    versions.step({1: READY, 2: BROKEN}, 0.0)
    assert (phases(versions), routed(versions)) == ({1: SERVING, 2: FAILED}, 1)
    assert not versions.step({1: READY, 2: BROKEN}, 1e6)
    assert versions.due() is None


def test_slot_by_slot_a_version_takes_over_half_way() -> None:
    """With as many workers READY as the other has left."""
    versions = Versions("m", VersionPolicy(), found=found(1), swap=ROLLING)
    versions.step({}, 0.0)
    versions.step({1: READY}, 0.0)
    versions.found = found(1, 2)
    versions.step({1: READY}, 0.0)
    assert not versions.step({1: Fact(ready=2, coming=1), 2: Fact(ready=1, coming=2)}, 0.0)
    versions.step({1: Fact(ready=1, coming=2), 2: Fact(ready=2, coming=1)}, 0.0)
    assert routed(versions) == 2


def test_what_fails_at_the_first_start_leaves_the_one_before_it() -> None:
    """It is loaded, and serves, while the newest is tried again."""
    versions = Versions("m", VersionPolicy(), retries=Retries(2, 60.0), found=found(1, 2))
    versions.step({}, 0.0)
    versions.step({2: BROKEN}, 0.0)
    assert phases(versions) == {1: LOADING, 2: FAILED}
    versions.step({1: READY}, 0.0)
    assert routed(versions) == 1
    versions.step({1: READY}, 60.0)
    versions.step({1: READY, 2: READY}, 60.0)
    versions.step({1: READY, 2: READY}, 60.0)
    assert phases(versions) == {1: LEAVING, 2: SERVING}


@pytest.mark.parametrize(
    ("policy", "meant"),
    [
        (VersionPolicy(), {9}),
        (VersionPolicy(latest=2), {7, 9}),
        (VersionPolicy(all=True), {3, 7, 9}),
        (VersionPolicy(specific=(3, 8)), {3}),
    ],
)
def test_policies(policy: VersionPolicy, meant: set[int]) -> None:
    """TensorFlow Serving's three."""
    assert chosen([3, 7, 9], policy) == meant


def test_several_versions_are_loaded_one_after_the_other() -> None:
    """The newest first; all of them stay, and the newest answers what names none."""
    versions = Versions("m", VersionPolicy(all=True), found=found(1, 2, 3))
    facts: dict[int, Fact] = {}
    order = []
    while versions.step(facts, 0.0):
        order += [one.number for one in versions if one.phase is LOADING and one.number not in order]
        facts = {one.number: READY for one in versions}
    assert order == [3, 2, 1]
    assert (set(phases(versions).values()), routed(versions)) == ({SERVING}, 3)


@pytest.mark.parametrize(
    ("late", "fact", "left"),
    [
        (4, BROKEN, {2: SERVING, 3: SERVING, 4: FAILED}),
        (3, BROKEN, {2: SERVING, 3: FAILED, 4: SERVING}),
        (3, Fact(coming=2), {3: LOADING, 4: SERVING}),
        (4, Fact(coming=2), {2: SERVING, 4: LOADING}),
    ],
)
def test_two_versions_in_place_of_two(late: int, fact: Fact, left: dict[int, VersionPhase]) -> None:
    """The older one goes first; the newer one once another of the two takes requests, and stands in for one that fails."""
    versions = model(1, 2, policy=VersionPolicy(latest=2))
    while versions.step({one.number: READY for one in versions}, 0.0):
        pass
    versions.found = found(1, 2, 3, 4)
    versions.step({1: READY, 2: READY}, 0.0)
    assert (phases(versions), routed(versions)) == ({1: LEAVING, 2: SERVING}, 2)
    for _ in range(8):
        ends = {LEAVING: GONE, SERVING: READY, LOADING: READY, FAILED: GONE}
        facts = {one.number: ends[one.phase] for one in versions}
        if (one := versions.get(late)) is not None and one.phase is LOADING:
            facts[late] = fact
        versions.step(facts, 0.0)
        assert routed(versions) is not None
    assert phases(versions) == left


def test_by_hand() -> None:
    """Load brings one beside what the policy means, unload takes one away, and a whole model."""
    versions = model(1, 2)
    versions.load(1)
    versions.step({2: READY}, 0.0)
    versions.step({1: READY, 2: READY}, 0.0)
    assert (phases(versions), routed(versions)) == ({1: SERVING, 2: SERVING}, 2)
    versions.unload(2)
    versions.step({1: READY, 2: READY}, 0.0)
    assert (phases(versions), routed(versions)) == ({1: SERVING, 2: LEAVING}, 1)
    versions.step({1: READY, 2: GONE}, 0.0)
    versions.unload(None)
    versions.step({1: READY}, 0.0)
    assert phases(versions) == {1: LEAVING}
    versions.step({1: GONE}, 0.0)
    assert not versions.step({}, 0.0)
    versions.load(None)
    versions.step({}, 0.0)
    assert phases(versions) == {2: LOADING}


def test_going_back_waits_for_what_comes_in_its_place() -> None:
    """The version that is left serves until the other does."""
    versions = model(1, 2)
    versions.unload(2)
    versions.step({2: READY}, 0.0)
    assert (phases(versions), routed(versions)) == ({1: LOADING, 2: SERVING}, 2)
    versions.step({1: READY, 2: READY}, 0.0)
    assert routed(versions) == 1


def test_what_was_loaded_by_hand_answers_only_what_asks_for_it() -> None:
    """Beside what the policy means, until somebody says otherwise."""
    versions = model(7, 8, policy=VersionPolicy(specific=(7,)))
    versions.load(8)
    versions.step({7: READY}, 0.0)
    versions.step({7: READY, 8: READY}, 0.0)
    assert (phases(versions), routed(versions)) == ({7: SERVING, 8: SERVING}, 7)
    assert [versions.weight(version) for version in versions] == [1, 0]
    versions.route = Route(weights={7: 90, 8: 10})
    assert [versions.weight(version) for version in versions] == [90, 10]


def test_a_version_that_comes_has_no_part_yet() -> None:
    """Where that is all that is in the way, it is said."""
    versions = model(1, 2, policy=VersionPolicy(all=True))
    versions.step({2: READY}, 0.0)
    said = "version 1 of m is not served yet, try again once it is AVAILABLE; what is served: 2"
    assert versions.why_no_route({1, 2}) == said
    assert versions.why_no_route({1, 5}) == "version 1, 5 of m is not served; what is served: 2"


def test_a_route_holds_until_one_of_its_versions_goes() -> None:
    """Then the policy counts again; labels and rules for others stay."""
    versions = model(1, 2, policy=VersionPolicy(all=True))
    versions.step({2: READY}, 0.0)
    versions.step({1: READY, 2: READY}, 0.0)
    assert versions.why_no_route({1, 2}) == ""
    assert versions.why_no_route({2, 3}) == "version 3 of m is not served; what is served: 1, 2"
    given = Route(weights={1: 50, 2: 50}, labels={"old": 1}, metadata=[("x-new", "yes", 2)])
    versions.route = Route(labels={"new": 2}).over(given)
    assert not versions.step({1: READY, 2: READY}, 0.0)
    versions.unload(1)
    versions.step({1: READY, 2: READY}, 0.0)
    assert versions.route == Route(labels={"new": 2}, metadata=[("x-new", "yes", 2)])
    assert [(version.number, versions.weight(version)) for version in versions] == [(1, 0), (2, 1)]


def test_labels_that_the_configuration_moves_are_its_own_again() -> None:
    """What it has as before stays as it was said by hand, also where it has no such label at all."""
    route = Route(labels={"stable": 6, "canary": 8, "mine": 7})
    before, now = {"stable": 7, "canary": 7}, {"stable": 8, "canary": 7}
    assert route.under(before, before) == route
    assert route.under(before, now) == Route(labels={"canary": 8, "mine": 7})
    assert route.under(before, {}) == Route(labels={"mine": 7})


def test_going_back_to_what_cannot_serve_ends_nothing() -> None:
    """The version that was to be left serves on, and so does all where every folder has gone."""
    versions = model(1, 2)
    versions.unload(2)
    versions.step({2: READY}, 0.0)
    versions.step({1: Fact(ready=2, unfit="it has no output 'y'"), 2: READY}, 0.0)
    assert not versions.step({2: READY}, 1e6)
    assert (phases(versions), routed(versions)) == ({1: FAILED, 2: SERVING}, 2)
    several = model(1, 2, policy=VersionPolicy(latest=2))
    several.step({2: READY}, 0.0)
    several.step({1: READY, 2: READY}, 0.0)
    several.found = {}
    assert not several.step({1: READY, 2: READY}, 0.0)
    assert phases(several) == {1: SERVING, 2: SERVING}


@pytest.mark.parametrize("swap", ["surge", ROLLING, STOP_FIRST])
def test_going_back_that_comes_to_nothing_is_taken_back(swap: str) -> None:
    """What was to be left is served, and wanted as before; nothing older is loaded, and why is told until another is asked for."""
    versions = Versions("m", VersionPolicy(), retries=Retries(2, 60.0), found=found(6, 7, 8), swap=swap)
    facts = {8: READY}
    for _ in range(2):
        settle(versions, facts)
        assert versions.unload(8, 7) == 7
        settle(versions, facts, ends={7: BROKEN})
        version = versions.get(7)
        assert version is not None
        assert (version.reason, version.due, versions.unloaded) == ("it does not load", None, set())
        assert phases(versions) == {7: FAILED, 8: SERVING}
    versions.try_again()
    version = versions.get(7)
    assert version is not None
    assert (version.reason, versions.due()) == ("it does not load", None), (
        "nobody wants it: a reload does not wait for it"
    )
    facts = {8: BROKEN}  # its workers are given up: it is loaded again as any
    versions.step(facts, 0.0)
    assert phases(versions)[8] in (FAILED, LOADING)
    assert versions.aspired() >= {6}
    versions = Versions("m", VersionPolicy(), found=found(7, 8), swap=swap)
    settle(versions, {8: READY})
    versions.unload(8, 7)
    settle(versions, {8: READY}, ends={7: READY})
    assert (phases(versions), versions.unloaded) == ({7: SERVING}, {8})


def test_the_last_version_that_fails_stays_and_says_why() -> None:
    """Also where its folder is gone; when that is back, whatever is in it, it is loaded."""
    versions = model(1)
    versions.found = {}
    settle(versions, {1: BROKEN})
    version = versions.get(1)
    assert version is not None
    assert (phases(versions), version.reason) == ({1: FAILED}, "it does not load")
    versions.found = found(1)
    settle(versions, {1: READY})
    assert phases(versions) == {1: SERVING}


def test_orders_by_hand_are_told() -> None:
    """Those that hold."""
    versions = model(1, 2)
    assert versions.orders() == {}
    versions.load(1)
    versions.unload(2, 1)
    assert versions.orders() == {"loaded": [1], "unloaded": [2]}
    versions.unload(None)
    assert versions.orders() == {"off": True}


UNFIT = Fact(ready=2, unfit="it has no input 'x'")


def beside() -> Versions:
    """7, which the policy means, and 8 beside it, loaded by hand."""
    versions = model(7, policy=VersionPolicy(specific=[7]))
    versions.found = found(7, 8)
    versions.load(8)
    settle(versions, {})
    assert (phases(versions), routed(versions)) == ({7: SERVING, 8: SERVING}, 7)
    return versions


def test_what_serves_beside_another_is_compared_before_it_answers_for_it() -> None:
    """By policy: until that is known, and where it does not fit, the other answers on, and it says why; it serves who asks for it."""
    versions = beside()
    versions.policy = VersionPolicy(specific=[8])
    assert not versions.step({7: READY, 8: Fact(ready=2, unfit=None)}, 0.0)
    assert routed(versions) == 7
    assert versions.step({7: READY, 8: UNFIT}, 0.0)
    assert not versions.step({7: READY, 8: UNFIT}, 0.0)
    version = versions.get(8)
    assert version is not None
    assert (phases(versions), routed(versions)) == ({7: SERVING, 8: SERVING}, 7)
    assert version.reason == "it has no input 'x'"
    versions.policy = VersionPolicy(specific=[7])
    assert versions.step({7: READY, 8: READY}, 0.0)
    assert version.reason == ""
    versions.policy = VersionPolicy(specific=[8])
    settle(versions, {})
    assert (phases(versions), routed(versions)) == ({8: SERVING}, 8)


def test_what_serves_beside_another_takes_over_by_hand() -> None:
    """Whoever takes the other away means the one that is left."""
    versions = beside()
    version = versions.get(8)
    assert version is not None
    assert not versions.is_by_hand(7, version)
    versions.unload(7)
    assert versions.is_by_hand(7, version)
    settle(versions, {})
    assert (phases(versions), routed(versions)) == ({8: SERVING}, 8)


def test_what_serves_beside_another_answers_where_that_has_failed() -> None:
    """Nobody else is there."""
    versions = beside()
    versions.step({7: BROKEN, 8: UNFIT}, 0.0)
    assert (phases(versions)[7], routed(versions)) == (FAILED, 8)


def test_a_successor_knows_what_has_yet_to_be_compared_or_come_back() -> None:
    """Of what was loaded beside another, of what made way, and of what was unloaded for nothing else."""
    versions = Versions("m", VersionPolicy(specific=[8]), found=found(7, 8))
    versions.recall(beside().record())
    settle(versions, {8: UNFIT})
    assert routed(versions) == 7

    stopped = Versions("m", VersionPolicy(), found=found(1), swap=STOP_FIRST)
    settle(stopped, {1: READY})
    stopped.found = found(1, 2)
    stopped.step({1: READY}, 0.0)
    stopped.step({1: GONE}, 0.0)
    versions = Versions("m", VersionPolicy(), swap=STOP_FIRST)
    versions.recall(stopped.record())
    version = versions.get(2)
    assert version is not None
    assert (versions.stopped, versions.opens(version)) == ({1}, False)
    versions.found = found(1, 2)
    versions.step({2: UNFIT}, 0.0)
    assert phases(versions)[2] is FAILED

    ended = model(1)
    ended.unload(1)
    versions = Versions("m", VersionPolicy(), found=found(1))
    versions.recall(ended.record())
    settle(versions, {})
    assert phases(versions) == {}


def test_going_back_to_what_serves_is_over_at_once() -> None:
    """When that fails some day, what it was gone back from does not come."""
    versions = model(6, 7, policy=VersionPolicy(all=True))
    settle(versions, {})
    assert versions.unload(7, 6) == 6
    settle(versions, {})
    assert phases(versions) == {6: SERVING}
    settle(versions, {}, ends={6: BROKEN})
    assert (versions.unloaded, versions.aspired()) == ({7}, set())


def test_an_older_one_is_compared_too_where_the_newest_has_failed() -> None:
    """It takes over when the folder of what answers is gone."""
    versions = model(7, 8)
    versions.found = {**found(7), 9: Found("/m/9", "short", "saved_model.pb is cut short")}
    versions.step({8: READY}, 0.0)
    versions.step({8: READY}, 0.0)
    assert phases(versions) == {7: LOADING, 8: SERVING, 9: FAILED}
    assert versions.would_answer(7)


def test_going_back_is_not_held_up_by_what_is_newer_and_fails() -> None:
    """Whether it is tried again, or visibly broken: the order is for one version."""
    versions = model(7, 8)
    versions.found = {**found(7, 8), 9: Found("/m/9", "short", "saved_model.pb is cut short")}
    versions.step({8: READY}, 0.0)
    assert phases(versions) == {8: SERVING, 9: FAILED}
    assert versions.unload(8, 7) == 7
    versions.step({8: READY}, 0.0)
    assert phases(versions) == {7: LOADING, 8: SERVING, 9: FAILED}
    versions.step({7: READY, 8: READY}, 0.0)
    versions.step({7: READY, 8: READY}, 0.0)
    assert phases(versions) == {7: SERVING, 8: LEAVING, 9: FAILED}


@pytest.mark.parametrize("outcome", [READY, BROKEN])
def test_unloading_what_stands_in_for_one_that_failed(outcome: Fact) -> None:
    """That is tried again, for nothing else is to come; where it fails again, the order is off."""
    versions = model(6)
    versions.found = found(6, 7)
    settle(versions, {6: READY}, ends={7: Fact(ready=2, unfit="it has no output 'y'")})
    assert phases(versions) == {6: SERVING, 7: FAILED}
    assert versions.unload(6) == 7
    settle(versions, {6: READY}, ends={7: outcome})
    assert phases(versions) == ({7: SERVING} if outcome is READY else {6: SERVING, 7: FAILED})
    assert versions.unloaded == ({6} if outcome is READY else set())


def test_where_nothing_serves_stop_first_tries_again_too() -> None:
    """Nothing is stopped for it: at a first start, and where all workers were given up."""
    versions = Versions("m", VersionPolicy(), retries=Retries(1, 60.0), found=found(1), swap=STOP_FIRST)
    versions.step({}, 0.0)
    versions.step({1: BROKEN}, 0.0)
    assert (phases(versions), versions.due()) == ({1: FAILED}, 60.0)
    versions.step({}, 60.0)
    assert phases(versions) == {1: LOADING}


def test_what_was_stopped_says_what_the_next_one_has_to_take() -> None:
    """It takes no requests before that is known; one that is unfit never does, and what was stopped is loaded again."""
    versions = Versions("m", VersionPolicy(), found=found(1), swap=STOP_FIRST)
    settle(versions, {1: READY})
    versions.found = found(1, 2)
    versions.step({1: READY}, 0.0)
    versions.step({1: GONE}, 0.0)
    version = versions.get(2)
    assert version is not None
    assert versions.stopped == {1}
    assert not versions.opens(version)
    assert not versions.step({2: Fact(ready=2, unfit=None)}, 0.0)
    versions.step({2: Fact(ready=2, unfit="it has no input 'x'")}, 0.0)
    assert phases(versions) == {1: LOADING, 2: FAILED}
    assert not versions.opens(version), "its workers may be there for a while"
    first = versions.get(1)
    assert first is not None
    assert (versions.stopped, versions.opens(first)) == (set(), True)


def test_an_order_to_load_forgets_why_it_failed() -> None:
    """Whoever waits for it is not told of the time before, while another is loaded first."""
    versions = model(7)
    versions.found = found(7, 8)
    settle(versions, {7: READY}, ends={8: BROKEN})
    versions.found = found(7, 8, 9)
    versions.step({7: READY}, 0.0)
    assert phases(versions) == {7: SERVING, 8: FAILED, 9: LOADING}
    versions.load(8)
    version = versions.get(8)
    assert version is not None
    assert (version.phase, version.reason) == (FAILED, "")


def test_two_versions_that_failed_are_not_loaded_in_turns() -> None:
    """Each as often as it may be; the one before them serves."""
    versions = model(1)
    versions.found = found(1, 2)
    versions.step({1: READY}, 0.0)
    versions.step({1: READY, 2: BROKEN}, 0.0)
    versions.found = found(1, 2, 3)
    versions.step({1: READY}, 0.0)
    versions.step({1: READY, 3: BROKEN}, 0.0)
    assert not versions.step({1: READY}, 1.0)
    assert phases(versions) == {1: SERVING, 2: FAILED, 3: FAILED}


def test_nobody_asks_why_one_failed_that_the_policy_does_not_name() -> None:
    """Another policy names what serves: what had failed under the former is forgotten, and not loaded."""
    versions = model(7)
    versions.found = found(7, 8)
    settle(versions, {7: READY}, ends={8: BROKEN})
    assert phases(versions) == {7: SERVING, 8: FAILED}
    versions.policy = VersionPolicy(specific=(7,))
    settle(versions, {7: READY})
    assert phases(versions) == {7: SERVING}
    assert not versions.step({7: READY}, 1.0)


def test_a_version_with_a_worker_less_does_not_take_over() -> None:
    """Where the other has them all."""
    versions = model(1)
    versions.found = found(1, 2)
    versions.step({1: READY}, 0.0)
    versions.step({1: READY, 2: Fact(ready=1, reason="no memory")}, 0.0)
    assert phases(versions) == {1: SERVING, 2: FAILED}


@pytest.mark.parametrize("left", [(), (1,), (1, 3)])
def test_a_version_whose_folder_goes_while_it_is_loaded_is_given_up(left: tuple[int, ...]) -> None:
    """What cannot be read any more holds up nothing else; what serves stays, its folder deleted or not."""
    versions = model(1)
    versions.found = found(1, 2)
    versions.step({1: READY}, 0.0)
    versions.found = found(*left)
    assert versions.step({1: READY, 2: COMING}, 0.0)
    assert (phases(versions), routed(versions)) == ({1: SERVING, 2: LEAVING}, 1)
    versions.step({1: READY, 2: GONE}, 0.0)
    assert phases(versions) == {1: SERVING, **({3: LOADING} if 3 in left else {})}


def test_the_only_version_is_not_given_up_because_its_folder_is_gone() -> None:
    """Nothing else is to be loaded: what becomes of it says why there is none. Where there is another, that one is."""
    versions = Versions("m", VersionPolicy(), found=found(1))
    versions.step({}, 0.0)
    versions.found = {}
    assert not versions.step({1: Fact(coming=2)}, 0.0)
    versions.found = found(2)
    assert versions.step({1: Fact(coming=2)}, 0.0)
    assert phases(versions) == {1: LEAVING}


def test_a_successor_goes_on_where_the_pool_was() -> None:
    """With the same versions, in the same phases, and what was said by hand."""
    versions = model(1, 2)
    versions.load(1)
    versions.step({2: READY}, 0.0)
    successor = Versions("m", VersionPolicy(), retries=Retries(2, 60.0))
    successor.recall(versions.record())
    assert (phases(successor), successor.record()) == (phases(versions), versions.record())
    assert not successor.step({1: COMING, 2: READY}, 0.0)
    successor.step({1: READY, 2: READY}, 0.0)
    assert phases(successor) == {1: SERVING, 2: SERVING}


def test_a_successor_with_another_base_path_loads_nothing_from_the_former() -> None:
    """What has failed or leaves is seen there first; what serves or comes is as it was."""
    versions = Versions("m", VersionPolicy(all=True), retries=Retries(2, 60.0), found=found(1, 2, 3))
    settle(versions, {}, {3: BROKEN})
    versions.unload(2)
    versions.step({1: READY, 2: READY}, 0.0)
    assert phases(versions) == {1: SERVING, 2: LEAVING, 3: FAILED}
    for base_path, known in (("/other", {1}), ("/m", {1, 2, 3})):
        successor = Versions("m", VersionPolicy(all=True), retries=Retries(2, 60.0))
        successor.recall(versions.record(), base_path)
        assert (phases(successor), set(successor.found)) == (phases(versions), known)


class Swaps(RuleBasedStateMachine):
    """Folders come and go, loads succeed and fail: what served a client goes on doing so, or is on its way back to it."""

    @initialize(swap=st.sampled_from(["surge", ROLLING, STOP_FIRST]))
    def begins(self, swap: str) -> None:
        self.versions.swap = swap

    def __init__(self) -> None:
        super().__init__()
        self.versions = Versions("m", VersionPolicy(), retries=Retries(1, 10.0))
        self.facts: dict[int, Fact] = {}
        self.now = 0.0
        self.served = False
        # Whether there was somebody whose clients the next one would have.
        self.replaces = False

    def step(self) -> None:
        before = phases(self.versions)
        while self.versions.step(self.facts, self.now):
            after = phases(self.versions)
            began = [
                number
                for number, phase in after.items()
                if phase is LOADING and before.get(number) is not phase
            ]
            assert not began or LEAVING not in after.values(), "one comes while another goes"
            serves = {number for number, phase in after.items() if phase is SERVING}
            new = {number for number in serves if before.get(number) is LOADING}
            assert not any(self.facts[number].unfit for number in new) or not self.replaces, (
                "unfit, and served"
            )
            self.replaces = bool(serves) or bool(self.versions.stopped)
            before = after
            for version in self.versions:
                fact = self.facts.get(version.number, GONE)
                if version.phase is LOADING and (fact.reason or not fact.there):
                    self.facts[version.number] = Fact(coming=2)
                self.facts.setdefault(version.number, Fact(coming=2))
            there = {version.number for version in self.versions}
            self.facts = {number: fact for number, fact in self.facts.items() if number in there}

    @rule(numbers=st.sets(st.integers(1, 6)), again=st.booleans())
    def folders(self, numbers: set[int], again: bool) -> None:
        stamp = f"{self.now}" if again else "whole"
        self.versions.found = {number: Found(f"/m/{number}", stamp) for number in numbers}
        self.step()

    @rule(
        number=st.integers(1, 6),
        outcome=st.sampled_from([READY, COMING, BROKEN, Fact(ready=2, unfit="other")]),
    )
    def loads(self, number: int, outcome: Fact) -> None:
        version = self.versions.get(number)
        if version is not None and version.phase is LOADING:
            self.facts[number] = outcome
            self.step()
            if self.facts.get(number) == outcome and outcome.unfit:
                self.facts[number] = READY

    @rule(number=st.integers(1, 6), fits=st.booleans())
    def compares(self, number: int, fits: bool) -> None:
        """What serves beside another takes its place only where it fits, or nobody else serves, or somebody says so."""
        version, answers = self.versions.get(number), self.versions.routed()
        if version is None or version.phase is not SERVING or not version.beside or answers is None:
            return
        is_by_hand = self.versions.is_by_hand(answers.number, version)
        fits = fits or is_by_hand
        self.facts[number] = READY if fits else UNFIT
        self.step()
        if not fits:
            assert version is answers or self.versions.routed() is not version
            self.facts[number] = Fact(ready=2, unfit=None)

    @rule(number=st.integers(1, 6), load=st.booleans())
    def by_hand(self, number: int, load: bool) -> None:
        """To load and to unload; a model is not unloaded as a whole here."""
        if load:
            self.versions.load(number)
        elif chosen(set(self.versions.found) - self.versions.unloaded - {number}, self.versions.policy):
            self.versions.unload(number)
        self.step()

    @rule()
    def goes_back(self) -> None:
        """As the order does."""
        answers = self.versions.routed()
        older = {number for number in self.versions.found if answers and number < answers.number}
        if answers and (to := chosen(older - self.versions.unloaded, self.versions.policy)):
            self.versions.unload(answers.number, max(to))
        self.step()

    @rule()
    def leaves(self) -> None:
        """What is to, and what has failed beside another that serves."""
        gone = {LEAVING, FAILED} if self.versions.routed() else {LEAVING}
        for version in self.versions:
            if version.phase in gone:
                self.facts[version.number] = GONE
        self.step()

    @rule(seconds=st.floats(0, 30))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.step()

    @precondition(lambda self: self.served)
    @invariant()
    def somebody_serves(self) -> None:
        """Or what is to is on its way; where one stops first, and there is nothing then that can be loaded, nobody does."""
        if self.versions.swap != STOP_FIRST:
            assert self.versions.routed() is not None
            return
        now = set(phases(self.versions).values())
        assert now & {SERVING, LOADING, LEAVING} or not self.versions.aspired()

    @invariant()
    def one_comes_at_a_time(self) -> None:
        found = list(phases(self.versions).values())
        assert found.count(LOADING) <= 1
        assert found.count(SERVING) <= 2 + len(self.versions.loaded)
        self.served = self.served or SERVING in found

    @invariant()
    def nothing_is_left_to_do(self) -> None:
        assert not self.versions.step(self.facts, self.now)


Swaps.TestCase.settings = hypothesis_settings(max_examples=100, stateful_step_count=30)
TestSwaps = Swaps.TestCase
