"""The scheduler: arrivals, credits, deaths and the clock in; dispatch orders and refusals out.

Pure: no sockets, no clock, no processes. One queue per model version sees every worker of it.

The laws, which the tests hold it to for every order of events:

- A request is answered exactly once: by a worker's result, by a refusal, or not at all because its
  client cancelled it.
- A worker never holds more dispatches than it granted credits.
- What had not been started when its worker was lost runs again elsewhere and is not suspected for that.
- What had been started is a suspect, whether its client still waits or not, and so is every request
  with the same body from then on; but not the first time, where that body was one of the last that were
  answered and the worker may have been lost by chance. Suspects run alone on their worker, and on its
  device where that fails for all workers on it, one at a time in the whole pool.
  When that worker is lost too, all with that body are refused, and it is kept out for a while; when the
  worker lives, those that had not been started themselves are suspects no more.

Times are CLOCK_MONOTONIC nanoseconds, costs microseconds of worker time.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mpspool.core.errors import Code, Lack, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.progress import WHOLE
from mpspool.core.settings import BatchingSettings
from mpspool.router.scheduling import admission, next_dispatch
from mpspool.router.scheduling.cost import CostTable
from mpspool.router.scheduling.entry import Entry
from mpspool.router.scheduling.fair_share import LEAST_S
from mpspool.router.scheduling.line import Line
from mpspool.router.scheduling.load import Batch, Device, Limits, WorkerLoad, by_load
from mpspool.router.scheduling.placement import Placement
from mpspool.router.scheduling.policy import Policy, edf
from mpspool.router.scheduling.queues import Queue, QueueRules
from mpspool.router.scheduling.suspicion import Blame, Standing, Suspicions
from mpspool.router.scheduling.turns import Turns

_SLACK = 64
_QUARANTINED = (
    "A worker was lost while it ran this request or one with the same body, and another while it ran it "
    "alone: it is taken for the cause, and not run again for a minute; `mpspool logs` of its "
    "model's workers has how they ended"
)
_TOO_LATE = "Deadline exceeded: too little time was left for the request, and others wait that have more; it was not run"
# Where nobody says from which cost on a job is long: from so many times the average one.
_LONG_BY = 1.5
_WEIGHT = 0.02  # of the newest request in that average


@dataclass(frozen=True, slots=True)
class PoolRules:
    """What holds for all queues.

    Attributes:
        dispatch: which worker is sent the next dispatch: one of placement.DISPATCHES.
        limits: what may run on a device at once.
        long_us: from which cost on, for sure, a job is long; 0 for one that costs more than others.
    """

    dispatch: str = "least_loaded"
    limits: Limits = field(default_factory=Limits)
    long_us: float = 0.0


class Send(NamedTuple):
    """Order: these requests, as this dispatch, to this worker; `together` as one batch."""

    worker: str
    dispatch: int
    entries: list[Entry]
    together: bool = False


class Refuse(NamedTuple):
    """Order: answer this request with an error."""

    entry: Entry
    error: PoolError


@dataclass(slots=True)
class _Choice:
    """What could be sent next, and where.

    Attributes:
        start_s: where queues share a device, when its turn is, on the device's clock.
        rank: how soon it is next among those of its policy there: the least is.
    """

    queue: Queue
    line: Line
    first: Entry
    worker: WorkerLoad
    long: bool
    start_s: float = 0.0
    rank: float = 0.0


@dataclass(slots=True)
class _Meeting:
    """Queues that take turns, as they are when the first of them is sent something.

    Attributes:
        waiting, waiting_slow: those of which anything waits, for the slow lane too.
        kept: devices on which turns are theirs alone by now.
    """

    waiting: set[Queue]
    waiting_slow: set[Queue]
    kept: set[Device] = field(default_factory=set)


class Scheduler:
    """Who runs what, when.

    Args:
        rules: what holds for all queues.
        queue_rules: what holds for each queue that is given none by govern().

    Attributes:
        hold_suspects: none is run now.
    """

    def __init__(self, rules: PoolRules, queue_rules: QueueRules) -> None:
        self._rules = rules
        self._queue_rules = queue_rules
        self._queues: dict[ModelVersion, Queue] = {}
        # Those in which something waits; of them, those that may be sent more than when they were last looked at, those
        # that an error kept from it (they are next after others have been), those with suspects, and when others are due.
        self._waits: dict[Queue, None] = {}
        self._stirred: dict[Queue, None] = {}
        self._failed: dict[Queue, None] = {}
        self._suspected: dict[Queue, None] = {}
        self._dues: list[tuple[int, int, Queue]] = []
        self._workers: dict[str, WorkerLoad] = {}
        self._devices: dict[str, Device] = {}
        self._turns: dict[Device, Turns] = {}
        self._average_us = 0.0
        self._dispatches = itertools.count(1)
        self._deadlines: list[tuple[int, int, Entry]] = []
        self._tiebreak = itertools.count()
        self._wanted = 0
        # What nobody has been given yet. Kept here, so that an error in dispatch() loses none.
        self._orders: list[Send | Refuse] = []
        self._trying = False  # a suspect is running
        # Whose suspect is the next to run, or runs, and the workers that are kept free for it.
        self._trial: tuple[Queue, list[WorkerLoad]] | None = None
        self._suspicions = Suspicions()
        self.costs = CostTable()
        self.hold_suspects = False

    def govern_all(self, rules: PoolRules) -> None:
        """What holds for all queues from now on."""
        was, self._rules = self._rules, rules
        for queue in self._queues.values():
            queue.placement.govern(rules.dispatch, rules.limits)
            if (rules.limits.long, rules.long_us) != (was.limits.long, was.long_us):
                queue.estimate_anew()
            self._stirred[queue] = None

    def govern(self, model: ModelVersion, rules: QueueRules) -> None:
        """What holds for the queue of a model version from now on."""
        queue = self._queue(model)
        queue.govern(rules)
        self._stirred[queue] = None

    def close(self, model: ModelVersion, *, closed: bool = True) -> None:
        """Nothing more comes for a model version, or it does again."""
        queue = self._queue(model)
        if queue.closed != closed:
            queue.closed = closed
            self._stirred[queue] = None

    def batching(self, model: ModelVersion) -> BatchingSettings | None:
        """How requests of a model version are joined; None where they run one by one."""
        return self._queue(model).rules.batching

    def policy(self, model: ModelVersion) -> Policy:
        """Who of a model version's requests is next."""
        return self._queue(model).rules.policy

    def _queue(self, model: ModelVersion) -> Queue:
        queue = self._queues.get(model)
        if queue is None:
            self.costs.take_over(model, sorted(other for other in self._queues if other.name == model.name))
            placement = Placement(self._rules.dispatch, self._rules.limits)
            queue = self._queues[model] = Queue(
                model, placement, self.costs, self._estimate, self._queue_rules
            )
        return queue

    # -- requests ---------------------------------------------------------------------------------

    def arrive(self, entry: Entry, now_ns: int, *, evict: bool = True) -> bool:
        """Takes a request into its queue, as arrive_in_parts() does."""
        return self.arrive_in_parts((entry,), now_ns, evict=evict)

    def arrive_in_parts(self, parts: Sequence[Entry], now_ns: int, *, evict: bool = True) -> bool:
        """Takes all parts of a request into their queue, or none.

        Args:
            parts: the request, or all parts of a large one.
            now_ns: the time.
            evict: others that wait may have to leave for it.

        Returns:
            Whether dispatch() has something to do now. It has not where others of its line wait already, as a rule.

        Raises:
            PoolError: it is refused at the door.
        """
        first = parts[0]
        queue = self._queue(first.model)
        queue.notice(first, now_ns)
        for entry in parts:
            entry.size = len(entry.body)
            if queue.apart:
                queue.set_apart(entry)
            self._estimate(entry, taken=False)
        leaving = admission.check_room(queue, parts)
        if leaving and not evict:
            try:
                raise leaving[0][1]
            finally:
                leaving = ()  # as in admission.py: it is not known here any more
        standing = self._suspicions.standing(first.model, first.body, now_ns)
        if standing is Standing.QUARANTINED:
            raise PoolError(Code.INTERNAL, _QUARANTINED)
        admission.check_deadline(queue, parts, now_ns)
        for entry in parts:
            self._learn_of(entry)
        queue.forget_over()
        self._forget_deadlines()
        for entry in parts:
            queue.place(entry)
        for other, error in leaving:
            self._orders.append(
                Refuse(other, admission.made_room(error, another=other.client != first.client))
            )
            self._end(other)
        for entry in parts:
            self._wanted += 1
            entry.suspect = standing is Standing.SUSPECT
            self._add(queue, entry)
            if entry.deadline_ns:
                heapq.heappush(self._deadlines, (entry.deadline_ns, next(self._tiebreak), entry))
        return self.stirs

    def may_be_full(self, model: ModelVersion) -> bool:
        """Whether there may be no room for one more request: as a rule there is, and this costs nothing."""
        queue = self._queue(model)
        settings = queue.rules.batching
        most = queue.rules.max_requests
        return queue.length >= (most if settings is None else min(most, settings.max_enqueued_batches))

    def check_room(self, entry: Entry) -> None:
        """Raises PoolError where a request that has not come as a whole would be refused for want of room, came it now."""
        admission.check_room(self._queue(entry.model), (entry,))

    def _estimate(self, entry: Entry, *, taken: bool = True) -> None:
        """What it will cost, and whether that makes it a long one. What is not taken in yet, and may be refused, teaches nothing."""
        cost_us = self.costs.predict(entry.model, entry.signature, entry.size, entry.rows)
        if cost_us is None:
            return
        entry.cost_s = entry.runs * cost_us / 1e6
        sure_us = entry.runs * self.costs.at_least(entry.model, entry.signature, entry.size, entry.rows)
        was_s, entry.sure_s = entry.sure_s, sure_us / 1e6
        if taken and not was_s:
            self._learn_of(entry)
        entry.long = sure_us >= self._long_us()

    def _learn_of(self, entry: Entry) -> None:
        """What one costs that was taken in, once that is known; of those that share batches these are what is learned of."""
        if self._rules.limits.long and entry.sure_s and not entry.rows:
            self._learn(entry.sure_s * 1e6)

    def _learn(self, cost_us: float) -> None:
        """What a job costs: a request that runs alone, or a batch."""
        was_us = self._long_us()
        self._average_us += _WEIGHT * (cost_us - self._average_us) if self._average_us else cost_us
        if was_us < (long_us := self._long_us()):
            for queue in self._waits:
                if next_dispatch.is_short_from(queue, was_us, long_us):
                    self._stirred[queue] = None

    def _long_us(self) -> float:
        """From which cost on a job is long, where it has it for sure: a first run makes nothing long."""
        if not self._rules.limits.long:
            return math.inf
        return self._rules.long_us or _LONG_BY * self._average_us or math.inf

    def _add(self, queue: Queue, entry: Entry) -> None:
        self._waits[queue] = None
        if queue.add(entry):
            self._stirred[queue] = None
        if entry.suspect:
            self._suspected[queue] = None

    @property
    def stirs(self) -> bool:
        """Whether dispatch() has something to do now, whatever the time."""
        return bool(self._stirred or self._failed or self._suspected or self._orders)

    def cancel(self, entry: Entry) -> None:
        """The client has gone: never run the request if it still waits, never answer it."""
        if not entry.over:
            self._end(entry)

    def expire(self, now_ns: int) -> list[Refuse]:
        """Refuses every request, waiting or running, whose deadline has passed."""
        refusals = []
        while self._deadlines and (self._deadlines[0][0] <= now_ns or self._deadlines[0][2].over):
            entry = heapq.heappop(self._deadlines)[2]
            if not entry.over:
                refusals.append(self._refuse(entry, Code.DEADLINE_EXCEEDED, "Deadline exceeded"))
        return refusals

    def fail(self, model: ModelVersion, reason: str) -> list[Refuse]:
        """No worker of this version will come back: refuses all that wait for one."""
        queue = self._queues.get(model)
        if queue is None:
            return []
        refusals = [self._refuse(entry, Code.UNAVAILABLE, reason) for entry in queue.waiting()]
        queue.suspects.clear()
        return refusals

    def forget(self, model: ModelVersion) -> list[Refuse]:
        """There is no such version any more, and no worker of it: nothing of it is kept."""
        queue = self._queues.get(model)
        if queue is None:
            return []
        refusals = self.fail(model, f"{model} is not served any more")
        del self._queues[model]
        for kept in (self._waits, self._stirred, self._failed, self._suspected):
            kept.pop(queue, None)
        self._stirred.update(self._waits)  # its devices may have room now, for others too
        if self._is_tried(queue):
            self._end_trial()
        for turns in self._turns.values():
            turns.forget(queue)
        self.costs.forget(model)
        return refusals

    def abandon(self, reason: str) -> list[Refuse]:
        """There is no time left: refuses all that wait or run."""
        running = [
            entry
            for worker in self._workers.values()
            for batch in worker.batches.values()
            for entry in batch.entries
            if not entry.over
        ]
        refusals = [self._refuse(entry, Code.UNAVAILABLE, reason) for entry in running]
        for model in list(self._queues):
            refusals += self.fail(model, reason)
        return refusals

    # -- workers ----------------------------------------------------------------------------------

    def join(self, name: str, model: ModelVersion, credit: int, device: str = "", domain: str = "") -> None:
        """A worker is READY.

        Args:
            name: the worker's.
            model: what it runs.
            credit: how many dispatches it may hold at once.
            device: what it shares with others that run beside it.
            domain: what fails for all workers on it at once; "" where each fails by itself.
        """
        place = self._devices.get(device)
        if place is None:
            place = self._devices[device] = Device(device)
            self._turns[place] = Turns()
        worker = self._workers[name] = WorkerLoad(name, model, credit, place, domain)
        if self._trial and any(worker.shares_with(one) for one in self._trial[1]):
            worker.reserved = True
            self._trial[1].append(worker)
        queue = self._queue(model)
        queue.placement.add(worker)
        self._stirred[queue] = None

    def leave(self, name: str) -> None:
        """A worker drains: it finishes what it holds and is sent nothing more."""
        if worker := self._workers.get(name):
            worker.leaving = True
            self._queue(worker.model).placement.settle(worker)

    def lost(
        self, name: str, started: tuple[int, int] | None, now_ns: int, blame: Blame = Blame.SURELY
    ) -> list[Refuse]:
        """A worker died or hangs.

        Args:
            name: the worker's.
            started: the (dispatch, index) that it was running, if any; index WHOLE for all of it.
            now_ns: the time.
            blame: what that says against what it was running.
        """
        worker = self._workers.pop(name, None)
        if worker is None:
            return []
        if self._trial and worker in self._trial[1]:
            self._trial[1].remove(worker)
        queue = self._queue(worker.model)
        renewed = worker.leaving
        queue.placement.remove(worker)
        if renewed or not queue.placement.workers:
            queue.apart.clear()
        self._stirred[queue] = None  # its device has room now, for others too
        blamed: list[tuple[Entry, bool]] = []
        again: list[Entry] = []
        for dispatch in list(worker.batches):
            batch = worker.give_back(dispatch, now_ns)
            assert batch is not None
            if batch.suspect:
                self._end_trial()
            for index, entry in enumerate(batch.entries):
                entry.held = False
                ran = started is not None and started[0] == dispatch and started[1] in (index, WHOLE)
                if ran and blame is not Blame.NONE:
                    blamed.append((entry, batch.suspect))
                elif entry.over:
                    entry.let_go()
                else:
                    again.append(entry)
        refusals = [refusal for entry in again for refusal in self._again(queue, entry, now_ns)]
        return refusals + self._blame(queue, blamed, now_ns, chance=blame is Blame.PERHAPS)

    def finished(self, name: str, dispatch: int, ran: bool = True, now_ns: int = 0) -> Batch | None:
        """A worker gave a dispatch's credit back.

        Args:
            name: the worker's.
            dispatch: which one.
            ran: whether it ran any of the requests; not where their deadlines had passed.
            now_ns: the time, from which on it runs what it holds beside.

        Returns:
            The batch, its requests in order, those that are `over` included (nobody wants their answers);
            None for a dispatch this worker does not hold: its results are to be dropped.
        """
        worker = self._workers.get(name)
        batch = worker.give_back(dispatch, now_ns) if worker else None
        if worker is None or batch is None:
            return None
        queue = self._queue(worker.model)
        if batch.suspect:
            self._end_trial()
            if ran:
                body = batch.entries[0].body
                self._suspicions.clear(worker.model, body)
                queue.clear(body)
        queue.placement.settle(worker)
        self._stirred[queue] = None
        more_s = batch.took_s(now_ns) - batch.charge_s
        if batch.charge_s and more_s > 0.0:
            self._turns[worker.device].charge(queue, batch.long, more_s)
        for entry in batch.entries:
            entry.held = False
            if entry.cost_s is None:
                queue.charge(entry, max(entry.charge_s, batch.took_s(now_ns) * batch.part(entry)))
            if entry.over:
                entry.let_go()
        return batch

    def keep_apart(self, entry: Entry) -> bool:
        """A worker could not join requests of this one's signature and outputs: from now on they run one by one.

        It is forgotten when a worker of the model version has left, or all have gone, or its batching changes: others may have other
        files, or settings.

        Returns:
            Whether that was not known.
        """
        queue = self._queue(entry.model)
        news = queue.keep_apart(entry)
        if news:
            self._stirred[queue] = None
        return news

    def answered(self, entry: Entry, *, ran: bool, size: int = 0) -> None:
        """The result of a finished request, of so many bytes, is being handed to its client. `ran`: a worker ran it."""
        if ran:
            self._queue(entry.model).ran(entry, size)
        self._end(entry)

    # -- dispatch ---------------------------------------------------------------------------------

    def dispatch(self, now_ns: int) -> list[Send | Refuse]:
        """Every dispatch that can be sent now, and who had to leave. To be called after expire() for the same time."""
        # First the one whose trial there is: when that is over, another's can begin.
        for queue in sorted(self._suspected, key=self._is_tried, reverse=True):
            if queue.suspects or self._is_tried(queue):
                self._dispatch_suspect(queue, now_ns)
            else:
                del self._suspected[queue]
        while self._dues and self._dues[0][0] <= now_ns:
            due_ns, _, queue = heapq.heappop(self._dues)
            if queue.due_ns == due_ns:
                queue.due_ns = 0
            self._stirred[queue] = None
        if not self._meet:
            while self._stirred:
                queue, _ = self._stirred.popitem()
                self._failed[queue] = None
                self._dispatch_all([queue], now_ns)
                del self._failed[queue]
        elif self._stirred:
            self._failed |= self._stirred
            self._stirred.clear()
            self._dispatch_all(list(self._waits), now_ns)
            self._failed.clear()
        self._stirred |= self._failed
        self._failed.clear()
        orders, self._orders = self._orders, []
        return orders

    @property
    def _meet(self) -> bool:
        """Whether queues take turns. Where nothing limits a device they do not; else who waits alone has had its turns, too."""
        return len(self._queues) > 1 and self._rules.limits.any

    def _dispatch_all(self, queues: list[Queue], now_ns: int) -> None:
        """Sends all that these queues can be sent now, and notes when there may be more."""
        shares: dict[tuple[Queue, bool], int] = {}
        meeting = None
        if self._meet:
            waiting = {queue for queue in queues if queue.waits}
            meeting = _Meeting(waiting, {queue for queue in waiting if queue.waits_slow})
        try:
            while self._dispatch_one(queues, shares, meeting, now_ns):
                pass
        finally:
            sent = {queue for queue, _ in shares}
            for queue in queues:
                if not queue.length:
                    self._waits.pop(queue, None)
                elif queue in self._failed or queue in sent or queue.is_timed:
                    self._look_again(queue, now_ns)

    def _turns_on(self, device: Device, meeting: _Meeting) -> Turns:
        """Whose turn it is there: of those of whom something waits. Of a device that nothing can be sent to nobody asks."""
        turns = self._turns[device]
        if device not in meeting.kept:
            meeting.kept.add(device)
            turns.keep(meeting.waiting, meeting.waiting_slow)
        return turns

    def _look_again(self, queue: Queue, now_ns: int) -> None:
        """Notes when more of it could be sent."""
        due_ns = next_dispatch.look_again_ns(queue, now_ns)
        if due_ns is not None and not 0 < queue.due_ns <= due_ns:
            queue.due_ns = due_ns
            heapq.heappush(self._dues, (due_ns, next(self._tiebreak), queue))
            self._forget_dues()

    def _dispatch_one(
        self,
        queues: list[Queue],
        shares: dict[tuple[Queue, bool], int],
        meeting: _Meeting | None,
        now_ns: int,
    ) -> bool:
        """Sends the dispatch that is next over these queues, if one can be sent.

        Args:
            queues: all that may be sent something.
            shares: by queue and lane, requests for each worker at most; of those that have been sent something since these
                were looked at.
            meeting: where they take turns.
            now_ns: the time.

        Returns:
            Whether there may be another: one was sent, or who was next has left, and somebody else is.
        """
        alone = len(queues) == 1
        # By device, and by policy: the numbers of two need not mean the same, and are not compared.
        best: dict[tuple[Device, Policy], _Choice] = {}
        could: dict[tuple[Device, bool], list[Queue]] = {}
        for queue in queues:
            for choice in self._next(queue, now_ns, alone=alone) if queue.waits else ():
                device = choice.worker.device
                if meeting is not None:
                    turns = self._turns_on(device, meeting)
                    after_s = queue.after_s(choice.first)
                    choice.start_s = turns.start_s(queue, choice.long, after_s)
                    choice.rank = after_s + choice.start_s
                    if queue.rules.policy is edf:  # a deadline is one whoever is asked, and when
                        choice.rank = after_s + choice.first.arrived_s
                    could.setdefault((device, choice.long), []).append(queue)
                known = best.get((device, queue.rules.policy))
                if known is None or choice.rank < known.rank:
                    best[device, queue.rules.policy] = choice
        if not best:
            return False
        choice = min(best.values(), key=lambda one: one.start_s)
        queue, worker, long = choice.queue, choice.worker, choice.long
        lane = queue, choice.line.slow
        if lane not in shares:
            shares[lane] = next_dispatch.share(*lane)
        begin_ns = now_ns + int(worker.left_s(now_ns) * 1e9)
        batch = next_dispatch.take(queue, choice.line, now_ns, begin_ns, shares[lane], long)
        self._orders += [
            self._refuse(entry, Code.DEADLINE_EXCEEDED, _TOO_LATE, Lack.TIME) for entry in queue.late
        ]
        queue.late.clear()
        if not batch.entries:
            return True
        if meeting is not None:
            if batch.cost_us is None:
                batch.charge_s = LEAST_S
            cost_s = batch.charge_s or (batch.cost_us or 0.0) / 1e6
            others = (worker.device, not long) in could
            self._turns[worker.device].serve(queue, long, cost_s, could[worker.device, long], others=others)
        self._orders.append(self._send(queue, worker, batch, now_ns))
        return True

    def _next(self, queue: Queue, now_ns: int, alone: bool) -> list[_Choice]:
        """What a queue would send next, and to whom: one choice, or one that is long and one that is not.

        Args:
            queue: whose.
            now_ns: the time.
            alone: there is no other that may be kept off a device by that, and whose turn might be between the two.
        """
        place = queue.placement
        limits = self._rules.limits
        workers: dict[bool, WorkerLoad | None] = {}
        for long in (False, True) if limits.long else (False,):
            workers[long] = place.idle(long)
            # Who is always sent more before its device is free is the only one who ever runs there, and no suspect does.
            limited = limits.running or (long and limits.long)
            if workers[long] is None and (not limited or (alone and self._trial is None)):
                workers[long] = place.soon(long, now_ns, next_dispatch.window_ns(queue))
        # What was long while there was a slow lane is still called so.
        workers.setdefault(True, workers[False])
        if workers[False] is None and workers[True] is None:
            return []
        found = next_dispatch.next_lines(queue, now_ns, lambda long: workers[long] is not None, self._long_us)
        choices = []
        for long, (line, first) in found.items():
            worker = workers[long]
            assert worker is not None
            choices.append(_Choice(queue, line, first, worker, long))
        if len(choices) > 1 and (alone or not limits.long):
            return [min(choices, key=lambda choice: queue.place_of(choice.line, choice.first))]
        return choices

    def look_again_ns(self, now_ns: int) -> int | None:
        """When dispatch() could next send something, if nothing else happens before."""
        return max(self._dues[0][0], now_ns) if self._dues else None

    def _send(self, queue: Queue, worker: WorkerLoad, batch: Batch, now_ns: int) -> Send:
        dispatch = next(self._dispatches)
        if batch.together and batch.sure_us and self._rules.limits.long:
            self._learn(batch.sure_us)
        worker.take(dispatch, batch, now_ns)
        queue.placement.settle(worker)
        for entry in batch.entries:
            entry.sent_ns = now_ns
            entry.held = True
        return Send(worker.name, dispatch, batch.entries, batch.together)

    # -- suspects ---------------------------------------------------------------------------------

    def _dispatch_suspect(self, queue: Queue, now_ns: int) -> None:
        """One suspect at a time in the pool, alone on a device or a worker that is emptied for it first."""
        if self._trying or (self._trial and not self._is_tried(queue)):
            return
        while queue.suspects and queue.suspects[0].over:
            queue.suspects.popleft()
        staying = [worker for worker in queue.placement.workers.values() if not worker.leaving]
        if self.hold_suspects or not queue.suspects or not staying:
            self._end_trial()
            return
        worker = min([one for one in staying if one.reserved] or staying, key=by_load)
        group = [one for one in self._workers.values() if one is worker or one.shares_with(worker)]
        if self._trial is None or self._trial[1] != group:
            self._end_trial()
            self._trial = queue, group
            for one in group:
                one.reserved = True
                self._queue(one.model).placement.settle(one)
        long = queue.suspects[0].long
        if not any(one.batches for one in group) and self._rules.limits.allow(worker.device, long):
            entry = queue.suspects.popleft()
            queue.discount(entry)
            self._trying = True
            cost_us = None if entry.cost_s is None else entry.cost_s * 1e6
            batch = Batch([entry], cost_us, entry.sure_s * 1e6, long=long, suspect=True)
            self._orders.append(self._send(queue, worker, batch, now_ns))

    def _is_tried(self, queue: Queue) -> bool:
        return self._trial is not None and self._trial[0] is queue

    def _end_trial(self) -> None:
        """What was kept free for a suspect, or ran it, takes other requests again."""
        for worker in self._trial[1] if self._trial else ():
            worker.reserved = False
            queue = self._queue(worker.model)
            queue.placement.settle(worker)
            self._stirred[queue] = None
        self._trial = None
        self._trying = False

    def _again(self, queue: Queue, entry: Entry, now_ns: int) -> list[Refuse]:
        """Back to its place in the queue: its worker was lost and had not started it."""
        entry.sent_ns = 0  # it has not been run
        standing = self._suspicions.standing(entry.model, entry.body, now_ns)
        if standing is Standing.QUARANTINED:
            return [self._refuse(entry, Code.INTERNAL, _QUARANTINED)]
        entry.suspect = entry.suspect or standing is Standing.SUSPECT
        self._add(queue, entry)
        return []

    def _blame(
        self, queue: Queue, blamed: Iterable[tuple[Entry, bool]], now_ns: int, *, chance: bool
    ) -> list[Refuse]:
        """Their worker was lost while it ran these, each perhaps alone; by chance, perhaps."""
        refusals: list[Refuse] = []
        standings: dict[bytes, Standing] = {}
        for entry, alone in blamed:
            entry.deaths += 1
            if chance and not alone and entry.deaths == 1 and queue.excuses(entry, now_ns):
                if entry.over:
                    entry.let_go()
                else:
                    refusals += self._again(queue, entry, now_ns)
                continue
            standings[entry.body] = self._suspicions.blame(entry.model, entry.body, alone, now_ns)
            if entry.over:
                entry.let_go()
            else:
                entry.suspect = True
                self._add(queue, entry)
        if standings:
            queue.suspect(standings)
            self._suspected[queue] = None
        alike = [other for other in queue.suspects if standings.get(other.body) is Standing.QUARANTINED]
        return refusals + [
            self._refuse(other, Code.INTERNAL, _QUARANTINED) for other in alike if not other.over
        ]

    # -- bookkeeping ------------------------------------------------------------------------------

    def _forget_deadlines(self) -> None:
        """Keeps those of requests that are over from piling up before the ones to come."""
        if len(self._deadlines) > 2 * self._wanted + _SLACK:
            self._deadlines = [item for item in self._deadlines if not item[2].over]
            heapq.heapify(self._deadlines)

    def _forget_dues(self) -> None:
        """Keeps those from piling up that an earlier one has taken the place of."""
        if len(self._dues) > 2 * len(self._queues) + _SLACK:
            self._dues = [item for item in self._dues if item[2].due_ns == item[0]]
            heapq.heapify(self._dues)

    def _refuse(self, entry: Entry, code: Code, text: str, lack: Lack | None = None) -> Refuse:
        self._end(entry)
        return Refuse(entry, PoolError(code, text, lack))

    def _end(self, entry: Entry) -> None:
        entry.over = True
        queue = self._queue(entry.model)
        if entry.waiting and self._rules.limits.long:
            self._stirred[queue] = None  # the batch that is left need not be long
        queue.leave(entry)
        self._wanted -= 1
        if not entry.held:
            entry.let_go()

    def queued(self, model: ModelVersion) -> int:
        """Requests that wait, not counting those in flight."""
        return self._queue(model).length

    def answer_bytes(self, entry: Entry) -> int:
        """Of the largest answers of late to requests like this one; 0 where there was none."""
        return self._queue(entry.model).answer_bytes(entry.signature, entry.size)

    def answers_to_come(self, model: ModelVersion, signature: str, size: int) -> tuple[int, int]:
        """How many dispatches workers may be sent beyond what they have, and bytes of an answer to a request of that size: as many as
        it has where there was none yet.
        """
        queue = self._queue(model)
        workers = queue.placement.workers.values()
        free = sum(worker.credits - len(worker.batches) for worker in workers if worker.open)
        return free, queue.answer_bytes(signature, size) or size

    def queued_limit(self, model: ModelVersion) -> int:
        """How many may wait."""
        return self._queue(model).rules.max_requests

    def queued_slow(self, model: ModelVersion) -> int:
        """Of those, how many wait for the slow lane."""
        return self._queue(model).lined_slow

    def in_flight(self, name: str) -> int:
        """Requests that a worker holds."""
        worker = self._workers.get(name)
        return sum(len(batch.entries) for batch in worker.batches.values()) if worker else 0

    def predicted_us(self, name: str) -> float | None:
        """What the dispatch that a worker runs now was predicted to cost."""
        worker = self._workers.get(name)
        return next((batch.cost_us for batch in worker.batches.values()), None) if worker else None

    def devices(self) -> list[Device]:
        """Every device that has had a worker."""
        return list(self._devices.values())

    def device(self, name: str) -> Device | None:
        """What the worker of that name runs on."""
        worker = self._workers.get(name)
        return worker.device if worker else None

    def running_since_ns(self, name: str) -> int | None:
        """Since when that worker has had its present dispatch before it; None where it has none."""
        worker = self._workers.get(name)
        batch = next(iter(worker.batches.values()), None) if worker else None
        return batch.began[0] if batch else None

    def unfinished(self) -> int:
        """Requests that wait or run and are still wanted."""
        return self._wanted
