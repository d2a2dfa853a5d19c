"""How a pool ends: in order under load, and not at all in order."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import PoolStarter
from tests.polling import until
from tests.pool import Load, Pool, cli, processes_of

LoadStarter = Callable[..., Load]


@pytest.fixture
def pool(start_pool: PoolStarter, model_dir: Callable[[str], Path]) -> Pool:
    model = f"half_plus_two={model_dir('half_plus_two')}"
    return start_pool("--model", model, "--cpu-slots", 2, "--intra-op-threads", 1).wait()


def test_sigterm_under_load_loses_nothing(pool: Pool, load: LoadStarter) -> None:
    """SIGTERM: what is in flight is answered, what is new gets UNAVAILABLE, everything goes, exit 0."""
    running = load(pool, "half_plus_two", 200, 6)
    until(lambda: sum(w["served"] for w in pool.workers().values()) > 200, 20)
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
