"""Which model versions there are, what state each is in, and which one a request means. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mpspool.core.errors import Code, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.states import ModelVersionState

_NOT_YET = "{} is not loaded yet; try again"
# Of all models together: TensorFlow Serving remembers every version that it ever had, and grows by each.
_MAX_ENDED = 1024


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the pool says of a version.

    Attributes:
        quorum: READY workers that make it AVAILABLE.
        failed: why no worker of it will ever be READY; empty while one may.
        refused: why it answers no requests but those that ask for it; empty for one that would, or is not to.
        opens: it takes requests, once it is AVAILABLE; not one that is loaded beside another, or leaves.
        leaves: it has taken requests, and takes no more.
        weight: its share of the requests that name no version, beside the other versions' of its model; 0 for none.
        labels: version labels of its model, and the number that each stands for, whether there is such a version or not.
        to_come: while its model is loaded for the first time, of these numbers those that have yet to serve.
        metadata: (key, value): requests that have one of these and name no version are for it.
    """

    quorum: int = 1
    failed: str = ""
    refused: str = ""
    opens: bool = True
    leaves: bool = False
    weight: int = 0
    labels: Mapping[str, int] = field(default_factory=dict)
    to_come: Collection[int] = ()
    metadata: Sequence[tuple[str, str]] = ()


class Split:
    """Several versions that share the requests which name none: each in its turn, so that the shares are exact."""

    def __init__(self, weights: Mapping[ModelVersion, int]) -> None:
        self._weights = dict(weights)
        self._total = sum(weights.values())
        self._ahead = dict.fromkeys(weights, 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Split) and self._weights == other._weights

    __hash__ = None  # type: ignore[assignment]

    def largest(self) -> ModelVersion:
        """The version with the largest share, the newest of several."""
        return max(self._weights, key=lambda model: (self._weights[model], model.version))

    def next(self) -> ModelVersion:
        """Whose turn it is: of all versions the one that is furthest behind its share."""
        for model, weight in self._weights.items():
            self._ahead[model] += weight
        chosen = max(self._ahead, key=self._ahead.__getitem__)
        self._ahead[chosen] -= self._total
        return chosen


@dataclass(slots=True)
class Version:
    """One model version as the router knows it.

    Attributes:
        quorum, failed, refused, opens, leaves: as Wanted has them; one that leaves has failed as it had before.
        workers, ready: its workers that are connected, and those of them that are READY.
        was_available: it has been AVAILABLE, so its requests wait for a worker instead of failing.
        signatures: a serialised SignatureDefMap, from its first READY worker.
    """

    model: ModelVersion
    quorum: int = 1
    failed: str = ""
    refused: str = ""
    opens: bool = True
    leaves: bool = False
    workers: int = 0
    ready: int = 0
    was_available: bool = False
    signatures: bytes = b""

    @property
    def state(self) -> ModelVersionState:
        if self.leaves:
            return ModelVersionState.UNLOADING
        if self.opens and self.ready and self.ready >= self.quorum:
            return ModelVersionState.AVAILABLE
        if self.failed and not self.ready:
            return ModelVersionState.END
        return ModelVersionState.LOADING if self.workers or self.was_available else ModelVersionState.START

    def takes(self) -> bool:
        """Whether it takes requests, or is about to again."""
        return self.was_available and self.opens and not self.failed

    def serves(self, number: int | None) -> bool:
        """Whether a request for this version, or for any, may be for this one: it has been AVAILABLE."""
        return self.was_available and self.opens and number in (None, self.model.version)

    def error(self) -> str:
        """Why it does not serve, or not all."""
        return self.refused if self.ready else self.failed

    def status(self) -> VersionStatus:
        """What GetModelStatus says of it."""
        code = Code.UNKNOWN if self.failed and not self.ready else Code.OK
        return VersionStatus(self.model.version, self.state, code, self.error())


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """What GetModelStatus says of a version."""

    version: int
    state: ModelVersionState
    code: Code
    message: str


class Models:
    """The table of versions: what the pool wants, completed by what workers say of themselves."""

    def __init__(self) -> None:
        self._versions: dict[ModelVersion, Version] = {}
        # The same, oldest first, for resolve(): it is on the way of every request.
        self._by_name: dict[str, list[Version]] = {}
        self._routed: dict[str, Version] = {}
        self._splits: dict[str, Split] = {}
        self._rules: dict[str, list[tuple[str, str, Version]]] = {}
        self._labels: dict[tuple[str, str], int] = {}
        self._to_come: dict[str, Collection[int]] = {}
        self._wanted: set[ModelVersion] = set()
        # What GetModelStatus says of those that are gone, the latest last.
        self._ended: dict[ModelVersion, VersionStatus] = {}
        # Whether the pool has said what there should be: until then what is unknown may only be new to us.
        self._told = False

    def want(self, versions: Mapping[ModelVersion, Wanted]) -> None:
        """Takes the pool's list of versions, all at once; others go once no worker is left."""
        self._told = True
        self._wanted = set(versions)
        self._routed, self._labels, self._rules, self._to_come = {}, {}, {}, {}
        weights: dict[str, dict[ModelVersion, int]] = {}
        for model, wanted in versions.items():
            version = self.get(model)
            version.quorum, version.refused = wanted.quorum, wanted.refused
            version.opens, version.leaves = wanted.opens, wanted.leaves
            if not wanted.leaves:
                version.failed = wanted.failed
            self.count(model, version.workers, version.ready)
            if wanted.weight:
                weights.setdefault(model.name, {})[model] = wanted.weight
            self._labels |= {(model.name, label): number for label, number in wanted.labels.items()}
            self._to_come[model.name] = wanted.to_come
            for key, value in wanted.metadata:
                self._rules.setdefault(model.name, []).append((key.lower(), value, version))
        self._route(weights)

    def _route(self, weights: Mapping[str, Mapping[ModelVersion, int]]) -> None:
        splits = {name: Split(shares) for name, shares in weights.items() if len(shares) > 1}
        # One that is as it was goes on where it was.
        self._splits = {
            name: known if (known := self._splits.get(name)) == split else split
            for name, split in splits.items()
        }
        self._routed = {
            name: self.get(next(iter(shares))) for name, shares in weights.items() if len(shares) == 1
        }

    def gone(self) -> list[ModelVersion]:
        """Forgets all but the end of the versions that the pool does not want and that have no worker. Returns which."""
        if not self._told:
            return []
        found = [m for m, v in self._versions.items() if m not in self._wanted and not v.workers]
        for model in found:
            version = self._versions.pop(model)
            self._ended[model] = replace(version.status(), state=ModelVersionState.END)
            self._by_name[model.name].remove(version)
            if not self._by_name[model.name]:
                del self._by_name[model.name]
        while len(self._ended) > _MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        return found

    def get(self, model: ModelVersion) -> Version:
        """The record of a version, made where there is none."""
        if model not in self._versions:
            self._versions[model] = Version(model)
            self._ended.pop(model, None)
            named = self._by_name.setdefault(model.name, [])
            named.append(self._versions[model])
            named.sort(key=lambda version: version.model)
        return self._versions[model]

    def signatures(self, model: ModelVersion) -> bytes:
        """Of a version, whether it takes requests or not; nothing while they are not known."""
        return self._versions[model].signatures if model in self._versions else b""

    def has(self, model: ModelVersion) -> bool:
        return model in self._versions

    def count(self, model: ModelVersion, workers: int, ready: int) -> None:
        version = self.get(model)
        version.workers, version.ready = workers, ready
        version.was_available = version.was_available or version.state is ModelVersionState.AVAILABLE

    def _awaited(self, name: str) -> list[int]:
        """While a model is loaded for the first time, those that a label stands for and that have yet to serve."""
        served = {one.model.version for one in self._by_name.get(name, ()) if one.was_available}
        return [number for number in self._to_come.get(name, ()) if number not in served]

    def all(self) -> list[Version]:
        return sorted(self._versions.values(), key=lambda version: version.model)

    def resolve(
        self,
        name: str,
        number: int | None,
        label: str | None,
        metadata: Mapping[str, str] | None = None,
    ) -> Version:
        """The version that a model spec means: the one named, or what answers those that name none.

        Args:
            name: of the model.
            number: of its version.
            label: for its version.
            metadata: of the request; None for one that takes no version's turn.

        Raises:
            PoolError: TensorFlow Serving's code and text where there is none; UNAVAILABLE where it
                served and no worker of it will come back, and where its model is loaded for the first
                time: TensorFlow Serving does not listen before that is done.
        """
        if label is not None:
            number = self._labels.get((name, label))
            if number is None and not self._told:
                raise PoolError(Code.UNAVAILABLE, _NOT_YET.format(name))
            if number is None:
                raise PoolError(Code.INVALID_ARGUMENT, f"Unrecognized servable version label: {label}")
        elif number is None and (routed := self._answering(name, metadata)) is not None:
            return routed
        known = self._by_name.get(name, [])
        for version in reversed(known):
            if version.serves(number) and version.state is not ModelVersionState.END:
                return version
        raise self._unservable(name, number, known)

    def is_shared(self, name: str) -> bool:
        """Whether several versions of a model may answer requests that name none."""
        return bool(self._splits.get(name) or self._rules.get(name))

    def labelled(self, name: str, label: str) -> int | None:
        """The number of the version that this label stands for; None where it stands for none."""
        return self._labels.get((name, label))

    def answers_most(self, name: str) -> int | None:
        """The version of a model that answers requests which name none, or most of them; None for none."""
        if (split := self._splits.get(name)) is not None:
            return split.largest().version
        routed = self._routed.get(name)
        return routed.model.version if routed is not None else None

    def _answering(self, name: str, metadata: Mapping[str, str] | None) -> Version | None:
        """What answers a request that names no version, as the pool has said; None where that cannot serve."""
        routed = self._routed.get(name)
        if self._splits or self._rules:
            for key, value, version in self._rules.get(name, ()):
                if metadata is not None and metadata.get(key) == value and version.takes():
                    return version
            if metadata is not None and (split := self._splits.get(name)) is not None:
                routed = self.get(split.next())
        return routed if routed is not None and routed.takes() else None

    def _unservable(self, name: str, number: int | None, known: list[Version]) -> PoolError:
        """Why none of the versions known of this name can serve such a request."""
        mine = [version for version in known if version.serves(number)]
        if mine:
            return PoolError(Code.UNAVAILABLE, f"{mine[-1].model}: {mine[-1].failed}")
        served = any(version.was_available and not version.leaves for version in known)
        if not self._told or number in self._awaited(name) or (not served and _to_come(known, number)):
            return PoolError(Code.UNAVAILABLE, _NOT_YET.format(name))
        what = f"Latest({name})" if number is None else f"Specific({name}, {number})"
        return PoolError(Code.NOT_FOUND, f"Servable not found for request: {what}")

    def status(self, name: str, number: int | None) -> list[VersionStatus]:
        """For GetModelStatus, newest version first, those that are gone among them. Raises PoolError as resolve() does."""
        known = self._ended | {model: version.status() for model, version in self._versions.items()}
        mine = [one for model, one in known.items() if model.name == name and number in (None, model.version)]
        if not mine and not self._told:
            raise PoolError(Code.UNAVAILABLE, _NOT_YET.format(name))
        if not mine:
            what = f"any versions of model {name}" if number is None else f"version {number} of model {name}"
            raise PoolError(Code.NOT_FOUND, f"Could not find {what}")
        return sorted(mine, key=lambda one: one.version, reverse=True)

    def unready(self, every: bool) -> str:
        """Why the pool is not ready to serve, "" when it is. `every`: all models, not just one.

        A model is when one of its versions is AVAILABLE; at first, when those are that a label stands for.
        """
        if not self._versions:
            return "no model is loaded yet"
        missing: dict[str, list[str]] = {}
        for name, versions in self._by_name.items():
            if not any(version.state is ModelVersionState.AVAILABLE for version in versions):
                missing[name] = [name]
            elif awaited := self._awaited(name):
                missing[name] = [str(ModelVersion(name, number)) for number in awaited]
        if missing and (every or len(missing) == len(self._by_name)):
            return f"not AVAILABLE: {', '.join(sorted(itertools.chain(*missing.values())))}"
        return ""


def _to_come(known: Iterable[Version], number: int | None) -> bool:
    """Whether one of these, of that number if there is one, may still serve."""
    may = [version for version in known if version.state is not ModelVersionState.END]
    return any(number in (None, version.model.version) for version in may)
