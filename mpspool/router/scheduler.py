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
from collections import defaultdict
from dataclasses import dataclass

from mpspool.core.errors import Code, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.router.cost import CostTable
from mpspool.router.entry import Entry
from mpspool.router.load import POLICIES, Batch, WorkerLoad, by_load
from mpspool.router.queues import Queue
from mpspool.router.suspicion import Blame, Standing, Suspicions

_SLACK = 64
_QUARANTINED = (
    "A worker was lost while it ran this request or one with the same body, and another while it ran it "
    "alone: it is taken for the cause and not run again for now"
)


@dataclass(frozen=True, slots=True)
class Send:
    """Order: these requests, as this dispatch, to this worker."""

    worker: str
    dispatch: int
    entries: list[Entry]


@dataclass(frozen=True, slots=True)
class Refuse:
    """Order: answer this request with an error."""

    entry: Entry
    error: PoolError


class Scheduler:
    """Who runs what, when.

    Args:
        policy: a key of load.POLICIES.
        max_queued_requests: waiting requests per model version.
        max_queued_bytes: request bodies in the queues and in flight, over all models.

    Attributes:
        hold_suspects: none is run now.
    """

    def __init__(self, policy: str, max_queued_requests: int, max_queued_bytes: int) -> None:
        self._pick = POLICIES[policy]
        self._max_requests = max_queued_requests
        self._max_bytes = max_queued_bytes
        self._queues: defaultdict[ModelVersion, Queue] = defaultdict(Queue)
        self._workers: dict[str, WorkerLoad] = {}
        self._dispatches = itertools.count(1)
        self._deadlines: list[tuple[int, int, Entry]] = []
        self._tiebreak = itertools.count()
        self._bytes = 0
        self._wanted = 0
        self._trying = False  # a suspect is running
        # Whose suspect is the next to run, or runs, and the workers that are kept free for it.
        self._trial: tuple[Queue, list[WorkerLoad]] | None = None
        self._suspicions = Suspicions()
        self.costs = CostTable()
        self.hold_suspects = False

    # -- requests ---------------------------------------------------------------------------------

    def arrive(self, entry: Entry, now_ns: int) -> None:
        """Takes a request into its queue. Raises PoolError where it is refused at the door."""
        queue = self._queues[entry.model]
        if queue.length >= self._max_requests:
            raise PoolError(
                Code.UNAVAILABLE,
                f"The queue of {entry.model} is full: {queue.length} requests wait; try again later",
            )
        entry.size = len(entry.body)
        if self._bytes + entry.size > self._max_bytes:
            raise PoolError(
                Code.RESOURCE_EXHAUSTED,
                f"Requests in the queues hold {self._bytes} of {self._max_bytes} bytes and this one has "
                f"{entry.size}; try again later",
            )
        standing = self._suspicions.standing(entry.model, entry.body, now_ns)
        if standing is Standing.QUARANTINED:
            raise PoolError(Code.INTERNAL, _QUARANTINED)
        entry.suspect = standing is Standing.SUSPECT
        self._bytes += entry.size
        queue.forget_over()
        self._forget_deadlines()
        self._wanted += 1
        queue.active = True
        queue.add(entry)
        if entry.deadline_ns:
            heapq.heappush(self._deadlines, (entry.deadline_ns, next(self._tiebreak), entry))

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
        queue = self._queues[model]
        waiting = [entry for entry in (*queue.suspects, *queue.waiting) if not entry.over]
        refusals = [self._refuse(entry, Code.UNAVAILABLE, reason) for entry in waiting]
        queue.suspects.clear()
        queue.waiting.clear()
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

    def join(self, name: str, model: ModelVersion, credit: int, domain: str = "") -> None:
        """A worker is READY and may hold `credit` dispatches at once; what `domain` names fails for all on it."""
        worker = WorkerLoad(name, model, credit, domain)
        self._workers[name] = self._queues[model].workers[name] = worker

    def leave(self, name: str) -> None:
        """A worker drains: it finishes what it holds and is sent nothing more."""
        if worker := self._workers.get(name):
            worker.leaving = True

    def lost(
        self, name: str, started: tuple[int, int] | None, now_ns: int, blame: Blame = Blame.SURELY
    ) -> list[Refuse]:
        """A worker died or hangs.

        Args:
            name: the worker's.
            started: the (dispatch, index) that it was running, if any.
            now_ns: the time.
            blame: what that says against what it was running.
        """
        worker = self._workers.pop(name, None)
        if worker is None:
            return []
        queue = self._queues[worker.model]
        del queue.workers[name]
        blamed: tuple[Entry, bool] | None = None
        again: list[Entry] = []
        for dispatch, batch in worker.batches.items():
            if batch.suspect:
                self._end_trial()
            for index, entry in enumerate(batch.entries):
                entry.held = False
                if (dispatch, index) == started and blame is not Blame.NONE:
                    blamed = entry, batch.suspect
                elif entry.over:
                    self._let_go(entry)
                else:
                    again.append(entry)
        refusals = [refusal for entry in reversed(again) for refusal in self._again(queue, entry, now_ns)]
        if blamed is None:
            return refusals
        return refusals + self._blame(queue, *blamed, now_ns, chance=blame is Blame.PERHAPS)

    def finished(self, name: str, dispatch: int, ran: bool = True) -> list[Entry] | None:
        """A worker gave a dispatch's credit back.

        Args:
            name: the worker's.
            dispatch: which one.
            ran: whether it ran any of the requests; not where their deadlines had passed.

        Returns:
            Its requests in order, those that are `over` included (nobody wants their answers), or
            None for a dispatch this worker does not hold: its results are to be dropped.
        """
        worker = self._workers.get(name)
        batch = worker.batches.pop(dispatch, None) if worker else None
        if worker is None or batch is None:
            return None
        if batch.suspect:
            self._end_trial()
            if ran:
                body = batch.entries[0].body
                self._suspicions.clear(worker.model, body)
                self._queues[worker.model].clear(body)
        for entry in batch.entries:
            entry.held = False
            if entry.over:
                self._let_go(entry)
        return batch.entries

    def answered(self, entry: Entry, *, ran: bool) -> None:
        """The result of a finished request is being handed to its client. `ran`: a worker ran it."""
        if ran:
            self._queues[entry.model].ran(entry.body)
        self._end(entry)

    # -- dispatch ---------------------------------------------------------------------------------

    def dispatch(self, now_ns: int) -> list[Send]:
        """Every dispatch that can be sent now."""
        orders: list[Send] = []
        for queue in self._queues.values():
            if queue.suspects or (self._trial and self._trial[0] is queue):
                self._dispatch_suspect(queue, now_ns, orders)
            share = queue.share()
            while queue.waiting:
                worker = queue.free_worker(self._pick, now_ns)
                if worker is None:
                    break
                entries, cost_us = queue.take(share, now_ns, self.costs)
                if entries:
                    orders.append(self._send(worker, Batch(entries, cost_us), now_ns))
        return orders

    def look_again_ns(self, now_ns: int) -> int | None:
        """When dispatch() could next use a second credit, if nothing else happens before."""
        dues = [queue.look_again_ns(now_ns) for queue in self._queues.values()]
        return min((due for due in dues if due is not None), default=None)

    def _send(self, worker: WorkerLoad, batch: Batch, now_ns: int) -> Send:
        dispatch = next(self._dispatches)
        worker.batches[dispatch] = batch
        batch.sent_ns = now_ns
        worker.last_sent = dispatch
        queue = self._queues[worker.model]
        for entry in batch.entries:
            entry.sent_ns = now_ns
            entry.held = True
            queue.discount(entry)
        return Send(worker.name, dispatch, batch.entries)

    # -- suspects ---------------------------------------------------------------------------------

    def _dispatch_suspect(self, queue: Queue, now_ns: int, orders: list[Send]) -> None:
        """One suspect at a time in the pool, alone on a device or a worker that is emptied for it first."""
        if self._trying or (self._trial and self._trial[0] is not queue):
            return
        while queue.suspects and queue.suspects[0].over:
            queue.suspects.popleft()
        staying = [worker for worker in queue.workers.values() if not worker.leaving]
        kept = [worker for worker in staying if worker.reserved]
        self._end_trial()
        if self.hold_suspects or not queue.suspects or not staying:
            return
        worker = min(kept or staying, key=by_load)
        group = [one for one in self._workers.values() if one is worker or one.shares_with(worker)]
        self._trial = queue, group
        for one in group:
            one.reserved = True
        if not any(one.batches for one in group):
            entry = queue.suspects.popleft()
            self._trying = True
            orders.append(self._send(worker, Batch([entry], None, suspect=True), now_ns))

    def _end_trial(self) -> None:
        """What was kept free for a suspect, or ran it, takes other requests again."""
        for worker in self._trial[1] if self._trial else ():
            worker.reserved = False
        self._trial = None
        self._trying = False

    def _again(self, queue: Queue, entry: Entry, now_ns: int) -> list[Refuse]:
        """Back to its place in the queue: its worker was lost and had not started it."""
        standing = self._suspicions.standing(entry.model, entry.body, now_ns)
        if standing is Standing.QUARANTINED:
            return [self._refuse(entry, Code.INTERNAL, _QUARANTINED)]
        entry.suspect = entry.suspect or standing is Standing.SUSPECT
        queue.add(entry, first=True)
        return []

    def _blame(self, queue: Queue, entry: Entry, alone: bool, now_ns: int, *, chance: bool) -> list[Refuse]:
        """Its worker was lost while it ran this; by chance, perhaps."""
        entry.deaths += 1
        body = entry.body
        if chance and not alone and entry.deaths == 1 and queue.excuses(entry, now_ns):
            if not entry.over:
                return self._again(queue, entry, now_ns)
            self._let_go(entry)
            return []
        standing = self._suspicions.blame(entry.model, body, alone, now_ns)
        if entry.over:
            self._let_go(entry)
        else:
            entry.suspect = True
            queue.add(entry)
        queue.suspect(body)
        if standing is not Standing.QUARANTINED:
            return []
        alike = [other for other in queue.suspects if other.body == body and not other.over]
        return [self._refuse(other, Code.INTERNAL, _QUARANTINED) for other in alike]

    # -- bookkeeping ------------------------------------------------------------------------------

    def _forget_deadlines(self) -> None:
        """Keeps those of requests that are over from piling up before the ones to come."""
        if len(self._deadlines) > 2 * self._wanted + _SLACK:
            self._deadlines = [item for item in self._deadlines if not item[2].over]
            heapq.heapify(self._deadlines)

    def _refuse(self, entry: Entry, code: Code, text: str) -> Refuse:
        self._end(entry)
        return Refuse(entry, PoolError(code, text))

    def _end(self, entry: Entry) -> None:
        entry.over = True
        self._queues[entry.model].discount(entry)
        self._wanted -= 1
        if not entry.held:
            self._let_go(entry)

    def _let_go(self, entry: Entry) -> None:
        self._bytes -= entry.size
        entry.body = b""

    def queued(self, model: ModelVersion) -> int:
        """Requests that wait, not counting those in flight."""
        return self._queues[model].length

    def in_flight(self, name: str) -> int:
        """Requests that a worker holds."""
        worker = self._workers.get(name)
        return sum(len(batch.entries) for batch in worker.batches.values()) if worker else 0

    def predicted_us(self, name: str) -> float | None:
        """What the dispatch that a worker runs now was predicted to cost."""
        worker = self._workers.get(name)
        return next((batch.cost_us for batch in worker.batches.values()), None) if worker else None

    def active_workers(self) -> int:
        """Workers of the model versions that were asked for since the last call."""
        active = [queue for queue in self._queues.values() if queue.active]
        for queue in active:
            queue.active = False
        return sum(len(queue.workers) for queue in active)

    def unfinished(self) -> int:
        """Requests that wait or run and are still wanted."""
        return self._wanted
