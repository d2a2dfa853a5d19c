"""What simulations found about the scheduler: limits of devices, and when a second dispatch is sent."""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpspool.core.errors import Code, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.settings import BatchingSettings
from mpspool.router.scheduling import next_dispatch
from mpspool.router.scheduling.entry import Entry
from mpspool.router.scheduling.fair_share import FairShare
from mpspool.router.scheduling.load import Batch, Limits
from mpspool.router.scheduling.policy import Sjf, edf
from mpspool.router.scheduling.queues import Queue, QueueRules
from mpspool.router.scheduling.room import Crowd
from mpspool.router.scheduling.scheduler import PoolRules, Refuse, Scheduler, Send
from mpspool.router.scheduling.turns import Turns

MODEL = ModelVersion("half", 1)
OTHER = ModelVersion("other", 3)
MS = 1_000_000


class Pool:
    """Workers that take exactly as long as predicted, and queues that are never empty."""

    def __init__(self, limits: Limits, cost_ms: dict[ModelVersion, float]) -> None:
        self.scheduler = Scheduler(PoolRules(limits=limits, long_us=20_000), QueueRules())
        self.cost_ns = {model: int(cost * MS) for model, cost in cost_ms.items()}
        self.now_ns = 0
        self.served: Counter[ModelVersion] = Counter()
        self.sent: list[tuple[ModelVersion, int, int]] = []  # model, sent, began
        self._free_ns: Counter[str] = Counter()
        self._events: list[tuple[int, int, str, Send | None]] = []
        self._serial = itertools.count()
        for model, cost in cost_ms.items():
            self.scheduler.costs.observe(model, "", 1, cost * 1000)

    def join(self, name: str, model: ModelVersion) -> None:
        self.scheduler.join(name, model, 2, "gpu")

    def ask(self, model: ModelVersion, count: int = 1) -> None:
        for _ in range(count):
            self.scheduler.arrive(Entry(model, "", b"x", self.now_ns), self.now_ns)

    def run(self, until_ms: float) -> None:
        self._dispatch()
        while self._events and self._events[0][0] <= until_ms * MS:
            self.now_ns, _, name, send = heapq.heappop(self._events)
            if send is not None:
                batch = self.scheduler.finished(name, send.dispatch, now_ns=self.now_ns)
                assert batch is not None
                for entry in batch.entries:
                    self.scheduler.answered(entry, ran=True)
                    self.served[entry.model] += 1
            self._dispatch()

    def _dispatch(self) -> None:
        for send in self.scheduler.dispatch(self.now_ns):
            model = send.entries[0].model
            began_ns = max(self.now_ns, self._free_ns[send.worker])
            self.sent.append((model, self.now_ns, began_ns))
            end_ns = began_ns + len(send.entries) * self.cost_ns[model]
            self._free_ns[send.worker] = end_ns
            heapq.heappush(self._events, (end_ns, next(self._serial), send.worker, send))
        if (due_ns := self.scheduler.look_again_ns(self.now_ns)) is not None:
            heapq.heappush(self._events, (due_ns, next(self._serial), "", None))


@pytest.mark.parametrize("limits", [Limits(running=1), Limits(long=1)])
def test_who_runs_on_a_limited_device_does_not_keep_the_others_off(limits: Limits) -> None:
    """Two models with as much waiting and as long jobs get as much of a device that runs one at a time."""
    pool = Pool(limits, {MODEL: 50, OTHER: 50})
    for name, model in (("a", MODEL), ("b", OTHER)):
        pool.join(name, model)
        pool.ask(model, 100)
    pool.run(2000)
    assert pool.served[OTHER] == pytest.approx(pool.served[MODEL], abs=2)


def test_a_dispatch_behind_a_running_one_is_sent_shortly_before_its_end_each_time() -> None:
    """After many in a row, too: what comes next is not chosen earlier and earlier. In a backlog it is sent sooner."""
    pool = Pool(Limits(), {MODEL: 50})
    pool.join("a", MODEL)
    pool.ask(MODEL, 70)
    pool.run(4000)
    ahead = [began_ns - sent_ns for _, sent_ns, began_ns in pool.sent]
    assert max(ahead) <= 32 * MS
    assert max(ahead[-3:]) <= 4 * MS


def test_edf_holds_between_models_on_a_limited_device() -> None:
    """Whose deadline is next goes first, though it came with more time than another that came later."""
    pool = Pool(Limits(running=1), {MODEL: 10, OTHER: 10})
    pool.scheduler = Scheduler(PoolRules(limits=Limits(running=1)), QueueRules(policy=edf, refuse_late=False))
    for name, model in (("a", MODEL), ("b", OTHER)):
        pool.join(name, model)
        pool.scheduler.arrive(Entry(model, "", name.encode(), 0, 1000 * MS), 0)
    (running,) = pool.scheduler.dispatch(0)
    soon = Entry(MODEL, "", b"1", 0, 100 * MS)
    late = Entry(OTHER, "", b"2", 90 * MS, 140 * MS)
    pool.scheduler.arrive(soon, 0)
    pool.scheduler.arrive(late, 90 * MS)
    pool.scheduler.finished(running.worker, running.dispatch)
    (send,) = pool.scheduler.dispatch(90 * MS)
    assert send.entries == [soon]


def test_no_model_is_idle_for_long_because_its_jobs_are_long() -> None:
    """Under sjf with a limit on a device, a flood of short ones leaves the long ones their share."""
    pool = Pool(Limits(running=1), {MODEL: 5, OTHER: 50})
    pool.scheduler = Scheduler(PoolRules(limits=Limits(running=1)), QueueRules(policy=Sjf(10.0)))
    for model, cost in ((MODEL, 5000), (OTHER, 50_000)):
        pool.scheduler.costs.observe(model, "", 1, cost)
    pool.join("a", MODEL)
    pool.join("b", OTHER)
    pool.ask(MODEL, 1000)
    pool.ask(OTHER, 20)
    pool.run(4000)
    assert pool.served[OTHER] > 10


def test_who_fills_a_fair_queue_does_not_keep_others_out() -> None:
    """A client with little waiting is taken in though another one's requests have filled the queue."""
    scheduler = Scheduler(PoolRules(), QueueRules(fair=True, max_requests=100))
    for _ in range(100):
        scheduler.arrive(Entry(MODEL, "", b"x", 0, client="flood"), 0)
    other = Entry(MODEL, "", b"x", 0, client="other")
    scheduler.arrive(other, 0)
    (refusal,) = scheduler.dispatch(0)
    assert refusal.entry.client == "flood"
    assert refusal.error.code is Code.UNAVAILABLE
    assert scheduler.queued(MODEL) == 100
    with pytest.raises(PoolError, match="is full: 100 requests wait"):
        scheduler.arrive(Entry(MODEL, "", b"x", 0, client="flood"), 0)


def test_no_more_leave_than_come() -> None:
    """A queue of which more waits than may, as after a reload or the loss of a worker, keeps its length; whoever floods it."""
    scheduler = Scheduler(PoolRules(), QueueRules(fair=True, max_requests=100))
    for number in range(100):
        scheduler.arrive(Entry(MODEL, "", b"x", 0, client="ab"[number % 2]), 0)
    scheduler.govern(MODEL, QueueRules(fair=True, max_requests=20))
    scheduler.arrive(Entry(MODEL, "", b"x", 0, client="other"), 0)
    assert len(scheduler.dispatch(0)) == 1
    assert scheduler.queued(MODEL) == 100


def test_what_cannot_be_in_time_any_more_is_not_sent() -> None:
    """A worker's time goes to a request that can still meet its deadline."""
    scheduler = Scheduler(PoolRules(), QueueRules(policy=edf))
    for _ in range(2):  # what was seen once refuses nobody
        scheduler.costs.observe(MODEL, "", 1, 50_000)
    hopeless = Entry(MODEL, "", b"1", 0, 60 * MS)
    feasible = Entry(MODEL, "", b"2", 0, 90 * MS)
    for entry in (hopeless, feasible):
        scheduler.arrive(entry, 0)
    scheduler.join("a", MODEL, 1)
    send, refusal = sorted(scheduler.dispatch(30 * MS), key=lambda order: isinstance(order, Refuse))
    assert send.entries == [feasible]
    assert refusal.entry is hopeless
    assert refusal.error.code is Code.DEADLINE_EXCEEDED


def test_idle_workers_are_not_for_the_hopeless() -> None:
    """But for one try in a while, which tells whether such take less by now; what may just be late is run."""
    pool = Scheduler(PoolRules(), QueueRules())
    for _ in range(2):
        pool.costs.observe(MODEL, "", 1, 80_000)
    pool.join("a", MODEL, 1)
    ran, cost_us = [], 80_000

    def ask(now_ms: int, given_ms: int) -> None:
        now_ns = now_ms * MS
        with contextlib.suppress(PoolError):
            pool.arrive(Entry(MODEL, "", b"x", now_ns, now_ns + given_ms * MS), now_ns)
        for order in pool.dispatch(now_ns):
            assert isinstance(order, Send)
            pool.finished("a", order.dispatch, now_ns=now_ns + cost_us * 1000)
            pool.costs.observe(MODEL, "", 1, cost_us)
            ran.append(now_ms)

    for now_ms in range(0, 10_000, 100):
        ask(now_ms, 30)
    assert ran == [0, 1600, 3200, 4800, 6400, 8000, 9600]
    ask(10_000, 50)
    assert ran.pop() == 10_000
    cost_us = 10_000
    for now_ms in range(20_000, 30_000, 100):
        ask(now_ms, 30)
    assert sum(now_ms >= 25_000 for now_ms in ran) == 50


def test_the_hopeless_are_tried_beside_those_that_take_longer() -> None:
    """A try of ten seconds is for those that take so long: of those of 80 ms the next is tried 1.6 s after the last."""
    pool = Scheduler(PoolRules(), QueueRules())
    for signature, cost_us in (("long", 10_000_000), ("short", 80_000)) * 2:
        pool.costs.observe(MODEL, signature, 1, cost_us)
    pool.join("a", MODEL, 1)
    ran = []
    for now_ms in range(0, 5000, 100):
        for signature, given_ms in (("long", 4000), ("short", 30)):
            with contextlib.suppress(PoolError):
                pool.arrive(Entry(MODEL, signature, b"x", now_ms * MS, (now_ms + given_ms) * MS), now_ms * MS)
            for order in pool.dispatch(now_ms * MS):
                assert isinstance(order, Send)
                pool.finished("a", order.dispatch, now_ns=now_ms * MS)
                ran.append((signature, now_ms))
    assert ran == [("long", 0), ("short", 0), ("short", 1600), ("short", 3200), ("short", 4800)]


def test_a_lone_first_run_does_not_keep_the_late_in_the_queue() -> None:
    """Where a row was run by itself but once, what full batches take says who cannot be in time: in the queue, and at the door."""
    scheduler = Scheduler(PoolRules(), QueueRules(batching=BatchingSettings(max_batch_size=4)))
    for cost_us, rows in ((20_000, 1), (40_000, 4), (40_000, 4)):
        scheduler.costs.observe(MODEL, "", 0, cost_us, rows)
    hopeless, feasible = (
        [Entry(MODEL, "", b"x", 0, given_ms * MS, rows=1, kind=("", b"", b"")) for _ in range(8)]
        for given_ms in (9, 900)
    )
    for entry in (*hopeless, *feasible):
        scheduler.arrive(entry, 0)
    scheduler.join("a", MODEL, 1)
    orders = scheduler.dispatch(0)
    assert [order.entry for order in orders if isinstance(order, Refuse)] == hopeless
    assert [order.entries for order in orders if isinstance(order, Send)] == [feasible[:4]]
    with pytest.raises(PoolError, match=r"before it 40\.0 ms and what runs now another 40\.0 ms"):
        scheduler.arrive(Entry(MODEL, "", b"x", 0, 85 * MS, rows=1, kind=("", b"", b"")), 0)


def test_what_is_known_by_now_says_who_cannot_be_in_time() -> None:
    """Whether it is more or less than what was known when a request came."""
    scheduler = Scheduler(PoolRules(), QueueRules(batching=BatchingSettings(max_batch_size=1)))
    late, next_one = (
        Entry(MODEL, "", b"x", 0, given_ms * MS, rows=1, kind=("", b"", b"")) for given_ms in (200, 900)
    )
    for entry in (late, next_one):
        scheduler.costs.observe(MODEL, "", 0, 10_000, 1)
        scheduler.arrive(entry, 0)
    for _ in range(100):
        scheduler.costs.observe(MODEL, "", 0, 400_000, 1)
    for name in "ab":
        scheduler.join(name, MODEL, 1)
    refusal, send = scheduler.dispatch(0)
    assert isinstance(refusal, Refuse)
    assert refusal.entry is late
    assert isinstance(send, Send)
    assert send.entries == [next_one]


def test_a_row_is_taken_beside_large_batches() -> None:
    """It ran but once, in a millisecond: it is not refused for what 64 rows take, or it would never be seen again."""
    scheduler = Scheduler(PoolRules(), QueueRules(batching=BatchingSettings(max_batch_size=64)))
    for cost_us, rows in ((1_000, 1), (40_000, 64), (40_000, 64)):
        scheduler.costs.observe(MODEL, "", 0, cost_us, rows)
    scheduler.join("a", MODEL, 1)
    scheduler.arrive(Entry(MODEL, "", b"x", 0, rows=64, kind=("", b"", b"")), 0)
    (send,) = scheduler.dispatch(0)
    row = Entry(MODEL, "", b"x", 0, 60 * MS, rows=1, kind=("", b"", b""))
    scheduler.arrive(row, 0)
    scheduler.finished("a", send.dispatch, now_ns=40 * MS)
    (send,) = scheduler.dispatch(40 * MS)
    assert isinstance(send, Send)
    assert send.entries == [row]


def test_what_an_error_kept_from_being_sent_stirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is next after all others, whatever happens, though that stirs nothing itself."""
    scheduler = Scheduler(PoolRules(), QueueRules())
    scheduler.join("a", MODEL, 1)
    entry = Entry(MODEL, "", b"x", 0)
    scheduler.arrive(entry, 0)
    with monkeypatch.context() as broken:
        broken.delattr(next_dispatch, "take")
        with pytest.raises(AttributeError):
            scheduler.dispatch(0)
    assert scheduler.stirs
    assert scheduler.dispatch(0) == []
    assert scheduler.stirs
    (send,) = scheduler.dispatch(0)
    assert isinstance(send, Send)
    assert send.entries == [entry]
    assert not scheduler.stirs


@pytest.mark.parametrize("slow_lane", [0, 1])
def test_who_leaves_stirs_where_there_is_a_slow_lane(slow_lane: int) -> None:
    """The batch that is left need not be long; elsewhere no more of its queue can be sent than before."""
    scheduler = Scheduler(PoolRules(limits=Limits(long=slow_lane)), QueueRules())
    for _ in "ab":
        entry = Entry(MODEL, "", b"x", 0)
        scheduler.arrive(entry, 0)
    assert scheduler.dispatch(0) == []
    assert not scheduler.stirs
    scheduler.cancel(entry)
    assert scheduler.stirs == bool(slow_lane)


def test_edf_where_clients_share() -> None:
    """A request without a deadline counts as one that has ten seconds, and does not go before one with a second."""
    day_ns = 86_400_000 * MS
    scheduler = Scheduler(PoolRules(), QueueRules(policy=edf, fair=True, refuse_late=False))
    scheduler.join("a", MODEL, 1)
    for body, deadline_ns in ((b"1", 0), (b"2", day_ns + 1000 * MS)):
        scheduler.arrive(Entry(MODEL, "", body, day_ns, deadline_ns, client=body.decode()), day_ns)
    (send,) = scheduler.dispatch(day_ns)
    assert send.entries[0].body == b"2"


def test_what_was_cancelled_counts_for_nothing() -> None:
    """A client whose requests were never run is not behind for their sake."""
    scheduler = Scheduler(PoolRules(), QueueRules(fair=True))
    scheduler.costs.observe(MODEL, "", 1, 50_000)
    for _ in range(100):
        gone = Entry(MODEL, "", b"x", 0, client="unlucky")
        scheduler.arrive(gone, 0)
        scheduler.cancel(gone)
    for body in b"abcdefgh":
        scheduler.arrive(Entry(MODEL, "", bytes([body]), 0, client="other"), 0)
    scheduler.arrive(Entry(MODEL, "", b"u", 0, client="unlucky"), 0)
    scheduler.join("a", MODEL, 1)
    order = []
    for _ in range(3):
        (send,) = scheduler.dispatch(0)
        order.append(send.entries[0].client)
        scheduler.finished(send.worker, send.dispatch)
    assert "unlucky" in order


def test_nothing_empty_is_sent() -> None:
    """Where all that wait are late, and nobody has refused those whose deadlines have passed yet."""
    scheduler = Scheduler(PoolRules(), QueueRules(fair=True))
    scheduler.costs.observe(MODEL, "", 1, 50_000)
    for deadline_ms in (60, 20):
        scheduler.arrive(Entry(MODEL, "", b"x", 0, deadline_ms * MS), 0)
    scheduler.join("a", MODEL, 1)
    orders = scheduler.dispatch(30 * MS)
    assert not [order for order in orders if isinstance(order, Send) and not order.entries]


def test_a_decision_does_not_look_at_models_that_nothing_happened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many wait for workers of their own: only the one that got a worker is asked for its next."""
    scheduler = Scheduler(PoolRules(), QueueRules())
    for version in range(100):
        scheduler.arrive(Entry(ModelVersion("m", version), "", b"x", 0), 0)
    scheduler.dispatch(0)
    asked: list[int] = []
    monkeypatch.setattr(next_dispatch, "next_lines", lambda *_: asked.append(1) or {})
    scheduler.join("a", ModelVersion("m", 7), 1)
    scheduler.dispatch(1)
    assert len(asked) == 1


def test_one_more_that_has_to_wait_as_others_do_calls_for_no_decision() -> None:
    """It can go no sooner than those before it; the first of a line, or the one that fills a batch, may."""
    scheduler = Scheduler(PoolRules(), QueueRules(batching=BatchingSettings(max_batch_size=3)))
    stirs = [scheduler.arrive(Entry(MODEL, "", b"x", 0, rows=1, kind=("", b"", b"k")), 0)]
    scheduler.dispatch(0)
    stirs += [scheduler.arrive(Entry(MODEL, "", b"x", 0, rows=1, kind=("", b"", b"k")), 0) for _ in range(3)]
    assert stirs == [True, False, True, True]
    scheduler.dispatch(0)
    assert not scheduler.arrive(Entry(MODEL, "", b"x", 0, rows=1, kind=("", b"", b"k")), 0)
    assert scheduler.arrive(Entry(MODEL, "", b"x", 0, rows=1, kind=("", b"", b"other")), 0)


def test_a_worker_that_is_long_overdue_is_sent_nothing_more() -> None:
    """It may hang; what it was sent would have to wait until that is known."""
    pool = Scheduler(PoolRules(), QueueRules())
    pool.costs.observe(MODEL, "", 1, 5_000)
    pool.join("a", MODEL, 2)
    pool.arrive(Entry(MODEL, "", b"x", 0), 0)
    assert len(pool.dispatch(0)) == 1
    pool.arrive(Entry(MODEL, "", b"x", 500 * MS), 500 * MS)
    assert pool.dispatch(500 * MS) == []


def test_what_was_decided_before_an_error_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The orders of one model are given out though another's failed, at the next decision; the other's at the one after."""
    pool = Scheduler(PoolRules(), QueueRules())
    for name, model in (("a", MODEL), ("b", OTHER)):
        pool.join(name, model, 1)
        pool.arrive(Entry(model, "", b"x", 0), 0)
    take = next_dispatch.take
    taken: list[ModelVersion] = []

    def take_one(queue: Queue, *args: Any) -> Batch:
        taken.append(queue.model)
        if len(taken) == 2:
            raise RuntimeError
        return take(queue, *args)

    monkeypatch.setattr(next_dispatch, "take", take_one)
    with pytest.raises(RuntimeError):
        pool.dispatch(0)
    assert pool.arrive(Entry(taken[1], "", b"y", 0), 0)
    orders = pool.dispatch(0) + pool.dispatch(0)
    assert {send.worker for send in orders if isinstance(send, Send)} == {"a", "b"}


def test_a_queue_that_fails_each_time_does_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was decided of the others is given out, and they go on being served."""
    pool = Scheduler(PoolRules(), QueueRules())
    for name, model in (("a", MODEL), ("b", OTHER)):
        pool.join(name, model, 1)
    take = next_dispatch.take

    def take_mine(queue: Queue, *args: Any) -> Batch:
        if queue.model == OTHER:
            raise RuntimeError
        return take(queue, *args)

    monkeypatch.setattr(next_dispatch, "take", take_mine)
    pool.arrive(Entry(OTHER, "", b"x", 0), 0)
    served = 0
    for _ in range(10):
        pool.arrive(Entry(MODEL, "", b"y", 0), 0)
        for _ in range(3):
            with contextlib.suppress(RuntimeError):
                for send in pool.dispatch(0):
                    assert isinstance(send, Send)
                    served += len(send.entries)
                    pool.finished(send.worker, send.dispatch)
    assert served >= 9


def test_a_lost_worker_makes_room_on_its_device() -> None:
    """For another model's, where so many may run at once, though nothing comes back that could be sent again."""
    pool = Scheduler(PoolRules(limits=Limits(running=1)), QueueRules())
    pool.join("a", MODEL, 1, "device")
    pool.join("b", OTHER, 1, "device")
    pool.arrive(Entry(MODEL, "", b"x", 0), 0)
    (running,) = pool.dispatch(0)
    assert isinstance(running, Send)
    pool.arrive(Entry(OTHER, "", b"y", 0), 0)
    assert pool.dispatch(0) == []
    pool.lost("a", (running.dispatch, 0), 0)
    assert [send.worker for send in pool.dispatch(0) if isinstance(send, Send)] == ["b"]


def test_a_fair_share_costs_the_same_with_many_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that can be forgotten are looked for once in as many arrivals as there are clients; and are forgotten."""
    looked: list[int] = []
    forget = FairShare._forget
    monkeypatch.setattr(FairShare, "_forget", lambda share: (looked.append(1), forget(share)))
    share = FairShare()
    for _ in range(3):
        for client in range(10_000):
            share.arrive(client, 0.1)
    assert len(looked) < 20
    share.served(100.0)
    for client in range(10_000, 30_000):
        share.arrive(client, 0.0)
    assert len(share._next_s) < 20_000


def test_clients_that_ask_but_once_do_not_pile_up() -> None:
    """The clock stands, for none of them is served after it has waited for its turn; who floods is remembered."""
    share = FairShare()
    for _ in range(10):
        share.arrive("floods", 100.0)
    for client in range(200_000):
        share.served(share.arrive(client, 0.1))
    assert len(share._next_s) <= 2**16
    assert share.now("floods") == 1000.0


def test_a_suspect_waits_for_room_on_its_device() -> None:
    """Where only so many may run there at once it is none too many, and not before others that run."""
    pool = Scheduler(PoolRules(limits=Limits(running=1)), QueueRules())
    for name in ("a", "b", "c"):
        pool.join(name, MODEL, 1, "device")
    pool.arrive(Entry(MODEL, "", b"x", 0), 0)
    (first,) = pool.dispatch(0)
    assert isinstance(first, Send)
    pool.arrive(Entry(MODEL, "", b"y", 0), 0)
    assert pool.dispatch(0) == []
    pool.lost(first.worker, (first.dispatch, 0), 0)
    sent = [send for _ in range(3) for send in pool.dispatch(0) if isinstance(send, Send)]
    assert len(sent) == 1
    pool.finished(sent[0].worker, sent[0].dispatch)
    (other,) = (send for send in pool.dispatch(0) if isinstance(send, Send))
    assert {entry.body for send in (sent[0], other) for entry in send.entries} == {b"x", b"y"}


@given(st.lists(st.tuples(st.sampled_from("uvw"), st.integers(0, 4), st.booleans()), max_size=60))
def test_who_has_most_is_known(steps: list[tuple[str, int, bool]]) -> None:
    """For every order in which entries come (of so many rows) and go (the client's oldest, of 0), and in which it is asked for."""
    crowd = Crowd(1.0)
    waiting: dict[str, list[Entry]] = {client: [] for client in "uvwx"}
    for client, rows, asked in [*steps, ("u", 0, True)]:
        if rows:
            entry = Entry(MODEL, "", b"", 0, rows=rows, client=client)
            waiting[client].append(entry)
            crowd.add(entry, rows)
        elif waiting[client]:
            crowd.discard(waiting[client].pop(0))
        much = {client: sum(entry.rows for entry in entries) for client, entries in waiting.items()}
        assert {client: crowd.of(client) for client in waiting} == much
        if asked:
            leaving = list(crowd.leaving_for(Entry(MODEL, "", b"", 0, client="x"), 0))
            clients = [client for client, _ in itertools.groupby(entry.client for entry in leaving)]
            sizes = sorted((size for size in much.values() if size), reverse=True)
            assert [much[client] for client in clients] == sizes
            assert leaving == [entry for client in clients for entry in reversed(waiting[client])]


def test_who_has_as_much_again_as_it_once_had_is_asked_once() -> None:
    """Nobody leaves twice, and not more wait than may."""
    batching = BatchingSettings(max_batch_size=100, max_enqueued_batches=1)
    pool = Scheduler(PoolRules(), QueueRules(fair=True, batching=batching))

    def arrives(client: str, rows: int) -> Entry:
        entry = Entry(MODEL, "", client.encode(), 0, rows=rows, kind=("", b"", b""), client=client)
        pool.arrive(entry, 0)
        return entry

    has = [arrives("most", 20) for _ in range(5)]
    pool.cancel(has.pop(0))
    with pytest.raises(PoolError, match="is full"):
        arrives("other", 50)  # of what goes beyond as much there are 20 rows, and 30 would have to leave
    assert pool.dispatch(0) == []
    arrives("other", 40)
    assert [order.entry for order in pool.dispatch(0) if isinstance(order, Refuse)] == has[-1:]
    assert pool.unfinished() == 4


def test_a_trial_that_ends_for_want_of_a_worker_lets_the_next_begin() -> None:
    """At once: nothing else may happen for a long time."""
    pool = Scheduler(PoolRules(), QueueRules())

    def sends() -> list[Send]:
        return [order for order in pool.dispatch(0) if isinstance(order, Send)]

    for name, model in (("o", OTHER), ("a", MODEL), ("b", MODEL)):
        pool.join(name, model, 1)
    pool.arrive(Entry(OTHER, "", b"waits", 0), 0)
    (send,) = sends()
    pool.lost("o", (send.dispatch, 0), 0)
    for body in (b"is tried", b"runs"):
        pool.arrive(Entry(MODEL, "", body, 0), 0)
    first, _ = sends()
    pool.lost(first.worker, (first.dispatch, 0), 0)
    assert sends() == [], "it is to run where another still runs"
    pool.join("p", OTHER, 1)
    assert sends() == []
    pool.lost("b" if first.worker == "a" else "a", None, 0)
    (send,) = sends()
    assert (send.worker, send.entries[0].body) == ("p", b"waits")


def test_a_version_that_has_gone_is_not_made_again_by_a_trial_on_its_device() -> None:
    """The trial of another had kept its worker free."""
    pool = Scheduler(PoolRules(), QueueRules())
    for name, model in (("a", MODEL), ("b", MODEL), ("o", OTHER)):
        pool.join(name, model, 1, "gpu0", "gpu0")
    pool.arrive(Entry(MODEL, "", b"p", 0), 0)
    (send,) = pool.dispatch(0)
    assert isinstance(send, Send)
    pool.arrive(Entry(OTHER, "", b"x", 0), 0)
    (beside,) = pool.dispatch(0)
    assert isinstance(beside, Send)
    pool.lost(send.worker, (send.dispatch, 0), 0)
    assert pool.dispatch(0) == []  # the device is emptied for it
    pool.lost("o", None, 0)
    pool.forget(OTHER)
    (alone,) = pool.dispatch(0)
    assert isinstance(alone, Send)
    assert list(pool._queues) == [MODEL]


def _on_a_trial(busy: bool) -> tuple[Scheduler, Send]:
    """A suspect of MODEL that runs alone on gpu0, or waits there for OTHER's worker to end what it was sent."""
    pool = Scheduler(PoolRules(), QueueRules())
    for name, model in (("a", MODEL), ("b", MODEL), ("o", OTHER)):
        pool.join(name, model, 2, "gpu0", "gpu0")
    pool.costs.observe(OTHER, "", 1, 10_000_000)
    pool.arrive(Entry(MODEL, "", b"suspect", 0), 0)
    (send,) = pool.dispatch(0)
    assert isinstance(send, Send)
    if busy:
        pool.arrive(Entry(OTHER, "", b"x", 0), 0)
        assert len(pool.dispatch(0)) == 1
    pool.lost(send.worker, (send.dispatch, 0), 0)
    sends = [order for order in pool.dispatch(0) if isinstance(order, Send)]
    assert len(sends) == (not busy)
    return pool, sends[0] if sends else send


def test_a_worker_that_joins_beside_a_suspect_waits_for_it() -> None:
    """Where one fails with the other: it would be blamed for what the newcomer is sent."""
    pool, alone = _on_a_trial(busy=False)
    pool.join("new", OTHER, 1, "gpu0", "gpu0")
    pool.join("elsewhere", OTHER, 1, "gpu1", "gpu1")
    pool.arrive(Entry(OTHER, "", b"y", 0), 0)
    pool.arrive(Entry(OTHER, "", b"z", 0), 0)
    assert [order.worker for order in pool.dispatch(0) if isinstance(order, Send)] == ["elsewhere"]
    pool.finished(alone.worker, alone.dispatch)
    assert [order.worker for order in pool.dispatch(0) if isinstance(order, Send)] == ["o"]


def test_what_waits_for_a_suspect_s_turn_costs_the_same_however_long() -> None:
    """Nothing piles up of workers that are kept free for it."""
    pool, _ = _on_a_trial(busy=True)
    for now_ns in range(1, 500):
        pool.arrive(Entry(MODEL, "", b"waits", now_ns), now_ns)
        assert pool.dispatch(now_ns) == []
    places = [queue.placement for queue in pool._queues.values()]
    assert sum(len(place._soon) + sum(map(len, place._idle.values())) for place in places) < 20


def test_a_version_that_goes_leaves_its_room_to_others() -> None:
    """Though the loss of its worker, which made room, and its end come together."""
    pool = Scheduler(PoolRules(limits=Limits(running=1)), QueueRules())
    for name, model in (("a", MODEL), ("o", OTHER)):
        pool.join(name, model, 1, "gpu0")
    for model in (MODEL, OTHER):
        pool.arrive(Entry(model, "", b"x", 0), 0)
    (send,) = pool.dispatch(0)
    assert isinstance(send, Send)
    (goes, stays) = (MODEL, OTHER) if send.worker == "a" else (OTHER, MODEL)
    pool.lost(send.worker, None, 0)
    pool.forget(goes)
    (other,) = pool.dispatch(0)
    assert isinstance(other, Send)
    assert other.entries[0].model == stays


def test_suspects_that_are_over_are_no_part_of_what_waits() -> None:
    """What waits beside them is shared out among the workers."""
    pool = Scheduler(PoolRules(), QueueRules())
    pool.costs.observe(MODEL, "", 1, 10)
    pool.join("a", MODEL, 1)
    pool.arrive(Entry(MODEL, "", b"p", 0), 0)
    (send,) = pool.dispatch(0)
    assert isinstance(send, Send)
    pool.lost("a", (send.dispatch, 0), 0)
    pool.hold_suspects = True
    for _ in range(50):
        one = Entry(MODEL, "", b"p", 0)
        pool.arrive(one, 0)
        pool.cancel(one)
    for _ in range(40):
        pool.arrive(Entry(MODEL, "", b"x", 0), 0)
    pool.join("b", MODEL, 1)
    (send,) = pool.dispatch(0)
    assert isinstance(send, Send)
    assert len(send.entries) == 40


def test_who_comes_is_not_behind_all_that_a_slow_lane_holds_back() -> None:
    """Though a short request of whoever floods, the last of many, was run before the long ones."""
    pool = Scheduler(PoolRules(limits=Limits(long=1), long_us=100_000), QueueRules(fair=True))
    for size, cost_us in ((1, 1_000), (1000, 200_000)) * 2:
        pool.costs.observe(MODEL, "", size, cost_us)
    for name in "ab":
        pool.join(name, MODEL, 1, "gpu0")

    def arrives(client: str, size: int) -> None:
        pool.arrive(Entry(MODEL, "", bytes(size), 0, client=client), 0)

    def sent() -> list[Send]:
        return [order for order in pool.dispatch(0) if isinstance(order, Send)]

    for size in [1000] * 10 + [1]:
        arrives("floods", size)
    assert sorted(len(send.entries[0].body) for send in sent()) == [1, 1000]
    arrives("comes", 1000)
    served = []
    for _ in range(3):
        for name, worker in pool._workers.items():
            for dispatch in list(worker.batches):
                pool.finished(name, dispatch)
        served += [entry.client for send in sent() for entry in send.entries]
    assert "comes" in served[:2]


def test_the_times_to_look_again_do_not_pile_up() -> None:
    """While a batch that is not full waits for long, the ends of dispatches come and go before it."""
    batching = BatchingSettings(max_batch_size=4, batch_timeout_us=60_000_000)
    pool = Scheduler(PoolRules(), QueueRules(batching=batching))
    pool.costs.observe(MODEL, "", 0, 5_000, rows=4)
    pool.join("a", MODEL, 2)
    pool.arrive(Entry(MODEL, "", b"x", 0, rows=1, kind=("waits for others", b"", b"")), 0)
    for now_ns in range(0, 2000 * MS, 10 * MS):
        for _ in range(2):
            pool.arrive(Entry(MODEL, "", b"x", now_ns, rows=4, kind=("", b"", b"")), now_ns)
        sends = pool.dispatch(now_ns)
        soon_ns = pool.look_again_ns(now_ns)
        assert soon_ns is not None
        sends += pool.dispatch(soon_ns)
        for number, send in enumerate(sends, 1):
            assert isinstance(send, Send)
            pool.finished(send.worker, send.dispatch, now_ns=now_ns + 5 * MS * number)
            for entry in send.entries:
                pool.answered(entry, ran=True)
        pool.dispatch(now_ns + 9 * MS)
        assert pool.unfinished() == 1
    assert len(pool._dues) < 100


def test_a_decision_looks_at_no_device_that_nothing_can_be_sent_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, where a limit has models take turns."""
    pool = Scheduler(PoolRules(limits=Limits(running=1)), QueueRules())
    for number in range(50):
        pool.join(f"w{number}", MODEL, 1, f"gpu{number}")
    pool.join("other", OTHER, 1, "gpu0")
    for _ in range(60):
        pool.arrive(Entry(MODEL, "", b"x", 0), 0)
    sends = [send for send in pool.dispatch(0) if isinstance(send, Send)]
    assert len(sends) == 50
    looked = 0
    keep = Turns.keep

    def counted(turns: Turns, *waiting: Any) -> None:
        nonlocal looked
        looked += 1
        keep(turns, *waiting)

    monkeypatch.setattr(Turns, "keep", counted)
    pool.finished(sends[7].worker, sends[7].dispatch)
    (send,) = pool.dispatch(0)
    assert isinstance(send, Send)
    assert send.worker == sends[7].worker
    assert looked == 1


def test_a_batch_that_is_not_long_any_more_goes() -> None:
    """It waited for the slow lane until others came that are longer: beside them it is not long, and its worker is idle."""
    short, long = ModelVersion("batches", 1), ModelVersion("long", 1)
    pool = Scheduler(PoolRules(limits=Limits(long=1)), QueueRules())
    pool.govern(short, QueueRules(batching=BatchingSettings(max_batch_size=8)))
    for _ in range(2):
        pool.costs.observe(short, "", 0, 100_000, rows=8)
        pool.costs.observe(long, "", 1, 20_000)
        pool.costs.observe(long, "", 1000, 1_000_000)
    pool.join("a", short, 1, "gpu")
    pool.join("b", long, 1, "gpu")

    def asks(size: int) -> bool:
        return pool.arrive(Entry(long, "", bytes(size), 0), 0)

    def sent() -> list[Send]:
        return [order for order in pool.dispatch(0) if isinstance(order, Send)]

    asks(1)
    (send,) = sent()
    pool.finished(send.worker, send.dispatch)
    asks(1000)
    assert len(sent()) == 1
    asks(1000)
    for _ in range(8):
        pool.arrive(Entry(short, "", b"x", 0, rows=1, kind=("", b"", b"")), 0)
    assert not sent()
    assert any([asks(1000) for _ in range(3)])  # noqa: C419  all of them come
    assert [len(send.entries) for send in sent()] == [8]


@pytest.mark.parametrize("what", ["waits", "runs"])
def test_a_first_run_refuses_nobody_by_what_is_before_it(what: str) -> None:
    """Neither those that were expected to cost as much when they came, nor one of its like that runs."""
    pool = Scheduler(PoolRules(), QueueRules())
    pool.join("w", MODEL, 1)
    for signature in ("", "known", "known"):
        pool.costs.observe(MODEL, signature, 1, 600 if signature else 380_000)
    for _ in range(20):
        pool.arrive(Entry(MODEL, "", b"x", 0), 0)
    assert pool.dispatch(0)
    if what == "waits":
        pool.costs.observe(MODEL, "", 1, 600)
    else:
        for entry in pool._queue(MODEL).waiting():
            pool.cancel(entry)
    pool.arrive(Entry(MODEL, "known", b"x", 0, deadline_ns=300 * MS), 0)


def test_a_first_run_puts_nothing_into_the_slow_lane() -> None:
    """What is asked for in batches alone would never be seen by itself again, and be taken for long for good."""
    rules = PoolRules(limits=Limits(long=1), long_us=10_000)
    pool = Scheduler(rules, QueueRules(batching=BatchingSettings(max_batch_size=32)))
    for cost_us, rows in ((87_000, 2), (83_000, 32), (3_000, 32), (3_000, 32)):
        pool.costs.observe(MODEL, "", 0, cost_us, rows)
    for name in "abc":
        pool.join(name, MODEL, 1)
    for _ in range(48):
        pool.arrive(Entry(MODEL, "", b"x", 0, rows=2, kind=("", b"", b"")), 0)
    sends = [order for order in pool.dispatch(0) if isinstance(order, Send)]
    assert [sum(entry.rows for entry in send.entries) for send in sends] == [32, 32, 32]


def test_a_client_s_kinds_do_not_take_batching_from_others() -> None:
    """Whatever choices of outputs it makes up: beyond some its own requests run one by one."""
    rules = QueueRules(batching=BatchingSettings(max_batch_size=32, max_enqueued_batches=1000), fair=True)
    pool = Scheduler(PoolRules(), rules)
    for number in range(100):
        kind = ("", f"{number}".encode(), b"")
        pool.arrive(Entry(MODEL, "", b"x", 0, client="made up", rows=1, kind=kind), 0)
    for _ in range(32):
        pool.arrive(Entry(MODEL, "", b"x", 0, client="other", rows=1, kind=("", b"", b"")), 0)
    pool.join("w", MODEL, 1)
    dispatches = 0
    while orders := pool.dispatch(0):
        (send,) = [order for order in orders if isinstance(order, Send)]
        dispatches += send.entries[0].client == "other"
        batch = pool.finished(send.worker, send.dispatch)
        assert batch is not None
        for entry in batch.entries:
            pool.answered(entry, ran=True)
    assert dispatches == 1


def test_a_deadline_that_is_far_away_is_not_later_than_none() -> None:
    """By REST every request has one of half a minute: under edf they would wait behind all that say nothing for so long."""
    pool = Scheduler(PoolRules(), QueueRules(policy=edf))
    farther = Entry(MODEL, "", b"farther", 0, deadline_ns=60_000 * MS)
    far = Entry(MODEL, "", b"far", 0, deadline_ns=30_000 * MS)
    none = Entry(MODEL, "", b"none", 600 * MS)
    order = []
    for entry in (none, farther, far):
        pool.arrive(entry, 600 * MS)
    pool.join("w", MODEL, 1)
    while sends := [one for one in pool.dispatch(600 * MS) if isinstance(one, Send)]:
        order += sends[0].entries
        pool.finished("w", sends[0].dispatch)
    assert order == [far, farther, none]


def test_what_came_back_from_a_lost_worker_and_was_cancelled_is_not_charged() -> None:
    """It has not been run: its client is as far as it was."""
    pool = Scheduler(PoolRules(), QueueRules(fair=True))
    for _ in range(2):
        pool.costs.observe(MODEL, "", 1, 10_000)
    pool.join("w", MODEL, 1)
    first = Entry(MODEL, "", b"x", MS, client="a")
    pool.arrive(first, MS)
    (send,) = [order for order in pool.dispatch(MS) if isinstance(order, Send)]
    pool.lost(send.worker, None, MS)
    pool.cancel(first)
    for client in "ab":
        pool.arrive(Entry(MODEL, "", b"x", MS, client=client), MS)
    pool.join("w", MODEL, 1)
    (send,) = [order for order in pool.dispatch(MS) if isinstance(order, Send)]
    assert send.entries[0].client == "a"


@pytest.mark.parametrize(("limits", "cost_us"), [(Limits(running=1), 20_000), (Limits(long=1), 50_000)])
def test_nothing_is_sent_ahead_of_a_suspect(limits: Limits, cost_us: int) -> None:
    """Where a device is limited, it would never be its turn there."""
    scheduler = Scheduler(PoolRules(limits=limits, long_us=20_000), QueueRules())
    for _ in range(2):
        scheduler.costs.observe(MODEL, "", 1, cost_us)
    for name in "ab":
        scheduler.join(name, MODEL, 2, "cpu")
    now_ns = 10**9
    scheduler.arrive(Entry(MODEL, "", b"S", now_ns), now_ns)
    (send,) = scheduler.dispatch(now_ns)
    assert isinstance(send, Send)
    scheduler.cancel(send.entries[0])
    scheduler.lost(send.worker, (send.dispatch, 0), now_ns)
    scheduler.join("c", MODEL, 2, "cpu")
    for _ in range(20):
        scheduler.arrive(Entry(MODEL, "", b"x", now_ns), now_ns)
    (send,) = scheduler.dispatch(now_ns)
    assert isinstance(send, Send)
    suspect = Entry(MODEL, "", b"S", now_ns)
    scheduler.arrive(suspect, now_ns)
    now_ns += len(send.entries) * cost_us * 1000 - 500_000
    assert scheduler.dispatch(now_ns) == []
    scheduler.finished(send.worker, send.dispatch, now_ns=now_ns)
    (order,) = scheduler.dispatch(now_ns)
    assert isinstance(order, Send)
    assert order.entries == [suspect]


def rows_of(
    scheduler: Scheduler, rows: int, signature: str = "", client: str = "", now_ns: int = 10**9
) -> Entry:
    entry = Entry(
        MODEL, signature, client.encode(), now_ns, rows=rows, kind=(signature, b"", b""), client=client
    )
    scheduler.arrive(entry, now_ns)
    return entry


def learn_rows(scheduler: Scheduler, costs_us: dict[tuple[str, int], float], times: int = 2) -> None:
    for (signature, rows), cost_us in costs_us.items():
        for _ in range(times):
            scheduler.costs.observe(MODEL, signature, 0, cost_us, rows)


def next_served(scheduler: Scheduler, now_ns: int = 10**9) -> list[Entry]:
    """What the only worker is sent next, and runs at once."""
    (send,) = scheduler.dispatch(now_ns)
    assert isinstance(send, Send)
    scheduler.finished(send.worker, send.dispatch, now_ns=now_ns)
    for entry in send.entries:
        scheduler.answered(entry, ran=True)
    return send.entries


def test_who_changes_lanes_has_a_turn_there_by_what_it_owes_there() -> None:
    """Of a line that waits for the slow lane from now on, who has much waiting in that lane does not go before who has nothing."""
    batching = BatchingSettings(max_batch_size=4, max_enqueued_batches=1000)
    scheduler = Scheduler(
        PoolRules(limits=Limits(long=1), long_us=50_000), QueueRules(fair=True, batching=batching)
    )
    learn_rows(scheduler, {("", 1): 1_000, ("", 4): 4_000, ("heavy", 4): 100_000})
    for _ in range(20):
        rows_of(scheduler, 4, "heavy", "A")
    for client in "AAAABBBB":
        rows_of(scheduler, 1, "", client)
    learn_rows(scheduler, {("", 4): 80_000}, 60)
    scheduler.join("w", MODEL, 1, "gpu")
    light = [entries for entries in (next_served(scheduler) for _ in range(22)) if not entries[0].signature]
    assert ["".join(entry.client for entry in entries) for entries in light] == ["BBBB", "AAAA"]


def test_what_is_refused_does_not_teach_what_is_long() -> None:
    """A flood of long requests would make nothing long, and the lane that is for them would be gone."""
    scheduler = Scheduler(PoolRules(limits=Limits(long=1)), QueueRules(max_requests=2))
    for size, cost_us in ((1, 1_000), (1000, 1_000_000)):
        for _ in range(2):
            scheduler.costs.observe(MODEL, "", size, cost_us)
    for _ in range(2):
        scheduler.arrive(Entry(MODEL, "", b"x", 10**9), 10**9)
    for _ in range(500):
        with pytest.raises(PoolError, match="is full"):
            scheduler.arrive(Entry(MODEL, "", bytes(1000), 10**9), 10**9)
    scheduler.join("w", MODEL, 1, "gpu")
    assert len(next_served(scheduler)) == 2
    long = Entry(MODEL, "", bytes(1000), 10**9)
    scheduler.arrive(long, 10**9)
    assert long.long


def test_a_batch_that_is_taken_in_parts_now_is_looked_at() -> None:
    """It waited for the slow lane, and with more rows each worker's part is none for that."""
    scheduler = Scheduler(
        PoolRules(limits=Limits(long=1), long_us=13_000),
        QueueRules(batching=BatchingSettings(max_batch_size=32, max_enqueued_batches=1000)),
    )
    learn_rows(
        scheduler, {("", rows): 1000 * rows for rows in (1, 2, 4, 8, 16, 32)} | {("heavy", 8): 900_000}
    )
    for name in "ab":
        scheduler.join(name, MODEL, 1, "gpu")
    rows_of(scheduler, 8, "heavy")
    rows_of(scheduler, 1)
    _, light = [send for send in scheduler.dispatch(10**9) if isinstance(send, Send)]
    for _ in range(14):
        rows_of(scheduler, 1)
    scheduler.finished(light.worker, light.dispatch, now_ns=10**9)
    assert scheduler.dispatch(10**9) == []
    for _ in range(2):
        rows_of(scheduler, 1)
    (order,) = scheduler.dispatch(10**9)
    assert isinstance(order, Send)
    assert len(order.entries) == 12


def test_what_has_waited_already_is_not_refused_for_what_is_behind_it() -> None:
    """It comes from a version that went, and is next."""
    scheduler = Scheduler(PoolRules(), QueueRules())
    for _ in range(2):
        scheduler.costs.observe(MODEL, "", 1, 10_000)
    scheduler.join("w", MODEL, 1)
    for _ in range(10):
        scheduler.arrive(Entry(MODEL, "", b"x", 10**9), 10**9)
    scheduler.dispatch(10**9)
    with pytest.raises(PoolError, match="what waits before it"):
        scheduler.arrive(Entry(MODEL, "", b"x", 10**9, 10**9 + 50 * MS), 10**9)
    moved = Entry(MODEL, "", b"x", 10**9 - 500 * MS, 10**9 + 50 * MS)
    moved.let_in = True
    scheduler.arrive(moved, 10**9)


def test_what_has_expired_is_refused_though_somebody_asked_who_is_next() -> None:
    """An arrival with a deadline looks at who is before it: of those that nobody has refused yet none is lost."""
    scheduler = Scheduler(PoolRules(), QueueRules())
    for _ in range(2):
        scheduler.costs.observe(MODEL, "", 1, 10_000)
    scheduler.join("w", MODEL, 1)
    scheduler.arrive(Entry(MODEL, "", b"x", 10**9), 10**9)
    scheduler.dispatch(10**9)
    expired = Entry(MODEL, "", b"x", 10**9, 10**9 + 50 * MS)
    scheduler.arrive(expired, 10**9)
    later_ns = 10**9 + 100 * MS
    scheduler.arrive(Entry(MODEL, "", b"x", later_ns, later_ns + 1000 * MS), later_ns)
    assert expired in [refusal.entry for refusal in scheduler.forget(MODEL)]
    assert scheduler.expire(later_ns + 2000 * MS) == []


def test_a_line_that_was_long_once_has_its_turns_by_the_other_lane_again() -> None:
    """As soon as not even a full batch of it is long: it does not set the slow lane's clock."""
    batching = BatchingSettings(max_batch_size=4, max_enqueued_batches=1000)
    scheduler = Scheduler(
        PoolRules(limits=Limits(long=1), long_us=50_000), QueueRules(fair=True, batching=batching)
    )
    learn_rows(scheduler, {("", 4): 80_000})
    scheduler.join("w", MODEL, 1, "gpu")
    for _ in range(40):
        rows_of(scheduler, 2, client="A")
    assert len(next_served(scheduler)) == 2
    assert scheduler.queued_slow(MODEL) == 38
    learn_rows(scheduler, {("", 4): 20_000}, 60)
    assert len(next_served(scheduler)) == 2
    assert scheduler.queued_slow(MODEL) == 0


def test_who_makes_room_is_told_of_itself() -> None:
    """And not of the one that comes, which runs in parts or has so many rows."""
    batching = BatchingSettings(max_batch_size=1000, max_execution_batch_size=100, max_enqueued_batches=2)
    scheduler = Scheduler(PoolRules(), QueueRules(fair=True, batching=batching))
    for _ in range(200):
        rows_of(scheduler, 1, client="flood")
    rows_of(scheduler, 90, client="other")
    refused = [str(order.error) for order in scheduler.dispatch(10**9) if isinstance(order, Refuse)]
    assert len(refused) == 90
    left = "; the place of this one went to another client (scheduling.fair_by); try again later"
    assert set(refused) == {f"The batch scheduling queue to which this task was submitted is full{left}"}
    scheduler = Scheduler(PoolRules(), QueueRules(fair=True, max_requests=10, batching=batching))
    for _ in range(10):
        rows_of(scheduler, 1, client="flood")
    parts = [
        Entry(MODEL, "", b"y", 10**9, rows=60, kind=("", b"", b""), client="other", part=(at, at + 60))
        for at in (0, 60)
    ]
    scheduler.arrive_in_parts(parts, 10**9)
    refused = [str(order.error) for order in scheduler.dispatch(10**9) if isinstance(order, Refuse)]
    assert (
        refused == [f"The queue of half@1 is full: 10 requests wait and max_queued_requests is 10{left}"] * 2
    )


def beside_timed_batches() -> tuple[Scheduler, Send]:
    """A model that runs on a device for one, beside OTHER, whose batches of two wait for 20 ms."""
    timed = QueueRules(batching=BatchingSettings(max_batch_size=2, batch_timeout_us=20_000))
    pool = Scheduler(PoolRules(limits=Limits(running=1)), QueueRules())
    pool.govern(OTHER, timed)
    for name, model in (("a", MODEL), ("b", OTHER)):
        pool.join(name, model, 1, "device")
    pool.arrive(Entry(MODEL, "", b"x", 0), 0)
    (running,) = pool.dispatch(0)
    assert isinstance(running, Send)
    return pool, running


def test_what_is_left_of_a_batch_is_sent_when_its_time_is_over() -> None:
    """A full batch waits for its device, and is full no more before that is free: nothing else happens then."""
    pool, running = beside_timed_batches()
    one, two = (Entry(OTHER, "", b"x", 0, rows=1, kind=("", b"", b"")) for _ in range(2))
    pool.arrive(one, 0)
    pool.arrive(two, 0)
    assert pool.dispatch(0) == []
    pool.cancel(two)
    pool.finished("a", running.dispatch, now_ns=5 * MS)
    assert pool.dispatch(5 * MS) == []
    assert pool.look_again_ns(5 * MS) == 20 * MS
    (send,) = pool.dispatch(20 * MS)
    assert isinstance(send, Send)
    assert send.entries == [one]


def crowd(pool: Scheduler, count: int, each: int) -> list[Entry]:
    """Each of so many batches has a request of one of others, and what fits beside it are small ones of one client's."""
    for number in range(count):
        pool.arrive(Entry(MODEL, "", b"x", 1, rows=33, kind=("", b"", b""), client=f"c{number // each}"), 1)
    small = [Entry(MODEL, "", b"x", 1, rows=1, kind=("", b"", b""), client="a") for _ in range(31 * count)]
    for entry in small:
        pool.arrive(entry, 1)
    return small


@pytest.mark.parametrize("each", [1, 2])
def test_who_fills_a_batch_takes_the_place_of_one_that_does(each: int) -> None:
    """Small ones that fit beside either stay: their leaving would make no room. Nobody leaves where each client has one."""
    rules = QueueRules(
        max_requests=10**6, fair=True, batching=BatchingSettings(max_batch_size=64, max_enqueued_batches=10)
    )
    pool = Scheduler(PoolRules(), rules)
    small = crowd(pool, 10, each)
    late = Entry(MODEL, "", b"x", 1, rows=33, kind=("", b"", b""), client="d")
    if each == 1:
        with pytest.raises(PoolError, match="currently 10 batches enqueued"):
            pool.arrive(late, 1)
    else:
        pool.arrive(late, 1)
    refused = [order.entry for order in pool.dispatch(1) if isinstance(order, Refuse)]
    assert [entry.rows for entry in refused] == [33] * (each - 1)
    assert not any(entry.over for entry in small)


@pytest.mark.parametrize("rows", [1, 33])
def test_no_more_rows_or_batches_leave_than_come(rows: int) -> None:
    """Where more wait than may, since a worker was lost."""
    rules = QueueRules(fair=True, batching=BatchingSettings(max_batch_size=64, max_enqueued_batches=10))
    pool = Scheduler(PoolRules(), rules)
    for worker in range(20):
        pool.join(f"w{worker}", MODEL, 1)
    for _ in range(30):
        pool.arrive(Entry(MODEL, "", b"x", 1, rows=rows, kind=("", b"", b""), client="a"), 1)
        pool.dispatch(1)
    while pool.queued(MODEL) < 10 * (1 if rows > 32 else 64):
        pool.arrive(Entry(MODEL, "", b"x", 1, rows=rows, kind=("", b"", b""), client="a"), 1)
    for worker in range(20):
        pool.lost(f"w{worker}", None, 1)
    pool.arrive(Entry(MODEL, "", b"x", 1, rows=rows, kind=("", b"", b""), client="d"), 1)
    assert len([order for order in pool.dispatch(1) if isinstance(order, Refuse)]) == 1


def test_what_comes_back_into_the_other_lane_goes_by_its_clock() -> None:
    """Where clients share: sent while it was short, it comes back to a batch that is long by then."""
    rules = QueueRules(fair=True, batching=BatchingSettings(max_batch_size=4))
    pool = Scheduler(PoolRules(limits=Limits(long=1), long_us=50_000), rules)
    for _ in range(2):
        for rows in (1, 4):
            pool.costs.observe(MODEL, "", 0, 10_000, rows)
    pool.join("a", MODEL, 1)
    first = Entry(MODEL, "", b"x", 0, rows=1, kind=("", b"", b""), client="u")
    pool.arrive(first, 0)
    (sent,) = pool.dispatch(0)
    assert isinstance(sent, Send)
    for _ in range(60):
        pool.costs.observe(MODEL, "", 0, 100_000, 4)
        pool.costs.observe(MODEL, "", 0, 20_000, 1)
    others = [Entry(MODEL, "", b"y", 0, rows=1, kind=("", b"", b""), client="v") for _ in range(12)]
    for entry in others:
        pool.arrive(entry, 0)
    pool.join("b", MODEL, 1)
    pool.join("c", MODEL, 1)
    pool.dispatch(0)
    waiting = [entry for entry in others if entry.waiting]
    assert waiting
    assert all(entry.slow for entry in waiting)
    pool.lost("a", None, 0)
    assert first.waiting
    assert first.line is waiting[0].line
    assert first.slow


def test_idle_workers_have_all_of_a_batch_that_is_due() -> None:
    """Where one takes its part of it, the rest does not wait for a timeout of its own."""
    rules = QueueRules(batching=BatchingSettings(max_batch_size=64, batch_timeout_us=20_000))
    pool = Scheduler(PoolRules(), rules)
    for rows in (1, 8, 64):
        pool.costs.observe(MODEL, "", 0, 1000 * rows, rows)
    for name in "ab":
        pool.join(name, MODEL, 2)
    for now_ns in (0, 19 * MS):
        pool.arrive(Entry(MODEL, "", b"x", now_ns, rows=8, kind=("", b"", b"")), now_ns)
        assert pool.dispatch(now_ns) == []
    assert {send.worker for send in pool.dispatch(20 * MS) if isinstance(send, Send)} == {"a", "b"}


@pytest.mark.parametrize("waiting", [1, 60, 400])
def test_what_waits_for_the_slow_lane_makes_no_share_of_others_larger(waiting: int) -> None:
    """Short ones are spread over the idle workers, however many long ones may not be sent."""
    pool = Scheduler(PoolRules(limits=Limits(long=1), long_us=50_000), QueueRules())
    for _ in range(2):
        pool.costs.observe(MODEL, "short", 1, 1_000)
        pool.costs.observe(MODEL, "long", 1, 100_000)
    for name in "abcd":
        pool.join(name, MODEL, 1)
    for _ in range(waiting):
        pool.arrive(Entry(MODEL, "long", b"x", 0), 0)
    pool.dispatch(0)
    for _ in range(12):
        pool.arrive(Entry(MODEL, "short", b"x", MS), MS)
    assert [len(send.entries) for send in pool.dispatch(MS) if isinstance(send, Send)] == [3, 3, 3]


def test_what_comes_from_a_version_that_went_brings_its_batch_forward() -> None:
    """It has waited elsewhere: its batch's time is over sooner."""
    rules = QueueRules(batching=BatchingSettings(max_batch_size=64, batch_timeout_us=20_000))
    pool = Scheduler(PoolRules(), rules)
    pool.join("a", MODEL, 1)
    pool.arrive(Entry(MODEL, "", b"x", 10 * MS, rows=1, kind=("", b"", b"")), 10 * MS)
    pool.dispatch(10 * MS)
    assert pool.look_again_ns(10 * MS) == 30 * MS
    assert pool.arrive(Entry(MODEL, "", b"x", 5 * MS, rows=1, kind=("", b"", b"")), 11 * MS)
    pool.dispatch(11 * MS)
    assert pool.look_again_ns(11 * MS) == 25 * MS


def test_a_full_slow_lane_keeps_nobody_from_idle_workers() -> None:
    """Short ones that are sent at once are let in, one after the other, however many long ones wait; more than that are not."""
    pool = Scheduler(PoolRules(limits=Limits(long=1), long_us=50_000), QueueRules(max_requests=50))
    for _ in range(2):
        pool.costs.observe(MODEL, "short", 1, 1_000)
        pool.costs.observe(MODEL, "long", 1, 100_000)
    for name in "abcd":
        pool.join(name, MODEL, 1)
    for _ in range(51):
        pool.arrive(Entry(MODEL, "long", b"x", 0), 0)
        pool.dispatch(0)
    for _ in range(3):
        pool.arrive(Entry(MODEL, "short", b"x", MS), MS)
        assert len(pool.dispatch(MS)) == 1
    for signature in ("short", "long"):
        with pytest.raises(PoolError, match="50 requests wait"):
            pool.arrive(Entry(MODEL, signature, b"x", MS), MS)


def test_what_joins_the_slow_lane_is_bounded_as_before() -> None:
    """Each is short, their batch is long: idle workers take none of them."""
    rules = QueueRules(max_requests=10, batching=BatchingSettings(max_batch_size=8))
    pool = Scheduler(PoolRules(limits=Limits(long=1), long_us=50_000), rules)
    for _ in range(2):
        pool.costs.observe(MODEL, "long", 1, 100_000)
        pool.costs.observe(MODEL, "m", 0, 45_000, 1)
        pool.costs.observe(MODEL, "m", 0, 60_000, 8)
    for name in "abcd":
        pool.join(name, MODEL, 1)
    pool.arrive(Entry(MODEL, "long", b"x", 0), 0)
    pool.dispatch(0)
    for _ in range(10):
        pool.arrive(Entry(MODEL, "m", b"x", 0, rows=1, kind=("m", b"", b"")), 0)
    assert pool.dispatch(0) == []
    with pytest.raises(PoolError, match="10 requests wait"):
        pool.arrive(Entry(MODEL, "m", b"x", 0, rows=1, kind=("m", b"", b"")), 0)


def test_the_sooner_of_two_batches_is_sent_in_its_time() -> None:
    """One of another kind that is due later has been noted before the first was full no more."""
    pool, running = beside_timed_batches()
    two = [Entry(OTHER, "", b"x", 0, rows=1, kind=("", b"", b"")) for _ in range(2)]
    for entry in two:
        pool.arrive(entry, 0)
    pool.dispatch(0)
    pool.arrive(Entry(OTHER, "", b"x", 10 * MS, rows=1, kind=("", b"", b"other")), 10 * MS)
    pool.dispatch(10 * MS)
    pool.cancel(two[1])
    pool.finished("a", running.dispatch, now_ns=12 * MS)
    pool.dispatch(12 * MS)
    assert pool.look_again_ns(12 * MS) == 20 * MS


@pytest.mark.parametrize("batching", [None, BatchingSettings(max_batch_size=4)])
def test_who_is_next_after_those_that_are_late_have_left(batching: BatchingSettings | None) -> None:
    """The earliest deadline of all, and not of those that share a batch, or a model, with who has left."""
    rules = QueueRules(policy=edf, batching=batching)
    pool = Scheduler(PoolRules(limits=Limits(running=1)), rules)
    other = MODEL if batching else OTHER
    for _ in range(2):
        for model in (MODEL, OTHER):
            pool.costs.observe(model, "", 1, 20_000, rows=bool(batching))
    late, far, near = (
        Entry(model, "", b"x", 0, until_ms * MS, rows=bool(batching), kind=("", b"", kind))
        for model, kind, until_ms in ((MODEL, b"k", 30), (MODEL, b"k", 9000), (other, b"l", 60))
    )
    for entry in (late, far, near):
        pool.arrive(entry, 0)
    for model in (MODEL, OTHER):
        pool.join(model.name, model, 1, "gpu")
    left, sent = pool.dispatch(15 * MS)
    assert isinstance(left, Refuse)
    assert left.entry is late
    assert isinstance(sent, Send)
    assert sent.entries == [near]
