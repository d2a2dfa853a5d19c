"""One slot's life: when its worker is started, started again, waited for, or given up. Pure.

Two counts decide. `unready` is how many restarts in a row were made without the worker having been
READY: after RestartSettings.retries of them the slot is FATAL. `row` is how many restarts in a row
followed a worker that was not READY for long: the first is immediate, each next one waits twice as
long. A worker that reaches READY and dies young therefore backs off but is never given up.

A worker that neither ends nor gets READY is overdue after the slot's start limit, and one that was READY and is unknown to the
router after the slot's other limit, which begins anew while it runs a request: it is ended as one that hangs, which counts as any
other end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from mpspool.core.process import EXIT_NEVER
from mpspool.core.settings import RestartSettings
from mpspool.core.states import SLOT_MOVES, Lifecycle, SlotState

# A worker READY this long has proved itself: its death starts the count anew.
PROVEN_S = 10.0


@dataclass(frozen=True, slots=True)
class StartNow:
    """Start a worker of this generation."""

    generation: int


@dataclass(frozen=True, slots=True)
class StartAt:
    """Nothing to do before `at`, in the clock's seconds."""

    at: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The slot is FATAL: no worker is started in it any more."""

    reason: str


Instruction = StartNow | StartAt | GiveUp


class SlotRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A slot as it is kept on disk for the pool's successor. Times are CLOCK_MONOTONIC."""

    state: SlotState = SlotState.EMPTY
    pid: int = 0
    generation: int = 0
    restarts: int = 0
    row: int = 0
    unready: int = 0
    proved: bool = False
    ready_since: float | None = None
    unready_since: float | None = None
    due: float | None = None
    reason: str = ""


class Slot:
    """The state of one slot. Times are seconds of one monotonic clock, as the caller passes them.

    Args:
        name: for errors.
        settings: when a worker that ended is started again.
        record: of the slot this one goes on from.
        start_timeout_s: how long a worker may be on its way to READY.
        lost_timeout_s: how long one that was READY may be lost sight of, and not be seen to run a request.

    Attributes:
        start_timeout_s, lost_timeout_s: as given, or changed since.
        pid: the worker's, 0 while the slot has none.
        generation: of the worker that was started last, 0 before the first.
        restarts: how often a worker was started again, in all.
        ready_since: when its worker became READY; None for one that never was.
        unready_since: when its worker was started, or had been READY and was lost sight of; None while it is
            READY, and without one.
        due: when the next worker starts; None unless the slot is in BACKOFF.
        reason: why the last worker ended, "" while all is well.
        proved: whether a worker of this slot has ever been READY.
    """

    def __init__(
        self,
        name: str,
        settings: RestartSettings,
        record: SlotRecord | None = None,
        *,
        start_timeout_s: float = math.inf,
        lost_timeout_s: float = math.inf,
    ) -> None:
        record = record or SlotRecord()
        self._life = Lifecycle(name, SLOT_MOVES, record.state)
        self._settings = settings
        self.start_timeout_s = start_timeout_s
        self.lost_timeout_s = lost_timeout_s
        self._row = record.row
        self._unready = record.unready
        self._counted = False
        self.pid = record.pid
        self.generation = record.generation
        self.restarts = record.restarts
        self.ready_since = record.ready_since
        self.unready_since = record.unready_since
        self._ran_at = -math.inf
        self.due = record.due
        self.reason = record.reason
        self.proved = record.proved

    def record(self) -> SlotRecord:
        """What a Slot made with it goes on from."""
        return SlotRecord(
            state=self.state,
            pid=self.pid,
            generation=self.generation,
            restarts=self.restarts,
            row=self._row,
            unready=self._unready,
            proved=self.proved,
            ready_since=self.ready_since,
            unready_since=self.unready_since,
            due=self.due,
            reason=self.reason,
        )

    @property
    def state(self) -> SlotState:
        return self._life.state

    @property
    def serves(self) -> bool:
        """Whether its worker is READY."""
        return self.state is SlotState.OCCUPIED and self.unready_since is None

    def tick(self, now: float) -> Instruction | None:
        """What to do now: the answer is the same until an event comes or `due` has passed."""
        if self.state is SlotState.EMPTY:
            return StartNow(self.generation + 1)
        if self.state is SlotState.BACKOFF and self.due is not None:
            return StartNow(self.generation + 1) if now >= self.due else StartAt(self.due)
        return None

    def started(self, pid: int, generation: int, at: float) -> None:
        """A worker runs in the slot from now on: a new one, or one that was found running."""
        self._life.to(SlotState.OCCUPIED, f"pid {pid} of generation {generation}")
        if 0 < self.generation < generation:
            self.restarts += 1
        self._counted = False
        self.pid = pid
        self.generation = generation
        self.due = None
        self.ready_since = None
        self.unready_since = at

    def ready(self, now: float) -> None:
        """The worker takes requests. Repeating it changes nothing."""
        if self.state is SlotState.OCCUPIED and self.unready_since is not None:
            if self.ready_since is None:
                self.ready_since = now
            self.unready_since = None
            self.proved = True
            self._unready = 0
            self.reason = ""

    def lost(self, now: float) -> None:
        """Nobody knows whether the worker, which was READY, still is. Repeating it changes nothing."""
        if self.serves:
            self.unready_since = now

    @property
    def is_lost(self) -> bool:
        """Whether its worker was READY, and was lost sight of."""
        return self.ready_since is not None and self.unready_since is not None

    def runs(self, now: float) -> None:
        """Its worker, which was lost sight of, runs a request: it can be heard of only once that is done."""
        self._ran_at = now

    def overdue(self, now: float, judged_since: float) -> bool:
        """Whether the worker has not been READY for so long that it counts as hung.

        Args:
            now: the time.
            judged_since: since when it would be known that the worker is READY; what was before that does not
                count against it.
        """
        if self.unready_since is None:
            return False
        since = max(self.unready_since, judged_since)
        lost = self.is_lost and now - max(since, self._ran_at) >= self.lost_timeout_s
        return lost or now - since >= self.start_timeout_s

    def ended(self, status: int, at: float, reason: str = "", *, hit: bool = False) -> Instruction:
        """The worker is gone and reaped.

        Args:
            status: its exit status, negative where a signal ended it.
            at: when.
            reason: what it said, or how it ended, for whoever asks why.
            hit: its device failed, and all on it were ended: that counts against a worker only while it is not
                READY, when it may be what makes the device fail. EXIT_NEVER is then no more than any other status.
        """
        ready_since, self.ready_since = self.ready_since, None
        self.unready_since = None
        self.pid = 0
        self.reason = reason or f"ended with status {status}"
        if status == EXIT_NEVER and not hit:
            return self._give_up(self.reason)
        if hit and ready_since is not None:
            self._life.to(SlotState.EMPTY, self.reason)
            return StartNow(self.generation + 1)
        if ready_since is None and self._unready >= self._settings.retries:
            return self._give_up(f"not READY after {self._unready} restarts: {self.reason}")
        if ready_since is not None and at - ready_since >= PROVEN_S:
            self._row = 0
        self._row += 1
        self._unready += 1
        self._counted = ready_since is not None
        return self._again(at)

    def excuse(self) -> None:
        """It turns out that its device had failed: the end of a worker that was READY does not count. Once for each end."""
        if not self._counted:
            return
        self._counted = False
        self._row -= 1
        self._unready -= 1
        if self.state is SlotState.BACKOFF:
            self._life.to(SlotState.EMPTY, self.reason)
            self.due = None

    def _again(self, at: float) -> Instruction:
        wait_s = delay_s(self._row, self._settings)
        if wait_s == 0:
            self._life.to(SlotState.EMPTY, self.reason)
            return StartNow(self.generation + 1)
        self._life.to(SlotState.BACKOFF, self.reason)
        self.due = at + wait_s
        return StartAt(self.due)

    def _give_up(self, reason: str) -> GiveUp:
        self.reason = reason
        self._life.to(SlotState.FATAL, reason)
        return GiveUp(reason)


def delay_s(row: int, settings: RestartSettings) -> float:
    """How long the row-th restart in a row waits: 0, then backoff_s, doubling up to max_backoff_s."""
    if row <= 1:
        return 0.0
    doublings = min(row - 2, 63)  # more would overflow before max_backoff_s cuts it
    return float(min(settings.backoff_s * 2.0**doublings, settings.max_backoff_s))
