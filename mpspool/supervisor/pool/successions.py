"""Which version can take the place of which: what clients send now is what its successor has to take."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import msgspec

from mpspool.core import log, settings
from mpspool.core.control import ControlError
from mpspool.core.ids import ModelVersion
from mpspool.core.settings import ModelSettings
from mpspool.supervisor.pool import fitness
from mpspool.supervisor.pool.kept import Kept

logger = log.get("pool")


class _Signatures(msgspec.Struct, frozen=True):
    """What the pool's successor reads: signatures, serialised, by model and number of the version."""

    models: dict[str, dict[int, bytes]] = {}


class Successions:
    """Judged once each.

    Args:
        settings_of: a version.
        signatures: of a version, serialised; nothing while they are not known. Raises ControlError.
        file: for what the pool's successor is to know.
    """

    def __init__(
        self,
        settings_of: Callable[[ModelVersion], ModelSettings],
        signatures: Callable[[ModelVersion], Awaitable[bytes]],
        file: Path,
    ) -> None:
        self._settings_of = settings_of
        self._signatures = signatures
        self._file = file
        self._record = Kept(file)
        self._judged: dict[tuple[ModelVersion, ModelVersion, bool], str] = {}
        # Of those that will have gone when they are asked for.
        self._kept = self._recall()
        # Of these, those that are served as they were when they were asked: under a number that comes again there may be another.
        self._present: set[ModelVersion] = set()

    def forget(self) -> None:
        self._judged.clear()

    async def keep(self, models: Iterable[ModelVersion]) -> None:
        """Has what is known of these at hand when they have gone; of others of their models no more."""
        there, before = set(models), self._kept
        self._present &= there
        for model in there - self._present:
            with contextlib.suppress(ControlError, ValueError):
                if found := await self._signatures(model):
                    self._kept = {**self._kept, model: found}
                    self._present.add(model)
        names = {model.name for model in there}
        self._kept = {
            model: found for model, found in self._kept.items() if model in there or model.name not in names
        }
        if self._kept != before:
            self._save()
        else:
            self._record.again()

    def _save(self) -> None:
        models: dict[str, dict[int, bytes]] = {}
        for model, found in self._kept.items():
            models.setdefault(model.name, {})[model.version] = found
        self._record.save(settings.readable(_Signatures(models)))

    def _recall(self) -> dict[ModelVersion, bytes]:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return {
                ModelVersion(name, number): found
                for name, versions in settings.load(self._file, _Signatures).models.items()
                for number, found in versions.items()
            }
        return {}

    def forgot(self, before: ModelVersion) -> bool:
        """Whether nothing is known of a version that has gone."""
        return before not in self._kept

    async def unfit(self, before: ModelVersion, after: ModelVersion, *, by_hand: bool = False) -> str | None:
        """Why a version cannot take the place of another, "" where it can, or it is to by hand; None while nobody knows."""
        asked = before, after, by_hand
        if asked not in self._judged:
            why = await self._judge(before, after, by_hand=by_hand)
            if why is None:
                return None
            self._judged[asked] = why
        return self._judged[asked]

    async def _judge(self, before: ModelVersion, after: ModelVersion, *, by_hand: bool) -> str | None:
        try:
            found = [await self._signatures(model) or self._kept.get(model, b"") for model in (before, after)]
        except (ControlError, ValueError):
            return None
        if not all(found):
            return None  # the router is new, and its workers have yet to tell it
        why = fitness.unfit(*found)
        if why and (by_hand or self._settings_of(after).allow_signature_changes):
            logger.warning(
                "signatures differ, which is allowed", model=str(after), before=str(before), how=why
            )
            return ""
        if not why:
            return ""
        return (
            f"clients of version {before.version} could not be its clients: {why}; allow_signature_changes: true has it"
            " served all the same"
        )
