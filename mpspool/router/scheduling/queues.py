"""The queue of one model version: who waits, and what makes the next dispatch. Pure."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from mpspool.core.errors import Code, Lack, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.settings import BatchingSettings
from mpspool.router.scheduling import batching
from mpspool.router.scheduling.cost import CostTable
from mpspool.router.scheduling.crowd import Crowd
from mpspool.router.scheduling.entry import Entry, Kind
from mpspool.router.scheduling.fair_share import LEAST_S, Lanes
from mpspool.router.scheduling.line import FairLine, Line
from mpspool.router.scheduling.load import Batch
from mpspool.router.scheduling.placement import (
    BACKLOG_PIPELINE_NS,
    BATCH_PIPELINE_NS,
    PIPELINE_NS,
    Placement,
)
from mpspool.router.scheduling.policy import Policy, fifo, is_time

# Several short requests travel in one dispatch while together they cost no more than this: what a
# message costs is then shared, and the first of them waits for the last at most this long.
COALESCE_US = 4_000.0
# While many wait in the order of their arrival it may be up to so much, but no more than a part of what each worker is to
# do, what it holds included: who waits that long hardly notices.
_COALESCE_QUEUED_US = 16_000.0
_COALESCE_PART = 4
# Where more wait than there are workers, what takes no more than such a part of the time that a request is given does no
# harm to those behind it.
_GIVEN_PART = 8
# A backlog: that many requests, or full batches, wait for each worker, and will keep it busy for that long.
_BACKLOG_REQUESTS = 4
_BACKLOG_BATCHES = 2
_BACKLOG_US = 16_000.0
# So much longer than predicted may what is to be in time take: what is cut fine is late as often as not.
_IN_TIME_FOR_SURE = 1.15
# A line whose full batches cost no more than such a part of what is long is none for the slow lane any more.
_NOT_LONG = 0.8
# So much of what could be had is as good: of batches that do, the smallest are answered soonest.
_NEARLY = 0.85
# What a client makes up (an output_filter) makes no more lines than this; beyond, requests run one by one. Where clients share fairly,
# such a part of them each.
_MAX_LINES = 64
_LINES_PART = 4
# As many choices of outputs as a worker remembers.
_MAX_APART = 1024
# Of the bodies that were answered last, those that are kept: 4 MiB a version at most.
_LIVED = 256
_LIVED_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class QueueRules:
    """What holds for the queue of one model version.

    Attributes:
        policy: who is next.
        max_requests: that may wait.
        batching: None where requests run one by one.
        priority_s: by how many seconds of waiting one step of priority goes before.
        fair: clients share it fairly.
        refuse_late: what cannot meet its deadline is refused, on arrival or when it is next.
    """

    policy: Policy = fifo
    max_requests: int = 10_000
    batching: BatchingSettings | None = None
    priority_s: float = 1.0
    fair: bool = False
    refuse_late: bool = True


@dataclass(slots=True, eq=False)
class Enqueued:
    """What waits of one signature to be run in batches.

    Attributes:
        crowd: where clients share fairly, its rows by client.
        count, rows: of all of it.
        filling: of those, how many fill a batch each.
    """

    crowd: Crowd | None
    count: int = 0
    rows: int = 0
    filling: int = 0


@dataclass(slots=True, eq=False)
class Queue:
    """The waiting requests of one model version, and its workers.

    Attributes:
        placement: its workers.
        estimate: says of a request what it costs and whether it is long, where that is known.
        rules: changed by govern().
        suspects: in order. Those that are over stay in them until they come up.
        length: requests that wait and are still wanted, suspects among them.
        waiting_s: what those in the lines take of a worker's time for sure.
        due_ns: when the scheduler looks at it again, at the latest; 0 for when something happens.
        late: those that have left, for they cannot be in time any more, and are to be refused.
        lived: the bodies of the last answers.
        excused: when a body's being in `lived` was made use of.
        apart: signature and output_filter of requests that a worker could not join.
    """

    model: ModelVersion
    placement: Placement
    costs: CostTable
    estimate: Callable[[Entry], None]
    rules: QueueRules = QueueRules()
    suspects: deque[Entry] = field(default_factory=deque)
    length: int = 0
    waiting_s: float = 0.0
    due_ns: int = 0
    late: list[Entry] = field(default_factory=list)
    lived: deque[bytes] = field(default_factory=lambda: deque(maxlen=_LIVED))
    excused: OrderedDict[bytes, int] = field(default_factory=OrderedDict)
    apart: set[tuple[str, bytes]] = field(default_factory=set)
    _lines: dict[tuple[object, bool], Line] = field(default_factory=dict)
    _shares: Lanes = field(default_factory=Lanes)
    # Those with a negative priority in the lines, whom others pass.
    _passed: int = 0
    # By signature.
    _enqueued: dict[str, Enqueued] = field(default_factory=dict)
    # Where clients share fairly: what waits in the lines.
    _crowd: Crowd = field(default_factory=Crowd)
    _order: Iterator[int] = field(default_factory=itertools.count)

    # -- arrival ----------------------------------------------------------------------------------

    def check_room(self, parts: Sequence[Entry]) -> Sequence[tuple[Entry, PoolError]]:
        """Whether a new request, or all parts of one, fit.

        Returns:
            Those that have to leave for it, and why, where clients share fairly and another has more waiting than its
            part.

        Raises:
            PoolError: they do not.
        """
        settings = self.rules.batching
        if settings is None and self.length < self.rules.max_requests:
            return ()  # none is cut where nothing is joined
        first = parts[0]
        # What idle workers are sent at once does not wait.
        idle = 0 if self.length else self.placement.idle_count
        leaving: list[tuple[Entry, PoolError]] = []
        if settings is not None and first.rows:
            for entry in parts:
                entry.fills = batching.fills(entry.rows, settings)
            enqueued = self._enqueued.get(first.signature)
            # None has more rows than a batch: so many fit, however they are joined.
            if (enqueued.count if enqueued else 0) + len(parts) > settings.max_enqueued_batches + idle:
                leaving = self._room_for_rows(parts, enqueued, settings, idle)
        lacking = self.length + len(parts) - idle - self.rules.max_requests
        # Where more wait than may, as when a worker was lost, no more leave than come.
        places = min(lacking, len(parts)) - len(leaving)
        if places > 0:
            leaving += self._room_for_requests(parts, places, {other for other, _ in leaving})
        return leaving

    def _room_for_rows(
        self, parts: Sequence[Entry], enqueued: Enqueued | None, settings: BatchingSettings, idle: int
    ) -> list[tuple[Entry, PoolError]]:
        """As check_room, among what is to be run in batches, of which as many as `idle` do not wait."""
        rows, filling = (enqueued.rows, enqueued.filling) if enqueued else (0, 0)
        rows -= idle * settings.run_rows
        more = sum(entry.rows for entry in parts)
        error = batching.check_room(rows, filling, more, settings)
        if error is None:
            return []
        leaving = []
        there = rows, filling
        for last in enqueued.crowd.last_of_most(parts[0].client, more) if enqueued and enqueued.crowd else ():
            leaving.append((last, batching.is_full(*there, last.rows, settings)))
            rows -= last.rows
            filling -= last.fills
            if batching.check_room(rows, filling, more, settings) is None:
                return leaving
        raise error

    def _room_for_requests(
        self, parts: Sequence[Entry], places: int, already: Collection[Entry]
    ) -> list[tuple[Entry, PoolError]]:
        """As check_room, where so many more have to leave than do already."""
        of_parts = f", and this one is run in {len(parts)} parts" if len(parts) > 1 else ""
        others = (
            last for last in self._crowd.last_of_most(parts[0].client, len(parts)) if last not in already
        )
        leaving = [(last, self._is_full()) for last in itertools.islice(others, places)]
        if len(leaving) < places:
            raise self._is_full(of_parts)
        return leaving

    def _is_full(self, of_parts: str = "") -> PoolError:
        text = (
            f"The queue of {self.model} is full: {self.length} requests wait and max_queued_requests is "
            f"{self.rules.max_requests}{of_parts}; try again later"
        )
        return PoolError(Code.UNAVAILABLE, text, Lack.REQUESTS)

    def check_deadline(self, parts: Sequence[Entry], now_ns: int) -> None:
        """Raises PoolError where a request's deadline has passed, or will have before it, or all its parts, could have been run."""
        first = parts[0]
        if not first.deadline_ns:
            return
        left_s = (first.deadline_ns - now_ns) / 1e9
        if left_s <= 0:
            raise PoolError(Code.DEADLINE_EXCEEDED, "Deadline exceeded before the request was queued")
        place = self.placement
        workers = len(place.workers)
        if not self.rules.refuse_late or not workers:
            return
        if not self.length and place.idle_count >= min(len(parts), max(1, place.open_count)):
            return  # it keeps nobody waiting, and tells what such a request costs now
        costs_s = [entry.sure_s for entry in parts]
        if not costs_s[0]:
            return
        cost_s = max(*costs_s, sum(costs_s) / workers)
        ahead_s = self._ahead_s(first, workers)
        spare_s = left_s - cost_s - ahead_s
        busy_s = place.free_in_s(now_ns, spare_s) if spare_s >= 0.0 else 0.0
        if busy_s > spare_s:
            takes = [f"the request is expected to take {cost_s * 1e3:.1f} ms"]
            if ahead_s:
                takes.append(f"what waits before it {ahead_s * 1e3:.1f} ms")
            if busy_s:
                takes.append(f"what runs now another {busy_s * 1e3:.1f} ms")
            text = f"Deadline exceeded: it is {left_s * 1e3:.1f} ms away, {' and '.join(takes)}"
            raise PoolError(Code.DEADLINE_EXCEEDED, f"{text}; it was not run", Lack.TIME)

    def _least_s(self, entry: Entry) -> float:
        """What a request takes for sure, if it is run by itself; 0 where nobody knows."""
        return self.costs.at_least(self.model, entry.signature, entry.size, entry.rows) / 1e6

    def _ahead_s(self, entry: Entry, workers: int) -> float:
        """How long after the first worker is free a new request is begun, for what is before it, as though that all cost alike.

        It is begun when all before it have been, not when they have been run: as many as there are other workers
        may still run.
        """
        if self.rules.policy is not fifo or self.rules.fair or entry.priority or self._passed:
            return 0.0  # nobody knows who is before it
        settings = self.rules.batching
        if settings is None:
            lines = list(self._lines.values())
            if any(line.long != entry.long for line in lines):
                return 0.0  # what waits in the other lane need not be before it
            runs = self._lined
            run_s = self.waiting_s / max(1, runs)
        else:
            line = self._lines.get((entry.kind, entry.long)) if entry.rows else None
            if line is None:
                return 0.0
            lines = [line]
            runs = line.rows // settings.run_rows
            run_s = settings.run_rows * self.costs.least_per_row(self.model, entry.signature) / 1e6
        firsts = [line.first(0) for line in lines]  # those whose deadlines have passed stay, to be refused
        if all(first is None or entry.arrived_ns < first.arrived_ns for first in firsts):
            return 0.0  # it comes from a version that went, and has waited for longer
        return max(0, runs + 1 - workers) * run_s / workers

    def place(self, entry: Entry) -> None:
        """Gives a new request its place among those that wait."""
        entry.arrived_s = entry.start_s = entry.arrived_ns / 1e9
        later_s = self._rank(entry)
        if self.rules.fair:
            entry.charge_s = entry.cost_s or 0.0
            if entry.rows:  # the least that its part of a batch costs
                least_s = entry.rows * self.costs.least_per_row(self.model, entry.signature) / 1e6
                entry.charge_s = min(entry.charge_s, least_s)
            entry.slow = entry.long or self._is_slow(entry)
            self._enter(entry.slow)
            share = self._shares.of(entry.slow)
            # Who waits already goes on from there, though those have come further that its policy puts before it; no more than that.
            earliest_s = share.turn_s - later_s if self._waits_of(entry.client, entry.slow) else math.inf
            entry.start_s = share.arrive(entry.client, entry.charge_s, earliest_s)
            entry.key = entry.start_s + later_s
        entry.order = next(self._order)

    def _rank(self, entry: Entry) -> float:
        """Its place by policy and priority; where clients share fairly, for anybody can say that a request is urgent, among its client's.

        Returns:
            How much later than its turn among clients it is next.
        """
        rules = self.rules
        number = rules.policy(entry)
        entry.key = entry.own_key = number - entry.priority * rules.priority_s
        later_s = number - entry.arrived_s if is_time(rules.policy) else 0.0
        if rules.fair:
            entry.key = entry.start_s + later_s
        return later_s

    def _is_slow(self, entry: Entry) -> bool:
        """Whether it waits for the slow lane with others, whose batch is long."""
        line = self._lines.get((entry.kind if entry.rows else None, entry.long))
        return line is not None and line.slow

    def _waits_in(self, slow: bool) -> bool:
        """Whether anything waits in the slow lane, or outside of it."""
        return any(line.slow == slow for line in self._lines.values())

    def _waits_of(self, client: str, slow: bool) -> bool:
        """Whether anything of a client waits there, where clients share."""
        lines = (line for line in self._lines.values() if isinstance(line, FairLine) and line.slow == slow)
        return any(line.holds(client) for line in lines)

    def _enter(self, slow: bool) -> None:
        """Something is about to wait in the slow lane, or outside of it."""
        if not self._waits_in(slow):
            self._shares.catch_up(slow)

    def after_s(self, first: Entry) -> float:
        """How long after its turn among models a request is next by its policy, and by its priority where clients do not share.

        What a policy of a user's own says need not be a time, and means nothing beside other models.
        """
        if not is_time(self.rules.policy):
            return 0.0
        return (self.rules.policy(first) if self.rules.fair else first.key) - first.arrived_s

    def give_back(self, entry: Entry) -> None:
        """It leaves without having been run: its client is not charged for it."""
        if self.rules.fair and not entry.sent_ns:
            self._shares.of(entry.slow).refund(entry.client, entry.charge_s)

    def charge(self, entry: Entry, cost_s: float) -> None:
        """What was sent costs no less than this: its client's others are later by what it was not charged for it so far."""
        more_s = cost_s - entry.charge_s
        if more_s <= 0.0 or not self.rules.fair:
            return
        entry.charge_s = cost_s
        self._shares.of(entry.slow).owe(entry.client, more_s, entry.start_s)
        for line in self._lines.values():
            if isinstance(line, FairLine) and line.slow == entry.slow:
                line.delay(entry.client, more_s)

    def govern(self, rules: QueueRules) -> None:
        """What holds from now on, for what waits, too: numbers of two policies mean nothing beside each other."""
        was, self.rules = self.rules, rules
        if rules.batching != was.batching:
            self.apart.clear()
            self._fill_anew()
        if rules.policy == was.policy and rules.priority_s == was.priority_s:
            return
        for entry in self._elsewhere():
            self._rank(entry)
        for line in self._lines.values():
            _place_anew(line, self._rank)

    def _fill_anew(self) -> None:
        """Batches have another size from now on: of what waits others fill one each."""
        settings = self.rules.batching
        for enqueued in self._enqueued.values():
            enqueued.filling = 0
        waiting = [entry for line in self._lines.values() for entry in line]
        for entry in (*waiting, *self._elsewhere()):
            if entry.rows:
                entry.fills = settings is not None and batching.fills(entry.rows, settings)
        for entry in waiting:
            if entry.rows:
                self._enqueued[entry.signature].filling += entry.fills

    def estimate_anew(self) -> None:
        """What is long is another from now on: all that waits goes to its lane."""
        for entry in self._elsewhere():
            self.estimate(entry)
        waiting = sorted((entry for line in self._lines.values() for entry in line), key=_place)
        for entry in waiting:
            self.discount(entry)
            entry.sure_s = 0.0  # what is long is learned of them anew
            self.estimate(entry)
        for entry in waiting:
            self.estimate(entry)  # by what is long beside all of them
            self._enter(entry.long)
            self._change_lane(entry, entry.long, entry.charge_s)
            self.add(entry)

    def _elsewhere(self) -> list[Entry]:
        """Those that are in no line, and may come into one again: suspects, and what workers hold."""
        held = [
            entry
            for worker in self.placement.workers.values()
            for batch in worker.batches.values()
            for entry in batch.entries
        ]
        return [entry for entry in (*self.suspects, *held) if not entry.over]

    def is_short_from(self, was_us: float, long_us: float) -> bool:
        """Whether a batch that waits for the slow lane is not long any more now that this is what costs `long_us`, in place of `was_us`."""
        settings = self.rules.batching
        return settings is not None and any(
            line.slow and not line.long and was_us <= self._batch_us(line, settings) < long_us
            for line in self._lines.values()
        )

    def add(self, entry: Entry) -> bool:
        """Among the suspects, or in its place in a line. Returns whether more of the line could be sent than before."""
        if self.apart:
            self.set_apart(entry)
        entry.waiting = True
        self.length += 1
        if entry.suspect:
            self.suspects.append(entry)
            return False
        line = self._join_line(entry)
        self.waiting_s += entry.sure_s
        self._passed += entry.priority < 0
        if line.fair:
            self._crowd.add(entry)
        if entry.rows:
            enqueued = self._enqueued.get(entry.signature)
            if enqueued is None:
                enqueued = self._enqueued[entry.signature] = Enqueued(Crowd() if line.fair else None)
            enqueued.count += 1
            enqueued.rows += entry.rows
            enqueued.filling += entry.fills
            if enqueued.crowd is not None:
                enqueued.crowd.add(entry, entry.rows)
        if line.count == 1:
            return True
        settings = self.rules.batching
        if settings is None or line.rows - entry.rows >= settings.run_rows:
            return False
        # With more rows a batch that waits for the slow lane may be taken in parts, which are not long.
        return line.rows >= settings.run_rows or (line.slow and not line.long)

    def _join_line(self, entry: Entry) -> Line:
        kind: Kind | None = entry.kind if entry.rows else None
        line = self._lines.get((kind, entry.long))
        if line is None and (len(self._lines) >= _MAX_LINES or self._has_begun_many(entry.client)):
            kind = None
            line = self._lines.get((kind, entry.long))
        if line is None:
            self._enter(entry.long)
            make = FairLine if self.rules.fair else Line
            line = make(kind, entry.signature, entry.long, entry.client)
            self._lines[kind, entry.long] = line
        line.add(entry)
        return line

    def _has_begun_many(self, client: str) -> bool:
        """Whether lines are full by a client's doing, as far as it may fill them."""
        if not self.rules.fair:
            return False
        begun = sum(line.begun_by == client for line in self._lines.values())
        return begun >= _MAX_LINES // _LINES_PART

    def _estimate_again(self, entry: Entry) -> bool:
        """Of one that is next and whose cost is not sure. Returns whether more of it is known by now; what is long waits apart then."""
        was_s, guessed = entry.sure_s, entry.cost_s is not None
        self.estimate(entry)
        line = entry.line
        if entry.cost_s is None or line is None or (guessed and entry.sure_s == was_s):
            return False
        self.waiting_s += entry.sure_s - was_s
        if entry.long != line.long:
            line.leave(entry)
            if not line.count:
                self._lines.pop((line.kind, line.long), None)
            self._enter(entry.long)
            self._change_lane(entry, entry.long, entry.cost_s)
            self._join_line(entry)
        return True

    def discount(self, entry: Entry) -> None:
        """Counts as waiting no more what is sent or over."""
        if entry.waiting:
            entry.waiting = False
            self.length -= 1
            if (line := entry.line) is not None:
                line.leave(entry)
                self._passed -= entry.priority < 0
                if line.fair:
                    self._crowd.discard(entry)
                if entry.rows:
                    enqueued = self._enqueued[entry.signature]
                    enqueued.count -= 1
                    enqueued.rows -= entry.rows
                    enqueued.filling -= entry.fills
                    if enqueued.crowd is not None:
                        enqueued.crowd.discard(entry)
                    if not enqueued.count:
                        del self._enqueued[entry.signature]
                if not line.count:
                    self._lines.pop((line.kind, line.long), None)
                # Small differences of floats do not pile up.
                self.waiting_s = max(0.0, self.waiting_s - entry.sure_s) if self._lines else 0.0

    def forget_over(self) -> None:
        """Keeps what nobody wants any more from piling up behind what is not served."""
        if len(self.suspects) > 2 * self.length + 64:
            self.suspects = deque(entry for entry in self.suspects if not entry.over)

    def waiting(self) -> list[Entry]:
        """All that wait and are wanted, suspects first."""
        lines = sorted((entry for line in self._lines.values() for entry in line), key=_place)
        return [entry for entry in self.suspects if not entry.over] + lines

    # -- what cannot be joined --------------------------------------------------------------------

    def keep_apart(self, one: Entry) -> bool:
        """Whatever asks for the same outputs as this one runs one by one from now on, what waits included.

        Returns:
            Whether that was not known.
        """
        asked = _asked(one)
        if asked is None or asked in self.apart or len(self.apart) >= _MAX_APART:
            return False
        self.apart.add(asked)
        lines = [line for line in self._lines.values() if line.rows]
        alike = [entry for line in lines for entry in line if _asked(entry) == asked]
        for entry in sorted(alike, key=_place):
            self.discount(entry)
            self.add(entry)
        return True

    def set_apart(self, entry: Entry) -> None:
        """Where a request cannot be joined by what it asks for, it is one without rows."""
        if entry.rows and _asked(entry) in self.apart:
            entry.rows = 0
            entry.fills = False

    # -- what workers were lost to ----------------------------------------------------------------

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

    def suspect(self, bodies: Collection[bytes]) -> None:
        """A worker was lost to one of these bodies: all that wait with one are suspects too."""
        sizes = set(map(len, bodies))  # a body of another length is not worth hashing
        waiting = (entry for line in self._lines.values() for entry in line)
        alike = [entry for entry in waiting if len(entry.body) in sizes and entry.body in bodies]
        for entry in sorted(alike, key=_place):
            self.discount(entry)
            entry.suspect = True
            self.add(entry)

    def clear(self, body: bytes) -> None:
        """A worker ran this body alone and lived: who was a suspect for its sake only is one no more."""
        cleared = {e for e in self.suspects if e.body == body and not e.deaths and not e.over}
        if cleared:
            self.suspects = deque(entry for entry in self.suspects if entry not in cleared)
        for entry in cleared:
            self.discount(entry)
            entry.suspect = False
            self.add(entry)

    # -- dispatch ---------------------------------------------------------------------------------

    def next_lines(
        self, now_ns: int, allowed: Callable[[bool], bool], long_us: Callable[[], float]
    ) -> dict[bool, tuple[Line, Entry]]:
        """The line whose first request is next, and that request: of long dispatches, and of others.

        Args:
            now_ns: the time.
            allowed: whether there is a worker for a long dispatch, or for another.
            long_us: from which cost on, for sure, a batch is long.
        """
        best: dict[bool, tuple[Line, Entry]] = {}
        learned = False
        long_from_us = long_us()
        settings = self.rules.batching
        for line in list(self._lines.values()):
            long = line.long
            if not self._is_due(line, now_ns):
                continue
            if settings is not None and line.kind is not None:
                if long_from_us == math.inf:
                    self._set_lane(line, long)  # there is no slow lane, any more perhaps
                elif not long and self._batch_us(line, settings) >= long_from_us:
                    long = True
                    self._set_lane(line, True)
                elif line.slow and not long and self._is_never_long(line, settings, long_from_us):
                    self._set_lane(line, False)
            if not allowed(long):
                continue
            first = line.first(now_ns)
            while first is not None and not first.sure_s and self._estimate_again(first):
                learned = True
                first = line.first(now_ns)
            if first is not None and (
                long not in best or self.place_of(line, first) < self.place_of(*best[long])
            ):
                best[long] = line, first
        return self.next_lines(now_ns, allowed, long_us) if learned else best

    def _set_lane(self, line: Line, slow: bool) -> None:
        """Batches of it are long, and wait for the slow lane from now on; or there is none any more."""
        if line.slow != slow:
            self._enter(slow)
            line.slow = slow
            if self.rules.fair:
                _place_anew(line, lambda entry: self._change_lane(entry, slow, entry.charge_s))

    def _change_lane(self, entry: Entry, slow: bool, cost_s: float) -> None:
        """It is in the slow lane from now on, or is not any more: its place there is by that lane's clock and its client's account."""
        if self.rules.fair and slow != entry.slow:
            self._shares.of(entry.slow).refund(entry.client, entry.charge_s)
            start_s = self._shares.of(slow).arrive(entry.client, cost_s)
            entry.key += start_s - entry.start_s
            entry.start_s, entry.charge_s = start_s, cost_s
        entry.slow = slow

    def place_of(self, line: Line, first: Entry) -> tuple[float, int]:
        """Where the first request of a line is among those of all lines."""
        return self._shares.beside(line.slow, first.key), first.order

    def take(self, line: Line, now_ns: int, begin_ns: int, share: int, long: bool) -> Batch:
        """The next dispatch from a line; empty where all in it are late.

        Args:
            line: which.
            now_ns: the time.
            begin_ns: when its worker will have run what it holds.
            share: requests for each worker, at most.
            long: it is of those that a slow lane is for.
        """
        settings = self.rules.batching
        together = settings is not None and line.kind is not None
        if settings is not None and together:
            entries, cost_us, sure_us = self._take_batch(line, settings, now_ns, begin_ns, long)
            if batching.waits(settings):
                line.renew(settings.run_rows)
        else:
            entries, cost_us, sure_us = self._take_short(line, now_ns, begin_ns, share)
        if self.rules.fair and entries:
            taken = entries[0]
            self._shares.of(line.slow).served(taken.start_s, taken.key - taken.start_s)
            if not line.slow:
                for other in self._lines.values():
                    if (
                        other.slow
                        and self._is_due(other, now_ns)
                        and (first := other.first(now_ns)) is not None
                    ):
                        after_s = (first.key - first.start_s) - (taken.key - taken.start_s)
                        self._shares.hold(taken.start_s, first.start_s, after_s)
        return Batch(entries, cost_us, sure_us, together, long)

    def _is_due(self, line: Line, now_ns: int) -> bool:
        """Whether it could be sent now, and does not wait for more to fill its batch."""
        settings = self.rules.batching
        return settings is None or line.kind is None or batching.due_ns(line, settings) <= now_ns

    def _leave_late(
        self, line: Line, now_ns: int, begin_ns: int, plan: Callable[[Entry], tuple[int, float]]
    ) -> int:
        """Whoever is next and has not the time that it needs leaves, while others wait that may be in time.

        In a crowd, where no worker is idle for it, it needs what its dispatch takes, as large as is good for all, and some
        more: to run those who have least time left, in ever smaller dispatches, makes all behind them late, too.

        Args:
            line: of whom.
            now_ns: the time.
            begin_ns: when the next dispatch begins.
            plan: how large that is with a request as its first, and the seconds which that needs.

        Returns:
            How large it is with who stays.
        """
        while (entry := line.first(now_ns)) is not None:
            size, needed_s = plan(entry)
            in_time = not entry.deadline_ns or begin_ns + needed_s * 1e9 <= entry.deadline_ns
            if in_time or line.count == 1 or not self.rules.refuse_late:
                return size
            self.discount(entry)
            self.late.append(entry)
        return 0

    def _plan_batch(self, line: Line, entry: Entry, most: int, begin_ns: int) -> tuple[int, float]:
        """Rows of the next batch where this request is the first of it, and the seconds that it needs then."""
        if not self.rules.refuse_late or not entry.deadline_ns:
            return most, 0.0
        settings = self.rules.batching
        cost_s = self._least_s(entry)
        whole_s = _surely_s(entry, max(cost_s, self._least_us(line, most) / 1e6))
        if begin_ns + whole_s * 1e9 <= entry.deadline_ns:
            return most, whole_s
        rows = most
        # What is left of a batch that is not full would wait for its timeout.
        if settings is not None and not batching.waits(settings):
            rows = self._rows_in_time(line, entry, most)
        if line.rows - entry.rows < rows * self.placement.open_count:
            return most, cost_s
        return rows, _surely_s(entry, max(cost_s, self._least_us(line, rows) / 1e6))

    def _rows_in_time(self, line: Line, entry: Entry, most: int) -> int:
        """Rows of the batches that bring most answers in time, where all that wait are given as much time as this one.

        The larger a batch, the more rows in the time that it takes, but the fewer of those that wait have so much of theirs left.
        """
        given_us = (entry.deadline_ns - entry.arrived_ns) / 1e3
        if _GIVEN_PART * self._least_us(line, most) <= given_us:
            return most
        found: list[tuple[int, float]] = []
        rows = most
        while True:
            cost_us = max(1.0, self._least_us(line, rows))
            there = line.rows * max(0.0, 1 - _IN_TIME_FOR_SURE * cost_us / given_us)
            found.append((rows, min(rows, there) / cost_us))
            if rows <= entry.rows or _GIVEN_PART * cost_us <= given_us:
                break
            rows = max(entry.rows, rows // 2)
        enough = _NEARLY * max(rate for _, rate in found)
        return min(rows for rows, rate in found if rate >= enough)

    def _least_us(self, line: Line, rows: int) -> float:
        """What a batch of so many rows, at least one, costs for sure: larger ones than were seen are tried."""
        return self.costs.at_least(self.model, line.signature, 0, rows)

    def _is_too_long(self, line: Line, rows: int, more: int, whole: int, left_us: float) -> bool:
        """Whether a batch is in time, is not with more rows, and brings as many in its time as the whole that could be made."""
        cost_us = self._least_us(line, rows)
        if not cost_us <= left_us < self._least_us(line, rows + more):
            return False
        return rows * self._least_us(line, whole) >= _NEARLY * whole * cost_us

    def _take_batch(
        self, line: Line, settings: BatchingSettings, now_ns: int, begin_ns: int, long: bool
    ) -> tuple[list[Entry], float | None, float]:
        """The requests of a batch, and the microseconds that it costs, as predicted and for sure."""
        most = self._rows_to_take(line, settings, long)
        most = self._leave_late(
            line, now_ns, begin_ns, lambda entry: self._plan_batch(line, entry, most, begin_ns)
        )
        whole = min(most, line.rows)
        whole_us = self._least_us(line, whole)
        cut = self.rules.refuse_late and not batching.waits(settings)
        entries: list[Entry] = []
        rows = 0
        until_ns = 0
        while (entry := line.first(now_ns)) is not None:
            if not entry.sure_s and self._estimate_again(entry):
                continue
            if entries and rows + entry.rows > most:
                break
            if entry.deadline_ns and cut:
                until_ns = min(until_ns or entry.deadline_ns, entry.deadline_ns)
            left_us = (until_ns - begin_ns) / 1e3
            tight = entries and until_ns and left_us < whole_us
            if tight and self._is_too_long(line, rows, entry.rows, whole, left_us):
                break
            self.discount(entry)
            entries.append(entry)
            rows += entry.rows
        cost_us = self.costs.predict(self.model, line.signature, 0, rows) if rows else 0.0
        each_s = LEAST_S / settings.run_rows if cost_us is None else cost_us / 1e6 / max(1, rows)
        for entry in entries if line.fair else ():
            self.charge(entry, each_s * entry.rows)
        return entries, cost_us, self._least_us(line, rows) if rows else 0.0

    def _is_never_long(self, line: Line, settings: BatchingSettings, long_us: float) -> bool:
        """Whether not even a full batch is nearly long by now."""
        return self._least_us(line, settings.run_rows) < _NOT_LONG * long_us

    def _batch_us(self, line: Line, settings: BatchingSettings) -> float:
        """What the next batch of a line costs for sure if it is none for the slow lane; 0 where nobody knows."""
        return self._least_us(line, self._rows_to_take(line, settings, long=False))

    def _rows_to_take(self, line: Line, settings: BatchingSettings, long: bool) -> int:
        rows = min(line.rows, settings.run_rows)
        # Where batches wait for a timeout, what is left of one would wait for its own: only who is idle takes a part.
        timed = batching.waits(settings)
        if line.rows >= settings.run_rows + (not timed):
            return rows
        place = self.placement
        part = place.idle_part(rows, long) if timed else place.even_part(rows, long)
        if part >= rows:
            return rows
        whole_us, part_us = (
            self.costs.predict(self.model, line.signature, 0, count) for count in (rows, part)
        )
        return batching.spread(rows, part, whole_us, part_us)

    def _take_short(
        self, line: Line, now_ns: int, begin_ns: int, share: int
    ) -> tuple[list[Entry], float | None, float]:
        """Up to `share` short ones, and the microseconds that they cost, as predicted and for sure."""
        most_us = self._leave_late(line, now_ns, begin_ns, lambda entry: self._plan_short(line, entry, share))
        entries: list[Entry] = []
        total_us: float | None = 0.0
        sure_s = 0.0
        while len(entries) < share and (entry := line.first(now_ns)) is not None:
            if not entry.sure_s and self._estimate_again(entry):
                continue
            cost_us = self.costs.predict(self.model, entry.signature, entry.size)
            if entries and (cost_us is None or total_us is None or total_us + cost_us > most_us):
                break
            self.discount(entry)
            if line.fair and entry.charge_s != entry.cost_s:
                self.charge(entry, entry.cost_s or LEAST_S)
            entries.append(entry)
            sure_s += entry.sure_s
            total_us = None if cost_us is None or total_us is None else total_us + cost_us
        return entries, total_us, sure_s * 1e6

    def _plan_short(self, line: Line, entry: Entry, share: int) -> tuple[int, float]:
        """Microseconds of the next dispatch where this request is the first of it, and the seconds that it needs then."""
        cost_us = self.costs.predict(self.model, entry.signature, entry.size)
        most_us = COALESCE_US
        if cost_us is not None and self.rules.policy is fifo and not self.rules.fair:
            part = (share + self.placement.held_each()) / _COALESCE_PART
            most_us = max(most_us, min(_COALESCE_QUEUED_US, cost_us * part))
        if not self.rules.refuse_late or not entry.deadline_ns or cost_us is None or not self._least_s(entry):
            return int(most_us), 0.0
        if line.count <= self.placement.open_count:
            return int(most_us), cost_us / 1e6
        given_us = (entry.deadline_ns - entry.arrived_ns) / 1e3
        most_us = max(cost_us, min(most_us, given_us / _GIVEN_PART))
        return int(most_us), _surely_s(entry, min(most_us, share * cost_us) / 1e6)

    def share(self) -> int:
        """How many requests each worker would get if all were sent now, suspects aside."""
        return max(1, -(-self._lined // max(1, len(self.placement.workers))))

    def look_again_ns(self, now_ns: int) -> int | None:
        """When more of what waits could be sent, if nothing else happens before."""
        if not self._lines:
            return None
        dues = [self.placement.look_again_ns(now_ns, self.window_ns)]
        if (settings := self.rules.batching) is not None:
            dues += [
                batching.due_ns(line, settings) for line in self._lines.values() if line.kind is not None
            ]
        return min((due for due in dues if due is not None and due > now_ns), default=None)

    @property
    def window_ns(self) -> int:
        """How long before a worker is idle it may be sent more."""
        settings = self.rules.batching
        if settings is not None and all(line.kind is None for line in self._lines.values()):
            settings = None  # nothing that waits is to be joined
        if settings is not None and all(line.rows < settings.run_rows for line in self._lines.values()):
            return BATCH_PIPELINE_NS
        in_order = self.rules.policy is fifo and not self.rules.fair
        return BACKLOG_PIPELINE_NS if in_order and self._has_backlog(settings) else PIPELINE_NS

    def _has_backlog(self, settings: BatchingSettings | None) -> bool:
        workers = self.placement.open_count
        if settings is None:
            enough = self.length >= _BACKLOG_REQUESTS * workers
            return enough and self.waiting_s * 1e6 >= _BACKLOG_US * workers
        if len(self._lines) > 1:
            return False  # what of other kinds waits may go in batches that are not full
        line = next(iter(self._lines.values()))
        batches = line.rows // settings.run_rows
        if line.kind is None or batches < _BACKLOG_BATCHES * workers:
            return False
        each_us = self.costs.predict(self.model, line.signature, 0, settings.run_rows) or 0.0
        return batches * each_us >= _BACKLOG_US * workers

    @property
    def _lined(self) -> int:
        """Requests that wait and are no suspects."""
        return sum(line.count for line in self._lines.values())

    @property
    def lined_slow(self) -> int:
        """Of those, requests that wait for the slow lane."""
        return sum(line.count for line in self._lines.values() if line.slow)

    @property
    def waits(self) -> bool:
        """Whether anything waits that is no suspect."""
        return bool(self._lines)

    @property
    def waits_slow(self) -> bool:
        """Whether any of that is for the slow lane."""
        return self._waits_in(True)


def _surely_s(entry: Entry, cost_s: float) -> float:
    """What a request needs to be in time for sure, but no more than it has when half of what it has to spare is over."""
    given_s = (entry.deadline_ns - entry.arrived_ns) / 1e9
    return max(cost_s, min(_IN_TIME_FOR_SURE * cost_s, (cost_s + given_s) / 2))


def _place(entry: Entry) -> tuple[float, int]:
    return entry.key, entry.order


def _place_anew(line: Line, change: Callable[[Entry], object]) -> None:
    """Changes what the place of each in a line goes by. All leave first: none is to find its client's turns as they were."""
    waiting = sorted(line, key=_place)
    for entry in waiting:
        line.leave(entry)
    for entry in waiting:
        change(entry)
        line.add(entry)


def _asked(entry: Entry) -> tuple[str, bytes] | None:
    """The outputs that a request asks for: its signature and its output_filter."""
    return None if entry.kind is None else entry.kind[:2]
