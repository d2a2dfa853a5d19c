"""Which version can take the place of which: what clients send now is what its successor has to take."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable

from mpspool.core import log
from mpspool.core.control import ControlError
from mpspool.core.ids import ModelVersion
from mpspool.core.settings import ModelSettings
from mpspool.supervisor.pool import fitness

logger = log.get("pool")


class Successions:
    """Judged once each.

    Args:
        settings: of a version.
        signatures: of a version, serialised; nothing while they are not known. Raises ControlError.
    """

    def __init__(
        self,
        settings: Callable[[ModelVersion], ModelSettings],
        signatures: Callable[[ModelVersion], Awaitable[bytes]],
    ) -> None:
        self._settings = settings
        self._signatures = signatures
        self._judged: dict[tuple[ModelVersion, ModelVersion], str] = {}
        # Of those that will have gone when they are asked for.
        self._kept: dict[ModelVersion, bytes] = {}

    def forget(self) -> None:
        self._judged.clear()

    async def keep(self, models: Iterable[ModelVersion]) -> None:
        """Has what is known of these at hand when they have gone; of others of their models no more."""
        there = set(models)
        for model in there - self._kept.keys():
            with contextlib.suppress(ControlError, ValueError):
                if found := await self._signatures(model):
                    self._kept[model] = found
        names = {model.name for model in there}
        self._kept = {
            model: found for model, found in self._kept.items() if model in there or model.name not in names
        }

    def forgot(self, before: ModelVersion) -> bool:
        """Whether nothing is known of a version that has gone."""
        return before not in self._kept

    async def unfit(self, before: ModelVersion, after: ModelVersion, *, by_hand: bool = False) -> str | None:
        """Why a version cannot take the place of another, "" where it can, or it is to by hand; None while nobody knows."""
        if (before, after) not in self._judged:
            why = await self._judge(before, after, by_hand=by_hand)
            if why is None:
                return None
            self._judged[before, after] = why
        return self._judged[before, after]

    async def _judge(self, before: ModelVersion, after: ModelVersion, *, by_hand: bool) -> str | None:
        try:
            found = [self._kept.get(model) or await self._signatures(model) for model in (before, after)]
        except (ControlError, ValueError):
            return None
        if not all(found):
            return None  # the router is new, and its workers have yet to tell it
        why = fitness.unfit(*found)
        if why and (by_hand or self._settings(after).allow_signature_changes):
            logger.warning(
                "signatures differ, which is allowed", model=str(after), before=str(before), how=why
            )
            return ""
        return f"clients of version {before.version} could not be its clients: {why}" if why else ""
