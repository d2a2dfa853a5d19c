"""The model versions of a pool: what is found of them, which have slots, and what their slots are.

A thin shell around versions.py: it looks at the base paths, keeps the record for the pool's successor, and has the
settings of every version at hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from mpspool.core import log, settings
from mpspool.core.control import Message
from mpspool.core.ids import ModelVersion, WorkerId
from mpspool.core.rundir import RunDir
from mpspool.core.settings import ModelSettings, PoolSettings, SlotSettings, VersionPolicy
from mpspool.core.states import VersionPhase
from mpspool.supervisor.pool.base_paths import BasePath
from mpspool.supervisor.pool.kept import Kept
from mpspool.supervisor.pool.status import Servable, places
from mpspool.supervisor.pool.version_batching import BatchingFiles
from mpspool.supervisor.pool.versions import (
    RECORDS,
    ROLLING,
    STOP_FIRST,
    Fact,
    Found,
    ModelRecord,
    Records,
    Retries,
    Route,
    Version,
    Versions,
    chosen,
)
from mpspool.supervisor.version_folders import WARMUP_FILE, stamp

logger = log.get("versions")

Places = dict[WorkerId, tuple[ModelSettings, SlotSettings]]

# A folder counts where nothing has changed from one to the next.
_LOOKS = 2
_BETWEEN_S = 0.5


class Servables:
    """The versions of every model.

    Args:
        look: has the pool reconcile soon.
        former: the slots that a pool before this one has left, as their workers were started. What of them the
            configuration does not have is `surplus`; a model that it does not have leaves.

    Attributes:
        places: every slot that there is now, with the version that it is for.
        surplus: of these, what the configuration does not have, or has for a while only.
    """

    def __init__(
        self, run: RunDir, config: PoolSettings, look: Callable[[], None], former: Places | None = None
    ) -> None:
        self._run = run
        self._record = Kept(run.settings_file(RECORDS))
        self._config = config
        self._look = look
        self._models = {model.name: model for model in config.models}
        self.places: Places = {}
        self.surplus: set[WorkerId] = set()
        records = self._recall()
        self._taken = self._take_out(former or {}, records)
        self._versions = {
            name: _versions(model, config, functools.partial(self._no_room, name))
            for name, model in self._models.items()
        }
        for name, versions in self._versions.items():
            if name in records:
                versions.recall(records[name], self._models[name].base_path)
                versions.route = versions.route.under(records[name].labels, self._models[name].labels)
            else:
                versions.found = {self._models[name].version: _found(self._models[name])}
            versions.off = versions.off or name in self._taken
        self._watched = {model.name: BasePath(model.base_path) for model in config.models if model.base_path}
        self._batching = {
            name: BatchingFiles(name, self._models[name].version_batching) for name in self._watched
        }
        # One for each: a file system that hangs holds up nobody else.
        self._readers = {name: ThreadPoolExecutor(1, thread_name_prefix="versions") for name in self._watched}
        self._looking = {name: asyncio.Lock() for name in self._watched}
        self._looks = dict.fromkeys(self._watched, 0)
        self._unread: dict[str, str] = {}
        # Of each model, the versions with recorded requests, as the last look has found them.
        self._recorded: dict[str, set[int]] = {}
        self._begin(former or {})

    def _take_out(self, former: Places, records: Mapping[str, ModelRecord]) -> set[str]:
        """Of the models that have slots, those that are not configured any more; `_models` has them, too, without slots."""
        found = {
            worker.model: msgspec.structs.replace(model, slots=[], base_path="")
            for worker, (model, _) in former.items()
            if worker.model not in self._models and worker.model in records and records[worker.model].versions
        }
        self._models |= found
        return set(found)

    def _begin(self, former: Places) -> None:
        """The slots of what a pool before this one has recorded, or of what is served first."""
        for versions in self._versions.values():
            if not list(versions):
                versions.step({}, 0.0)
        self.places.update(
            places(
                self.settings(model) for model, version in self if version.phase is not VersionPhase.FAILED
            )
        )
        served = {model for model, version in self if version.phase is not VersionPhase.FAILED}
        for worker, place in former.items():
            if worker not in self.places and worker.model_version in served:
                self.places[worker] = place
                self.surplus.add(worker)
        self._save()

    # -- what there is ----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[tuple[ModelVersion, Version]]:
        """Every version that is not gone, model by model, oldest first."""
        for name, versions in self._versions.items():
            for version in versions:
                yield ModelVersion(name, version.number), version

    def of(self, model: str) -> Versions:
        """Raises KeyError."""
        return self._versions[model]

    def all(self) -> list[Servable]:
        """Every version that is not gone, as the status and the router have it."""
        return [
            Servable(
                self.settings(model),
                version.phase,
                version.reason,
                opens=self._versions[model.name].opens(version),
                weight=self._versions[model.name].weight(version),
                route=self._versions[model.name].route,
                to_come=self._to_come(model.name),
            )
            for model, version in self
        ]

    def _to_come(self, name: str) -> list[int]:
        """Until a model is complete, those that a label stands for and that are to be served, or may be: Servable.to_come."""
        versions = self._versions[name]
        if versions.complete:
            return []
        labelled = set(self._models[name].labels.values())
        there = versions.to_come()
        if self._looks.get(name, _LOOKS) < _LOOKS:  # at first no more is known than what is served first
            there |= labelled - {version.number for version in versions}
        return sorted(labelled & there)

    def orders(self) -> dict[str, Message]:
        """Of each model of which something was said by hand, as Versions.orders()."""
        found = {
            name: versions.orders() for name, versions in self._versions.items() if name not in self._taken
        }
        return {name: orders for name, orders in found.items() if orders}

    def settings(self, model: ModelVersion) -> ModelSettings:
        """Of a version that is there."""
        version = self._versions[model.name].get(model.version)
        assert version is not None
        mine = self._models[model.name]
        batching = version.found.batching if mine.version_batching else mine.batching
        return msgspec.structs.replace(
            mine, version=model.version, path=version.found.path, batching=batching, warmup=version.warmup
        )

    def to_replace(self, model: ModelVersion) -> ModelVersion | None:
        """Whose requests that name no version this one would answer, once it is loaded or compared; None for nobody's."""
        versions = self._versions[model.name]
        version, routed = versions.get(model.version), versions.routed()
        if version is None or version is routed or not versions.would_answer(version.number):
            return None
        if version.phase is not VersionPhase.LOADING and not version.beside:
            return None
        number = routed.number if routed else max(versions.stopped - {version.number}, default=None)
        return None if number is None else ModelVersion(model.name, number)

    def is_by_hand(self, before: ModelVersion, after: ModelVersion) -> bool:
        """Whether somebody has ordered the one in the place of the other."""
        versions = self._versions[after.name]
        version = versions.get(after.version)
        return version is not None and versions.is_by_hand(before.version, version)

    def stops_first(self) -> Iterator[ModelVersion]:
        """The versions that serve, and would leave before what is to replace them is loaded."""
        for model, version in self:
            if self._versions[model.name].swap == STOP_FIRST and version.phase is VersionPhase.SERVING:
                yield model

    def turns(self) -> list[tuple[ModelVersion, ModelVersion]]:
        """Of each model that changes slot by slot, the version that has the slots, and the one that takes them over."""
        found = []
        for name, versions in self._versions.items():
            if versions.swap != ROLLING:
                continue
            loading = [version for version in versions if version.phase is VersionPhase.LOADING]
            leaving = [version for version in versions if version.phase is VersionPhase.LEAVING]
            before = leaving[0] if leaving else versions.gives_its_slots()
            after = loading[0] if loading else versions.routed()
            if before is not None and after is not None and before is not after:
                found.append((ModelVersion(name, before.number), ModelVersion(name, after.number)))
        return found

    # -- what is next -----------------------------------------------------------------------------

    def step(self, facts: Mapping[ModelVersion, Fact], now: float) -> bool:
        """Takes every version as far as it can go now; `places` has the slots of those that are there.

        Returns:
            Whether one has moved: then `facts` are of another state than this.
        """
        before = {model: (version.phase, version.reason) for model, version in self}
        routes = {name: versions.route for name, versions in self._versions.items()}
        moved = False
        for name, versions in self._versions.items():
            mine = {model.version: fact for model, fact in facts.items() if model.name == name}
            moved |= versions.step(mine, now)
            if not versions.complete and versions.routed() is not None and not self._to_come(name):
                versions.complete = moved = True
        if not moved:
            self._record.again()
            return False
        for model, version in self:
            phase, reason = before.get(model, (None, ""))
            if phase is not version.phase:
                _say(model, version)
            elif phase is VersionPhase.SERVING and reason != version.reason:
                _say_compared(model, version)
        for name, versions in self._versions.items():
            if versions.route != routes[name]:
                logger.info("route, without what has gone", model=name, **msgspec.to_builtins(versions.route))
        self._place()
        self._forget_taken()
        self._save()
        return True

    def _forget_taken(self) -> None:
        """Models that are not configured any more, and have gone."""
        for name in [name for name in self._taken if not list(self._versions[name])]:
            self._taken.discard(name)
            del self._versions[name], self._models[name]
            logger.info("taken out", model=name)

    def _place(self) -> None:
        """Gives every version that is loaded its slots, as it is loaded now; they stay until they are vacated."""
        for model, version in self:
            if version.phase is not VersionPhase.LOADING:
                continue
            mine = places([self.settings(model)])
            if any(self.places.get(worker) != place for worker, place in mine.items()):
                recorded = self._recorded.get(model.name)
                if recorded is not None:  # else as a pool before this one knew
                    version.warmup = _warmup(version, self._versions[model.name], recorded)
                self.places.update(places([self.settings(model)]))

    def _no_room(self, name: str, number: int) -> str:
        """Why MPS would not take the workers of one more version; "" where it would."""
        limits = {
            daemon.device: daemon.max_clients for daemon in self._config.mps_daemons if daemon.max_clients
        }
        new = ModelVersion(name, number)
        mine = Counter(slot.device for slot in self._models[name].slots)
        others = Counter(device for device, _ in self._places_of_others(new))
        for device, count in mine.items():
            if device in limits and count + others[device] > limits[device]:
                return (
                    f"no room on {device}: {count} more workers beside {others[device]} would be more than the"
                    f" {limits[device]} clients that MPS takes; unload a version, keep fewer by version_policy, or"
                    " start with fewer contexts_per_gpu"
                )
        return ""

    def _places_of_others(self, new: ModelVersion) -> set[tuple[str, object]]:
        """The places of all other versions than this one, by device; those that change hands slot by slot count once."""
        there = {worker.model_version for worker in self.places} | {
            model for model, version in self if version.phase is VersionPhase.LOADING
        }
        successors = dict(self.turns())
        return {
            (slot.device, (successors.get(model, model), slot.slot))
            for model in there - {new}
            for slot in self._models[model.name].slots
        }

    def keep(self, slots: Collection[WorkerId]) -> None:
        """Of versions that leave, a pool before this one has left these slots: the others are vacated already."""
        for worker in [worker for worker in self.places if worker not in slots]:
            version = self._versions[worker.model].get(worker.version)
            if version is not None and version.phase is VersionPhase.LEAVING:
                self.vacated(worker)

    def vacated(self, worker: WorkerId) -> None:
        """The slot of a version that is not to have it any more is gone."""
        del self.places[worker]
        self.surplus.discard(worker)

    def stand_in(self, worker: WorkerId) -> WorkerId:
        """A slot beside this one, for as long as its worker is renewed."""
        model, slot = self.places[worker]
        numbers = [other.slot for other in self.places if other.device == worker.device]
        other = WorkerId(worker.model, worker.version, worker.device, max(numbers) + 1)
        self.places[other] = model, msgspec.structs.replace(slot, slot=other.slot)
        self.surplus.add(other)
        return other

    def try_again(self, models: Collection[str]) -> None:
        """What could not be loaded of these models is tried again at once."""
        for name in self._versions.keys() & set(models):
            self._versions[name].try_again()
        self._save()

    def pending(self) -> list[str]:
        """What is on its way to what is configured, in words."""
        waits = [f"{name} has yet to leave" for name in self._taken]
        for name, versions in self._versions.items():
            phases = {version.phase for version in versions}
            waits += [
                f"{name}@{version.number} is {version.phase.value}"
                for version in versions
                if version.phase in (VersionPhase.LOADING, VersionPhase.LEAVING)
            ]
            waits += [
                f"{name}@{version.number} has yet to be loaded again"
                for version in versions
                if version.phase is VersionPhase.FAILED and not version.reason
            ]
            if name in self._taken or name in self._unread:
                continue
            if self._looks.get(name, _LOOKS) < _LOOKS or not (phases or versions.off):
                waits.append(f"{name}: its base path is looked at")
            missing = versions.aspired() - {version.number for version in versions}
            waits += [f"{name}@{number} has yet to be loaded" for number in sorted(missing)]
        return waits

    def failed(self) -> list[tuple[str, str]]:
        """What is not served and should be, or not to all: the model, and why."""
        phases = (VersionPhase.FAILED, VersionPhase.SERVING)
        return [
            (model.name, f"{model}: {version.reason}")
            for model, version in self
            if version.phase in phases and version.reason and model.name not in self._taken
        ]

    def served(self) -> list[str]:
        """The models of which a version is there for requests."""
        return sorted({model.name for model, version in self if version.phase is VersionPhase.SERVING})

    def due(self) -> float | None:
        """When a version is to be loaded again; None for none."""
        dues = [versions.due() for versions in self._versions.values()]
        return min((due for due in dues if due is not None), default=None)

    # -- watching ---------------------------------------------------------------------------------

    async def watch_for_ever(self) -> None:
        """Looks at every base path, as often as is configured."""
        await asyncio.gather(*(self._watch(name) for name in self._watched))
        await asyncio.Event().wait()

    async def _watch(self, name: str) -> None:
        """Without an interval just long enough to see what is there at the start, whole or broken."""
        stores = {remote.model: remote.poll_s for remote in self._config.remotes}
        poll_s = self._config.poll_s or stores.get(name, 0)
        looks = 0
        while poll_s or looks < _LOOKS or self._watched[name].waits:
            async with self._looking[name]:
                await self._look_at(name, self._versions[name].loaded, self._versions[name].unloaded)
            looks += 1
            self._looks[name] = looks
            if looks == _LOOKS:  # all is known that there is
                self._look()
            # A version that is there by now is known after two looks; so is one that has come from a store, where only those are awaited.
            soon = looks < _LOOKS or (self._watched[name].waits and not self._config.poll_s)
            between_s = poll_s or _BETWEEN_S
            await asyncio.sleep(min(between_s, _BETWEEN_S) if soon else between_s)

    async def _look_at(self, name: str, loaded: Collection[int], unloaded: Collection[int]) -> None:
        """Looks at a base path for what is to be served, with these wishes by hand; held by `_looking`."""
        versions = self._versions[name]
        # What leaves may be loaded again once it has gone, as one that has failed may.
        settled = {
            version.number
            for version in versions
            if version.phase in (VersionPhase.LOADING, VersionPhase.SERVING)
        }
        if versions.swap == STOP_FIRST and all(
            version.phase is not VersionPhase.SERVING for version in versions
        ):
            # What was stopped is to be loaded again at once, should it come to that.
            settled |= versions.found.keys() - versions.failed()
        look = functools.partial(
            _look,
            self._watched[name],
            self._batching[name],
            versions.policy,
            dict(versions.found),
            settled,
            *(set(loaded), set(unloaded), versions.failed()),
            now=time.monotonic(),
        )
        try:
            found, recorded = await asyncio.get_running_loop().run_in_executor(self._readers[name], look)
        except Exception as error:  # noqa: BLE001  whatever lies there, the other models are looked after
            if self._unread.get(name) != str(error):
                self._unread[name] = str(error)
                logger.warning("base path cannot be read; what is served stays", model=name, error=str(error))
            return
        self._unread.pop(name, None)
        self._recorded[name] = recorded
        if found != versions.found:
            versions.found = found
            self._look()

    # -- by hand ----------------------------------------------------------------------------------

    async def load(self, request: Message) -> Message:
        """The control op "load": of "model" a "version", or those that its policy means where that is null."""
        return await self._order(request, "load")

    async def unload(self, request: Message) -> Message:
        """The control op "unload": of "model" a "version", or all where that is null."""
        return await self._order(request, "unload")

    async def rollback(self, request: Message) -> Message:
        """The control op "rollback": of "model" the version before the one that answers what names none."""
        return await self._order(request, "rollback")

    def would_share(self, request: Message) -> list[tuple[ModelVersion, ModelVersion]]:
        """What answers requests that name no version, and each of those that would have a share of them by such a request and has none."""
        name = request["model"]
        versions = self._versions.get(name)
        routed = versions.routed() if versions is not None else None
        if versions is None or routed is None:
            return []
        there = [versions.get(number) for number, weight in _route_of(request).weights.items() if weight]
        return [
            (ModelVersion(name, routed.number), ModelVersion(name, version.number))
            for version in there
            if version is not None and version is not routed and not versions.weight(version)
        ]

    async def set_route(self, request: Message) -> Message:
        """The control op "route": of "model" what is new of a Route; "reset" forgets what was said before."""
        name = request["model"]
        if why := self._why_no_model(name):
            return {"error": why}
        versions = self._versions[name]
        given = _route_of(request)
        try:
            msgspec.json.encode(given)
        except UnicodeEncodeError:  # it could neither be recorded nor be told to the router
            return {"error": "a label or metadata has bytes that are no UTF-8: leave them out"}
        route = given if request.get("reset") else versions.route.over(given)
        if why := versions.why_no_route(route.numbers()):
            return {"error": why}
        versions.route = route
        logger.info("route", model=name, **msgspec.to_builtins(route))
        self._save()
        self._look()
        return {"model": name, "route": msgspec.to_builtins(route)}

    async def _order(self, request: Message, what: str) -> Message:
        """Returns what is done, or why not ("error")."""
        name, number, to = request["model"], request.get("version"), None
        if why := self._why_no_model(name):
            return {"error": why}
        versions = self._versions[name]
        try:
            there = await self._numbers(name)
        except OSError as error:
            if what != "unload":  # what has lost its folder can be ended all the same
                text = f"{self._models[name].base_path} cannot be read: {error.strerror}; have it back, then try again"
                return {"error": text}
            there = []
        if what == "rollback":
            routed = versions.routed()
            number = routed.number if routed else None
            why = _no_way_back(versions, number, there)
            to = max(_back_to(versions, number, there)) if number is not None and not why else None
        else:
            why = _not_there(name, number, {*there, *(version.number for version in versions)})
        if why:
            return {"error": why}
        loaded, unloaded = versions.wishes(what, number)
        async with self._looking[name]:
            # Found before it is asked for: what is served now does not go before there is something in its place.
            for look in range(_LOOKS):
                await asyncio.sleep(_BETWEEN_S if look else 0)
                await self._look_at(name, loaded if to is None else loaded | {to}, unloaded)
            if what == "rollback" and (why := _comes(versions)):
                return {"error": why}
            wanted = to if what == "rollback" else number if what == "load" else None
            if wanted is not None and wanted not in versions.found:
                return {
                    "error": f"version {wanted} of {name} is no whole SavedModel: copy or export it again"
                }
            if what == "load" and not versions.found:
                text = f"{self._models[name].base_path} has no whole version of {name}: copy or export one"
                return {"error": text}
            logger.info(what, model=name, version=number)
            if what == "load":
                versions.load(number)
            else:
                to = versions.unload(number, to)
        self._save()
        self._look()
        return {"model": name, "version": number, "to": to, "wanted": sorted(versions.wanted())}

    def _why_no_model(self, name: str) -> str:
        """Why nothing can be ordered of a model of this name; "" where something can."""
        there = self._versions.keys() - self._taken
        if name in there:
            return ""
        if name in self._taken:
            return f"model {name!r} is not configured any more, and leaves"
        if (model := name.rpartition("@")[0]) in there:
            return (
                f"there is no model {name!r}, but {model!r}: name it alone, or with the number of a version where the"
                " command takes one"
            )
        return f"there is no model {name!r}; there are {', '.join(sorted(there)) or 'none'}"

    async def _numbers(self, name: str) -> list[int]:
        """Raises OSError."""
        watched = self._watched[name]
        return await asyncio.get_running_loop().run_in_executor(self._readers[name], watched.numbers)

    # -- the record -------------------------------------------------------------------------------

    def _save(self) -> None:
        records = {
            name: msgspec.structs.replace(versions.record(), labels=self._models[name].labels)
            for name, versions in self._versions.items()
        }
        for name in self._taken:  # one that is put back is wanted
            records[name] = msgspec.structs.replace(records[name], off=False)
        self._record.save(settings.readable(Records(records)))

    def _recall(self) -> dict[str, ModelRecord]:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return settings.load(self._run.settings_file(RECORDS), Records).models
        return {}

    def close(self) -> None:
        for reader in self._readers.values():
            reader.shutdown(wait=False, cancel_futures=True)


def _not_there(name: str, number: int | None, there: Collection[int]) -> str:
    if number is None or number in there:
        return ""
    known = ", ".join(map(str, sorted(there))) or "none"
    return f"there is no version {number} of {name}; in its base path: {known}"


def _route_of(request: Message) -> Route:
    return msgspec.convert(request.get("route") or {}, Route, strict=False)


def _comes(versions: Versions) -> str:
    """Why a model cannot go back now: another is about to take over from what answers."""
    number, name = versions.about_to_answer(), versions.name
    if number is None:
        return ""
    return (
        f"version {number} of {name} is meant to take over: wait for it, or leave it out first with"
        f" `mpspool unload {name}@{number}`"
    )


def _back_to(versions: Versions, number: int, there: Collection[int]) -> set[int]:
    return chosen({other for other in there if other < number} - versions.unloaded, versions.policy)


def _no_way_back(versions: Versions, number: int | None, there: Collection[int]) -> str:
    """Why a model cannot go back to the version before."""
    if number is None:
        return f"no version of {versions.name} is served: there is nothing to go back from"
    if _back_to(versions, number, there):
        return ""
    if comes := _comes(versions):
        return comes
    older, specific = {other for other in there if other < number}, versions.policy.specific
    if held := sorted(older & versions.unloaded):
        name = versions.name
        why = f"version {held[-1]} is left out by hand: `mpspool load {name}@{held[-1]}` has it back"
    elif older and specific:
        why = f"version_policy names {', '.join(map(str, specific))}: name another, then `mpspool reload`"
    else:
        why = "there is no older folder"
    return f"there is no version of {versions.name} to go back to from {number}: {why}"


def _look(
    base_path: BasePath,
    batching: BatchingFiles,
    policy: VersionPolicy,
    known: Mapping[int, Found],
    settled: Collection[int],
    *more: Collection[int],
    now: float,
) -> tuple[dict[int, Found], set[int]]:
    """What BasePath.look() finds, and the versions among it that have recorded requests. Blocks as that does."""
    found = batching.of(base_path.look(policy, known, settled, *more, now=now), settled)
    return found, {number for number, one in found.items() if os.path.exists(Path(one.path) / WARMUP_FILE)}


def _warmup(version: Version, versions: Versions, recorded: Collection[int]) -> str:
    """Recorded requests for a version that has none: those of the newest version that is there and has some."""
    if version.number in recorded:
        return ""
    serving = [other for other in versions if other.phase is VersionPhase.SERVING]
    others = (other.found.path for other in reversed(serving) if other.number in recorded)
    return next((str(Path(path) / WARMUP_FILE) for path in others), "")


def _found(model: ModelSettings) -> Found:
    """Of its folder, which has been looked into before the start."""
    found = Found(model.path, batching=model.batching)
    with contextlib.suppress(OSError):
        return dataclasses.replace(found, stamp=stamp(Path(model.path)))
    return found


def _versions(model: ModelSettings, config: PoolSettings, no_room: Callable[[int], str]) -> Versions:
    retries = Retries(config.load_retries, config.load_retry_s)
    return Versions(model.name, model.policy, model.quorum, retries, model.swap, no_room)


def _say(model: ModelVersion, version: Version) -> None:
    match version.phase:
        case VersionPhase.LOADING:
            logger.info("loading", model=str(model), path=version.found.path)
        case VersionPhase.SERVING:
            logger.info("serving", model=str(model))
        case VersionPhase.LEAVING:
            logger.info("leaving", model=str(model), why=version.reason)
        case VersionPhase.FAILED:
            logger.error("not served", model=str(model), why=version.reason, failures=version.failures)


def _say_compared(model: ModelVersion, version: Version) -> None:
    if version.reason:
        logger.error("does not answer what names no version", model=str(model), why=version.reason)
    else:
        logger.info("answers what it is asked by name", model=str(model))
