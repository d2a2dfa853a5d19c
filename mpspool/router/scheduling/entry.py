"""A request as the scheduler keeps it."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

from mpspool.core.ids import ModelVersion
from mpspool.core.methods import Method

if TYPE_CHECKING:
    from mpspool.router.scheduling.line import Line

# Signature, output_filter, and what can be told of the inputs.
Kind = tuple[str, bytes, bytes]


def kept_name(name: str, most: int) -> str:
    """A name that a client makes up, which is kept for longer than the bytes of its request are: as a digest where it is longer."""
    return name if len(name) <= most else hashlib.blake2b(name.encode(errors="surrogatepass")).hexdigest()


@mypyc_attr(allow_interpreted_subclasses=True)  # the simulator has one
class Entry:
    """One request on its way, or some rows of a large one. The scheduler owns every field that it is not made with.

    The body is let go when the request is over and no worker holds it any more: until then a worker may
    be lost to it. `size` stays its length in bytes.

    Attributes:
        method: what the body is.
        arrived_ns, deadline_ns: CLOCK_MONOTONIC; no deadline is 0.
        rows: dimension 0 of its inputs, where its model version batches; 0 where it shares no batch.
        kind: what must be the same in a batch.
        runs: of `rows` rows, that it takes: more than one where it has more than run at once and goes to one worker.
        fills: it counts as a batch of its own.
        part: those rows of the body that are to be run, from and up to; None for all.
        priority: how many steps it goes before others; where clients share fairly, before others of its client.
        client: whose it is, where clients share fairly.
        arrived_s: as arrived_ns.
        start_s: when it counts as arrived: then, or by its client's share, which has a clock of its own.
        own_key: where clients share fairly, its place among those of its client.
        cost_s: of a worker's time, as predicted on arrival; where nobody was sure then, as soon as it comes up and somebody
            is. None while nobody knows.
        sure_s: what of that it takes for sure, if it is run by itself; 0 while nobody is.
        charge_s: what its client was charged for its turn, where clients share fairly; for itself, once it was sent.
        owed_s: what its client was charged for others while it waited, as far as its key says so.
        key: its place: what has the least is next.
        order: among those with the same key.
        long: it is of those that a slow lane is for.
        slow: its client has its share of that lane for it.
        line: where it waits.
        sent_ns: when it was sent last, 0 before.
        deaths: workers that were lost while they ran it.
        suspect: it runs alone, for it or its like was running when a worker was lost.
        let_in: it waited for a version that has gone: no queue is too full for it.
        waiting: it is in a queue, and wanted.
        held: a worker has it.
        over: nobody waits for its answer any more.
    """

    size: int = 0
    arrived_s: float = 0.0
    start_s: float = 0.0
    own_key: float = 0.0
    cost_s: float | None = None
    sure_s: float = 0.0
    charge_s: float = 0.0
    owed_s: float = 0.0
    key: float = 0.0
    order: int = 0
    runs: float = 1.0
    fills: bool = False
    long: bool = False
    slow: bool = False
    line: Line | None = None
    sent_ns: int = 0
    deaths: int = 0
    suspect: bool = False
    let_in: bool = False
    waiting: bool = False
    held: bool = False
    over: bool = False

    # Written out, for that of a dataclass is not compiled.
    def __init__(
        self,
        model: ModelVersion,
        signature: str,
        body: bytes,
        arrived_ns: int,
        deadline_ns: int = 0,
        method: Method = Method.PREDICT,
        rows: int = 0,
        kind: Kind | None = None,
        part: tuple[int, int] | None = None,
        priority: int = 0,
        client: str = "",
    ) -> None:
        self.model = model
        self.signature = signature
        self.body = body
        self.arrived_ns = arrived_ns
        self.deadline_ns = deadline_ns
        self.method = method
        self.rows = rows
        self.kind = kind
        self.part = part
        self.priority = priority
        self.client = client

    @property
    def deadline_s(self) -> float:
        """0 for none."""
        return self.deadline_ns / 1e9

    @property
    def run_count(self) -> int:
        """`runs`, of which the last need not be full."""
        return math.ceil(self.runs)

    @property
    def all_rows(self) -> int:
        """Those of all its runs."""
        return self.rows if self.runs == 1.0 else round(self.rows * self.runs)

    @property
    def joins_until_ns(self) -> int:
        """Till when one with a deadline waits for others that share its batch: for half of what it has to spare."""
        spare_ns = self.deadline_ns - self.arrived_ns - int(self.sure_s * 1e9)
        return self.arrived_ns + max(0, spare_ns // 2)

    def let_go(self) -> None:
        """It is over and no worker holds it."""
        self.body = b""
