"""The scheduler's laws, for hand-picked stories and for every order of events hypothesis can find."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from mpspool.core.errors import Code, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.progress import WHOLE
from mpspool.core.settings import BatchingSettings
from mpspool.router.scheduling import suspicion
from mpspool.router.scheduling.batching import split
from mpspool.router.scheduling.entry import Entry
from mpspool.router.scheduling.load import Batch, Limits
from mpspool.router.scheduling.placement import DISPATCHES
from mpspool.router.scheduling.policy import Policy, Sjf, edf, fifo
from mpspool.router.scheduling.queues import Queue, QueueRules
from mpspool.router.scheduling.room import Crowd, Room
from mpspool.router.scheduling.scheduler import PoolRules, Refuse, Scheduler, Send
from mpspool.router.scheduling.suspicion import MAX_REMEMBERED, REMEMBERED_NS, Blame, Standing, Suspicions

MODEL = ModelVersion("half", 1)
OTHER = ModelVersion("other", 3)
MS = 1_000_000
NO_LIMITS = Limits()


def make(dispatch: str = "least_loaded", limits: Limits = NO_LIMITS, **rules: Any) -> Scheduler:
    return Scheduler(PoolRules(dispatch, limits), QueueRules(**rules))


def entry(body: bytes = b"x", model: ModelVersion = MODEL, deadline_ns: int = 0) -> Entry:
    return Entry(model, "", body, 0, deadline_ns)


def arrive(scheduler: Scheduler, *bodies: bytes, model: ModelVersion = MODEL) -> list[Entry]:
    entries = [entry(body, model) for body in bodies]
    for item in entries:
        scheduler.arrive(item, 0)
    return entries


def entries_of(batch: Batch | None) -> list[Entry]:
    assert batch is not None
    return batch.entries


def cheap(scheduler: Scheduler, cost_us: int = 10) -> None:
    """Teaches it that one-byte requests are short, so that they share dispatches."""
    scheduler.costs.observe(MODEL, "", 1, cost_us)


def test_spreads_over_idle_workers_first() -> None:
    """Two requests go to two idle workers, not both to one with credits to spare."""
    scheduler = make()
    cheap(scheduler)
    scheduler.join("a", MODEL, 2)
    scheduler.join("b", MODEL, 2)
    arrive(scheduler, b"1", b"2")
    assert {send.worker for send in scheduler.dispatch(0)} == {"a", "b"}


def test_a_new_version_is_expected_to_cost_what_the_one_before_does() -> None:
    """From its first request on, also once the other has gone; what another model costs says nothing of it."""
    scheduler = make()
    newer = ModelVersion(MODEL.name, MODEL.version + 1)
    scheduler.join("old", MODEL, 2)
    cheap(scheduler, 5000)
    for name, model in (("new", newer), ("other", OTHER)):
        scheduler.join(name, model, 2)
    scheduler.leave("old")
    scheduler.lost("old", None, 0)
    scheduler.forget(MODEL)
    (mine,), (others,) = arrive(scheduler, b"1", model=newer), arrive(scheduler, b"1", model=OTHER)
    assert (mine.cost_s, others.cost_s) == (0.005, None)


def test_no_second_dispatch_behind_an_unknown_or_long_one() -> None:
    """Nobody waits behind a busy worker unless what it runs is known to end soon."""
    scheduler = make()
    scheduler.join("a", MODEL, 2)
    arrive(scheduler, b"1", b"2")
    assert len(scheduler.dispatch(0)) == 1
    cheap(scheduler, 50_000)
    scheduler.finished("a", 1)
    arrive(scheduler, b"3")
    assert len(scheduler.dispatch(0)) == 1
    assert scheduler.dispatch(0) == []


def test_a_long_dispatch_gets_company_shortly_before_its_end() -> None:
    """The second credit of a worker whose dispatch takes 50 ms is used 2 ms before that one ends."""
    scheduler = make()
    cheap(scheduler, 50_000)
    scheduler.join("a", MODEL, 2)
    arrive(scheduler, b"1", b"2", b"3")
    assert len(scheduler.dispatch(0)) == 1
    assert scheduler.look_again_ns(0) == 48_000_000
    assert scheduler.dispatch(47_000_000) == []
    assert len(scheduler.dispatch(48_000_000)) == 1
    assert scheduler.look_again_ns(48_000_000) is None, "no credit is left"


def test_short_requests_share_a_dispatch_fairly() -> None:
    """Ten short requests make one dispatch per worker, five in each."""
    scheduler = make()
    cheap(scheduler)
    scheduler.join("a", MODEL, 1)
    scheduler.join("b", MODEL, 1)
    arrive(scheduler, *[b"%d" % n for n in range(10)])
    assert [len(send.entries) for send in scheduler.dispatch(0)] == [5, 5]


def test_a_shared_dispatch_is_bounded_by_cost() -> None:
    """Requests of 1600 us go two to a dispatch: three would make the first wait too long."""
    scheduler = make()
    cheap(scheduler, 1600)
    scheduler.join("a", MODEL, 1)
    arrive(scheduler, b"1", b"2", b"3", b"4")
    assert [len(send.entries) for send in scheduler.dispatch(0)] == [2]


@pytest.mark.parametrize(
    ("cost_us", "waiting", "size"),
    [(5000, 7, 1), (5000, 8, 2), (5000, 100, 6), (9000, 100, 3), (17_000, 100, 1), (2000, 100, 16)],
)
def test_more_share_a_dispatch_while_many_wait(cost_us: int, waiting: int, size: int) -> None:
    """Up to 32 ms of them, but no more than a quarter of what each worker is to do."""
    scheduler = make()
    cheap(scheduler, cost_us)
    scheduler.join("a", MODEL, 1)
    arrive(scheduler, *[b"x"] * waiting)
    assert [len(send.entries) for send in scheduler.dispatch(0)] == [size]


@pytest.mark.parametrize(
    ("hurried", "limits", "size"),
    [
        ({}, NO_LIMITS, 3),
        ({"priority": 1}, NO_LIMITS, 1),
        ({"priority": -1}, NO_LIMITS, 1),
        ({"deadline_ns": 10**9 + 255 * MS}, NO_LIMITS, 1),
        ({"deadline_ns": 10**9 + 256 * MS}, NO_LIMITS, 3),
        ({}, Limits(running=2), 1),
        ({}, Limits(long=1), 1),
    ],
)
def test_who_is_in_a_hurry_waits_for_shorter_dispatches(
    hurried: dict[str, int], limits: Limits, size: int
) -> None:
    """16 ms of them, in place of 32, from then on; and so where a device runs no more than so many of all models."""
    now_ns = 10**9
    scheduler = make(limits=limits)
    cheap(scheduler, 9000)
    scheduler.join("a", MODEL, 1)
    scheduler.arrive(Entry(MODEL, "", b"x", now_ns, **hurried), now_ns)
    (sent,) = scheduler.dispatch(now_ns)
    scheduler.finished("a", sent.dispatch, now_ns=now_ns + 9 * MS)
    arrive(scheduler, *[b"x"] * 100)
    assert [len(send.entries) for send in scheduler.dispatch(now_ns + 9 * MS)] == [size]


@pytest.mark.parametrize(
    ("reload", "time_ns", "size"), [(False, 5 * MS, 1), (True, 5 * MS, 3), (False, -5 * MS, 3)]
)
def test_who_is_in_a_hurry_and_refused_counts_as_well(reload: bool, time_ns: int, size: int) -> None:
    """Else a backlog of long dispatches would go on refusing all of them. Not one whose time was over; and not after a reload."""
    now_ns = 10**9
    scheduler = make()
    cheap(scheduler, 9000)
    cheap(scheduler, 9000)
    scheduler.join("a", MODEL, 1)
    arrive(scheduler, *[b"x"] * 100)
    (sent,) = scheduler.dispatch(now_ns)
    assert len(sent.entries) == 3
    with pytest.raises(PoolError) as failure:
        scheduler.arrive(Entry(MODEL, "", b"x", now_ns, now_ns + time_ns), now_ns)
    assert failure.value.code is Code.DEADLINE_EXCEEDED
    if reload:
        scheduler.govern(MODEL, QueueRules())
    scheduler.finished("a", sent.dispatch, now_ns=now_ns + 27 * MS)
    assert [len(send.entries) for send in scheduler.dispatch(now_ns + 27 * MS)] == [size]


@pytest.mark.parametrize(
    ("bytes_each", "cost_us", "size"), [(600_000, 5000, 3), (600_000, 900, 3), (90_000, 900, 23)]
)
def test_what_shares_a_dispatch_fits_the_inbox(bytes_each: int, cost_us: int, size: int) -> None:
    """2 MiB."""
    scheduler = make()
    scheduler.costs.observe(MODEL, "", bytes_each, cost_us)
    scheduler.join("a", MODEL, 1)
    arrive(scheduler, *[bytes(bytes_each)] * 100)
    assert [len(send.entries) for send in scheduler.dispatch(0)] == [size]


def test_what_shares_a_dispatch_has_no_larger_answers_than_that() -> None:
    """After six answers of 700 kB two go together, and as many as before once enough small ones have come that those are forgotten."""
    scheduler = make()
    cheap(scheduler, 5000)
    scheduler.join("a", MODEL, 1)
    arrive(scheduler, *[b"x"] * 400)
    sizes, now_ns = [], 0
    while scheduler.queued(MODEL) > 24:
        (send,) = scheduler.dispatch(now_ns)
        now_ns += len(send.entries) * 5 * MS
        scheduler.finished("a", send.dispatch, now_ns=now_ns)
        for entry in send.entries:
            scheduler.answered(entry, ran=True, size=0 if sizes else 700_000)
        sizes.append(len(send.entries))
    assert sizes[:2] == [6, 2]
    assert sizes[1:] == sorted(sizes[1:])
    assert sizes[-1] == 6


@pytest.mark.parametrize(("priority", "early_ns"), [(0, 32 * MS), (1, 16 * MS)])
def test_who_is_in_a_hurry_is_not_behind_what_was_sent_early(priority: int, early_ns: int) -> None:
    """In a backlog a worker has its next dispatch 32 ms before it is idle, or 16."""
    scheduler = make()
    cheap(scheduler, 50_000)
    cheap(scheduler, 50_000)
    scheduler.join("a", MODEL, 2)
    scheduler.arrive(Entry(MODEL, "", b"x", 0, priority=priority), 0)
    arrive(scheduler, *[b"x"] * 9)
    assert len(scheduler.dispatch(0)) == 1
    assert scheduler.look_again_ns(0) == 50 * MS - early_ns


def test_what_workers_hold_is_to_do_too() -> None:
    """12 requests of 5 ms for each worker are three to a dispatch, whether they wait or a worker has them."""
    scheduler = make()
    cheap(scheduler, 5000)
    scheduler.join("a", MODEL, 2)
    scheduler.join("b", MODEL, 2)
    arrive(scheduler, *[b"%d" % n for n in range(24)])
    first, second = scheduler.dispatch(0)
    assert [len(first.entries), len(second.entries)] == [3, 3]
    scheduler.finished("a", first.dispatch, now_ns=15_000_000)
    arrive(scheduler, *[b"%d" % n for n in range(24, 27)])
    third = scheduler.dispatch(15_000_000)[0]
    assert (third.worker, len(third.entries)) == ("a", 3)


@pytest.mark.parametrize(
    ("dispatch", "order"), [("round_robin", ["a", "b", "a", "b"]), ("least_loaded", ["b", "b", "b", "b"])]
)
def test_which_idle_worker_is_next(dispatch: str, order: list[str]) -> None:
    """round_robin goes round though the device of one has more to do; least_loaded goes where least runs."""
    scheduler = make(dispatch)
    scheduler.join("busy", OTHER, 1, "gpu0")
    arrive(scheduler, b"x", model=OTHER)
    scheduler.dispatch(0)
    scheduler.join("a", MODEL, 1, "gpu0")
    scheduler.join("b", MODEL, 1, "gpu1")
    sent = []
    for n in range(4):
        arrive(scheduler, b"%d" % n)
        (send,) = scheduler.dispatch(0)
        sent.append(send.worker)
        scheduler.finished(send.worker, send.dispatch)
    assert sent == order


def test_models_do_not_share_workers() -> None:
    """A request never reaches a worker of another model version."""
    scheduler = make()
    scheduler.join("a", OTHER, 2)
    arrive(scheduler, b"1")
    assert scheduler.dispatch(0) == []
    scheduler.arrive(entry(model=OTHER), 0)
    assert [send.worker for send in scheduler.dispatch(0)] == ["a"]


def test_unstarted_requests_of_a_lost_worker_run_elsewhere_in_order() -> None:
    """What was not started is not suspected, and keeps its place before what came later."""
    scheduler = make()
    cheap(scheduler)
    scheduler.join("a", MODEL, 1)
    entries = arrive(scheduler, b"1", b"2", b"3")
    (_send,) = scheduler.dispatch(0)
    late = arrive(scheduler, b"4")
    scheduler.lost("a", None, 0)
    scheduler.join("b", MODEL, 1)
    (again,) = scheduler.dispatch(0)
    assert again.entries == entries + late
    assert all(item.deaths == 0 for item in again.entries)


def test_only_the_started_request_is_suspect_and_reruns_alone() -> None:
    """Of three requests in a dispatch the running one reruns alone; the others run at once."""
    scheduler = make()
    cheap(scheduler)
    scheduler.join("a", MODEL, 1)
    entries = arrive(scheduler, b"1", b"2", b"3")
    (send,) = scheduler.dispatch(0)
    scheduler.lost("a", (send.dispatch, 1), 0)
    scheduler.join("b", MODEL, 2)
    scheduler.join("c", MODEL, 2)
    worker_of = {item: send.worker for send in scheduler.dispatch(0) for item in send.entries}
    alone = worker_of.pop(entries[1])
    assert worker_of.keys() == {entries[0], entries[2]}
    assert alone not in worker_of.values()
    arrive(scheduler, b"4")
    assert all(send.worker != alone for send in scheduler.dispatch(0)), "the suspect's worker runs it alone"


def test_a_suspect_waits_until_its_worker_is_empty() -> None:
    """With every worker busy one is emptied for the suspect first."""
    scheduler = make()
    scheduler.join("a", MODEL, 1)
    scheduler.join("b", MODEL, 1)
    (_first, _second) = arrive(scheduler, b"1", b"2")
    sends = {send.worker: send for send in scheduler.dispatch(0)}
    scheduler.lost("a", (sends["a"].dispatch, 0), 0)
    arrive(scheduler, b"3")
    assert scheduler.dispatch(0) == []
    scheduler.finished("b", sends["b"].dispatch)
    (alone,) = scheduler.dispatch(0)
    assert alone.entries == sends["a"].entries


def test_a_suspect_may_take_as_long_as_it_was_predicted_to() -> None:
    """Or a slow one, lost by no fault of its own, is taken for one that hangs."""
    scheduler = make()
    scheduler.costs.observe(MODEL, "", 1, 20e6)
    arrive(scheduler, b"1")
    for name in "ab":
        scheduler.join(name, MODEL, 1)
        (send,) = scheduler.dispatch(0)
        assert scheduler.predicted_us(name) == 20e6
        scheduler.lost(name, (send.dispatch, 0), 0)


def lose(scheduler: Scheduler, name: str, now_ns: int = 0) -> list[Refuse]:
    """A worker joins, is sent what there is, starts the first of it and is lost at now_ns."""
    scheduler.join(name, MODEL, 1)
    (send,) = [send for send in scheduler.dispatch(0) if send.worker == name]
    return scheduler.lost(name, (send.dispatch, 0), now_ns)


def refused_at(scheduler: Scheduler, body: bytes, now_ns: int) -> bool:
    """Whether a request is kept out at the door; taken in, it is cancelled at once."""
    item = entry(body)
    try:
        scheduler.arrive(item, now_ns)
    except PoolError as error:
        return error.code is Code.INTERNAL
    scheduler.cancel(item)
    return False


def test_second_death_refuses_and_quarantines() -> None:
    """The second worker lost to a request refuses it, and keeps its like out for a minute from then on."""
    scheduler = make()
    (poison,) = arrive(scheduler, b"p")
    assert lose(scheduler, "a") == []
    lost_ns = 59 * 10**9  # it hung, and that took a while to find
    refusals = lose(scheduler, "b", lost_ns)
    assert [refusal.entry for refusal in refusals] == [poison]
    assert refusals[0].error.code is Code.INTERNAL
    assert refused_at(scheduler, b"p", lost_ns + REMEMBERED_NS - 1)
    assert not refused_at(scheduler, b"q", lost_ns + REMEMBERED_NS - 1)
    assert not refused_at(scheduler, b"p", lost_ns + REMEMBERED_NS)


@pytest.mark.parametrize("how", ["cancel", "expire"])
def test_a_client_that_gives_up_does_not_hide_what_ended_the_worker(how: str) -> None:
    """The same body asked for again runs alone, and is kept out once that worker is lost too."""
    scheduler = make()

    def ask_and_go(name: str) -> Send:
        item = entry(b"p", deadline_ns=5)
        scheduler.arrive(item, 0)
        scheduler.join(name, MODEL, 1)
        (send,) = scheduler.dispatch(0)
        assert send.entries == [item]
        if how == "cancel":
            scheduler.cancel(item)
        else:
            assert [refusal.entry for refusal in scheduler.expire(5)] == [item]
        return send

    cheap(scheduler)
    send = ask_and_go("a")
    assert scheduler.lost("a", (send.dispatch, 0), 6) == []
    send = ask_and_go("b")
    arrive(scheduler, b"1", b"2")
    scheduler.join("c", MODEL, 1)
    assert {send.worker for send in scheduler.dispatch(6)} == {"c"}, "it runs alone"
    assert scheduler.lost("b", (send.dispatch, 0), 7) == []
    assert refused_at(scheduler, b"p", 7)
    assert not refused_at(scheduler, b"q", 7)


def test_a_body_is_let_go_with_its_client_or_its_worker() -> None:
    """What a worker may be lost to is kept until that is known."""
    scheduler = make()
    scheduler.join("a", MODEL, 1)
    (gone,) = arrive(scheduler, b"12")
    (send,) = scheduler.dispatch(0)
    scheduler.cancel(gone)
    assert gone.body == b"12"
    assert entries_of(scheduler.finished("a", send.dispatch)) == [gone]
    assert gone.body == b""


def test_all_with_the_body_of_a_suspect_wait_for_its_trial() -> None:
    """One of them runs alone; the rest is refused with it, and does not cost a worker each."""
    scheduler = make()
    copies = arrive(scheduler, b"p", b"p", b"p")
    assert lose(scheduler, "a") == []
    late = arrive(scheduler, b"p")
    scheduler.join("b", MODEL, 2)
    scheduler.join("c", MODEL, 2)
    (send,) = scheduler.dispatch(0)
    refusals = scheduler.lost(send.worker, (send.dispatch, 0), 0)
    assert {refusal.entry for refusal in refusals} == {*copies, *late}
    assert scheduler.unfinished() == 0


def test_what_waits_is_gone_through_once_for_all_that_a_worker_was_lost_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those with the body of any of them are suspects, in their order; nobody else is."""
    rules = QueueRules(batching=BatchingSettings(max_batch_size=3))
    scheduler = Scheduler(PoolRules(), rules)
    scheduler.govern(MODEL, rules)
    scheduler.join("a", MODEL, 1)

    def ask(*bodies: bytes) -> list[Entry]:
        entries = [Entry(MODEL, "", body, 0, rows=1, kind=("", b"", b"")) for body in bodies]
        for entry in entries:
            scheduler.arrive(entry, 0)
        return entries

    first = ask(b"p", b"q", b"r")
    (send,) = scheduler.dispatch(0)
    assert send.entries == first
    waiting = ask(b"q", b"s", b"p", b"tt", b"q")
    (queue,) = scheduler._queues.values()
    gone_through: list[int] = []
    suspect = Queue.suspect

    def counted(queue: Queue, bodies: Collection[bytes]) -> None:
        gone_through.append(len(bodies))
        suspect(queue, bodies)

    monkeypatch.setattr(Queue, "suspect", counted)
    assert scheduler.lost("a", (send.dispatch, WHOLE), 0) == []
    assert gone_through == [3]
    assert [entry.suspect for entry in waiting] == [True, False, True, False, True]
    assert list(queue.suspects) == [*first, waiting[0], waiting[2], waiting[4]]


def test_those_that_were_sent_before_the_suspicion_share_it_when_they_come_back() -> None:
    """A copy that its lost worker had not started is a suspect; after the trial any copy is refused."""
    scheduler = make()
    for name in ("a", "b", "c", "d"):
        scheduler.join(name, MODEL, 1)
    copies = arrive(scheduler, b"p", b"p", b"p", b"p")
    sends = scheduler.dispatch(0)
    scheduler.lost(sends[0].worker, (sends[0].dispatch, 0), 0)
    scheduler.lost(sends[1].worker, None, 0)
    assert [item.suspect for item in copies] == [True, True, False, False]
    scheduler.join("e", MODEL, 1)
    (alone,) = scheduler.dispatch(0)
    assert len(scheduler.lost("e", (alone.dispatch, 0), 0)) == 2
    for send, started in ((sends[2], (sends[2].dispatch, 0)), (sends[3], None)):
        assert [refusal.entry for refusal in scheduler.lost(send.worker, started, 0)] == send.entries


def answer_one(scheduler: Scheduler, body: bytes) -> None:
    (item,) = arrive(scheduler, body)
    (send,) = scheduler.dispatch(0)
    scheduler.finished(send.worker, send.dispatch)
    scheduler.answered(item, ran=True)


def test_what_has_been_answered_is_no_suspect_the_first_time() -> None:
    """That the worker of the same bytes died was chance, perhaps; nothing speaks for them any more the next time."""
    scheduler = make()
    scheduler.join("a", MODEL, 1)
    scheduler.join("b", MODEL, 1)
    answer_one(scheduler, b"probe")
    (first,) = arrive(scheduler, b"probe")
    (send,) = scheduler.dispatch(10)
    assert scheduler.lost(send.worker, (send.dispatch, 0), 20, Blame.PERHAPS) == []
    (twin,) = arrive(scheduler, b"probe")
    assert [item.suspect for item in (first, twin)] == [False, False]
    (send,) = scheduler.dispatch(30)
    assert send.entries == [first]
    scheduler.join("c", MODEL, 1)
    assert scheduler.lost(send.worker, (send.dispatch, 0), 40, Blame.PERHAPS) == []
    assert [item.suspect for item in (first, twin)] == [True, True]


def test_all_that_ran_when_a_device_failed_are_excused_alike() -> None:
    """One answer speaks for every copy that was under way; a worker that hangs on one, or is named, is no chance."""
    scheduler = make()
    for name in "abc":
        scheduler.join(name, MODEL, 1)
    answer_one(scheduler, b"probe")
    copies = arrive(scheduler, b"probe", b"probe", b"probe")
    sends = scheduler.dispatch(10)
    assert len(sends) == 3
    for number, send in enumerate(sends[:2]):
        scheduler.lost(send.worker, (send.dispatch, 0), 20 + number, Blame.PERHAPS)
    assert not any(item.suspect for item in copies)
    answered = copies.index(sends[2].entries[0])
    scheduler.lost(sends[2].worker, (sends[2].dispatch, 0), 30, Blame.SURELY)
    assert copies[answered].suspect


def test_what_ran_beside_the_cause_is_not_blamed() -> None:
    """Somebody else is named."""
    scheduler = make()
    scheduler.join("a", MODEL, 1)
    (item,) = arrive(scheduler, b"new")
    (send,) = scheduler.dispatch(0)
    scheduler.lost("a", (send.dispatch, 0), 0, Blame.NONE)
    assert (item.suspect, item.deaths) == (False, 0)


def test_a_request_that_was_never_answered_is_a_suspect() -> None:
    """Nor does an answer that was not the model's speak for it, or one of another version."""
    scheduler = make()
    for name, model in (("a", MODEL), ("b", OTHER)):
        scheduler.join(name, model, 1)
    (late,) = arrive(scheduler, b"probe")
    (send,) = scheduler.dispatch(0)
    scheduler.finished("a", send.dispatch, ran=False)
    scheduler.answered(late, ran=False)
    (other,) = arrive(scheduler, b"probe", model=OTHER)
    (send,) = scheduler.dispatch(0)
    scheduler.finished("b", send.dispatch)
    scheduler.answered(other, ran=True)
    (item,) = arrive(scheduler, b"probe")
    (send,) = scheduler.dispatch(0)
    scheduler.lost("a", (send.dispatch, 0), 0, Blame.PERHAPS)
    assert item.suspect


def test_a_suspect_that_ran_alone_and_answered_clears_all_like_it() -> None:
    """They were no cause: they run together again, those that waited before those that came later."""
    scheduler = make()
    cheap(scheduler)
    (first, *copies) = arrive(scheduler, b"p", b"p", b"p")
    lose(scheduler, "a")
    late = arrive(scheduler, b"1")
    scheduler.join("b", MODEL, 1)
    (alone,) = scheduler.dispatch(0)
    assert alone.entries == [first]
    assert entries_of(scheduler.finished("b", alone.dispatch)) == [first]
    scheduler.answered(first, ran=True)
    (together,) = scheduler.dispatch(0)
    assert together.entries == copies + late
    scheduler.finished("b", together.dispatch)
    arrive(scheduler, b"p", b"p")
    assert [len(send.entries) for send in scheduler.dispatch(0)] == [2]


def test_a_suspect_whose_deadline_passed_before_it_ran_stays_one() -> None:
    """A worker that did not run it says nothing for it."""
    scheduler = make()
    cheap(scheduler)
    arrive(scheduler, b"p")
    lose(scheduler, "a")
    scheduler.join("b", MODEL, 1)
    (alone,) = scheduler.dispatch(0)
    scheduler.finished("b", alone.dispatch, ran=False)
    arrive(scheduler, b"p", b"p")
    (send,) = scheduler.dispatch(0)
    assert len(send.entries) == 1


def test_another_version_is_not_blamed() -> None:
    """What ended the workers of one version may be right for the next."""
    scheduler = make()
    arrive(scheduler, b"p")
    lose(scheduler, "a")
    lose(scheduler, "b")
    assert refused_at(scheduler, b"p", 1)
    scheduler.arrive(entry(b"p", OTHER), 1)


def test_suspects_that_nobody_waits_for_do_not_pile_up() -> None:
    """While a suspect is tried for long, its like may come and give up a thousand times."""
    scheduler = make()
    arrive(scheduler, b"p")
    lose(scheduler, "a")
    scheduler.join("b", MODEL, 1)
    scheduler.dispatch(0)
    for _ in range(1000):
        scheduler.cancel(*arrive(scheduler, b"p"))
    assert len(scheduler._queues[MODEL].suspects) < 100


def test_suspicion_is_bounded() -> None:
    """Of too many bodies the one not used longest is forgotten, and each in its time."""
    suspicions = Suspicions()

    def standing(n: int, now_ns: int) -> Standing:
        return suspicions.standing(MODEL, b"%d" % n, now_ns)

    for n in range(MAX_REMEMBERED + 1):
        suspicions.blame(MODEL, b"%d" % n, alone=n % 2 == 0, now_ns=n)
    assert standing(0, 1000) is Standing.CLEAR
    assert standing(1, 1000) is Standing.SUSPECT
    assert standing(2, 1000) is Standing.QUARANTINED
    assert standing(2, REMEMBERED_NS + 2) is Standing.CLEAR, "quarantine ends, however often it is asked for"
    assert standing(3, REMEMBERED_NS + 3) is Standing.CLEAR
    assert standing(1, REMEMBERED_NS + 999) is Standing.SUSPECT, "it was asked for since"


def test_only_what_looks_like_a_suspect_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of one model have one length, as a rule: of large ones the beginning and the end tell most of them apart."""
    suspicions = Suspicions()
    body = b"begin" + bytes(10_000) + b"end"
    suspicions.blame(MODEL, body, alone=False, now_ns=0)
    hashed: list[bytes] = []
    whole = suspicion.hashlib.blake2b
    monkeypatch.setattr(
        suspicion.hashlib, "blake2b", lambda one, **size: hashed.append(one) or whole(one, **size)
    )
    for other in (body[:-1], b"x" + body[1:], body[:-1] + b"x"):
        assert suspicions.standing(MODEL, other, 0) is Standing.CLEAR
    assert hashed == []
    middle = body[:5_000] + b"x" + body[5_001:]
    assert suspicions.standing(MODEL, middle, 0) is Standing.CLEAR
    assert suspicions.standing(MODEL, body, 0) is Standing.SUSPECT
    assert hashed == [middle, body]


def test_a_suspect_not_started_again_gets_no_second_death() -> None:
    """A worker lost before it started the suspect says nothing against the suspect."""
    scheduler = make()
    (suspect,) = arrive(scheduler, b"p")
    scheduler.join("a", MODEL, 1)
    (send,) = scheduler.dispatch(0)
    scheduler.lost("a", (send.dispatch, 0), 0)
    scheduler.join("b", MODEL, 1)
    scheduler.dispatch(0)
    assert scheduler.lost("b", None, 0) == []
    assert suspect.deaths == 1
    scheduler.join("c", MODEL, 1)
    assert [send.entries for send in scheduler.dispatch(0)] == [[suspect]]


def test_one_suspect_at_a_time_in_the_pool() -> None:
    """Two suspects, of two models even, never run at the same time."""
    scheduler = make()
    for name, model in (("a", MODEL), ("b", OTHER)):
        scheduler.join(name, model, 1)
        scheduler.arrive(entry(name.encode(), model), 0)
    sends = {send.worker: send for send in scheduler.dispatch(0)}
    for name, send in sends.items():
        scheduler.lost(name, (send.dispatch, 0), 0)
    scheduler.join("c", MODEL, 1)
    scheduler.join("d", OTHER, 1)
    (running,) = scheduler.dispatch(0)
    scheduler.finished(running.worker, running.dispatch)
    assert len(scheduler.dispatch(0)) == 1


def test_leaving_worker_is_sent_nothing() -> None:
    """A draining worker keeps what it has and gets no more."""
    scheduler = make()
    scheduler.join("a", MODEL, 2)
    scheduler.leave("a")
    arrive(scheduler, b"1")
    assert scheduler.dispatch(0) == []


def test_expired_requests_are_refused_and_never_sent() -> None:
    """A deadline that passes in the queue is answered and the request not run."""
    scheduler = make()
    late = entry(deadline_ns=5)
    scheduler.arrive(late, 0)
    scheduler.join("a", MODEL, 1)
    assert scheduler.dispatch(6) == []
    (refusal,) = scheduler.expire(6)
    assert refusal.entry is late
    assert refusal.error.code is Code.DEADLINE_EXCEEDED
    assert scheduler.unfinished() == 0


def test_cancelled_requests_leave_the_queue() -> None:
    """A cancelled request is neither sent nor counted, and frees its place."""
    scheduler = make(max_requests=1)
    (gone,) = arrive(scheduler, b"1")
    scheduler.cancel(gone)
    arrive(scheduler, b"2")
    scheduler.join("a", MODEL, 1)
    (send,) = scheduler.dispatch(0)
    assert send.entries[0].body == b"2"


def test_a_full_queue_refuses_at_the_door() -> None:
    """One request more than may wait is UNAVAILABLE at once."""
    scheduler = make(max_requests=1)
    arrive(scheduler, b"1")
    with pytest.raises(PoolError, match="is full: 1 requests wait") as refused:
        scheduler.arrive(entry(), 0)
    assert refused.value.code is Code.UNAVAILABLE


@pytest.mark.parametrize("batching", [None, BatchingSettings(max_batch_size=2, max_enqueued_batches=1)])
def test_a_full_queue_makes_room_for_what_is_more_urgent(batching: BatchingSettings | None) -> None:
    """The last of the least priority leaves, for requests as for rows; nothing leaves for its like."""
    scheduler = make(max_requests=2, batching=batching)

    def arrives(body: bytes, priority: int) -> Entry:
        item = entry(body)
        item.priority, item.rows, item.kind = priority, 1, ("", b"", b"")
        scheduler.arrive(item, 0)
        return item

    def left() -> list[Refuse]:
        return [order for order in scheduler.dispatch(0) if isinstance(order, Refuse)]

    first, second = arrives(b"1", -1), arrives(b"2", -1)
    with pytest.raises(PoolError, match="is full"):
        arrives(b"3", -1)
    assert not left()
    fourth = arrives(b"4", 0)
    (refused,) = left()
    assert refused.entry is second
    assert refused.error.code is Code.UNAVAILABLE
    text = "; the place of this one went to one of higher priority (scheduling.priority_key); try again later"
    assert str(refused.error).endswith(text)
    arrives(b"5", 7)
    assert [order.entry for order in left()] == [first]
    item = entry(b"late")
    item.priority, item.rows, item.kind, item.arrived_ns = 6, 1, ("", b"", b""), 6 * 10**9
    with pytest.raises(PoolError, match="is full"):
        scheduler.arrive(item, item.arrived_ns)  # what has waited for six seconds goes before it
    item.arrived_ns -= 1
    scheduler.arrive(item, item.arrived_ns)
    assert [order.entry for order in left()] == [fourth]
    with pytest.raises(PoolError, match="is full"):
        arrives(b"6", 0)
    assert not left()


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("why", ["its worker was lost", "its version has gone", "it cannot be joined"])
def test_who_has_come_back_neither_hides_who_can_leave_nor_leaves_before(why: str, fair: bool) -> None:
    """What has waited for longest is the last of its priority to make room, wherever it was meanwhile."""
    batching = BatchingSettings(max_enqueued_batches=100) if "join" in why else None
    scheduler = make(max_requests=3, batching=batching, fair=fair)

    def ask(at_s: int, priority: int = 0, outputs: bytes = b"") -> Entry:
        rows = 0 if batching is None else 1
        item = Entry(MODEL, "", b"x", at_s * 10**9, rows=rows, kind=("", outputs, b""), priority=priority)
        scheduler.arrive(item, item.arrived_ns)
        return item

    if "worker" in why:
        scheduler.join("w", MODEL, 1)
    old = Entry(MODEL, "", b"x", 100 * 10**9) if "version" in why else ask(100, outputs=b"scalar")
    scheduler.dispatch(100 * 10**9)
    young = [ask(120), ask(121)]
    if "worker" in why:
        scheduler.lost("w", None, 121 * 10**9)
    elif "version" in why:
        old.let_in = True
        scheduler.arrive(old, 121 * 10**9)
    else:
        assert scheduler.keep_apart(old)
    for left in reversed(young):
        ask(122, priority=5)
        assert [order.entry for order in scheduler.dispatch(122 * 10**9)] == [left]
    with pytest.raises(PoolError, match="is full"):
        ask(122, priority=5)
    assert old.waiting


def test_a_full_queue_of_clients_makes_room_for_what_is_more_urgent() -> None:
    """Of whoever has most waiting the last of the least urgent leaves; and for a client's own what that goes before."""
    scheduler = make(max_requests=3, fair=True)

    def arrives(client: str, priority: int) -> Entry:
        item = entry(client.encode())
        item.client, item.priority = client, priority
        scheduler.arrive(item, 0)
        return item

    def left() -> list[tuple[Entry, str]]:
        orders = [order for order in scheduler.dispatch(0) if isinstance(order, Refuse)]
        return [(order.entry, str(order.error).split("; ")[1]) for order in orders]

    first, _, last = (arrives("a", priority) for priority in (-9, 9, -9))
    with pytest.raises(PoolError, match="is full"):
        arrives("a", -9)
    arrives("b", 0)
    assert left() == [(last, "the place of this one went to another client (scheduling.fair_by)")]
    arrives("a", 1)
    assert left() == [
        (first, "the place of this one went to one of higher priority (scheduling.priority_key)")
    ]
    with pytest.raises(PoolError, match="is full"):
        arrives("b", 0)
    assert not left()


def test_abandon_refuses_all_that_wait_or_run() -> None:
    """At the end of the grace time nothing wanted is left."""
    scheduler = make()
    scheduler.join("a", MODEL, 1)
    entries = arrive(scheduler, b"1", b"2", b"3")
    assert len(scheduler.dispatch(0)) == 1
    assert [refusal.entry for refusal in scheduler.abandon("over")] == entries
    assert scheduler.unfinished() == 0


def test_fail_refuses_all_that_wait() -> None:
    """When no worker will come, those that wait for one are told so."""
    scheduler = make()
    entries = arrive(scheduler, b"1", b"2")
    refusals = scheduler.fail(MODEL, "half@1: no worker can be started")
    assert [refusal.entry for refusal in refusals] == entries
    assert {refusal.error.code for refusal in refusals} == {Code.UNAVAILABLE}


BODIES = (b"a", b"b", b"cc")
Key = tuple[ModelVersion, bytes]


class Pool(RuleBasedStateMachine):
    """Arrivals, deaths, deadlines, cancels, results and drains in any order, against the laws."""

    models = st.sampled_from([MODEL, OTHER])
    requests = Bundle("requests")

    @initialize(
        dispatch=st.sampled_from(DISPATCHES),
        limits=st.builds(Limits, st.integers(0, 2), st.integers(0, 1)),
        long_us=st.sampled_from([0.0, 5_000.0]),
        known=st.booleans(),
        rules=st.builds(
            QueueRules,
            policy=st.sampled_from([fifo, edf, Sjf(10.0)]),
            fair=st.booleans(),
            refuse_late=st.booleans(),
            max_requests=st.integers(1, 6) | st.just(10_000),
            batching=st.none()
            | st.builds(
                BatchingSettings,
                max_batch_size=st.just(4),
                batch_timeout_us=st.integers(0, 1),
                max_enqueued_batches=st.integers(1, 3) | st.just(10_000),
                max_execution_batch_size=st.sampled_from([0, 2]),
                adaptive=st.booleans(),
            ),
        ),
    )
    def start(self, dispatch: str, limits: Limits, long_us: float, known: bool, rules: QueueRules) -> None:
        self.scheduler = Scheduler(PoolRules(dispatch, limits, long_us), rules)
        self.rules = rules
        self.most_rows = rules.batching.run_rows if rules.batching else 0
        self.limits = limits
        self.devices: dict[str, str] = {}
        self.domains: dict[str, str] = {}
        self.serves: dict[str, ModelVersion] = {}
        self.now = 0
        self.names = 0
        self.credits: dict[str, int] = {}
        self.held: dict[str, list[Send]] = {}
        self.leaving: set[str] = set()
        self.wanted: set[Entry] = set()
        self.put_out: set[Entry] = set()  # for others, and not told yet
        self.answers: dict[Entry, str] = {}
        self.keys: dict[Entry, Key] = {}
        self.suspects: set[Key] = set()
        self.lived: set[Key] = set()
        self.excuses: dict[Key, int] = {}
        self.excused: set[Entry] = set()
        self.apart: dict[ModelVersion, set[object]] = {MODEL: set(), OTHER: set()}
        self.quarantined: set[Key] = set()
        self.trial: Send | None = None
        if known:
            self._learn()

    def _learn(self) -> None:
        for model, cost_us in ((MODEL, 100), (OTHER, 10_000)):
            self.scheduler.costs.observe(model, "", 1, cost_us)
            self.scheduler.costs.observe(model, "", 0, cost_us, rows=1)
        self.scheduler.costs.observe(
            MODEL, "", 0, 400, rows=4
        )  # its batches are worth spreading, and the other's are not
        self.scheduler.costs.observe(OTHER, "", 0, 10_000, rows=4)

    @rule(
        target=requests,
        model=models,
        body=st.sampled_from(BODIES),
        deadline=st.just(0) | st.integers(1, 30) | st.integers(50_000, 50_000_000),
        copies=st.integers(1, 3),
        rows=st.integers(0, 4),
        kind=st.sampled_from("kl"),
        who=st.tuples(st.integers(-1, 1), st.sampled_from("uv")),
    )
    def arrivals(
        self,
        model: ModelVersion,
        body: bytes,
        deadline: int,
        copies: int,
        rows: int,
        kind: str,
        who: tuple[int, str],
    ) -> MultipleResults[Entry]:
        items = []
        for _ in range(copies):
            parts: list[tuple[int, int] | None] = [None]
            if self.rules.batching and rows > self.most_rows:
                parts = [*split(rows, self.rules.batching)]
            taken = []
            for part in parts:
                item = entry(body, model, deadline and self.now + deadline)
                item.arrived_ns, item.part = self.now, part
                item.priority, item.client = who
                if self.rules.batching:
                    item.rows = part[1] - part[0] if part else rows
                    item.kind = "", kind.encode(), b""
                taken.append(item)
            self._arrive(taken, model, body)
            items += taken
        return multiple(*items)

    def _arrive(self, parts: list[Entry], model: ModelVersion, body: bytes) -> None:
        for item in parts:
            self.keys[item] = (model, body)
        first = parts[0]
        self._govern(model)
        rows, queued = self._rows(model), self.scheduler.queued(model)
        settings = self.rules.batching
        room = settings.max_enqueued_batches * settings.run_rows if settings and first.rows else 10**9
        queued_slow, idle = (
            self.scheduler.queued_slow(model),
            self.scheduler._queue(model).placement.idle_count,
        )
        free = 0 if queued else idle
        room += free * self.most_rows
        most = self.rules.max_requests + free
        more = sum(item.rows for item in parts)
        try:
            self.scheduler.arrive_in_parts(parts, self.now)
        except PoolError as error:
            if error.code is Code.UNAVAILABLE:
                full = queued + len(parts) > most
                assert full or rows + (4 if len(parts) == 1 else 1) * more > room, "there is room"
            elif error.code is Code.DEADLINE_EXCEEDED:
                assert self.rules.refuse_late
                assert first.deadline_ns
            else:
                assert self.keys[first] in self.quarantined
            for item in parts:
                assert not item.waiting, "taken in in part"
                item.over = True
                item.body = b""
            assert self.scheduler.queued(model) == queued, "others left for one that was refused"
            return
        assert self.keys[first] not in self.quarantined
        out = {other for other in self.wanted if other.over}
        for other in out:
            assert (other.client != first.client and self.rules.fair) or other.priority < first.priority
        self.wanted -= out
        self.put_out |= out
        self.wanted.update(parts)
        if (
            queued <= queued_slow
        ):  # what waits for the slow lane alone is not before one that idle workers take
            most, room = most - free + idle, room + (idle - free) * self.most_rows
        assert self.scheduler.queued(model) <= max(most, queued), "more than may wait"
        assert self._rows(model) <= max(room, rows) or first.suspect, "more than may wait"

    def _govern(self, model: ModelVersion) -> None:
        """As for a version that is new, or is back."""
        if model not in self.scheduler._queues:
            self.scheduler.govern(model, self.rules)

    def _waiting(self, model: ModelVersion) -> set[Entry]:
        return {item for item in self.wanted.difference(self._in_flight()) if item.model == model}

    def _rows(self, model: ModelVersion) -> int:
        return sum(item.rows for item in self._waiting(model) if not item.suspect)

    @rule(
        model=models,
        size=st.integers(1, 2),
        rows=st.integers(0, 1),
        cost_us=st.sampled_from([100, 10_000]),
    )
    def a_cost_becomes_known(self, model: ModelVersion, size: int, rows: int, cost_us: int) -> None:
        self.scheduler.costs.observe(model, "", size, cost_us, rows)

    @rule(model=models, credit=st.integers(1, 3), device=st.sampled_from("gh"), together=st.booleans())
    def worker_joins(self, model: ModelVersion, credit: int, device: str, together: bool = False) -> None:
        """`together`: it fails with others of its device."""
        self.names += 1
        name = f"w{self.names}"
        domain = f"all of {device}" if together else ""
        self._govern(model)
        self.scheduler.join(name, model, credit, device, domain)
        self.credits[name], self.held[name], self.devices[name] = credit, [], device
        self.domains[name] = domain
        self.serves[name] = model

    def _answer(self, item: Entry, how: str) -> None:
        assert item in self.wanted, f"{how}: nobody wants this answer (any more)"
        self.wanted.remove(item)
        self.answers[item] = how

    def _expire(self) -> None:
        for refusal in self.scheduler.expire(self.now):
            assert refusal.entry.deadline_ns <= self.now
            self._answer(refusal.entry, "expired")

    @rule()
    def dispatches(self) -> None:
        self._expire()
        self._sent(self.scheduler.dispatch(self.now))
        idle = {name for name, sends in self.held.items() if not sends}
        for queue in self.scheduler._waits:
            self.scheduler._stirred[queue] = None
        more = self.scheduler.dispatch(self.now)
        assert not any(isinstance(send, Send) and send.worker in idle for send in more), (
            "an idle one was overlooked"
        )
        self._sent(more)
        for queue in self.scheduler._queues.values():
            place = queue.placement
            assert place.rows == sum(
                batch.rows for w in place.workers.values() for batch in w.batches.values()
            )
            assert place.open_count == sum(not (w.leaving or w.reserved) for w in place.workers.values())

    def _sent(self, orders: list[Send | Refuse]) -> None:
        for send in orders:
            if isinstance(send, Refuse):
                self._refused(send)
                continue
            assert send.worker not in self.leaving
            self.held[send.worker].append(send)
            assert len(self.held[send.worker]) <= self.credits[send.worker], "sent without a credit"
            assert send.entries, "an empty dispatch"
            if send.together:
                assert sum(item.rows for item in send.entries) <= self.most_rows, "more rows than a batch has"
                assert len({(item.model, item.kind) for item in send.entries}) == 1, "not of one kind"
                assert all(item.rows for item in send.entries), "a request that shares no batch"
                assert not any(item.kind[:2] in self.apart[item.model] for item in send.entries), "kept apart"
            else:
                assert not any(item.rows and not item.suspect for item in send.entries)
            for item in send.entries:
                assert item in self.wanted, "sent though nobody wants it"
                assert not item.deadline_ns or item.deadline_ns > self.now, "sent though expired"
                assert item.body == self.keys[item][1], "sent without its body"
                assert self.keys[item] not in self.quarantined, "sent though kept out"
                if item.deaths > (item in self.excused) or self.keys[item] in self.suspects:
                    assert item.suspect, "a suspect is sent like any other"
            if any(item.suspect for item in send.entries):
                assert self.trial is None, "two suspects at once"
                self.trial = send
                assert self.held[send.worker] == [send], "a suspect does not run alone"
                assert len(send.entries) == 1, "a suspect does not run alone"
            if self.trial and (domain := self._domain(self.trial)):
                busy = {name for name, sends in self.held.items() if sends and self.domains[name] == domain}
                assert busy == {self.trial.worker}, "sent where all fail with a suspect"
            assert self.trial not in self.held[send.worker][:-1], "sent beside a suspect"
        for device in "gh" if self.limits.running and not self.trial else "":
            busy = [name for name, sends in self.held.items() if sends and self.devices[name] == device]
            assert len(busy) <= self.limits.running, "more than a device may run"
        assert not self.put_out, "one that had to leave is not told"
        copies = self._in_flight()
        assert len(copies) == len(set(map(id, copies))), "one request in two places"

    def _domain(self, send: Send) -> str:
        return self.domains[send.worker]

    def _refused(self, refusal: Refuse) -> None:
        """One that had to leave for another, or cannot be in time."""
        if refusal.error.code is Code.UNAVAILABLE:
            self.put_out.remove(refusal.entry)
            return
        assert refusal.error.code is Code.DEADLINE_EXCEEDED
        assert self.rules.refuse_late
        self._answer(refusal.entry, "late")

    def _in_flight(self) -> list[Entry]:
        return [item for sends in self.held.values() for send in sends for item in send.entries]

    def _pick(self, data: st.DataObject, among: Callable[[str], bool]) -> str:
        return data.draw(st.sampled_from([name for name in self.held if among(name)]))

    def _end_trial(self, sends: list[Send]) -> None:
        if self.trial in sends:
            self.trial = None

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data(), ran=st.booleans(), apart=st.booleans())
    def result(self, data: st.DataObject, ran: bool, apart: bool) -> None:
        name = self._pick(data, lambda name: bool(self.held[name]))
        send = self.held[name].pop(0)
        if send is self.trial and ran:
            self.suspects.discard(self.keys[send.entries[0]])
        self._end_trial([send])
        batch = self.scheduler.finished(name, send.dispatch, ran)
        assert batch is not None
        assert batch.entries == send.entries
        for item in send.entries:
            if not item.over:
                self.scheduler.answered(item, ran=ran)
                self._answer(item, "result")
                self.lived |= {self.keys[item]} if ran else set()
        assert self.scheduler.finished(name, send.dispatch) is None, "a result counted twice"
        if apart and send.together:
            self._keep_apart(send.entries[0])

    def _keep_apart(self, item: Entry) -> None:
        known = self.apart[item.model]
        assert self.scheduler.keep_apart(item) == (item.kind[:2] not in known)
        known.add(item.kind[:2])

    @precondition(lambda self: bool(self.held))
    @rule(data=st.data(), running=st.booleans(), blame=st.sampled_from(Blame))
    def worker_dies(self, data: st.DataObject, running: bool, blame: Blame) -> None:
        name = self._pick(data, lambda name: True)
        sends = self.held[name]
        index = data.draw(st.integers(0, len(sends[0].entries) - 1)) if running and sends else None
        self._die(name, index, blame)

    def _excused(self, guilty: Entry, key: Key) -> bool:
        if guilty.deaths:
            return False
        if key in self.lived:
            self.lived.remove(key)
            self.excuses[key] = self.now
            return True
        return guilty.sent_ns <= self.excuses.get(key, -1)

    def _die(self, name: str, index: int | None, blame: Blame = Blame.SURELY) -> None:
        """Whoever it was running is blamed, whether its client still waits or not."""
        sends = self.held.pop(name)
        last = self.serves[name] not in {self.serves[other] for other in self.held}
        if last or name in self.leaving:  # what takes its place may be able to join them
            self.apart[self.serves[name]].clear()
        before = {item: item.deaths for send in sends for item in send.entries}
        guilty: list[Entry] = []
        if index is not None and blame is not Blame.NONE:
            guilty = sends[0].entries if sends[0].together else [sends[0].entries[index]]
        for item in guilty:
            key = self.keys[item]
            if sends[0] is self.trial:
                self.suspects.discard(key)
                self.quarantined.add(key)
            elif blame is Blame.PERHAPS and self._excused(item, key):
                self.excused.add(item)
            elif key not in self.quarantined:
                self.suspects.add(key)
        self._end_trial(sends)
        started = None if index is None else (sends[0].dispatch, WHOLE if sends[0].together else index)
        for refusal in self.scheduler.lost(name, started, self.now, blame):
            assert self.keys[refusal.entry] in self.quarantined
            self._answer(refusal.entry, "refused")
        for item, deaths in before.items():
            assert item.deaths == deaths + (item in guilty)
        if sends:
            assert self.scheduler.finished(name, sends[0].dispatch) is None, "a dead worker's result counted"

    @precondition(lambda self: bool(self.held))
    @rule(data=st.data())
    def worker_leaves(self, data: st.DataObject) -> None:
        name = self._pick(data, lambda name: True)
        self.leaving.add(name)
        self.scheduler.leave(name)

    @rule(model=models)
    def no_worker_will_come(self, model: ModelVersion) -> None:
        self._given_up(self.scheduler.fail(model, "none can be started"), self._waiting(model))

    @rule(model=models)
    def version_goes(self, model: ModelVersion) -> None:
        """When its last worker has."""
        for name in [name for name in self.held if self.serves[name] == model]:
            self._die(name, None)
        self._given_up(self.scheduler.forget(model), self._waiting(model))
        self.lived = {key for key in self.lived if key[0] != model}
        self.excuses = {key: at for key, at in self.excuses.items() if key[0] != model}
        self._expire()
        self._sent(self.scheduler.dispatch(self.now))
        assert model not in self.scheduler._queues, "kept though there is no such version"

    @rule()
    def time_is_up(self) -> None:
        self._given_up(self.scheduler.abandon("over"), set(self.wanted))
        assert not self.wanted

    def _given_up(self, refusals: list[Refuse], those: set[Entry]) -> None:
        assert {refusal.entry for refusal in refusals} == those
        for refusal in refusals:
            assert refusal.error.code is Code.UNAVAILABLE
            self._answer(refusal.entry, "given up")

    @rule(
        dispatch=st.sampled_from(DISPATCHES),
        long_us=st.sampled_from([0.0, 5_000.0]),
        policy=st.sampled_from([fifo, edf, Sjf(10.0)]),
        max_requests=st.integers(1, 6) | st.just(10_000),
    )
    def reload(self, dispatch: str, long_us: float, policy: Policy, max_requests: int) -> None:
        self.rules = dataclasses.replace(self.rules, policy=policy, max_requests=max_requests)
        self.scheduler.govern_all(PoolRules(dispatch, self.limits, long_us))
        for model in (MODEL, OTHER):
            self.scheduler.govern(model, self.rules)

    @rule(item=requests)
    def cancel(self, item: Entry) -> None:
        self.scheduler.cancel(item)
        if item in self.wanted:
            self._answer(item, "cancelled")

    @rule(step=st.integers(1, 10) | st.sampled_from([100_000, 10_000_000, REMEMBERED_NS]), seen=st.booleans())
    def time_passes(self, step: int, seen: bool = True) -> None:
        self.now += step
        if seen:
            self._expire()
        if step >= REMEMBERED_NS:
            self.suspects.clear()
            self.quarantined.clear()

    @invariant()
    def counts_agree(self) -> None:
        assert self.scheduler.unfinished() == len(self.wanted)
        assert all(item.over for item in self.answers)
        assert not any(item.over for item in self.wanted)

    @invariant()
    def queues_count_what_waits(self) -> None:
        for model, queue in self.scheduler._queues.items():
            waiting = self._waiting(model)
            assert queue.length == len(waiting)
            lined = [item for item in waiting if not item.suspect]
            assert set(queue.waiting()) == waiting
            for line in queue.lines.values():
                there = [item for item in lined if item.line is line]
                assert (line.count, line.rows) == (len(there), sum(item.rows for item in there))
                assert line.count
            assert sum(line.count for line in queue.lines.values()) == len(lined)
            assert queue.waiting_s == pytest.approx(sum(item.sure_s for item in lined), abs=1e-9)
            enqueued = queue.enqueued.values()
            assert sum(each.rows for each in enqueued) == sum(item.all_rows for item in lined)
            assert sum(each.runs for each in enqueued) == sum(item.run_count for item in lined if item.rows)
            assert sum(each.filling for each in enqueued) == sum(item.fills for item in lined)
            self._check_room(queue.room, lined, [1] * len(lined))
            for signature, each in queue.enqueued.items():
                mine = [item for item in lined if item.signature == signature and item.rows]
                self._check_room(each.room, mine, [item.all_rows for item in mine])
                filling = [item for item in mine if item.fills]
                self._check_room(each.room_filling, filling, [1] * len(filling))

    def _check_room(self, room: Room, waiting: list[Entry], much: list[int]) -> None:
        """It knows what waits, and what each counts for."""
        if isinstance(room, Crowd):
            for client in "uv":
                of_client = (
                    count for item, count in zip(waiting, much, strict=True) if item.client == client
                )
                assert room.of(client) == sum(of_client)
        else:
            for priority in range(-1, 3):
                first = entry()
                first.priority, first.arrived_ns = priority, self.now
                leaving = list(room.leaving_for(first, 1))
                before = {
                    item: (priority - item.priority) * 10**9 for item in waiting if item.priority < priority
                }
                assert set(leaving) == {item for item in before if self.now - item.arrived_ns < before[item]}
                assert leaving == sorted(leaving, key=lambda item: (item.priority, -item.arrived_ns))

    @invariant()
    def devices_count_what_runs(self) -> None:
        for device in self.scheduler.devices():
            here = [worker for worker in self.scheduler._workers.values() if worker.device is device]
            assert device.running == sum(bool(self.held[worker.name]) for worker in here)
            assert device.long == sum(worker.long for worker in here)
            assert not self.limits.long or device.long <= self.limits.long, "more than the slow lane holds"

    @invariant()
    def bodies_are_kept_while_they_may_matter(self) -> None:
        kept = self.wanted.union(self._in_flight())
        assert {item for item in self.keys if item.body} == kept

    @invariant()
    def nothing_waits_that_is_kept_out(self) -> None:
        waiting = self.wanted.difference(self._in_flight())
        assert not self.quarantined.intersection(self.keys[item] for item in waiting)

    def teardown(self) -> None:
        """Nothing is lost: with fresh workers and no more trouble, everything wanted is answered."""
        if not hasattr(self, "scheduler"):
            return
        for name in list(self.held):
            self._die(name, 0 if self.held[name] else None)
        self.leaving.clear()
        self.worker_joins(MODEL, 1, "g")
        self.worker_joins(OTHER, 2, "h")
        self._expire()
        for _ in range(3 * len(self.wanted) + 3):
            self.time_passes(2000)  # longer than a batch waits
            self.dispatches()
            for name, sends in self.held.items():
                for send in sends:
                    if send is self.trial:
                        self.suspects.discard(self.keys[send.entries[0]])
                    self.scheduler.finished(name, send.dispatch)
                    for item in send.entries:
                        self.scheduler.answered(item, ran=True)
                        self._answer(item, "result")
                self._end_trial(sends)
                sends.clear()
        assert not self.wanted, "a request was lost"
        assert self.scheduler.unfinished() == 0


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=400, stateful_step_count=40)
