"""Requests that were answered, for whoever keeps them as warm-up requests: `mpspool capture`. Pure.

There is one of these for each capture, and none otherwise.
"""

from __future__ import annotations

from collections import deque

from mpspool.core.ids import ModelVersion
from mpspool.core.methods import Method

# Between two looks of whoever captures.
_MAX_BYTES = 2**28


class Capture:
    """The requests that a model version answers from now on.

    Args:
        model: which.
        count: how many.

    Attributes:
        left: how many more.
    """

    def __init__(self, model: ModelVersion, count: int) -> None:
        self._model = model
        self._found: deque[tuple[Method, bytes]] = deque()
        self._bytes = 0
        self.left = count

    def answered(self, model: ModelVersion, method: Method, body: bytes) -> None:
        """A request that a client got an answer to. Where too many bytes wait to be fetched it is passed over.

        So is one that came by REST: a warm-up file holds messages.
        """
        if method.is_rest:
            return
        if model == self._model and self.left and body and self._bytes + len(body) <= _MAX_BYTES:
            self._found.append((method, body))
            self._bytes += len(body)
            self.left -= 1

    def take(self) -> tuple[Method, bytes] | None:
        """The next one; None where there is none yet."""
        if not self._found:
            return None
        method, body = self._found.popleft()
        self._bytes -= len(body)
        return method, body
