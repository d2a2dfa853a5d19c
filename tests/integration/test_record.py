"""`mpspool record` on a pool that serves, and its trace played by the simulation."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
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


def request(rows: int) -> bytes:
    asked = tfs.PredictRequest()
    asked.model_spec.name = "half_plus_two"
    tensor = asked.inputs["x"]
    tensor.dtype = 1
    tensor.tensor_shape.dim.add(size=rows)
    tensor.float_val.extend([2.0] * rows)
    body: bytes = asked.SerializeToString()
    return body


@pytest.fixture(scope="module")
def pool(start_module_pool: PoolStarter, model_dir: Callable[[str], Path]) -> Pool:
    return start_module_pool(
        "--model", f"half_plus_two={model_dir('half_plus_two')}", "--cpu-slots", 2
    ).wait()


@contextlib.contextmanager
def recording(pool: Pool, output: Path, length: str) -> Iterator[subprocess.Popen[str]]:
    """`mpspool record`, from when the router notes what arrives."""
    command = [*CLI, "record", "--run-dir", str(pool.run_dir), "-o", str(output), "--for", length]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("recording to ")
            yield process
        finally:
            process.kill()


def ask(pool: Pool, count: int) -> None:
    """Some light traffic: requests of one and of three rows, with a deadline and a priority."""
    with grpc.insecure_channel(pool.address) as channel:
        call = channel.unary_unary(PREDICT)
        for number in range(count):
            call(request(1 + number % 2 * 2), timeout=20, metadata=(("x-mpspool-priority", str(number % 2)),))


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_what_was_recorded_is_played(pool: Pool, tmp_path: Path) -> None:
    """Every request is in the trace, with what it cost, and the simulation judges the policies on it."""
    trace = tmp_path / "trace.jsonl"
    ask(pool, 1)
    with recording(pool, trace, "4s") as process:
        ask(pool, 20)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    told = re.search(r"^20 requests in (\d+(\.\d+)?) s, ", out, re.MULTILINE)
    assert told, out
    length_s = float(told[1])
    assert length_s >= 4
    found = sorted(lines(trace), key=lambda row: row["time"])
    assert [(row["rows"], row.get("priority", 0)) for row in found] == 10 * [(1, 0), (3, 1)]
    assert [row["bytes"] for row in found] == 10 * [len(request(1)), len(request(3))]
    for row in found:
        assert (row["model"], row["version"], row["client"]) == ("half_plus_two", 1, "1")
        assert 0 <= row["time"] <= length_s
        assert 0 < row["cost_us"] < 1e6
        assert 10_000 < row["deadline_ms"] <= 20_300  # gRPC's core rounds up
    command = [sys.executable, "-m", "bench.sim", "--trace", str(trace), "--gpus", "1", "--slots", "2"]
    command += ["--processes", "2", "--results", str(tmp_path)]
    played = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert played.returncode == 0, played.stderr
    assert "1 device with 2 workers (half_plus_two 2)" in played.stdout
    cells = json.loads((tmp_path / "trace.json").read_text())["cells"]
    fifo = next(one["figures"] for one in cells if one["cell"] == ["fifo"])
    assert 0 < fifo["all"]["offered"] <= 20
    assert fifo["all"]["refused_full"] == 0


def test_ctrl_c_keeps_what_was_recorded(pool: Pool, tmp_path: Path) -> None:
    """What was answered by then is in the trace; and the router forgets the recording."""
    trace = tmp_path / "trace.jsonl"
    with recording(pool, trace, "1h") as process:
        ask(pool, 4)
        until(lambda: len(lines(trace)) == 4, 10, "what was answered is in the trace")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    assert "4 requests in " in out
    ask(pool, 1)
    assert len(lines(trace)) == 4


def test_nothing_arrived(pool: Pool, tmp_path: Path) -> None:
    """It says so, and there is no trace."""
    with recording(pool, tmp_path / "trace.jsonl", "300ms") as process:
        _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "nothing arrived in 0." in err
    assert not list(tmp_path.iterdir())
