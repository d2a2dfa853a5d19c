"""How a pool ends: in order under load, and not at all in order."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import PoolStarter
from tests.polling import until
from tests.pool import CLI, ROOT, Load, Pool, cli, processes_of

LoadStarter = Callable[..., Load]


@pytest.fixture
def pool(start_pool: PoolStarter, model_dir: Callable[[str], Path]) -> Pool:
    model = f"half_plus_two={model_dir('half_plus_two')}"
    return start_pool("--model", model, "--cpu-slots", 2, "--intra-op-threads", 1).wait()


def test_sigterm_under_load_loses_nothing(pool: Pool, load: LoadStarter) -> None:
    """SIGTERM: what is in flight is answered, what is new gets UNAVAILABLE, everything goes, exit 0."""
    running = load(pool, "half_plus_two", 200, 6)
    until(lambda: pool.served() > 200, 20)
    assert pool.stop(30) == 0
    pool.assert_nothing_left()
    report = running.report()
    assert report["wrong"] == 0
    assert set(report["errors"]) == {"UNAVAILABLE"}, report
    assert report["ok"] > 200
    assert report["ok"] + sum(report["errors"].values()) == report["sent"]


@pytest.mark.parametrize("victim", ["supervisord", "foreground"])
def test_killing_the_top_ends_all(pool: Pool, victim: str, model_dir: Callable[[str], Path]) -> None:
    """Kill -9 of supervisord or of the foreground process: every child ends too; a new start works."""
    commands = processes_of(pool.run_dir)
    supervisord = next(pid for pid, command in commands.items() if "supervisord.conf" in command)
    os.kill(supervisord if victim == "supervisord" else pool.pid, signal.SIGKILL)
    assert pool.process is not None
    assert pool.process.wait(20) != 0
    until(lambda: not processes_of(pool.run_dir), 15, "every process is gone")
    again = Pool(pool.run_dir, *pool.args)
    try:
        again.start().wait()
        assert cli("stop", "--run-dir", pool.run_dir).returncode == 0
        assert again.process is not None
        assert again.process.wait(20) == 0
        again.assert_nothing_left()
    finally:
        again.clear()


def test_sigterm_while_workers_load_ends_all_at_once(
    start_pool: PoolStarter, model_dir: Callable[[str], Path]
) -> None:
    """Before any worker is READY: exit status 0, nothing left, and well within the grace time."""
    pool = start_pool("--model", f"half_plus_two={model_dir('half_plus_two')}", "--cpu-slots", 2)
    until(lambda: any(worker["state"] == "STARTING" for worker in pool.workers().values()), 20)
    assert not pool.all_ready()
    begun = time.monotonic()
    assert pool.stop(30) == 0
    assert time.monotonic() - begun < 10
    pool.assert_nothing_left()


@pytest.fixture
def sleeping_pool(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], testing_ops: Path, tmp_path: Path
) -> Callable[..., Pool]:
    """Starts a pool of one worker whose requests take as many seconds as they say; takes more of its file."""

    def make(more: str = "") -> Pool:
        config = tmp_path / "pool.yaml"
        config.write_text(
            f"{more}models:\n"
            f"  - {{name: sleeper, base_path: {model_dir('sleeper')}, cpu_slots: 1, custom_ops: [{testing_ops}]}}\n"
        )
        return start_pool(config).wait()

    return make


@contextlib.contextmanager
def in_flight(pool: Pool, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """A client whose request of so many seconds is being run."""
    asked = ["predict", "sleeper", "--input", json.dumps({"x": [seconds]}), "--timeout", "90"]
    with subprocess.Popen(
        [*CLI, *asked, "--address", pool.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as asking:
        until(lambda: pool.workers()["sleeper@1.cpu0.0"]["in_flight"] == 1, 20)
        yield asking


def test_what_is_in_flight_after_the_grace_time_is_refused(sleeping_pool: Callable[..., Pool]) -> None:
    """A request that takes longer than the grace time: UNAVAILABLE with the reason, and the log counts it."""
    pool = sleeping_pool("grace_s: 4\n")
    with in_flight(pool, 60.0) as asking:
        assert pool.stop(30) == 0
        _, error = asking.communicate(timeout=10)
    assert "UNAVAILABLE: This server has shut down" in error
    assert "the time is over, requests answered UNAVAILABLE: 1" in pool.output.read_text()
    pool.assert_nothing_left()


def test_what_is_in_flight_at_sigterm_is_answered(sleeping_pool: Callable[..., Pool]) -> None:
    """A request that takes 2 s, one in flight when the pool is told to end: its answer comes, and is right."""
    pool = sleeping_pool()
    with in_flight(pool, 2.0) as asking:
        assert pool.stop(30) == 0
        out, err = asking.communicate(timeout=10)
    assert (asking.returncode, err) == (0, "")
    assert json.loads(out) == {"y": [3.0]}
    pool.assert_nothing_left()
