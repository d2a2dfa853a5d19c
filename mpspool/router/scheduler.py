"""The scheduler: arrivals, credits, deaths and the clock in; dispatch orders and refusals out.

Pure: no sockets, no clock, no processes. One queue per model version sees every worker of it.

The laws, which the tests hold it to for every order of events:

- A request is answered exactly once: by a worker's result, by a refusal, or not at all because its
  client cancelled it.
- A worker never holds more dispatches than it granted credits.
- What had not been started when its worker was lost runs again elsewhere and is under no suspicion.
- What had been started is a suspect. It runs again alone on its worker, one suspect at a time in the
  whole pool, and is refused for good when that worker is lost too; its fingerprint is then kept out
  for a while.

Times are CLOCK_MONOTONIC nanoseconds, costs microseconds of worker time.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mpspool.core.errors import Code, Fault, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.router.cost import CostTable

# Several short requests travel in one dispatch while together they cost no more than this: what a
# message costs is then shared, and the first of them waits for the last at most this long.
COALESCE_US = 4_000.0
# A second dispatch is put behind a running one only when that one ends within this time, so that
# nobody waits behind a busy worker while another may fall idle.
PIPELINE_NS = 2_000_000
MAX_DEATHS = 2
QUARANTINE_NS = 60 * 10**9
MAX_QUARANTINED = 1_000
_SLACK = 64


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

    @property
    def fingerprint(self) -> bytes:
        return hashlib.blake2b(self.body, digest_size=16).digest()


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


@dataclass(slots=True, eq=False)
class _Batch:
    entries: list[Entry]
    cost_us: float | None
    sent_ns: int = 0
    suspect: bool = False


@dataclass(slots=True, eq=False)
class _Worker:
    name: str
    model: ModelVersion
    credits: int
    batches: dict[int, _Batch] = field(default_factory=dict)
    leaving: bool = False
    # Kept free, or running alone, for a suspect.
    reserved: bool = False
    last_sent: int = 0


@dataclass(slots=True, eq=False)
class _Queue:
    waiting: deque[Entry] = field(default_factory=deque)
    suspects: deque[Entry] = field(default_factory=deque)
    workers: dict[str, _Worker] = field(default_factory=dict)
    # Of requests still wanted; the others stay in the deques until they come up.
    length: int = 0
    active: bool = False


def _load(worker: _Worker) -> tuple[int, int]:
    return len(worker.batches), worker.last_sent


def _least_loaded(workers: Iterable[_Worker]) -> _Worker | None:
    return min(workers, key=_load, default=None)


def _round_robin(workers: Iterable[_Worker]) -> _Worker | None:
    return min(workers, key=lambda worker: worker.last_sent, default=None)


POLICIES: dict[str, Callable[[Iterable[_Worker]], _Worker | None]] = {
    "least_loaded": _least_loaded,
    "round_robin": _round_robin,
}


class Scheduler:
    """Who runs what, when.

    Args:
        policy: a key of POLICIES.
        max_queued_requests: waiting requests per model version.
        max_queued_bytes: request bodies in the queues and in flight, over all models.
    """

    def __init__(self, policy: str, max_queued_requests: int, max_queued_bytes: int) -> None:
        self._pick = POLICIES[policy]
        self._max_requests = max_queued_requests
        self._max_bytes = max_queued_bytes
        self._queues: dict[ModelVersion, _Queue] = {}
        self._workers: dict[str, _Worker] = {}
        self._dispatches = itertools.count(1)
        self._deadlines: list[tuple[int, int, Entry]] = []
        self._tiebreak = itertools.count()
        self._bytes = 0
        self._wanted = 0
        self._suspect: Entry | None = None
        self._quarantine: OrderedDict[tuple[int, bytes], int] = OrderedDict()
        self.costs = CostTable()

    # -- requests ---------------------------------------------------------------------------------

    def arrive(self, entry: Entry, now_ns: int) -> None:
        """Takes a request into its queue. Raises PoolError where it is refused at the door."""
        queue = self._queue(entry.model)
        if queue.length >= self._max_requests:
            raise PoolError(
                Code.UNAVAILABLE,
                f"The queue of {entry.model} is full: {queue.length} requests wait; try again later",
                Fault.OVERLOADED,
            )
        entry.size = len(entry.body)
        if self._bytes + entry.size > self._max_bytes:
            raise PoolError(
                Code.RESOURCE_EXHAUSTED,
                f"Requests in the queues hold {self._bytes} of {self._max_bytes} bytes and this one has "
                f"{entry.size}; try again later",
                Fault.OVERLOADED,
            )
        if self._quarantine and self._quarantined(entry, now_ns):
            raise PoolError(
                Code.INTERNAL,
                "This request ended the worker process that ran it, twice; it is not run again for now",
                Fault.MODEL,
            )
        self._bytes += entry.size
        self._forget_over(queue)
        self._wanted += 1
        queue.active = True
        self._wait(queue, entry)
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
                refusals.append(
                    self._refuse(entry, Code.DEADLINE_EXCEEDED, "Deadline exceeded", Fault.CLIENT)
                )
        return refusals

    def fail(self, model: ModelVersion, reason: str) -> list[Refuse]:
        """No worker of this version will come back: refuses all that wait for one."""
        queue = self._queue(model)
        waiting = [entry for entry in (*queue.suspects, *queue.waiting) if not entry.over]
        refusals = [self._refuse(entry, Code.UNAVAILABLE, reason, Fault.SERVER) for entry in waiting]
        queue.suspects.clear()
        queue.waiting.clear()
        return refusals

    # -- workers ----------------------------------------------------------------------------------

    def join(self, name: str, model: ModelVersion, credit: int) -> None:
        """A worker is READY and may hold `credit` dispatches at once."""
        worker = _Worker(name, model, credit)
        self._workers[name] = worker
        self._queue(model).workers[name] = worker

    def leave(self, name: str) -> None:
        """A worker drains: it finishes what it holds and is sent nothing more."""
        if worker := self._workers.get(name):
            worker.leaving = True
            self._release(worker)

    def lost(self, name: str, started: tuple[int, int] | None) -> list[Refuse]:
        """A worker died or hangs. `started` is the (dispatch, index) that it was running, if any."""
        worker = self._workers.pop(name, None)
        if worker is None:
            return []
        queue = self._queue(worker.model)
        del queue.workers[name]
        refusals: list[Refuse] = []
        again: list[Entry] = []
        for dispatch, batch in worker.batches.items():
            for index, entry in enumerate(batch.entries):
                if (dispatch, index) == started and not entry.over:
                    refusals += self._suspected(queue, entry, name)
                elif not entry.over:
                    again.append(entry)
                elif entry is self._suspect:
                    self._suspect = None
        for entry in reversed(again):
            if entry is self._suspect:  # it had not been started this time: no new death, still suspected
                self._suspect = None
            self._wait(queue, entry, first=True)
        return refusals

    def finished(self, name: str, dispatch: int) -> list[Entry] | None:
        """A worker gave a dispatch's credit back.

        Returns:
            Its requests in order, those that are `over` included (nobody wants their answers), or
            None for a dispatch this worker does not hold: its results are to be dropped.
        """
        worker = self._workers.get(name)
        batch = worker.batches.pop(dispatch, None) if worker else None
        if worker is None or batch is None:
            return None
        if batch.suspect:
            self._suspect = None
            worker.reserved = False
        return batch.entries

    def answered(self, entry: Entry) -> None:
        """The result of a finished request is being handed to its client."""
        self._end(entry)

    # -- dispatch ---------------------------------------------------------------------------------

    def dispatch(self, now_ns: int) -> list[Send]:
        """Every dispatch that can be sent now."""
        orders: list[Send] = []
        for queue in self._queues.values():
            if queue.suspects:
                self._dispatch_suspect(queue, now_ns, orders)
            share = -(-queue.length // max(1, len(queue.workers)))
            while queue.waiting:
                worker = self._free_worker(queue, now_ns)
                if worker is None:
                    break
                entries, cost_us = self._take(queue, max(1, share), now_ns)
                if entries:
                    orders.append(self._send(worker, _Batch(entries, cost_us), now_ns))
        return orders

    def look_again_ns(self, now_ns: int) -> int | None:
        """When dispatch() could next use a second credit, if nothing else happens before."""
        dues = [
            end_ns - PIPELINE_NS
            for queue in self._queues.values()
            if queue.waiting
            for worker in queue.workers.values()
            if (end_ns := self._predicted_end_ns(worker)) is not None and end_ns - PIPELINE_NS > now_ns
        ]
        return min(dues, default=None)

    def _free_worker(self, queue: _Queue, now_ns: int) -> _Worker | None:
        idle = [w for w in queue.workers.values() if not w.batches and not w.reserved and not w.leaving]
        if idle:
            return self._pick(idle)
        return self._pick(w for w in queue.workers.values() if self._can_pipeline(w, now_ns))

    def _can_pipeline(self, worker: _Worker, now_ns: int) -> bool:
        end_ns = self._predicted_end_ns(worker)
        return end_ns is not None and end_ns - now_ns <= PIPELINE_NS

    def _predicted_end_ns(self, worker: _Worker) -> int | None:
        """When a busy worker with a credit left will have run all it holds; None where nobody knows."""
        if worker.reserved or worker.leaving or not 0 < len(worker.batches) < worker.credits:
            return None
        end_ns = next(iter(worker.batches.values())).sent_ns
        for batch in worker.batches.values():
            if batch.cost_us is None:
                return None
            end_ns += int(batch.cost_us * 1000)
        return end_ns

    def _take(self, queue: _Queue, share: int, now_ns: int) -> tuple[list[Entry], float | None]:
        """The next requests for one dispatch: up to `share` short ones while COALESCE_US holds them."""
        entries: list[Entry] = []
        total_us: float | None = 0.0
        while queue.waiting and len(entries) < share:
            entry = queue.waiting[0]
            if entry.over or (entry.deadline_ns and entry.deadline_ns <= now_ns):
                queue.waiting.popleft()  # an expired one is answered by expire(), which is due
                continue
            cost_us = self.costs.predict(entry.model, entry.signature, entry.size)
            if entries and (cost_us is None or total_us is None or total_us + cost_us > COALESCE_US):
                break
            queue.waiting.popleft()
            entries.append(entry)
            total_us = None if cost_us is None or total_us is None else total_us + cost_us
        return entries, total_us

    def _send(self, worker: _Worker, batch: _Batch, now_ns: int) -> Send:
        dispatch = next(self._dispatches)
        worker.batches[dispatch] = batch
        batch.sent_ns = now_ns
        worker.last_sent = dispatch
        for entry in batch.entries:
            entry.sent_ns = now_ns
            self._unqueue(entry)
        return Send(worker.name, dispatch, batch.entries)

    # -- suspects ---------------------------------------------------------------------------------

    def _dispatch_suspect(self, queue: _Queue, now_ns: int, orders: list[Send]) -> None:
        """One suspect at a time in the pool, alone on a worker that is emptied for it first."""
        while queue.suspects and queue.suspects[0].over:
            queue.suspects.popleft()
        staying = [worker for worker in queue.workers.values() if not worker.leaving]
        if not queue.suspects:
            for worker in staying:
                self._release(worker)
        if self._suspect is not None or not queue.suspects or not staying:
            return
        reserved = [worker for worker in staying if worker.reserved]
        worker = min(reserved or staying, key=_load)
        worker.reserved = True
        if not worker.batches:
            entry = queue.suspects.popleft()
            self._suspect = entry
            orders.append(self._send(worker, _Batch([entry], None, suspect=True), now_ns))

    def _suspected(self, queue: _Queue, entry: Entry, worker: str) -> list[Refuse]:
        if entry is self._suspect:
            self._suspect = None
        entry.deaths += 1
        if entry.deaths < MAX_DEATHS:
            self._wait(queue, entry)
            return []
        self._quarantine[entry.size, entry.fingerprint] = entry.sent_ns + QUARANTINE_NS
        while len(self._quarantine) > MAX_QUARANTINED:
            self._quarantine.popitem(last=False)
        text = (
            f"This request was running when a worker of {entry.model} was lost, and again, alone, when "
            f"{worker} was; it is taken for the cause and not run a third time"
        )
        return [self._refuse(entry, Code.INTERNAL, text, Fault.MODEL)]

    def _quarantined(self, entry: Entry, now_ns: int) -> bool:
        while self._quarantine and next(iter(self._quarantine.values())) <= now_ns:
            self._quarantine.popitem(last=False)
        # Only a body as long as a quarantined one is worth hashing.
        alike = any(size == entry.size for size, _ in self._quarantine)
        return alike and (entry.size, entry.fingerprint) in self._quarantine

    def _release(self, worker: _Worker) -> None:
        """Ends a reservation whose suspect is not running on this worker."""
        if not any(batch.suspect for batch in worker.batches.values()):
            worker.reserved = False

    # -- bookkeeping ------------------------------------------------------------------------------

    def _queue(self, model: ModelVersion) -> _Queue:
        return self._queues.setdefault(model, _Queue())

    def _wait(self, queue: _Queue, entry: Entry, first: bool = False) -> None:
        line = queue.suspects if entry.deaths else queue.waiting
        (line.appendleft if first else line.append)(entry)
        entry.waiting = True
        queue.length += 1

    def _forget_over(self, queue: _Queue) -> None:
        """Keeps what nobody wants any more from piling up behind what is not served."""
        if len(queue.waiting) > 2 * queue.length + _SLACK:
            queue.waiting = deque(entry for entry in queue.waiting if not entry.over)
        if len(self._deadlines) > 2 * self._wanted + _SLACK:
            self._deadlines = [item for item in self._deadlines if not item[2].over]
            heapq.heapify(self._deadlines)

    def _unqueue(self, entry: Entry) -> None:
        if entry.waiting:
            entry.waiting = False
            self._queue(entry.model).length -= 1

    def _refuse(self, entry: Entry, code: Code, text: str, fault: Fault) -> Refuse:
        self._end(entry)
        return Refuse(entry, PoolError(code, text, fault))

    def _end(self, entry: Entry) -> None:
        entry.over = True
        self._unqueue(entry)
        self._bytes -= entry.size
        self._wanted -= 1
        entry.body = b""

    def queued(self, model: ModelVersion) -> int:
        """Requests that wait, not counting those in flight."""
        return self._queue(model).length

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
