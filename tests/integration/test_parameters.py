"""Every parameter of batching and scheduling has its effect in a whole pool: what runs together, in which order, and where."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest

from tests.conftest import PoolStarter
from tests.light import PREDICT, LightPool, answer, body, half, light_pool, write_model
from tests.polling import until

Shape = tuple[int, ...]
# Longer than anybody waits here.
LONG_US = 600_000_000
BATCHED: dict[str, Any] = {
    "batching": {
        "max_batch_size": 8,
        "allowed_batch_sizes": [2, 4, 8],
        "num_batch_threads": 1,
        "thread_pool_name": "batch",
    },
    "cpu_slots": 1,
    "scheduling": {"fair_by": "peer"},
    "models": {
        "as_the_pool": {},
        "any_size": {"batching": {"allowed_batch_sizes": []}},
        "in_parts": {
            "batching": {
                "allowed_batch_sizes": [],
                "enable_large_batch_splitting": True,
                "max_execution_batch_size": 3,
            }
        },
        "patient": {"batching": {"batch_timeout_micros": LONG_US}},
        "adaptive": {
            "batching": {
                "allowed_batch_sizes": [],
                "batch_timeout_micros": LONG_US,
                "adaptive": True,
                "pad_variable_length_inputs": True,
            }
        },
        "on_two": {"cpu_slots": 2},
        "shortest": {"batching": "off", "policy": "sjf"},
        "urgent": {"batching": "off", "policy": "edf", "max_queued_requests": 3},
    },
}
# Of two GPUs: "first" and "second" are on one each, "both" is on both.
SHARED: dict[str, Any] = {
    "simulate_gpus": 2,
    "contexts_per_gpu": 1,
    "batching": {"enabled": True, "per_model": True},
    "scheduling": {
        "policy": "edf",
        "dispatch": "round_robin",
        "aging": 0,
        "running_per_device": 2,
        "slow_lane": 1,
        "slow_ms": 1000,
        "priority_key": "x-urgency",
        "fair_by": "metadata:x-tenant",
        "refuse_late": False,
    },
    "models": {
        "first": {"gpus": [0], "policy": "sjf"},
        "second": {"gpus": [1], "contexts_per_gpu": 2},
        "both": {"gpus": [0, 1]},
    },
}


@pytest.fixture(scope="module")
def batched(start_module_pool: PoolStarter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LightPool]:
    """A pool that batches, on CPU slots."""
    with light_pool(start_module_pool, tmp_path_factory.mktemp("batched"), BATCHED) as pool:
        yield pool


@pytest.fixture(scope="module")
def shared(start_module_pool: PoolStarter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LightPool]:
    """A pool with everything that can be said of scheduling, on two stand-in GPUs."""
    folder = tmp_path_factory.mktemp("shared")
    base = write_model(folder / "with_file", "max_batch_size { value: 4 } allowed_batch_sizes: 4")
    models = {**SHARED["models"], "with_file": {"base_path": str(base), "gpus": [0]}}
    with light_pool(start_module_pool, folder, {**SHARED, "models": models}) as pool:
        yield pool


@dataclass(frozen=True)
class Joined:
    """What requests of these shapes, which wait for a worker together, make of the model's runs."""

    model: str
    asked: list[Shape]
    ran: list[Shape]


JOINED = {
    "batching of the pool": Joined("as_the_pool", [(1,), (1,)], [(2,)]),
    "allowed_batch_sizes": Joined("as_the_pool", [(1,), (2,)], [(4,)]),
    "max_batch_size": Joined("as_the_pool", [(5,), (3,), (2,)], [(8,), (2,)]),
    "models[].batching": Joined("any_size", [(1,), (2,)], [(3,)]),
    "models[].batching, and the pool's for the rest": Joined("any_size", [(5,), (3,), (2,)], [(8,), (2,)]),
    "models[].batching: off": Joined("shortest", [(1,), (1,)], [(1,), (1,)]),
    "enable_large_batch_splitting": Joined("in_parts", [(6,)], [(3,), (3,)]),
    "max_execution_batch_size": Joined("in_parts", [(1,), (1,), (1,), (1,)], [(3,), (1,)]),
    "no pad_variable_length_inputs": Joined("any_size", [(1, 3), (2, 2)], [(1, 3), (2, 2)]),
    "adaptive": Joined("adaptive", [(1,), (2,)], [(3,)]),
}


@pytest.mark.parametrize("case", JOINED.values(), ids=JOINED)
def test_what_runs_together(batched: LightPool, case: Joined) -> None:
    """By the shapes that the worker ran; each is answered with its own rows, and the metrics count those and no padding."""
    before = len(batched.runs(case.model))
    rows = batched.metric("mpspool_batch_rows_sum", model=case.model)
    asked = [batched.values(*shape) for shape in case.asked]
    with batched.busy(case.model):
        calls = [batched.queue(case.model, x) for x in asked]
    for x, call in zip(asked, calls, strict=True):
        assert answer(call) == half(x)
    runs = batched.runs(case.model)[before + 1 :]  # the first kept the worker busy
    assert [run.shape for run in runs] == case.ran
    counted = 0 if case.model == "shortest" else sum(len(x) for x in asked)
    assert batched.metric("mpspool_batch_rows_sum", model=case.model) - rows == counted


def test_pad_variable_length_inputs(batched: LightPool) -> None:
    """Requests whose rows differ in length share a run, and the shorter is filled up with its first value."""
    long, short = batched.values(1, 3), batched.values(2, 2)
    with batched.busy("adaptive"):
        calls = batched.queue("adaptive", long), batched.queue("adaptive", short)
    filled = np.hstack([short, np.full((2, 1), short[0, 0])])
    assert [answer(call) for call in calls] == [half(long), half(filled)]
    assert batched.runs("adaptive")[-1].shape == (3, 3)


def test_batch_timeout_micros(batched: LightPool) -> None:
    """A batch that is not full waits though a worker is idle; what fills it lets it go."""
    one, more = batched.values(1), batched.values(7)
    waiting = batched.queue("patient", one)
    other = batched.send("patient", more)
    assert answer(waiting) == half(one)
    assert answer(other) == half(more)
    assert [run.shape for run in batched.runs("patient")] == [(8,)]


def test_a_deadline_ends_batch_timeout_micros(batched: LightPool) -> None:
    x = batched.values(1)
    assert answer(batched.send("patient", x, timeout_s=3)) == half(x)


def test_adaptive(batched: LightPool) -> None:
    """A batch that is not full goes at once where a worker is idle, whatever batch_timeout_micros says."""
    x = batched.values(1)
    assert answer(batched.send("adaptive", x)) == half(x)


def test_num_batch_threads(batched: LightPool) -> None:
    """The start says that it is not followed: as many batches run at once as there are workers."""
    text = "batching.num_batch_threads is 1: as many batches run at once as there are workers, "
    assert text in batched.pool.output.read_text()
    with batched.busy("on_two", "on_two"):
        assert {run.worker for run in batched.runs("on_two")} == {"on_two@1.cpu0.0", "on_two@1.cpu0.1"}


def test_thread_pool_name(batched: LightPool) -> None:
    """The start says that it means nothing."""
    assert "batching.thread_pool_name has no meaning here" in batched.pool.output.read_text()


def test_batching_per_model(shared: LightPool) -> None:
    """The version with a batching_params.pbtxt is batched by it, the one without is not."""
    shapes = {}
    for model in ("with_file", "first"):
        before = len(shared.runs(model))
        asked = [shared.values(1) for _ in range(3)]
        with shared.busy(model):
            calls = [shared.queue(model, x) for x in asked]
        assert [answer(call) for call in calls] == [half(x) for x in asked]
        shapes[model] = [run.shape for run in shared.runs(model)[before + 1 :]]
    assert shapes == {"with_file": [(4,)], "first": [(1,), (1,), (1,)]}
    told = {model["name"]: model["versions"][0]["batch_rows"] for model in shared.pool.status()["models"]}
    assert (told["with_file"], told["first"]) == (4, 0)


def test_policy_of_a_model_sjf(batched: LightPool) -> None:
    """What takes less is run before what came first."""
    batched.learn("shortest", "slow")
    batched.learn("shortest")
    slow, quick = batched.values(1), batched.values(1)
    with batched.busy("shortest"):
        calls = batched.queue("shortest", slow, "slow"), batched.queue("shortest", quick)
    assert [answer(call) for call in calls] == [half(slow), half(quick)]
    assert batched.order("shortest", {"slow": slow, "quick": quick}) == ["quick", "slow"]


def test_policy_of_a_model_edf(batched: LightPool) -> None:
    """What is due first is run before what came first."""
    late, early = batched.values(1), batched.values(1)
    with batched.busy("urgent"):
        calls = batched.queue("urgent", late, timeout_s=90), batched.queue("urgent", early, timeout_s=60)
    assert [answer(call) for call in calls] == [half(late), half(early)]
    assert batched.order("urgent", {"late": late, "early": early}) == ["early", "late"]


def test_policy_of_the_pool(shared: LightPool) -> None:
    """It holds for models that have none of their own, and for batches, too."""
    late, early = shared.values(4), shared.values(4)
    with shared.busy("with_file"):
        calls = shared.queue("with_file", late, timeout_s=90), shared.queue("with_file", early, timeout_s=60)
    assert [answer(call) for call in calls] == [half(late), half(early)]
    assert shared.order("with_file", {"late": late, "early": early}) == ["early", "late"]


@pytest.mark.parametrize("model", ["shortest", "as_the_pool"])
def test_priority(batched: LightPool, model: str) -> None:
    """What has more of it, by the key that there is without a word, is run before what came first."""
    asked = {name: batched.values(8) for name in ("none", "less", "more")}
    with batched.busy(model):
        calls = [
            batched.queue(model, asked["none"]),
            batched.queue(model, asked["less"], x_mpspool_priority="-900"),
            batched.queue(model, asked["more"], x_mpspool_priority="900"),
        ]
    assert [answer(call) for call in calls] == [half(x) for x in asked.values()]
    assert batched.order(model, asked) == ["more", "none", "less"]


def test_priority_key(shared: LightPool) -> None:
    """Another key has the priority; what the usual one holds is nothing to the router."""
    asked = {name: shared.values(1) for name in ("none", "more")}
    with shared.busy("first"):
        calls = [
            shared.queue("first", asked["none"], "unknown", x_mpspool_priority="no number"),
            shared.queue("first", asked["more"], "unknown", x_urgency="900"),
        ]
    assert [answer(call) for call in calls] == [half(x) for x in asked.values()]
    assert shared.order("first", asked) == ["more", "none"]


def test_aging(shared: LightPool) -> None:
    """With 0 even sjf runs first what came first."""
    shared.learn("first", "slow")
    shared.learn("first")
    slow, quick = shared.values(1), shared.values(1)
    with shared.busy("first"):
        calls = shared.queue("first", slow, "slow"), shared.queue("first", quick)
    assert [answer(call) for call in calls] == [half(slow), half(quick)]
    assert shared.order("first", {"slow": slow, "quick": quick}) == ["slow", "quick"]


def test_fair_by_metadata(shared: LightPool) -> None:
    """A tenant with one request waits for one of another's, not for all that came before."""
    shared.learn("first")
    asked = {name: shared.values(1) for name in ("a1", "a2", "a3", "b1")}
    with shared.busy("first"):
        calls = [shared.queue("first", x, x_tenant=name[0]) for name, x in asked.items()]
    assert [answer(call) for call in calls] == [half(x) for x in asked.values()]
    order = shared.order("first", asked)
    assert order.index("b1") < order.index("a2") < order.index("a3")


@contextlib.contextmanager
def relay(port: int, source: str) -> Iterator[str]:
    """The address of what passes one connection on to a port, from another address of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_pass_on, args=(server, port, source))
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(10)
        assert not thread.is_alive()


def _pass_on(server: socket.socket, port: int, source: str) -> None:
    with server.accept()[0] as client, socket.create_connection(("127.0.0.1", port), 10, (source, 0)) as pool:
        back = threading.Thread(target=_copy, args=(pool, client))
        back.start()
        _copy(client, pool)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def test_fair_by_peer(batched: LightPool) -> None:
    """A full queue makes room for another address: the last of who has most waiting is refused."""
    asked = [batched.values(1) for _ in range(3)]
    x = batched.values(1)
    with relay(batched.pool.grpc_port, "127.0.0.2") as address, grpc.insecure_channel(address) as channel:
        with batched.busy("urgent"):
            calls = [batched.queue("urgent", one) for one in asked]
            other = channel.unary_unary(PREDICT).future(body("urgent", x), timeout=30)
            assert calls[-1].code() is grpc.StatusCode.UNAVAILABLE
            assert calls[-1].details() == (
                "The queue of urgent@1 is full: 3 requests wait and max_queued_requests is 3; the place of this one went to "
                "another client (scheduling.fair_by); try again later"
            )
        assert answer(other) == half(x)
    assert [answer(call) for call in calls[:-1]] == [half(one) for one in asked[:-1]]
    assert not batched.began("urgent", asked[-1])


def test_refuse_late(shared: LightPool) -> None:
    """Turned off, what is expected to be late waits, and is answered where it is not late after all."""
    shared.learn("first", "slow")
    x = shared.values(1)
    with shared.busy("first"):
        call = shared.queue("first", x, "slow", timeout_s=8)
    assert answer(call) == half(x)


def test_dispatch_round_robin(shared: LightPool) -> None:
    """The workers take turns, also where the device of one has more to do than that of the other."""
    before = len(shared.runs("both"))
    with shared.busy("first"):
        for _ in range(4):
            shared.learn("both", "unknown")
    gpus = [run.worker.split(".")[1] for run in shared.runs("both")[before:]]
    assert gpus in (["gpu0", "gpu1"] * 2, ["gpu1", "gpu0"] * 2)


def test_running_per_device(shared: LightPool) -> None:
    """What an idle worker could run waits while as many run on its device as may, of whatever models."""
    x = shared.values(1)
    with shared.busy("both", "both"):
        with shared.busy("second"):
            call = shared.queue("second", x)
        assert answer(call) == half(x)


def test_slow_lane_and_slow_ms(shared: LightPool) -> None:
    """One that takes longer than slow_ms waits for another such one while a worker is idle, and a quick one does not."""
    for _ in range(2):  # what was seen but once makes nothing long
        shared.learn("second", "slow")
    shared.learn("second")
    one, two, quick = shared.values(1), shared.values(1), shared.values(1)
    with shared.held(one):
        calls = [shared.send("second", one, "slow")]
        until(lambda: shared.began("second", one), 10, "the first runs")
        calls.append(shared.queue("second", two, "slow"))
        assert answer(shared.send("second", quick)) == half(quick)
        assert not shared.began("second", two)
    assert [answer(call) for call in calls] == [half(one), half(two)]


def test_the_slow_lane_is_the_device_s(shared: LightPool) -> None:
    """What another model's long one is in is no room for this one's, which goes elsewhere or waits; a quick one goes at once."""
    for model in ("second", "both"):
        for _ in range(2):
            shared.learn(model, "slow")
    shared.learn("both")
    other, elsewhere, later, quick = (shared.values(1) for _ in range(4))
    with shared.held(elsewhere):
        with shared.held(other):
            calls = [shared.send("second", other, "slow")]
            until(lambda: shared.began("second", other), 10, "another model's long one runs")
            calls.append(shared.send("both", elsewhere, "slow"))
            until(lambda: shared.began("both", elsewhere), 10, "one runs on the other device")
            calls.append(shared.queue("both", later, "slow"))
            assert answer(shared.send("both", quick)) == half(quick)
            assert not shared.began("both", later)
        until(
            lambda: shared.began("both", later), 10, "the other model's has ended, and there is room for it"
        )
    assert [answer(call) for call in calls] == [half(x) for x in (other, elsewhere, later)]
    gpus = {run.values[0]: run.worker.split(".")[1] for run in shared.runs("both")}
    assert [gpus[float(x[0])] for x in (elsewhere, later, quick)] == ["gpu0", "gpu1", "gpu1"]
