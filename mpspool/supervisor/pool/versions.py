"""Which versions of a model have workers, and which of them answers. Pure.

TensorFlow Serving's aspired versions, with one difference: a version is not loaded into a process that serves, it has
workers of its own. One version of a model is loaded at a time; it takes requests once all its workers are settled, and
what it replaces finishes what it has, and goes. So there are two sets of workers at most beside those that stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from mpspool.core.settings import BatchingSettings, VersionPolicy
from mpspool.core.states import VERSION_MOVES, Lifecycle, VersionPhase

SURGE, ROLLING, STOP_FIRST = "surge", "rolling", "stop_first"
# From one look for room to the next.
_ROOM_S = 1.0


@dataclass(frozen=True, slots=True)
class Found:
    """A version's folder.

    Attributes:
        path: where it is.
        stamp: changes with what is in it.
        wrong: why it cannot be served, "" where it looks whole.
        batching: how its requests are joined, where versions say so in their folders.
    """

    path: str
    stamp: str = ""
    wrong: str = ""
    batching: BatchingSettings | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """How the workers of a version fare.

    Attributes:
        ready: of its slots, how many take requests.
        coming: how many may yet.
        reason: why a slot was given up, "" where none was.
        unfit: why it cannot take the place of what serves, "" where it can; None while nobody knows.
        there: whether any slot of it is left.
    """

    ready: int = 0
    coming: int = 0
    reason: str = ""
    unfit: str | None = ""
    there: bool = True


class VersionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A version as it is kept on disk for the pool's successor. Times are CLOCK_MONOTONIC."""

    number: int
    path: str
    stamp: str = ""
    phase: VersionPhase = VersionPhase.LOADING
    reason: str = ""
    failures: int = 0
    due: float | None = None
    unfit: bool = False
    warmup: str = ""
    beside: bool = False
    batching: BatchingSettings | None = None


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Which version answers requests that name none, as somebody has said by hand.

    Attributes:
        weights: by number, the share of those requests; empty for one that answers them all.
        labels: version labels: the number each stands for, in place of what the configuration says of that label.
        metadata: (key, value, number): requests with that metadata go to that version, whatever the weights.
    """

    weights: dict[int, int] = {}
    labels: dict[str, int] = {}
    metadata: list[tuple[str, str, int]] = []

    def numbers(self) -> set[int]:
        """The versions that it names."""
        return {*self.weights, *self.labels.values(), *(number for _, _, number in self.metadata)}

    def over(self, given: Route) -> Route:
        """This one, with what is new."""
        rules = {(key, value): number for key, value, number in (*self.metadata, *given.metadata)}
        return Route(
            weights=given.weights or self.weights,
            labels=self.labels | given.labels,
            metadata=[(*rule, number) for rule, number in rules.items()],
        )

    def under(self, before: Mapping[str, int], now: Mapping[str, int]) -> Route:
        """What holds of it under other labels of the configuration: those that it has moved since are its own again."""
        moved = {label for label in self.labels if before.get(label) != now.get(label)}
        labels = {label: number for label, number in self.labels.items() if label not in moved}
        return Route(weights=self.weights, labels=labels, metadata=self.metadata)

    def without(self, numbers: Collection[int]) -> Route:
        """What is left of it when those versions have gone; weights mean something together only."""
        return Route(
            weights={} if set(numbers) & self.weights.keys() else self.weights,
            labels={label: number for label, number in self.labels.items() if number not in numbers},
            metadata=[rule for rule in self.metadata if rule[2] not in numbers],
        )


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The versions of a model, and what was asked for by hand.

    Attributes:
        loaded: by hand, whatever the policy says.
        unloaded: by hand.
        off: by hand, in every version.
        labels: of the configuration, at the time.
        instead: of those unloaded, what is to come first.
        kept: failed, and are not forgotten while another serves: see Versions.
        ended: unloaded, and nothing was to come in their place.
        stopped, complete: as Versions has them.
    """

    versions: list[VersionRecord] = []
    loaded: list[int] = []
    unloaded: list[int] = []
    off: bool = False
    route: Route = Route()
    labels: dict[str, int] = {}
    instead: dict[int, int] = {}
    kept: dict[int, int] = {}
    ended: list[int] = []
    stopped: list[int] = []
    complete: bool = False


class Records(msgspec.Struct, frozen=True):
    """The file of all models' records, by name."""

    models: dict[str, ModelRecord] = {}


# Its name in the run folder's settings.
RECORDS = "versions"


@dataclass(frozen=True, slots=True)
class Retries:
    """How often, and how long after a failure, a version is loaded again; TensorFlow Serving's.

    Attributes:
        times: after the first load.
        interval_s: between two loads.
    """

    times: int = 5
    interval_s: float = 60.0


class Version:
    """One version of a model.

    Attributes:
        number: of it.
        found: its folder, as it was when it was loaded last.
        reason: why it was not loaded, is not any more, or does not answer what names no version; "" while all is well.
        failures: loads in a row that failed.
        due: when it is loaded again; None where it is not.
        unfit: it failed because clients of what it was to replace could not be its clients.
        warmup: another version's recorded requests, with which its workers are warmed; "" for none.
        beside: it was loaded for requests that ask for it: whether it could take those of what answers the others nobody has asked.
    """

    def __init__(self, name: str, number: int, found: Found, record: VersionRecord | None = None) -> None:
        record = record or VersionRecord(number=number, path=found.path, stamp=found.stamp)
        self._life = Lifecycle(f"{name}@{number}", VERSION_MOVES, record.phase)
        self.number = number
        self.found = found
        self.reason = record.reason
        self.failures = record.failures
        self.due = record.due
        self.unfit = record.unfit
        self.warmup = record.warmup
        self.beside = record.beside

    @property
    def phase(self) -> VersionPhase:
        return self._life.state

    def to(self, phase: VersionPhase, reason: str = "") -> None:
        self._life.to(phase, reason or "as it should be")
        self.reason = reason

    def record(self) -> VersionRecord:
        return VersionRecord(
            number=self.number,
            path=self.found.path,
            stamp=self.found.stamp,
            phase=self.phase,
            reason=self.reason,
            failures=self.failures,
            due=self.due,
            unfit=self.unfit,
            warmup=self.warmup,
            beside=self.beside,
            batching=self.found.batching,
        )


@dataclass(slots=True)
class Versions:
    """The versions of one model.

    Attributes:
        name: the model's.
        policy: which of those that there are should be served.
        quorum: READY workers that make a version AVAILABLE.
        retries: of loads that fail.
        swap: how one version takes the place of another: "surge", "rolling" or "stop_first".
        no_room: says why a version of that number finds no room beside all that is there; "" where it does.
        found: the folders there are, by number, as they were last seen.
        loaded, unloaded: by hand: what is served, or not, whatever the policy says.
        off: no version of it is wanted.
        route: by hand.
        stopped: what has made way for the version that is being loaded, and is loaded again where that fails.
        complete: it has been loaded for the first time, with all that a label stands for.
    """

    name: str
    policy: VersionPolicy
    quorum: int = 1
    retries: Retries = field(default_factory=Retries)
    swap: str = SURGE
    no_room: Callable[[int], str] = lambda _number: ""
    found: Mapping[int, Found] = field(default_factory=dict)
    loaded: set[int] = field(default_factory=set)
    unloaded: set[int] = field(default_factory=set)
    off: bool = False
    route: Route = field(default_factory=Route)
    _versions: dict[int, Version] = field(default_factory=dict)
    # Unloaded by hand when there was nothing to come in their place.
    _ended: set[int] = field(default_factory=set)
    stopped: set[int] = field(default_factory=set)
    complete: bool = False
    # Of those unloaded by hand what is to be served first: where it fails, the order is off.
    _instead: dict[int, int] = field(default_factory=dict)
    # For their failures an order by hand came to nothing, and this one serves on: why is told until another does, or is asked for.
    _kept: dict[int, int] = field(default_factory=dict)

    # -- what it was, and is ----------------------------------------------------------------------

    def recall(self, record: ModelRecord, base_path: str = "") -> None:
        """Goes on from what a pool before this one has recorded.

        Args:
            record: of it.
            base_path: where versions are now, "" for nowhere else than then: what is there under the number of one that has failed
                or leaves is to be seen before it is loaded.
        """
        self.loaded, self.unloaded, self.off = set(record.loaded), set(record.unloaded), record.off
        self.route = record.route
        self._kept, self._instead = dict(record.kept), dict(record.instead)
        self._ended, self.stopped = set(record.ended), set(record.stopped)
        self.complete = record.complete
        self.found = {
            one.number: Found(one.path, one.stamp, batching=one.batching) for one in record.versions
        }
        for one in record.versions:
            self._versions[one.number] = Version(self.name, one.number, self.found[one.number], one)
        if base_path:
            self.found = {
                version.number: version.found
                for version in self
                if version.phase in (VersionPhase.LOADING, VersionPhase.SERVING)
                or Path(version.found.path).parent == Path(base_path)
            }

    def record(self) -> ModelRecord:
        return ModelRecord(
            versions=[version.record() for version in self],
            loaded=sorted(self.loaded),
            unloaded=sorted(self.unloaded),
            off=self.off,
            route=self.route,
            instead=self._instead,
            kept=self._kept,
            ended=sorted(self._ended),
            stopped=sorted(self.stopped),
            complete=self.complete,
        )

    def __iter__(self) -> Iterator[Version]:
        return iter([self._versions[number] for number in sorted(self._versions)])

    def get(self, number: int) -> Version | None:
        return self._versions.get(number)

    def routed(self) -> Version | None:
        """What answers a request that names no version, where no weights say otherwise.

        The newest of those that the policy means; what was loaded by hand beside them only where none of them serves. One that has yet
        to be compared with what answers is passed over while there is another.
        """
        serving = {version.number for version in self._serving()}
        compared = {version.number for version in self._serving() if not version.beside}
        answers = self._first_of(compared or serving) if serving else None
        return None if answers is None else self._versions[answers]

    def would_answer(self, number: int) -> bool:
        """Whether requests that name no version would be for this one if it served."""
        return number == self._first_of({version.number for version in self._serving()} | {number})

    def _first_of(self, serving: set[int]) -> int:
        return max(serving & self._meant() or serving & self.aspired() or serving)

    def about_to_answer(self) -> int | None:
        """What is to take over from what answers, and has yet to be loaded or compared; None for nothing."""
        routed = self.routed()
        return next(
            (
                number
                for number in self.aspired()
                if self.would_answer(number) and routed is not self.get(number)
            ),
            None,
        )

    def is_by_hand(self, old: int, new: Version) -> bool:
        """Whether a version takes the place of another because somebody has ordered so: it is older, or has served beside it."""
        return old in self.unloaded and (new.number < old or new.phase is VersionPhase.SERVING)

    def gives_its_slots(self) -> Version | None:
        """What goes when the version that is being loaded has come; None where all stay."""
        going = [version for version in self._serving() if version.number not in self.aspired()]
        return max(going, key=lambda version: version.number, default=None)

    def failed(self) -> set[int]:
        """Those that could not be served."""
        return {version.number for version in self if version.phase is VersionPhase.FAILED}

    def weight(self, version: Version) -> int:
        """Its share of the requests that name no version, beside the others'; 0 for none."""
        if self.route.weights:
            return self.route.weights.get(version.number, 0)
        return int(version is self.routed())

    def opens(self, version: Version) -> bool:
        """Whether it takes requests as soon as enough of its workers are READY: nobody else does."""
        if version.phase in (VersionPhase.LOADING, VersionPhase.FAILED):
            return not self._serving() and not version.unfit and not self.stopped - {version.number}
        return version.phase is VersionPhase.SERVING

    def due(self) -> float | None:
        """When the next one is to be loaded again; None for none."""
        dues = [version.due for version in self._versions.values() if version.due is not None]
        return min(dues, default=None)

    def aspired(self) -> set[int]:
        """Which of those there are should be served: where one that is meant has failed, the one before it."""
        failed = {
            version.number
            for version in self._versions.values()
            if version.phase is VersionPhase.FAILED and not self._is_mended(version)
        }
        return self._meant(failed) | (self.loaded_and_found() - failed)

    def to_come(self) -> set[int]:
        """Which of those are not served yet."""
        return self.aspired() - {version.number for version in self._serving()}

    def _is_mended(self, failed: Version) -> bool:
        """Whether other files are there by now than those that failed, and look whole."""
        found = self.found.get(failed.number)
        return found is not None and not found.wrong and _is_another(failed, found)

    def wanted(self) -> set[int]:
        """What should be served, and where all of it has failed, what that is."""
        return self.aspired() or self._meant() | self.loaded_and_found()

    def loaded_and_found(self) -> set[int]:
        """What was loaded by hand, and is there."""
        return set() if self.off else self.loaded & set(self.found)

    def _meant(self, without: Collection[int] = ()) -> set[int]:
        """What the policy means of those that there are."""
        return set() if self.off else chosen(set(self.found) - self.unloaded - set(without), self.policy)

    def _tried(self) -> set[int]:
        """What is served, or loaded as often as it may be."""
        return (
            self._meant()
            | self.aspired()
            | self.loaded_and_found()
            | (set(self._instead.values()) & self.found.keys())
        )

    # -- by hand ----------------------------------------------------------------------------------

    def orders(self) -> dict[str, Any]:
        """What was said by hand and holds, for the status; empty where nothing was."""
        if self.off:
            return {"off": True}
        said = {"loaded": sorted(self.loaded), "unloaded": sorted(self.unloaded)}
        return {what: numbers for what, numbers in said.items() if numbers}

    def wishes(self, what: str, number: int | None) -> tuple[set[int], set[int]]:
        """What would be loaded and unloaded by hand after "load" or another order; None for all versions."""
        if number is None:
            return (set(), self.unloaded) if what != "load" else (self.loaded, set())
        if what == "load":
            return self.loaded | {number}, self.unloaded - {number}
        return self.loaded - {number}, self.unloaded | {number}

    def load(self, number: int | None) -> None:
        """Has a version served whatever the policy says; None for those that the policy means."""
        self.loaded, self.unloaded = self.wishes("load", number)
        self.off = False
        self._ended -= self._ended if number is None else {number}
        self._kept.clear()
        self._instead = {old: new for old, new in self._instead.items() if number not in (None, old)}
        self.try_again(None if number is None else {number})

    def try_again(self, numbers: Collection[int] | None = None) -> None:
        """Has what failed loaded again at once, by an order or with other settings; None for all that is wanted.

        Why it failed is nobody's answer any more.
        """
        wanted = self._tried() if numbers is None else numbers
        for version in self._versions.values():
            if version.phase is VersionPhase.FAILED and version.number in wanted:
                version.failures, version.due, version.reason = 0, 0.0, ""

    def unload(self, number: int | None, to: int | None = None) -> int | None:
        """Has a version no longer served, whatever the policy says; None for the model.

        What is to come in its place is loaded first, also where that has failed before. Where it fails, the order is off: the
        version serves on, and is wanted as before.

        Args:
            number: the version.
            to: what is to come; None for what the policy means.

        Returns:
            What is to come; None where nothing is.
        """
        self.loaded, self.unloaded = self.wishes("unload", number)
        self.off = self.off or number is None
        self._kept.clear()
        if number is None:
            self._instead.clear()
            return None
        if to is None and number in {version.number for version in self._serving()}:
            serving = {version.number for version in self._serving()} - {number}
            coming = self.aspired() or self._meant()
            to = None if serving & coming else max(coming, default=None)
        if to is not None and to not in {version.number for version in self._serving()}:
            self._instead[number] = to
            self.try_again({to})
        if not self.wanted():
            self._ended.add(number)
        return to

    def why_no_route(self, numbers: Collection[int]) -> str:
        """Why requests cannot be sent to these versions, "" where they can."""
        serving = sorted(version.number for version in self._serving())
        missing = sorted(set(numbers) - set(serving))
        if not missing:
            return ""
        there = ", ".join(map(str, serving)) or "none"
        yet = " yet, try again once it is AVAILABLE" if self.aspired().issuperset(missing) else ""
        return f"version {', '.join(map(str, missing))} of {self.name} is not served{yet}; what is served: {there}"

    # -- what is next -----------------------------------------------------------------------------

    def step(self, facts: Mapping[int, Fact], now: float) -> bool:
        """Takes every version as far as it can go now. Returns whether one has moved.

        Args:
            facts: how the workers of each version fare, those without any left out.
            now: seconds of the clock that `due` goes by.
        """
        moved = False
        # What answers by what comes of it does not have to stay any more.
        for version in sorted(self._versions.values(), key=lambda version: not version.beside):
            moved |= self._judge(version, facts.get(version.number, Fact(there=False)), now)
        if gone := self.route.numbers() - {version.number for version in self._serving()}:
            self.route = self.route.without(gone)
            moved = True
        return self._begin(facts, now) or moved

    def _judge(self, version: Version, fact: Fact, now: float) -> bool:
        match version.phase:
            case VersionPhase.LOADING:
                return self._judge_loading(version, fact, now)
            case VersionPhase.SERVING:
                return self._judge_serving(version, fact, now)
            case VersionPhase.LEAVING:
                if not fact.there:
                    del self._versions[version.number]
                return not fact.there
            case VersionPhase.FAILED:
                if version.number not in self.found:  # another is under its number when it is there again
                    version.found = Found(version.found.path)
                if self._is_past(version):
                    version.to(VersionPhase.LEAVING)
                    return True
        return False

    def _is_past(self, version: Version) -> bool:
        """Whether nobody asks any more why a version failed; else it would be loaded again as one that is new."""
        if version.number in self._kept and version.number in self.found:
            return False
        meant = self._meant()
        newer = any(other.number > version.number and other.number in meant for other in self._serving())
        if self._is_unloaded(version):
            return True
        if version.number not in self.found:
            return bool(self.found)
        # Of a policy that names versions none takes the place of another that fails.
        return (newer or bool(self.policy.specific)) and version.number not in meant | self.loaded

    def _judge_loading(self, version: Version, fact: Fact, now: float) -> bool:
        if self._is_unloaded(version):
            version.to(VersionPhase.LEAVING, "not wanted any more")
            self._instead = {old: new for old, new in self._instead.items() if new != version.number}
            return True
        serving = self._serving()
        if version.number not in self.found and (serving or self.aspired()):
            version.to(VersionPhase.LEAVING, "its folder is gone")
            self._take_back(version)
            return True
        if serving and fact.reason:
            self.fail(version, fact.reason, now)
            return True
        if fact.coming and (fact.ready < self.quorum or (serving and not self._is_half_there(fact))):
            return False
        if fact.ready < self.quorum:
            if fact.reason:
                self.fail(version, fact.reason, now)
            return bool(fact.reason)  # else its slots have yet to be made
        if serving or self.stopped:
            if fact.unfit is None:
                return False
            if fact.unfit:
                version.unfit = True
                self.fail(version, fact.unfit, now, again=False)
                return True
        version.failures, version.due = 0, None
        version.beside = bool(serving) and not self.would_answer(version.number)
        version.to(VersionPhase.SERVING)
        self.stopped.clear()
        self._kept = {failed: old for failed, old in self._kept.items() if old == version.number}
        self._instead = {old: new for old, new in self._instead.items() if new != version.number}
        return True

    def _is_half_there(self, fact: Fact) -> bool:
        """Slot by slot, a version takes over when it has as many workers as it takes from the other."""
        return self.swap == ROLLING and fact.ready >= fact.coming

    def _judge_serving(self, version: Version, fact: Fact, now: float) -> bool:
        if not fact.ready and not fact.coming and fact.reason:
            self.fail(version, fact.reason, now)
            return True
        if self.off or version.number in self._ended:
            version.to(VersionPhase.LEAVING, "not wanted any more")
            return True
        if version.beside and self._compare(version, fact):
            return True
        # That its folder is gone, or what was to come in its place has failed, does not end what is served.
        aspired = self.aspired()
        if not aspired or version.number in aspired or version is self.routed():
            return False
        version.to(VersionPhase.LEAVING, "another is served in its place")
        return True

    def _compare(self, version: Version, fact: Fact) -> bool:
        """Whether one that was loaded beside what answers is to answer now, and can. Returns whether that is news."""
        why = ""
        if self.would_answer(version.number):
            if version is not self.routed():
                if fact.unfit is None:
                    return False
                why = fact.unfit
            version.beside = bool(why)
        is_news = why != version.reason or not version.beside
        version.reason = why
        return is_news

    def _is_unloaded(self, version: Version) -> bool:
        """By hand."""
        return self.off or (version.number in self.unloaded and version.number not in self.loaded)

    def fail(self, version: Version, reason: str, now: float, *, again: bool = True) -> None:
        """It cannot be served.

        Args:
            version: LOADING or SERVING.
            reason: why.
            now: the time.
            again: it may be worth another try.
        """
        version.failures += 1
        left = again and version.failures <= self.retries.times
        version.due = now + self.retries.interval_s if left else None
        was_coming = version.phase is VersionPhase.LOADING
        version.to(VersionPhase.FAILED, reason)
        if was_coming:
            self.stopped.clear()
            self._take_back(version)

    def _take_back(self, failed: Version) -> None:
        """What was to go by hand for a version that cannot come is wanted as before."""
        if back := {old for old, new in self._instead.items() if new == failed.number}:
            self.unloaded -= back
            self._instead = {old: new for old, new in self._instead.items() if old not in back}
            self._kept[failed.number] = max(back)
            failed.due = None

    def _begin(self, facts: Mapping[int, Fact], now: float) -> bool:
        """Begins to load the newest that is wanted and not there, if no other is on its way in or out."""
        if any(v.phase in (VersionPhase.LOADING, VersionPhase.LEAVING) for v in self._versions.values()):
            return False
        aspired, routed = self.aspired(), self.routed()
        if any(v.number not in aspired and v is not routed for v in self._serving()):
            return False  # it is about to leave
        for number in sorted(self._tried(), reverse=True):
            known, found = self._versions.get(number), self.found[number]
            if known is None and found.wrong:
                known = self._versions[number] = Version(self.name, number, found)
                self.fail(known, found.wrong, now, again=False)
                return True
            if known is not None and (
                known.phase is not VersionPhase.FAILED or not self._again(known, found, now)
            ):
                continue
            if known is not None and number in facts and facts[number].there and _is_another(known, found):
                # Its workers have the former files, and would answer beside those that have these.
                if self._serving():
                    return False  # they go in any case
                known.to(VersionPhase.LEAVING, "other files are there by now")
                return True
            if self._gives_way(number):
                return True
            takes_places = self.swap == ROLLING and self._in_the_way(number)
            if not takes_places and (why := self.no_room(number)):
                if self._wait_for_room(number, found, why, now):
                    return True
                continue
            self._load(number, found)
            return True
        return False

    def _wait_for_room(self, number: int, found: Found, why: str, now: float) -> bool:
        """It is FAILED until there is some, however often it has been tried. Returns whether that is news."""
        version = self._versions.setdefault(number, Version(self.name, number, found))
        is_new = version.phase is not VersionPhase.FAILED
        if is_new:
            version.to(VersionPhase.FAILED, why)
        version.found, version.reason, version.due = found, why, now + _ROOM_S
        return is_new

    def _gives_way(self, to: int) -> bool:
        """Where there is no room for two: whether what is served leaves first."""
        if self.swap != STOP_FIRST:
            return False
        leaving = self._in_the_way(to)
        for version in leaving:
            version.to(VersionPhase.LEAVING, "stopped before another is loaded in its place")
        self.stopped |= {version.number for version in leaving}
        return bool(leaving)

    def _in_the_way(self, to: int) -> list[Version]:
        """What is served and goes when this one has come."""
        stays = self._meant() | self.loaded_and_found()
        return [version for version in self._serving() if version.number not in stays - {to}]

    def _load(self, number: int, found: Found) -> None:
        known = self._versions.get(number)
        if known is None:
            self._versions[number] = Version(self.name, number, found)
        else:
            known.found, known.due, known.unfit = found, None, False
            known.to(VersionPhase.LOADING)

    def _again(self, version: Version, found: Found, now: float) -> bool:
        if found.wrong:  # however often it is asked for, nobody makes way for it
            version.found, version.reason, version.due = found, found.wrong, None
            self._take_back(version)
            return False
        if _is_another(version, found):
            version.failures = 0
            return True
        if version.due is None or now < version.due:
            return False
        if version.failures and self.swap == STOP_FIRST and self._in_the_way(version.number):
            version.due = None  # it would be to stop again what serves by now
            return False
        return True

    def _serving(self) -> list[Version]:
        return [version for version in self._versions.values() if version.phase is VersionPhase.SERVING]


def _is_another(version: Version, found: Found) -> bool:
    """Whether there are other files than those that were loaded last."""
    last = version.found
    return bool(last.wrong) or (last.path, last.stamp) != (found.path, found.stamp)


def chosen(there: Collection[int], policy: VersionPolicy) -> set[int]:
    """Which of these versions a policy means."""
    if policy.specific:
        return set(policy.specific).intersection(there)
    return set(there) if policy.all else set(sorted(there)[-policy.latest :])
