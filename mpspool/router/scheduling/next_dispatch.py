"""What of a queue is sent next: from which of its lines, how much of it, and when it is looked at again. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable

from mpspool.core.inbox import REGION_BYTES
from mpspool.core.settings import BatchingSettings
from mpspool.router.scheduling import batching
from mpspool.router.scheduling.entry import Entry
from mpspool.router.scheduling.fair_share import LEAST_S
from mpspool.router.scheduling.line import Line
from mpspool.router.scheduling.load import Batch
from mpspool.router.scheduling.placement import (
    BACKLOG_PIPELINE_NS,
    BATCH_PIPELINE_NS,
    PATIENT_PIPELINE_NS,
    PIPELINE_NS,
)
from mpspool.router.scheduling.policy import fifo
from mpspool.router.scheduling.queues import Queue

# Several short requests travel in one dispatch while together they cost no more than this: what a
# message costs is then shared, and the first of them waits for the last at most this long.
COALESCE_US = 4_000.0
# While many wait in the order of their arrival it may be as much as what is sent early (_early_ns), but no more than a part of
# what each worker is to do, what it holds included: who waits that long hardly notices.
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


def next_lines(
    queue: Queue, now_ns: int, allowed: Callable[[bool], bool], long_us: Callable[[], float]
) -> dict[bool, tuple[Line, Entry]]:
    """The line whose first request is next, and that request: of long dispatches, and of others.

    Args:
        queue: whose.
        now_ns: the time.
        allowed: whether there is a worker for a long dispatch, or for another.
        long_us: from which cost on, for sure, a batch is long.
    """
    best: dict[bool, tuple[Line, Entry]] = {}
    learned = False
    long_from_us = long_us()
    settings = queue.rules.batching
    for line in list(queue.lines.values()):
        long = line.long
        if not _is_due(queue, line, now_ns):
            continue
        if settings is not None and line.kind is not None:
            if long_from_us == math.inf:
                queue.set_lane(line, long)  # there is no slow lane, any more perhaps
            elif not long and _batch_us(queue, line, settings) >= long_from_us:
                long = True
                queue.set_lane(line, True)
            elif line.slow and not long and _is_never_long(queue, line, settings, long_from_us):
                queue.set_lane(line, False)
        if not allowed(long):
            continue
        first = line.first(now_ns)
        while first is not None and not first.sure_s and queue.estimate_again(first):
            learned = True
            first = line.first(now_ns)
        if first is not None and (
            long not in best or queue.place_of(line, first) < queue.place_of(*best[long])
        ):
            best[long] = line, first
    return next_lines(queue, now_ns, allowed, long_us) if learned else best


def is_short_from(queue: Queue, was_us: float, long_us: float) -> bool:
    """Whether a batch that waits for the slow lane is not long any more now that this is what costs `long_us`, in place of `was_us`."""
    settings = queue.rules.batching
    return settings is not None and any(
        line.slow and not line.long and was_us <= _batch_us(queue, line, settings) < long_us
        for line in queue.lines.values()
    )


def take(queue: Queue, line: Line, now_ns: int, begin_ns: int, share: int, long: bool) -> Batch:
    """The next dispatch from a line; empty where somebody has left, and who is next is to be seen anew.

    Args:
        queue: whose.
        line: which.
        now_ns: the time.
        begin_ns: when its worker will have run what it holds.
        share: requests for each worker, at most.
        long: it is of those that a slow lane is for.
    """
    settings = queue.rules.batching
    together = settings is not None and line.kind is not None
    if settings is not None and together:
        full = line.rows >= settings.run_rows
        entries, cost_us, sure_us = _take_batch(queue, line, settings, now_ns, begin_ns, long)
        if full and queue.is_timed:  # else the rest has waited long enough, as what was taken
            line.renew(settings.run_rows)
    else:
        entries, cost_us, sure_us = _take_short(queue, line, now_ns, begin_ns, share)
    if queue.rules.fair and entries:
        for entry in entries:  # in the order of their turns; who fills a batch has had its turn, too
            queue.shares.of(line.slow).served(entry.start_s, entry.key - entry.start_s)
        taken = entries[0]
        if not line.slow:
            for other in queue.lines.values():
                if (
                    other.slow
                    and _is_due(queue, other, now_ns)
                    and (first := other.first(now_ns)) is not None
                ):
                    after_s = (first.key - first.start_s) - (taken.key - taken.start_s)
                    queue.shares.hold(taken.start_s, first.start_s, after_s)
    return Batch(entries, cost_us, sure_us, together, long)


def _is_due(queue: Queue, line: Line, now_ns: int) -> bool:
    """Whether it could be sent now, and does not wait for more to fill its batch."""
    settings = queue.rules.batching
    if settings is None or line.kind is None or not queue.is_timed:
        return True
    return batching.due_ns(line, settings) <= now_ns


def _leave_late(
    queue: Queue, line: Line, now_ns: int, begin_ns: int, plan: Callable[[Entry], tuple[int, float]]
) -> int:
    """Whoever is next and has not the time that it needs leaves, while others wait that may be in time.

    In a crowd, where no worker is idle for it, it needs what its dispatch takes, as large as is good for all, and some
    more: to run those who have least time left, in ever smaller dispatches, makes all behind them late, too.

    Args:
        queue: whose.
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
        if in_time or line.count == 1 or not queue.rules.refuse_late:
            return size
        queue.leave(entry)
        queue.late.append(entry)
    return 0


def _plan_batch(queue: Queue, line: Line, entry: Entry, most: int, begin_ns: int) -> tuple[int, float]:
    """Rows of the next batch where this request is the first of it, and the seconds that it needs then."""
    if not queue.rules.refuse_late or not entry.deadline_ns:
        return most, 0.0
    cost_s = _least_s(queue, entry)
    whole_s = _surely_s(entry, max(cost_s, _least_us(queue, line, most) / 1e6))
    if begin_ns + whole_s * 1e9 <= entry.deadline_ns:
        return most, whole_s
    rows = most
    # Where batches wait for a timeout what is left of a full one would wait for its own.
    if not queue.is_timed:
        rows = _rows_in_time(queue, line, entry, most)
    if line.rows - entry.rows < rows * queue.placement.open_count:
        return most, cost_s
    return rows, _surely_s(entry, max(cost_s, _least_us(queue, line, rows) / 1e6))


def _rows_in_time(queue: Queue, line: Line, entry: Entry, most: int) -> int:
    """Rows of the batches that bring most answers in time, where all that wait are given as much time as this one.

    The larger a batch, the more rows in the time that it takes, but the fewer of those that wait have so much of theirs left.
    """
    given_us = (entry.deadline_ns - entry.arrived_ns) / 1e3
    if _GIVEN_PART * _least_us(queue, line, most) <= given_us:
        return most
    found: list[tuple[int, float]] = []
    rows = most
    while True:
        cost_us = max(1.0, _least_us(queue, line, rows))
        there = line.rows * max(0.0, 1 - _IN_TIME_FOR_SURE * cost_us / given_us)
        found.append((rows, min(rows, there) / cost_us))
        if rows <= entry.rows or _GIVEN_PART * cost_us <= given_us:
            break
        rows = max(entry.rows, rows // 2)
    enough = _NEARLY * max(rate for _, rate in found)
    return min(rows for rows, rate in found if rate >= enough)


def _least_s(queue: Queue, entry: Entry) -> float:
    """What a request takes for sure, if it is run by itself; 0 where nobody knows."""
    return entry.runs * queue.costs.at_least(queue.model, entry.signature, entry.size, entry.rows) / 1e6


def _least_us(queue: Queue, line: Line, rows: int) -> float:
    """What a batch of so many rows, at least one, costs for sure: larger ones than were seen are tried."""
    return queue.costs.at_least(queue.model, line.signature, 0, rows)


def _is_too_long(queue: Queue, line: Line, rows: int, more: int, whole: int, left_us: float) -> bool:
    """Whether a batch is in time, is not with more rows, and brings as many in its time as the whole that could be made."""
    cost_us = _least_us(queue, line, rows)
    if not cost_us <= left_us < _least_us(queue, line, rows + more):
        return False
    return rows * _least_us(queue, line, whole) >= _NEARLY * whole * cost_us


def _take_batch(
    queue: Queue, line: Line, settings: BatchingSettings, now_ns: int, begin_ns: int, long: bool
) -> tuple[list[Entry], float | None, float]:
    """The requests of a batch, and the microseconds that it costs, as predicted and for sure."""
    most = _rows_to_take(queue, line, settings, long)
    most = _leave_late(
        queue, line, now_ns, begin_ns, lambda entry: _plan_batch(queue, line, entry, most, begin_ns)
    )
    if queue.late:
        return [], 0.0, 0.0
    whole = min(most, line.rows)
    whole_us = _least_us(queue, line, whole)
    # What a full batch leaves would wait for its own timeout.
    cut = queue.rules.refuse_late and not (queue.is_timed and line.rows >= settings.run_rows)
    entries: list[Entry] = []
    rows = 0
    until_ns = 0
    while (entry := line.first(now_ns)) is not None:
        if not entry.sure_s and queue.estimate_again(entry):
            continue
        if entries and rows + entry.rows > most:
            break
        if entry.deadline_ns and cut:
            until_ns = min(until_ns or entry.deadline_ns, entry.deadline_ns)
        left_us = (until_ns - begin_ns) / 1e3
        tight = entries and until_ns and left_us < whole_us
        if tight and _is_too_long(queue, line, rows, entry.rows, whole, left_us):
            break
        queue.discount(entry)
        entries.append(entry)
        rows += entry.rows
    runs = entries[0].runs if entries else 1.0  # what takes several fills a batch by itself
    cost_us = queue.costs.predict(queue.model, line.signature, 0, rows) if rows else 0.0
    if cost_us is not None:
        cost_us *= runs
    each_s = LEAST_S / settings.run_rows if cost_us is None else cost_us / 1e6 / max(1, rows)
    for entry in entries if line.fair else ():
        queue.charge(entry, each_s * entry.rows)
    return entries, cost_us, runs * _least_us(queue, line, rows) if rows else 0.0


def _is_never_long(queue: Queue, line: Line, settings: BatchingSettings, long_us: float) -> bool:
    """Whether not even a full batch is nearly long by now, however many runs the next one takes."""
    first = line.first(0)
    runs = first.runs if first is not None else 1.0
    return runs * _least_us(queue, line, settings.run_rows) < _NOT_LONG * long_us


def _batch_us(queue: Queue, line: Line, settings: BatchingSettings) -> float:
    """What the next batch of a line costs for sure if it is none for the slow lane; 0 where nobody knows."""
    first = line.first(0)
    runs = first.runs if first is not None else 1.0
    return runs * _least_us(queue, line, _rows_to_take(queue, line, settings, long=False))


def _rows_to_take(queue: Queue, line: Line, settings: BatchingSettings, long: bool) -> int:
    rows = min(line.rows, settings.run_rows)
    # Where batches wait for a timeout, what is left of one would wait for its own: only who is idle takes a part.
    timed = queue.is_timed
    if line.rows >= settings.run_rows + (not timed):
        return rows
    place = queue.placement
    part = place.idle_part(rows, long) if timed else place.even_part(rows, long)
    if part >= rows:
        return rows
    whole_us, part_us = (queue.costs.predict(queue.model, line.signature, 0, count) for count in (rows, part))
    return batching.spread(rows, part, whole_us, part_us)


def _take_short(
    queue: Queue, line: Line, now_ns: int, begin_ns: int, share: int
) -> tuple[list[Entry], float | None, float]:
    """Up to `share` short ones, of no more than an inbox takes, nor with larger answers, and the microseconds that they cost, as predicted and for sure."""
    most_us = _leave_late(queue, line, now_ns, begin_ns, lambda entry: _plan_short(queue, line, entry, share))
    if queue.late:
        return [], 0.0, 0.0
    entries: list[Entry] = []
    total_us: float | None = 0.0
    sure_s = 0.0
    size = 0
    until_ns = 0
    while len(entries) < share and (entry := line.first(now_ns)) is not None:
        if not entry.sure_s and queue.estimate_again(entry):
            continue
        cost_us = queue.costs.predict(queue.model, entry.signature, entry.size)
        more_us = None if cost_us is None or total_us is None else total_us + cost_us
        size += max(entry.size, queue.answer_bytes(entry.signature, entry.size))
        if entries and (more_us is None or more_us > most_us or size > REGION_BYTES):
            break
        if queue.rules.refuse_late and entry.deadline_ns:  # all are answered when the last has been run
            until_ns = min(until_ns or entry.deadline_ns, entry.deadline_ns)
        if entries and until_ns and begin_ns + (more_us or 0.0) * 1e3 > until_ns:
            break
        queue.discount(entry)
        if line.fair and entry.charge_s != entry.cost_s:
            queue.charge(entry, entry.cost_s or LEAST_S)
        entries.append(entry)
        sure_s += entry.sure_s
        total_us = more_us
    return entries, total_us, sure_s * 1e6


def _plan_short(queue: Queue, line: Line, entry: Entry, share: int) -> tuple[int, float]:
    """Microseconds of the next dispatch where this request is the first of it, and the seconds that it needs then."""
    cost_us = queue.costs.predict(queue.model, entry.signature, entry.size)
    most_us = COALESCE_US
    if cost_us is not None and queue.rules.policy is fifo and not queue.rules.fair:
        part = (share + queue.placement.held_each()) / _COALESCE_PART
        most_us = max(most_us, min(_early_ns(queue) / 1e3, cost_us * part))
    if not queue.rules.refuse_late or not entry.deadline_ns or cost_us is None or not _least_s(queue, entry):
        return int(most_us), 0.0
    if line.count <= queue.placement.open_count:
        return int(most_us), cost_us / 1e6
    given_us = (entry.deadline_ns - entry.arrived_ns) / 1e3
    most_us = max(cost_us, min(most_us, given_us / _GIVEN_PART))
    return int(most_us), _surely_s(entry, min(most_us, share * cost_us) / 1e6)


def share(queue: Queue, slow: bool) -> int:
    """How many requests each worker would get if all that wait for the slow lane were sent now, or all others; suspects aside."""
    lined = queue.lined_slow if slow else queue.lined - queue.lined_slow
    return max(1, -(-lined // max(1, queue.placement.open_count)))


def look_again_ns(queue: Queue, now_ns: int) -> int | None:
    """When more of what waits could be sent, if nothing else happens before."""
    if not queue.lines:
        return None
    dues = [queue.placement.look_again_ns(now_ns, window_ns(queue))]
    if (settings := queue.rules.batching) is not None and queue.is_timed:
        dues += [batching.due_ns(line, settings) for line in queue.lines.values() if line.kind is not None]
    return min((due for due in dues if due is not None and due > now_ns), default=None)


def window_ns(queue: Queue) -> int:
    """How long before a worker is idle it may be sent more."""
    settings = queue.rules.batching
    if settings is not None and all(line.kind is None for line in queue.lines.values()):
        settings = None  # nothing that waits is to be joined
    if settings is not None and all(line.rows < settings.run_rows for line in queue.lines.values()):
        return BATCH_PIPELINE_NS
    in_order = queue.rules.policy is fifo and not queue.rules.fair
    return _early_ns(queue) if in_order and _has_backlog(queue, settings) else PIPELINE_NS


def _early_ns(queue: Queue) -> int:
    """How long before a worker is idle it is sent more in a backlog, and how much of it at once: less where somebody in a hurry would
    wait for it or, where devices are limited, another model.
    """
    return BACKLOG_PIPELINE_NS if queue.hurried or queue.placement.limited else PATIENT_PIPELINE_NS


def _has_backlog(queue: Queue, settings: BatchingSettings | None) -> bool:
    workers = queue.placement.open_count
    if settings is None:
        enough = queue.length >= _BACKLOG_REQUESTS * workers
        return enough and queue.waiting_s * 1e6 >= _BACKLOG_US * workers
    if len(queue.lines) > 1:
        return False  # what of other kinds waits may go in batches that are not full
    line = next(iter(queue.lines.values()))
    batches = line.rows // settings.run_rows
    if line.kind is None or batches < _BACKLOG_BATCHES * workers:
        return False
    each_us = queue.costs.predict(queue.model, line.signature, 0, settings.run_rows) or 0.0
    return batches * each_us >= _BACKLOG_US * workers


def _surely_s(entry: Entry, cost_s: float) -> float:
    """What a request needs to be in time for sure, but no more than it has when half of what it has to spare is over."""
    given_s = (entry.deadline_ns - entry.arrived_ns) / 1e9
    return max(cost_s, min(_IN_TIME_FOR_SURE * cost_s, (cost_s + given_s) / 2))
