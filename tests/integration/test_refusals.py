"""Every refusal of batching and scheduling as a client of a whole pool sees it: its code and its text, and how it is counted."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from mpspool.core.errors import Code, Lack
from tests.conftest import PoolStarter
from tests.integration.test_grpc_wire import Raw, message
from tests.light import LightPool, answer, body, half, inputs, light_pool, spec
from tests.polling import until
from tests.pool import CLI, ROOT

Shape = tuple[int, ...]
POOL: dict[str, Any] = {
    "cpu_slots": 1,
    "max_queued_bytes": 300_000,
    "max_queued_bytes_per_model": 100_000,
    "models": {
        "plain": {"max_queued_requests": 3},
        "small": {"max_queued_bytes": 50_000, "batching": {"max_batch_size": 4, "max_enqueued_batches": 1}},
        "large": {"max_queued_bytes": 1_000_000},
        "batched": {
            "batching": {
                "max_batch_size": 4,
                "max_enqueued_batches": 2,
                "enable_large_batch_splitting": True,
                "max_execution_batch_size": 2,
            }
        },
    },
}
# Clients share, by their x-tenant.
FAIR: dict[str, Any] = {
    "cpu_slots": 1,
    "max_queued_bytes": 300_000,
    "max_queued_bytes_per_model": 100_000,
    "scheduling": {"fair_by": "metadata:x-tenant"},
    "models": {
        "plain": {"max_queued_requests": 3},
        "large": {"max_queued_bytes": 1_000_000},
        "batched": {"batching": {"max_batch_size": 4, "max_enqueued_batches": 2}},
    },
}


@pytest.fixture(scope="module")
def pool(start_module_pool: PoolStarter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LightPool]:
    with light_pool(start_module_pool, tmp_path_factory.mktemp("refusals"), POOL) as started:
        yield started


@pytest.fixture(scope="module")
def fair(start_module_pool: PoolStarter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LightPool]:
    with light_pool(start_module_pool, tmp_path_factory.mktemp("fair"), FAIR) as started:
        yield started


def refusals(pool: LightPool, model: str) -> Counter[Lack]:
    """What the metrics have counted of a model: for want of what its requests were refused."""
    name, labels = "mpspool_refusals_total", {"model": model, "version": "1"}
    return Counter({lack: int(pool.metric(name, **labels, reason=lack.value)) for lack in Lack})


def is_text(said: str, text: str) -> bool:
    """Whether that is what was said; "*" is any number."""
    return re.fullmatch(re.escape(text).replace(r"\*", r"[\d.]+"), said) is not None


@dataclass(frozen=True)
class Refusal:
    """What is refused while the model's worker is busy.

    Attributes:
        lack: for want of what it is counted; None where the request is at fault.
        shape: of the request that is refused.
        waiting: of those that wait already.
        text: of the refusal, in which "*" is any number.
        signature: of the request that is refused.
        waiting_signature: of those that wait.
    """

    model: str
    code: grpc.StatusCode
    lack: Lack | None
    text: str
    shape: Shape = (1,)
    waiting: tuple[Shape, ...] = ()
    signature: str = ""
    waiting_signature: str = ""
    timeout_s: float = 30
    priority: str = "0"


REFUSALS = {
    "max_queued_requests": Refusal(
        "plain",
        grpc.StatusCode.UNAVAILABLE,
        Lack.REQUESTS,
        "The queue of plain@1 is full: 3 requests wait and max_queued_requests is 3; try again later",
        waiting=((1,), (1,), (1,)),
    ),
    "max_enqueued_batches": Refusal(
        "small",
        grpc.StatusCode.UNAVAILABLE,
        Lack.BATCHES,
        "The batch scheduling queue to which this task was submitted is full; currently 1 batches enqueued and "
        "max_enqueued_batches is 1",
        waiting=((4,),),
    ),
    "max_enqueued_batches, where requests are split": Refusal(
        "batched",
        grpc.StatusCode.UNAVAILABLE,
        Lack.BATCHES,
        "The batch scheduling queue to which this task was submitted is full; task size is 1 but scheduling capacity "
        "is only 0 (num_enqueued_batches=*, max_enqueued_batches=2, open_batch_size=2, max_execution_batch_size=2)",
        waiting=((2,), (2,)),
    ),
    "max_enqueued_batches, full after a part": Refusal(
        "batched",
        grpc.StatusCode.UNAVAILABLE,
        Lack.BATCHES,
        "The batch scheduling queue to which this task was submitted is full; task size is 4 but scheduling capacity "
        "is only 2 (num_enqueued_batches=*, max_enqueued_batches=2, open_batch_size=2, max_execution_batch_size=2)",
        shape=(4,),
        waiting=((2,),),
    ),
    "max_batch_size": Refusal(
        "small",
        grpc.StatusCode.INVALID_ARGUMENT,
        None,
        "Task size 5 is larger than maximum input batch size 4",
        shape=(5,),
    ),
    "max_batch_size, where requests are split": Refusal(
        "batched",
        grpc.StatusCode.INVALID_ARGUMENT,
        None,
        "Task size 5 is larger than maximum input batch size 4",
        shape=(5,),
    ),
    "max_queued_bytes_per_model": Refusal(
        "plain",
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        Lack.BYTES,
        "Requests and answers of plain hold * of 100000 bytes and this one has *; try again later, or raise the model's "
        "max_queued_bytes, or max_queued_bytes_per_model",
        shape=(1, 15_000),
        waiting=((1, 15_000),),
    ),
    "models[].max_queued_bytes": Refusal(
        "small",
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        Lack.BYTES,
        "Requests and answers of small hold * of 50000 bytes and this one has *; try again later, or raise the model's "
        "max_queued_bytes, or max_queued_bytes_per_model",
        shape=(1, 7_500),
        waiting=((1, 7_500),),
    ),
    "more than models[].max_queued_bytes": Refusal(
        "small",
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        Lack.BYTES,
        "The request has * bytes and max_queued_bytes for small is 50000: make it smaller, or raise that, or max_queued_bytes_per_model",
        shape=(1, 15_000),
    ),
    "max_queued_bytes": Refusal(
        "large",
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        Lack.BYTES,
        "Requests and answers hold * of 300000 bytes and this one has *; try again later, or raise max_queued_bytes",
        shape=(1, 45_000),
        waiting=((1, 45_000),),
    ),
    "more than max_queued_bytes": Refusal(
        "large",
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        Lack.BYTES,
        "The request has * bytes and max_queued_bytes is 300000: make it smaller, or raise that",
        shape=(1, 80_000),
    ),
    "refuse_late": Refusal(
        "plain",
        grpc.StatusCode.DEADLINE_EXCEEDED,
        Lack.TIME,
        "Deadline exceeded: it is * ms away, the request is expected to take * ms; it was not run",
        signature="slow",
        timeout_s=9,
    ),
    "refuse_late, by what waits before it": Refusal(
        "plain",
        grpc.StatusCode.DEADLINE_EXCEEDED,
        Lack.TIME,
        "Deadline exceeded: it is * ms away, the request is expected to take * ms and what waits before it * ms; "
        "it was not run",
        waiting=((1,),),
        waiting_signature="slow",
        timeout_s=9,
    ),
    "priority_key": Refusal(
        "plain",
        grpc.StatusCode.INVALID_ARGUMENT,
        None,
        "x-mpspool-priority is 'high': it must be a whole number from -999 to 999, 0 for what has none; "
        "more goes first",
        priority="high",
    ),
}


@pytest.mark.parametrize("case", REFUSALS.values(), ids=REFUSALS)
def test_a_refusal(pool: LightPool, case: Refusal) -> None:
    """It comes at once, is counted, and harms nobody: those that wait are answered, and so is who asks again."""
    for signature in {case.signature, case.waiting_signature} if case.lack is Lack.TIME else ():
        for _ in range(2):  # what it has seen but once refuses nobody
            pool.learn(case.model, signature)
    counted = pool.metric("mpspool_requests_total", code=case.code.name)
    before = refusals(pool, case.model)
    waiting = [pool.values(*shape) for shape in case.waiting]
    x = pool.values(*case.shape)
    with pool.busy(case.model):
        calls = [pool.queue(case.model, one, case.waiting_signature) for one in waiting]
        refused = pool.send(case.model, x, case.signature, case.timeout_s, x_mpspool_priority=case.priority)
        assert refused.code() is case.code, refused.details()
        assert is_text(refused.details(), case.text), refused.details()
        assert pool.metric("mpspool_requests_total", code=case.code.name) == counted + 1
        assert refusals(pool, case.model) - before == Counter([case.lack] if case.lack else [])
        assert pool.waiting(case.model) == len(case.waiting)
    assert [answer(call) for call in calls] == [half(one) for one in waiting]
    assert not pool.began(case.model, x)
    pool.learn(case.model)


@pytest.mark.parametrize(("model", "room", "lack"), [("plain", 3, Lack.REQUESTS), ("small", 4, Lack.BATCHES)])
def test_what_is_more_urgent_takes_a_place(pool: LightPool, model: str, room: int, lack: Lack) -> None:
    """In a full queue the last of the lowest priority leaves for it, and is told so; what is as urgent is refused."""
    _, left = full_queue(pool, model, room, lack, {"x_mpspool_priority": "-1"}, {})
    assert "the place of this one went to one of higher priority (scheduling.priority_key)" in left
    pool.learn(model)


def test_a_large_message_is_refused_before_it_is_read(pool: LightPool) -> None:
    """Of 40 kB its client has sent the first 8 when it is told that the queue is full; by REST it is not even asked for them."""
    large = body("plain", pool.values(1, 10_000))
    path = "/v1/models/plain:predict"
    with pool.busy("plain"):
        calls = [pool.queue("plain", pool.values(1)) for _ in range(3)]
        client = Raw(pool.pool.grpc_port)
        number = client.begin()
        client.data(number, message(large)[:8192])
        refused = client.answer(number)
        assert refused.code is Code.UNAVAILABLE
        assert "max_queued_requests is 3" in refused.headers["grpc-message"]
        client.socket.close()
        with socket.create_connection(("127.0.0.1", pool.pool.rest_port), timeout=10) as rest:
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 40000\r\n\r\n"
            rest.sendall(head.encode())
            assert rest.recv(4096).startswith(b"HTTP/1.1 503 ")
        assert pool.waiting("plain") == 3
    for call in calls:
        answer(call)


def full_queue(
    pool: LightPool, model: str, room: int, lack: Lack, many: dict[str, str], newcomer: dict[str, str]
) -> list[str]:
    """What two are told that are refused: one more of those that fill a queue, by their metadata, and who leaves for a newcomer."""
    before = refusals(pool, model)
    asked = [pool.values(1) for _ in range(room)]
    more, other = pool.values(1), pool.values(1)
    with pool.busy(model):
        calls = [pool.queue(model, x, **many) for x in asked]
        refused = [pool.send(model, more, **many)]
        assert refused[0].code() is grpc.StatusCode.UNAVAILABLE
        calls.append(pool.send(model, other, **newcomer))
        refused.append(calls.pop(room - 1))
        assert refused[1].code() is grpc.StatusCode.UNAVAILABLE
        assert pool.waiting(model) == room
        assert refusals(pool, model) - before == Counter({lack: 2})
    assert [answer(call) for call in calls] == [half(x) for x in [*asked[:-1], other]]
    assert not pool.began(model, asked[-1])
    assert not pool.began(model, more)
    return [call.details() for call in refused]


def test_a_deadline_that_passes_in_the_queue(pool: LightPool) -> None:
    """DEADLINE_EXCEEDED while the worker is busy still, no refusal, and the worker never sees the request."""
    labels = {"model": "plain", "code": "DEADLINE_EXCEEDED"}
    counted = pool.metric("mpspool_requests_total", **labels)
    before = refusals(pool, "plain")
    x = pool.values(1)
    with pool.busy("plain"):
        call = pool.queue("plain", x, "unknown", timeout_s=5)
        assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        until(lambda: pool.waiting("plain") == 0, 10, "nothing waits")
    assert pool.metric("mpspool_requests_total", **labels) == counted + 1
    assert refusals(pool, "plain") == before
    pool.learn("plain")
    assert not pool.began("plain", x)


@pytest.mark.parametrize("model", ["plain", "batched"])
def test_a_cancelled_request_leaves_the_queue(pool: LightPool, model: str) -> None:
    """At once, while the worker is busy still; it is counted, never begun, and no refusal; who is behind it is answered."""
    labels = {"model": model, "code": "CANCELLED"}
    counted, before = pool.metric("mpspool_requests_total", **labels), refusals(pool, model)
    first, second = pool.values(1), pool.values(1)
    with pool.busy(model):
        cancelled, call = pool.queue(model, first), pool.queue(model, second)
        assert cancelled.cancel()
        until(lambda: pool.metric("mpspool_requests_total", **labels) == counted + 1, 10, "it is counted")
        assert pool.waiting(model) == 1
        assert not call.done()
    assert answer(call) == half(second)
    assert not pool.began(model, first)
    assert refusals(pool, model) == before


def let_pass(seconds: float) -> None:
    """Waits for the clock, where it is time itself that makes the difference."""
    end_s = time.monotonic() + seconds
    until(lambda: time.monotonic() >= end_s, 2 * seconds, f"{seconds} s pass")


def test_what_became_late_in_the_queue(pool: LightPool) -> None:
    """It was in time on arrival, and is not any more when it is its turn: it makes way for who can be, long before its end."""
    pool.learn("plain", "slow")
    before = refusals(pool, "plain")
    slow, quick = pool.values(1), pool.values(1)
    with pool.busy("plain"):
        late = pool.queue("plain", slow, "slow", timeout_s=13)  # 3 s more than it is known to take
        call = pool.queue("plain", quick)
        let_pass(3.5)
        assert not late.done()
    assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    text = "Deadline exceeded: too little time was left for the request, and others wait that have more; it was not run"
    assert late.details() == text
    assert answer(call) == half(quick)
    assert refusals(pool, "plain") - before == Counter([Lack.TIME])
    assert not pool.began("plain", slow)


def test_late_by_what_runs(pool: LightPool) -> None:
    """Nothing waits, but the worker is known to be busy for longer than there is time."""
    for signature in ("", "slow"):
        pool.learn("plain", signature)
    running, late = pool.values(1), pool.values(1)
    before = refusals(pool, "plain")
    with pool.held(running):
        call = pool.send("plain", running, "slow")
        until(lambda: pool.began("plain", running), 10, "it runs")
        refused = pool.send("plain", late, timeout_s=5)
        assert refused.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert is_text(
            refused.details(),
            "Deadline exceeded: it is * ms away, the request is expected to take * ms and what runs now another * ms; it was not run",
        ), refused.details()
        assert refusals(pool, "plain") - before == Counter([Lack.TIME])
    assert answer(call) == half(running)
    assert not pool.began("plain", late)


def test_late_by_the_batches_before_it(pool: LightPool) -> None:
    """Each batch is known to take 2 s: a second one is late where 3 s are left, though it would not be by itself."""
    *known, waits, late = (pool.values(2) for _ in range(4))
    for x in known:
        with pool.held(x):
            call = pool.send("batched", x, "slow")
            until(lambda x=x: pool.began("batched", x), 10, "it runs")  # type: ignore[misc]
            let_pass(2)
        assert answer(call) == half(x)
    before = refusals(pool, "batched")
    with pool.busy("batched"):
        call = pool.queue("batched", waits, "slow")
        refused = pool.send("batched", late, "slow", timeout_s=3)
        assert refused.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        text = REFUSALS["refuse_late, by what waits before it"].text
        assert is_text(refused.details(), text), refused.details()
        assert refusals(pool, "batched") - before == Counter([Lack.TIME])
    assert answer(call) == half(waits)
    assert not pool.began("batched", late)


def test_an_output_without_rows_of_a_request_in_parts(pool: LightPool) -> None:
    """It is told by its name, and that it is not the client's fault but what was asked to be split."""
    refused = pool.send("batched", pool.values(3), "total")
    assert refused.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert 'the output "y", of shape [], does not have a row for each row of the inputs' in refused.details()
    assert "enable_large_batch_splitting" in refused.details()
    x = pool.values(2)
    assert answer(pool.send("batched", x, "total")) == x.sum()


def test_inputs_of_unequal_rows_run_whole(pool: LightPool) -> None:
    """However many there are, and whichever input comes first."""
    x, more = pool.values(3), pool.values(2)
    asked, other = body("batched", x, "pair"), inputs(z=more)
    for whole in (asked + other, other + asked):
        assert answer(pool.call(whole)) == half(x)


@pytest.mark.parametrize(
    ("values", "limit"),
    [(40_000, "models that their first bytes do not name is 150000"), (30_000, "plain is 100000")],
)
def test_what_names_its_model_at_its_end(pool: LightPool, values: int, limit: str) -> None:
    """It may have half of all bytes while nobody knows whose it is, and as many as its model may once that is known."""
    x = pool.values(1, values)
    refused = pool.call(inputs(x=x) + spec("plain"))
    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    text = f"The request has * bytes and max_queued_bytes for {limit}: make it smaller, or raise that, or max_queued_bytes_per_model"
    assert is_text(refused.details(), text), refused.details()


def test_the_status_tells_what_was_refused(pool: LightPool) -> None:
    """By version and for want of what, as the metrics have it."""
    assert pool.send("large", pool.values(80_000)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    counted = refusals(pool, "large")
    assert counted[Lack.BYTES] >= 1

    def told() -> Counter[Lack]:
        mine = [
            one for one in pool.pool.status()["refusals"] if (one["model"], one["version"]) == ("large", "1")
        ]
        return Counter({Lack(one["reason"]): one["count"] for one in mine})

    until(lambda: told() == counted, 10, "the status has what the router counted")


def test_bytes_are_free_again(pool: LightPool) -> None:
    """As soon as its request is answered: what fits alone is taken any number of times, one after the other."""
    for _ in range(3):
        x = pool.values(45_000)
        assert answer(pool.send("large", x)) == half(x)


def test_another_model_is_served(pool: LightPool) -> None:
    """A model that has all the bytes that it may is refused the smallest request, and is no other's harm."""
    running = len(body("small", pool.values(), "unknown"))
    free = 50_000 - running - len(body("small", pool.values(1, 12_000)))
    x = pool.values(1, 12_000 + free // 4)
    with pool.busy("small"):
        call = pool.queue("small", x)
        refused = pool.send("small", pool.values(1))
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert refused.details().startswith("Requests and answers of small hold ")
        pool.learn("plain")
        assert not call.done()
    assert answer(call) == half(x)


SHARES = {
    "of its model's bytes": ("plain", (1, 7_500), "plain"),
    "of all bytes": ("large", (1, 30_000), "any model"),
}


@pytest.mark.parametrize(("model", "shape", "named"), SHARES.values(), ids=SHARES)
def test_a_clients_share(fair: LightPool, model: str, shape: Shape, named: str) -> None:
    """Where clients share, who holds something leaves as much free: it is refused what another is given."""
    before = refusals(fair, model)
    one, more, others = (fair.values(*shape) for _ in range(3))
    with fair.busy(model):
        calls = [fair.queue(model, one, x_tenant="a")]
        whose = "the model's max_queued_bytes, or max_queued_bytes_per_model"
        refused = fair.send(model, more, x_tenant="a")
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert is_text(
            refused.details(),
            f"Requests of the client 'a' for {named} hold * bytes, * are free and this one has *: "
            "clients share (scheduling.fair_by), and as much as one holds stays free for others; try again when some are answered, "
            f"or raise {whose if named == model else 'max_queued_bytes'}",
        ), refused.details()
        assert refusals(fair, model) - before == Counter([Lack.BYTES])
        calls.append(fair.queue(model, others, x_tenant="b"))
    assert [answer(call) for call in calls] == [half(one), half(others)]
    assert not fair.began(model, more)


CROWDS = {
    "max_queued_requests": (
        "plain",
        3,
        Lack.REQUESTS,
        "The queue of plain@1 is full: 3 requests wait and max_queued_requests is 3; try again later",
    ),
    "max_enqueued_batches": (
        "batched",
        8,
        Lack.BATCHES,
        (
            "The batch scheduling queue to which this task was submitted is full; currently 2 batches enqueued "
            "and max_enqueued_batches is 2"
        ),
    ),
}


@pytest.mark.parametrize(("model", "room", "lack", "text"), CROWDS.values(), ids=CROWDS)
def test_who_fills_a_queue_leaves_for_another(
    fair: LightPool, model: str, room: int, lack: Lack, text: str
) -> None:
    """Where clients share, who has most waiting is refused more, and the last of that gives its place to another client."""
    told = full_queue(fair, model, room, lack, {"x_tenant": "flood"}, {"x_tenant": "other"})
    left = "; the place of this one went to another client (scheduling.fair_by); try again later"
    assert told == [text, text.partition(";")[0] + left]


def looked(pool: LightPool) -> dict[str, Any]:
    """What `mpspool clients` says while one client floods and another asks now and then."""
    command = [*CLI, "clients", "--run-dir", str(pool.pool.run_dir), "--for", "3s", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as looking:
        while looking.poll() is None:
            full_queue(pool, "plain", 3, Lack.REQUESTS, {"x_tenant": "flood"}, {"x_tenant": "other"})
        assert looking.stdout is not None
        assert looking.returncode == 0
        found: dict[str, Any] = json.load(looking.stdout)
    return found


def test_who_asks_is_shown(fair: LightPool) -> None:
    """By the name that they share by: who was answered, and who was refused for having most."""

    def told() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]] | None:
        found = looked(fair)
        clients = {one["client"]: one for one in found["clients"] if one["model"] == "plain"}
        flood, other = clients.get("flood"), clients.get("other")
        # On a slow machine most may have been before it looked, or be still to come.
        return (found, flood, other) if flood and other and other["answered"] > 1 else None

    found, flood, other = until(told, 60, "something came of what was asked meanwhile")
    assert found["fair_by"] == "metadata:x-tenant"
    assert 0 < flood["answered"] < flood["asked"]
    assert flood["refused"] >= 2 * (other["answered"] - 1)  # of the first it may have seen the end alone
    assert (other["refused"], other["failed"]) == (0, 0)
    assert 0 < other["longest_wait_s"] < 60
    assert sum(one["share"] for one in found["clients"]) == pytest.approx(1.0)
