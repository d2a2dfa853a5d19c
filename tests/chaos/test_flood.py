"""More than fits: what the router holds stays within its bound, and others are served all the same."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from mpspool.core import tfs
from tests.conftest import PoolStarter
from tests.polling import until
from tests.pool import CLI, ROOT, Pool

PREDICT = f"/{tfs.PREDICTION_SERVICE}/Predict"
MB = 2**20
BOUND = 200 * MB
SIZE = 8 * MB
CONNECTIONS = 64


@pytest.fixture(scope="module")
def pool(start_module_pool: PoolStarter, model_dir: Callable[[str], Path]) -> Pool:
    base = model_dir("half_plus_two")
    models = [arg for name in ("flooded", "other") for arg in ("--model", f"{name}={base}")]
    env = {"MPSPOOL_MAX_QUEUED_BYTES": str(BOUND)}
    return start_module_pool(*models, "--cpu-slots", 1, env=env).wait()


@pytest.fixture
def alone(start_pool: PoolStarter, model_dir: Callable[[str], Path]) -> Pool:
    """One model, which may have all bytes, and two workers."""
    env = {"MPSPOOL_MAX_QUEUED_BYTES": str(BOUND)}
    model = f"flooded={model_dir('half_plus_two')}"
    return start_pool("--model", model, "--cpu-slots", 2, env=env).wait()


def request(name: str, values: int) -> bytes:
    asked = tfs.PredictRequest()
    asked.model_spec.name = name
    tensor = asked.inputs["x"]
    tensor.dtype = 1
    tensor.tensor_shape.dim.add(size=values)
    tensor.tensor_content = bytes(4 * values)
    return asked.SerializeToString()


def memory(pid: int, field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


class Flood:
    """Clients that send 8 MB again and again, whatever they are told, and what becomes of that.

    Attributes:
        level: what the load test tells of it, at the end.
        most_bytes: how much more memory the router had than before.
    """

    def __init__(self, pool: Pool, folder: Path, *options: object) -> None:
        self.level: dict[str, Any] = {}
        self.most_bytes = 0
        self._router = pool.process_pid("router")
        self._told = folder / "told.json"
        body = folder / "request"
        body.write_bytes(request("flooded", SIZE // 4))
        given = ["--model", "flooded", "--request", body, "--json", self._told, "--address", pool.address]
        given += ["--repeat", 1, "--warmup", 0, "--allow-failures", *options]
        self._command = [*CLI, "bench", *map(str, given)]

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        """From its beginning to its end, which is waited for."""
        before = memory(self._router, "VmRSS")
        Path(f"/proc/{self._router}/clear_refs").write_text("5")  # VmHWM counts from here
        with subprocess.Popen(
            self._command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            yield process
            output = process.communicate()[0]
        assert process.returncode == 0, output
        self.most_bytes = memory(self._router, "VmHWM") - before
        (self.level,) = json.loads(self._told.read_text())["levels"]
        print(f"router: {self.most_bytes / MB:.0f} MB more at the most; {self.level}")

    def check(self) -> None:
        """Each was answered rightly or refused for its bytes."""
        level = self.level
        assert level["right"] > 0
        assert set(level["failed"]) == {"RESOURCE_EXHAUSTED"}
        assert level["right"] + level["failed"]["RESOURCE_EXHAUSTED"] == level["sent"]


def test_a_flood_of_large_requests_stays_within_the_bound(pool: Pool, tmp_path: Path) -> None:
    """64 connections that send 8 MB again and again, whatever they are told: half a GB at any time against a bound of 200 MB.

    One of two models may have half of that for its requests, and their answers. Each is answered rightly or refused with
    RESOURCE_EXHAUSTED; the other model's requests are all answered.
    """
    flood = Flood(pool, tmp_path, "--concurrency", CONNECTIONS, "--seconds", 8)
    others = 0
    with flood.running() as process, grpc.insecure_channel(pool.address) as channel:
        call = channel.unary_unary(PREDICT)
        while process.poll() is None:
            answer = tfs.PredictResponse.FromString(call(request("other", 3), timeout=20))
            assert list(answer.outputs["y"].float_val) == [2.0, 2.0, 2.0]
            others += 1
    print(f"beside it {others} answered")
    flood.check()
    texts = [failure["text"] for failure in flood.level["failures"]]
    assert any(
        re.match(rf"Requests and answers of flooded hold \d+ of {BOUND // 2} bytes", text) for text in texts
    )
    assert flood.most_bytes <= BOUND
    assert others > 20


@pytest.mark.parametrize(("connections", "streams"), [(64, 1), (16, 8)])
def test_a_flood_for_the_only_model_stays_within_the_bound(
    alone: Pool, tmp_path: Path, connections: int, streams: int
) -> None:
    """It may have all of it, for its requests, its answers and the copies of these: from the first moment on, when nobody knows what is answered."""
    options = "--concurrency", connections * streams, "--streams-per-connection", streams, "--seconds", 8
    flood = Flood(alone, tmp_path, *options)
    with flood.running():
        pass
    flood.check()
    assert flood.most_bytes <= BOUND


def test_a_worker_that_is_killed_in_a_flood(alone: Pool, tmp_path: Path) -> None:
    """What it held is sent a second time, while its model has all 200 MB and each of 16 connections sends eight requests at once."""
    name = "flooded@1.cpu0.0"
    flood = Flood(alone, tmp_path, "--concurrency", 128, "--streams-per-connection", 8, "--seconds", 10)
    with flood.running():
        until(lambda: alone.workers()[name]["served"] > 5, 20, "the flood is there")
        before = alone.workers()[name]
        os.kill(before["pid"], signal.SIGKILL)
        until(lambda: alone.workers()[name]["generation"] == before["generation"] + 1, 20)
    flood.check()
    assert flood.most_bytes <= BOUND
