"""How a pool on GPUs under MPS ends while its clients are busy: none is shot before it was cut off, on stand-ins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpspool.core import control
from mpspool.core.rundir import RunDir
from tests.conftest import PoolStarter
from tests.polling import until
from tests.pool import CLI, ROOT, Pool, cli, processes_of

Asking = subprocess.Popen[str]
Ask = Callable[[float], Asking]
# What the stand-in's server says of a client that was shot while it was busy; from then on it takes no new ones.
SHOT = "ended while its work ran"


@pytest.fixture
def pool(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], testing_ops: Path, tmp_path: Path
) -> Pool:
    """Two workers on one GPU, whose requests take as many seconds as they say."""
    config = tmp_path / "pool.yaml"
    config.write_text(
        f"""
simulate_gpus: 1
contexts_per_gpu: 2
grace_s: 24
models:
  - {{name: sleeper, base_path: {model_dir("sleeper")}, intra_op_threads: 1, custom_ops: [{testing_ops}]}}
"""
    )
    return start_pool(config).wait()


@pytest.fixture
def ask(pool: Pool) -> Iterator[Ask]:
    """Sends a request of so many seconds; it is under way when this returns."""
    sent: list[Asking] = []

    def send(seconds: float) -> Asking:
        command = [*CLI, "predict", "sleeper", "--input", json.dumps({"x": [seconds]}), "--timeout", "60"]
        asking = subprocess.Popen(
            [*command, "--address", pool.address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        sent.append(asking)
        until(lambda: busy(pool) == len(sent), 20, "a worker runs it")
        return asking

    yield send
    for asking in sent:
        asking.kill()
        asking.communicate()


def busy(pool: Pool) -> int:
    """How many workers run a request."""
    snapshot = control.call(RunDir(pool.run_dir).router_control, "snapshot")
    return sum(worker["running_s"] > 0 for worker in snapshot["workers"])


def server_log(pool: Pool) -> str:
    return (pool.run_dir / "logs" / "mps.gpu0.log").read_text()


def test_what_runs_is_finished(pool: Pool, ask: Ask) -> None:
    """SIGTERM while a worker is busy: the answer comes, the worker leaves, and then its daemon quits."""
    asking = ask(3.0)
    assert pool.stop() == 0
    out, err = asking.communicate(timeout=20)
    assert (json.loads(out), err) == ({"y": [3.5]}, "")
    assert SHOT not in server_log(pool)
    pool.assert_nothing_left()


def test_one_that_is_wedged_is_cut_off_first(pool: Pool, ask: Ask) -> None:
    """Its work never returns, so it cannot leave: terminate_client, and SIGKILL only then; within the grace time."""
    pool.fault("gpu0", "--kind", "client-wedge")
    asking = [ask(6.0), ask(6.0)]  # one of the two workers is wedged, and keeps its own
    until(lambda: [one.poll() for one in asking].count(0) == 1, 20, "the other's is answered")
    begun = time.monotonic()
    assert pool.stop() == 0
    assert time.monotonic() - begun < 24 + 30, "the grace time and a margin"
    log = server_log(pool)
    assert SHOT not in log
    assert "terminated" in log
    pool.assert_nothing_left()


def test_one_that_is_told_to_hurry(pool: Pool, ask: Ask) -> None:
    """A second SIGTERM ends all of it at once, shot or not, and leaves nothing; the next start is a good one."""
    ask(30.0)
    assert pool.process is not None
    pool.process.send_signal(signal.SIGTERM)
    until(lambda: "stopping" in pool.output.read_text(), 10)
    pool.process.send_signal(signal.SIGTERM)
    pool.process.wait(20)  # less than the grace time
    pool.assert_nothing_left()
    pool.start().wait()


@pytest.mark.parametrize("victim", ["foreground", "supervisord"])
def test_a_pool_that_is_shot_while_it_is_busy_starts_again(pool: Pool, ask: Ask, victim: str) -> None:
    """All of it ends by the kernel's hand, busy clients too, which breaks their server: the next start ends that first."""
    asking = ask(30.0)
    pids = {"foreground": pool.pid, "supervisord": pool.supervisord_pid()}
    os.kill(pids[victim], signal.SIGKILL)
    assert pool.process is not None
    pool.process.wait(30)
    asking.communicate(timeout=60)
    until(lambda: not [name for name in processes_of(pool.run_dir).values() if "worker" in name], 20)
    pool.start().wait()
    assert set(pool.mps_clients("gpu0")) == {worker["pid"] for worker in pool.workers().values()}
    done = cli("predict", "sleeper", "--input", '{"x": [0.5]}', "--address", pool.address)
    assert json.loads(done.stdout) == {"y": [2.25]}
    assert pool.stop() == 0
    pool.assert_nothing_left()
