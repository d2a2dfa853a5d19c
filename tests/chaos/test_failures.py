"""Every kind of process killed under load, each answer counted and checked for its value.

One pool with two workers serves the module; each test leaves it whole again.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpspool.core import control
from mpspool.core.rundir import RunDir
from tests.conftest import PoolStarter
from tests.polling import until
from tests.pool import RATE, Load, Pool, cli, processes_of

LoadStarter = Callable[..., Load]
# As many requests may be under way at one moment, half a second's: what a router that is killed takes with it. More wait
# for the next one, since a client tries to connect again after a second.
IN_FLIGHT = RATE // 2
# So long the pool process waits for the router's answer before it shows what that told last.
ANSWER_S = 0.5


@pytest.fixture(scope="module")
def pool(start_module_pool: PoolStarter, model_dir: Callable[[str], Path]) -> Pool:
    model = f"half_plus_two={model_dir('half_plus_two')}"
    args = ("--cpu-slots", 2, "--intra-op-threads", 1, "--inter-op-threads", 1)
    return start_module_pool("--model", model, *args).wait()


@pytest.fixture(autouse=True)
def whole(pool: Pool) -> None:
    """Each test starts from a pool whose slots are all READY."""
    until(pool.all_ready, 60, "the pool is whole again")


def first_worker(pool: Pool) -> dict[str, object]:
    return pool.workers()["half_plus_two@1.cpu0.0"]


def test_killed_worker_costs_no_request(pool: Pool, load: LoadStarter) -> None:
    """Kill -9 a worker: no failed request, the slot READY again by itself, restarts counts up."""
    before = first_worker(pool)
    running = load(pool, "half_plus_two")
    pool.serves_on()
    os.kill(int(str(before["pid"])), signal.SIGKILL)
    until(lambda: first_worker(pool)["generation"] == before["generation"] + 1, 20)
    after = until(lambda: (w := first_worker(pool))["state"] == "READY" and w, 60)
    assert after["restarts"] == before["restarts"] + 1
    assert after["pid"] != before["pid"]
    pool.serves_on()
    running.end_clean()
    until(lambda: each_runs_once(pool), 20, "each process once")


def test_stopped_worker_is_replaced(pool: Pool, load: LoadStarter) -> None:
    """Kill -STOP a worker: its requests run elsewhere in time, its stack is in its log, it is replaced."""
    before = first_worker(pool)
    log = pool.run_dir / "logs" / "worker.half_plus_two@1.cpu0.0.log"
    dumps = log.read_text().count("most recent call first")
    running = load(pool, "half_plus_two", "--timeout", 5)
    pool.serves_on()
    os.kill(int(str(before["pid"])), signal.SIGSTOP)
    until(lambda: first_worker(pool)["generation"] == before["generation"] + 1, 30)
    assert log.read_text().count("most recent call first") > dumps, "no stack dump in the log"
    until(lambda: first_worker(pool)["state"] == "READY", 60)
    pool.serves_on()
    running.end_clean()
    assert not os.path.exists(f"/proc/{before['pid']}")


def test_killed_pool_process_is_replaced_and_adopts(pool: Pool, load: LoadStarter) -> None:
    """Kill -9 the pool process: serving goes on, its successor adopts the same workers."""
    before = pool.workers()
    running = load(pool, "half_plus_two")
    pool.serves_on()
    old = pool.process_pid("pool")
    os.kill(old, signal.SIGKILL)
    until(lambda: pool.process_pid("pool") not in (0, old), 20)
    until(pool.all_ready, 20)
    after = pool.workers()
    for key in ("pid", "generation", "restarts"):
        assert {w["id"]: w[key] for w in after.values()} == {w["id"]: w[key] for w in before.values()}
    pool.serves_on()
    running.end_clean()
    until(lambda: each_runs_once(pool), 20, "each process once")
    os.kill(int(first_worker(pool)["pid"]), signal.SIGKILL)  # the successor is in charge
    until(lambda: first_worker(pool)["generation"] == before["half_plus_two@1.cpu0.0"]["generation"] + 1, 30)
    # It knows nothing of the weights, and the worker waits for them, though another serves.
    published = [event["gives_way"] for event in pool.events() if event["event"] == "publishing"]
    assert published == [False, False]


def test_killed_router_is_replaced_and_workers_rejoin(pool: Pool, load: LoadStarter) -> None:
    """Kill -9 the router: the same workers rejoin, clients are served again within a few seconds."""
    before = pool.workers()
    running = load(pool, "half_plus_two", "--wait-for-ready")
    pool.serves_on()
    os.kill(pool.process_pid("router"), signal.SIGKILL)
    until(pool.all_ready, 20)
    after = pool.workers()
    assert {w["pid"] for w in after.values()} == {w["pid"] for w in before.values()}
    pool.serves_on()
    report = running.end()
    assert report["wrong"] == 0
    assert set(report["errors"]) <= {"UNAVAILABLE"}, report
    # A client tries to connect again after 1 s, 2.6 s, 5.2 s and 9.3 s, a fifth more or less.
    assert report["longest_gap_s"] < 15
    assert report["sent"] - report["ok"] <= IN_FLIGHT, report
    running = load(pool, "half_plus_two")
    pool.serves_on()
    running.end_clean()
    until(lambda: each_runs_once(pool), 20, "each process once")


def test_stopped_router_goes_on(pool: Pool, load: LoadStarter) -> None:
    """Kill -STOP the router: after 10 s its stack is in its log, and it goes on with all that it has."""
    log = pool.run_dir / "logs" / "router.log"
    running = load(pool, "half_plus_two", "--timeout", 60)
    pool.serves_on()
    router = pool.process_pid("router")
    os.kill(router, signal.SIGSTOP)
    until(lambda: "the router goes on" in [event["event"] for event in pool.events("pool")], 30)
    assert "most recent call first" in log.read_text(), "no stack dump in the log"
    pool.serves_on()
    running.end_clean()
    assert pool.process_pid("router") == router


def test_killed_nursery_costs_nothing(pool: Pool, load: LoadStarter) -> None:
    """Kill -9 of what the workers were forked from: they serve on, and a worker killed later comes back."""
    if "nursery" not in {item["name"] for item in pool.status()["processes"]}:
        pytest.skip("workers are started by exec")
    before = {name: worker["pid"] for name, worker in pool.workers().items()}
    running = load(pool, "half_plus_two")
    pool.serves_on()
    victim = pool.process_pid("nursery")
    os.kill(victim, signal.SIGKILL)
    until(lambda: pool.process_pid("nursery") not in (0, victim), 20)
    assert {name: worker["pid"] for name, worker in pool.workers().items()} == before
    generation = int(str(first_worker(pool)["generation"]))
    os.kill(before["half_plus_two@1.cpu0.0"], signal.SIGKILL)
    until(lambda: first_worker(pool)["generation"] == generation + 1 and pool.all_ready(), 30)
    pool.serves_on()
    running.end_clean()
    until(lambda: each_runs_once(pool), 20, "each process once")


def asked(pool: Pool) -> dict[str, Any]:
    """The status, from a pool process that has 4 s for it: less than for anything else that it asks a router."""
    return control.call(RunDir(pool.run_dir).pool_control, "status", timeout_s=4)


def asked_soon(pool: Pool) -> dict[str, Any]:
    """The status, asked for again where the router may have been waited for in vain, as on a busy machine."""

    def soon() -> dict[str, Any] | None:
        begun = time.monotonic()
        found = asked(pool)
        return found if time.monotonic() - begun < ANSWER_S else None

    return until(soon)


def test_the_status_counts_what_has_just_been_answered(pool: Pool) -> None:
    """Asked for right after an answer it is up to date, not what the router told last."""
    before = sum(worker["served"] for worker in asked_soon(pool)["workers"])
    for count in range(1, 6):
        done = cli("predict", "half_plus_two", "--input", "[1, 2, 5]", "--address", pool.address)
        assert json.loads(done.stdout) == {"y": [2.5, 3.0, 4.5]}
        workers = asked_soon(pool)["workers"]
        assert sum(worker["served"] for worker in workers) == before + count
        assert not any(worker["in_flight"] for worker in workers)


def test_the_status_does_not_wait_for_a_router_that_does_not_answer(pool: Pool) -> None:
    """Kill -STOP the router: what it told last is shown, soon."""
    router = pool.process_pid("router")
    os.kill(router, signal.SIGSTOP)
    try:
        found = asked(pool)
        assert {worker["state"] for worker in found["workers"]} == {"READY"}
        assert found["models"][0]["versions"][0]["state"] == "AVAILABLE"
    finally:
        os.kill(router, signal.SIGCONT)


def launcher_of(pool: Pool, worker: str) -> int:
    """The process that stands for a worker under supervisord: itself where it was started by exec."""
    settings = f"worker.{worker}.json"
    return next(pid for pid, command in processes_of(pool.run_dir).items() if settings in command)


def each_runs_once(pool: Pool) -> bool:
    """Whether every process is one that the status names, its launcher, or a part of an MPS stand-in."""
    status = pool.status()
    named = {item["pid"] for item in status["workers"] + status["processes"]} | {status["pool"]["pid"]}
    commands = processes_of(pool.run_dir)
    supervisord = {pid for pid, command in commands.items() if "supervisord.conf" in command}
    launchers = {pid for pid, command in commands.items() if "launcher.py" in command}
    mps = mps_processes(pool)
    return (
        set(commands) == named | supervisord | launchers | {*mps["daemon"], *mps["server"]}
        and len(supervisord) == 1
        and len(launchers) in (0, len(status["workers"]))  # exec, fork
        and len(mps["daemon"]) == len(mps["wrapper"]) >= len(mps["server"])
    )


def test_a_killed_launcher_costs_no_request(pool: Pool, load: LoadStarter) -> None:
    """Kill -9 of what stands for a worker under supervisord: the worker ends with it, and comes back."""
    before = first_worker(pool)
    running = load(pool, "half_plus_two")
    pool.serves_on()
    launcher = launcher_of(pool, "half_plus_two@1.cpu0.0")
    os.kill(launcher, signal.SIGKILL)
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in (launcher, before["pid"])), 20)
    until(
        lambda: first_worker(pool)["generation"] == int(str(before["generation"])) + 1 and pool.all_ready(),
        60,
    )
    pool.serves_on()
    running.end_clean()
    until(lambda: each_runs_once(pool), 20, "each process once")


def mps_processes(pool: Pool) -> dict[str, list[int]]:
    """The pids of the wrapper that supervisord starts, of the stand-in daemon and of its server."""
    commands = processes_of(pool.run_dir)
    named = {
        "wrapper": "mpspool.mps.daemon ",
        "daemon": "nvidia_cuda_mps_control -f",
        "server": "mpspool.mps.simulated.server ",
    }
    return {name: [pid for pid, found in commands.items() if text in found] for name, text in named.items()}


def starts(pool: Pool) -> list[str]:
    """The starts of workers and their getting READY, in order, as the pool process logged them."""
    lines = (pool.run_dir / "logs" / "pool.log").read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines if line.startswith("{")]
    return [event for event in events if event in ("worker started", "worker ready")]


def test_an_mps_daemon_killed_together_with_the_pool_process_costs_no_request(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], load: LoadStarter
) -> None:
    """One of each again, the old server ended; and the workers, which were its clients, come back one by one.

    The successor of the pool process cannot know that there was another daemon: it asks who is a client.
    """
    model = f"half_plus_two={model_dir('half_plus_two')}"
    layout = ("--simulate-gpus", 1, "--contexts-per-gpu", 2, "--intra-op-threads", 1)
    pool = start_pool("--model", model, *layout).wait()
    # Both workers are away for a while, and one that is not forked needs seconds to be back.
    running = load(pool, "half_plus_two", "--timeout", 60)
    pool.serves_on()
    generations = {name: worker["generation"] for name, worker in pool.workers().items()}
    past = len(starts(pool))
    before = mps_processes(pool)
    os.kill(pool.process_pid("pool"), signal.SIGKILL)
    os.kill(before["wrapper"][0], signal.SIGKILL)

    def renewed() -> bool:
        after = mps_processes(pool)
        one_each = len(after["wrapper"]) == len(after["daemon"]) == 1
        return one_each and not any(set(before[name]) & set(after[name]) for name in after)

    until(renewed, 30, "others after their death")
    until(lambda: each_runs_once(pool), 20, "each process once")

    def refilled() -> bool:
        workers = pool.workers().items()
        return all(worker["generation"] > generations[name] for name, worker in workers) and pool.all_ready()

    until(refilled, 90, "workers of the new daemon")
    assert set(pool.mps_clients("gpu0")) == {worker["pid"] for worker in pool.workers().values()}
    assert starts(pool)[past:] == ["worker started", "worker ready"] * 2, "one by one"
    pool.serves_on()
    running.end_clean()
