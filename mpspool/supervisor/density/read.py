"""What the router has recorded of late, asked for and decoded."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpspool.core import control
from mpspool.core.control import ControlError, Message
from mpspool.core.ids import WorkerId
from mpspool.core.rundir import RunDir
from mpspool.supervisor.commands import ask
from mpspool.supervisor.commands.errors import CommandError

_ANSWER_S = 10.0
_POLL_S = 0.1
# As TaskLog of the router packs it.
_ROW = np.dtype([("began_ns", "=u8"), ("took_us", "=u4"), ("worker", "=u2"), ("requests", "=u2")])

Integers = NDArray[np.int64]


class BrokenRecordError(Exception):
    """The router went away while it told."""


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """Dispatches, in no order; a place in each array is one of them. Times are CLOCK_MONOTONIC, in nanoseconds.

    Attributes:
        now_ns: when it was told.
        begins_ns: all that ran since then is here, but for what was lost with its worker.
        keeps: how many dispatches the router keeps, where that is why it begins there; 0 where it was started then.
        simulated: what is a stand-in, "" for nothing.
        devices: of the pool, also those that ran nothing.
        workers: the ids of those that ran something.
        worker: who ran it, by its place in `workers`.
        requests: how many were in it; 0 while it still runs, until now_ns.
    """

    now_ns: int
    begins_ns: int
    keeps: int
    simulated: str
    devices: list[str]
    workers: list[WorkerId]
    worker: Integers
    began_ns: Integers
    ended_ns: Integers
    requests: Integers


def ask_router(run: RunDir, last_s: float) -> Record:
    """What ran in the last so many seconds, and some more. Raises CommandError."""
    end = time.monotonic() + ask.PATIENCE_S
    while True:
        try:
            return decode(control.stream(run.router_control, "tasks", timeout_s=_ANSWER_S, last_s=last_s))
        except (ControlError, BrokenRecordError, ValueError) as error:
            if why := ask.why_no_router(run, error, end):
                raise CommandError(why) from error
        time.sleep(_POLL_S)


def decode(told: Iterable[Message]) -> Record:
    """The pieces of the router's answer, as Dataplane.tasks() has them. Raises BrokenRecordError."""
    pieces = list(told)
    if len(pieces) < 2 or "now_ns" not in pieces[0] or "begins_ns" not in pieces[-1]:
        raise BrokenRecordError("the router went away while it told what ran")
    head, *parts, tail = pieces
    numbers: dict[str, int] = {}
    parts.append(_still_running(head))
    rows = [np.frombuffer(base64.b64decode(part["rows"]), _ROW) for part in parts]
    workers = [
        _numbered(part["workers"], numbers)[row["worker"]] for part, row in zip(parts, rows, strict=True)
    ]
    row = np.concatenate(rows)
    began_ns = row["began_ns"].astype(np.int64)
    return Record(
        now_ns=head["now_ns"],
        begins_ns=tail["begins_ns"],
        keeps=tail["keeps"],
        simulated=head["simulated"],
        devices=head["devices"],
        workers=[WorkerId.parse(name) for name in numbers],
        worker=np.concatenate(workers),
        began_ns=began_ns,
        ended_ns=np.where(row["requests"], began_ns + row["took_us"].astype(np.int64) * 1000, head["now_ns"]),
        requests=row["requests"].astype(np.int64),
    )


def _still_running(head: Message) -> dict[str, Any]:
    """What has not ended, in the form of the parts; without requests."""
    rows = np.zeros(len(head["running"]), _ROW)
    rows["began_ns"] = list(head["running"].values())
    rows["worker"] = range(len(rows))
    return {
        "rows": base64.b64encode(rows.tobytes()),
        "workers": {str(number): name for number, name in enumerate(head["running"])},
    }


def _numbered(names: dict[str, str], numbers: dict[str, int]) -> Integers:
    """From a part's numbers of workers to ours, which are given out in `numbers`."""
    ours = np.zeros(max(map(int, names), default=-1) + 1, np.int64)
    for number, name in names.items():
        ours[int(number)] = numbers.setdefault(name, len(numbers))
    return ours
