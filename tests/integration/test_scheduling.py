"""Scheduling as it is configured, in a whole pool: a user's own policy, priorities, and the order that they make."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
import pytest

from mpspool.core import tfs
from tests.conftest import PoolStarter
from tests.polling import until
from tests.pool import cli

PREDICT = f"/{tfs.PREDICTION_SERVICE}/Predict"
POLICY = """
import pathlib


def noted(waiting):
    with pathlib.Path({notes!r}).open("a") as notes:
        print(waiting.model.name, waiting.signature, waiting.priority, waiting.size, sep=", ", file=notes)
    return waiting.arrived_s
"""


def request() -> bytes:
    asked = tfs.PredictRequest()
    asked.model_spec.name = "half_plus_two"
    tensor = asked.inputs["x"]
    tensor.dtype = 1
    tensor.tensor_shape.dim.add(size=1)
    tensor.float_val.append(2.0)
    return asked.SerializeToString()


def test_a_policy_of_ones_own_is_asked(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    """By the name of its entry point, with what the client says of a request, by gRPC and REST; what is no priority is refused by its name.

    The start has asked it before.
    """
    notes = tmp_path / "notes"
    (tmp_path / "mine.py").write_text(POLICY.format(notes=str(notes)))
    installed = tmp_path / "mine-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[mpspool.policies]\nmy_policy = mine:noted\n")
    args = (
        "--model",
        f"half_plus_two={model_dir('half_plus_two')}",
        "--cpu-slots",
        1,
        "--policy",
        "my_policy",
    )
    pool = start_pool(*args, env={"PYTHONPATH": str(tmp_path)}).wait()
    with grpc.insecure_channel(pool.address) as channel:
        call = channel.unary_unary(PREDICT)
        body = request()
        for metadata in ((), (("x-mpspool-priority", "7"),)):
            assert tfs.PredictResponse.FromString(call(body, timeout=30, metadata=metadata)).outputs[
                "y"
            ].float_val == [3]
        with pytest.raises(grpc.RpcError) as refused:
            call(body, timeout=30, metadata=(("x-mpspool-priority", "high"),))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "x-mpspool-priority is 'high'" in refused.value.details()
    text = b'{"instances": [2.0]}'
    url = f"http://127.0.0.1:{pool.rest_port}/v1/models/half_plus_two:predict"
    with urlopen(Request(url, text, {"x-mpspool-priority": "-3"}), timeout=30) as answer:
        assert json.load(answer) == {"predictions": [3.0]}
    with pytest.raises(HTTPError) as wrong:
        urlopen(Request(url, text, {"x-mpspool-priority": "high"}), timeout=30)
    with wrong.value as answer:
        assert (answer.status, json.load(answer)["error"]) == (400, refused.value.details())
    asked = [
        ("serving_default", 0, len(body)),
        ("serving_default", 7, len(body)),
        ("REST Predict serving_default", -3, len(text)),
    ]
    lines = notes.read_text().splitlines()
    tried, asked_of = lines[: -len(asked)], lines[-len(asked) :]
    assert set(tried) == {"half_plus_two, serving_default, 0, 100"}
    assert asked_of == [f"half_plus_two, {name}, {priority}, {size}" for name, priority, size in asked]


def test_a_policy_that_fails_in_the_router_is_seen(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    """Though it could be asked at the start: requests are answered, and status and metrics say so."""
    (tmp_path / "mine.py").write_text("def late(waiting):\n    return 1 / (waiting.deadline_s == 0)\n")
    model = f"half_plus_two={model_dir('half_plus_two')}"
    pool = start_pool(
        "--model", model, "--cpu-slots", 1, "--policy", "mine:late", env={"PYTHONPATH": str(tmp_path)}
    ).wait()
    assert "policy_error" not in pool.status()["models"][0]["versions"][0]
    with grpc.insecure_channel(pool.address) as channel:
        for _ in range(2):
            channel.unary_unary(PREDICT)(request(), timeout=30)

    def told() -> str:
        return str(pool.status()["models"][0]["versions"][0].get("policy_error"))

    until(lambda: told() == "ZeroDivisionError: division by zero")
    failures = 'mpspool_policy_failures_total{model="half_plus_two",version="1"} 2.0'
    with urlopen(f"http://127.0.0.1:{pool.rest_port}/metrics", timeout=10) as metrics:
        assert failures in metrics.read().decode()


def test_a_policy_that_never_returns(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    """Nor does the router, then: its stack is in its log, and another one serves with the same worker."""
    stuck = tmp_path / "stuck"
    (tmp_path / "mine.py").write_text(
        "import os, time\n\ndef stuck(waiting):\n"
        f"    while os.path.exists({str(stuck)!r}):\n        time.sleep(1)\n    return 0\n"
    )
    model = f"half_plus_two={model_dir('half_plus_two')}"
    pool = start_pool(
        "--model", model, "--cpu-slots", 1, "--policy", "mine:stuck", env={"PYTHONPATH": str(tmp_path)}
    ).wait()
    before, router = pool.workers(), pool.process_pid("router")
    stuck.touch()
    with grpc.insecure_channel(pool.address) as channel:
        call = channel.unary_unary(PREDICT).future(request(), timeout=60)
        with pytest.raises(grpc.RpcError) as lost:
            call.result()
    assert lost.value.code() is grpc.StatusCode.UNAVAILABLE
    stuck.unlink()
    until(lambda: pool.process_pid("router") not in (0, router) and pool.all_ready(), 30, "another router")
    assert 'mine.py", line' in (pool.run_dir / "logs" / "router.log").read_text()
    assert [worker["pid"] for worker in pool.workers().values()] == [w["pid"] for w in before.values()]
    with grpc.insecure_channel(pool.address) as channel:
        channel.unary_unary(PREDICT)(request(), timeout=30)


def test_a_policy_that_is_not_there_starts_nothing(model_dir: Callable[[str], Path], tmp_path: Path) -> None:
    """And the error says what was looked for and what there is."""
    model = f"half_plus_two={model_dir('half_plus_two')}"
    done = cli("start", "--model", model, "--run-dir", tmp_path / "r", "--policy", "sfj")
    assert done.returncode == 2
    assert "'sfj' is neither built in (fifo, sjf, edf)" in done.stderr
    assert "did you mean sjf?" in done.stderr
    assert not (tmp_path / "r").exists()
    done = cli("start", "--model", model, "--run-dir", tmp_path / "r", "--policy", "os:nope", "--check")
    assert done.returncode == 2
    assert "scheduling.policy: in --policy: module os has no attribute nope; name a function" in done.stderr


def test_a_policy_that_the_router_cannot_have_fails_the_reload(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    """It can be imported where `mpspool reload` is called, and that is not where it is asked."""
    (tmp_path / "mine.py").write_text("def late(waiting):\n    return -waiting.arrived_s\n")
    file = tmp_path / "pool.yaml"
    text = f"models: {{half_plus_two: {model_dir('half_plus_two')}}}\ncpu_slots: 1\n"
    file.write_text(text)
    pool = start_pool(file).wait()
    file.write_text(f"{text}scheduling: {{policy: 'mine:late'}}\n")
    done = cli("reload", "--run-dir", pool.run_dir, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    assert done.stdout == "half_plus_two  scheduling.policy holds at once\n"
    assert (
        "half_plus_two@1: the policy mine:late fails, and requests go in the order of arrival: ModuleNotFoundError: No module named "
        "'mine' (the router asks it, with the environment of the start)"
    ) in done.stderr
