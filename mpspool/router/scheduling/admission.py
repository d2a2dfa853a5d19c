"""Who is let into the queue of a model version: whether there is room, and whether it can be in time. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from mpspool.core.errors import Code, Lack, PoolError
from mpspool.core.settings import BatchingSettings
from mpspool.router.scheduling import batching
from mpspool.router.scheduling.entry import Entry
from mpspool.router.scheduling.policy import fifo
from mpspool.router.scheduling.queues import Enqueued, Queue

# What takes so many times as long as it has left is not begun even where a worker is idle,
_HOPELESS = 2
# but for one try in so many times what it takes: a twentieth of a worker's time.
_TRY_EVERY = 20


def check_room(queue: Queue, parts: Sequence[Entry]) -> Sequence[tuple[Entry, PoolError]]:
    """Whether a new request, or all parts of one, fit. Where more wait than may, as when a worker was lost, no more leave than come.

    Returns:
        Those that have to leave for it, each with the error that it would have been refused with, if they could not. Where clients share
        fairly: of another that has more waiting than its part, or of its own client's that it goes before; where they do not: of lower
        priority that it goes before.

    Raises:
        PoolError: they do not.
    """
    settings = queue.rules.batching
    if settings is None and queue.length < queue.rules.max_requests:
        return ()  # none is cut where nothing is joined
    first = parts[0]
    # What idle workers are sent at once does not wait; what waits for the slow lane alone is not before it.
    idle = queue.placement.idle_count
    if idle and queue.length and (queue.is_slow(first) or queue.length > queue.lined_slow):
        idle = 0
    leaving: list[tuple[Entry, PoolError]] = []
    if settings is not None and first.rows:
        for entry in parts:
            entry.fills = batching.fills(entry.rows, settings)
    if first.let_in:
        return ()
    if settings is not None and first.rows:
        enqueued = queue.enqueued.get(first.signature)
        # No run has more rows than a batch: so many fit, however they are joined.
        runs = (enqueued.runs if enqueued else 0) + sum(entry.run_count for entry in parts)
        if runs > settings.max_enqueued_batches + idle:
            leaving = _room_for_rows(parts, enqueued, settings, idle)
    lacking = queue.length + len(parts) - idle - queue.rules.max_requests
    places = min(lacking, len(parts)) - len(leaving)
    if places > 0:
        leaving += _room_for_requests(queue, parts, places, {other for other, _ in leaving})
    return leaving


def _room_for_rows(
    parts: Sequence[Entry], enqueued: Enqueued | None, settings: BatchingSettings, idle: int
) -> list[tuple[Entry, PoolError]]:
    """As check_room, among what is to be run in batches, of which as many as `idle` do not wait.

    No error has a name here: one that is known where it is raised keeps all that is there, the bodies of those who called, until a
    collector comes.
    """
    rows, filling = (enqueued.rows, enqueued.filling) if enqueued else (0, 0)
    rows -= idle * settings.run_rows
    filling -= idle
    more = sum(entry.all_rows for entry in parts)
    if batching.has_room(rows, filling, more, settings):
        return []
    if enqueued is None:
        raise batching.is_full(rows, filling, more, settings)
    first, most = parts[0], settings.max_enqueued_batches
    # Each that fills a batch takes the place of one that does, and rows those of rows; of either no more leave than come.
    batches_over = min(len(parts), max(0, filling + batching.fills(more, settings) - most))
    leaving = list(itertools.islice(enqueued.room_filling.leaving_for(first, 1), batches_over))
    if len(leaving) < batches_over:
        raise batching.is_full(rows, filling, more, settings)
    rows_over = min(more, rows + more - most * settings.run_rows) - sum(last.all_rows for last in leaving)
    already = set(leaving)
    others = (last for last in enqueued.room.leaving_for(first, more) if last not in already)
    while rows_over > 0:
        if (last := next(others, None)) is None:
            raise batching.is_full(rows, filling, more, settings)
        leaving.append(last)
        rows_over -= last.all_rows
    return [(last, batching.is_full(rows, filling, more, settings)) for last in leaving]


def _room_for_requests(
    queue: Queue, parts: Sequence[Entry], places: int, already: Collection[Entry]
) -> list[tuple[Entry, PoolError]]:
    """As check_room, where so many more have to leave than do already."""
    of_parts = f", and this one is run in {len(parts)} parts" if len(parts) > 1 else ""
    others = (last for last in queue.room.leaving_for(parts[0], len(parts)) if last not in already)
    leaving = [(last, _is_full(queue)) for last in itertools.islice(others, places)]
    if len(leaving) < places:
        raise _is_full(queue, of_parts)
    return leaving


def _is_full(queue: Queue, of_parts: str = "") -> PoolError:
    text = (
        f"The queue of {queue.model} is full: {queue.length} requests wait and max_queued_requests is "
        f"{queue.rules.max_requests}{of_parts}; try again later"
    )
    return PoolError(Code.UNAVAILABLE, text, Lack.REQUESTS)


def made_room(error: PoolError, *, another: bool) -> PoolError:
    """What is told to one that had to leave for a request of another client, or of higher priority, of what that would have been told:
    without that one's own figures.
    """
    full = error.message.partition(";")[0]
    whom = (
        "another client (scheduling.fair_by)"
        if another
        else "one of higher priority (scheduling.priority_key)"
    )
    text = f"{full}; the place of this one went to {whom}; try again later"
    return PoolError(error.code, text, error.lack)


def check_deadline(queue: Queue, parts: Sequence[Entry], now_ns: int) -> None:
    """Raises PoolError where a request's deadline has passed, or will have before it, or all its parts, could have been run."""
    first = parts[0]
    if not first.deadline_ns:
        return
    left_s = (first.deadline_ns - now_ns) / 1e9
    if left_s <= 0:
        raise PoolError(Code.DEADLINE_EXCEEDED, "Deadline exceeded before the request was queued")
    place = queue.placement
    workers = place.stay_count
    if not queue.rules.refuse_late or not workers:
        return
    costs_s = [entry.sure_s for entry in parts]
    if not costs_s[0]:
        return
    cost_s = max(*costs_s, sum(costs_s) / workers)
    if not queue.length and place.idle_count >= min(len(parts), max(1, place.open_count)):
        # It keeps nobody waiting, and may take less than such do as a rule.
        if cost_s < _HOPELESS * left_s:
            return
        about = int(cost_s * 1e6).bit_length()
        if now_ns >= queue.try_ns.get(about, 0):  # how else would anybody learn that such take less by now?
            queue.try_ns[about] = now_ns + int(cost_s * _TRY_EVERY * 1e9)
            return
    ahead_s = _ahead_s(queue, first, workers)
    spare_s = left_s - cost_s - ahead_s
    busy_s = place.free_in_s(now_ns, max(0.0, spare_s))
    if busy_s > spare_s:
        takes = [f"the request is expected to take {cost_s * 1e3:.1f} ms"]
        if ahead_s:
            takes.append(f"what waits before it {ahead_s * 1e3:.1f} ms")
        if busy_s:
            takes.append(f"what runs now another {busy_s * 1e3:.1f} ms")
        text = f"Deadline exceeded: it is {left_s * 1e3:.1f} ms away, {' and '.join(takes)}"
        raise PoolError(Code.DEADLINE_EXCEEDED, f"{text}; it was not run", Lack.TIME)


def _ahead_s(queue: Queue, entry: Entry, workers: int) -> float:
    """How long after the first worker is free a new request is begun, for what is before it.

    It is begun when all before it have been, not when they have been run: as many as there are other workers
    may still run.
    """
    if queue.rules.policy is not fifo or queue.rules.fair or entry.priority or queue.passed:
        return 0.0  # nobody knows who is before it
    settings = queue.rules.batching
    if entry.let_in:
        return 0.0  # it comes from a version that went, and has waited for longer
    if settings is not None:
        runs = _runs_before(queue, entry, settings)
    elif any(line.long != entry.long for line in queue.lines.values()):
        return 0.0  # what waits in the other lane need not be before it
    else:
        runs = [(float(queue.lined), queue.waiting_s / max(1, queue.lined))]  # as though all cost alike
    # As many as there are other workers may still run when it is begun, the longest perhaps.
    longest_s = max((run_s for count, run_s in runs if count), default=0.0)
    return max(0.0, sum(count * run_s for count, run_s in runs) - (workers - 1) * longest_s) / workers


def _runs_before(queue: Queue, entry: Entry, settings: BatchingSettings) -> list[tuple[float, float]]:
    """How many full batches of each line begin before a new request, for sure, and the seconds that one takes.

    What is left of its own line it may join. It may even go with that line's first: of another line then its first goes before, if it
    is older. Where nothing waits that it could join, all that waits does, but for what waits for more.
    """
    slow = queue.is_slow(entry)
    own = queue.lines.get((entry.kind if entry.rows else None, entry.long))
    own_first = own.first(0) if own is not None else None
    found: list[tuple[float, float]] = []
    for line in queue.lines.values():
        if line.kind is None or line.slow != slow:
            continue
        count = line.all_rows / settings.run_rows
        if line is not own and own_first is not None:
            first = line.first(0)
            before = first is not None and first.key < own_first.key
            count = first.all_rows / settings.run_rows if first is not None and before else 0.0
        if line is own or queue.is_timed:
            count = float(int(count))
        if count:
            # More rows than were seen cost no more than those did, as far as is known.
            whole_us = queue.costs.at_least(queue.model, line.signature, 0, settings.run_rows)
            run_us = settings.run_rows * queue.costs.least_per_row(queue.model, line.signature)
            found.append((count, min(run_us, whole_us) / 1e6))
    return found
