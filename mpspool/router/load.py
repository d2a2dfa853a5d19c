"""What each worker holds, and which of several is sent the next dispatch. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mpspool.core.ids import ModelVersion
from mpspool.router.entry import Entry

# A second dispatch is put behind a running one only when that one ends within this time, so that
# nobody waits behind a busy worker while another may fall idle.
PIPELINE_NS = 2_000_000


@dataclass(slots=True, eq=False)
class Batch:
    """The requests of one dispatch, and what they were predicted to cost."""

    entries: list[Entry]
    cost_us: float | None
    sent_ns: int = 0
    suspect: bool = False


@dataclass(slots=True, eq=False)
class WorkerLoad:
    """A worker as the scheduler sees it: its credits, and the dispatches that hold them.

    Attributes:
        domain: the device that fails for all workers on it; "" where each fails by itself.
        batches: by dispatch, in the order in which it runs them.
        leaving: it is sent nothing more.
        reserved: it is kept free for a suspect, here or on its device, or runs one.
        last_sent: its latest dispatch; they are numbered over all workers.
    """

    name: str
    model: ModelVersion
    credits: int
    domain: str = ""
    batches: dict[int, Batch] = field(default_factory=dict)
    leaving: bool = False
    reserved: bool = False
    last_sent: int = 0

    @property
    def idle(self) -> bool:
        return not self.batches and not self.reserved and not self.leaving

    def pipeline_ns(self) -> int | None:
        """From when on a busy worker with a credit left may be sent more; None where nobody knows."""
        if self.reserved or self.leaving or not 0 < len(self.batches) < self.credits:
            return None
        end_ns = next(iter(self.batches.values())).sent_ns
        for batch in self.batches.values():
            if batch.cost_us is None:
                return None
            end_ns += int(batch.cost_us * 1000)
        return end_ns - PIPELINE_NS

    def shares_with(self, other: WorkerLoad) -> bool:
        """Whether what takes one of them down may take the other, too."""
        return bool(self.domain) and self.domain == other.domain


Policy = Callable[[Iterable[WorkerLoad]], WorkerLoad | None]


def by_load(worker: WorkerLoad) -> tuple[int, int]:
    return len(worker.batches), worker.last_sent


def _least_loaded(workers: Iterable[WorkerLoad]) -> WorkerLoad | None:
    return min(workers, key=by_load, default=None)


def _round_robin(workers: Iterable[WorkerLoad]) -> WorkerLoad | None:
    return min(workers, key=lambda worker: worker.last_sent, default=None)


POLICIES: dict[str, Policy] = {"least_loaded": _least_loaded, "round_robin": _round_robin}
