"""Pools on stand-ins for GPUs and CPUs, with TensorFlow in the workers."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.conftest import PoolStarter
from tests.polling import until
from tests.pool import ROOT, Pool, cli

ModelDir = Callable[[str], Path]


def half_plus_two(model_dir: ModelDir) -> list[str]:
    return ["--model", f"half_plus_two={model_dir('half_plus_two')}", "--intra-op-threads", "1"]


def ask(pool: Pool) -> object:
    done = cli("predict", "half_plus_two", "--input", '{"x": [1, 2, 5]}', "--address", pool.address)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_two_simulated_gpus(start_pool: PoolStarter, model_dir: ModelDir) -> None:
    """A worker on each, each a client of its own daemon; a killed daemon comes back; nothing is left."""
    layout = ["--simulate-gpus", 2, "--gpus", "0,1", "--contexts-per-gpu", 1]
    pool = start_pool(*half_plus_two(model_dir), *layout).wait()
    assert "SIMULATED" in pool.output.read_text()
    status = pool.status()
    assert (status["pool"]["mps"], status["pool"]["simulated"]) == ("simulated", "gpus")
    pids = {worker["device"]: worker["pid"] for worker in status["workers"]}
    assert set(pids) == {"gpu0", "gpu1"}
    names = {process["name"] for process in status["processes"]}
    assert names - {"nursery"} == {"pool", "router", "mps.gpu0", "mps.gpu1"}
    marked = {process["name"] for process in status["processes"] if process.get("simulated")}
    assert marked == {"mps.gpu0", "mps.gpu1"}
    log = next((pool.run_dir / "logs").glob("worker.*gpu0*.log")).read_text()
    assert log.count("SIMULATED: this GPU is a stand-in") == 1
    assert {device: pool.mps_clients(device) for device in pids} == {
        device: [pid] for device, pid in pids.items()
    }
    assert ask(pool) == {"y": [2.5, 3.0, 4.5]}

    old = pool.process_pid("mps.gpu1")
    os.kill(old, signal.SIGKILL)
    until(lambda: pool.process_pid("mps.gpu1") not in (0, old), 30)
    until(pool.all_ready, 60)
    assert pool.workers()["half_plus_two@1.gpu0.0"]["pid"] == pids["gpu0"], "the other GPU's worker stays"
    assert ask(pool) == {"y": [2.5, 3.0, 4.5]}
    assert pool.stop(60) == 0
    pool.assert_nothing_left()


def test_a_worker_that_would_run_without_mps_is_not_ready(
    start_pool: PoolStarter, model_dir: ModelDir
) -> None:
    """CUDA runs on in silence where it does not reach its daemon: such a worker ends, and says why; others serve on."""
    pool = start_pool(*half_plus_two(model_dir), "--simulate-gpus", 1, "--contexts-per-gpu", 2).wait()
    (pool.run_dir / "mps" / "gpu0" / "pipe" / "clients").unlink()
    name = "half_plus_two@1.gpu0.0"
    os.kill(pool.workers()[name]["pid"], signal.SIGKILL)
    reason = "it is no client of the MPS daemon of gpu0"
    worker = until(lambda: reason in (w := pool.workers()[name]).get("error", "") and w, 60)
    assert worker["state"] != "READY"
    assert ask(pool) == {"y": [2.5, 3.0, 4.5]}


def test_simulated_cpus(start_pool: PoolStarter, model_dir: ModelDir) -> None:
    """128 CPUs that are not there, two sets of 64: planned and shown, nothing pinned, served."""
    layout = ["--simulate-cpus", 128, "--cpu-slots", 2, "--cpusets", "0-63;64-127"]
    pool = start_pool(*half_plus_two(model_dir), *layout).wait()
    status = pool.status()
    assert status["pool"]["simulated"] == "cpus"
    assert [worker["cpus"] for worker in status["workers"]] == [list(range(64)), list(range(64, 128))]
    for worker in status["workers"]:
        assert os.sched_getaffinity(worker["pid"]) == os.sched_getaffinity(0)
    assert ask(pool) == {"y": [2.5, 3.0, 4.5]}
    assert pool.stop(60) == 0
    said = pool.output.read_text()
    assert "SIMULATED: 128 CPUs" in said
    assert "64-127" in said
    for log in (pool.run_dir / "logs").glob("worker.*.log"):
        assert "SIMULATED: these CPUs are stand-ins" in log.read_text()


def test_the_line_to_try_works_as_it_is_printed(start_pool: PoolStarter, model_dir: ModelDir) -> None:
    """What a start tells the user to type is typed, in the folder it was started in."""
    pool = start_pool(*half_plus_two(model_dir), "--cpu-slots", 1).wait()
    (command,) = until(lambda: re.findall(r"try: (.*)", pool.output.read_text()), 20)
    done = subprocess.run(
        shlex.split(command), capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"y": [2.5, 3.0, 4.5]}
