"""A request that somebody awaits, and what it says of itself besides its message."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from mpspool.core import messages
from mpspool.core.errors import Code, PoolError
from mpspool.router.memory import Admission
from mpspool.router.scheduling.entry import Entry

# The deadline we know is later than the client's own by the way that its request took, and by what gRPC's
# core rounds up on the wire: 1 % at most. A client that goes away so shortly before it has not cancelled.
_DEADLINE_ON_THE_WAY_NS = 5_000_000
_DEADLINE_ROUNDED_BY = 100


class Head(Protocol):
    """What a request says of itself besides its message."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """By lower-case name."""

    @property
    def peer(self) -> str:
        """Who sent it, as "127.0.0.1:1234"."""


@dataclass(slots=True, eq=False)
class Pending(Entry):
    """A request, or some rows of one, that somebody awaits.

    Attributes:
        named: it asks for one version, and no other.
        examples: it has so many; 0 where it has none, or they are not counted.
        outcome: of some rows, without their answer; with `effective_s`, what the whole is counted by.
        kept_bytes: of the answer to some rows, which waits for the others.
    """

    future: asyncio.Future[bytes] = field(kw_only=True)
    named: bool = field(kw_only=True)
    admission: Admission = field(kw_only=True)
    examples: int = 0
    outcome: messages.Outcome | None = None
    effective_s: float = 0.0
    kept_bytes: int = 0

    def let_go(self) -> None:
        """Nobody holds its bytes any more."""
        self.body = b""
        self.admission.release()


def shutting_down() -> PoolError:
    """What a request is told that comes after the order to end."""
    return PoolError(Code.UNAVAILABLE, "This server is shutting down; try another")


def abandoned(entry: Entry, now_ns: int) -> Code:
    """What became of a request whose client went away before we answered: its deadline, or its own choice."""
    given_ns = entry.deadline_ns - entry.arrived_ns
    early_ns = _DEADLINE_ON_THE_WAY_NS + given_ns // _DEADLINE_ROUNDED_BY
    late = entry.deadline_ns and now_ns >= entry.deadline_ns - early_ns
    return Code.DEADLINE_EXCEEDED if late else Code.CANCELLED
