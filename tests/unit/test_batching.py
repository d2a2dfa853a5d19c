"""When requests share a batch, and how many: TensorFlow Serving's parameters, over the whole pool."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpspool.core.errors import Code, Lack, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.settings import BatchingSettings
from mpspool.router.scheduling import batching
from mpspool.router.scheduling.entry import Entry
from mpspool.router.scheduling.load import Limits
from mpspool.router.scheduling.queues import QueueRules
from mpspool.router.scheduling.scheduler import PoolRules, Refuse, Scheduler, Send

MODEL = ModelVersion("m", 1)
MS = 1_000_000


def make(workers: int = 1, **parameters: Any) -> Scheduler:
    rules = QueueRules(batching=BatchingSettings(**parameters))
    scheduler = Scheduler(PoolRules(), rules)
    scheduler.govern(MODEL, rules)
    for number in range(workers):
        scheduler.join(f"w{number}", MODEL, 2)
    return scheduler


def ask(
    scheduler: Scheduler,
    rows: int = 1,
    kind: str = "k",
    at_ns: int = 0,
    *,
    signature: str = "",
    outputs: str = "",
    client: str = "",
    deadline_ns: int = 0,
) -> Entry:
    entry = Entry(
        *(MODEL, signature, b"x", at_ns, deadline_ns),
        rows=rows,
        kind=(signature, outputs.encode(), kind.encode()),
        client=client,
    )
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
    assert scheduler.dispatch(3 * MS - 1) == []
    assert rows(scheduler.dispatch(3 * MS)) == [2]


def test_no_batch_waits_where_nothing_more_comes() -> None:
    """What is there goes at once, and what comes back from a lost worker; once more can come again, batches wait again."""
    scheduler = make(workers=2, batch_timeout_us=5_000_000)
    ask(scheduler)
    assert scheduler.dispatch(0) == []
    scheduler.close(MODEL)
    assert scheduler.stirs
    (sent,) = scheduler.dispatch(0)
    scheduler.lost(sent.worker, None, 0)
    assert rows(scheduler.dispatch(0)) == [1]
    scheduler.join("w2", MODEL, 2)
    scheduler.close(MODEL, closed=False)
    ask(scheduler, at_ns=MS)
    assert scheduler.dispatch(MS) == []


def test_a_deadline_ends_the_wait_for_others() -> None:
    """When half of what a request has to spare is over; the batch goes with all that are there, and the next has its own time."""
    scheduler = make(batch_timeout_us=50_000)
    for _ in range(2):
        scheduler.costs.observe(MODEL, "", 0, 4_000, 1)
    ask(scheduler)
    assert scheduler.dispatch(0) == []
    assert scheduler.look_again_ns(0) == 50 * MS
    ask(scheduler, at_ns=MS, deadline_ns=MS + 24 * MS)
    ask(scheduler, at_ns=2 * MS, deadline_ns=90 * MS)
    assert scheduler.stirs
    assert scheduler.dispatch(2 * MS) == []
    assert scheduler.look_again_ns(2 * MS) == 11 * MS
    assert scheduler.dispatch(11 * MS - 1) == []
    (send,) = scheduler.dispatch(11 * MS)
    assert rows([send]) == [3]
    scheduler.finished(send.worker, send.dispatch)
    ask(scheduler, at_ns=12 * MS)
    assert scheduler.dispatch(61 * MS) == []
    assert rows(scheduler.dispatch(62 * MS)) == [1]


def test_what_a_full_batch_leaves_waits_by_its_own_deadlines() -> None:
    scheduler = make(max_batch_size=2, batch_timeout_us=50_000)
    ask(scheduler, deadline_ns=10 * MS)
    ask(scheduler)
    ask(scheduler, deadline_ns=40 * MS)
    assert rows(scheduler.dispatch(0)) == [2]
    scheduler.finished("w0", 1)
    assert scheduler.dispatch(0) == []
    assert scheduler.look_again_ns(0) == 20 * MS


def test_a_deadline_ends_the_wait_where_clients_share_fairly() -> None:
    scheduler = make()
    scheduler.govern(MODEL, QueueRules(batching=BatchingSettings(batch_timeout_us=50_000), fair=True))
    ask(scheduler, client="patient")
    ask(scheduler, client="hurried", deadline_ns=6 * MS)
    assert scheduler.dispatch(0) == []
    assert scheduler.look_again_ns(0) == 3 * MS
    assert rows(scheduler.dispatch(3 * MS)) == [2]


def test_a_full_batch_does_not_wait() -> None:
    """And what is left over begins to wait when it arrived."""
    scheduler = make(workers=2, max_batch_size=4, batch_timeout_us=2_000)
    for at in range(5):
        ask(scheduler, at_ns=at)
    assert rows(scheduler.dispatch(5)) == [4]
    assert scheduler.look_again_ns(5) == 4 + 2 * MS


@pytest.mark.parametrize(("waiting", "early_us"), [(3, 300), (4, 2000), (8, 32_000)])
def test_a_full_batch_is_sent_earlier_behind_a_running_one(waiting: int, early_us: int) -> None:
    """It grows no more; any other does to the last. Still sooner where another one waits for each worker."""
    scheduler = make(max_batch_size=4)
    scheduler.costs.observe(MODEL, "", 0, 50_000, 4)
    for _ in range(4):
        ask(scheduler)
    assert rows(scheduler.dispatch(0)) == [4]
    for _ in range(waiting):
        ask(scheduler)
    assert scheduler.dispatch(0) == []
    due_ns = 50 * MS - early_us * 1000
    assert scheduler.look_again_ns(0) == due_ns
    assert scheduler.dispatch(due_ns - 1) == []
    assert rows(scheduler.dispatch(due_ns)) == [min(waiting, 4)]


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


def test_a_worker_takes_no_more_than_its_part_of_what_waits_and_runs() -> None:
    """The other runs little, and will soon be there for the rest; what it runs is no part of the next share once it ended."""
    scheduler = make(workers=2)
    for count, cost_us in ((1, 500), (8, 900), (16, 1_700)):
        scheduler.costs.observe(MODEL, "", 0, cost_us, rows=count)
    ask(scheduler)
    (little,) = scheduler.dispatch(0)
    for _ in range(15):
        ask(scheduler)
    (part,) = scheduler.dispatch(0)
    assert rows([part]) == [8]
    scheduler.finished(little.worker, little.dispatch)
    assert rows(scheduler.dispatch(0)) == [7]
    scheduler.finished(part.worker, part.dispatch)
    for _ in range(7):
        ask(scheduler)
    assert rows(scheduler.dispatch(0)) == [7]


def test_a_part_is_not_taken_where_the_rest_would_wait_for_its_timeout() -> None:
    """A full batch goes as it is; of one that adapts, what is left waits for a worker only."""
    for adaptive, expected in ((False, [16]), (True, [9])):
        scheduler = make(workers=2, max_batch_size=16, batch_timeout_us=100_000, adaptive=adaptive)
        for count, cost_us in ((1, 5_000), (8, 9_000), (16, 17_000)):
            scheduler.costs.observe(MODEL, "", 0, cost_us, rows=count)
        ask(scheduler)
        scheduler.dispatch(100 * MS)
        for _ in range(16):
            ask(scheduler, at_ns=100 * MS)
        assert rows(scheduler.dispatch(100 * MS)) == expected


@pytest.mark.parametrize(
    ("limits", "timeout_us"),
    [(Limits(running=1), 0), (Limits(running=1), 1_000), (Limits(long=1), 0)],
    ids=["running", "timed", "slow lane"],
)
def test_who_may_not_run_has_no_part(limits: Limits, timeout_us: int) -> None:
    """Eight rows are not cut in four for workers of which the device lets one run at a time."""
    rules = QueueRules(batching=BatchingSettings(batch_timeout_us=timeout_us))
    scheduler = Scheduler(PoolRules(limits=limits, long_us=5_000), rules)
    scheduler.govern(MODEL, rules)
    for number in range(4):
        scheduler.join(f"w{number}", MODEL, 2, "gpu0")
    learned(scheduler, {1: 10, 8: 20})
    for _ in range(8):
        ask(scheduler)
    assert rows(scheduler.dispatch(timeout_us * 1000)) == [8]


def test_parts_are_for_those_who_may_run_on_their_device() -> None:
    """One at a time on each of two, of which one has four idle workers; a third has none any more."""
    rules = QueueRules(batching=BatchingSettings())
    scheduler = Scheduler(PoolRules(limits=Limits(running=1)), rules)
    scheduler.govern(MODEL, rules)
    for number in range(4):
        scheduler.join(f"a{number}", MODEL, 1, "gpu0")
    for device in ("gpu1", "gpu2"):
        scheduler.join(device, MODEL, 1, device)
    scheduler.lost("gpu2", None, 0)
    learned(scheduler, {1: 10, 8: 80})
    for _ in range(8):
        ask(scheduler)
    assert rows(scheduler.dispatch(0)) == [4, 4]


def test_what_was_long_is_cut_again_where_its_parts_are_not() -> None:
    """The slow lane is full, and a part of ninety rows is long; of those that are left each idle worker takes its part."""
    rules = QueueRules(batching=BatchingSettings())
    scheduler = Scheduler(PoolRules(limits=Limits(long=1), long_us=17_000), rules)
    scheduler.govern(MODEL, rules)
    for number in range(5):
        scheduler.join(f"w{number}", MODEL, 1, "gpu0")
    learned(scheduler, {1: 1, 16: 16, 128: 128})
    for _ in range(2):
        scheduler.costs.observe(MODEL, "alone", 1, 50_000)
    scheduler.arrive(Entry(MODEL, "alone", b"x", 0), 0)
    assert len(scheduler.dispatch(0)) == 1
    asked = [ask(scheduler) for _ in range(90)]
    assert scheduler.dispatch(0) == []
    for entry in asked[:20]:
        scheduler.cancel(entry)
    assert len(scheduler.dispatch(0)) == 4


def test_who_takes_nothing_more_has_no_part() -> None:
    """A worker that drains is none that the rest could be for."""
    scheduler = make(workers=2)
    for count, cost_us in ((8, 900), (16, 1_700)):
        scheduler.costs.observe(MODEL, "", 0, cost_us, rows=count)
    scheduler.leave("w1")
    for _ in range(16):
        ask(scheduler)
    assert rows(scheduler.dispatch(0)) == [16]


def test_a_backlog_of_short_batches_is_not_put_behind_a_long_one() -> None:
    """Another worker would have run them by then."""
    scheduler = make(max_batch_size=4)
    scheduler.costs.observe(MODEL, "", 0, 1_000, 4)
    scheduler.costs.observe(MODEL, "", 0, 15_000, 1)
    ask(scheduler)
    scheduler.dispatch(0)
    for _ in range(40):
        ask(scheduler)
    assert scheduler.dispatch(MS) == []


def test_what_a_lost_worker_ran_is_nobodys_part() -> None:
    """Of eight rows it had eight in hand; then they wait again, and are shared out as though it had never been."""
    scheduler = make(workers=1)
    for count, cost_us in ((4, 500), (8, 900)):
        scheduler.costs.observe(MODEL, "", 0, cost_us, rows=count)
    for _ in range(8):
        ask(scheduler)
    (send,) = scheduler.dispatch(0)
    scheduler.lost(send.worker, None, 0)
    scheduler.join("w2", MODEL, 1)
    scheduler.join("w3", MODEL, 1)
    assert rows(scheduler.dispatch(0)) == [4, 4]


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
    assert [{entry.kind for entry in send.entries} for send in scheduler.dispatch(0)] == [
        {("", b"", b"a")},
        {("", b"", b"b")},
    ]


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


def refusal(scheduler: Scheduler, rows: int = 1, kind: str = "k", client: str = "") -> str:
    with pytest.raises(PoolError) as refused:
        ask(scheduler, rows, kind, client=client)
    assert refused.value.code is Code.UNAVAILABLE
    return refused.value.message


def test_more_than_may_wait_is_refused() -> None:
    """As TensorFlow Serving does: UNAVAILABLE, with its text; another signature has batches of its own."""
    scheduler = make(max_batch_size=4, max_enqueued_batches=2, batch_timeout_us=10)
    for _ in range(8):
        ask(scheduler)
    assert refusal(scheduler) == (
        "The batch scheduling queue to which this task was submitted is full; currently 2 batches enqueued and "
        "max_enqueued_batches is 2"
    )
    ask(scheduler, signature="other")


def test_more_than_may_wait_is_refused_where_large_ones_are_split() -> None:
    """With TensorFlow Serving's other text."""
    scheduler = make(max_batch_size=100, max_execution_batch_size=4, max_enqueued_batches=2)
    ask(scheduler, 4)
    ask(scheduler, 3)
    assert refusal(scheduler, 2) == (
        "The batch scheduling queue to which this task was submitted is full; task size is 2 but scheduling capacity is "
        "only 1 (num_enqueued_batches=2, max_enqueued_batches=2, open_batch_size=3, max_execution_batch_size=4)"
    )
    ask(scheduler, 1)


def test_where_large_ones_are_split_rows_alone_count() -> None:
    """Sixteen requests of 60 rows are ten batches of 100, though none of them is cut and each is run by itself."""
    scheduler = make(max_batch_size=1_000, max_execution_batch_size=100, max_enqueued_batches=10)
    for _ in range(16):
        ask(scheduler, 60)
    refusal(scheduler, 60)
    sent = []
    while sends := scheduler.dispatch(0):
        sent += rows(sends)
        for send in sends:
            scheduler.finished(send.worker, send.dispatch)
    assert sent == [60] * 16


def test_what_cannot_be_joined_counts_as_batches_of_one() -> None:
    """Requests of three rows are a batch each where four rows are run."""
    scheduler = make(max_batch_size=4, max_enqueued_batches=3)
    for _ in range(3):
        ask(scheduler, 3)
    assert "currently 3 batches" in refusal(scheduler, 3)


def test_what_an_idle_worker_takes_waits_in_no_batch() -> None:
    """Ten requests that fill a batch wait for the slow lane; one that fills one, too, and is short is sent at once."""
    rules = QueueRules(batching=BatchingSettings(max_batch_size=100, max_enqueued_batches=10))
    scheduler = Scheduler(PoolRules(limits=Limits(long=1), long_us=80_000), rules)
    learned(scheduler, {1: 1, 50: 50, 100: 100})
    for name in "ab":
        scheduler.join(name, MODEL, 1, "gpu0")
    ask(scheduler, 99)
    assert rows(scheduler.dispatch(0)) == [99]
    for _ in range(10):
        ask(scheduler, 99)
    assert not scheduler.dispatch(0)
    ask(scheduler, 51)
    assert rows(scheduler.dispatch(0)) == [51]
    assert "currently 10 batches" in refusal(scheduler, 51)


def test_a_client_that_makes_up_kinds_gets_no_more_room() -> None:
    """All of a signature count, and as though they could share their batches: many shapes have as much room as one."""
    scheduler = make(max_batch_size=100, max_enqueued_batches=2)
    for number in range(200):
        ask(scheduler, kind=str(number))
    refusal(scheduler, kind="new")


def test_what_leaves_makes_room() -> None:
    """Sent or cancelled."""
    scheduler = make(max_batch_size=4, max_enqueued_batches=1)
    entries = [ask(scheduler) for _ in range(4)]
    scheduler.cancel(entries[0])
    ask(scheduler)
    refusal(scheduler)
    assert rows(scheduler.dispatch(0)) == [4]
    for _ in range(4):
        ask(scheduler)


def finish(scheduler: Scheduler, sends: list[Send]) -> None:
    for send in sends:
        scheduler.finished(send.worker, send.dispatch)


def test_what_cannot_be_joined_runs_one_by_one() -> None:
    """Once a worker has told so: what waits and what comes later, in the order of arrival, on all workers."""
    scheduler = make(max_batch_size=8)
    tried = [ask(scheduler) for _ in range(4)]
    sends = scheduler.dispatch(0)
    waiting = [ask(scheduler, kind=kind) for kind in "kkl"]
    finish(scheduler, sends)
    assert scheduler.keep_apart(tried[0])
    assert not scheduler.keep_apart(tried[1]), "known"
    scheduler.join("w1", MODEL, 2)
    later = ask(scheduler)
    for pair in (waiting[:2], [waiting[2], later]):
        sends = scheduler.dispatch(0)
        assert [(send.entries, send.together) for send in sends] == [([one], False) for one in pair]
        assert len({send.worker for send in sends}) == 2
        finish(scheduler, sends)


def test_only_what_asks_for_the_same_is_kept_apart() -> None:
    """Whatever its inputs are; another signature and another output_filter are joined as before."""
    scheduler = make()
    scheduler.keep_apart(ask(scheduler, signature="s", outputs="y"))
    for signature, outputs, kind in (("s", "y", "k"), ("s", "y", "l"), ("s", "z", "k"), ("t", "y", "k")) * 2:
        ask(scheduler, kind=kind, signature=signature, outputs=outputs)
    sent = []
    while sends := scheduler.dispatch(0):
        finish(scheduler, sends)
        sent += [(send.entries[0].kind[:2], len(send.entries), send.together) for send in sends]
    alone = [(("s", b"y"), 1, False)] * 5
    assert sorted(sent) == [*alone, (("s", b"z"), 2, True), (("t", b"y"), 2, True)]


def test_what_is_kept_apart_fills_no_batches() -> None:
    """What waited as a batch makes room for others, and what comes later takes none, nor waits for a timeout."""
    scheduler = make(max_batch_size=4, max_enqueued_batches=1, batch_timeout_us=1_000)
    one, _, _ = (ask(scheduler, outputs="y") for _ in range(3))
    refusal(scheduler, 2)
    scheduler.keep_apart(one)
    assert rows(scheduler.dispatch(0)) == [0]
    for _ in range(20):
        ask(scheduler, outputs="y")
    ask(scheduler, 4)


def test_what_is_kept_apart_is_sent_as_without_batching() -> None:
    """Two milliseconds before its worker is idle, while a batch would go on growing."""
    scheduler = make()
    scheduler.keep_apart(ask(scheduler))
    scheduler.costs.observe(MODEL, "", 1, 10_000)
    scheduler.dispatch(0)
    ask(scheduler)
    assert not scheduler.dispatch(7 * MS)
    assert scheduler.look_again_ns(7 * MS) == 8 * MS
    assert rows(scheduler.dispatch(8 * MS)) == [0]


def together(scheduler: Scheduler) -> bool:
    """Whether the next request is joined with others."""
    ask(scheduler)
    (send,) = scheduler.dispatch(0)
    finish(scheduler, [send])
    return send.together


def whole(scheduler: Scheduler, runs: float, at_ns: int = 0) -> Entry:
    """One of so many runs of ten rows, that goes to one worker."""
    large = Entry(MODEL, "", b"x", at_ns, rows=10, kind=("", b"", b"k"))
    large.runs = runs
    scheduler.arrive(large, at_ns)
    return large


SPLIT = {"max_batch_size": 100, "max_execution_batch_size": 10}


def test_all_runs_of_a_large_request_that_goes_whole_count_among_those_that_wait() -> None:
    """As its rows do where it is run in parts."""
    scheduler = make(workers=0, max_enqueued_batches=10, **SPLIT)
    whole(scheduler, 2.5)
    last = whole(scheduler, 7.0)
    with pytest.raises(PoolError, match="task size is 10 but scheduling capacity is only 5"):
        ask(scheduler, 10)
    with pytest.raises(PoolError, match="task size is 70 but"):
        whole(scheduler, 7.0)
    ask(scheduler, 5)
    scheduler.cancel(last)
    whole(scheduler, 7.0)


@pytest.mark.parametrize(("count", "runs"), [(50, 1.0), (5, 10.0)])
def test_all_runs_that_wait_before_a_request_count(count: int, runs: float) -> None:
    scheduler = make(max_enqueued_batches=1_000, **SPLIT)
    for _ in range(3):
        scheduler.costs.observe(MODEL, "", 0, 100_000, 10)
    for _ in range(count):
        whole(scheduler, runs)
    with pytest.raises(PoolError, match=r"what waits before it 5000\.0 ms"):
        ask(scheduler, 10, deadline_ns=2_000 * MS)
    ask(scheduler, 10, deadline_ns=6_000 * MS)


def test_a_large_request_that_goes_whole_waits_for_the_slow_lane_by_all_its_runs() -> None:
    """Also where that is known of a run only while it waits."""
    settings = BatchingSettings(max_enqueued_batches=1_000, **SPLIT)
    scheduler = Scheduler(PoolRules(limits=Limits(long=1), long_us=500_000), QueueRules(batching=settings))
    for _ in range(3):
        scheduler.costs.observe(MODEL, "", 0, 40_000, 10)
    for _ in range(3):
        whole(scheduler, 10.0)
    for _ in range(80):
        scheduler.costs.observe(MODEL, "", 0, 60_000, 10)
    for number in range(3):
        scheduler.join(f"w{number}", MODEL, 1, "gpu0")
    assert rows(scheduler.dispatch(0)) == [10]
    assert scheduler.devices()[0].long == 1


def test_what_is_kept_apart_costs_what_such_have_as_a_whole() -> None:
    """Of more rows than run at once as well: it takes its worker once."""
    scheduler = make(max_batch_size=4)
    scheduler.keep_apart(ask(scheduler, 4))
    for _ in range(2):
        scheduler.costs.observe(MODEL, "", 1, 8_000)
    large = Entry(MODEL, "", b"x", 0, rows=4, kind=("", b"", b"k"))
    large.runs = 7.0
    scheduler.arrive(large, 0)
    assert (large.cost_s, large.sure_s) == (0.008, 0.008)


def test_what_is_kept_apart_is_forgotten_with_a_worker_that_leaves() -> None:
    """Others come in its place with other settings, one after another; or with the last one, for the next may have other files."""
    scheduler = make(3)
    scheduler.keep_apart(ask(scheduler))
    finish(scheduler, scheduler.dispatch(0))
    scheduler.lost("w0", None, 0)
    assert not together(scheduler), "one that died"
    scheduler.leave("w1")
    scheduler.lost("w1", None, 0)
    assert together(scheduler)
    scheduler.keep_apart(ask(scheduler))
    finish(scheduler, scheduler.dispatch(0))
    scheduler.lost("w2", None, 0)
    scheduler.join("w3", MODEL, 1)
    assert together(scheduler)


def test_what_is_kept_apart_is_forgotten_with_its_settings() -> None:
    """What cannot be joined may be, once it is padded, and what holds for all is said again without a change."""
    scheduler = make()
    scheduler.keep_apart(ask(scheduler))
    finish(scheduler, scheduler.dispatch(0))
    scheduler.govern(MODEL, QueueRules(batching=BatchingSettings()))
    assert not together(scheduler)
    scheduler.govern(MODEL, QueueRules(batching=BatchingSettings(max_batch_size=8, allowed_batch_sizes=[8])))
    assert together(scheduler)


def test_what_is_kept_apart_is_bounded() -> None:
    """A client makes up output_filters; beyond some, requests go on being sent together."""
    scheduler = make()
    kinds = [("", f"{number}".encode(), b"") for number in range(2_000)]
    news = [scheduler.keep_apart(Entry(MODEL, "", b"", 0, kind=kind)) for kind in kinds]
    assert news == [True] * 1024 + [False] * 976


def make_fair(**parameters: Any) -> Scheduler:
    return Scheduler(PoolRules(), QueueRules(fair=True, batching=BatchingSettings(**parameters)))


def test_who_fills_the_batches_does_not_keep_others_out() -> None:
    """The last of whoever has most rows waiting leave for a client that has fewer, as many as it takes."""
    scheduler = make_fair(max_batch_size=4, max_enqueued_batches=3)
    flood = [ask(scheduler, client="flood") for _ in range(12)]
    other = ask(scheduler, 3, "another kind", client="other")
    refused = [order.entry for order in scheduler.dispatch(0) if isinstance(order, Refuse)]
    assert refused == flood[:-4:-1]
    assert other.waiting
    refusal(scheduler, client="flood")


def test_nobody_leaves_for_who_would_have_more() -> None:
    """Nor is anybody refused for one that does not fit after all."""
    scheduler = make_fair(max_batch_size=4, max_enqueued_batches=3)
    for _ in range(12):
        ask(scheduler, client="flood")
    for _ in range(2):
        ask(scheduler, 3, client="other")
    refusal(scheduler, 3, client="other")
    assert len([order for order in scheduler.dispatch(0) if isinstance(order, Refuse)]) == 6


def ask_in_parts(scheduler: Scheduler, *rows: int, client: str = "", deadline_ns: int = 0) -> list[Entry]:
    parts = [
        Entry(*(MODEL, "", b"x", 0, deadline_ns), rows=count, kind=("", b"", b"k"), client=client)
        for count in rows
    ]
    scheduler.arrive_in_parts(parts, 0)
    return parts


def test_a_large_request_is_taken_in_whole_or_not_at_all() -> None:
    """Others leave for all of it, or stay where it has no room even so."""
    parameters = {"max_batch_size": 100, "max_execution_batch_size": 4, "max_enqueued_batches": 3}
    scheduler = make_fair(**parameters)
    flood = [ask(scheduler, client="flood") for _ in range(12)]
    with pytest.raises(PoolError, match="task size is 7 but scheduling capacity is only 0"):
        ask_in_parts(scheduler, 4, 3, client="other")
    assert all(entry.waiting for entry in flood)
    parts = ask_in_parts(scheduler, 3, 3, client="other")
    assert [order.entry for order in scheduler.dispatch(0)] == flood[:5:-1]
    assert all(entry.waiting for entry in parts)


def test_a_large_request_needs_a_place_for_each_part() -> None:
    """Of `max_queued_requests`; as many of another client's leave."""
    scheduler = Scheduler(
        PoolRules(),
        QueueRules(
            fair=True,
            max_requests=8,
            batching=BatchingSettings(max_batch_size=100, max_execution_batch_size=4),
        ),
    )
    flood = [ask(scheduler, client="flood") for _ in range(7)]
    text = "7 requests wait and max_queued_requests is 8, and this one is run in 5 parts"
    with pytest.raises(PoolError, match=text) as refused:
        ask_in_parts(scheduler, 4, 4, 4, 4, 4, client="other")
    assert (refused.value.code, refused.value.lack) == (Code.UNAVAILABLE, Lack.REQUESTS)
    assert scheduler.queued(MODEL) == 7
    ask_in_parts(scheduler, 4, 4, 4, client="other")
    assert [order.entry for order in scheduler.dispatch(0)] == flood[:4:-1]
    assert scheduler.queued(MODEL) == 8


def test_several_clients_make_room_for_a_large_request() -> None:
    """Each down to what it comes to itself, whoever has most first."""
    batching_rules = BatchingSettings(
        max_batch_size=100, max_execution_batch_size=4, max_enqueued_batches=100
    )
    scheduler = Scheduler(PoolRules(), QueueRules(fair=True, max_requests=13, batching=batching_rules))
    most = [ask(scheduler, client="most") for _ in range(7)]
    flood = [ask(scheduler, client="flood") for _ in range(6)]
    ask_in_parts(scheduler, 4, 4, 4, 4, client="other")
    assert [order.entry for order in scheduler.dispatch(0)] == [*most[:3:-1], flood[-1]]
    with pytest.raises(PoolError, match="is full: 13 requests wait"):
        ask_in_parts(scheduler, 4, 4, 4, 4, client="another")


def test_who_leaves_for_the_rows_of_a_request_makes_room_for_its_parts_too() -> None:
    """Nobody is refused twice."""
    batching_rules = BatchingSettings(max_batch_size=100, max_execution_batch_size=4, max_enqueued_batches=3)
    scheduler = Scheduler(PoolRules(), QueueRules(fair=True, max_requests=5, batching=batching_rules))
    flood = [ask(scheduler, 4, client="flood"), *(ask(scheduler, 2, client="flood") for _ in range(4))]
    ask_in_parts(scheduler, 1, 1, client="other")
    assert [order.entry for order in scheduler.dispatch(0)] == flood[:2:-1]
    assert scheduler.unfinished() == 5


def test_what_idle_workers_take_of_a_large_request_does_not_wait() -> None:
    """Five of them take five parts where two may wait; seven fit, and an eighth does not."""
    parameters = {"max_batch_size": 100, "max_execution_batch_size": 4, "max_enqueued_batches": 2}
    for parts in (5, 7):
        scheduler = make(5, **parameters)
        ask_in_parts(scheduler, *[4] * parts)
        assert rows(scheduler.dispatch(0)) == [4] * 5
        assert scheduler.queued(MODEL) == parts - 5
    with pytest.raises(
        PoolError, match=r"task size is 32 but scheduling capacity is only 28 .num_enqueued_batches=1"
    ):
        ask_in_parts(make(5, **parameters), *[4] * 8)


def test_a_large_request_that_keeps_others_waiting_is_not_tried() -> None:
    """One of two workers is idle, and the other is known to be late; on two that are idle it is."""
    for busy in (True, False):
        scheduler = make(2, max_batch_size=100, max_execution_batch_size=4)
        for _ in range(2):
            scheduler.costs.observe(MODEL, "", 0, 100_000, rows=4)
        if busy:
            ask(scheduler, 4)
            assert rows(scheduler.dispatch(0)) == [4]
            with pytest.raises(PoolError, match=r"take 300.0 ms; it was not run"):
                ask_in_parts(scheduler, *[4] * 6, deadline_ns=200 * MS)
        else:
            ask_in_parts(scheduler, *[4] * 6, deadline_ns=200 * MS)


@pytest.mark.parametrize(("deadline_ms", "in_time"), [(34, False), (36, True)])
def test_a_large_request_takes_as_long_as_its_parts(deadline_ms: int, in_time: bool) -> None:
    """Over all workers, which have begun something else of 10 ms: five of 10 ms on two are done after 25, and no sooner."""
    scheduler = make(2, max_batch_size=100, max_execution_batch_size=4)
    for count in (1, 4, 1, 4):
        scheduler.costs.observe(MODEL, "", 0, 10_000, rows=count)
    for kind in "ab":
        ask(scheduler, 4, kind)
    assert rows(scheduler.dispatch(0)) == [4, 4]
    if in_time:
        ask_in_parts(scheduler, 4, 4, 4, 4, 4, deadline_ns=deadline_ms * MS)
        return
    with pytest.raises(PoolError, match=r"take 25.0 ms and what runs now another 10.0 ms; it was not run"):
        ask_in_parts(scheduler, 4, 4, 4, 4, 4, deadline_ns=deadline_ms * MS)
    assert scheduler.unfinished() == 2


def learned(scheduler: Scheduler, costs_ms: dict[int, float]) -> Scheduler:
    """Of batches of so many rows."""
    for count, cost_ms in [*costs_ms.items()] * 2:
        scheduler.costs.observe(MODEL, "", 0, 1000 * cost_ms, rows=count)
    return scheduler


@pytest.mark.parametrize(
    ("own_ms", "parameters", "ahead"),
    [
        (None, {}, "50.0 ms"),  # of "a" one batch and a half, of "b" one
        (9, {}, "10.0 ms"),  # it may go with what came before it, after the first of each
        (2, {}, "5.0 ms"),  # which came before "b"
        (0, {}, ""),
        (None, {"batch_timeout_us": 1000}, "40.0 ms"),  # what is not full waits for more
    ],
)
def test_a_deadline_counts_the_batches_of_others_that_go_before(
    own_ms: int | None, parameters: dict[str, int], ahead: str
) -> None:
    """What a request shares no batch with, as those of other widths, waits for the same worker; a batch of 4 takes 20 ms."""
    scheduler = learned(make(max_batch_size=4, **parameters), {1: 5.0, 4: 20.0})
    came = [*[(1, "a")] * 6, *[(3, "b")] * 4, *([(own_ms, "own")] if own_ms is not None else [])]
    for at_ms, kind in sorted(came):
        ask(scheduler, kind=kind, at_ns=at_ms * MS)
    with pytest.raises(PoolError, match=r"take 5\.0 ms") as late:
        ask(scheduler, kind="own", at_ns=10 * MS, deadline_ns=11 * MS)
    assert late.value.message.partition("what waits before it ")[2].partition(";")[0] == ahead


# As many rows again take as long again, or hardly longer.
LINEAR = {4: 4.0, 8: 8.0, 16: 16.0}
FLAT = {4: 4.0, 8: 4.2, 16: 4.6}


def late(orders: list[Send | Refuse]) -> list[Entry]:
    return [order.entry for order in orders if isinstance(order, Refuse)]


@pytest.mark.parametrize(("costs", "until_ms", "size"), [(LINEAR, 9, 8), (FLAT, 4.3, 12)])
def test_a_batch_ends_before_it_is_late_for_one_of_it(
    costs: dict[int, float], until_ms: float, size: int
) -> None:
    """Where the others are run as soon without it; not where a larger batch costs hardly more."""
    scheduler = learned(make(0, max_batch_size=16), costs)
    for until in (1000, until_ms, 1000):
        ask(scheduler, 4, deadline_ns=int(until * MS))
    scheduler.join("w", MODEL, 1)
    assert rows(scheduler.dispatch(0)) == [size]


def test_in_a_crowd_who_has_too_little_time_for_a_batch_leaves() -> None:
    """Twelve requests that were given 20 ms, one more each millisecond: a batch as large as pays is of those that have time for it."""
    scheduler = learned(make(0, max_batch_size=16), FLAT)
    entries = [ask(scheduler, 4, at_ns=at * MS, deadline_ns=(20 + at) * MS) for at in range(12)]
    scheduler.join("w", MODEL, 1)
    orders = scheduler.dispatch(15 * MS)
    (send,) = [order for order in orders if isinstance(order, Send)]
    # It takes 4.6 ms, and 5.3 to be sure: who has no more than 5 left is not run in ever smaller batches.
    assert late(orders) == entries[:1]
    assert send.entries == entries[1:5]


def test_in_a_crowd_nobody_leaves_for_a_cost_that_is_known_better_by_now() -> None:
    """They came when a first run of five seconds was all that was known."""
    scheduler = learned(make(max_batch_size=4), {4: 5000})
    waiting = [ask(scheduler, 4, deadline_ns=60_000 * MS) for _ in range(4)]
    (send,) = scheduler.dispatch(0)
    late_ones = [ask(scheduler, 4, deadline_ns=40_000 * MS) for _ in range(2)]
    for _ in range(60):
        scheduler.costs.observe(MODEL, "", 0, 10_000, rows=4)
    scheduler.finished(send.worker, send.dispatch)
    for entry in waiting[1:]:
        scheduler.cancel(entry)
    (after,) = scheduler.dispatch(36_000 * MS)
    assert after.entries == late_ones[:1]


def test_in_a_crowd_without_deadlines_nobody_leaves() -> None:
    """Batches are as large as they can be, in the order of arrival."""
    scheduler = learned(make(0, max_batch_size=16), LINEAR)
    entries = [ask(scheduler, 4, at_ns=at) for at in range(12)]
    scheduler.join("w", MODEL, 1)
    (send,) = scheduler.dispatch(15 * MS)
    assert send.entries == entries[:4]


def test_a_batch_is_judged_by_when_its_worker_begins_it() -> None:
    """0.2 ms before it has run what it holds, what takes 4 ms, and 4.6 to be sure, is not in time within 4.7."""
    scheduler = learned(make(1, max_batch_size=16), LINEAR)
    ask(scheduler, 4)
    assert rows(scheduler.dispatch(0)) == [4]
    for until_ms in (8.5, 20):
        ask(scheduler, 4, at_ns=MS, deadline_ns=int(until_ms * MS))
    orders = scheduler.dispatch(int(3.8 * MS))
    assert len(late(orders)) == 1
    assert rows([order for order in orders if isinstance(order, Send)]) == [4]


def test_who_has_little_time_does_not_cut_batches_of_many_small() -> None:
    """A batch that takes hardly longer than one of its requests is run whole, though one in twenty is late by it."""
    scheduler = learned(make(0, max_batch_size=256), {1: 4.0, 256: 4.6})
    for number in range(512):
        ask(scheduler, deadline_ns=0 if number % 20 != 1 else 3 * MS)
    scheduler.join("w", MODEL, 2)
    orders = scheduler.dispatch(0)
    assert rows([order for order in orders if isinstance(order, Send)])[0] == 256


def test_batches_are_no_smaller_than_does_any_good() -> None:
    """One that takes an eighth of the time that its requests are given harms nobody: 50 of 0.05 ms in 20."""
    scheduler = learned(make(0, max_batch_size=1000), {1: 0.05, 1000: 50.0})
    for _ in range(4000):
        ask(scheduler, deadline_ns=20 * MS)
    scheduler.join("w", MODEL, 1)
    (send,) = scheduler.dispatch(0)
    assert 25 <= rows([send])[0] <= 50


def test_a_batch_that_takes_nearly_all_the_time_there_is_is_run() -> None:
    """Who has all of it still is not cut fine."""
    scheduler = learned(make(0, max_batch_size=64), {1: 18.0, 64: 18.2})
    for _ in range(40):
        ask(scheduler, deadline_ns=20 * MS)
    scheduler.join("w", MODEL, 1)
    assert rows(scheduler.dispatch(0)) == [40]


def test_nobody_is_refused_by_batches_larger_than_were_seen() -> None:
    """Of a row that took 10 ms a batch of 32 need not take 320, which is known once one has."""
    scheduler = learned(make(max_batch_size=32, max_enqueued_batches=100), {1: 10.0})
    waiting = [ask(scheduler, deadline_ns=100 * MS) for _ in range(256)]
    with pytest.raises(PoolError, match=r"what waits before it 90\.0 ms"):
        [ask(scheduler, deadline_ns=99 * MS) for _ in range(100)]
    learned(scheduler, {32: 200.0})
    assert all(entry.waiting for entry in waiting)
    with pytest.raises(PoolError, match=r"what waits before it 1800\.0 ms"):
        ask(scheduler, deadline_ns=1000 * MS)


def test_a_batch_that_is_not_full_ends_before_it_is_late_for_one_of_it() -> None:
    """After its timeout, too: the rest has waited as long, and goes to the next worker at once."""
    scheduler = learned(make(2, max_batch_size=1000, batch_timeout_us=5_000), {4: 4.0, 40: 40.0})
    for until_ms in (100, 14, 100, 100):
        ask(scheduler, 4, deadline_ns=until_ms * MS)
    assert rows(scheduler.dispatch(5 * MS)) == [8, 8]


def test_a_full_batch_is_not_cut_where_batches_wait_for_a_timeout() -> None:
    """What is left of it would wait for its own, beside idle workers."""
    scheduler = learned(make(2, max_batch_size=1000, batch_timeout_us=50_000), {10: 0.125, 1000: 12.5})
    for _ in range(100):
        ask(scheduler, 10, deadline_ns=20 * MS)
    assert rows(scheduler.dispatch(0)) == [1000]


def test_larger_batches_than_were_seen_are_tried_in_a_crowd() -> None:
    """Nobody knows what they cost, but that it is no less: or one that began with small ones would keep to them."""
    scheduler = learned(make(0, max_batch_size=64), {4: 4.0})
    for at in range(40):
        ask(scheduler, 4, at_ns=at, deadline_ns=20 * MS)
    scheduler.join("w", MODEL, 1)
    assert rows(scheduler.dispatch(0)) == [64]


def test_a_batch_is_long_by_what_it_costs_itself() -> None:
    """Many requests that are short each make a batch that keeps to the slow lane; a small batch does not."""
    batching_rules = QueueRules(batching=BatchingSettings(max_batch_size=100))
    scheduler = Scheduler(PoolRules(limits=Limits(long=1), long_us=50_000), batching_rules)
    learned(scheduler, {1: 5, 100: 500})
    for name in "abcd":
        scheduler.join(name, MODEL, 1, "gpu0")
    for _ in range(300):
        ask(scheduler)
    (lane,) = scheduler.dispatch(0)
    assert len(lane.entries) == 100
    ask(scheduler, kind="small")
    assert rows(scheduler.dispatch(0)) == [1]
    scheduler.finished(lane.worker, lane.dispatch)
    assert rows(scheduler.dispatch(0)) == [100]


def test_which_batches_are_long_is_found_out() -> None:
    """By what batches cost on average, not requests: one that costs as much is not, one of half as much again is."""
    scheduler = Scheduler(
        PoolRules(limits=Limits(long=1)), QueueRules(batching=BatchingSettings(max_batch_size=8))
    )
    for count in (1, 8) * 2:
        scheduler.costs.observe(MODEL, "", 0, 1_000 * count, rows=count)
        scheduler.costs.observe(MODEL, "long", 0, 1_600 * count, rows=count)
    for name in "ab":
        scheduler.join(name, MODEL, 1, "gpu0")
    for _ in range(3):
        for _ in range(16):
            ask(scheduler)
        sends = scheduler.dispatch(0)
        assert rows(sends) == [8, 8]
        for send in sends:
            scheduler.finished(send.worker, send.dispatch)
    for _ in range(16):
        ask(scheduler, signature="long")
    (lane,) = scheduler.dispatch(0)
    for _ in range(8):
        ask(scheduler)
    (other,) = scheduler.dispatch(0)
    assert [send.entries[0].signature for send in (lane, other)] == ["long", ""]
    scheduler.finished(lane.worker, lane.dispatch)
    (second,) = scheduler.dispatch(0)
    assert (second.entries[0].signature, rows([second])) == ("long", [8])


def test_a_line_in_which_all_are_late() -> None:
    """Nothing is sent where a batch would be spread and there is nobody left in it."""
    scheduler = make(max_batch_size=8)
    learned(scheduler, {1: 50})
    entries = [ask(scheduler, deadline_ns=until * MS) for until in (200, 150)]
    scheduler.join("w1", MODEL, 1)
    orders = scheduler.dispatch(160 * MS)
    assert [order.entry for order in orders if isinstance(order, Refuse)] == entries[:1]
    assert not [order for order in orders if isinstance(order, Send)]


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
