"""Workers that never get READY, and end neither."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import PoolStarter
from tests.polling import until
from tests.pool import Pool, cli, processes_of
from tests.reloading import reload

LIMIT_S = 10
# One that imports TensorFlow itself is READY in five seconds, and beside others in several times that.
PLENTY_S = 600
WORKER = "m@1.cpu0.0"
Starter = Callable[..., Pool]


@pytest.fixture
def start(start_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path: Path) -> Starter:
    """Starts a pool of one worker, which is started so, has so long to get READY, and for a request."""

    def make(model: str, workers_start: str, limit_s: int, more: str = "", hang_s: int = 30) -> Pool:
        config = tmp_path / "pool.yaml"
        config.write_text(
            f"models: [{{name: m, base_path: {model_dir(model)}, cpu_slots: 1, hang_timeout_s: {hang_s}, start_timeout_s: {limit_s}}}]\n"
            f"{more}\n"
        )
        return start_pool(config, env={"MPSPOOL_WORKERS_START": workers_start})

    return make


def started(pool: Pool) -> int:
    """The process that supervisord started for the worker: itself, or its launcher; 0 while there is none."""
    settings = f"worker.{WORKER}.json"
    return next((pid for pid, command in processes_of(pool.run_dir).items() if settings in command), 0)


def ended(pool: Pool, reason: str) -> None:
    """Waits until a worker has ended for this reason; the status may show it for a moment only."""
    log = pool.run_dir / "logs" / "pool.log"
    until(lambda: reason in log.read_text(), 30, reason)


def test_a_warm_up_that_never_ends(start: Starter) -> None:
    """Its heart beats all the while: at the limit its stack goes into its log, and the reason is final."""
    pool = start("endless", "fork", LIMIT_S, "restart: {retries: 1}")
    done = cli("wait", "--run-dir", pool.run_dir, "--timeout", 60, timeout=70)
    reason = f"hung and killed: still WARMING after {LIMIT_S} s (start_timeout_s)"
    assert done.returncode == 1
    assert f"is FATAL (not READY after 1 restarts: {reason})" in done.stderr
    assert "synthetic_call" in (pool.run_dir / "logs" / f"worker.{WORKER}.log").read_text()


def test_a_worker_stopped_before_it_has_said_hello(start: Starter, tmp_path: Path) -> None:
    """It imports TensorFlow, and the router has not heard of it: at the limit, which a reload has brought, it is killed, and the next one serves."""
    pool = start("half_plus_two", "exec", PLENTY_S)
    os.kill(until(lambda: started(pool)), signal.SIGSTOP)
    limit(pool, tmp_path, PLENTY_S, LIMIT_S)
    ended(pool, f"hung and killed: still STARTING after {LIMIT_S} s (start_timeout_s)")
    until(lambda: pool.workers()[WORKER]["generation"] > 1, 20, "the next one")
    limit(pool, tmp_path, LIMIT_S, PLENTY_S)
    pool.wait()


def limit(pool: Pool, tmp_path: Path, before_s: int, after_s: int) -> None:
    """Has it take up another start_timeout_s."""
    config = tmp_path / "pool.yaml"
    config.write_text(config.read_text().replace(f"_s: {before_s}}}", f"_s: {after_s}}}"))
    assert "start_timeout_s holds at once" in reload(pool)


def test_a_worker_dead_behind_a_stopped_launcher(start: Starter) -> None:
    """Nobody says that it has ended: it counts as lost, and after as long as a start may take it is replaced."""
    pool = start("half_plus_two", "fork", LIMIT_S).wait()
    launcher, worker = started(pool), pool.workers()[WORKER]
    os.kill(launcher, signal.SIGSTOP)
    os.kill(worker["pid"], signal.SIGKILL)
    until(lambda: pool.workers()[WORKER]["state"] == "STARTING")
    ended(pool, f"hung and killed: unknown to the router for {LIMIT_S} s")
    assert pool.wait().workers()[WORKER]["generation"] > worker["generation"]


def test_a_worker_that_is_stopped_when_the_router_dies(start: Starter) -> None:
    """The next router never hears of it: it is replaced when it has had the time for a request, and to say hello."""
    pool = start("half_plus_two", "fork", PLENTY_S, hang_s=1).wait()
    worker, router = pool.workers()[WORKER], pool.process_pid("router")
    os.kill(worker["pid"], signal.SIGSTOP)
    os.kill(router, signal.SIGKILL)
    ended(pool, "hung and killed: unknown to the router for 6 s")
    assert pool.wait().workers()[WORKER]["generation"] > worker["generation"]


def test_a_worker_that_runs_a_request_when_the_router_dies(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], testing_ops: Path, tmp_path: Path
) -> None:
    """The next router hears of it once that is done: until then its progress page says that it lives."""
    config = tmp_path / "pool.yaml"
    config.write_text(
        f"models: [{{name: m, base_path: {model_dir('sleeper')}, cpu_slots: 1, hang_timeout_s: 3, custom_ops: [{testing_ops}]}}]"
    )
    pool = start_pool(config).wait()
    worker, router = pool.workers()[WORKER], pool.process_pid("router")
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(cli, "predict", "m", "--input", '{"x": [14.0]}', "--address", pool.address)
        until(lambda: pool.workers()[WORKER]["in_flight"] == 1)
        os.kill(router, signal.SIGKILL)
        assert asked.result().returncode == 1
    until(lambda: pool.process_pid("router") not in (0, router))
    assert pool.wait().workers()[WORKER]["generation"] == worker["generation"]
