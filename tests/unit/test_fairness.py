"""Shares of clients and of models are by what was run, whether anybody knew what it would cost; and nobody waits for ever."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mpspool.core.ids import ModelVersion
from mpspool.core.settings import BatchingSettings
from mpspool.router.scheduling import fair_share
from mpspool.router.scheduling.entry import Entry
from mpspool.router.scheduling.line import FairLine
from mpspool.router.scheduling.load import Limits
from mpspool.router.scheduling.policy import Policy, Sjf, edf
from mpspool.router.scheduling.queues import QueueRules
from mpspool.router.scheduling.scheduler import PoolRules, Refuse, Scheduler, Send

A = ModelVersion("a", 1)
B = ModelVersion("b", 1)
C = ModelVersion("c", 1)
MS = 1_000_000
NO_LIMITS = Limits()
# Short requests share a dispatch up to so much.
SHARED_MS = 16


class Pool:
    """A scheduler, and workers on one device that take as long as a request's signature says, in ms: "7", or "7 bad".

    What is bad fails: it teaches nobody what it costs.
    """

    def __init__(self, limits: Limits = NO_LIMITS, long_us: float = 0.0, **rules: object) -> None:
        self.scheduler = Scheduler(PoolRules(limits=limits, long_us=long_us), QueueRules(**rules))  # type: ignore[arg-type]
        self.now_ns = 0
        self.asked: list[Entry] = []
        self.sent: list[Entry] = []
        self._free_ns: Counter[str] = Counter()
        self._events: list[tuple[int, int, Send | Entry | None]] = []
        self.given_up: set[Entry] = set()
        self._serial = itertools.count()

    def know(self, *signatures: str) -> None:
        for signature in signatures * 2:  # for sure
            for model in (A, B, C):
                self.scheduler.costs.observe(model, signature, 1, 1000 * ms(signature))

    def join(self, model: ModelVersion = A, workers: int = 1, credit: int = 1, device: str = "gpu") -> None:
        for number in range(workers):
            self.scheduler.join(f"{model.name}{number}.{device}", model, credit, device)

    def ask(
        self,
        signature: str,
        client: str = "",
        model: ModelVersion = A,
        count: int = 1,
        at_ms: float = 0,
        priority: int = 0,
        within_ms: float = 0,
    ) -> list[Entry]:
        """They arrive at that time, or now where that has passed."""
        at_ns = max(self.now_ns, int(at_ms * MS))
        deadline_ns = at_ns + int(within_ms * MS) if within_ms else 0
        entries = [
            Entry(model, signature, b"x", at_ns, deadline_ns, client=client, priority=priority)
            for _ in range(count)
        ]
        self.asked += entries
        for entry in entries:
            self._at(at_ns, entry)
        return entries

    def give_up(self, entries: Sequence[Entry], at_ms: float) -> None:
        """Their clients go, at a time when they have arrived."""
        self.given_up.update(entries)
        for entry in entries:
            self._at(int(at_ms * MS), entry)

    def step(self) -> bool:
        """All that happens at the next moment when anything does. Returns whether there was one."""
        if not self._events:
            return False
        self.now_ns = self._events[0][0]
        while self._events and self._events[0][0] <= self.now_ns:
            what = heapq.heappop(self._events)[2]
            if isinstance(what, Entry) and what in self.given_up and what.size:
                self.scheduler.cancel(what)
            elif isinstance(what, Entry):
                self.scheduler.arrive(what, self.now_ns)
            elif what is not None:
                self._finish(what)
        self._dispatch()
        return True

    def run(self, until_ms: float = 1e9) -> None:
        while self._events and self._events[0][0] <= until_ms * MS:
            self.step()

    def work_ms(self, entries: Sequence[Entry]) -> float:
        return sum(ms(entry.signature) for entry in entries)

    def _at(self, at_ns: int, what: Send | Entry | None) -> None:
        heapq.heappush(self._events, (at_ns, next(self._serial), what))

    def _finish(self, send: Send) -> None:
        batch = self.scheduler.finished(send.worker, send.dispatch, now_ns=self.now_ns)
        assert batch is not None
        for entry in batch.entries:
            if "bad" not in entry.signature:
                self.scheduler.costs.observe(entry.model, entry.signature, 1, 1000 * ms(entry.signature))
            if not entry.over:
                self.scheduler.answered(entry, ran=True)

    def _dispatch(self) -> None:
        self.scheduler.expire(self.now_ns)
        for send in self.scheduler.dispatch(self.now_ns):
            if isinstance(send, Refuse):
                assert send.entry.deadline_ns
                continue
            self.sent += send.entries
            began_ns = max(self.now_ns, self._free_ns[send.worker])
            self._free_ns[send.worker] = began_ns + int(self.work_ms(send.entries) * MS)
            self._at(self._free_ns[send.worker], send)
        if (due_ns := self.scheduler.look_again_ns(self.now_ns)) is not None:
            self._at(max(due_ns, self.now_ns + 1), None)


def ms(signature: str) -> int:
    return int(signature.split(maxsplit=1)[0])


@pytest.mark.parametrize("signature", ["10", "10 bad"])
def test_a_flood_of_unknown_cost_does_not_hold_up_another_client(signature: str) -> None:
    """Not after a start, when nobody knows any cost, nor where it is never known: who comes later is next."""
    pool = Pool(fair=True)
    pool.join()
    pool.ask(signature, "flood", count=50)
    (other,) = pool.ask("20", "other", at_ms=5)
    pool.run()
    assert pool.sent.index(other) <= 2


@pytest.mark.parametrize("signature", ["10", "10 bad"])
def test_a_backlog_of_unknown_cost_is_paid_for_to_its_last_request(signature: str) -> None:
    """Also what arrived when nothing was known, and is run when all is: who comes later has as much of the worker."""
    pool = Pool(fair=True)
    pool.join()
    pool.know("5")
    pool.ask(signature, "flood", count=100)
    pool.ask("5", "other", count=200, at_ms=100)
    pool.run(until_ms=100)
    before = len(pool.sent)
    pool.run(until_ms=700)
    work = pool.work_ms([entry for entry in pool.sent[before:] if entry.client == "flood"])
    assert work == pytest.approx(300, abs=20)


def test_what_is_charged_late_moves_nobody_elses_turns() -> None:
    """One client's requests of unknown cost and of known cost are together no more than another's."""
    pool = Pool(fair=True)
    pool.join()
    pool.know("4", "8")
    for _ in range(50):
        pool.ask("12 bad", "mixed")
        pool.ask("4", "mixed")
        pool.ask("8", "plain", count=2)
    pool.run(until_ms=800)
    work = {
        client: pool.work_ms([entry for entry in pool.sent if entry.client == client])
        for client in ("mixed", "plain")
    }
    assert work["mixed"] == pytest.approx(work["plain"], abs=30)


def test_a_batch_of_unknown_cost_is_paid_for_by_rows() -> None:
    """Where requests are joined, each client is charged for its part of the batch."""
    pool = Pool(fair=True, batching=BatchingSettings(max_batch_size=4, max_enqueued_batches=1000))
    pool.join()
    for client, rows, count in (("large", 3, 40), ("small", 1, 120)):
        for _ in range(count):
            pool.scheduler.arrive(Entry(A, "9 bad", b"x", 0, rows=rows, kind="k", client=client), 0)
    took_ms = dict.fromkeys(("large", "small"), 0.0)
    for now_ms in range(0, 360, 9):
        (send,) = pool.scheduler.dispatch(now_ms * MS)
        assert isinstance(send, Send)
        rows_sent = sum(entry.rows for entry in send.entries)
        for entry in send.entries:
            took_ms[entry.client] += 9 * entry.rows / rows_sent
        pool.scheduler.finished(send.worker, send.dispatch, now_ns=(now_ms + 9) * MS)
    assert took_ms["large"] == pytest.approx(took_ms["small"], abs=18)


def test_who_gives_up_is_not_paid_for_what_was_not_charged() -> None:
    """Requests of unknown cost that were cancelled leave a client where it was, whatever has been learned meanwhile."""
    pool = Pool(fair=True)
    gone = [Entry(A, "10", b"x", 0, client="unsure") for _ in range(50)]
    for entry in gone:
        pool.scheduler.arrive(entry, 0)
    pool.know("10")
    for entry in gone:
        pool.scheduler.cancel(entry)
    pool.join()
    for client in ("unsure", "other"):
        pool.ask("10", client, count=20)
    pool.run(until_ms=195)
    assert Counter(entry.client for entry in pool.sent) == {"unsure": 10, "other": 10}


@pytest.mark.parametrize("kinds", ["aa", "ab", "ba"])
@pytest.mark.parametrize("backwards", [False, True])
def test_what_is_taken_back_holds_up_nothing_that_stays(kinds: str, backwards: bool) -> None:
    """Also where that is in another line: a client that takes back a hundred has its turns with the rest at once."""
    pool = Scheduler(PoolRules(), QueueRules(fair=True, batching=BatchingSettings(max_enqueued_batches=1000)))
    for _ in range(2):
        pool.costs.observe(A, "", 0, 10_000, rows=1000)
    pool.join("w", A, 1)

    def ask(client: str, kind: str, count: int) -> list[Entry]:
        entries = [
            Entry(*(A, "", b"x", 0), rows=1000, kind=("", b"", kind.encode()), client=client)
            for _ in range(count)
        ]
        for entry in entries:
            pool.arrive(entry, 0)
        return entries

    ask("other", "c", 100)
    gone, stay = (ask("gives up", kind, count) for kind, count in zip(kinds, (100, 5), strict=True))
    for entry in reversed(gone) if backwards else gone:
        pool.cancel(entry)
    later = ask("gives up", "a", 5)
    for now_ms in range(0, 200, 10):
        (send,) = pool.dispatch(now_ms * MS)
        assert isinstance(send, Send)
        pool.finished(send.worker, send.dispatch, now_ns=(now_ms + 10) * MS)
    assert sum(entry.held or entry.sent_ns > 0 for entry in stay + later) >= 9, "of twenty dispatches"


@pytest.mark.parametrize("depth", [5, 20, 50])
def test_who_has_more_waiting_than_can_be_in_time_has_its_half(depth: int) -> None:
    """Of those that are too late each is asked anew: what is in time has their turns."""
    pool = Pool(fair=True)
    pool.know("10")
    pool.join()
    pool.ask("10", "patient", count=300)
    hurried: list[Entry] = []
    for at_ms in range(0, 2_000, 10):
        pool.run(at_ms)
        hurried = [entry for entry in hurried if not entry.over]
        missing = depth - sum(not entry.held for entry in hurried)
        hurried += pool.ask("10", "hurried", count=missing, at_ms=at_ms, within_ms=50)
    assert Counter(entry.client for entry in pool.sent)["hurried"] >= 95, "of two hundred"


@pytest.mark.parametrize("limits", [Limits(running=1), Limits(running=2)])
def test_a_model_whose_requests_only_fail_takes_turns(limits: Limits) -> None:
    """It has idle workers all the time, and nobody ever knows what it will cost: the other has as much of the device."""
    pool = Pool(limits)
    for model in (A, B):
        pool.join(model, workers=3)
    pool.know("10")
    pool.ask("5 bad", model=A, count=300)
    pool.ask("10", model=B, count=150, at_ms=50)
    pool.run(until_ms=850)
    work = pool.work_ms([entry for entry in pool.sent if entry.model == B])
    assert work == pytest.approx(400 * limits.running, abs=40)


def test_what_became_known_to_be_long_keeps_to_the_slow_lane() -> None:
    """Of long jobs that arrived when nobody knew their cost, one runs at a time once it is known; short ones pass them."""
    pool = Pool(Limits(long=1), long_us=50_000)
    pool.join(workers=3)
    pool.ask("100", count=9)
    pool.run(until_ms=99)
    assert len(pool.sent) == 3, "nobody knows"
    shorts = pool.ask("10", count=5)
    pool.run(until_ms=150)
    assert pool.work_ms(pool.sent[3:]) == 100 + 5 * 10
    assert set(shorts) < set(pool.sent)
    pool.run()
    assert pool.now_ns == 700 * MS, "one after another"


def test_what_became_known_counts_for_what_is_long() -> None:
    """Where nobody says from which cost on a job is long, it is found out from those that wait since a start, too."""
    pool = Pool(Limits(long=1))
    pool.join(workers=2)
    for signature, count in (("100", 2), ("5", 60), ("100", 6)):
        pool.ask(signature, count=count)
    pool.run()
    assert pool.now_ns >= 700 * MS, "six of them one after another"


SIGNATURES = ["1", "3", "10", "30", "2 bad", "30 bad"]


# Four workers of each model, and one long request at a time, which is ten times as long as others.
LANE = Limits(running=4, long=1)
LONG, SHORT = "200", "20"
LONG_US = 100_000.0
COMES_MS = 6_000


def lane(**rules: object) -> Pool:
    """A slow lane, and long before COMES_MS more of it wanted than there is."""
    pool = Pool(LANE, LONG_US, **rules)
    pool.know(LONG, SHORT)
    return pool


def shared(fair: bool) -> tuple[Pool, tuple[ModelVersion, ModelVersion, ModelVersion]]:
    """Of three parties, which are models, or clients of one: that pool, and the model of each."""
    pool = lane(fair=fair)
    models = (A, A, A) if fair else (A, B, C)
    for model in dict.fromkeys(models):
        pool.join(model, 4)
    return pool, models


def shorts_in_a_second(pool: Pool) -> Counter[str]:
    """Short requests that are sent in the next one, by client."""
    done = len(pool.sent)
    pool.run(pool.now_ns / MS + 1_000)
    return Counter(entry.client for entry in pool.sent[done:] if entry.signature == SHORT)


def first_after_ms(pool: Pool, entries: Sequence[Entry]) -> float:
    """How long after they came the first of them was sent."""
    assert any(entry.sent_ns for entry in entries), "none was sent"
    return (min(entry.sent_ns for entry in entries if entry.sent_ns) - entries[0].arrived_ns) / MS


@pytest.mark.parametrize("fair", [False, True], ids=["models", "clients"])
def test_who_comes_to_the_slow_lane_takes_turns_there(fair: bool) -> None:
    """It is not behind all that the lane has held back, though others have had three times as much meanwhile."""
    pool, (one, two, three) = shared(fair)
    pool.ask(LONG, "x", one, count=100)
    pool.ask(SHORT, "s", two, count=2000)
    late = pool.ask(LONG, "n", three, count=30, at_ms=COMES_MS)
    pool.run(COMES_MS + 4_000)
    assert first_after_ms(pool, late) <= 2 * ms(LONG)
    assert sum(entry.sent_ns > 0 for entry in late) >= 9, "every other one of twenty"


@pytest.mark.parametrize("fair", [False, True], ids=["models", "clients"])
def test_what_the_slow_lane_holds_back_earns_nothing_elsewhere(fair: bool) -> None:
    """Who has waited for it, and then asks for what is short, takes turns with those who have been served."""
    pool, (_, other, _) = shared(fair)
    pool.ask(LONG, "x", A, count=100)
    pool.ask(SHORT, "s", other, count=1500)
    pool.ask(SHORT, "x", A, count=500, at_ms=COMES_MS)
    pool.run(COMES_MS)
    served = shorts_in_a_second(pool)
    assert min(served["s"], served["x"]) >= 60, "of 150"


@pytest.mark.parametrize("fair", [False, True], ids=["models", "clients"])
def test_who_comes_for_what_is_short_takes_turns_with_those_who_had_it(fair: bool) -> None:
    """While the slow lane holds something back, no less than without."""
    pool, (one, two, three) = shared(fair)
    pool.ask(LONG, "x", one, count=100)
    pool.ask(SHORT, "s", two, count=2000)
    pool.ask(SHORT, "n", three, count=500, at_ms=COMES_MS)
    pool.run(COMES_MS)
    served = shorts_in_a_second(pool)
    assert min(served["s"], served["n"]) >= 60, "of 150"


@pytest.mark.parametrize("fair", [False, True], ids=["models", "clients"])
def test_who_asks_for_one_long_request_at_a_time_has_its_turn_in_the_lane(fair: bool) -> None:
    """Before the next of who has many waiting, however far the others have come meanwhile."""
    pool, (one, two, three) = shared(fair)
    pool.know("500")
    pool.ask("500", "x", one, count=30)
    pool.ask(SHORT, "s", two, count=2000)
    pool.run(COMES_MS)
    asked = [pool.ask(LONG, "n", three)[0]]
    waits_ms = []
    while len(waits_ms) < 5 and pool.step():
        if asked[-1].over:
            waits_ms.append((asked[-1].sent_ns - asked[-1].arrived_ns) / MS)
            asked += pool.ask(LONG, "n", three)
    assert max(waits_ms) <= 500


def test_clients_that_ask_once_do_not_make_a_flood_as_good_as_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the slow lane neither, though that is behind: what is forgotten of clients is what nobody could owe."""
    monkeypatch.setattr(fair_share, "_SLACK", 4)
    pool = lane(fair=True)
    pool.join(A, 4)
    pool.ask(SHORT, "s", count=2000)
    for at_ms in range(0, COMES_MS, ms(LONG) // 4):
        pool.ask(SHORT, f"once {at_ms}", at_ms=at_ms)
        pool.ask(LONG, "x", count=2, at_ms=at_ms)
    late = pool.ask(LONG, "n", count=40, at_ms=COMES_MS / 2)
    pool.run(COMES_MS)
    assert sum(entry.sent_ns > 0 for entry in late) >= 6, "half of fifteen"


def test_what_is_short_is_not_behind_its_model_s_long_one() -> None:
    """Where the lane has room, and it is not that one's turn yet."""
    pool = Pool(Limits(running=2, long=1), LONG_US)
    pool.know("2000", SHORT)
    pool.join(A, 2)
    others = [ModelVersion(f"other {number}", 1) for number in range(5)]
    for other in others:
        pool.scheduler.costs.observe(other, SHORT, 1, 1000 * ms(SHORT))
        pool.join(other, 2)
        pool.ask(SHORT, model=other, count=400)
    pool.ask("2000", count=3)
    pool.run(COMES_MS / 2)
    for at_ms in range(COMES_MS // 2, COMES_MS, 200):
        (short,) = pool.ask(SHORT, at_ms=at_ms)
        pool.run(at_ms + 199)
        assert short.sent_ns, "before six others had two turns each"


def test_the_slow_lane_does_not_take_the_others_clock_along() -> None:
    """A model whose long requests go before all others for their priority keeps nobody out who comes."""
    pool = Pool(Limits(running=2, long=1), LONG_US)
    pool.know(LONG, SHORT)
    for model in (A, B, C):
        pool.join(model, 2)
    pool.ask(LONG, model=A, count=COMES_MS // ms(LONG), priority=999)
    pool.ask(SHORT, model=B, count=1000)
    late = pool.ask(SHORT, model=C, count=20, at_ms=COMES_MS / 2)
    pool.run(COMES_MS)
    assert first_after_ms(pool, late) <= 3 * ms(SHORT)


def test_batches_that_the_slow_lane_holds_back_are_no_queue_to_be_behind() -> None:
    """As single requests that are long: their kind is slow."""
    batching = BatchingSettings(max_batch_size=10, batch_timeout_us=0, max_enqueued_batches=10_000)
    pool = Scheduler(PoolRules(limits=LANE, long_us=LONG_US), QueueRules(fair=True, batching=batching))
    for rows in (1, 10):
        pool.costs.observe(A, "long", 1, 20_000 * rows, rows)
        pool.costs.observe(A, "short", 1, 2_000 * rows, rows)
    for number in range(4):
        pool.join(f"w{number}", A, 1, "gpu")
    events: list[tuple[int, int, Send]] = []
    serial = itertools.count()
    late: list[Entry] = []
    now_ns = 0

    def ask(kind: str, client: str, count: int) -> list[Entry]:
        found = [
            Entry(A, kind, b"x", now_ns, rows=1, kind=(kind, b"", b""), client=client) for _ in range(count)
        ]
        for entry in found:
            pool.arrive(entry, now_ns)
        return found

    ask("long", "x", 1000)
    ask("short", "s", 9000)
    while now_ns < (COMES_MS + 2_000) * MS:
        if now_ns >= COMES_MS * MS and not late:
            late = ask("long", "n", 50)
        for send in pool.dispatch(now_ns):
            assert isinstance(send, Send)
            cost_us = pool.costs.predict(A, send.entries[0].signature, 0, len(send.entries))
            assert cost_us is not None
            heapq.heappush(events, (now_ns + int(cost_us * 1000), next(serial), send))
        now_ns, _, send = heapq.heappop(events)
        batch = pool.finished(send.worker, send.dispatch, now_ns=now_ns)
        assert batch is not None
        for entry in batch.entries:
            pool.answered(entry, ran=True)
    assert sum(entry.sent_ns > 0 for entry in late) >= 40, "half of ten batches"


def test_who_comes_to_a_device_is_not_behind_what_another_has_run() -> None:
    """Each has a clock of its own."""
    pool = Pool(Limits(running=1))
    pool.know(SHORT)
    pool.join(A, 1, device="gpu0")
    for model in (B, C):
        pool.join(model, 1, device="gpu1")
    other = ModelVersion("d", 1)
    pool.scheduler.costs.observe(other, SHORT, 1, 1000 * ms(SHORT))
    pool.join(other, 1, device="gpu1")
    for model in (A, B, C):
        pool.ask(SHORT, model=model, count=800)
    late = pool.ask(SHORT, model=other, count=100, at_ms=COMES_MS)
    pool.run(COMES_MS + 1_000)
    assert first_after_ms(pool, late) <= 3 * ms(SHORT)
    assert sum(entry.sent_ns > 0 for entry in late) >= 15, "a third of fifty"


def test_who_comes_is_not_behind_what_went_before_others_by_its_priority() -> None:
    """They have waited for it, and the one that comes has not had it."""
    pool = Pool(Limits(running=1))
    pool.know(SHORT)
    for model in (A, B, C):
        pool.join(model)
    pool.ask(SHORT, model=A, count=COMES_MS // ms(SHORT), priority=999)
    pool.ask(SHORT, model=B, count=500)
    late = pool.ask(SHORT, model=C, count=100, at_ms=COMES_MS)
    pool.run(COMES_MS + 1_000)
    assert first_after_ms(pool, late) <= 2 * ms(SHORT)
    assert sum(entry.sent_ns > 0 for entry in late) >= 20, "half of fifty"


def test_a_model_whose_workers_come_back_takes_turns() -> None:
    """It had one of four for a while, and what it could not have been sent is nobody's debt."""
    pool = Pool(Limits(running=4))
    pool.know(SHORT)
    pool.join(A, 4)
    pool.join(B, 1)
    pool.ask(SHORT, model=A, count=2000)
    pool.ask(SHORT, model=B, count=1000)
    pool.run(COMES_MS)
    for number in range(1, 4):
        pool.scheduler.join(f"b{number}.gpu", B, 1, "gpu")
    done = len(pool.sent)
    pool.run(COMES_MS + 1_000)
    served = Counter(entry.model for entry in pool.sent[done:])
    assert min(served[A], served[B]) >= 80, "of two hundred"


def test_clients_share_under_a_policy_whose_numbers_are_no_times() -> None:
    """It says which of its requests a client's turn is for, and not when that is."""
    pool = Pool(fair=True, policy=lambda waiting: float(waiting.size))
    pool.join()
    pool.know(SHORT)
    for at_ms in range(0, 2_000, ms(SHORT)):
        for client in range(4):
            pool.ask(SHORT, str(client), at_ms=at_ms)
    pool.run(2_000)
    served = Counter(entry.client for entry in pool.sent)
    assert max(served.values()) - min(served[str(client)] for client in range(4)) <= 2


@pytest.mark.parametrize("limits", [Limits(running=4, long=4), Limits(running=4), Limits(running=1, long=1)])
@pytest.mark.parametrize("fair", [False, True], ids=["models", "clients"])
def test_a_slow_lane_that_is_held_back_no_more_does_not_make_up_for_it(fair: bool, limits: Limits) -> None:
    """By other limits: who asks for what is short goes on having turns."""
    pool, (one, two, _) = shared(fair)
    pool.ask(LONG, "x", one, count=200)
    pool.ask(SHORT, "s", two, count=3000)
    pool.run(COMES_MS)
    pool.scheduler.govern_all(PoolRules(limits=limits, long_us=LONG_US))
    pool.run(COMES_MS + ms(LONG))
    shares = [shorts_in_a_second(pool).total() for _ in range(3)]
    assert min(shares) >= 15 * limits.running, "of 50 a worker, half or so"


def test_a_slow_lane_does_not_make_up_for_workers_that_were_lost() -> None:
    """Where one of four is left, long requests and short ones share it."""
    pool = lane(fair=True)
    pool.join(A, 4)
    pool.ask(LONG, "x", count=200)
    pool.ask(SHORT, "s", count=3000)
    pool.run(COMES_MS)
    for number in range(1, 4):
        pool.scheduler.leave(f"a{number}.gpu")
    pool.run(COMES_MS + ms(LONG))
    assert min(shorts_in_a_second(pool).total() for _ in range(3)) >= 15, "of fifty"


def test_what_turns_out_to_be_long_has_its_place_in_the_slow_lane() -> None:
    """By its clock, and not by the others', which is far ahead."""
    pool = lane(fair=True)
    pool.join(A, 4)
    pool.ask(LONG, "x", count=200)
    pool.ask(SHORT, "s", count=3000)
    late = pool.ask("210", "n", count=8, at_ms=COMES_MS)  # nobody knows yet what that costs
    pool.run(COMES_MS + 4_000)
    assert all(entry.sent_ns for entry in late)


def test_the_others_go_along_while_the_slow_lane_is_served() -> None:
    """A model that comes with short requests does not find a clock that has stood still, and long ones have their turns."""
    pool = Pool(Limits(running=2, long=1), LONG_US)
    pool.know(LONG, SHORT)
    for model in (A, B, C):
        pool.join(model, 2)
    pool.ask(LONG, model=A, count=200)
    pool.ask(LONG, model=C, count=15)
    for at_ms in range(0, 2 * COMES_MS, 500):
        pool.ask(SHORT, model=A, at_ms=at_ms)
    pool.ask(SHORT, model=B, count=2000, at_ms=COMES_MS)
    pool.run(COMES_MS)
    done = len(pool.sent)
    pool.run(COMES_MS + 2_000)
    assert sum(entry.signature == LONG for entry in pool.sent[done:]) >= 8, "of ten"


def test_who_comes_is_not_before_all_for_the_sake_of_one_less_urgent() -> None:
    """It begins where those are that are as urgent."""
    pool = Pool(Limits(running=1))
    pool.know(SHORT)
    for model in (A, B, C):
        pool.join(model)
    pool.ask(SHORT, model=A, count=600)
    pool.ask(SHORT, model=B, count=100, priority=-100)
    pool.ask(SHORT, model=C, count=600, at_ms=COMES_MS)
    pool.run(COMES_MS)
    done = len(pool.sent)
    pool.run(COMES_MS + 2_000)
    served = Counter(entry.model for entry in pool.sent[done:])
    assert min(served[A], served[C]) >= 40, "of a hundred"


def test_rows_are_charged_for_as_their_batches_cost() -> None:
    """A client of single rows, which are cheap together, has as much of the workers as one of whole batches."""
    batching = BatchingSettings(max_batch_size=32, batch_timeout_us=0, max_enqueued_batches=10_000)
    pool = Scheduler(PoolRules(), QueueRules(fair=True, batching=batching))
    for rows in (1, 32):
        pool.costs.observe(A, "s", 1, 5_000 + 100 * rows, rows)
    pool.join("w", A, 1, "gpu")
    for client, rows, count in (("ones", 1, 3200), ("whole", 32, 100)):
        for _ in range(count):
            # Of two kinds, so that they share no batch.
            entry = Entry(A, "s", b"x", 0, rows=rows, kind=("s", b"", client.encode()), client=client)
            pool.arrive(entry, 0)
    served: Counter[str] = Counter()
    for number in range(60):
        (send,) = pool.dispatch(number)
        assert isinstance(send, Send)
        served[send.entries[0].client] += 1
        pool.finished(send.worker, send.dispatch, now_ns=number)
    assert min(served.values()) >= 25, "of sixty batches"


@pytest.mark.parametrize("workers", [1, 2])
def test_what_its_policy_puts_off_is_not_what_the_slow_lane_was_held_back_by(workers: int) -> None:
    """Or it would be later by that each time: long requests go on having turns under `sjf`."""
    pool = Pool(Limits(long=1), LONG_US, fair=True, policy=Sjf(3.0))
    pool.know(LONG, SHORT)
    pool.join(workers=workers)
    pool.ask(LONG, "x", count=200)
    pool.ask(SHORT, "s", count=2000)
    pool.run(2 * COMES_MS)
    done = len(pool.sent)
    pool.run(2 * COMES_MS + 2_000)
    assert sum(entry.signature == LONG for entry in pool.sent[done:]) >= 4, "of five for each worker"


def test_what_waits_for_the_slow_lane_refuses_nobody_else() -> None:
    """A short request with little time is not taken to be behind it."""
    pool = Pool(Limits(long=1), LONG_US)
    pool.know(LONG, SHORT)
    pool.join(workers=4)
    pool.ask(LONG, count=50)
    pool.run(0)
    entry = Entry(A, SHORT, b"x", 0, deadline_ns=1000 * MS)
    pool.scheduler.arrive(entry, 0)
    assert [send.entries for send in pool.scheduler.dispatch(0) if isinstance(send, Send)] == [[entry]]
    assert (pool.scheduler.queued(A), pool.scheduler.queued_slow(A)) == (49, 49)


class Sharing:
    """One worker, and clients whose requests share its dispatches."""

    def __init__(self, settings: BatchingSettings | None) -> None:
        self.batching = settings is not None
        self.scheduler = Scheduler(PoolRules(), QueueRules(fair=True, batching=settings))
        for _ in range(2):
            self.scheduler.costs.observe(A, "", 1, 100)
            self.scheduler.costs.observe(A, "", 0, 1000, rows=8)
        self.scheduler.join("w", A, 1)

    def ask(self, client: str, count: int = 1, kind: bytes = b"k") -> None:
        for _ in range(count):
            entry = Entry(*(A, "", b"x", MS), rows=int(self.batching), kind=("", b"", kind), client=client)
            self.scheduler.arrive(entry, MS)

    def run(self) -> Counter[str]:
        """One dispatch: how many of whom."""
        (send,) = self.scheduler.dispatch(MS)
        assert isinstance(send, Send)
        self.scheduler.finished(send.worker, send.dispatch, now_ns=MS)
        for entry in send.entries:
            self.scheduler.answered(entry, ran=True)
        return Counter(entry.client for entry in send.entries)


SHARED = BatchingSettings(max_batch_size=8, max_enqueued_batches=1000)


@pytest.mark.parametrize("settings", [None, SHARED], ids=["one by one", "batches"])
def test_who_had_more_while_nobody_waited_has_its_part(settings: BatchingSettings | None) -> None:
    """Two had all that they asked for, in dispatches that they shared; beside a flood of a third the larger is served at once."""
    pool = Sharing(settings)
    for _ in range(100):
        pool.ask("small")
        pool.ask("large", 7)
        assert pool.run() == {"small": 1, "large": 7}
    pool.ask("flood", 100)
    pool.ask("large", 8)
    assert pool.run()["large"] >= 3


def test_who_fills_the_batches_of_another_has_its_turns_by_that() -> None:
    """A small client's requests begin batches that a large one fills: between them a third, of another kind, has its half."""
    pool = Sharing(SHARED)
    pool.ask("flood", 1000, b"other")
    pool.ask("small", 2)
    pool.ask("large", 7)
    sent: Counter[str] = Counter()
    for _ in range(100):
        ran = pool.run()
        sent += ran
        pool.ask("small", ran["small"])
        pool.ask("large", ran["large"])
    assert sent["flood"] >= 300


@pytest.mark.parametrize("pause_ms", [0, 50, 100, 300])
def test_who_asks_now_and_then_is_not_behind_what_ran_meanwhile(pause_ms: int) -> None:
    """One model asks for 100 ms at a time and pauses; what another was sent meanwhile counts as the other's turns."""
    pool = Pool(Limits(running=1))
    pool.know("10", "100")
    for model in (A, B):
        pool.join(model, 2)
    pool.ask("10", model=A, count=3000)
    waits: list[float] = []
    for _ in range(20):
        (entry,) = pool.ask("100", model=B, at_ms=pool.now_ns / MS + pause_ms)
        while not entry.sent_ns:
            pool.step()
        waits.append((entry.sent_ns - entry.arrived_ns) / MS)
        pool.run(entry.sent_ns / MS + 100)
    owed_ms = max(0, 100 - pause_ms)  # of the turns that it has had more
    assert all(wait <= owed_ms + 20 for wait in waits[1:])


@pytest.mark.parametrize(
    ("policy", "after", "depth", "share"),
    [(Sjf(3.0), "100", 2, 0.48), (edf, "10", 5, 0.4)],
    ids=["sjf", "edf"],
)
def test_who_waits_already_does_not_lose_its_place_to_who_is_before_it_by_its_policy(
    policy: Policy, after: str, depth: int, share: float
) -> None:
    """In the long run a client that keeps a few waiting has its half, beside one that floods with what goes first."""
    pool = Pool(fair=True, policy=policy, refuse_late=False)
    pool.know("10", "100")
    pool.join(A)
    asked: dict[str, list[Entry]] = {"first": [], "after": []}
    wants = {"first": ("10", 50, 1), "after": (after, depth, 10)}
    while pool.now_ns < 60_000 * MS:
        for client, (signature, waiting, deadline_s) in wants.items():
            missing = waiting - sum(not entry.sent_ns for entry in asked[client][-waiting:])
            new = pool.ask(signature, client=client, count=missing)
            for entry in new if policy is edf else ():
                entry.deadline_ns = entry.arrived_ns + 1000 * deadline_s * MS
            asked[client] += new
        pool.step()
    took = {
        client: pool.work_ms([one for one in entries if one.sent_ns]) for client, entries in asked.items()
    }
    assert took["after"] >= share * sum(took.values())


@pytest.mark.parametrize("urgent", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("both", [False, True])
def test_clients_that_mix_deadlines_share_by_what_their_requests_cost(urgent: float, both: bool) -> None:
    """One asks for 2 ms at a time, the other for 20; of some, or of the one's alone, the answer is wanted in a second."""
    pool = Pool(fair=True, policy=edf, refuse_late=False)
    pool.know("2", "20")
    pool.join(A)
    chance = random.Random(7)
    asked: dict[str, list[Entry]] = {"2": [], "20": []}
    while pool.now_ns < 30_000 * MS:
        for signature, entries in asked.items():
            missing = 40 - sum(not entry.sent_ns for entry in entries[-200:])
            new = pool.ask(signature, client=signature, count=missing)
            for entry in new if both or signature == "2" else ():
                if chance.random() < urgent:
                    entry.deadline_ns = entry.arrived_ns + 1_000 * MS
            entries.extend(new)
        pool.step()
    took = [pool.work_ms([one for one in entries if one.sent_ns]) for entries in asked.values()]
    assert took[0] == pytest.approx(sum(took) / 2, rel=0.1)


@pytest.mark.parametrize("passing", [0, 700], ids=["few clients", "many clients"])
@pytest.mark.parametrize(
    ("policy", "waits", "late_s"), [(Sjf(3.0), "4000", 0), (edf, "10", 3600)], ids=["sjf", "edf"]
)
def test_who_has_something_waiting_has_no_credit_for_what_is_more_urgent(
    policy: Policy, waits: str, late_s: int, passing: int
) -> None:
    """Neither for as long as it has waited, nor since the beginning where its account was forgotten among many."""
    pool = Pool(fair=True, policy=policy, refuse_late=False)
    pool.know("10", waits)
    pool.join(A)

    def ask(client: str, signature: str, count: int, deadline_s: int) -> list[Entry]:
        entries = pool.ask(signature, client=client, count=count)
        for entry in entries if policy is edf else ():
            entry.deadline_ns = entry.arrived_ns + 1000 * deadline_s * MS
        return entries

    always = ask("always", "10", 6000, 300)
    pool.step()
    ask("hoards", waits, 1, late_s)
    for number in range(passing):
        ask(f"passes {number}", "10", 1, 300)
    pool.run(9_000)
    ask("urgent", "10", 1, 1)
    pool.step()
    ask("hoards", "10", 3000, 300)
    done, began_ns = len(pool.sent), pool.now_ns
    pool.run(began_ns / MS + 2_000)
    sent = pool.sent[done:]
    assert sum(entry in always for entry in sent[:100]) >= 20, "who asks all the time goes on"
    assert sum(entry.client == "hoards" for entry in sent) <= 0.6 * len(sent)


@pytest.mark.parametrize("running", [0, 2])
def test_a_slow_lane_that_is_given_up_holds_nobody_back(running: int) -> None:
    """What is long by then waits on as the rest does, and everything is sent."""
    pool = Pool(Limits(running=running, long=1), LONG_US)
    pool.know(LONG, SHORT)
    for model in (A, B):
        pool.join(model, 2)
    pool.ask(LONG, count=6)
    pool.run(0)
    pool.scheduler.govern_all(PoolRules(limits=Limits(running=running)))
    pool.ask(SHORT, count=3)
    pool.ask(SHORT, model=B, count=3)
    pool.run()
    assert len(pool.sent) == 12


@given(
    wants=st.lists(
        st.lists(st.sampled_from(SIGNATURES), min_size=1, max_size=3),
        min_size=2,
        max_size=4,
    ),
    known=st.booleans(),
    workers=st.integers(1, 3),
    credit=st.integers(1, 2),
    late_ms=st.integers(0, 150),
)
def test_no_client_falls_behind_another(
    wants: list[list[str]], known: bool, workers: int, credit: int, late_ms: int
) -> None:
    """While all have requests that wait, what was run of one is never much more than of another, known or unknown.

    Much more is twice what the workers may hold, and one more. The last of the clients comes later.
    """
    pool = Pool(fair=True)
    pool.join(workers=workers, credit=credit)
    pool.know(*(signature for signature in SIGNATURES if known and "bad" not in signature))
    for client, signatures in enumerate(wants):
        want(pool, signatures, str(client), A, late_ms if client == len(wants) - 1 else 0)
    most_ms = max(SHARED_MS, *(ms(signature) for each in wants for signature in each))
    check_shares(pool, lambda entry: entry.client, late_ms, 2 * (credit * workers + 1) * most_ms)


@given(
    wants=st.lists(
        st.tuples(
            st.lists(st.sampled_from(["1", "3", "10", "30"]), min_size=1, max_size=3),
            st.lists(st.sampled_from(["stays", "goes", "hurries"]), max_size=4),
            st.integers(-1, 1),
        ),
        min_size=2,
        max_size=4,
    ),
    workers=st.integers(1, 2),
    gone_ms=st.integers(0, 100),
)
def test_who_gives_up_does_not_fall_behind_nor_come_before_another(
    wants: list[tuple[list[str], list[str], int]], workers: int, gone_ms: int
) -> None:
    """Whatever its clients take back, whatever is late, and whatever it says is urgent: what waits on has its share, and no more."""
    pool = Pool(fair=True)
    pool.join(workers=workers)
    pool.know("1", "3", "10", "30")
    for client, (signatures, ways, priority) in enumerate(wants):
        stays_ms = 200
        each = zip(itertools.cycle(signatures), itertools.cycle([*ways, "stays"]), strict=True)
        for number, (signature, way) in enumerate(each):
            within_ms = 40 if way == "hurries" else 0
            asked = pool.ask(signature, str(client), priority=priority * (number % 2), within_ms=within_ms)
            if way == "goes":
                pool.give_up(asked, gone_ms)
            stays_ms -= ms(signature) if way == "stays" else 0
            if stays_ms <= 0 or number > 150:
                break
    most_ms = max(SHARED_MS, *(ms(signature) for signatures, _, _ in wants for signature in signatures))
    check_shares(pool, lambda entry: entry.client, gone_ms, 2 * (workers + 1) * most_ms)


@given(
    wants=st.lists(st.sampled_from(["20", "30", "20 bad", "40 bad"]), min_size=2, max_size=2),
    known=st.booleans(),
    running=st.integers(1, 2),
    late_ms=st.integers(0, 150),
)
def test_no_model_falls_behind_another(wants: list[str], known: bool, running: int, late_ms: int) -> None:
    """As clients, where models share what a device may run at once."""
    pool = Pool(Limits(running=running))
    pool.know(*(signature for signature in wants if known and "bad" not in signature))
    for model, signature, at_ms in zip((A, B), wants, (0, late_ms), strict=True):
        pool.join(model, workers=running)
        want(pool, [signature], "", model, at_ms)
    check_shares(pool, lambda entry: entry.model.name, late_ms, 2 * (running + 1) * max(map(ms, wants)))


def want(pool: Pool, signatures: list[str], client: str, model: ModelVersion, at_ms: float) -> None:
    """Of all of these in turn, as many as take a worker half a second."""
    left_ms = 500
    for signature in itertools.cycle(signatures):
        pool.ask(signature, client, model, at_ms=at_ms)
        left_ms -= ms(signature)
        if left_ms <= 0:
            return


def check_shares(pool: Pool, party: Callable[[Entry], str], since_ms: int, bound_ms: float) -> None:
    """At every moment from then on until the first of them has all that it asked for, and stays for."""
    stay = {entry for entry in pool.asked if not entry.deadline_ns} - pool.given_up
    left = Counter(party(entry) for entry in pool.asked if entry in stay)
    pool.run(until_ms=since_ms - 0.001)
    left.subtract(party(entry) for entry in pool.sent if entry in stay)
    done = len(pool.sent)
    work_ms = dict.fromkeys(left, 0)
    while all(left.values()) and pool.step():
        for entry in pool.sent[done:]:
            left[party(entry)] -= entry in stay
            work_ms[party(entry)] += ms(entry.signature)
        done = len(pool.sent)
        if all(left.values()):
            assert max(work_ms.values()) - min(work_ms.values()) <= bound_ms


@given(
    arrivals=st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from(["1", "5", "20", "100", "8 bad"])), max_size=60
    ),
    known=st.sets(st.sampled_from(["1", "5", "20", "100"])),
    workers=st.integers(1, 2),
    aging=st.sampled_from([0.0, 1.0, 3.0]),
)
def test_sjf_lets_nobody_wait_for_ever(
    arrivals: list[tuple[int, str]], known: set[str], workers: int, aging: float
) -> None:
    """Whoever waits is passed only by what arrives within `aging` times its cost: so many and no more, whatever else comes."""
    pool = Pool(policy=Sjf(aging))
    pool.join(workers=workers, credit=2)
    pool.know(*known)
    at_ms = 0
    entries = []
    for gap_ms, signature in arrivals:
        at_ms += gap_ms
        entries += pool.ask(signature, at_ms=at_ms)
    pool.run()
    assert len(pool.sent) == len(entries), "all were served"
    place = {entry: number for number, entry in enumerate(pool.sent)}
    for one, later in itertools.combinations(entries, 2):
        if place[later] < place[one]:
            assert later.arrived_ns - one.arrived_ns <= aging * ms(one.signature) * MS


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.sampled_from("uvw"), st.integers(0, 9), st.integers(0, 9)),
            st.tuples(st.just("delay"), st.sampled_from("uvw"), st.integers(-9, 9), st.just(0)),
            st.tuples(
                *(st.sampled_from(["serve", "cancel", "again", "leave a turn"]), st.just("")),
                *(st.integers(0, 99), st.just(0)),
            ),
        ),
        min_size=20,
        max_size=60,
    )
)
@example(
    [
        ("add", "u", 0, 0),
        ("add", "u", 9, 0),
        ("add", "v", 0, 1),
        ("leave a turn", "", 0, 0),
        ("serve", "", 0, 0),
    ]
)
def test_a_line_gives_the_next_turn(steps: list[tuple[str, str, int, int]]) -> None:
    """For every order in which requests come, go, come back and are delayed: as if all turns were looked at each time."""
    line = FairLine(None, "", long=False)
    turns: dict[Entry, float] = {}
    orders = itertools.count(step=100)
    for what, client, number, own_key in steps:
        if what == "add":
            entry = Entry(A, "", b"", 0, client=client)
            entry.own_key, entry.order = float(own_key), next(orders)
            entry.start_s = entry.order / 100
            entry.key = entry.start_s + number
            line.add(entry)
            turns[entry] = entry.key
        elif what == "delay":
            line.delay(client, number)
            turns = {entry: at + number * (entry.client == client) for entry, at in turns.items()}
        elif turns and what == "serve":
            holder = min(turns, key=lambda entry: (turns[entry], entry.order))
            own = [entry for entry in turns if entry.client == holder.client]
            first = line.first(0)
            assert first is not None
            assert first.own_key == min(entry.own_key for entry in own)
            turns[first], turns[holder] = turns[holder], turns[first]
            assert first.key == turns[first]
            line.leave(first)
            del turns[first]
        elif turns:
            entry = list(turns)[number % len(turns)]
            line.leave(entry)
            if what == "again":
                line.add(entry)
                turns[entry] = entry.key
            else:
                del turns[entry]
            last = line.last_of(entry.client)
            if what == "leave a turn" and last is not None and last.order > entry.order:
                assert last.order == max(one.order for one in turns if one.client == entry.client)
                turns[last] += entry.start_s - last.start_s
                line.take_over(last, entry)
                assert last.key == turns[last]
        assert set(line) == set(turns)
        assert line.count == len(turns)
