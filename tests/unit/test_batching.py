"""When requests share a batch, and how many: TensorFlow Serving's parameters, over the whole pool."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpspool.core.errors import Code, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.settings import BatchingSettings
from mpspool.router import batching
from mpspool.router.entry import Entry
from mpspool.router.queues import QueueRules
from mpspool.router.scheduler import PoolRules, Scheduler, Send

MODEL = ModelVersion("m", 1)
MS = 1_000_000


def make(workers: int = 1, **parameters: Any) -> Scheduler:
    rules = QueueRules(batching=BatchingSettings(**parameters))
    scheduler = Scheduler(PoolRules(), rules)
    scheduler.govern(MODEL, rules)
    for number in range(workers):
        scheduler.join(f"w{number}", MODEL, 2)
    return scheduler


def ask(scheduler: Scheduler, rows: int = 1, kind: str = "k", at_ns: int = 0) -> Entry:
    entry = Entry(MODEL, "", b"x", at_ns, rows=rows, kind=kind)
    scheduler.arrive(entry, at_ns)
    return entry


def rows(sends: list[Send]) -> list[int]:
    return [sum(entry.rows for entry in send.entries) for send in sends]


def test_what_waits_goes_in_one_batch() -> None:
    """Without a timeout an idle worker takes all that is there."""
    scheduler = make()
    entries = [ask(scheduler) for _ in range(5)]
    (send,) = scheduler.dispatch(0)
    assert send.together
    assert send.entries == entries


def test_a_batch_that_is_not_full_waits_for_the_timeout() -> None:
    """From the arrival of its first request; then it goes as it is."""
    scheduler = make(batch_timeout_us=2_000)
    ask(scheduler, at_ns=MS)
    ask(scheduler, at_ns=2 * MS)
    assert scheduler.dispatch(2 * MS) == []
    assert scheduler.look_again_ns(2 * MS) == 3 * MS
    assert rows(scheduler.dispatch(3 * MS)) == [2]


def test_a_full_batch_does_not_wait() -> None:
    """And what is left over begins to wait when it arrived."""
    scheduler = make(workers=2, max_batch_size=4, batch_timeout_us=2_000)
    for at in range(5):
        ask(scheduler, at_ns=at)
    assert rows(scheduler.dispatch(5)) == [4]
    assert scheduler.look_again_ns(5) == 4 + 2 * MS


def test_adaptive_batches_wait_only_for_workers() -> None:
    """An idle worker takes what is there, whatever the timeout; while all run, the batch grows."""
    scheduler = make(batch_timeout_us=1_000_000, adaptive=True)
    ask(scheduler)
    (first,) = scheduler.dispatch(0)
    for _ in range(7):
        ask(scheduler)
    assert scheduler.dispatch(0) == []
    scheduler.finished(first.worker, first.dispatch)
    assert rows(scheduler.dispatch(0)) == [7]


def test_a_batch_forms_over_the_whole_pool() -> None:
    """Eight requests are one full batch for one of eight idle workers, not one for each."""
    scheduler = make(workers=8, max_batch_size=8, batch_timeout_us=2_000)
    for _ in range(8):
        ask(scheduler)
    assert rows(scheduler.dispatch(0)) == [8]


def test_a_batch_is_spread_where_that_ends_it_sooner() -> None:
    """Half of it for each of two idle workers, where half the rows are known to take little more than half the time."""
    scheduler = make(workers=2)
    for count, cost_us in ((8, 900), (16, 1_700)):
        scheduler.costs.observe(MODEL, "", 0, cost_us, rows=count)
    for _ in range(16):
        ask(scheduler)
    assert rows(scheduler.dispatch(0)) == [8, 8]


def test_a_batch_that_costs_the_same_at_any_size_stays_whole() -> None:
    """As on a GPU that a small batch does not fill."""
    scheduler = make(workers=2)
    for count in (8, 16):
        scheduler.costs.observe(MODEL, "", 0, 1_000, rows=count)
    for _ in range(16):
        ask(scheduler)
    assert rows(scheduler.dispatch(0)) == [16]


def test_kinds_do_not_mix() -> None:
    """What cannot share a batch goes in one of its own, the oldest first."""
    scheduler = make(workers=2)
    for kind in "abab":
        ask(scheduler, kind=kind)
    assert [{entry.kind for entry in send.entries} for send in scheduler.dispatch(0)] == [{"a"}, {"b"}]


def test_what_shares_no_batch_goes_as_before() -> None:
    """A request whose rows are not known is dispatched alone, and not as a batch."""
    scheduler = make()
    ask(scheduler, rows=0)
    (send,) = scheduler.dispatch(0)
    assert not send.together


def test_a_batch_never_has_more_rows_than_it_may() -> None:
    """A request that does not fit any more waits for the next."""
    scheduler = make(workers=3, max_batch_size=10)
    for count in (4, 4, 4, 10):
        ask(scheduler, count)
    assert rows(scheduler.dispatch(0)) == [8, 4, 10]


def test_more_than_may_wait_is_refused() -> None:
    """As TensorFlow Serving does: UNAVAILABLE, with its text; another kind has batches of its own."""
    scheduler = make(max_batch_size=4, max_enqueued_batches=2, batch_timeout_us=10)
    for _ in range(8):
        ask(scheduler)
    with pytest.raises(PoolError) as refused:
        ask(scheduler)
    assert refused.value.code is Code.UNAVAILABLE
    assert refused.value.message == (
        "The batch scheduling queue to which this task was submitted is full; currently 2 batches enqueued and "
        "max_enqueued_batches is 2"
    )
    ask(scheduler, kind="other")


def test_a_client_that_makes_up_kinds_makes_no_lines_without_end() -> None:
    """Beyond some, its requests run one by one."""
    scheduler = make()
    for number in range(500):
        ask(scheduler, kind=str(number))
    sent = 0
    while sends := scheduler.dispatch(0):
        for send in sends:
            sent += len(send.entries)
            scheduler.finished(send.worker, send.dispatch)
    assert sent == 500


@pytest.mark.parametrize(
    ("rows_asked", "parameters", "parts"),
    [
        (700, {"max_execution_batch_size": 200}, [(0, 175), (175, 350), (350, 525), (525, 700)]),
        (200, {"max_execution_batch_size": 200}, [(0, 200)]),
        (201, {"max_execution_batch_size": 200}, [(0, 100), (100, 201)]),
        (
            700,
            {"max_execution_batch_size": 200, "allowed_batch_sizes": [100, 200]},
            [(0, 200), (200, 400), (400, 600), (600, 700)],
        ),
        (700, {}, [(0, 700)]),
    ],
)
def test_a_large_request_is_split(rows_asked: int, parameters: Any, parts: list[tuple[int, int]]) -> None:
    """Evenly, so that its parts end together; into full runs where other sizes would be padded."""
    assert batching.split(rows_asked, BatchingSettings(**parameters)) == parts


@given(st.integers(1, 5_000), st.integers(1, 1_000), st.booleans())
def test_parts_cover_a_request(count: int, most: int, sizes: bool) -> None:
    """Each row once, in order, and no part of more rows than run at once."""
    allowed = [most] if sizes else []
    settings = BatchingSettings(
        max_batch_size=5_000, max_execution_batch_size=most, allowed_batch_sizes=allowed
    )
    parts = batching.split(count, settings)
    assert [row for start, stop in parts for row in range(start, stop)] == list(range(count))
    assert all(0 < stop - start <= most for start, stop in parts)


def test_a_request_that_is_too_large_is_refused() -> None:
    """With TensorFlow Serving's code and text, splitting or not."""
    for parameters in ({"max_batch_size": 3}, {"max_batch_size": 3, "max_execution_batch_size": 2}):
        with pytest.raises(PoolError) as refused:
            batching.split(4, BatchingSettings(**parameters))  # type: ignore[arg-type]
        assert refused.value.code is Code.INVALID_ARGUMENT
        assert refused.value.message == "Task size 4 is larger than maximum input batch size 3"
