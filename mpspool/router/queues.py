"""The queue of one model version: who waits, which worker is free, what makes the next dispatch. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from mpspool.router.cost import CostTable
from mpspool.router.entry import Entry
from mpspool.router.load import Policy, WorkerLoad

# Several short requests travel in one dispatch while together they cost no more than this: what a
# message costs is then shared, and the first of them waits for the last at most this long.
COALESCE_US = 4_000.0
_SLACK = 64
# Of the bodies that were answered last, those that are kept: 4 MiB a version at most.
_LIVED = 256
_LIVED_BYTES = 16 * 1024


@dataclass(slots=True, eq=False)
class Queue:
    """The waiting requests of one model version, and every worker of it.

    Attributes:
        waiting, suspects: in order. Those that are over stay in them until they come up.
        workers: by name.
        length: requests that wait and are still wanted.
        active: it was asked for since the flag was last taken down.
        lived: the bodies of the last answers.
        excused: when a body's being in `lived` was made use of.
    """

    waiting: deque[Entry] = field(default_factory=deque)
    suspects: deque[Entry] = field(default_factory=deque)
    workers: dict[str, WorkerLoad] = field(default_factory=dict)
    length: int = 0
    active: bool = False
    lived: deque[bytes] = field(default_factory=lambda: deque(maxlen=_LIVED))
    excused: OrderedDict[bytes, int] = field(default_factory=OrderedDict)

    def add(self, entry: Entry, first: bool = False) -> None:
        line = self.suspects if entry.suspect else self.waiting
        (line.appendleft if first else line.append)(entry)
        entry.waiting = True
        self.length += 1

    def discount(self, entry: Entry) -> None:
        """Counts as waiting no more what is sent or over."""
        if entry.waiting:
            entry.waiting = False
            self.length -= 1

    def forget_over(self) -> None:
        """Keeps what nobody wants any more from piling up behind what is not served."""
        most = 2 * self.length + _SLACK
        if len(self.waiting) > most:
            self.waiting = deque(entry for entry in self.waiting if not entry.over)
        if len(self.suspects) > most:
            self.suspects = deque(entry for entry in self.suspects if not entry.over)

    def ran(self, body: bytes) -> None:
        """A worker ran this body and lived."""
        if len(body) <= _LIVED_BYTES:
            self.lived.append(body)

    def excuses(self, entry: Entry, now_ns: int) -> bool:
        """Whether an answer speaks for a body that a worker was lost to.

        It does so once; and for all that were under way by then, which a device that fails for all on it hits together.
        """
        body = entry.body
        if body in self.lived:
            self.lived = deque((lived for lived in self.lived if lived != body), maxlen=_LIVED)
            self.excused[body] = now_ns
            self.excused.move_to_end(body)
            if len(self.excused) > _LIVED:
                self.excused.popitem(last=False)
            return True
        return entry.sent_ns <= self.excused.get(body, -1)

    def suspect(self, body: bytes) -> None:
        """A worker was lost to this body: all that wait with it are suspects too."""
        alike = {entry for entry in self.waiting if entry.body == body and not entry.over}
        for entry in alike:
            entry.suspect = True
        if alike:
            self.suspects.extend(entry for entry in self.waiting if entry in alike)
            self.waiting = deque(entry for entry in self.waiting if entry not in alike)

    def clear(self, body: bytes) -> None:
        """A worker ran this body alone and lived: who was a suspect for its sake only is one no more."""
        cleared = [e for e in self.suspects if e.body == body and not e.deaths and not e.over]
        for entry in cleared:
            entry.suspect = False
        if cleared:
            self.suspects = deque(entry for entry in self.suspects if entry.suspect)
            self.waiting.extendleft(reversed(cleared))

    def share(self) -> int:
        """How many requests each worker would get if all were sent now, suspects aside."""
        return max(1, -(-(self.length - len(self.suspects)) // max(1, len(self.workers))))

    def take(self, share: int, now_ns: int, costs: CostTable) -> tuple[list[Entry], float | None]:
        """The next requests for one dispatch: up to `share` short ones while COALESCE_US holds them."""
        entries: list[Entry] = []
        total_us: float | None = 0.0
        while self.waiting and len(entries) < share:
            entry = self.waiting[0]
            if entry.over or (entry.deadline_ns and entry.deadline_ns <= now_ns):
                self.waiting.popleft()  # an expired one is answered by Scheduler.expire(), which is due
                continue
            cost_us = costs.predict(entry.model, entry.signature, entry.size)
            if entries and (cost_us is None or total_us is None or total_us + cost_us > COALESCE_US):
                break
            self.waiting.popleft()
            entries.append(entry)
            total_us = None if cost_us is None or total_us is None else total_us + cost_us
        return entries, total_us

    def free_worker(self, pick: Policy, now_ns: int) -> WorkerLoad | None:
        """An idle worker, else one that will have run all it holds in a moment."""
        idle = [worker for worker in self.workers.values() if worker.idle]
        if idle:
            return pick(idle)
        return pick(w for w in self.workers.values() if (at := w.pipeline_ns()) is not None and at <= now_ns)

    def look_again_ns(self, now_ns: int) -> int | None:
        """When what waits could next use a worker's second credit, if nothing else happens before."""
        if not self.waiting:
            return None
        dues = [at for w in self.workers.values() if (at := w.pipeline_ns()) is not None and at > now_ns]
        return min(dues, default=None)
