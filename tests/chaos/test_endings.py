"""How a pool ends: in order under load, and not at all in order."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from mpspool.core import control
from mpspool.core.rundir import RunDir
from tests.conftest import PoolStarter
from tests.polling import until
from tests.pool import CLI, ROOT, Load, Pool, cli, processes_of, running_first

LoadStarter = Callable[..., Load]
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
REFUSED = "This server is shutting down; try another"
# So long a request may take from being sent to being in the router's hands, where a machine is slow.
ON_ITS_WAY_S = 1.0
# How long the status, /readyz and the health service at least have said that a pool ends before it does.
ENDING_S = 3.0


@pytest.fixture
def wake(tmp_path: Path) -> Path:
    """A file that ends a request of a sleeper."""
    return tmp_path / "wake"


@pytest.fixture
def pool(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], testing_ops: Path, tmp_path: Path, wake: Path
) -> Pool:
    """Two workers of half_plus_two, and one whose requests take as many seconds as they say, or until they are woken."""
    config = tmp_path / "pool.yaml"
    config.write_text(
        "intra_op_threads: 1\nmodels:\n"
        f"  - {{name: half_plus_two, base_path: {model_dir('half_plus_two')}, cpu_slots: 2}}\n"
        f"  - {{name: sleeper, base_path: {model_dir('sleeper')}, cpu_slots: 1, custom_ops: [{testing_ops}]}}\n"
    )
    return start_pool(config, env={"TESTING_WAKE": str(wake)}).wait()


def health(pool: Pool) -> tuple[int, int]:
    """What /readyz and the health service say."""
    with grpc.insecure_channel(pool.address) as channel:
        asked = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{pool.rest_port}/readyz", timeout=5) as answer:
            return answer.status, asked.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code, asked.status


def test_sigterm_under_load_loses_nothing(pool: Pool, load: LoadStarter, wake: Path) -> None:
    """SIGTERM: what is in flight is answered, short or long, what is new gets UNAVAILABLE, exit 0.

    Meanwhile the status, /readyz and the health service say that it ends.
    """
    running = load(pool, "half_plus_two")
    pool.serves_on()
    with in_flight(pool, 25.0) as asking:  # less than the grace time
        assert health(pool) == (200, SERVING)
        told_s = time.monotonic()
        assert pool.process is not None
        pool.process.send_signal(signal.SIGTERM)
        until(lambda: pool.status()["pool"]["state"] == "STOPPING", 2)
        assert health(pool) == (503, NOT_SERVING)
        until(lambda: time.monotonic() > told_s + ENDING_S)
        woken_s = time.monotonic()
        wake.touch()
        assert pool.process.wait(60) == 0
        out, err = asking.communicate(timeout=10)
    assert (asking.returncode, err) == (0, "")
    assert json.loads(out) == {"y": [14.5]}
    pool.assert_nothing_left()
    report = running.end()
    assert report["wrong"] == 0
    assert set(report["errors"]) == {"UNAVAILABLE"}, report
    assert report["ok"] + sum(report["errors"].values()) == report["sent"]
    for failure in report["failures"]:
        # Connections break when all is answered, and not before.
        earliest_s = told_s if failure["message"] == REFUSED else woken_s
        assert report["start_s"] + failure["sent_s"] > earliest_s - ON_ITS_WAY_S, failure


@pytest.mark.parametrize("victim", ["supervisord", "foreground"])
def test_killing_the_top_ends_all(pool: Pool, load: LoadStarter, victim: str) -> None:
    """Kill -9 of supervisord or of the foreground process under load: every child ends too; a new start serves."""
    running = load(pool, "half_plus_two")
    pool.serves_on()
    commands = processes_of(pool.run_dir)
    supervisord = next(pid for pid, command in commands.items() if "supervisord.conf" in command)
    killed_s = time.monotonic()
    os.kill(supervisord if victim == "supervisord" else pool.pid, signal.SIGKILL)
    assert pool.process is not None
    assert pool.process.wait(20) != 0
    until(lambda: not processes_of(pool.run_dir), 15, "every process is gone")
    again = Pool(pool.run_dir, *pool.args)
    again.grpc_port, again.rest_port = pool.grpc_port, pool.rest_port
    try:
        again.start().wait()
        again.serves_on(60)  # clients try again after seconds
        report = running.end()
        assert cli("stop", "--run-dir", pool.run_dir).returncode == 0
        assert again.process is not None
        assert again.process.wait(20) == 0
        again.assert_nothing_left()
    finally:
        again.clear()
    assert report["wrong"] == 0
    assert set(report["errors"]) == {"UNAVAILABLE"}, report
    for failure in report["failures"]:
        assert report["start_s"] + failure["sent_s"] > killed_s - ON_ITS_WAY_S, failure


@pytest.fixture
def slow_to_execute(tmp_path: Path) -> dict[str, str]:
    """The environment of a supervisord whose children execute no worker's program before they have had, and lost, a SIGTERM."""
    return running_first(
        tmp_path,
        """
import sys

if any(word.endswith("supervisord.conf") for word in sys.orig_argv):
    import signal
    import time

    from supervisor.process import Subprocess

    become = Subprocess._spawn_as_child

    def wait_and_become(self, *arguments):
        if self.config.name.startswith("worker"):
            lost = []
            signal.signal(signal.SIGTERM, lambda *had: lost.append(had))
            while not lost:
                time.sleep(0.01)
        return become(self, *arguments)

    Subprocess._spawn_as_child = wait_and_become
""",
    )


@pytest.mark.parametrize("executed", [True, False], ids=["executed", "not executed yet"])
def test_sigterm_while_workers_load_ends_all_at_once(
    start_pool: PoolStarter,
    model_dir: Callable[[str], Path],
    slow_to_execute: dict[str, str],
    *,
    executed: bool,
) -> None:
    """Before any worker is READY: exit status 0, nothing left, and well within the grace time.

    What supervisord has forked and what does not execute its program yet has supervisord's handlers, and forgets.
    """
    args = ("--model", f"half_plus_two={model_dir('half_plus_two')}", "--cpu-slots", 2)
    pool = start_pool(*args, env={} if executed else slow_to_execute)
    asked = RunDir(pool.run_dir).pool_control  # at once: a command of its own takes as long as they do
    until(lambda: any(one["state"] == "STARTING" for one in control.call(asked, "status")["workers"]), 20)
    begun = time.monotonic()
    assert pool.stop() == 0
    assert time.monotonic() - begun < 30, "the grace time"
    pool.assert_nothing_left()


@pytest.fixture
def killed_for_good(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A file, and the environment of a pool process that ends as it begins while the file is there."""
    file = tmp_path / "gone"
    return file, running_first(
        tmp_path,
        f"""
import os
import sys

if "mpspool.supervisor" in sys.orig_argv and os.path.exists({str(file)!r}):
    os._exit(1)
""",
    )


def test_sigterm_does_not_wait_for_a_pool_process_that_stays_away(
    start_pool: PoolStarter,
    model_dir: Callable[[str], Path],
    killed_for_good: tuple[Path, dict[str, str]],
    tmp_path: Path,
) -> None:
    """Not all of the grace time: it ends without it, exit status 0, nothing left."""
    file, env = killed_for_good
    config = tmp_path / "pool.yaml"
    models = f"models: [{{name: half_plus_two, base_path: {model_dir('half_plus_two')}, cpu_slots: 1}}]"
    config.write_text(f"grace_s: 600\n{models}\n")
    pool = start_pool(config, env=env).wait()
    file.touch()
    os.kill(pool.process_pid("pool"), signal.SIGKILL)
    assert pool.stop(120) == 0
    assert "the pool process does not answer: going on without it" in pool.output.read_text()
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
