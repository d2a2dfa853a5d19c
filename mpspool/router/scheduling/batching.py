"""When requests of one model version run together, and how many: TensorFlow Serving's rules. Pure."""

from __future__ import annotations

from mpspool.core.errors import Code, Lack, PoolError
from mpspool.core.settings import BatchingSettings
from mpspool.router.scheduling.line import Line

# A worker takes no more than its even part where that ends so much sooner than the whole.
_WORTH_SPREADING = 0.75


def split(rows: int, settings: BatchingSettings) -> list[tuple[int, int]]:
    """The parts that a request runs in, from and up to; one where it need not be split.

    Raises:
        PoolError: it has more rows than a request may have.
    """
    settings.check_size(rows)
    most = settings.run_rows
    if settings.allowed_batch_sizes:  # full ones need no padding
        return [(start, min(start + most, rows)) for start in range(0, rows, most)]
    parts = -(-rows // most)
    return [(rows * part // parts, rows * (part + 1) // parts) for part in range(parts)]


def fills(rows: int, settings: BatchingSettings) -> bool:
    """Whether a request of so many rows counts as a batch of its own: no other of its size fits beside it.

    None does where large requests are split: there rows alone count, as in TensorFlow Serving, which cuts any request
    to fill a batch. Here one that fits into a run is not cut.
    """
    return not settings.max_execution_batch_size and 2 * rows > settings.run_rows


def has_room(waiting: int, filling: int, rows: int, settings: BatchingSettings) -> bool:
    """Whether a request fits among those of its signature: not where it would begin a batch more than may wait.

    Batches are taken to be as full as they can be, whatever else keeps requests apart.

    Args:
        waiting: rows that do; fewer than none where workers are idle.
        filling: requests among those of which each fills a batch; fewer than none likewise.
        rows: of the request.
        settings: what holds.
    """
    batches = max(-(-(waiting + rows) // settings.run_rows), filling + fills(rows, settings))
    return batches <= settings.max_enqueued_batches


def is_full(waiting: int, filling: int, rows: int, settings: BatchingSettings) -> PoolError:
    """The error of a request of so many rows that may not come; see has_room()."""
    run_rows, most = settings.run_rows, settings.max_enqueued_batches
    batches = max(1, -(-waiting // run_rows), filling)  # one is open, with rows or without
    text = "The batch scheduling queue to which this task was submitted is full; "
    if settings.max_execution_batch_size:
        text += (
            f"task size is {rows} but scheduling capacity is only {max(0, most * run_rows - waiting)} (num_enqueued_batches="
            f"{batches}, max_enqueued_batches={most}, open_batch_size={max(0, waiting) - (batches - 1) * run_rows}, "
            f"max_execution_batch_size={run_rows})"
        )
    else:
        text += f"currently {batches} batches enqueued and max_enqueued_batches is {most}"
    return PoolError(Code.UNAVAILABLE, text, Lack.BATCHES)


def waits(settings: BatchingSettings) -> bool:
    """Whether a batch that is not full waits while a worker is idle."""
    return settings.batch_timeout_us > 0 and not settings.adaptive


def due_ns(line: Line, settings: BatchingSettings) -> int:
    """From when on an idle worker may take from this line, where batches wait; 0 for at once."""
    if line.rows >= settings.run_rows:
        return 0
    due_ns = line.since_ns + settings.batch_timeout_us * 1000
    return min(due_ns, line.until_ns) if line.until_ns else due_ns


def spread(rows: int, part: int, whole_us: float | None, part_us: float | None) -> int:
    """How many rows a worker takes of those that wait.

    Args:
        rows: that would make one batch.
        part: the worker's own, see Placement.
        whole_us: what the batch is predicted to cost.
        part_us: what the part is.
    """
    if whole_us is not None and part_us is not None and part_us <= _WORTH_SPREADING * whole_us:
        return part
    return rows
