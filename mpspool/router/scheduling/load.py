"""What each worker and each device holds. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from mpspool.core.ids import ModelVersion
from mpspool.router.scheduling.entry import Entry


@dataclass(slots=True, eq=False)
class Batch:
    """The requests of one dispatch, and what they were predicted to cost.

    Attributes:
        sure_us: what of that they take for sure.
        together: they are run as one.
        long: it is of those that a slow lane is for.
        began: the time, and its device's clock, when its worker had nothing before it any more.
        alone: once finished, the part of its time that it would have taken with the device to itself, where those
            that ran beside it shared the device evenly.
        charge_s: what its model was charged for it when it was sent, where its cost is not known and models share a device.
        rows: of one that runs together; 0 of another.
    """

    entries: list[Entry]
    cost_us: float | None
    sure_us: float = 0.0
    together: bool = False
    long: bool = False
    suspect: bool = False
    began: tuple[int, float] = (0, 0.0)
    alone: float = 1.0
    charge_s: float = 0.0
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows = sum(entry.rows for entry in self.entries) if self.together else 0

    def took_s(self, now_ns: int) -> float:
        """For how long its worker had nothing before it until now."""
        return max(0, now_ns - self.began[0]) / 1e9

    def part(self, entry: Entry) -> float:
        """What of it one of its requests is."""
        return entry.rows / self.rows if self.rows else 1 / len(self.entries)


@dataclass(slots=True, eq=False)
class Device:
    """A GPU, or all CPU slots, over all models.

    Attributes:
        running: workers on it that hold a dispatch.
        long: those of them that hold a long one.
        clock_ns: how far one of those that run has come, where they share the device evenly.
        busy_s: what all that was run took, by the workers' own clocks.
        effective_s: what it would have taken one after the other.
    """

    name: str
    running: int = 0
    long: int = 0
    clock_ns: float = 0.0
    busy_s: float = 0.0
    effective_s: float = 0.0
    _at_ns: int = 0

    def advance(self, now_ns: int) -> float:
        """Its clock, brought up to now: before anything about what runs changes."""
        if now_ns > self._at_ns:
            if self.running:
                self.clock_ns += (now_ns - self._at_ns) / self.running
            self._at_ns = now_ns
        return self.clock_ns

    def ran(self, busy_s: float, alone: float) -> None:
        """A worker finished something on it that took this long."""
        self.busy_s += busy_s
        self.effective_s += busy_s * alone


# More than any device runs.
_NO_LIMIT = 2**30


@dataclass(frozen=True, slots=True)
class Limits:
    """What may run on a device at once; 0 for no limit.

    Attributes:
        running: dispatches, over all models.
        long: long ones, over all models: the width of the slow lane.
    """

    running: int = 0
    long: int = 0

    @property
    def any(self) -> bool:
        """Whether what is sent may keep others, of any model, from being sent."""
        return bool(self.running or self.long)

    def allow(self, device: Device, long: bool) -> bool:
        """Whether one more dispatch may be begun there."""
        return self.room(long, device.running, device.long) > 0

    def room(self, long: bool, running: int = 0, slow: int = 0) -> int:
        """How many more dispatches may be begun on a device that runs so many, and so many long ones among them."""
        more = self.running - running if self.running else _NO_LIMIT
        if long and self.long:
            more = min(more, self.long - slow)
        return max(0, more)


@dataclass(slots=True, eq=False)
class WorkerLoad:
    """A worker as the scheduler sees it: its credits, and the dispatches that hold them.

    Attributes:
        domain: the device that fails for all workers on it; "" where each fails by itself.
        batches: by dispatch, in the order in which it runs them.
        leaving: it is sent nothing more.
        reserved: it is kept free for a suspect, here or on its device, or runs one.
        last_sent: its latest dispatch; they are numbered over all workers.
        open, free, stays, counted_held, counted_rows: its placement counts it as one that is sent more, as idle, as one that does not
            leave, and with so many requests and rows.
    """

    name: str
    model: ModelVersion
    credits: int
    device: Device
    domain: str = ""
    batches: dict[int, Batch] = field(default_factory=dict)
    leaving: bool = False
    reserved: bool = False
    last_sent: int = 0
    open: bool = False
    free: bool = False
    stays: bool = False
    counted_held: int = 0
    counted_rows: int = 0

    @property
    def idle(self) -> bool:
        return not self.batches and not self.reserved and not self.leaving

    @property
    def held(self) -> int:
        """Requests of the batches."""
        return sum(len(batch.entries) for batch in self.batches.values())

    @property
    def rows(self) -> int:
        """Of the batches."""
        return sum(batch.rows for batch in self.batches.values())

    @property
    def long(self) -> bool:
        return any(batch.long for batch in self.batches.values())

    def end_ns(self) -> int | None:
        """When a busy worker with a credit left will have run all it holds; None of others, or where nobody knows."""
        if self.reserved or self.leaving or not 0 < len(self.batches) < self.credits:
            return None
        end_ns = next(iter(self.batches.values())).began[0]
        for batch in self.batches.values():
            if batch.cost_us is None:
                return None
            end_ns += int(batch.cost_us * 1000)
        return end_ns

    def left_s(self, now_ns: int) -> float:
        """How much longer it takes for sure for what it holds; 0 for what should have been run by now."""
        left_s = 0.0
        for number, batch in enumerate(self.batches.values()):
            ran_s = 0.0 if number else batch.took_s(now_ns)  # those behind the first have not begun
            left_s += max(0.0, batch.sure_us / 1e6 - ran_s)
        return left_s

    def take(self, dispatch: int, batch: Batch, now_ns: int) -> None:
        """It is sent a batch."""
        device = self.device
        batch.began = now_ns, device.advance(now_ns)
        was_long = self.long
        device.running += not self.batches
        device.long += batch.long and not was_long
        self.batches[dispatch] = batch
        self.last_sent = dispatch

    def give_back(self, dispatch: int, now_ns: int) -> Batch | None:
        """The batch that it held as this dispatch, if it did."""
        batch = self.batches.get(dispatch)
        if batch is None:
            return None
        device = self.device
        clock_ns = device.advance(now_ns)
        was_long = self.long
        del self.batches[dispatch]
        device.running -= not self.batches
        device.long -= was_long and not self.long
        began_ns, began_clock_ns = batch.began
        if now_ns > began_ns:
            # The clock is a sum of fractions.
            batch.alone = min(1.0, (clock_ns - began_clock_ns) / (now_ns - began_ns))
        for following in self.batches.values():
            following.began = max(now_ns, following.began[0]), clock_ns
        return batch

    def shares_with(self, other: WorkerLoad) -> bool:
        """Whether what takes one of them down may take the other, too."""
        return bool(self.domain) and self.domain == other.domain


def by_load(worker: WorkerLoad) -> tuple[int, int]:
    return len(worker.batches), worker.last_sent
