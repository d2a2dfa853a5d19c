"""Who is next: policies, priorities, fair shares, limits of devices, and deadlines that cannot be met."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from mpspool.core.errors import Code, Lack, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.router.scheduling import policy
from mpspool.router.scheduling.entry import Entry
from mpspool.router.scheduling.load import Limits
from mpspool.router.scheduling.policy import Sjf, edf, fifo
from mpspool.router.scheduling.queues import QueueRules
from mpspool.router.scheduling.scheduler import PoolRules, Refuse, Scheduler, Send

A = ModelVersion("a", 1)
B = ModelVersion("b", 1)
MS = 1_000_000
NO_LIMITS = Limits()


def make(limits: Limits = NO_LIMITS, long_us: float = 0.0, **rules: object) -> Scheduler:
    scheduler = Scheduler(PoolRules(limits=limits, long_us=long_us), QueueRules(**rules))  # type: ignore[arg-type]
    for size, cost_us in ((1, 1_000), (10, 10_000), (100, 100_000)):
        for model in (A, B, A, B):  # what was seen once refuses nobody
            scheduler.costs.observe(model, "", size, cost_us)
    return scheduler


def ask(
    scheduler: Scheduler,
    size: int = 1,
    at_ms: float = 0,
    *,
    model: ModelVersion = A,
    deadline_ms: float = 0,
    priority: int = 0,
    client: str = "",
) -> Entry:
    """A request of so many bytes: of 1, 10 and 100 it is known that they take 1, 10 and 100 ms."""
    now_ns = int(at_ms * MS)
    entry = Entry(model, "", b"x" * size, now_ns, int(deadline_ms * MS), priority=priority, client=client)
    scheduler.arrive(entry, now_ns)
    return entry


def served(scheduler: Scheduler, now_ms: float = 1_000) -> list[Entry]:
    """All that wait, in the order in which one worker after the other is sent them."""
    order = []
    while sends := scheduler.dispatch(int(now_ms * MS)):
        for send in sends:
            order += send.entries
            scheduler.finished(send.worker, send.dispatch)
            for entry in send.entries:
                scheduler.answered(entry, ran=True)
    return order


def test_fifo_is_the_order_of_arrival() -> None:
    """Whatever they cost."""
    scheduler = make(policy=fifo)
    entries = [ask(scheduler, size, at) for at, size in enumerate((100, 1, 10))]
    scheduler.join("w", A, 1)
    assert served(scheduler) == entries


def test_sjf_takes_the_shortest_first() -> None:
    """Of those that arrived together."""
    scheduler = make(policy=Sjf(100.0))
    long, short, middle = [ask(scheduler, size) for size in (100, 1, 10)]
    scheduler.join("w", A, 1)
    assert served(scheduler) == [short, middle, long]


def test_sjf_starves_nobody() -> None:
    """With an aging of 10, one of 100 ms is passed by those of 1 ms that arrive within 990 ms after it, and by no more."""
    scheduler = make(policy=Sjf(10.0))
    long = ask(scheduler, 100)
    before = ask(scheduler, 1, at_ms=980)
    after = ask(scheduler, 1, at_ms=1_000)
    scheduler.join("w", A, 1)
    assert served(scheduler, 2_000) == [before, long, after]


def test_edf_takes_the_earliest_deadline_first() -> None:
    """What has no deadline counts as one that has ten seconds."""
    scheduler = make(policy=edf)
    none = ask(scheduler)
    late = ask(scheduler, deadline_ms=12_000)
    soon = ask(scheduler, deadline_ms=5_000)
    scheduler.join("w", A, 1)
    assert served(scheduler) == [soon, none, late]


def test_priority_goes_before_what_arrived_up_to_a_second_earlier() -> None:
    """And nobody is starved by it: each step is worth a second of waiting."""
    scheduler = make(policy=fifo)
    old = ask(scheduler, at_ms=0)
    plain = ask(scheduler, at_ms=500)
    urgent = ask(scheduler, at_ms=1_200, priority=1)
    low = ask(scheduler, at_ms=1_200, priority=-1)
    scheduler.join("w", A, 1)
    assert served(scheduler, 2_000) == [old, urgent, plain, low]


def test_a_flood_of_one_client_does_not_hold_up_another() -> None:
    """With fair shares, who asks for one thing is served after one of the flood, not after all of it."""
    scheduler = make(fair=True)
    scheduler.join("w", A, 1)
    for _ in range(50):
        ask(scheduler, 10, client="flood")
    (first,) = scheduler.dispatch(0)
    other = ask(scheduler, 10, client="other")
    scheduler.finished(first.worker, first.dispatch)
    order = served(scheduler, 0)
    assert order.index(other) <= 1


def test_fair_shares_are_by_cost() -> None:
    """One client's long requests and another's short ones get the same time of the worker."""
    scheduler = make(fair=True)
    for _ in range(100):
        ask(scheduler, 10, client="long")
        ask(scheduler, 1, client="short")
    scheduler.join("w", A, 1)
    first = served(scheduler)[:110]
    assert sum(entry.client == "short" for entry in first) == pytest.approx(100, abs=2)


def test_priority_goes_before_what_the_same_client_asked_for_where_clients_share() -> None:
    """Else whoever calls all requests urgent would have everything: each client has its turn, for the most urgent first."""
    scheduler = make(fair=True)
    for _ in range(50):
        ask(scheduler, 10, client="flood", priority=999)
    other = ask(scheduler, 10, client="other")
    low = ask(scheduler, 10, client="other", priority=-1)
    plain = ask(scheduler, 10, client="other")
    urgent = ask(scheduler, 10, client="other", priority=1)
    scheduler.join("w", A, 1)
    order = served(scheduler)
    assert [entry for entry in order if entry.client == "other"] == [urgent, other, plain, low]
    assert order.index(low) <= 8


def test_priority_says_nothing_between_models_where_clients_share() -> None:
    """On a device that limits what runs, one model's urgent flood leaves the other its part."""
    scheduler = make(Limits(running=1), fair=True)
    for name, model in (("a", A), ("b", B)):
        scheduler.join(name, model, 1, "gpu0")
    for _ in range(50):
        ask(scheduler, 10, model=A, client="flood", priority=999)
    other = ask(scheduler, 10, model=B, client="other")
    assert served(scheduler).index(other) <= 1


def test_a_device_runs_no_more_than_it_may() -> None:
    """With two at once, over all models on it, the third waits though its worker is idle."""
    scheduler = make(Limits(running=2))
    for name, model in (("a1", A), ("a2", A), ("b1", B)):
        scheduler.join(name, model, 1, "gpu0")
    for model in (A, A, B):
        ask(scheduler, 10, model=model)
    sends = scheduler.dispatch(0)
    assert len(sends) == 2
    scheduler.finished(sends[0].worker, sends[0].dispatch)
    assert len(scheduler.dispatch(0)) == 1


def test_a_models_flood_does_not_keep_another_from_a_device() -> None:
    """Where models share what may run at once, they take turns by cost, whoever was there first."""
    scheduler = make(Limits(running=1))
    scheduler.join("a", A, 1, "gpu0")
    scheduler.join("b", B, 1, "gpu0")
    for _ in range(50):
        ask(scheduler, 10, model=A)
    (first,) = scheduler.dispatch(0)
    other = ask(scheduler, 10, model=B)
    scheduler.finished(first.worker, first.dispatch)
    order = served(scheduler, 0)
    assert order.index(other) <= 1


def by_size(waiting: policy.Waiting) -> float:
    return float(waiting.size)


@pytest.mark.parametrize(
    ("flooded", "other"),
    [
        (fifo, edf),
        (edf, fifo),
        (Sjf(3.0), fifo),
        (by_size, fifo),
        (fifo, by_size),
        (by_size, by_size),
        (Sjf(3.0), Sjf(3.0)),
    ],
)
@pytest.mark.parametrize("deadline_ms", [0, 1_000_000])
def test_models_take_turns_whatever_their_policies_are(
    flooded: policy.Policy, other: policy.Policy, deadline_ms: float
) -> None:
    """What two policies say is not compared, nor what one says that is no time; a day after the machine has started, too."""
    scheduler = make(Limits(running=1))
    day_ms = 86_400_000
    for name, model, chosen in (("a", A, flooded), ("b", B, other)):
        scheduler.govern(model, QueueRules(policy=chosen, refuse_late=False))
        scheduler.join(name, model, 1, "gpu0")
    for _ in range(50):
        ask(scheduler, 10, at_ms=day_ms, model=A)
    late = [
        ask(scheduler, 10, at_ms=day_ms, model=B, deadline_ms=deadline_ms and day_ms + deadline_ms)
        for _ in range(5)
    ]
    order = served(scheduler, day_ms)
    assert max(order.index(entry) for entry in late) <= 11


def test_long_jobs_keep_to_the_slow_lane() -> None:
    """With a lane of one, the second long job waits though workers are idle, and a short one behind it does not."""
    scheduler = make(Limits(long=1), long_us=50_000)
    for name in ("w1", "w2", "w3"):
        scheduler.join(name, A, 1, "gpu0")
    first, second = ask(scheduler, 100), ask(scheduler, 100)
    short = ask(scheduler, 1)
    sends = scheduler.dispatch(0)
    assert [send.entries for send in sends] == [[first], [short]]
    (lane,) = [send for send in sends if send.entries == [first]]
    scheduler.finished(lane.worker, lane.dispatch)
    assert [send.entries for send in scheduler.dispatch(0)] == [[second]]


def test_each_device_has_a_slow_lane() -> None:
    """One long job on each of two devices."""
    scheduler = make(Limits(long=1), long_us=50_000)
    for name, device in (("w1", "gpu0"), ("w2", "gpu0"), ("w3", "gpu1")):
        scheduler.join(name, A, 1, device)
    for _ in range(3):
        ask(scheduler, 100)
    assert {send.worker for send in scheduler.dispatch(0)} in ({"w1", "w3"}, {"w2", "w3"})


def test_what_is_long_is_found_out() -> None:
    """Where nobody says from which cost on, it is what costs well above the average."""
    scheduler = make(Limits(long=1))
    for _ in range(200):
        scheduler.cancel(ask(scheduler, 1))
    assert ask(scheduler, 100).long
    assert not ask(scheduler, 1).long


def test_the_least_loaded_device_is_taken_first() -> None:
    """A worker on the device that runs least, over all models."""
    scheduler = make()
    scheduler.join("b", B, 1, "gpu0")
    ask(scheduler, 10, model=B)
    assert len(scheduler.dispatch(0)) == 1
    scheduler.join("a0", A, 1, "gpu0")
    scheduler.join("a1", A, 1, "gpu1")
    ask(scheduler, 10)
    assert [send.worker for send in scheduler.dispatch(0)] == ["a1"]


@pytest.mark.parametrize(
    ("before", "deadline_ms", "in_time"), [(1, 19, False), (1, 21, True), (4, 49, False), (4, 51, True)]
)
def test_what_cannot_meet_its_deadline_is_refused_at_once(
    before: int, deadline_ms: int, in_time: bool
) -> None:
    """By what it costs and by what waits before it."""
    scheduler = make()
    scheduler.join("w", A, 1)
    for _ in range(before):
        ask(scheduler, 10)
    if in_time:
        ask(scheduler, 10, deadline_ms=deadline_ms)
        return
    with pytest.raises(
        PoolError, match=r"take 10.0 ms and what waits before it \d0.0 ms; it was not run"
    ) as refused:
        ask(scheduler, 10, deadline_ms=deadline_ms)
    assert (refused.value.code, refused.value.lack) == (Code.DEADLINE_EXCEEDED, Lack.TIME)
    assert scheduler.unfinished() == before


@pytest.mark.parametrize(("deadline_ms", "in_time"), [(109, False), (111, True)])
@pytest.mark.parametrize("rule", [fifo, Sjf(10.0)])
def test_what_cannot_meet_its_deadline_for_what_runs(
    rule: policy.Policy, deadline_ms: int, in_time: bool
) -> None:
    """The first of two workers, which began 100 ms of work 5 ms before the other, has 90 of them left."""
    scheduler = make(policy=rule)
    for number in range(2):
        scheduler.join(f"w{number}", A, 1)
        ask(scheduler, 100)
        scheduler.dispatch(5 * number * MS)
    if in_time:
        ask(scheduler, 10, at_ms=10, deadline_ms=deadline_ms)
        return
    with pytest.raises(
        PoolError, match=r"take 10.0 ms and what runs now another 90.0 ms; it was not run"
    ) as refused:
        ask(scheduler, 10, at_ms=10, deadline_ms=deadline_ms)
    assert (refused.value.code, refused.value.lack) == (Code.DEADLINE_EXCEEDED, Lack.TIME)


def test_what_was_seen_once_refuses_nobody() -> None:
    """A first run of 400 ms is not what the next one with 50 ms is refused for, though it waits."""
    scheduler = make()
    scheduler.join("w", A, 1)
    scheduler.costs.observe(A, "", 1000, 400_000)
    ask(scheduler, 10)
    scheduler.dispatch(0)
    assert ask(scheduler, 1000, deadline_ms=50).waiting
    scheduler.costs.observe(A, "", 1000, 400_000)
    with pytest.raises(PoolError, match="expected to take 400"):
        ask(scheduler, 1000, deadline_ms=50)


def test_what_was_seen_once_is_run_and_learned() -> None:
    """Before it is run it makes way for nobody, or all but the last of many would be refused for a first run's cost."""
    scheduler = make()
    scheduler.join("w", A, 1)
    scheduler.costs.observe(A, "", 1000, 400_000)
    waiting = [ask(scheduler, 1000, deadline_ms=300) for _ in range(5)]
    (send,) = scheduler.dispatch(0)
    assert send.entries == waiting[:1]


def test_what_runs_longer_than_anybody_knew_keeps_nobody_out() -> None:
    """It may end at any time; what is behind it on its worker takes as long as it ever did."""
    scheduler = make()
    scheduler.join("w", A, 2)
    for at_ms in (0, 99):
        ask(scheduler, 100 if not at_ms else 10, at_ms)
        scheduler.dispatch(at_ms * MS)
    assert scheduler.in_flight("w") == 2
    assert ask(scheduler, 10, 500, deadline_ms=521).waiting
    for deadline_ms in (520, 505):  # all of it is told, also where a part would do
        with pytest.raises(
            PoolError, match=r"take 1.0 ms and what waits before it 10.0 ms and what runs now another 10.0 ms"
        ):
            ask(scheduler, 1, 500, deadline_ms=deadline_ms)


def test_who_leaves_will_not_be_free() -> None:
    """A worker that is sent nothing more has no end that anybody could wait for."""
    scheduler = make()
    for name in ("goes", "stays"):
        scheduler.join(name, A, 1)
    scheduler.leave("goes")
    ask(scheduler, 100)
    assert [send.worker for send in scheduler.dispatch(0)] == ["stays"]
    with pytest.raises(PoolError, match=r"what runs now another 100.0 ms"):
        ask(scheduler, 10, deadline_ms=50)


@pytest.mark.parametrize(("before", "in_time"), [(7, True), (8, False)])
def test_a_deadline_is_judged_by_when_a_request_is_begun(before: int, in_time: bool) -> None:
    """It need not wait until all before it have been run: four workers that are idle begin twice four of them within 10 ms."""
    scheduler = make()
    for number in range(4):
        scheduler.join(f"w{number}", A, 1)
    for _ in range(before):
        ask(scheduler, 10)
    if in_time:
        assert ask(scheduler, 10, deadline_ms=22).waiting
        return
    with pytest.raises(PoolError, match="what waits before it"):
        ask(scheduler, 10, deadline_ms=22)


def test_workers_that_leave_are_no_workers_for_what_waits() -> None:
    """Of four three are sent nothing more: 80 ms of work wait for the one that stays."""
    scheduler = make()
    for number in range(4):
        scheduler.join(f"w{number}", A, 1)
    for number in range(3):
        scheduler.leave(f"w{number}")
    for _ in range(8):
        ask(scheduler, 10)
    with pytest.raises(PoolError, match=r"what waits before it 80.0 ms"):
        ask(scheduler, 10, deadline_ms=80)


@pytest.mark.parametrize(
    ("deadline_ms", "sizes"),
    [
        (0, [4, 2]),
        (4.5, [4, 2]),
        (3.5, [3, 3]),
        (2.5, [2, 4]),
        (1.5, [1, 0, 4]),  # it is the first of the next one, and leaves
    ],
)
def test_a_dispatch_has_ended_when_it_is_late_for_one_of_it(deadline_ms: float, sizes: list[int]) -> None:
    """All of it is answered when its last has been run: the second of six of 1 ms, which go four at a time, has less time than others."""
    scheduler = make()
    for at in range(6):
        ask(scheduler, 1, deadline_ms=deadline_ms if at == 1 else 1_000)
    scheduler.join("w", A, 1)
    found = []
    now_ns = 0
    while orders := scheduler.dispatch(now_ns):
        found += [0 for order in orders if isinstance(order, Refuse)]
        (send,) = (order for order in orders if isinstance(order, Send))
        found.append(len(send.entries))
        now_ns += len(send.entries) * MS
        scheduler.finished(send.worker, send.dispatch, now_ns=now_ns)
    assert found == sizes


def test_in_a_crowd_who_is_cut_fine_leaves() -> None:
    """Ten requests of 1 ms that were given 24 ms, one each millisecond: a dispatch has 3 ms of them, each with the time for all of it."""
    scheduler = make()
    entries = [ask(scheduler, 1, at, deadline_ms=24 + at) for at in range(10)]
    scheduler.join("w", A, 1)
    *refused, send = scheduler.dispatch(int(22 * MS))
    assert [order.entry for order in refused] == entries[:2]
    assert send.entries == entries[2:5]
    scheduler.finished(send.worker, send.dispatch)
    for entry in entries[5:8]:
        scheduler.cancel(entry)
    refused, send = scheduler.dispatch(30 * MS)
    assert refused.entry is entries[8], "two are a crowd still, for one worker"
    assert send.entries == entries[9:], "the last is run, however little time it has"


def test_who_is_cut_fine_is_run_where_nobody_waits_for_it() -> None:
    """With a worker for each, who has 1.1 ms left for what takes 1 ms is tried."""
    scheduler = make()
    entries = [ask(scheduler, 1, deadline_ms=20) for _ in range(2)]
    for name in "vw":
        scheduler.join(name, A, 1)
    sends = scheduler.dispatch(int(18.9 * MS))
    assert [send.entries for send in sends] == [[entry] for entry in entries]


def test_nobody_is_refused_for_what_is_not_known() -> None:
    """Without a prediction, without a worker, or told not to, a request is taken in."""
    scheduler = make()
    ask(scheduler, 100, deadline_ms=1)
    scheduler.join("w", A, 1)
    ask(scheduler, 3, deadline_ms=1)
    scheduler = make(refuse_late=False)
    scheduler.join("w", A, 1)
    ask(scheduler, 100)
    ask(scheduler, 100, deadline_ms=1)


def test_nobody_is_refused_for_those_who_let_it_pass() -> None:
    """What waits with a lower priority is not before it."""
    scheduler = make()
    scheduler.join("w", A, 1)
    for _ in range(10):
        ask(scheduler, 100, priority=-5)
    assert ask(scheduler, 10, deadline_ms=50).waiting


def test_what_keeps_nobody_waiting_is_tried() -> None:
    """An idle worker takes what is expected to be late: else nobody would ever learn that it is not any more."""
    scheduler = make()
    scheduler.join("w", A, 1)
    ask(scheduler, 100, deadline_ms=1)


def test_a_deadline_that_has_passed_is_refused_at_the_door() -> None:
    """Even where nothing is known of its cost."""
    with pytest.raises(PoolError) as refused:
        ask(make(refuse_late=False), 3, at_ms=10, deadline_ms=9)
    assert (refused.value.code, refused.value.lack) == (Code.DEADLINE_EXCEEDED, None)


def _install(folder: Path, source: str) -> None:
    (folder / "mine.py").write_text(source)
    info = folder / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mpspool.policies]\nlast_first = mine:last_first\n")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a policy, on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


@pytest.mark.parametrize("name", ["last_first", "mine:last_first", "mine:Mine.last_first"])
def test_a_policy_of_ones_own(mine: Path, name: str) -> None:
    """By the name of its entry point, or by module and attribute, or attribute of that."""
    _install(
        mine,
        "def last_first(waiting):\n    return -waiting.arrived_s\nclass Mine:\n    last_first = last_first\n",
    )
    scheduler = make(policy=policy.find(name, aging=1.0))
    entries = [ask(scheduler, at_ms=at) for at in (1, 2, 3)]
    scheduler.join("w", A, 1)
    assert served(scheduler) == entries[::-1]


@pytest.mark.parametrize(
    "body",
    [
        "raise RuntimeError('no')",
        "raise SystemExit",
        "raise GeneratorExit",
        "import asyncio; raise asyncio.CancelledError",
        "raise type('Odd', (Exception,), {'__str__': None})",
        "return float('nan')",
        "return float('inf')",
        "return '1'",
    ],
)
def test_a_policy_that_fails_harms_no_request(mine: Path, body: str) -> None:
    """They go in the order of arrival and are counted, and the log says once why."""
    _install(mine, f"def last_first(waiting):\n    {body}\n")
    found = policy.find("last_first", aging=1.0)
    assert isinstance(found, policy.Own)
    scheduler = make(policy=found)
    with capture_logs() as logs:
        entries = [ask(scheduler, at_ms=at) for at in (1, 2, 3)]
    scheduler.join("w", A, 1)
    assert served(scheduler) == entries
    assert [(line["policy"], line["error"]) for line in logs] == [("last_first", found.error)]
    assert found.failures == 3


def test_a_slow_policy_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, from when it takes long as a rule; a processor that others had for a moment makes nothing slow."""
    now_s, takes_s = 100.0, 0.3

    def mine(waiting: policy.Waiting) -> float:
        nonlocal now_s
        now_s += takes_s
        return -waiting.arrived_s

    monkeypatch.setattr(policy.time, "perf_counter", lambda: now_s)
    found = policy.Own("mine", mine)
    scheduler = make(policy=found)
    with capture_logs() as logs:
        ask(scheduler)
        assert not found.is_slow
        for seconds, slow in ((0.05, True), (0.001, False), (0.05, True)):
            takes_s = seconds
            for _ in range(200):
                assert ask(scheduler, at_ms=1).key < 0  # it is asked all the same
            assert found.is_slow is slow
    assert [line["event"].partition(";")[0] for line in logs] == ["policy is slow"] * 2
    assert found.spent_s == pytest.approx(0.3 + 200 * 0.101)
    assert found.failures == 0


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("nosuch", LookupError),
        ("nosuch:policy", ImportError),
        ("sys:nosuch", AttributeError),
        ("sys:path", TypeError),
    ],
)
def test_a_policy_that_is_not_there(name: str, error: type[Exception]) -> None:
    """Is an error that says what was looked for."""
    with pytest.raises(error, match=r"nosuch|path"):
        policy.find(name, aging=1.0)


def test_two_that_overlap_count_half_each() -> None:
    """Two dispatches that share a device from end to end are taken to need half their time alone; one alone, all of it."""
    scheduler = make()
    for name in ("w1", "w2"):
        scheduler.join(name, A, 1, "gpu0")
    ask(scheduler, 100)
    ask(scheduler, 100)
    sends = scheduler.dispatch(0)
    batches = [scheduler.finished(send.worker, send.dispatch, now_ns=100 * MS) for send in sends]
    assert [batch.alone for batch in batches if batch] == [0.5, 0.5]
    ask(scheduler, 100)
    (send,) = scheduler.dispatch(200 * MS)
    alone = scheduler.finished(send.worker, send.dispatch, now_ns=300 * MS)
    assert alone is not None
    assert alone.alone == 1.0


def test_an_overlap_counts_for_as_long_as_it_lasts() -> None:
    """100 ms, of which 50 beside another: 75 ms alone."""
    scheduler = make()
    for name in ("w1", "w2"):
        scheduler.join(name, A, 1, "gpu0")
    ask(scheduler, 100)
    (first,) = scheduler.dispatch(0)
    ask(scheduler, 100)
    (second,) = scheduler.dispatch(50 * MS)
    one = scheduler.finished(first.worker, first.dispatch, now_ns=100 * MS)
    other = scheduler.finished(second.worker, second.dispatch, now_ns=150 * MS)
    assert one is not None
    assert other is not None
    assert (one.alone, other.alone) == (0.75, 0.75)


def test_what_waits_behind_another_begins_after_it() -> None:
    """A second dispatch on the same worker has the device to itself once the first has ended."""
    scheduler = make()
    scheduler.join("w", A, 2, "gpu0")
    ask(scheduler, 1)
    (first,) = scheduler.dispatch(0)
    ask(scheduler, 1)
    (second,) = scheduler.dispatch(0)
    scheduler.finished(first.worker, first.dispatch, now_ns=1 * MS)
    behind = scheduler.finished(second.worker, second.dispatch, now_ns=2 * MS)
    assert behind is not None
    assert behind.alone == 1.0


def test_the_example_policy_is_found_and_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that the README shows, under the name in its pyproject.toml."""
    folder = Path(__file__).parents[2] / "examples" / "policy"
    points = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]
    monkeypatch.syspath_prepend(str(folder))
    scheduler = make(policy=policy.find(points[policy.GROUP]["small_first"], aging=1.0))
    large, small = ask(scheduler, 100), ask(scheduler, 1)
    scheduler.join("w", A, 1)
    assert served(scheduler) == [small, large]
