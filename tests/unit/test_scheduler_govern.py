"""What holds for queues changes while requests wait: they go by what holds now."""

from __future__ import annotations

import contextlib

import pytest

from mpspool.core.errors import PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.settings import BatchingSettings
from mpspool.router.scheduling.entry import Entry
from mpspool.router.scheduling.load import Limits
from mpspool.router.scheduling.policy import Own, Policy, fifo
from mpspool.router.scheduling.queues import QueueRules
from mpspool.router.scheduling.scheduler import PoolRules, Scheduler, Send

MODEL = ModelVersion("m", 1)
UP_NS = 10**12  # the machine has been up for a while
MS = 1_000_000
LARGE = Own("large numbers", lambda waiting: 1e9 * waiting.size)
SMALL = Own("small numbers", lambda waiting: float(waiting.size))


def ask(scheduler: Scheduler, body: bytes = b"x", client: str = "", after_ms: int = 0) -> Entry:
    now_ns = UP_NS + after_ms * MS
    entry = Entry(MODEL, "", body, now_ns, client=client)
    scheduler.arrive(entry, now_ns)
    return entry


def served(scheduler: Scheduler) -> list[Entry]:
    """In the order in which one worker of one credit is sent them."""
    order: list[Entry] = []
    now_ns = UP_NS + 1000 * MS
    while sends := [one for one in scheduler.dispatch(now_ns) if isinstance(one, Send)]:
        (send,) = sends
        order += send.entries
        now_ns += 10 * MS
        batch = scheduler.finished(send.worker, send.dispatch, now_ns=now_ns)
        assert batch is not None
        for entry in batch.entries:
            scheduler.answered(entry, ran=True)
    return order


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize(("old", "new"), [(LARGE, fifo), (fifo, SMALL), (SMALL, LARGE)])
def test_what_waits_goes_by_the_new_policy(old: Policy, new: Policy, fair: bool) -> None:
    """Beside what comes later: by numbers of two policies, who waited would wait without end."""
    scheduler = Scheduler(PoolRules(), QueueRules(policy=old, fair=fair))
    for size in (1, 2):
        for _ in range(2):
            scheduler.costs.observe(MODEL, "", size, 10_000)
    waited = [ask(scheduler, body, after_ms=at) for at, body in enumerate((b"xx", b"x", b"xx"))]
    scheduler.govern(MODEL, QueueRules(policy=new, fair=fair))
    later = [ask(scheduler, body, after_ms=at) for at, body in enumerate((b"x", b"xx"), 10)]
    scheduler.join("w", MODEL, 1)
    by_arrival = waited + later
    by_size = [entry for size in (1, 2) for entry in by_arrival if entry.size == size]
    assert served(scheduler) == (by_arrival if new is fifo else by_size)


def test_what_a_client_owes_it_owes_after_a_reload() -> None:
    """It was charged for what ran while others of its own waited; those are as much later as before."""
    scheduler = Scheduler(PoolRules(), QueueRules(fair=True))
    for client in "ab":
        ask(scheduler, client=client)
    scheduler.join("w", MODEL, 1)
    (send,) = [one for one in scheduler.dispatch(UP_NS) if isinstance(one, Send)]
    assert [entry.client for entry in send.entries] == ["a"]
    mine = [ask(scheduler, client="a") for _ in range(3)]
    others = [ask(scheduler, client="b") for _ in range(3)]
    scheduler.finished(send.worker, send.dispatch, now_ns=UP_NS + 500 * MS)  # it is charged for half a second
    scheduler.costs.observe(MODEL, "", 1, 10_000)
    scheduler.govern(MODEL, QueueRules(policy=LARGE, fair=True))
    scheduler.govern(MODEL, QueueRules(fair=True))
    order = served(scheduler)
    assert order.index(mine[0]) > order.index(others[-1])


def test_what_waits_goes_to_the_lane_that_a_reload_gives() -> None:
    """And out of it, once there is none."""
    lane = PoolRules(limits=Limits(long=1), long_us=20_000)
    scheduler = Scheduler(PoolRules(), QueueRules())
    for _ in range(2):
        scheduler.costs.observe(MODEL, "", 1, 100_000)
    for _ in range(8):
        ask(scheduler)
    for name in "abcd":
        scheduler.join(name, MODEL, 1, "gpu0")
    scheduler.govern_all(lane)
    assert (len(scheduler.dispatch(UP_NS)), scheduler.devices()[0].long) == (1, 1)
    scheduler.govern_all(PoolRules())
    assert len(scheduler.dispatch(UP_NS)) == 3


def test_what_is_long_is_found_out_by_what_waits_at_a_reload() -> None:
    """Where nobody says from which cost on, though nothing has come since there is a lane."""
    scheduler = Scheduler(PoolRules(), QueueRules())
    for size, cost_us in ((1, 10_000), (1000, 100_000)):
        for _ in range(2):
            scheduler.costs.observe(MODEL, "", size, cost_us)
    for body in [b"x"] * 2 + [bytes(1000)] * 4:
        ask(scheduler, body)
    for name in "abcd":
        scheduler.join(name, MODEL, 1, "gpu0")
    scheduler.govern_all(PoolRules(limits=Limits(long=1)))
    sends = [order for order in scheduler.dispatch(UP_NS) if isinstance(order, Send)]
    assert sorted(send.entries[0].size for send in sends) == [1, 1, 1000]


def test_what_comes_back_from_a_lost_worker_goes_by_the_new_policy() -> None:
    """And what is suspected no more: neither has waited in a line while the policy changed."""
    scheduler = Scheduler(PoolRules(), QueueRules(policy=LARGE))
    scheduler.join("w", MODEL, 1)
    held = ask(scheduler, b"xx")
    assert scheduler.dispatch(UP_NS)
    later = ask(scheduler, b"x", after_ms=1)
    scheduler.govern(MODEL, QueueRules())
    scheduler.lost("w", None, UP_NS)
    scheduler.join("v", MODEL, 1)
    assert served(scheduler) == [held, later]


def test_what_came_before_its_cost_was_sure_keeps_to_the_lane() -> None:
    """All that waits since the first of its kind ran is judged when it comes up."""
    scheduler = Scheduler(PoolRules(limits=Limits(long=1), long_us=20_000), QueueRules())
    for name in "abcd":
        scheduler.join(name, MODEL, 1, "gpu0")
    scheduler.costs.observe(MODEL, "", 1, 1_000_000)
    for _ in range(8):
        ask(scheduler)
    scheduler.costs.observe(MODEL, "", 1, 1_000_000)
    assert (len(scheduler.dispatch(UP_NS)), scheduler.devices()[0].long) == (1, 1)
    assert scheduler.queued_slow(MODEL) >= 1


@pytest.mark.parametrize(
    ("was", "now", "most"),
    [
        (Limits(running=4), Limits(running=1), 1),
        (Limits(long=3), Limits(long=1), 1),
        (Limits(), Limits(running=2), 2),
    ],
)
def test_a_narrower_limit_holds_in_a_backlog(was: Limits, now: Limits, most: int) -> None:
    """What is sent ahead is sent to no more workers than may run, so that the others fall idle."""
    scheduler = Scheduler(PoolRules(limits=was, long_us=10_000), QueueRules())
    for _ in range(2):
        scheduler.costs.observe(MODEL, "", 1, 20_000)
    for name in "abcd":
        scheduler.join(name, MODEL, 2, "gpu0")
    for _ in range(200):
        ask(scheduler)
    now_ns, running, free_ns = UP_NS, [], dict.fromkeys("abcd", 0)
    for step in range(60):
        if step == 20:
            scheduler.govern_all(PoolRules(limits=now, long_us=10_000))
        for send in scheduler.dispatch(now_ns):
            assert isinstance(send, Send)
            free_ns[send.worker] = max(now_ns, free_ns[send.worker]) + len(send.entries) * 20 * MS
            running.append((free_ns[send.worker], send))
        ends = [end_ns for end_ns, _ in running]
        now_ns = min([*ends, scheduler.look_again_ns(now_ns) or max(ends)])
        for end_ns, send in [one for one in running if one[0] <= now_ns]:
            running.remove((end_ns, send))
            batch = scheduler.finished(send.worker, send.dispatch, now_ns=now_ns)
            assert batch is not None
            for entry in batch.entries:
                scheduler.answered(entry, ran=True)
    assert scheduler.devices()[0].running <= most


@pytest.mark.parametrize(("was", "now", "more", "taken"), [(100, 1000, 600, True), (1000, 100, 60, False)])
def test_batches_of_another_size_are_filled_by_others(was: int, now: int, more: int, taken: bool) -> None:
    """What waits counts as so many batches as it makes now."""

    def rules(most: int) -> QueueRules:
        return QueueRules(batching=BatchingSettings(max_batch_size=most, max_enqueued_batches=3))

    def ask_rows(rows: int) -> None:
        scheduler.arrive(Entry(MODEL, "", b"x", UP_NS, rows=rows, kind=("", b"", b"")), UP_NS)

    scheduler = Scheduler(PoolRules(), rules(was))
    for _ in range(3):
        ask_rows(60)
    scheduler.govern(MODEL, rules(now))
    with contextlib.nullcontext() if taken else pytest.raises(PoolError, match="3 batches enqueued"):
        ask_rows(more)


def test_who_comes_to_a_lane_that_is_new_begins_where_the_others_are() -> None:
    """And not at the beginning of a clock that has stood while there was no such lane: that would be a turn for nothing."""
    scheduler = Scheduler(PoolRules(), QueueRules(fair=True))
    for size, cost_us in ((1, 10_000), (1000, 100_000)):
        for _ in range(2):
            scheduler.costs.observe(MODEL, "", size, cost_us)
    scheduler.join("w", MODEL, 1, "gpu0")
    for _ in range(100):
        ask(scheduler, client="a")
    served(scheduler)
    long = [ask(scheduler, bytes(1000), client="b") for _ in range(3)]
    short = [ask(scheduler, client=client) for client in "cde"]
    scheduler.govern_all(PoolRules(limits=Limits(long=1), long_us=50_000))
    assert [entry.charge_s for entry in long] == [0.1] * 3
    assert min(entry.key for entry in long) == pytest.approx(min(entry.key for entry in short))
