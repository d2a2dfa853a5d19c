"""The launcher alone: what it asks of a nursery that the test plays, and what it makes of the answers."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpspool.core import process
from mpspool.worker import launcher
from tests.conftest import short_dir
from tests.polling import until

SETTINGS = "/some where/settings.json"
COMMAND = [sys.executable, "-I", "-S", launcher.__file__]


class Asked:
    """One request, and the connection that it came on."""

    def __init__(self, listener: socket.socket) -> None:
        self.connection, _ = listener.accept()
        self.connection.settimeout(20)
        self.protocol, descriptors, _, _ = socket.recv_fds(self.connection, 1000, 9)
        self.descriptors = descriptors
        self.settings, *variables = os.pread(descriptors[0], 1 << 20, 0).split(b"\0")
        self.environment = dict(variable.split(b"=", 1) for variable in variables)

    def answer(self, text: str, descriptors: tuple[int, ...] = ()) -> None:
        socket.send_fds(self.connection, [text.encode()], descriptors)

    def close(self) -> None:
        self.connection.close()
        while self.descriptors:
            os.close(self.descriptors.pop())


class Nursery:
    """What the launcher takes for one, in a folder of its own."""

    def __init__(self, root: Path) -> None:
        self.path = root / "nursery.sock"
        self._listener: socket.socket | None = None
        self._stack = contextlib.ExitStack()
        self.launchers: list[subprocess.Popen[bytes]] = []

    def listen(self) -> None:
        self.path.unlink(missing_ok=True)
        self._listener = self._stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._listener.settimeout(20)

    def launch(self, **environment: str) -> subprocess.Popen[bytes]:
        found = subprocess.Popen(
            [*COMMAND, str(self.path), SETTINGS],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.launchers.append(self._stack.enter_context(found))
        self._stack.callback(found.kill)
        return found

    def asked(self) -> Asked:
        assert self._listener is not None
        found = Asked(self._listener)
        self._stack.callback(found.close)
        return found

    def die_while_one_waits(self) -> None:
        """Ends before it has let in a launcher that has come."""
        assert self._listener is not None
        assert select.select([self._listener], [], [], 20)[0]
        self._listener.close()

    def worker(self) -> subprocess.Popen[bytes]:
        """A process that a launcher can stand for."""
        # Whatever the caller of the tests ignores, as nohup ignores SIGHUP, this one does not.
        defaults = "import os, signal; [signal.signal(s, signal.SIG_DFL) for s in (1, 2, 3)]; os.execlp('sleep', 'sleep', '60')"
        found = self._stack.enter_context(subprocess.Popen([sys.executable, "-I", "-S", "-c", defaults]))
        until(lambda: b"sleep" in process.strings(found.pid, "cmdline")[0])
        self._stack.callback(found.kill)
        return found

    def stand_for(self, asked: Asked, worker: subprocess.Popen[bytes]) -> None:
        pidfd = os.pidfd_open(worker.pid)
        asked.answer(f"worker {worker.pid}", (pidfd,))
        os.close(pidfd)

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    """Not listening yet."""
    with short_dir() as root:
        found = Nursery(root)
        try:
            yield found
        finally:
            found.close()


@pytest.fixture
def listening(nursery: Nursery) -> Nursery:
    """One that can be asked."""
    nursery.listen()
    return nursery


def handles(pid: int, signum: signal.Signals) -> bool:
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigCgt" in line)
    return bool(int(caught.split()[1], 16) >> (signum - 1) & 1)


def standing(nursery: Nursery) -> tuple[subprocess.Popen[bytes], Asked, subprocess.Popen[bytes]]:
    """A launcher that stands for a worker, the connection to it, and the worker."""
    found = nursery.launch()
    asked, worker = nursery.asked(), nursery.worker()
    nursery.stand_for(asked, worker)
    until(lambda: handles(found.pid, signal.SIGCONT))
    return found, asked, worker


def test_request(listening: Nursery) -> None:
    """The settings file, the environment to the byte, the standard streams, and a lifeline."""
    found = listening.launch(ODD="a=b\n\udcff", EMPTY="")
    asked = listening.asked()
    assert asked.protocol == launcher.PROTOCOL
    assert len(asked.descriptors) == launcher.DESCRIPTORS
    assert asked.settings == SETTINGS.encode()
    assert asked.environment == {**os.environb, b"ODD": b"a=b\n\xff", b"EMPTY": b""}
    _, _, out, err, lifeline = asked.descriptors
    os.write(out, b"out")
    os.write(err, b"err")
    asked.answer("failed on purpose")
    found.wait(20)
    assert os.read(lifeline, 1) == b""
    asked.close()
    output, errors = found.communicate(timeout=20)
    assert output == b"out"
    assert errors.startswith(b"err")


@pytest.mark.parametrize("status", [0, 1, process.EXIT_NEVER])
def test_ends_with_the_workers_status(listening: Nursery, status: int) -> None:
    """What the nursery says of the worker's end is the launcher's own end."""
    found, asked, _ = standing(listening)
    asked.answer(f"ended {status << 8}")
    assert found.wait(20) == status


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_ends_by_the_workers_signal(listening: Nursery, signum: signal.Signals) -> None:
    """By the same signal, and without a core dump where one is allowed."""
    found, asked, _ = standing(listening)
    resource.prlimit(found.pid, resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    asked.answer(f"ended {int(signum) | 0x80}")
    _, status = os.waitpid(found.pid, 0)
    found.returncode = os.waitstatus_to_exitcode(status)
    assert found.returncode == -signum
    assert not os.WCOREDUMP(status)


@pytest.mark.parametrize("signum", [s for s in launcher._RELAYED if s != signal.SIGCONT])
def test_relays_signals(listening: Nursery, signum: signal.Signals) -> None:
    """A signal to the launcher is one to the worker, and does nothing to the launcher itself."""
    found, asked, worker = standing(listening)
    found.send_signal(signum)
    assert worker.wait(20) == -signum
    assert found.poll() is None
    asked.answer(f"ended {int(signum)}")
    assert found.wait(20) == -signum


def test_relays_continue(listening: Nursery) -> None:
    """SIGCONT wakes a stopped worker up."""
    found, _, worker = standing(listening)
    worker.send_signal(signal.SIGSTOP)
    until(lambda: process.stat(worker.pid).state == "T")
    found.send_signal(signal.SIGCONT)
    until(lambda: process.stat(worker.pid).state == "S")


def test_waits_for_a_nursery(nursery: Nursery) -> None:
    """One that is not there yet, goes away, or is out of date is asked again."""
    found = nursery.launch()
    until(lambda: b"launcher.py" in b"".join(process.strings(found.pid, "cmdline")))
    nursery.listen()
    nursery.asked().close()
    asked = nursery.asked()
    asked.answer("stale an upgrade")
    asked.close()
    asked = nursery.asked()
    asked.answer("failed now")
    asked.close()
    assert found.wait(20) == launcher.EXIT_REFUSED
    assert found.stderr is not None
    assert found.stderr.read() == b"launcher: the nursery cannot make a worker: now\n"


def test_becomes_the_worker(listening: Nursery) -> None:
    """Where nothing can be forked it goes on as `python -m mpspool.worker`, in the same process."""
    found = listening.launch()
    asked = listening.asked()
    asked.answer("exec the nursery has 2 threads")
    asked.close()
    _, errors = found.communicate(timeout=60)
    assert found.returncode == 1
    assert b"not forked, the nursery has 2 threads" in errors
    assert b"mpspool/worker/begin.py" in errors
    assert f"FileNotFoundError: [Errno 2] No such file or directory: '{SETTINGS}'".encode() in errors


@pytest.mark.parametrize("let_in", [True, False])
def test_becomes_the_worker_where_nurseries_end(listening: Nursery, let_in: bool) -> None:
    """One that ends without an answer is waited for again; so many in a row will never answer."""
    found = listening.launch()
    for _ in range(launcher.MAX_ENDED):
        if let_in:
            listening.asked().close()
        else:
            listening.die_while_one_waits()
            listening.listen()
    _, errors = found.communicate(timeout=30)  # half of what it waits for a nursery that is not there
    assert b"not forked, 3 nurseries have ended before they answered" in errors
    assert b"mpspool/worker/begin.py" in errors


def test_becomes_the_worker_without_a_nursery(tmp_path: Path) -> None:
    """It does not wait for a nursery for ever."""
    code = (
        "import sys; from mpspool.worker import launcher; launcher.WAIT_S = 0.2; launcher.main(*sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "none"), SETTINGS]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert b"no nursery has answered" in done.stderr
    assert b"FileNotFoundError" in done.stderr


def test_outlives_its_nursery(listening: Nursery) -> None:
    """When the connection breaks it stands for the worker to its end, and then says it does not know."""
    found, asked, worker = standing(listening)
    asked.connection.close()
    found.send_signal(signal.SIGTERM)
    assert worker.wait(20) == -signal.SIGTERM
    assert found.wait(20) == launcher.EXIT_UNKNOWN


def test_a_signal_before_there_is_a_worker(listening: Nursery) -> None:
    """It ends by it: there is nothing yet to pass it on to."""
    found = listening.launch()
    asked = listening.asked()
    found.terminate()
    assert found.wait(20) == -signal.SIGTERM
    assert os.read(asked.descriptors[4], 1) == b""


def test_dies_with_its_parent(listening: Nursery) -> None:
    """Kill -9 of whoever started it ends it, and so the lifeline."""
    code = f"import subprocess; subprocess.run({[*COMMAND, str(listening.path), SETTINGS]!r})"
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        asked = listening.asked()
        parent.kill()
    asked.connection.settimeout(20)
    assert asked.connection.recv(1) == b""
    assert os.read(asked.descriptors[4], 1) == b""


def test_does_not_outlive_the_foreground_process(listening: Nursery) -> None:
    """One that was started while the pool was being killed ends at once."""
    with subprocess.Popen(["true"]) as gone:
        pass
    assert listening.launch(MPSPOOL_FOREGROUND=str(gone.pid)).wait(20) == -signal.SIGKILL


def test_is_thin(listening: Nursery) -> None:
    """A launcher has little memory: there is one for each worker. Prints how little, and how soon it asks."""
    begun = time.monotonic()
    found = listening.launch()
    asked = listening.asked()
    elapsed_s = time.monotonic() - begun
    rollup = Path(f"/proc/{found.pid}/smaps_rollup").read_text()
    pss_kb = int(next(line for line in rollup.splitlines() if line.startswith("Pss:")).split()[1])
    print(f"asks after {elapsed_s * 1000:.0f} ms, PSS {pss_kb} kB")
    assert pss_kb < 12_000
    asked.answer("failed enough")
    found.wait(20)
