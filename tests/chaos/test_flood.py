"""More than fits: what the router holds stays within its bound, and others are served all the same."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from mpspool.core import tfs
from tests.conftest import PoolStarter
from tests.pool import CLI, ROOT, Pool

PREDICT = f"/{tfs.PREDICTION_SERVICE}/Predict"
MB = 2**20
BOUND = 200 * MB
CONNECTIONS, SIZE = 64, 8 * MB
# Copies of what is on its way at one moment: out of the socket, to the worker, from it, to the socket.
OVERHEAD = 8 * SIZE


@pytest.fixture(scope="module")
def pool(start_module_pool: PoolStarter, model_dir: Callable[[str], Path]) -> Pool:
    base = model_dir("half_plus_two")
    models = [arg for name in ("flooded", "other") for arg in ("--model", f"{name}={base}")]
    env = {"MPSPOOL_MAX_QUEUED_BYTES": str(BOUND)}
    return start_module_pool(*models, "--cpu-slots", 1, env=env).wait()


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


def test_a_flood_of_large_requests_stays_within_the_bound(pool: Pool, tmp_path: Path) -> None:
    """64 connections that send 8 MB again and again, whatever they are told: half a GB at any time against a bound of 200 MB.

    Each is answered rightly or refused with RESOURCE_EXHAUSTED; another model's requests are all answered.
    """
    body, told = tmp_path / "request", tmp_path / "told.json"
    body.write_bytes(request("flooded", SIZE // 4))
    router = pool.process_pid("router")
    before = memory(router, "VmRSS")
    Path(f"/proc/{router}/clear_refs").write_text("5")  # VmHWM counts from here
    options = ["--model", "flooded", "--request", body, "--concurrency", CONNECTIONS, "--json", told]
    options += ["--repeat", 1, "--seconds", 8, "--warmup", 0, "--allow-failures", "--address", pool.address]
    command = [*CLI, "bench", *map(str, options)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as flood:
        others = 0
        with grpc.insecure_channel(pool.address) as channel:
            call = channel.unary_unary(PREDICT)
            while flood.poll() is None:
                answer = tfs.PredictResponse.FromString(call(request("other", 3), timeout=20))
                assert list(answer.outputs["y"].float_val) == [2.0, 2.0, 2.0]
                others += 1
        output = flood.communicate()[0]
    assert flood.returncode == 0, output
    (level,) = json.loads(told.read_text())["levels"]
    print(
        f"router: {(memory(router, 'VmHWM') - before) / MB:.0f} MB more at the most; beside it {others} answered; {level}"
    )
    assert memory(router, "VmHWM") - before <= BOUND + OVERHEAD
    assert others > 20
    assert level["right"] > 0
    assert set(level["failed"]) == {"RESOURCE_EXHAUSTED"}
    assert level["right"] + level["failed"]["RESOURCE_EXHAUSTED"] == level["sent"]
