"""Turns at being read, of connections that have sent more than is read at once."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Protocol

# Of a turn of the event loop, for all whose bytes have waited for one.
_TURN_S = 0.0003


class Behind(Protocol):
    """A connection of which something has come that is not read yet."""

    def go_on(self) -> None:
        """It is its turn."""

    def abort(self) -> None:
        """It failed."""


class Turns:
    """Each goes on in the order in which they came: others, which have sent less, do not wait for them.

    Args:
        logger: told what failed.
    """

    def __init__(self, logger: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._logger = logger
        self._line: deque[Behind] = deque()

    def take(self, connection: Behind) -> None:
        """One turn; who is still behind then takes another."""
        self._line.append(connection)
        if len(self._line) == 1:
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        line, end_s = self._line, time.monotonic() + _TURN_S
        while True:
            connection = line[0]
            try:
                connection.go_on()  # it is the first until then: who comes behind it asks for no other turn
            except Exception:
                self._logger.exception("connection failed")
                connection.abort()
            line.popleft()
            if not line:
                return
            if time.monotonic() >= end_s:
                break
        self._loop.call_soon(self._go_on)
