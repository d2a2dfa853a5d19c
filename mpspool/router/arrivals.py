"""Requests as they arrive, for whoever records them: `mpspool record`. Pure.

There is one of these for each recording, and none otherwise. It holds no request, no body and no answer: a row for each
request that is under way or has not been told yet, and never more than SIZE of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mpspool.core import tfs
from mpspool.core.messages import Result
from mpspool.router.asked import rows_of
from mpspool.router.memory import Admission
from mpspool.router.scheduling.entry import Entry
from mpspool.router.scheduling.load import Batch

SIZE = 2**15
# Told so many at a time: the router has other things to do between two parts.
PART = 2**8
_MAX_CLIENTS = 2**16
# The name of a signature is the client's choice.
_MAX_NAME = 200


class Arrivals:
    """What has arrived since it was begun, and what it took of its worker.

    Args:
        began_ns: CLOCK_MONOTONIC; times count from then.
        simulated: what is a stand-in, "" for nothing.
        size: how many requests it keeps.
    """

    def __init__(self, began_ns: int, *, simulated: str = "", size: int = SIZE) -> None:
        self._began_ns = began_ns
        self._simulated = simulated
        self._size = size
        self._dropped = 0
        # By what is released when a request is over, and which its parts have in common.
        self._rows: dict[Admission, dict[str, Any]] = {}
        # Numbers, by the hash of a name: it may be long, and it is nobody's business.
        self._clients: dict[int, int] = {}

    def arrived(self, entry: Entry, admission: Admission, client: str, examples: int = 0) -> None:
        """A request, of so many examples, that is about to be queued, or refused by its queue. `client`: what it is called."""
        if len(self._rows) >= self._size:
            self._dropped += 1
            return
        row = {
            "time": round((entry.arrived_ns - self._began_ns) / 1e9, 6),
            "model": entry.model.name,
            "version": entry.model.version,
            "rows": max(1, rows_of(entry.method, entry.body, examples)),
            "bytes": len(entry.body),
        }
        if entry.signature != tfs.DEFAULT_SIGNATURE:
            row["signature"] = entry.signature[:_MAX_NAME]
        if client:
            row["client"] = str(self._number(client))
        if entry.priority:
            row["priority"] = entry.priority
        if entry.deadline_ns:
            row["deadline_ms"] = max(0.001, (entry.deadline_ns - entry.arrived_ns) / 1e6)
        self._rows[admission] = row

    def _number(self, name: str) -> int:
        """0 for all that come when too many are known."""
        key = hash(name)
        if key not in self._clients and len(self._clients) >= _MAX_CLIENTS:
            return 0
        return self._clients.setdefault(key, len(self._clients) + 1)

    def ran(self, batch: Batch, result: Result) -> None:
        """A worker has run a dispatch, or what it ran of it."""
        done = [pair for pair in zip(batch.entries, result.outcomes, strict=True) if pair[1].run_us]
        rows = sum(entry.rows for entry, _ in done)
        joined = batch.together and not result.apart
        for entry, outcome in done:
            row = self._rows.get(entry.admission)  # type: ignore[attr-defined]  # what arrives are the data plane's
            if row is not None:
                took_us = result.busy_us * entry.rows / rows if joined else outcome.took_us
                row["cost_us"] = round(row.get("cost_us", 0.0) + took_us, 1)

    def pieces(self, *, last: bool = False) -> Iterator[dict[str, Any]]:
        """What is over and has not been told, in no order; at the end all the rest, what is under way without its cost.

        Yields:
            `requests`, as a line of a trace each; `dropped`, how many have not been kept so far; and `simulated`.
            At least one.
        """
        over = [admission for admission in self._rows if last or not admission.size]
        for start in range(0, len(over) or 1, PART):
            yield {
                "requests": [self._rows.pop(admission) for admission in over[start : start + PART]],
                "dropped": self._dropped,
                "simulated": self._simulated,
            }
