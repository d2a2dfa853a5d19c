"""The bodies of requests that ended the workers which ran them: kept out for a while. Pure."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

QUARANTINE_NS = 60 * 10**9
MAX_QUARANTINED = 1_000


def _fingerprint(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()


class Quarantine:
    """Which bodies are not run again for now. Keeps fingerprints, and of too many the newest."""

    def __init__(self) -> None:
        self._until_ns: OrderedDict[tuple[int, bytes], int] = OrderedDict()

    def add(self, body: bytes, since_ns: int) -> None:
        """Keeps a body out for QUARANTINE_NS from `since_ns` on."""
        self._until_ns[len(body), _fingerprint(body)] = since_ns + QUARANTINE_NS
        while len(self._until_ns) > MAX_QUARANTINED:
            self._until_ns.popitem(last=False)

    def holds(self, body: bytes, now_ns: int) -> bool:
        while self._until_ns and next(iter(self._until_ns.values())) <= now_ns:
            self._until_ns.popitem(last=False)
        # Only a body as long as a quarantined one is worth hashing.
        alike = any(size == len(body) for size, _ in self._until_ns)
        return alike and (len(body), _fingerprint(body)) in self._until_ns
