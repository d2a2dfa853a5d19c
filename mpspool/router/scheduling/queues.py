"""The queue of one model version: who waits, in which order, and what is known of them. Pure.

admission.py says who comes into it, next_dispatch.py what leaves it for a worker.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from mpspool.core.ids import ModelVersion
from mpspool.core.settings import BatchingSettings
from mpspool.router.scheduling import batching
from mpspool.router.scheduling.cost import CostTable
from mpspool.router.scheduling.entry import Entry, Kind
from mpspool.router.scheduling.fair_share import Lanes
from mpspool.router.scheduling.line import FairLine, Line
from mpspool.router.scheduling.placement import PATIENT_PIPELINE_NS, Placement
from mpspool.router.scheduling.policy import Policy, fifo, is_time
from mpspool.router.scheduling.room import Crowd, Ranks, Room

# What a client makes up (an output_filter) makes no more lines than this; beyond, requests run one by one. Where clients share fairly,
# such a part of them each.
_MAX_LINES = 64
_LINES_PART = 4
# Of so many signatures it is kept that nothing of them waits, which costs less than to make it anew for each request; their names
# are a client's to make up.
_MAX_SIGNATURES = 16
# As many choices of outputs as a worker remembers.
_MAX_APART = 1024
# Of the bodies that were answered last, those that are kept: 4 MiB a version at most.
_LIVED = 256
_LIVED_BYTES = 16 * 1024
# Such a part of a large answer is forgotten with each smaller one.
_FORGETS_PART = 8
_MAX_ANSWERED = 64
# Between two requests: what has taken over the turn of one has a number of its own, before the next one's.
_ORDER_STEP = 2**20
# Who has less time than this is in a hurry: a dispatch that runs and one behind it may take a quarter of it.
_SOON_NS = 8 * PATIENT_PIPELINE_NS


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
        room, room_filling: all of it, by rows, and what fills a batch each.
        runs, rows: of all of it; runs if nothing is joined.
        filling: how many fill a batch each.
    """

    room: Room
    room_filling: Room
    runs: int = 0
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
        try_ns: from when on a request that will be late, as far as is known, is run all the same where a worker is idle; of those
            that take about as long, by how long that is.
        late: those that have left, for they cannot be in time any more, and are to be refused.
        lived: the bodies of the last answers.
        answered: bytes of the largest answers of late, by signature and size class of the request.
        excused: when a body's being in `lived` was made use of.
        apart: signature and output_filter of requests that a worker could not join.
        lines: in which all wait but suspects, by kind and by whether they are long.
        shares: where clients share fairly, their accounts.
        passed: those with a negative priority in the lines, whom others pass.
        closed: nothing more comes: no batch waits for it.
        hurried: a request came that goes before others or after them, or is to be answered soon, were it refused at the door.
        enqueued: by signature, what waits to be run in batches, be it nothing.
        room: what waits in the lines.
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
    try_ns: dict[int, int] = field(default_factory=dict)
    late: list[Entry] = field(default_factory=list)
    answered: OrderedDict[tuple[str, int], int] = field(default_factory=OrderedDict)
    lived: deque[bytes] = field(default_factory=lambda: deque(maxlen=_LIVED))
    excused: OrderedDict[bytes, int] = field(default_factory=OrderedDict)
    apart: set[tuple[str, bytes]] = field(default_factory=set)
    lines: dict[tuple[object, bool], Line] = field(default_factory=dict)
    shares: Lanes = field(default_factory=Lanes)
    passed: int = 0
    closed: bool = False
    hurried: bool = False
    enqueued: dict[str, Enqueued] = field(default_factory=dict)
    room: Room = field(init=False)
    _order: Iterator[int] = field(default_factory=lambda: itertools.count(step=_ORDER_STEP))

    def __post_init__(self) -> None:
        self.room = self._new_room()

    def _new_room(self) -> Room:
        make = Crowd if self.rules.fair else Ranks
        return make(self.rules.priority_s)

    # -- arrival ----------------------------------------------------------------------------------

    def notice(self, entry: Entry, now_ns: int) -> None:
        """A request is at the door."""
        soon_ns = entry.arrived_ns + _SOON_NS
        self.hurried = self.hurried or entry.priority != 0 or now_ns < entry.deadline_ns < soon_ns

    def place(self, entry: Entry) -> None:
        """Gives a new request its place among those that wait."""
        entry.arrived_s = entry.start_s = entry.arrived_ns / 1e9
        later_s = self._rank(entry)
        if self.rules.fair:
            entry.charge_s = entry.cost_s or 0.0
            if entry.rows:  # the least that its part of a batch costs
                least_s = entry.rows * self.costs.least_per_row(self.model, entry.signature) / 1e6
                entry.charge_s = min(entry.charge_s, least_s)
            entry.slow = self.is_slow(entry)
            self._enter(entry.slow)
            share = self.shares.of(entry.slow)
            if self._waits_of(entry.client, entry.slow):
                entry.start_s = share.follow(entry.client, entry.charge_s, later_s)
            else:
                entry.start_s = share.arrive(entry.client, entry.charge_s)
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

    def is_slow(self, entry: Entry) -> bool:
        """Whether it waits for the slow lane, or is to: it is long, or the batch of those that it is to share one with."""
        line = self.lines.get((entry.kind if entry.rows else None, entry.long))
        return entry.long or (line is not None and line.slow)

    def _waits_in(self, slow: bool) -> bool:
        """Whether anything waits in the slow lane, or outside of it."""
        return any(line.slow == slow for line in self.lines.values())

    def _waits_of(self, client: str, slow: bool) -> bool:
        """Whether anything of a client waits there, where clients share."""
        lines = (line for line in self.lines.values() if isinstance(line, FairLine) and line.slow == slow)
        return any(line.holds(client) for line in lines)

    def _enter(self, slow: bool) -> None:
        """Something is about to wait in the slow lane, or outside of it."""
        if not self._waits_in(slow):
            self.shares.catch_up(slow)

    def after_s(self, first: Entry) -> float:
        """How long after its turn among models a request is next by its policy, and by its priority where clients do not share.

        What a policy of a user's own says need not be a time, and means nothing beside other models.
        """
        if not is_time(self.rules.policy):
            return 0.0
        return (self.rules.policy(first) if self.rules.fair else first.key) - first.arrived_s

    def leave(self, entry: Entry) -> None:
        """It is over. Where it has not been run its client has one turn less, the last of all, and is not charged for that."""
        line = entry.line
        self.discount(entry)
        if not self.rules.fair or entry.sent_ns:
            return
        if line is not None:
            self._take_over(entry)
        self.shares.of(entry.slow).refund(entry.client, entry.charge_s)
        entry.charge_s = 0.0

    def _take_over(self, left: Entry) -> None:
        """What has its client's last turn in that lane has the one of a request that has left: those that stay do not wait for what
        is not run.
        """
        last: tuple[int, Entry, FairLine] | None = None
        for line in self.lines.values():
            if isinstance(line, FairLine) and line.slow == left.slow:
                entry = line.last_of(left.client)
                if entry is not None and (last is None or entry.order > last[0]):
                    last = entry.order, entry, line
        if last is not None and last[1].start_s > left.start_s:
            last[2].take_over(last[1], left)

    def charge(self, entry: Entry, cost_s: float) -> None:
        """What was sent costs this: its client's others are later by what it was not charged for its turn so far, or earlier."""
        more_s = cost_s - entry.charge_s
        if not more_s or not self.rules.fair:
            return
        entry.charge_s = cost_s
        self.shares.of(entry.slow).owe(entry.client, more_s, entry.start_s)
        for line in self.lines.values():
            if isinstance(line, FairLine) and line.slow == entry.slow:
                line.delay(entry.client, more_s)

    def govern(self, rules: QueueRules) -> None:
        """What holds from now on, for what waits, too: numbers of two policies mean nothing beside each other."""
        was, self.rules = self.rules, rules
        self.hurried = False
        if rules.batching != was.batching:
            self.apart.clear()
            self._fill_anew()
        if rules.policy == was.policy and rules.priority_s == was.priority_s:
            return
        for entry in self._elsewhere():
            self._rank(entry)
        for line in self.lines.values():
            _place_anew(line, self._rank)

    def _fill_anew(self) -> None:
        """Batches have another size from now on: of what waits others fill one each."""
        settings = self.rules.batching
        for enqueued in self.enqueued.values():
            enqueued.filling = 0
            enqueued.room_filling = self._new_room()
        waiting = [entry for line in self.lines.values() for entry in line]
        for entry in (*waiting, *self._elsewhere()):
            if entry.rows:
                entry.fills = settings is not None and batching.fills(entry.rows, settings)
        for entry in waiting:
            if entry.rows:
                enqueued = self.enqueued[entry.signature]
                enqueued.filling += entry.fills
                if entry.fills:
                    enqueued.room_filling.add(entry)

    def estimate_anew(self) -> None:
        """What is long is another from now on: all that waits goes to its lane."""
        for entry in self._elsewhere():
            self.estimate(entry)
        waiting = sorted((entry for line in self.lines.values() for entry in line), key=_place)
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
        self.passed += entry.priority < 0
        self.room.add(entry)
        if entry.rows:
            enqueued = self.enqueued.get(entry.signature)
            if enqueued is None:
                enqueued = self.enqueued[entry.signature] = Enqueued(self._new_room(), self._new_room())
            enqueued.runs += entry.run_count
            enqueued.rows += entry.all_rows
            enqueued.filling += entry.fills
            enqueued.room.add(entry, entry.all_rows)
            if entry.fills:
                enqueued.room_filling.add(entry)
        if line.count == 1:
            return True
        settings = self.rules.batching
        if settings is None or line.rows - entry.rows >= settings.run_rows:
            return False
        if self.is_timed and (
            line.since_ns == entry.arrived_ns or (entry.deadline_ns and line.until_ns == entry.joins_until_ns)
        ):
            return True  # it is due before the others: it has waited elsewhere for longer, or has less time
        # With more rows a batch that waits for the slow lane may be taken in parts, which are not long.
        return line.rows >= settings.run_rows or (line.slow and not line.long)

    def _join_line(self, entry: Entry) -> Line:
        kind: Kind | None = entry.kind if entry.rows else None
        line = self.lines.get((kind, entry.long))
        if line is None and (len(self.lines) >= _MAX_LINES or self._has_begun_many(entry.client)):
            kind = None
            line = self.lines.get((kind, entry.long))
        if line is None:
            self._enter(entry.long)
            make = FairLine if self.rules.fair else Line
            line = make(kind, entry.signature, entry.long, entry.client)
            self.lines[kind, entry.long] = line
        if line.fair and entry.slow != line.slow:
            self._change_lane(entry, line.slow, entry.charge_s)  # it has been with a worker since
        line.add(entry)
        return line

    def _has_begun_many(self, client: str) -> bool:
        """Whether lines are full by a client's doing, as far as it may fill them."""
        if not self.rules.fair:
            return False
        begun = sum(line.begun_by == client for line in self.lines.values())
        return begun >= _MAX_LINES // _LINES_PART

    def estimate_again(self, entry: Entry) -> bool:
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
                self.lines.pop((line.kind, line.long), None)
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
                self.passed -= entry.priority < 0
                self.room.discard(entry)
                if entry.rows:
                    enqueued = self.enqueued[entry.signature]
                    enqueued.runs -= entry.run_count
                    enqueued.rows -= entry.all_rows
                    enqueued.filling -= entry.fills
                    enqueued.room.discard(entry)
                    if entry.fills:
                        enqueued.room_filling.discard(entry)
                    if not enqueued.runs and len(self.enqueued) > _MAX_SIGNATURES:
                        del self.enqueued[entry.signature]
                if not line.count:
                    self.lines.pop((line.kind, line.long), None)
                # Small differences of floats do not pile up.
                self.waiting_s = max(0.0, self.waiting_s - entry.sure_s) if self.lines else 0.0

    def forget_over(self) -> None:
        """Keeps what nobody wants any more from piling up behind what is not served."""
        if len(self.suspects) > 2 * self.length + 64:
            self.suspects = deque(entry for entry in self.suspects if not entry.over)

    def waiting(self) -> list[Entry]:
        """All that wait and are wanted, suspects first."""
        lines = sorted((entry for line in self.lines.values() for entry in line), key=_place)
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
        lines = [line for line in self.lines.values() if line.rows]
        alike = [entry for line in lines for entry in line if _asked(entry) == asked]
        for entry in sorted(alike, key=_place):
            self.discount(entry)
            self.add(entry)
        return True

    def set_apart(self, entry: Entry) -> None:
        """Where a request cannot be joined by what it asks for, it is one without rows."""
        if entry.rows and _asked(entry) in self.apart:
            entry.rows = 0
            entry.runs = 1.0
            entry.fills = False

    # -- what workers were lost to ----------------------------------------------------------------

    def ran(self, entry: Entry, answer_bytes: int) -> None:
        """A worker ran this and lived: its answer has so many bytes."""
        key = entry.signature, entry.size.bit_length()
        known = self.answered.get(key, 0)
        self.answered[key] = max(answer_bytes, known - known // _FORGETS_PART)
        self.answered.move_to_end(key)
        if len(self.answered) > _MAX_ANSWERED:
            self.answered.popitem(last=False)
        body = entry.body
        if len(body) <= _LIVED_BYTES:
            self.lived.append(body)

    def answer_bytes(self, signature: str, size: int) -> int:
        """Of the largest answers of late to such requests; 0 where there was none."""
        return self.answered.get((signature, size.bit_length()), 0)

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
        waiting = (entry for line in self.lines.values() for entry in line)
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

    def set_lane(self, line: Line, slow: bool) -> None:
        """Batches of it are long, and wait for the slow lane from now on; or there is none any more."""
        if line.slow != slow:
            self._enter(slow)
            line.slow = slow
            if self.rules.fair:
                _place_anew(line, lambda entry: self._change_lane(entry, slow, entry.charge_s))

    def _change_lane(self, entry: Entry, slow: bool, cost_s: float) -> None:
        """It is in the slow lane from now on, or is not any more: its place there is by that lane's clock and its client's account."""
        if self.rules.fair and slow != entry.slow:
            self.shares.of(entry.slow).refund(entry.client, entry.charge_s)
            start_s = self.shares.of(slow).arrive(entry.client, cost_s)
            entry.key += start_s - entry.start_s
            entry.start_s, entry.charge_s = start_s, cost_s
        entry.slow = slow

    def place_of(self, line: Line, first: Entry) -> tuple[float, int]:
        """Where the first request of a line is among those of all lines."""
        return self.shares.beside(line.slow, first.key), first.order

    @property
    def lined(self) -> int:
        """Requests that wait and are no suspects."""
        return sum(line.count for line in self.lines.values())

    @property
    def lined_slow(self) -> int:
        """Of those, requests that wait for the slow lane."""
        return sum(line.count for line in self.lines.values() if line.slow)

    @property
    def is_timed(self) -> bool:
        """Whether a batch that is not full waits while a worker is idle, until it falls due by itself."""
        settings = self.rules.batching
        return settings is not None and batching.waits(settings) and not self.closed

    @property
    def waits(self) -> bool:
        """Whether anything waits that is no suspect."""
        return bool(self.lines)

    @property
    def waits_slow(self) -> bool:
        """Whether any of that is for the slow lane."""
        return self._waits_in(True)


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
