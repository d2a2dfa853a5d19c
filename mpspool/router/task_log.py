"""What ran where and when: the last dispatches of the pool, for the picture of its task density. Pure.

Cheap enough to stay on (`python -m bench.recording` says how cheap): sixteen bytes for each dispatch, and never more
than SIZE of them.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Any

SIZE = 2**17
# Told so many at a time: the router has other things to do between two parts.
PART = 2**12
_MAX_PLACES = 2**16 - 1
_MAX_US = 2**32 - 1
_MAX_REQUESTS = 2**16 - 1
# began_ns, took_us, the worker's number, requests; in this machine's byte order, without gaps.
_ROW = struct.Struct("=QIHH")  # parts() knows that the number is 12 bytes in
# The order is that in which results came, which may differ from that in which they were there by about as much.
_DISORDER_NS = 1_000_000_000


class TaskLog:
    """A ring of dispatches: where each ran, from when, for how long, and how many requests were in it.

    Args:
        since_ns: when it is begun; CLOCK_MONOTONIC, as all times here.
        size: how many it keeps.
    """

    def __init__(self, since_ns: int = 0, size: int = SIZE) -> None:
        self._size = size
        self._rows = bytearray(_ROW.size * size)
        self._since_ns = since_ns
        self._since = 0  # how many came before since_ns
        self._count = 0
        self._places: dict[str, int] = {}
        self._workers: list[str] = []

    def add(self, worker: str, began_ns: int, took_us: int, requests: int) -> None:
        """A dispatch of so many requests ran there."""
        place = self._places.get(worker)
        if place is None:
            place = self._add_place(worker, began_ns + took_us * 1000)
        # min() would take a fifth of the time that all of this does.
        _ROW.pack_into(
            self._rows,
            self._count % self._size * _ROW.size,
            began_ns,
            took_us if took_us < _MAX_US else _MAX_US,  # noqa: FURB136
            place,
            requests if requests < _MAX_REQUESTS else _MAX_REQUESTS,  # noqa: FURB136
        )
        self._count += 1

    def _add_place(self, worker: str, ended_ns: int) -> int:
        if len(self._workers) >= _MAX_PLACES:
            self._places.clear()
            self._workers.clear()
            self._since, self._since_ns = self._count, ended_ns
        self._workers.append(worker)
        return self._places.setdefault(worker, len(self._places))

    def begins(self) -> dict[str, int]:
        """`begins_ns`: all that ran since then, and has ended, is kept. `keeps`: how many are, where more have ended."""
        oldest = self._oldest()
        if oldest == self._since:
            return {"begins_ns": self._since_ns, "keeps": 0}
        return {"begins_ns": self._ended_ns(oldest), "keeps": self._size}

    def parts(self, since_ns: int, at_most: int = PART) -> Iterator[dict[str, Any]]:
        """What has ended by now, after `since_ns`, and some more, from the newest to the oldest; more may be added between parts.

        Returns, part by part:
            `rows`, in base64 and in the order in which they ended: began_ns (64 bits), took_us (32 bits), the number of
            the worker (16 bits) and how many requests (16 bits), in this machine's byte order; and `workers`, the
            names by number.
        """
        return self._parts(self._count, since_ns, at_most)

    def _parts(self, end: int, since_ns: int, at_most: int) -> Iterator[dict[str, Any]]:
        while (start := max(self._oldest(), end - at_most)) < end:
            rows = self._between(start, end)
            numbers = set(memoryview(rows).cast("H")[6::8])
            yield {
                "rows": base64.b64encode(rows).decode("ascii"),
                "workers": {number: self._workers[number] for number in numbers},
            }
            if start >= self._oldest() and self._ended_ns(start) < since_ns - _DISORDER_NS:
                return
            end = start

    def _oldest(self) -> int:
        """The number of the first that is kept, counted from the first that ever ran."""
        return max(self._since, self._count - self._size)

    def _ended_ns(self, number: int) -> int:
        began_ns, took_us, _, _ = _ROW.unpack_from(self._rows, number % self._size * _ROW.size)
        return int(began_ns) + int(took_us) * 1000

    def _between(self, start: int, end: int) -> bytes:
        """The rows of these numbers; no more than there is room for."""
        first, last = start % self._size * _ROW.size, end % self._size * _ROW.size
        if first < last:
            return bytes(self._rows[first:last])
        return bytes(self._rows[first:] + self._rows[:last])
