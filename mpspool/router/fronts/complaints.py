"""What is said of bad connections: of a few each, of a flood the number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

_PERIOD_S = 10.0
_LINES = 20


class Complaints:
    """So many lines in a period, and at its end how many were left out.

    Args:
        now_s: the time.
        logger: where they are said.

    Attributes:
        counts: of all connections, by code.
    """

    def __init__(self, now_s: Callable[[], float], logger: Any) -> None:
        self._logger = logger
        self._now_s = now_s
        self._begun_s = now_s()
        self._said = self._left_out = 0
        self.counts: Counter[str] = Counter()

    def say(self, peer: str, code: str, why: str) -> None:
        """One connection, once."""
        self.tick()
        self.counts[code] += 1
        if self._said >= _LINES:
            self._left_out += 1
            return
        self._said += 1
        self._logger.info("bad connection", peer=peer, code=code, why=why)

    def tick(self) -> None:
        """To be called about once a second."""
        now_s = self._now_s()
        if now_s - self._begun_s >= _PERIOD_S:
            self.flush()
            self._begun_s, self._said = now_s, 0

    def flush(self) -> None:
        """Says what has not been said."""
        if self._left_out:
            self._logger.info("more bad connections", count=self._left_out)
            self._left_out = 0
