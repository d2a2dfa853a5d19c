"""When a pool process is over, and whether another is to follow it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

# For an answer to be on its way.
_SOON_S = 0.02


class Handover:
    """The end of a pool process: at once, or when those that it owes an answer have had it.

    Args:
        patience_s: how long an order that is under way is waited for; one may hang, as what lies on a dead file server does.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._asking = self._ordering = 0
        self._until_s = 0.0
        self._is_under_way = self._for_good = False
        self._over = asyncio.Event()

    @property
    def is_under_way(self) -> bool:
        """Whether another pool is to follow, which is the one to be asked from here on."""
        return self._is_under_way

    def end(self) -> None:
        """For good, and now."""
        self._for_good = True
        self._over.set()

    def begin(self) -> None:
        """Another pool is to follow, once whoever asks for that has been answered, and whoever ordered something."""
        self._is_under_way = True
        self._until_s = time.monotonic() + self._patience_s
        self._end_soon()

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Around what asks for another pool: its answer is waited for, however long it takes."""
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1

    @contextlib.contextmanager
    def ordering(self) -> Iterator[None]:
        """Around what carries out an order."""
        self._ordering += 1
        try:
            yield
        finally:
            self._ordering -= 1

    @property
    def is_followed(self) -> bool:
        """Whether there is to be another pool when this one has gone."""
        return self._is_under_way and not self._for_good

    async def wait(self) -> None:
        """Until this pool is over."""
        await self._over.wait()

    def _end_soon(self) -> None:
        asyncio.get_running_loop().call_later(_SOON_S, self._end_if_answered)

    def _end_if_answered(self) -> None:
        if self._asking or (self._ordering and time.monotonic() < self._until_s):
            self._end_soon()
        else:
            self._over.set()
