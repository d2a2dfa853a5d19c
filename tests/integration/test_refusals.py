"""Every refusal of batching and scheduling as a client of a whole pool sees it: its code and its text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from tests.conftest import PoolStarter
from tests.light import LightPool, answer, half, light_pool
from tests.polling import until

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


@pytest.fixture(scope="module")
def pool(start_module_pool: PoolStarter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LightPool]:
    with light_pool(start_module_pool, tmp_path_factory.mktemp("refusals"), POOL) as started:
        yield started


@dataclass(frozen=True)
class Refusal:
    """What is refused while the model's worker is busy.

    Attributes:
        shape: of the request that is refused.
        waiting: of those that wait already.
        text: of the refusal, in which "*" is any number.
    """

    model: str
    code: grpc.StatusCode
    text: str
    shape: Shape = (1,)
    waiting: tuple[Shape, ...] = ()
    signature: str = ""
    timeout_s: float = 30
    priority: str = "0"


REFUSALS = {
    "max_queued_requests": Refusal(
        "plain",
        grpc.StatusCode.UNAVAILABLE,
        "The queue of plain@1 is full: 3 requests wait and max_queued_requests is 3; try again later",
        waiting=((1,), (1,), (1,)),
    ),
    "max_enqueued_batches": Refusal(
        "small",
        grpc.StatusCode.UNAVAILABLE,
        "The batch scheduling queue to which this task was submitted is full; currently 1 batches enqueued and "
        "max_enqueued_batches is 1",
        waiting=((4,),),
    ),
    "max_enqueued_batches, where requests are split": Refusal(
        "batched",
        grpc.StatusCode.UNAVAILABLE,
        "The batch scheduling queue to which this task was submitted is full; task size is 1 but scheduling capacity "
        "is only 0 (num_enqueued_batches=*, max_enqueued_batches=2, open_batch_size=2, max_execution_batch_size=2)",
        waiting=((2,), (2,)),
    ),
    "max_enqueued_batches, full after the first part": Refusal(
        "batched",
        grpc.StatusCode.UNAVAILABLE,
        "The batch scheduling queue to which this task was submitted is full; task size is 2 but scheduling capacity "
        "is only 0 (num_enqueued_batches=*, max_enqueued_batches=2, open_batch_size=2, max_execution_batch_size=2)",
        shape=(4,),
        waiting=((2,),),
    ),
    "max_batch_size": Refusal(
        "small",
        grpc.StatusCode.INVALID_ARGUMENT,
        "Task size 5 is larger than maximum input batch size 4",
        shape=(5,),
    ),
    "max_batch_size, where requests are split": Refusal(
        "batched",
        grpc.StatusCode.INVALID_ARGUMENT,
        "Task size 5 is larger than maximum input batch size 4",
        shape=(5,),
    ),
    "max_queued_bytes_per_model": Refusal(
        "plain",
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "Requests for plain hold * of 100000 bytes and this one has *; try again later, or raise the model's "
        "max_queued_bytes",
        shape=(1, 15_000),
        waiting=((1, 15_000),),
    ),
    "models[].max_queued_bytes": Refusal(
        "small",
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "Requests for small hold * of 50000 bytes and this one has *; try again later, or raise the model's "
        "max_queued_bytes",
        shape=(1, 7_500),
        waiting=((1, 7_500),),
    ),
    "more than max_queued_bytes": Refusal(
        "small",
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "The request has * bytes and max_queued_bytes for small is 50000: make it smaller, or raise that",
        shape=(1, 15_000),
    ),
    "max_queued_bytes": Refusal(
        "large",
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "Requests and answers hold * of 300000 bytes and this one has *; try again later, or raise max_queued_bytes",
        shape=(1, 45_000),
        waiting=((1, 45_000),),
    ),
    "refuse_late": Refusal(
        "plain",
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "Deadline exceeded: it is * ms away, the request is expected to take * ms; it was not run",
        signature="slow",
        timeout_s=9,
    ),
    "priority_key": Refusal(
        "plain",
        grpc.StatusCode.INVALID_ARGUMENT,
        "The metadata x-mpspool-priority is 'high': it must be a whole number from -999 to 999, 0 for what has none; "
        "more goes first",
        priority="high",
    ),
}


@pytest.mark.parametrize("case", REFUSALS.values(), ids=REFUSALS)
def test_a_refusal(pool: LightPool, case: Refusal) -> None:
    """It comes at once, is counted, and harms nobody: those that wait are answered, and so is who asks again."""
    if case.signature:
        pool.learn(case.model, case.signature)
    counted = pool.metric("mpspool_requests_total", code=case.code.name)
    waiting = [pool.values(*shape) for shape in case.waiting]
    x = pool.values(*case.shape)
    with pool.busy(case.model):
        calls = [pool.queue(case.model, one) for one in waiting]
        refused = pool.send(case.model, x, case.signature, case.timeout_s, x_mpspool_priority=case.priority)
        assert refused.code() is case.code, refused.details()
        assert re.fullmatch(re.escape(case.text).replace(r"\*", r"[\d.]+"), refused.details())
        assert pool.metric("mpspool_requests_total", code=case.code.name) == counted + 1
        assert pool.waiting(case.model) == len(case.waiting)
    assert [answer(call) for call in calls] == [half(one) for one in waiting]
    assert not pool.began(case.model, x)
    pool.learn(case.model)


def test_a_deadline_that_passes_in_the_queue(pool: LightPool) -> None:
    """DEADLINE_EXCEEDED while the worker is busy still, and the worker never sees the request."""
    labels = {"model": "plain", "code": "DEADLINE_EXCEEDED"}
    counted = pool.metric("mpspool_requests_total", **labels)
    x = pool.values(1)
    with pool.busy("plain"):
        call = pool.queue("plain", x, "unknown", timeout_s=2)
        assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        until(lambda: pool.waiting("plain") == 0, 10, "nothing waits")
    assert pool.metric("mpspool_requests_total", **labels) == counted + 1
    pool.learn("plain")
    assert not pool.began("plain", x)


def test_an_output_without_rows_of_a_request_in_parts(pool: LightPool) -> None:
    """It is told by its name, and that it is not the client's fault but what was asked to be split."""
    refused = pool.send("batched", pool.values(3), "total")
    assert refused.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert 'the output "y", of shape [], does not have a row for each row of the inputs' in refused.details()
    assert "enable_large_batch_splitting" in refused.details()
    x = pool.values(2)
    assert answer(pool.send("batched", x, "total")) == x.sum()


def test_bytes_are_free_again(pool: LightPool) -> None:
    """As soon as its request is answered: what fits alone is taken any number of times, one after the other."""
    for _ in range(3):
        x = pool.values(45_000)
        assert answer(pool.send("large", x)) == half(x)


def test_another_model_is_served(pool: LightPool) -> None:
    """A model that has all the bytes that it may is no other's harm."""
    x = pool.values(1, 7_500)
    with pool.busy("small"):
        call = pool.queue("small", x)
        pool.learn("plain")
    assert answer(call) == half(x)
