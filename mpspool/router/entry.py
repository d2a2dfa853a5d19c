"""A request as the scheduler keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from mpspool.core.ids import ModelVersion


@dataclass(slots=True, eq=False)
class Entry:
    """One request on its way. The scheduler owns every field below `deadline_ns`.

    The body is let go as soon as the request is over; `size` stays its length in bytes.
    """

    model: ModelVersion
    signature: str
    body: bytes
    arrived_ns: int
    deadline_ns: int = 0
    size: int = 0
    sent_ns: int = 0
    deaths: int = 0
    waiting: bool = False
    over: bool = False
