"""Workers forked from a nursery that has imported TensorFlow, each behind its launcher."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mpspool import client
from mpspool.core import process
from mpspool.worker import launcher as protocol
from tests.conftest import PoolStarter, short_dir
from tests.nursery import Place, gone, private_kb, stop, structs
from tests.polling import until
from tests.pool import ROOT, Pool, cli

PROBE = ROOT / "tests" / "fakes" / "probe_worker"
LIGHT = ROOT / "tests" / "fakes" / "light_worker"


@pytest.fixture(scope="module")
def shared_place() -> Iterator[Place]:
    """With a nursery whose code is a copy, which a test may change."""
    with short_dir() as root:
        package = root / "code"
        shutil.copytree(ROOT / "mpspool", package / "mpspool")
        environment = {**os.environ, "PYTHONPATH": f"{package}:{PROBE}", "MPSPOOL_TEST": "the nursery's"}
        place = Place(root / "run", package, environment)
        place.start_nursery()
        try:
            yield place
        finally:
            place.close()


@pytest.fixture
def place(shared_place: Place) -> Iterator[Place]:
    """The module's, and nothing that a test has started is left in it."""
    yield shared_place
    shared_place.clear()


@pytest.fixture
def half(model_dir: Callable[[str], Path]) -> Path:
    return model_dir("half_plus_two") / "1"


def nursery_pid(place: Place) -> int:
    assert place.nursery is not None
    assert place.nursery.poll() is None, place.log.read_text()
    return place.nursery.pid


def probe(place: Place, half: Path, slot: int = 0, cpus: list[int] | None = None, **environment: str) -> Any:
    """What a forked worker finds when it begins."""
    launcher = place.launch("probe", half, slot, cpus=cpus, **environment)
    assert launcher.ended() == 3, launcher.text()
    return structs(launcher.text())


def test_further_workers_cost_little(place: Place, half: Path) -> None:
    """Forked workers serve, each with little memory of its own, and their launchers with next to none."""
    place.launch("half_plus_two", half, slot=0).ready()  # the nursery is there
    launchers, seconds = [], []
    for slot in (1, 2, 3):
        launched = place.launch("half_plus_two", half, slot)
        launched.ready()
        seconds.append(time.monotonic() - launched.begun)
        launchers.append(launched)
    for launched in launchers:
        assert launched.ask(1, 2) == [2.5, 3.0]
    worker = statistics.median(private_kb(launched.worker_pid) for launched in launchers)
    thin = statistics.median(private_kb(launched.process.pid) for launched in launchers)
    print(f"READY in {statistics.median(seconds):.2f} s; private: worker {worker} kB, launcher {thin} kB")
    assert (worker + thin) * 1024 < 40e6
    assert {process.stat(launched.worker_pid).ppid for launched in launchers} == {nursery_pid(place)}
    for slot, launched in enumerate(launchers, 1):  # as ps shows it
        words = [word.decode() for word in process.strings(launched.worker_pid, "cmdline") if word]
        assert words == ["mpspool-worker", f"half_plus_two@1.cpu0.{slot}", str(place.run.root)]


def test_sigterm(place: Place, half: Path) -> None:
    """SIGTERM to the launcher ends the worker in order: status 0, and the router is told."""
    launched = place.launch("half_plus_two", half)
    worker = launched.ready().pid
    launched.process.terminate()
    assert launched.ended() == 0
    assert gone(worker)
    assert '"event": "stopped"' in launched.text()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_the_launcher_ends_by_the_same_signal(place: Place, half: Path, signum: signal.Signals) -> None:
    """A worker that is killed, or crashes: its launcher ends by that signal, and dumps no core."""
    launched = place.launch("half_plus_two", half)
    os.kill(launched.ready().pid, signum)
    assert launched.ended() == -signum
    assert not list(Path.cwd().glob("core*"))


def test_the_launcher_ends_with_the_same_status(place: Place, tmp_path: Path) -> None:
    """A model that can never be loaded: the status says so, and the reason is where the pool looks for it."""
    launched = place.launch("broken", tmp_path)
    assert launched.ended() == process.EXIT_NEVER
    assert "not a SavedModel" in place.run.error_file(launched.program).read_text()


def test_stack_dump(place: Place, half: Path) -> None:
    """SIGUSR1 to the launcher has the worker write its stacks to the launcher's log, and live on."""
    launched = place.launch("half_plus_two", half)
    launched.ready()
    launched.process.send_signal(signal.SIGUSR1)
    until(lambda: "most recent call first" in launched.text())
    assert "heartbeat" in launched.text() or "_beat" in launched.text()
    assert launched.ask(2) == [3.0]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_dead_launcher_means_a_dead_worker(place: Place, half: Path, stopped: bool) -> None:
    """Kill -9 of the launcher ends its worker, even one that is stopped."""
    launched = place.launch("half_plus_two", half)
    worker = launched.ready().pid
    if stopped:
        stop(worker)
    launched.kill()
    until(lambda: gone(worker), 5, "the worker has ended")


def test_a_dead_launcher_means_a_dead_worker_while_it_loads(place: Place, half: Path) -> None:
    """Also one that is killed as soon as the worker has begun."""
    launched = place.launch("half_plus_two", half)
    worker = until(lambda: launched.worker_pid)
    launched.kill()
    until(lambda: gone(worker), 5, "the worker has ended")


def test_a_slot_never_runs_twice(place: Place, half: Path) -> None:
    """A worker whose slot's last worker still lives, stopped, ends that one before it starts."""
    first = place.launch("half_plus_two", half)
    before = first.ready().pid
    stop(before)
    second = place.launch("half_plus_two", half)
    after = second.ready().pid
    assert gone(before)
    assert first.ended() == -signal.SIGKILL
    assert second.worker_pid == after
    assert second.ask(2) == [3.0]
    assert "killed an earlier worker" in second.text()


def test_a_worker_of_its_own_takes_the_slot_too(place: Place, half: Path) -> None:
    """The slot's lock is the same for a worker that is a Python process of its own."""
    forked = place.launch("half_plus_two", half)
    before = forked.ready().pid
    file = place.run.settings_file(forked.program)
    command = [sys.executable, "-P", "-m", "mpspool.worker", str(file)]
    with open(place.run.log_file("exec"), "wb") as log:
        alone = subprocess.Popen(command, env=place.environment, stdout=log, stderr=log)
    try:
        until(lambda: forked.worker_pid == alone.pid, 30)
        assert gone(before)
    finally:
        alone.kill()
        alone.wait()


def test_what_a_worker_finds(place: Place, half: Path) -> None:
    """The launcher's environment, its own CPUs and random numbers, and nothing of the nursery's."""
    place.launch("half_plus_two", half, slot=5).ready()  # another launcher's connection is there to leak
    cpus = sorted(os.sched_getaffinity(0))
    found = [
        probe(place, half, slot, cpus=[cpu], MPSPOOL_TEST=str(slot), CUDA_MPS_PIPE_DIRECTORY=f"/pipe{slot}")
        for slot, cpu in enumerate((cpus[0], cpus[-1]))
    ]
    assert [each["cpus"] for each in found] == [[cpus[0]], [cpus[-1]]]
    assert [each["environment"]["MPSPOOL_TEST"] for each in found] == ["0", "1"]
    assert [each["environment"]["CUDA_MPS_PIPE_DIRECTORY"] for each in found] == ["/pipe0", "/pipe1"]
    assert found[0]["random"] != found[1]["random"]
    assert found[0]["numpy"] != found[1]["numpy"]
    for each in found:
        assert each["environment"]["CUDA_VISIBLE_DEVICES"] == "-1"
        assert each["threads"] == 1
        assert each["session"]
        assert each["wakeup"] == -1
        assert not [name for name in each["modules"] if name.startswith(("mpspool", "tensorflow", "numpy"))]
        # Standard streams, the lifeline, and the lock.
        kinds = sorted(os.path.basename(target).split(":")[0] for target in each["descriptors"].values())
        assert len(kinds) == 5, each["descriptors"]
        assert kinds.count("socket") == 1


def test_a_worker_begins_as_a_process_of_its_own_would(place: Place, half: Path) -> None:
    """Environment, signals, threads, descriptors: those of `python -m mpspool.worker`, but for the lifeline."""
    launched = place.launch("probe", half, cpus=[min(os.sched_getaffinity(0))], intra_op_threads=0)
    assert launched.ended() == 3
    forked = structs(launched.text())
    command = [sys.executable, "-P", "-m", "mpspool.worker", str(place.run.settings_file(launched.program))]
    done = subprocess.run(
        command, env=place.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stderr
    alone = structs(done.stdout)
    for name in ("environment", "signals", "threads", "loaded_threads", "cpus"):
        assert forked[name] == alone[name], name
    assert not forked["keras"]
    assert not alone["keras"]
    assert len(forked["descriptors"]) == len(alone["descriptors"]) + 1


def holds(pid: int, text: bytes) -> bool:
    """Whether these bytes are anywhere in what the process has written, or inherited, but for mapped files."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, access, _, _, inode, *_ = line.split()
            start, end = (int(address, 16) for address in span.split("-"))
            if not access.startswith("rw") or not (inode == "0" or "/dev/zero" in line):
                continue
            memory.seek(start)
            with contextlib.suppress(OSError):  # what cannot be read
                if text in memory.read(end - start):
                    return True
    return False


def test_a_worker_holds_nothing_of_another_models(place: Place, half: Path, tmp_path: Path) -> None:
    """Neither the environment nor the path of a worker that was forked before it is anywhere in its memory."""
    secret = secrets.token_hex(16)
    shutil.copytree(half, tmp_path / secret)
    one = place.launch("one", tmp_path / secret, slot=0, SECRET=secret)
    one.ready()
    two = place.launch("two", half, slot=1)
    two.ready()
    assert holds(one.worker_pid, secret.encode())
    assert not holds(two.worker_pid, secret.encode())
    assert not holds(nursery_pid(place), secret.encode())


def test_random_operations_differ(place: Place, model_dir: Callable[[str], Path]) -> None:
    """TensorFlow's own random numbers are each worker's own, too."""
    draws = []
    for slot in range(2):
        launched = place.launch("dice", model_dir("dice") / "1", slot)
        launched.ready()
        draws.append(launched.ask(0, 0, 0))
    assert draws[0] != draws[1]


def test_an_error_in_the_child_is_the_workers(place: Place, half: Path) -> None:
    """A child that fails before it is a worker says so in the launcher's log; the nursery goes on."""
    command = [
        sys.executable,
        "-I",
        "-S",
        str(place.launcher),
        str(place.run.nursery_socket),
        "/no/such/file",
    ]
    done = subprocess.run(
        command, env=place.environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "/no/such/file" in done.stderr
    nursery_pid(place)
    assert place.launch("half_plus_two", half).ready()


def test_bad_requests(place: Place, half: Path) -> None:
    """Silence, noise, missing and surplus descriptors, an empty request: each refused, and none ends it."""
    place.launch("half_plus_two", half).ready()
    pid = nursery_pid(place)
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    null = os.open(os.devnull, os.O_RDWR)
    requests: list[tuple[bytes, list[int]]] = [
        (b"noise", []),
        (protocol.PROTOCOL, []),
        (protocol.PROTOCOL, [null] * 4),
        (protocol.PROTOCOL, [null] * 9),
        (protocol.PROTOCOL, [null] * 5),
        (b"x" * 100_000, [null]),
    ]
    try:
        for data, rights in requests:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.settimeout(20)
                connection.connect(str(place.run.nursery_socket))
                socket.send_fds(connection, [data], rights)
                assert connection.recv(1000).startswith(b"failed ")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(str(place.run.nursery_socket))
    finally:
        os.close(null)
    assert place.launch("half_plus_two", half, slot=1).ready()
    place.clear()
    until(lambda: len(os.listdir(f"/proc/{pid}/fd")) < descriptors, 5, "nothing is left open")
    assert nursery_pid(place) == pid


def test_changed_code(place: Place, half: Path) -> None:
    """Once its code has changed the nursery is replaced; workers serve on, and their ends are still told."""
    old = [place.launch("half_plus_two", half, slot) for slot in range(2)]
    for each in old:
        each.ready()
    pid = nursery_pid(place)
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    os.utime(place.launcher.with_name("predict.py"))
    new = place.launch("half_plus_two", half, slot=2)
    new.ready()
    assert "predict.py has changed" in place.log.read_text()
    assert nursery_pid(place) == pid
    assert [each.ask(2) for each in (*old, new)] == [[3.0]] * 3
    old[0].process.terminate()
    assert old[0].ended() == 0
    os.kill(old[1].worker_pid, signal.SIGKILL)
    assert old[1].ended() == -signal.SIGKILL
    # The request that found it out of date is not inherited.
    until(
        lambda: len(os.listdir(f"/proc/{pid}/fd")) < descriptors,
        5,
        "nothing of those that have ended is open",
    )


def test_changed_environment(place: Place, half: Path) -> None:
    """What TensorFlow reads at its import and is set otherwise for a worker replaces the nursery, too."""
    place.launch("half_plus_two", half).ready()
    environment = probe(place, half, slot=1, TF_ENABLE_ONEDNN_OPTS="0", NOT_READ="0")["environment"]
    assert environment["TF_ENABLE_ONEDNN_OPTS"] == "0"
    assert "TF_ENABLE_ONEDNN_OPTS: read when TensorFlow is imported" in place.log.read_text()
    assert "NOT_READ" not in place.log.read_text()
    # And back again: what a launcher does not have is unset.
    assert "TF_ENABLE_ONEDNN_OPTS" not in probe(place, half, slot=1)["environment"]


def test_a_dead_nursery(place: Place, half: Path) -> None:
    """Kill -9 of the nursery: workers serve on, their ends count as unexpected, and a new one forks again."""
    workers = [place.launch("half_plus_two", half, slot) for slot in range(2)]
    pids = [each.ready().pid for each in workers]
    assert place.nursery is not None
    place.nursery.kill()
    place.nursery.wait()
    assert [each.ask(2) for each in workers] == [[3.0]] * 2
    waiting = place.launch("half_plus_two", half, slot=2)
    workers[0].process.terminate()
    assert workers[0].ended() == process.EXIT_UNKNOWN == protocol.EXIT_UNKNOWN
    assert gone(pids[0])
    place.start_nursery()
    assert waiting.ready()
    assert workers[1].ask(2) == [3.0]
    os.kill(pids[1], signal.SIGKILL)
    assert workers[1].ended() == process.EXIT_UNKNOWN
    assert "how is not known" in workers[1].text()


# -- imports that fail ----------------------------------------------------------------------------------

REASON = "ImportError: libno.so: cannot open shared object file"


def broken_tensorflow(root: Path, code: str) -> Path:
    """A folder with a "tensorflow" of this code."""
    package = root / "broken" / "tensorflow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(code)
    return package.parent


@pytest.fixture
def short_root() -> Iterator[Path]:
    with short_dir() as root:
        yield root


@pytest.fixture
def start_place(short_root: Path) -> Iterator[Callable[..., Place]]:
    """Starts a nursery that imports from these folders first."""
    started: list[Place] = []

    def make(*folders: Path, package: Path = ROOT) -> Place:
        path = os.pathsep.join(map(str, [package, *folders]))
        place = Place(short_root / "run", package, {**os.environ, "PYTHONPATH": path})
        started.append(place)
        place.start_nursery()
        return place

    yield make
    for place in started:
        place.close()


def test_imports_that_fail(start_place: Callable[..., Place], short_root: Path, half: Path) -> None:
    """The reason is told at once, to the launcher too, which has the worker try by itself; mended, it forks."""
    broken = broken_tensorflow(short_root, f"raise ImportError({REASON.partition(': ')[2]!r})")
    place = start_place(broken)
    launched = place.launch("half_plus_two", half)
    assert launched.ended(protocol.WAIT_S) == 1
    assert place.run.last_words("nursery") == f"tensorflow cannot be imported: {REASON}"
    assert f"not forked, tensorflow cannot be imported: {REASON}" in launched.text()
    assert place.run.last_words(launched.program) == REASON
    pid = nursery_pid(place)
    shutil.rmtree(broken / "tensorflow")
    again = place.launch("half_plus_two", half)
    assert process.stat(again.ready().pid).ppid == nursery_pid(place) == pid
    assert place.run.last_words("nursery") == ""


def test_imports_that_kill(start_place: Callable[..., Place], short_root: Path, half: Path) -> None:
    """Of a nursery that dies again and again no launcher waits for the next, and the worker dies as it does."""
    place = start_place(
        broken_tensorflow(short_root, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    )
    launched = place.launch("half_plus_two", half)

    def ended() -> bool:
        if place.nursery is not None and place.nursery.poll() is not None:
            place.start_nursery()
        return launched.process.poll() is not None

    place.router.serve_until(ended, 2 * protocol.WAIT_S)  # the text below tells it from one that waited
    assert launched.process.returncode == -signal.SIGKILL
    assert "nurseries have ended before they answered" in launched.text()


def test_a_second_thread_forbids_the_fork(
    start_place: Callable[..., Place], short_root: Path, half: Path
) -> None:
    """A nursery whose imports have left a thread running forks nobody: the worker is a process of its own."""
    thread = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (short_root / "sitecustomize.py").write_text(thread)
    place = start_place(short_root)
    launched = place.launch("half_plus_two", half)
    launched.ready()
    assert "not forked, the nursery has 2 threads" in launched.text()
    assert process.stat(launched.process.pid).ppid == os.getpid()
    assert launched.worker_pid == launched.process.pid


def test_an_open_gpu_forbids_the_fork() -> None:
    """What is open of a driver cannot be shared with a child."""
    code = (
        "import os\n"
        "from mpspool.worker.nursery.nursery import _unfit\n"
        "print(repr(_unfit()))\n"
        "readlink = os.readlink\n"
        "os.readlink = lambda path: '/dev/nvidia0' if path.endswith('/0') else readlink(path)\n"
        "print(repr(_unfit()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["''", "'the nursery has a GPU open'"]


def test_code_that_changes_during_the_imports(
    start_place: Callable[..., Place], short_root: Path, half: Path
) -> None:
    """What was replaced after it had been read, and before all was, has changed: the nursery is replaced."""
    package = short_root / "code"
    shutil.copytree(ROOT / "mpspool", package / "mpspool")
    worker = package / "mpspool" / "worker"
    once = short_root / "once"
    once.touch()
    for path in ("engine/load.py", "warmup.py", "weights/attach.py"):  # the light worker needs none of them
        (worker / path).write_text("")
    code = f"import os\nif os.path.exists({str(once)!r}):\n    os.unlink({str(once)!r})\n    os.utime({str(worker / 'device.py')!r})\n"
    place = start_place(LIGHT, broken_tensorflow(short_root, code), package=package)
    until(lambda: not once.exists())
    launched = place.launch("light", half)
    launched.ready()
    assert "device.py has changed since it was imported" in place.log.read_text()
    assert process.stat(launched.worker_pid).ppid == nursery_pid(place)


def nursery_status(pool: Pool) -> Any:
    return next(item for item in pool.status()["processes"] if item["name"] == "nursery")


def test_a_pool_says_at_once_that_tensorflow_cannot_be_imported(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    """`wait` ends with the reason, long before a launcher would have stopped waiting; status and log say it too."""
    broken = broken_tensorflow(tmp_path, f"raise ImportError({REASON.partition(': ')[2]!r})")
    env = {"PYTHONPATH": str(broken), "MPSPOOL_WORKERS_START": "fork"}
    pool = start_pool("--model", f"half={model_dir('half_plus_two')}", "--cpu-slots", 1, env=env)
    waited = cli("wait", "--run-dir", pool.run_dir, "--timeout", protocol.WAIT_S)
    assert waited.returncode == 1
    assert f"half@1.cpu0.0 is FATAL (not READY after 3 restarts: {REASON})" in waited.stderr
    told = f"tensorflow cannot be imported: {REASON}"
    assert nursery_status(pool)["error"] == told
    assert f"nursery: {told}" in cli("status", "--run-dir", pool.run_dir).stdout
    tried = f"nursery cannot start: {told}; it is tried again"
    until(lambda: tried in pool.output.read_text(), 10, tried)


def test_workers_do_without_a_nursery_that_cannot_fork(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    """Where only the nursery's imports fail, the workers import for themselves, and are READY."""
    broken = broken_tensorflow(tmp_path, f"raise ImportError({REASON.partition(': ')[2]!r})")
    env = {"PYTHONPATH": f"{LIGHT}:{broken}", "MPSPOOL_WORKERS_START": "fork"}
    pool = start_pool("--model", f"half={model_dir('half_plus_two')}", "--cpu-slots", 2, env=env)
    pool.wait(protocol.WAIT_S / 2)
    assert REASON in nursery_status(pool)["error"]


def fresh_pages(pid: int) -> int:
    """That the kernel has given a process so far."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])  # proc(5): minflt


def test_a_worker_keeps_what_its_calls_need(
    start_pool: PoolStarter, model_dir: Callable[[str], Path]
) -> None:
    """For the next one, where the C library by itself would give every larger block back each time."""
    env = {"MALLOC_MMAP_THRESHOLD_": str(2**17), "MALLOC_TRIM_THRESHOLD_": str(2**17)}
    pool = start_pool("--model", f"half={model_dir('half_plus_two')}", "--cpu-slots", 1, env=env).wait()
    (worker,) = pool.workers().values()
    size, times = 500_000, 10

    def ask() -> None:
        given = {"x": [1.0] * size}
        answer = client.predict(pool.address, "half", given, signature="", version=None, timeout_s=60)
        assert answer == {"y": [2.5] * size}

    for _ in range(3):
        ask()
    before = fresh_pages(worker["pid"])
    for _ in range(times):
        ask()
    fresh = (fresh_pages(worker["pid"]) - before) / times
    assert fresh < 4 * size / os.sysconf("SC_PAGE_SIZE"), "not even those of its result"
