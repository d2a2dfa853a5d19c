"""Shares as the stand-in's server sees them, changed while the pool serves; and a daemon that is not the pool's."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mpspool.core import control, settings
from mpspool.core.rundir import RunDir
from mpspool.core.settings import MpsSettings
from mpspool.mps.control import Control
from mpspool.mps.simulated import control_command
from mpspool.mps.simulated.inventory import simulated
from tests.conftest import PoolStarter, short_dir
from tests.polling import until
from tests.pool import CLI, Load, Pool, cli, processes_of

LoadStarter = Callable[..., Load]
GIB = 2**30
# What no limit is to CUDA: all that a stand-in has.
ALL = simulated(1)[0].memory_bytes


def clients(pool: Pool, device: str = "gpu0") -> dict[int, tuple[float, int | None, int]]:
    """What each client has, by pid, as the stand-in's server says it."""
    daemon = settings.load(pool.run_dir / "settings" / f"mps.{device}.json", MpsSettings)
    lines = Control.of(daemon, os.environ).raw("simulate_clients").splitlines()
    return {
        found["pid"]: (found["thread_percentage"], found["pinned_mem_bytes"], found["priority"])
        for found in map(json.loads, lines)
    }


def by_worker(pool: Pool) -> dict[str, tuple[float, int | None, int]]:
    found = clients(pool)
    return {name: found[worker["pid"]] for name, worker in pool.workers().items()}


def generations(pool: Pool) -> dict[str, int]:
    return {name: worker["generation"] for name, worker in pool.workers().items()}


def shown(pool: Pool) -> dict[str, dict[str, Any]]:
    done = cli("mps", "show", "--json", "--run-dir", pool.run_dir)
    assert done.returncode == 0, done.stderr
    return {worker["worker"]: worker for worker in json.loads(done.stdout)["workers"]}


def change(pool: Pool, *args: object, status: int = 0) -> str:
    done = cli("mps", "set", "--run-dir", pool.run_dir, *args, timeout=120)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_shares_while_it_serves(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], load: LoadStarter, tmp_path: Path
) -> None:
    """From the file to the client; set for the next generation; renewed one by one, with every request answered."""
    file = tmp_path / "pool.yaml"
    file.write_text(
        f"""
simulate_gpus: 1
contexts_per_gpu: 3
mps: {{pinned_memory: 4GiB, priority: [normal, below_normal, normal]}}
models:
  half: {{base_path: {model_dir("half_plus_two")}, intra_op_threads: 1}}
"""
    )
    pool = start_pool(file).wait()
    first, second, third = (f"half@1.gpu0.{slot}" for slot in range(3))
    if first not in pool.workers():
        first, second, third = sorted(pool.workers())
    assert by_worker(pool) == {
        first: (67.0, 4 * GIB, 0),
        second: (67.0, 4 * GIB, 1),
        third: (67.0, 4 * GIB, 0),
    }

    # The next generation, whenever it comes; its successor as pool process knows it, too.
    change(pool, "--worker", third, "--active-thread-percentage", 20)
    assert shown(pool)[third]["next"]["active_thread_percentage"] == 20
    assert shown(pool)[third]["running"]["active_thread_percentage"] == 67
    assert by_worker(pool)[third] == (67.0, 4 * GIB, 0)
    was = pool.process_pid("pool")
    os.kill(was, signal.SIGKILL)
    until(lambda: pool.process_pid("pool") not in (0, was), 20, "another pool process")
    os.kill(pool.workers()[third]["pid"], signal.SIGKILL)
    until(lambda: generations(pool)[third] == 2 and pool.all_ready(), 60, "another generation")
    assert by_worker(pool)[third] == (20.0, 4 * GIB, 0)
    assert shown(pool)[third]["running"] == shown(pool)[third]["next"]

    # Now, under load: one by one, none of which counts as a failure.
    running = load(pool, "half", "--first", 1000)
    pool.serves_on()
    told = change(pool, "--active-thread-percentage", "30,40", "--pinned-memory", 0, "--restart")
    assert [line.split()[1].rstrip(":") for line in told.splitlines() if line.startswith("renewed")] == [
        first,
        second,
        third,
    ]
    assert pool.all_ready()
    pool.serves_on()
    running.end_clean()
    assert by_worker(pool) == {first: (30.0, ALL, 0), second: (40.0, ALL, 1), third: (30.0, ALL, 0)}
    assert generations(pool) == {first: 2, second: 2, third: 3}
    log = [
        json.loads(line)
        for line in (pool.run_dir / "logs" / "pool.log").read_text().splitlines()
        if "{" in line
    ]
    ready = [event["pid"] for event in log if event["event"] == "worker ready" and event["worker"] == first]
    assert ready[-1] == pool.workers()[first]["pid"]
    assert all("launcher" in event for event in log if event["event"] == "worker started")
    order = [
        (event["event"], event["worker"])
        for event in log
        if event["event"] in ("worker started", "worker ready")
    ]
    assert order[-6:] == [
        (event, worker) for worker in (first, second, third) for event in ("worker started", "worker ready")
    ]

    # Once more: nothing is left to do.
    told = change(pool, "--model", "half", "--active-thread-percentage", "30,40", "--restart")
    assert told.count("\nunchanged half@1.gpu0.") == 3
    assert "renewed" not in told
    assert generations(pool) == {first: 2, second: 2, third: 3}

    # What cannot be is refused, and changes nothing.
    assert "no model 'none' has workers under MPS; there are half" in change(
        pool, "--model", "none", "--priority", "normal", status=1
    )
    assert "leaves half nothing" in change(pool, "--pinned-memory", "256MiB", status=1)
    assert "expected normal or below_normal" in change(pool, "--priority", "high", status=1)
    assert shown(pool)[first]["next"]["pinned_memory_bytes"] == 0
    done = cli("mps", "show", "--run-dir", pool.run_dir)
    assert re.match(r"gpu0: MPS daemon on \S+ SIMULATED\n", done.stdout)
    assert "below_normal" in done.stdout
    assert "the same" in done.stdout


def test_what_is_given_wins_over_the_environment(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    """CUDA's own variables hold for a worker that was given nothing; `show` says what each really has."""
    file = tmp_path / "pool.yaml"
    file.write_text(
        f"""
simulate_gpus: 1
contexts_per_gpu: 1
models:
  given: {{base_path: {model_dir("half_plus_two")}, mps: {{active_thread_percentage: 40, pinned_memory: 2GiB, priority: normal}}}}
  heir: {model_dir("half_plus_two")}
"""
    )
    environ = {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "60",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3G",
        "CUDA_MPS_CLIENT_PRIORITY": "1",
    }
    pool = start_pool(file, env=environ).wait()
    given, heir = sorted(pool.workers())
    assert by_worker(pool) == {given: (40.0, 2 * GIB, 0), heir: (60.0, 3 * GIB, 1)}
    everything = ["active_thread_percentage", "pinned_memory_bytes", "priority"]
    assert shown(pool)[heir]["running"] == {
        "active_thread_percentage": 60,
        "pinned_memory_bytes": 3 * GIB,
        "priority": "below_normal",
        "inherited": everything,
    }
    assert shown(pool)[given]["running"]["priority"] == "normal"
    assert shown(pool)[given]["running"]["inherited"] == []
    assert "below_normal (inherited)" in cli("mps", "show", "--run-dir", pool.run_dir).stdout

    # No bound of its own: those of its daemon, which inherits them too, stay.
    change(
        pool,
        *("--worker", heir, "--priority", "normal", "--active-thread-percentage", 100, "--pinned-memory", 0),
        "--restart",
    )
    assert by_worker(pool)[heir] == (60.0, 3 * GIB, 0)
    assert shown(pool)[heir]["running"] == {
        "active_thread_percentage": 60,
        "pinned_memory_bytes": 3 * GIB,
        "priority": "normal",
        "inherited": everything[:2],
    }


def test_a_renewal_ends_no_request_that_its_model_allows(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], testing_ops: Path, tmp_path: Path
) -> None:
    """What runs is finished first, unless it hangs by its model's own hang_timeout_s; shares fit TensorFlow's memory."""
    file = tmp_path / "pool.yaml"
    file.write_text(
        f"""
simulate_gpus: 1
contexts_per_gpu: 1
models:
  - {{name: sleeper, base_path: {model_dir("sleeper")}, hang_timeout_s: 5, intra_op_threads: 1,
      custom_ops: [{testing_ops}], gpu_memory: {{fraction: 0.5}}}}
"""
    )
    pool = start_pool(file).wait()
    (worker,) = pool.workers()
    told = change(pool, "--pinned-memory", "10GiB", status=1)
    assert "pinned_memory 10GiB is less than sleeper's gpu_memory.fraction, 40GiB" in told

    def asked(seconds: float, timeout_s: float) -> subprocess.Popen[str]:
        command = [
            *CLI,
            "predict",
            "sleeper",
            "--input",
            json.dumps({"x": [seconds]}),
            "--address",
            pool.address,
        ]
        process = subprocess.Popen(
            [*command, "--timeout", str(timeout_s)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        router = RunDir(pool.run_dir).router_control  # a command of its own may take as long as the request
        until(lambda: any(one["in_flight"] for one in control.call(router, "snapshot")["workers"]), 20)
        return process

    finishes = asked(3.0, 60)
    told = change(pool, "--priority", "below_normal", "--restart")
    assert f"renewed {worker}" in told
    out, err = finishes.communicate(timeout=60)
    assert finishes.returncode == 0, out + err
    assert generations(pool)[worker] == 2

    hangs = asked(60.0, 2)
    told = change(pool, "--priority", "normal", "--restart")
    assert f"renewed {worker}" in told
    assert hangs.wait(60) != 0
    hangs.communicate()
    assert generations(pool)[worker] == 3
    log = (pool.run_dir / "logs" / "pool.log").read_text()
    assert "one request has been running for" in log
    assert "did not leave within" not in log


class Node:
    """A stand-in daemon that is nobody's of the pools: for one simulated GPU, on folders of its own."""

    def __init__(self, root: Path) -> None:
        self.pipe, self.log = root / "pipe", root / "log"
        self.environ = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": simulated(1)[0].uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log),
        }
        self.control = Control(control_command(), self.environ)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *before: str) -> None:
        self.process = subprocess.Popen(
            [*before, *control_command(), "-f"],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(self.control.answers, 20, "the daemon answers")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def clients(self) -> set[int]:
        return {pid for server in self.control.server_list() for pid in self.control.client_list(server)}

    def quit(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.control.quit(20)
            self.process.wait(20)


@pytest.fixture
def node() -> Iterator[Node]:
    with short_dir() as root:
        node = Node(root)
        yield node
        node.quit()


def test_an_external_daemon_is_joined_and_left_alone(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], node: Node
) -> None:
    """Its clients are ours and have shares; its end is waited for, its return is enough; it outlives the pool."""
    node.start()
    flags = ("--model", f"half={model_dir('half_plus_two')}", "--mps", "external", "--simulate-gpus", 1)
    environ = {"CUDA_MPS_PIPE_DIRECTORY": str(node.pipe), "CUDA_MPS_LOG_DIRECTORY": str(node.log)}
    pool = start_pool(*flags, "--contexts-per-gpu", 3, env=environ).wait()
    assert (
        f"MPS simulated: the control daemon on {node.pipe}, which is not ours (process {node.pid} of user "
        in pool.output.read_text()
    )
    assert node.clients() == {worker["pid"] for worker in pool.workers().values()}
    assert set(clients(pool).values()) == {(67.0, None, 0)}
    assert not [name for name in pool.status()["processes"] if name["name"].startswith("mps.")]

    flag = ("--mps", "external", "--simulate-gpus", 1, "--run-dir", pool.run_dir)
    checks = json.loads(cli("doctor", "--json", *flag, env={**os.environ, **environ}).stdout)["checks"]
    found = {check["name"]: check for check in checks}["mps_environment"]
    assert found["status"] == "ok"
    assert f"the daemon on {node.pipe} is joined" in found["evidence"]

    before = generations(pool)
    node.quit()
    until(lambda: not pool.all_ready(), 30, "its clients are lost")
    node.start()
    until(lambda: pool.all_ready() and generations(pool) != before, 90, "they come back")
    assert node.clients() == {worker["pid"] for worker in pool.workers().values()}

    assert pool.stop() == 0
    assert node.process is not None
    assert node.process.poll() is None
    assert node.control.answers()
    assert node.clients() == set()


def test_a_killed_pool_does_not_take_the_daemon_along(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], node: Node
) -> None:
    """Neither its end nor the next start in its run folder."""
    node.start()
    flags = ("--model", f"half={model_dir('half_plus_two')}", "--mps", "external", "--simulate-gpus", 1)
    environ = {"CUDA_MPS_PIPE_DIRECTORY": str(node.pipe), "CUDA_MPS_LOG_DIRECTORY": str(node.log)}
    pool = start_pool(*flags, "--contexts-per-gpu", 1, env=environ).wait()
    assert pool.process is not None
    pool.process.kill()
    pool.process.wait(10)
    until(lambda: not processes_of(pool.run_dir), 20, "all of it has ended")
    pool.start().wait()
    assert node.process is not None
    assert node.process.poll() is None
    assert node.clients() == {worker["pid"] for worker in pool.workers().values()}


def in_another_namespace() -> list[str]:
    """What goes before a command to run it in a pid namespace of its own."""
    unshare = ["unshare", "--pid", "--fork", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("no pid namespace can be made here")
    return unshare


def test_a_worker_whose_daemon_cannot_know_it(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], node: Node
) -> None:
    """A daemon that came in another's place, in another pid namespace: no worker is READY, each says why."""
    elsewhere = in_another_namespace()
    node.start()
    flags = ("--model", f"half={model_dir('half_plus_two')}", "--mps", "external", "--simulate-gpus", 1)
    environ = {"CUDA_MPS_PIPE_DIRECTORY": str(node.pipe), "CUDA_MPS_LOG_DIRECTORY": str(node.log)}
    pool = start_pool(*flags, "--contexts-per-gpu", 1, env=environ).wait()
    node.quit()
    node.start(*elsewhere)
    said = until(
        lambda: [w["error"] for w in pool.workers().values() if "pid namespace" in w.get("error", "")], 60
    )
    assert "hostPID: true" in said[0]
    assert not pool.all_ready()


def test_start_says_why_a_daemon_cannot_be_joined(model_dir: Callable[[str], Path], node: Node) -> None:
    """None there; and one in another pid namespace, whose lists name nobody of ours."""

    def start(*before: str) -> str:
        command = [
            sys.executable,
            "-m",
            "mpspool",
            "start",
            "--check",
            "--mps",
            "external",
            "--simulate-gpus",
            "1",
        ]
        command += [
            "--model",
            f"half={model_dir('half_plus_two')}",
            "--run-dir",
            str(node.pipe.parent / "run"),
        ]
        environ = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(node.pipe)}
        done = subprocess.run([*before, *command], env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stdout + done.stderr
        return done.stderr

    assert (
        f"mps: external, but there is no folder {node.pipe}: no MPS daemon runs on it; start it there"
        in start()
    )
    node.pipe.mkdir()
    assert "there is no control socket in" in start()
    elsewhere = in_another_namespace()
    node.start()
    assert "is in another pid namespace" in start(*elsewhere)
    node.quit()
    node.start(*elsewhere)
    told = start()
    assert "is in another pid namespace" in told
    assert "hostPID: true" in told
