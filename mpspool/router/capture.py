"""Requests that were answered, for whoever keeps them as warm-up requests: `mpspool capture`. Pure.

There is one of these for each capture, and none otherwise.
"""

from __future__ import annotations

from collections import Counter, deque

from mpspool.core.ids import ModelVersion
from mpspool.core.methods import Method

# Between two looks of whoever captures.
_MAX_BYTES = 2**26
# Of a body at once.
_PIECE_BYTES = 2**20


class Capture:
    """The requests that a model answers from now on.

    Args:
        name: the model's.
        version: the one that answers; None for any.
        count: how many of each version.
    """

    def __init__(self, name: str, version: int | None, count: int) -> None:
        self._name = name
        self._version = version
        self._count = count
        self._found: deque[tuple[int, Method, bytes]] = deque()
        self._bytes = 0
        self._told = 0  # of the first one's body
        self._kept: Counter[int] = Counter()

    def answered(self, model: ModelVersion, method: Method, body: bytes) -> None:
        """A request that a client got an answer to. It is passed over where too many bytes would wait to be fetched with it.

        So are Classify and Regress by REST: a warm-up file holds messages, and of these only Predict is made one.
        """
        if (
            method in (Method.REST_CLASSIFY, Method.REST_REGRESS)
            or model.name != self._name
            or self._version not in (None, model.version)
        ):
            return
        fits = not self._found or self._bytes + len(body) <= _MAX_BYTES
        if not self.has_all_of(model.version) and body and fits:
            self._found.append((model.version, method, body))
            self._bytes += len(body)
            self._kept[model.version] += 1

    def has_all_of(self, version: int | None) -> bool:
        """Whether so many of what this version answers have been kept; of none, they never are."""
        return version is not None and self._kept[version] >= self._count

    def take(self) -> tuple[int, Method, bytes, bool] | None:
        """Of the next one the next piece of its body; None where there is none yet.

        Returns:
            The version that answered it, its method, the piece, and whether there are more.
        """
        if not self._found:
            return None
        version, method, body = self._found[0]
        piece = body[self._told : self._told + _PIECE_BYTES]
        self._told += len(piece)
        more = self._told < len(body)
        if not more:
            self._found.popleft()
            self._bytes -= len(body)
            self._told = 0
        return version, method, piece, more
