"""A request that somebody awaits, and what it says of itself besides its message."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from mpspool.core import messages
from mpspool.core.errors import Code, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.methods import Method
from mpspool.router.clients import Tally
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


class Pending(Entry):
    """A request, or some rows of one, that somebody awaits.

    Attributes:
        named: it asks for one version, and no other.
        examples: it has so many; 0 where it has none, or they are not counted.
        outcome: of some rows, without their answer; with `effective_s`, what the whole is counted by.
        kept_bytes: of the answer to some rows, which waits for the others.
        tallies: of whoever looked when it came.
        expects: its answer counts by now, with its admission.
    """

    examples: int = 0
    outcome: messages.Outcome | None = None
    effective_s: float = 0.0
    kept_bytes: int = 0
    tallies: Sequence[Tally] = ()
    expects: bool = False

    def __init__(
        self,
        model: ModelVersion,
        signature: str,
        body: bytes,
        arrived_ns: int,
        deadline_ns: int,
        method: Method,
        priority: int,
        client: str,
        *,
        future: asyncio.Future[bytes],
        named: bool,
        admission: Admission,
    ) -> None:
        super().__init__(
            model, signature, body, arrived_ns, deadline_ns, method, priority=priority, client=client
        )
        self.future = future
        self.named = named
        self.admission = admission

    def of_rows(self, start: int, stop: int, future: asyncio.Future[bytes]) -> Pending:
        """Those rows of it, which somebody awaits by themselves."""
        part = Pending(
            *(self.model, self.signature, self.body, self.arrived_ns, self.deadline_ns, self.method),
            *(self.priority, self.client),
            future=future,
            named=self.named,
            admission=self.admission,
        )
        part.tallies, part.let_in = self.tallies, self.let_in
        part.rows, part.kind, part.part = stop - start, self.kind, (start, stop)
        return part

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
