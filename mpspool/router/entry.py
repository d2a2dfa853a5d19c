"""A request as the scheduler keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from mpspool.core.ids import ModelVersion


@dataclass(slots=True, eq=False)
class Entry:
    """One request on its way. The scheduler owns every field below `deadline_ns`.

    The body is let go when the request is over and no worker holds it any more: until then a worker may
    be lost to it. `size` stays its length in bytes.

    Attributes:
        sent_ns: when it was sent last, 0 before.
        deaths: workers that were lost while they ran it.
        suspect: it runs alone, for it or its like was running when a worker was lost.
        waiting: it is in a queue, and wanted.
        held: a worker has it.
        over: nobody waits for its answer any more.
    """

    model: ModelVersion
    signature: str
    body: bytes
    arrived_ns: int
    deadline_ns: int = 0
    size: int = 0
    sent_ns: int = 0
    deaths: int = 0
    suspect: bool = False
    waiting: bool = False
    held: bool = False
    over: bool = False
