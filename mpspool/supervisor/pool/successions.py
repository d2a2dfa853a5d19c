"""Which version can take the place of which: what clients send now is what its successor has to take."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

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

    def forget(self) -> None:
        self._judged.clear()

    async def unfit(self, before: ModelVersion, after: ModelVersion) -> str | None:
        """Why a version cannot take the place of another, "" where it can; None while nobody knows."""
        if (before, after) not in self._judged:
            why = await self._judge(before, after)
            if why is None:
                return None
            self._judged[before, after] = why
        return self._judged[before, after]

    async def _judge(self, before: ModelVersion, after: ModelVersion) -> str | None:
        try:
            found = [await self._signatures(model) for model in (before, after)]
        except (ControlError, ValueError):
            return None
        if not all(found):
            return None  # the router is new, and its workers have yet to tell it
        why = fitness.unfit(*found)
        if why and self._settings(after).allow_signature_changes:
            logger.warning(
                "signatures differ, which is allowed", model=str(after), before=str(before), how=why
            )
            return ""
        return f"clients of version {before.version} could not be its clients: {why}" if why else ""
