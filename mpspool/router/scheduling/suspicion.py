"""The bodies of requests that workers were lost to: which run alone, and which are kept out for a while. Pure.

Suspicion sticks to a body, not to a request: a client that gave up and asks again is still recognised.
"""

from __future__ import annotations

import enum
import hashlib
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Final

from mpspool.core.ids import ModelVersion

REMEMBERED_NS = 60 * 10**9
MAX_REMEMBERED = 1_000

# Length and a hash of the beginning and the end of a body: what is told at once.
_Look = tuple[int, int]
_LOOK_BYTES = 1024
# A version is part of it: what ends the workers of one may be right for the next.
_Key = tuple[_Look, bytes, ModelVersion]


class Blame(enum.Enum):
    """What the loss of a worker says against what it was running."""

    NONE = "NONE"  # somebody else is named
    PERHAPS = "PERHAPS"  # it died, or its device failed for all on it
    SURELY = "SURELY"  # it hangs, or is the one that is named


class Standing(enum.Enum):
    """What is known against a body."""

    CLEAR = "CLEAR"
    SUSPECT = "SUSPECT"
    QUARANTINED = "QUARANTINED"


# A class is asked for its members more slowly.
_CLEAR: Final = Standing.CLEAR


@dataclass(slots=True)
class _Record:
    standing: Standing
    until_ns: int


class Suspicions:
    """What is known against which bodies. Keeps fingerprints, and of too many those used last."""

    def __init__(self) -> None:
        self._records: OrderedDict[_Key, _Record] = OrderedDict()  # by until_ns
        self._looks: Counter[_Look] = Counter()  # of their bodies

    def standing(self, model: ModelVersion, body: bytes, now_ns: int) -> Standing:
        """Of a request's body. A suspect that is asked for is remembered anew: what tries it may take long."""
        self._forget(now_ns)
        # Only a body that looks like a remembered one is worth hashing as a whole.
        if not self._looks or _look(body) not in self._looks:
            return _CLEAR
        key = _key(model, body)
        record = self._records.get(key)
        if record is None:
            return _CLEAR
        if record.standing is Standing.SUSPECT:
            self._remember(key, record.standing, now_ns)
        return record.standing

    def blame(self, model: ModelVersion, body: bytes, alone: bool, now_ns: int) -> Standing:
        """A worker was lost while it ran this; `alone`: as a suspect, with nothing beside it.

        Returns:
            What is known from now on, for REMEMBERED_NS at least.
        """
        self._forget(now_ns)
        key = _key(model, body)
        record = self._records.get(key)
        known = record is not None and record.standing is Standing.QUARANTINED
        standing = Standing.QUARANTINED if alone or known else Standing.SUSPECT
        self._remember(key, standing, now_ns)
        return standing

    def clear(self, model: ModelVersion, body: bytes) -> None:
        """A worker ran this alone and lived."""
        key = _key(model, body)
        if key in self._records:
            self._drop(key)

    def _remember(self, key: _Key, standing: Standing, now_ns: int) -> None:
        if key not in self._records:
            self._looks[key[0]] += 1
        self._records[key] = _Record(standing, now_ns + REMEMBERED_NS)
        self._records.move_to_end(key)
        if len(self._records) > MAX_REMEMBERED:
            self._drop(next(iter(self._records)))

    def _forget(self, now_ns: int) -> None:
        while self._records and next(iter(self._records.values())).until_ns <= now_ns:
            self._drop(next(iter(self._records)))

    def _drop(self, key: _Key) -> None:
        del self._records[key]
        self._looks[key[0]] -= 1
        if not self._looks[key[0]]:
            del self._looks[key[0]]


def _look(body: bytes) -> _Look:
    return len(body), hash((body[:_LOOK_BYTES], body[-_LOOK_BYTES:]))


def _key(model: ModelVersion, body: bytes) -> _Key:
    return _look(body), hashlib.blake2b(body, digest_size=16).digest(), model
