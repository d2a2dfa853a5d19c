"""Which model versions there are, what state each is in, and which one a request means. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mpspool.core.errors import Code, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.states import ModelVersionState

_NOT_YET = "{} is not loaded yet; try again"


@dataclass(slots=True)
class Version:
    """One model version as the router knows it.

    Attributes:
        quorum: READY workers that make it AVAILABLE.
        failed: why no worker of it will ever be READY; empty while one may.
        workers, ready: its workers that are connected, and those of them that are READY.
        was_available: it has been AVAILABLE, so its requests wait for a worker instead of failing.
        signatures: a serialised SignatureDefMap, from its first READY worker.
    """

    model: ModelVersion
    quorum: int = 1
    failed: str = ""
    workers: int = 0
    ready: int = 0
    was_available: bool = False
    signatures: bytes = b""

    @property
    def state(self) -> ModelVersionState:
        if self.ready and self.ready >= self.quorum:
            return ModelVersionState.AVAILABLE
        if self.failed and not self.ready:
            return ModelVersionState.END
        return ModelVersionState.LOADING if self.workers or self.was_available else ModelVersionState.START

    def serves(self, number: int | None) -> bool:
        """Whether a request for this version, or for any, may be for this one: it has been AVAILABLE."""
        return self.was_available and number in (None, self.model.version)


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
        # Whether the pool has said what there should be: until then what is unknown may only be new to us.
        self._told = False

    def want(self, versions: dict[ModelVersion, tuple[int, str]]) -> None:
        """Takes the pool's list of {version: (quorum, failed)}; others go once no worker is left."""
        self._told = True
        for model, (quorum, failed) in versions.items():
            version = self.get(model)
            version.quorum, version.failed = quorum, failed
        for model in [m for m, v in self._versions.items() if m not in versions and not v.workers]:
            self._by_name[model.name].remove(self._versions.pop(model))

    def get(self, model: ModelVersion) -> Version:
        """The record of a version, made where there is none."""
        if model not in self._versions:
            self._versions[model] = Version(model)
            named = self._by_name.setdefault(model.name, [])
            named.append(self._versions[model])
            named.sort(key=lambda version: version.model)
        return self._versions[model]

    def count(self, model: ModelVersion, workers: int, ready: int) -> None:
        version = self.get(model)
        version.workers, version.ready = workers, ready
        version.was_available = version.was_available or version.state is ModelVersionState.AVAILABLE

    def all(self) -> list[Version]:
        return sorted(self._versions.values(), key=lambda version: version.model)

    def resolve(self, name: str, number: int | None, label: str | None) -> Version:
        """The version that a model spec means: the latest one that can serve, or the one named.

        Raises:
            PoolError: TensorFlow Serving's code and text where there is none; UNAVAILABLE where it
                served and no worker of it will come back, and where its model is loaded for the first
                time: TensorFlow Serving does not listen before that is done.
        """
        if label is not None:
            raise PoolError(Code.INVALID_ARGUMENT, f"Unrecognized servable version label: {label}")
        known = self._by_name.get(name, [])
        for version in reversed(known):
            if version.serves(number) and version.state is not ModelVersionState.END:
                return version
        raise self._unservable(name, number, known)

    def _unservable(self, name: str, number: int | None, known: list[Version]) -> PoolError:
        """Why none of the versions known of this name can serve such a request."""
        mine = [version for version in known if version.serves(number)]
        if mine:
            return PoolError(Code.UNAVAILABLE, f"{mine[-1].model}: {mine[-1].failed}")
        served = any(version.was_available for version in known)
        if not self._told or (not served and _to_come(known, number)):
            return PoolError(Code.UNAVAILABLE, _NOT_YET.format(name))
        what = f"Latest({name})" if number is None else f"Specific({name}, {number})"
        return PoolError(Code.NOT_FOUND, f"Servable not found for request: {what}")

    def status(self, name: str, number: int | None) -> list[VersionStatus]:
        """For GetModelStatus, oldest version first. Raises PoolError as resolve() does."""
        mine = [v for v in self.all() if v.model.name == name and number in (None, v.model.version)]
        if not mine and not self._told:
            raise PoolError(Code.UNAVAILABLE, _NOT_YET.format(name))
        if not mine:
            what = f"any versions of model {name}" if number is None else f"version {number} of model {name}"
            raise PoolError(Code.NOT_FOUND, f"Could not find {what}")
        return [
            VersionStatus(
                v.model.version, v.state, Code.UNKNOWN if v.failed and not v.ready else Code.OK, v.failed
            )
            for v in mine
        ]

    def unready(self, every: bool) -> str:
        """Why the pool is not ready to serve, "" when it is. `every`: all models, not just one."""
        served: dict[str, bool] = {}
        for version in self._versions.values():
            name = version.model.name
            served[name] = served.get(name, False) or version.state is ModelVersionState.AVAILABLE
        if not served:
            return "no model is loaded yet"
        missing = sorted(name for name, available in served.items() if not available)
        if missing and (every or len(missing) == len(served)):
            return f"not AVAILABLE: {', '.join(missing)}"
        return ""


def _to_come(known: Iterable[Version], number: int | None) -> bool:
    """Whether one of these, of that number if there is one, may still serve."""
    may = [version for version in known if version.state is not ModelVersionState.END]
    return any(number in (None, version.model.version) for version in may)
