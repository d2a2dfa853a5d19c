"""Every way a GPU under MPS fails, on stand-ins, under load: the other GPU serves on, and no request is lost.

One pool on two GPUs serves the module; each test leaves it whole again, but the last two: they lose one GPU, and both.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpspool.core import control
from mpspool.core.rundir import RunDir
from tests.conftest import PoolStarter
from tests.polling import until
from tests.pool import CLI, ROOT, Load, Pool, cli

LoadStarter = Callable[..., Load]
POISON = '{"x": [13.0]}'


@pytest.fixture(scope="module")
def pool(
    start_module_pool: PoolStarter,
    model_dir: Callable[[str], Path],
    testing_ops: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Pool:
    config = tmp_path_factory.mktemp("faults") / "pool.yaml"
    config.write_text(
        f"""
simulate_gpus: 2
contexts_per_gpu: 2
models:
  - {{name: faulter, base_path: {model_dir("faulter")}, intra_op_threads: 1, hang_timeout_s: 5,
     custom_ops: [{testing_ops}]}}
"""
    )
    return start_module_pool(config).wait()


@pytest.fixture
def whole(pool: Pool) -> None:
    until(pool.all_ready, 60, "the pool is whole again")


@pytest.fixture
def running(pool: Pool, whole: None, load: LoadStarter) -> Load:
    """200 requests a second, each of which is to be answered, and right."""
    # One that is not forked needs seconds to be back.
    running = load(pool, "faulter", "--first", 1000, "--timeout", 60)
    pool.serves_on()
    return running


def on(pool: Pool, device: str, key: str) -> dict[str, Any]:
    return {name: worker[key] for name, worker in pool.workers().items() if worker["device"] == device}


def story(pool: Pool, past: int) -> None:
    """Says how long what took, seen with pytest -rP: from the moment when the pool knew of the fault."""
    since = {event["event"]: at(event) for event in reversed(pool.events()[past:])}
    failed = since["GPU failed"]
    stops = [at(event) - failed for event in pool.events("router") if "gpu0: " in str(event.get("why"))]
    stopped = max(stop for stop in stops if stop > -1)
    # 100 ms is what it must be where there is a CPU for it; here others take theirs, too.
    assert stopped < 5
    print(
        f"fault: nothing more was sent there after {1000 * stopped:.0f} ms,"
        f" a worker READY after {since['worker ready'] - failed:.2f} s, all after {since['GPU recovered'] - failed:.2f} s"
    )


def at(event: dict[str, Any]) -> float:
    return dt.datetime.fromisoformat(event["timestamp"]).timestamp()


def recovered(pool: Pool, generations: dict[str, int]) -> bool:
    """Every worker is a new one, and READY."""
    workers = pool.workers()
    return all(workers[name]["generation"] > was for name, was in generations.items()) and pool.all_ready()


@pytest.mark.parametrize("kind", ["server-fault", "daemon-death", "server-death"])
def test_a_fault_ends_and_renews_the_workers_of_one_gpu(pool: Pool, running: Load, kind: str) -> None:
    """All clients of the GPU end, and come back one after another; the other GPU's never notice."""
    others = on(pool, "gpu1", "pid")
    generations = on(pool, "gpu0", "generation")
    restarts = on(pool, "gpu0", "restarts")
    past = len(pool.events())
    pool.fault("gpu0", "--kind", kind)
    until(lambda: recovered(pool, generations), 90, f"other workers after {kind}")
    assert on(pool, "gpu1", "pid") == others
    assert on(pool, "gpu0", "restarts") == {name: count + 1 for name, count in restarts.items()}
    assert set(pool.mps_clients("gpu0")) == set(on(pool, "gpu0", "pid").values())
    found = pool.events()[past:]
    until(lambda: "GPU recovered" in [event["event"] for event in pool.events()[past:]], 10)
    starts = [event["event"] for event in found if event["event"] in ("worker started", "worker ready")]
    assert starts == ["worker started", "worker ready"] * 2, "one by one"
    story(pool, past)
    pool.serves_on()
    running.end_clean()


def test_a_request_that_faults_its_gpu_is_kept_out(pool: Pool, running: Load) -> None:
    """It takes two GPUs down, or one twice, and is refused; every other request is answered right."""
    generations = {**on(pool, "gpu0", "generation"), **on(pool, "gpu1", "generation")}
    poison = ("predict", "faulter", "--input", POISON, "--timeout", 60, "--address", pool.address)
    answer = cli(*poison, timeout=90)
    assert answer.returncode == 1
    assert "INTERNAL" in answer.stderr
    assert "kept out" in answer.stderr or "taken for the cause" in answer.stderr
    until(pool.all_ready, 60)
    after = {**on(pool, "gpu0", "generation"), **on(pool, "gpu1", "generation")}
    # Each GPU's two workers; or one's, whose second may not have been back when the first was hit again.
    assert sum(after[name] - generations[name] for name in after) in (3, 4)
    again = cli(*poison, timeout=90)
    assert "INTERNAL" in again.stderr
    assert {**on(pool, "gpu0", "generation"), **on(pool, "gpu1", "generation")} == after, "not run again"
    assert "caused by" in [event["event"] for event in pool.events()], "the server's log named it"
    pool.serves_on()
    running.end_clean()


def running_for(pool: Pool) -> dict[str, float]:
    """For how many seconds each worker has run what it runs now, as the router sees it."""
    snapshot = control.call(RunDir(pool.run_dir).router_control, "snapshot")
    return {worker["id"]: worker["running_s"] for worker in snapshot["workers"]}


def test_a_worker_that_was_shot_while_it_was_busy(pool: Pool, running: Load) -> None:
    """Its server does not come back, so its daemon is restarted; the request runs elsewhere, and so does all else."""
    workers = pool.workers()
    past = len(pool.events())
    slow = subprocess.Popen(
        [
            *CLI,
            "predict",
            "faulter",
            "--input",
            '{"x": [17.0]}',
            "--timeout",
            "60",
            "--address",
            pool.address,
        ],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )

    def busy() -> str:
        """The worker that runs it. On a slow machine others may be seen at work, too, but not for so long."""
        name, seconds = max(running_for(pool).items(), key=lambda item: item[1])
        return name if seconds > 1 else ""

    victim = until(busy, 20)
    worker = workers[victim]
    os.kill(worker["pid"], signal.SIGKILL)  # at once: it runs for three seconds
    others = on(pool, "gpu1" if worker["device"] == "gpu0" else "gpu0", "pid")
    assert json.loads(slow.communicate(timeout=60)[0]) == {"y": [10.5]}
    until(lambda: pool.workers()[victim]["generation"] > worker["generation"] and pool.all_ready(), 60)
    assert "restarting the MPS daemon" in [event["event"] for event in pool.events()[past:]]
    assert others.items() <= {name: found["pid"] for name, found in pool.workers().items()}.items()
    pool.serves_on()
    running.end_clean()


def test_a_client_that_is_wedged_is_cut_off_and_replaced(pool: Pool, running: Load) -> None:
    """What it has on the GPU never returns: it is found by lack of progress, and no other worker is harmed."""
    before = on(pool, "gpu0", "generation")
    others = on(pool, "gpu1", "pid")
    server_log = pool.run_dir / "logs" / "mps.gpu0.log"
    past = len(server_log.read_text())
    pool.fault("gpu0", "--kind", "client-wedge")
    until(lambda: on(pool, "gpu0", "generation") != before and pool.all_ready(), 60)
    assert sum(on(pool, "gpu0", "generation")[name] - was for name, was in before.items()) == 1
    assert on(pool, "gpu1", "pid") == others
    assert "ended while its work ran" not in server_log.read_text()[past:]
    pool.serves_on()
    running.end_clean()


def state_of(pool: Pool, device: str) -> str:
    return next(str(one["state"]) for one in pool.status()["devices"] if one["device"] == device)


def test_the_pool_process_is_killed_while_a_gpu_recovers(pool: Pool, running: Load) -> None:
    """Its successor finds the GPU as it is, and brings its workers back; no request is lost."""
    others = on(pool, "gpu1", "pid")
    generations = on(pool, "gpu0", "generation")
    pool.fault("gpu0", "--kind", "server-fault")
    until(lambda: state_of(pool, "gpu0") != "SERVING", 20)
    os.kill(pool.process_pid("pool"), signal.SIGKILL)
    until(lambda: answers(pool) and recovered(pool, generations), 90)
    assert on(pool, "gpu1", "pid") == others
    assert set(pool.mps_clients("gpu0")) == set(on(pool, "gpu0", "pid").values())
    pool.serves_on()
    running.end_clean()


def test_the_router_is_killed_while_a_gpu_recovers(pool: Pool, whole: None, load: LoadStarter) -> None:
    """The next one is told of the GPU by the pool, and serves on the other until it is back; clients connect again."""
    running = load(pool, "faulter", "--first", 1000, "--timeout", 60)
    pool.serves_on()
    others = on(pool, "gpu1", "pid")
    generations = on(pool, "gpu0", "generation")
    pool.fault("gpu0", "--kind", "server-fault")
    until(lambda: state_of(pool, "gpu0") != "SERVING", 20)
    os.kill(pool.process_pid("router"), signal.SIGKILL)
    until(lambda: recovered(pool, generations), 90)
    assert on(pool, "gpu1", "pid") == others
    pool.serves_on()
    report = running.end()
    assert report["wrong"] == 0
    assert set(report["errors"]) <= {"UNAVAILABLE"}, report


def answers(pool: Pool) -> bool:
    return cli("status", "--run-dir", pool.run_dir).returncode == 0


def get(pool: Pool, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{pool.rest_port}{path}", timeout=5) as answer:
        return str(answer.read().decode())


def test_a_gpu_that_is_lost_is_left_alone(pool: Pool, running: Load) -> None:
    """Its slots are FATAL and say why, readiness holds, the other GPU serves all."""
    others = on(pool, "gpu1", "pid")
    pool.fault("gpu0", "--kind", "gpu-lost")
    until(lambda: set(on(pool, "gpu0", "state").values()) == {"FATAL"}, 60)
    workers = pool.workers()
    assert all("gpu0 is lost" in workers[name]["error"] for name in on(pool, "gpu0", "state"))
    assert on(pool, "gpu1", "pid") == others
    assert pool.status()["pool"]["state"] == "DEGRADED"
    get(pool, "/readyz")  # raises for anything but 200
    until(lambda: lost(pool) == {"gpu0"}, 10)
    pool.serves_on()
    running.end_clean()


def test_no_gpu_is_left(pool: Pool) -> None:
    """The pool is there, and is not ready: whoever balances load is to go elsewhere."""
    pool.fault("gpu1", "--kind", "gpu-lost")
    until(lambda: set(on(pool, "gpu1", "state").values()) == {"FATAL"}, 60)
    until(lambda: lost(pool) == {"gpu0", "gpu1"}, 10)
    with pytest.raises(urllib.error.HTTPError) as refusal:
        get(pool, "/readyz")
    with refusal.value:
        assert refusal.value.code == 503
    refused = cli("predict", "faulter", "--input", '{"x": [1.0]}', "--address", pool.address)
    assert "UNAVAILABLE" in refused.stderr
    assert "is lost" in refused.stderr


def lost(pool: Pool) -> set[str]:
    """The GPUs that the metrics say are LOST."""
    lines = get(pool, "/metrics").splitlines()
    found = [re.fullmatch(r'mpspool_gpu_state\{device="(\w+)",state="LOST",.*\} 1.0', line) for line in lines]
    return {match[1] for match in found if match}


def test_a_model_is_unloaded_whose_gpus_are_all_lost(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    """While another model has its own GPU: that one's slots go, and the pool process stays."""
    entries = "".join(
        f"  - {{name: {name}, base_path: {model_dir('half_plus_two')}, gpus: [{gpu}]}}\n"
        for gpu, name in enumerate(("away", "here"))
    )
    config = tmp_path / "pool.yaml"
    config.write_text(f"simulate_gpus: 2\ncontexts_per_gpu: 1\nmodels:\n{entries}")
    pool = start_pool(config).wait()
    pid = pool.process_pid("pool")
    pool.fault("gpu0", "--kind", "gpu-lost")
    until(lambda: set(on(pool, "gpu0", "state").values()) == {"FATAL"}, 60)
    unloaded = cli("unload", "away", "--run-dir", pool.run_dir)
    assert unloaded.returncode == 0, unloaded.stderr
    until(lambda: {worker["model"] for worker in pool.workers().values()} == {"here"}, 20)
    assert cli("predict", "here", "--input", '{"x": [1.0]}', "--run-dir", pool.run_dir).returncode == 0
    assert pool.process_pid("pool") == pid
