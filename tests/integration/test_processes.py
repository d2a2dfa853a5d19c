"""The process side of a pool: real supervisord, router, pool and foreground process, workers without TensorFlow."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mpspool.core.control import ControlError, Message, call
from mpspool.core.process import alive, stat
from mpspool.core.rundir import RunDir
from tests.conftest import PoolStarter
from tests.light import LIGHT
from tests.polling import until
from tests.pool import CLI, ROOT, Pool, cli, processes_of
from tests.reloading import File, reload

# Of a client by HTTP/2: its preface, and SETTINGS that set nothing.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
ONE, TWO = "half@1.cpu0.0", "half@1.cpu0.1"
LightStarter = Callable[..., Pool]


@pytest.fixture
def light_pool(start_pool: PoolStarter, model_dir: Callable[[str], Path]) -> LightStarter:
    """Starts a pool of two light workers of the model "half"."""

    def make(*args: object) -> Pool:
        model = f"half={model_dir('half_plus_two')}"
        return start_pool("--model", model, "--cpu-slots", 2, *args, env=LIGHT)

    return make


def behave(pool: Pool, worker: str, how: str) -> None:
    """From its next start on."""
    folder = pool.run_dir / "behave"
    folder.mkdir(exist_ok=True)
    (folder / worker).write_text(how)


def expected_pids(pool: Pool) -> set[int]:
    status = pool.status()
    pids = {item["pid"] for item in status["workers"] + status["processes"]}
    supervisord = stat(pool.process_pid("pool"))
    assert supervisord is not None
    return pids | {status["pool"]["pid"], supervisord.ppid}


def until_settled(pool: Pool) -> None:
    """Only what status names is there, and no publisher any more: it may outlast the workers' start by a moment."""

    def settled() -> bool:
        named = {item["name"] for item in pool.status()["processes"]}
        return named == {"pool", "router"} and set(processes_of(pool.run_dir)) == expected_pids(pool)

    until(settled, 10, "the processes that status names, and no others")


def steadily(probe: Callable[[], bool], for_s: float = 0.5) -> Callable[[], bool]:
    """Whether the probe has been true at every look for some time."""
    since = time.monotonic()

    def look() -> bool:
        nonlocal since
        if not probe():
            since = time.monotonic()
        return time.monotonic() - since > for_s

    return look


def has_socket(pid: int) -> bool:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if descriptor.readlink().name.startswith("socket:"):
                return True
    return False


def slots_measured(pool: Pool) -> set[tuple[str, float]]:
    """How many slots are in each state, as /metrics has it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{pool.rest_port}/metrics", timeout=10) as answer:
        found = re.findall(r'^mpspool_slots\{.*state="(\w+)".*\} (.+)$', answer.read().decode(), re.MULTILINE)
    return {(state, float(count)) for state, count in found}


def kill(pid: int, signum: int = signal.SIGKILL) -> int:
    os.kill(pid, signum)
    return pid


def test_a_start_from_nothing_to_nothing(light_pool: LightStarter) -> None:
    """Every process there once, as status says; SIGTERM ends all of them with exit status 0."""
    pool = light_pool().wait()
    status = pool.status()
    assert status["pool"]["pid"] == pool.pid
    assert status["pool"]["state"] == "RUNNING"
    assert {(w["id"], w["state"], w["generation"], w["restarts"]) for w in status["workers"]} == {
        (ONE, "READY", 1, 0),
        (TWO, "READY", 1, 0),
    }
    until_settled(pool)
    tried = rf"try: \S*mpspool predict half .* --address {pool.address}\n"
    until(lambda: re.search(tried, pool.output.read_text()), 10, "the line to try")
    assert pool.stop(30) == 0
    router = (pool.run_dir / "logs" / "router.log").read_text()
    assert router.count("worker left") == 2
    assert "worker lost" not in router


@pytest.mark.parametrize("victim", ["worker", "pool", "router"])
def test_what_is_killed_comes_back_once(light_pool: LightStarter, victim: str) -> None:
    """Killed below supervisord: one of it again, the others untouched, restarts counted for a worker."""
    pool = light_pool().wait()
    before = pool.workers()
    old = kill(before[ONE]["pid"] if victim == "worker" else pool.process_pid(victim))
    until(lambda: not alive(old))
    hit = 1 if victim == "worker" else 0
    # What the status says of a worker that has just been killed may be from before.
    until(lambda: pool.workers()[ONE]["generation"] == 1 + hit and pool.all_ready(), 20, "whole again")
    after = pool.workers()
    assert (after[ONE]["generation"], after[ONE]["restarts"]) == (1 + hit, hit)
    assert (after[TWO]["pid"], after[TWO]["generation"]) == (before[TWO]["pid"], 1)
    until_settled(pool)
    told = f"{victim} ended (pid {old})" if victim != "worker" else f"{ONE} ended"
    until(lambda: told in pool.output.read_text(), 10, told)
    assert pool.output.read_text().count(told) == 1


def autogroup(pid: int) -> str:
    """The kernel's name of a process's session, and its nice value."""
    return Path(f"/proc/{pid}/autogroup").read_text()


@pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="this kernel does not share by sessions"
)
def test_who_serves_shares_no_session(light_pool: LightStarter) -> None:
    """Router and workers have each their own; supervisord's gives way to them, unless somebody waits for it."""
    pool = light_pool().wait()
    serving = [pool.process_pid("router"), *(worker["pid"] for worker in pool.status()["workers"])]
    assert [os.getsid(pid) for pid in serving] == serving
    assert {autogroup(pid).split()[-1] for pid in serving} == {"0"}
    assert os.getsid(pool.process_pid("pool")) == pool.supervisord_pid()
    until(lambda: autogroup(pool.supervisord_pid()).split()[-1] == "10")
    behave(pool, ONE, "slow")
    kill(pool.workers()[ONE]["pid"])
    until(lambda: autogroup(pool.supervisord_pid()).split()[-1] == "0")
    until(lambda: not (pool.run_dir / "behave" / ONE).exists())  # it is the slow one
    kill(until(lambda: pool.workers()[ONE]["pid"]))
    supervisord = pool.supervisord_pid()
    until(lambda: autogroup(supervisord).split()[-1] == "10")
    kill(pool.process_pid("pool"))
    until(
        lambda: autogroup(supervisord).split()[-1] == "0",
        what="its successor does not give way while it begins",
    )
    until(lambda: autogroup(supervisord).split()[-1] == "10")


def test_counts_survive_the_pool_process(light_pool: LightStarter) -> None:
    """A worker dies, the pool dies, the worker dies again: generations and restarts go on."""
    pool = light_pool().wait()
    kill(pool.workers()[ONE]["pid"])
    until(lambda: pool.workers()[ONE]["generation"] == 2 and pool.all_ready(), 20)
    old = kill(pool.process_pid("pool"))
    until(lambda: not alive(old))
    assert (pool.workers()[ONE]["generation"], pool.workers()[ONE]["restarts"]) == (2, 1)
    kill(pool.workers()[ONE]["pid"])
    until(lambda: pool.workers()[ONE]["generation"] == 3 and pool.all_ready(), 20)
    assert pool.workers()[ONE]["restarts"] == 2


def test_a_worker_that_dies_while_there_is_no_pool_process_is_replaced(light_pool: LightStarter) -> None:
    """The successor finds the death on record against what runs, and fills the slot once."""
    pool = light_pool().wait()
    worker = pool.workers()[ONE]["pid"]
    old = kill(pool.process_pid("pool"), signal.SIGSTOP)
    kill(worker)
    kill(old)
    until(lambda: pool.process_pid("pool") != old and pool.all_ready(), 20)
    assert (pool.workers()[ONE]["generation"], pool.workers()[ONE]["restarts"]) == (2, 1)
    until_settled(pool)


@pytest.mark.parametrize("gpus", [[], ["--gpus", "all", "--simulate-gpus", 1, "--contexts-per-gpu", 2]])
@pytest.mark.parametrize("victim", ["supervisord", "foreground"])
def test_nothing_outlives_the_top(light_pool: LightStarter, victim: str, gpus: list[object]) -> None:
    """Killing supervisord or the foreground process ends every child, MPS's too; the next start clears up."""
    pool = light_pool(*gpus).wait()
    kill(pool.pid if victim == "foreground" else pool.supervisord_pid())
    assert pool.process is not None
    status = pool.process.wait(20)
    assert status == (-signal.SIGKILL if victim == "foreground" else 1)
    until(lambda: not processes_of(pool.run_dir), 15, "every process is gone")
    if victim == "supervisord":
        assert "supervisord ended unexpectedly" in pool.output.read_text()
    pool.start().wait()
    assert {worker["generation"] for worker in pool.workers().values()} == {1}


def error_of(pool: Pool, program: str) -> str:
    """What the status says of one of supervisord's children."""
    return str(next(item.get("error", "") for item in pool.status()["processes"] if item["name"] == program))


def let_write(pids: Iterable[int], most: int = resource.RLIM_INFINITY) -> None:
    """Has no file of these processes grow beyond so many bytes; none at all is a disk that is full."""
    for pid in pids:
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, hard))


def test_connections_leave_files_for_workers(light_pool: LightStarter) -> None:
    """Where a shell allows 1,024 open files, and more clients connect, again and again, a worker still comes back."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        pool = light_pool()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))

        def connect(count: int) -> None:
            for _ in range(count):
                with contextlib.suppress(OSError):  # those who are too many
                    client = stack.enter_context(socket.create_connection(("127.0.0.1", pool.grpc_port)))
                    client.sendall(GREETING)

        connect(1100)
        os.kill(pool.workers()[ONE]["pid"], signal.SIGKILL)

        def is_back() -> bool:
            connect(20)
            worker = pool.workers()[ONE]
            return worker["state"] == "READY" and worker["generation"] == 2

        until(is_back, 30)


def test_a_disk_that_is_full_does_not_end_supervisord(light_pool: LightStarter) -> None:
    """Nor with it all that runs; what it starts meanwhile comes, and its logs go on when there is room."""
    pool = light_pool().wait()
    before, supervisord = expected_pids(pool), pool.supervisord_pid()
    routers = [pool.process_pid("router")]
    for most in (0, resource.RLIM_INFINITY):
        let_write([supervisord], most)
        os.kill(routers[-1], signal.SIGKILL)
        until(lambda: pool.process_pid("router") not in (0, *routers), 20, "the router is back")
        routers.append(pool.process_pid("router"))
    until(pool.all_ready, 20, "the workers have rejoined")
    assert expected_pids(pool) == before - {routers[0]} | {routers[-1]}
    log = pool.run_dir / "logs" / "supervisord.log"
    until(lambda: f"'router' with pid {routers[-1]}" in log.read_text(), 5)
    assert pool.stop() == 0
    pool.assert_nothing_left()


def test_a_worker_that_dies_on_a_full_disk_comes_back_when_there_is_room(light_pool: LightStarter) -> None:
    """Meanwhile the pool process, which can write nothing, says how things stand, and so does one that takes its place."""
    pool = light_pool().wait()
    first, supervisord = pool.process_pid("pool"), pool.supervisord_pid()
    let_write([supervisord, first], 0)
    os.kill(pool.workers()[ONE]["pid"], signal.SIGKILL)
    until(lambda: pool.workers()[ONE]["state"] == "EMPTY", 20)
    assert pool.process_pid("pool") == first
    until(lambda: "File too large" in error_of(pool, "pool"), 20, "the status says why")
    os.kill(first, signal.SIGKILL)
    until(
        lambda: pool.process_pid("pool") not in (0, first), 20, "there is another, which has no room either"
    )
    second = pool.process_pid("pool")
    until(lambda: pool.workers()[TWO]["state"] == "READY", 20, "it has adopted what runs")
    assert pool.workers()[ONE]["state"] == "EMPTY"
    let_write([supervisord, second])
    until(pool.all_ready, 20, "all workers are back")
    assert (pool.process_pid("pool"), error_of(pool, "pool")) == (second, "")
    assert not list((pool.run_dir / "settings").glob(".*"))
    assert pool.stop() == 0
    pool.assert_nothing_left()


def test_a_stopped_worker_is_dumped_and_replaced(light_pool: LightStarter) -> None:
    """SIGSTOP: the router finds it, its stack lands in its log, its slot is filled again."""
    pool = light_pool().wait()
    old = kill(pool.workers()[ONE]["pid"], signal.SIGSTOP)
    until(lambda: pool.workers()[ONE]["generation"] == 2 and pool.all_ready(), 30)
    assert not alive(old)
    assert "most recent call first" in (pool.run_dir / "logs" / f"worker.{ONE}.log").read_text()


def test_a_worker_that_can_never_work_is_fatal_at_once(light_pool: LightStarter) -> None:
    """Exit status 78: no second start; its own words in status and wait; its slot and the other's in the metrics."""
    pool = light_pool().wait()
    behave(pool, ONE, "never")
    kill(pool.workers()[ONE]["pid"])
    worker = until(lambda: (w := pool.workers()[ONE])["state"] == "FATAL" and w, 20)
    assert (worker["error"], worker["generation"], worker["pid"]) == ("this can never work", 2, None)
    assert pool.status()["pool"]["state"] == "DEGRADED"
    waited = cli("wait", "--run-dir", pool.run_dir, "--timeout", 30)
    assert (waited.returncode, "this can never work" in waited.stderr) == (1, True)
    until(lambda: {("FATAL", 1.0), ("READY", 1.0), ("STARTING", 0.0)} <= slots_measured(pool), 10)
    kill(pool.process_pid("pool"))
    until(lambda: pool.workers()[ONE]["state"] == "FATAL", 20, "given up for the successor, too")


def test_a_slot_that_was_given_up_is_tried_with_other_settings(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    """A reload that has nothing else for its worker leaves it as it is; the other one serves meanwhile."""
    file = File(tmp_path / "pool.yaml", model_dir("half_plus_two"))
    file.write({"half": {}})
    pool = start_pool(file.path, env=LIGHT).wait()
    behave(pool, ONE, "never")
    kill(pool.workers()[ONE]["pid"])
    until(lambda: pool.workers()[ONE]["state"] == "FATAL", 20)
    (pool.run_dir / "behave" / ONE).unlink()
    file.write({"half": {}}, grace_s=9)
    cli("reload", "--run-dir", pool.run_dir)
    assert pool.workers()[ONE]["state"] == "FATAL"
    file.write({"half": {"intra_op_threads": 2}}, grace_s=9)
    reload(pool)
    assert pool.all_ready()


def test_a_worker_that_crashes_at_every_start_backs_off(light_pool: LightStarter) -> None:
    """It is seen in BACKOFF with its exit status, while the other one serves on."""
    pool = light_pool().wait()
    behave(pool, ONE, "crash")
    kill(pool.workers()[ONE]["pid"])
    worker = until(lambda: (w := pool.workers()[ONE])["state"] == "BACKOFF" and w, 20)
    assert worker["error"] == "exit status 3"
    assert pool.workers()[TWO]["state"] == "READY"


@pytest.mark.parametrize(("how", "state"), [("mute", "STARTING"), ("warming", "WARMING")])
def test_a_worker_that_never_gets_ready_is_given_up(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path: Path, how: str, state: str
) -> None:
    """Whether the router has heard of it or not: its stack is in its log at each start, then it is FATAL."""
    limit_s = 8  # several times what a light worker takes beside others
    config = tmp_path / "pool.yaml"
    config.write_text(
        f"models: {{half: {{base_path: {model_dir('half_plus_two')}, cpu_slots: 2, start_timeout_s: {limit_s}}}}}\n"
        "restart: {retries: 2, backoff_s: 0.1}\n"
    )
    pool = start_pool(config, env=LIGHT).wait()
    behave(pool, ONE, how)
    kill(pool.workers()[ONE]["pid"])
    until(lambda: pool.workers()[ONE]["state"] == state, 20)
    worker = until(lambda: (w := pool.workers()[ONE])["state"] == "FATAL" and w, 20)
    hung = f"hung and killed: still {state} after {limit_s} s (start_timeout_s)"
    assert worker["error"] == f"not READY after 2 restarts: {hung}"
    ended = [event for event in pool.events() if event["event"] == "worker ended"]
    assert [(event["worker"], event["generation"]) for event in ended] == [(ONE, 1), (ONE, 2)]
    assert ended[1]["reason"] == hung
    log = (pool.run_dir / "logs" / f"worker.{ONE}.log").read_text()
    assert log.count("Current thread") == 2, "a stack at each end"
    assert (pool.workers()[TWO]["state"], pool.workers()[TWO]["generation"]) == ("READY", 1)
    assert (
        len([command for command in processes_of(pool.run_dir).values() if "mpspool.worker" in command]) == 1
    )


def test_stop_kills_what_does_not_leave_in_its_grace(light_pool: LightStarter, tmp_path: Path) -> None:
    """A worker deaf to SIGTERM: everything is gone within the grace time and little more, exit status 0."""
    pool = light_pool().wait()
    assert pool.process is not None
    pool.stop(30)
    config = tmp_path / "grace.yaml"
    config.write_text("grace_s: 2\n")
    pool.args.insert(0, str(config))
    pool.start()
    behave(pool, ONE, "deaf")
    pool.wait()
    kill(pool.workers()[ONE]["pid"])
    until(lambda: pool.workers()[ONE]["generation"] == 2 and pool.all_ready(), 20)
    begun = time.monotonic()
    assert pool.stop() == 0
    assert time.monotonic() - begun < 15, "not the default of 30 s"
    assert not processes_of(pool.run_dir)


def test_stop_of_a_pool_process_that_has_just_started_ends_the_workers(light_pool: LightStarter) -> None:
    """Asked the moment the successor of a killed one answers: every worker has left when it says so."""
    pool = light_pool().wait()
    workers = [worker["pid"] for worker in pool.workers().values()]
    kill(pool.process_pid("pool"))

    def stop() -> Message | None:
        with contextlib.suppress(ControlError):
            return call(RunDir(pool.run_dir).pool_control, "stop", grace_s=10, timeout_s=20)
        return None

    assert until(stop, 20)["left"] == 0
    assert not any(alive(pid) for pid in workers)


def test_stop_goes_on_without_the_pool_process(light_pool: LightStarter) -> None:
    """A pool process that answers nothing does not keep the rest from ending."""
    pool = light_pool().wait()
    kill(pool.process_pid("pool"), signal.SIGSTOP)
    assert pool.process is not None
    pool.process.send_signal(signal.SIGINT)
    until(lambda: "stopping" in pool.output.read_text())
    pool.process.send_signal(signal.SIGINT)
    assert pool.process.wait(30) == 0


def test_a_second_start_on_the_run_folder_is_refused(light_pool: LightStarter) -> None:
    """It names the first one's pid and starts nothing; the first one is not disturbed."""
    pool = light_pool().wait()
    before = processes_of(pool.run_dir)
    done = cli("start", *pool.args, "--run-dir", pool.run_dir, "--grpc-port", 0, "--rest-port", 0)
    assert done.returncode == 2
    assert str(pool.pid) in done.stderr
    assert processes_of(pool.run_dir) == before


def test_detached_pool_is_waited_for_and_stopped(light_pool: LightStarter) -> None:
    """--detach returns 0 with how to go on; `stop` ends it all; problems still reach the terminal."""
    pool = light_pool()
    pool.wait()
    second = pool.run_dir.with_name("detached")
    args = ["start", *pool.args, "--run-dir", second, "--grpc-port", 0, "--rest-port", 0, "--detach"]
    try:
        done = cli(*args, env=pool.env)
        assert done.returncode == 0, done.stderr
        assert f"mpspool wait --run-dir {second}" in done.stdout
        assert cli("wait", "--run-dir", second, "--timeout", 60).returncode == 0
        again = cli(*args, env=pool.env)
        assert (again.returncode, f"mpspool stop --run-dir {second}" in again.stderr) == (2, True), (
            again.stderr
        )
        until(lambda: "READY" in (second / "logs" / "mpspool.log").read_text(), 10, "told in the log")
    finally:
        stopped = cli("stop", "--run-dir", second)
    assert stopped.returncode == 0, stopped.stderr
    assert not processes_of(second)
    assert not [path for path in second.rglob("*") if path.is_socket()]


@contextlib.contextmanager
def waiting_for(pool: Pool) -> Iterator[subprocess.Popen[str]]:
    """`mpspool wait` that has found a pool, one of whose workers takes long to start."""
    behave(pool, ONE, "slow")
    kill(pool.workers()[ONE]["pid"])
    until(lambda: not (pool.run_dir / "behave" / ONE).exists(), 20, "it is slow")
    command = [*CLI, "wait", "--run-dir", str(pool.run_dir), "--timeout", "60"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as waiting:
        until(steadily(lambda: has_socket(waiting.pid)), 20, "it has found the pool, and watches it")
        yield waiting


def test_wait_ends_when_the_pool_it_saw_has_failed(light_pool: LightStarter) -> None:
    """A pool that dies while somebody waits for it: exit status 1 with the reason, not the time limit."""
    pool = light_pool().wait()
    with waiting_for(pool) as waiting:
        kill(pool.pid)
        _, error = waiting.communicate(timeout=30)
    assert (waiting.returncode, "has failed" in error) == (1, True)
    assert pool.process is not None
    assert pool.process.wait(10) == -signal.SIGKILL
    logs = pool.run_dir / "logs"
    (logs / "gone.log").write_text("of a process that the next pool has not\n")
    pool.start().wait()
    assert cli("logs", "gone", "--run-dir", pool.run_dir).returncode == 1
    assert (logs / "before" / "gone.log").exists()


def test_wait_goes_on_where_the_pool_is_stopped_and_started(light_pool: LightStarter) -> None:
    """One that is told to end has not failed: the next one on the same folder is waited for."""
    pool = light_pool().wait()
    with waiting_for(pool) as waiting:
        assert pool.stop(30) == 0
        pool.start()
        _, error = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, error
    assert pool.all_ready()


def test_a_port_lost_to_another_is_said_until_it_is_free(light_pool: LightStarter) -> None:
    """A router that cannot listen: `status` and `wait` say why; once the port is free, all is well by itself."""
    pool = light_pool().wait()
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kill(pool.process_pid("router"))
        until(lambda: _listens(thief, pool.grpc_port))
        reason = f"grpc_port: cannot listen on {pool.address}"
        until(lambda: reason in _router(pool).get("error", ""), 20, "the reason in the status")
        waited = cli("wait", "--run-dir", pool.run_dir, "--timeout", 1)
        assert waited.returncode == 1
        assert f"router: {reason}" in waited.stderr
        assert reason in cli("status", "--run-dir", pool.run_dir).stdout
        until(lambda: f"router cannot start: {reason}" in pool.output.read_text(), 20)
    until(pool.all_ready, 20, "serves again")
    assert "error" not in _router(pool)


def _listens(thief: socket.socket, port: int) -> bool:
    with contextlib.suppress(OSError):
        thief.bind(("127.0.0.1", port))
        thief.listen()
        return True
    return False


def _router(pool: Pool) -> dict[str, Any]:
    return next(item for item in pool.status()["processes"] if item["name"] == "router")


def test_logs_come_by_worker(light_pool: LightStarter) -> None:
    """`logs` prints what a process wrote."""
    pool = light_pool().wait()
    done = cli("logs", "--run-dir", pool.run_dir, ONE)
    assert f"light worker {ONE} of generation 1" in done.stdout


def test_simulated_gpus_run_their_daemons_and_say_so(light_pool: LightStarter) -> None:
    """Workers on stand-in GPUs, one MPS daemon each, SIMULATED in status; all of it ends."""
    pool = light_pool("--gpus", "all", "--simulate-gpus", 1, "--contexts-per-gpu", 2)
    pool.wait()
    status = pool.status()
    assert (status["pool"]["mps"], status["pool"]["simulated"]) == ("simulated", "gpus")
    assert {item["name"] for item in status["processes"]} == {"pool", "router", "mps.gpu0"}
    assert all(worker["simulated"] for worker in status["workers"])
    assert not any("error" in worker for worker in status["workers"]), "each is a client of its daemon"
    assert "SIMULATED" in cli("status", "--run-dir", pool.run_dir).stdout
    assert pool.stop(40) == 0
