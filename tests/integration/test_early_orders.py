"""SIGTERM in the first moments of `mpspool start`: it is never lost, also where start is PID 1 of a container."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import pty
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mpspool.core import process
from mpspool.supervisor.orders import Orders
from tests.conftest import short_dir
from tests.light import LIGHT
from tests.polling import until
from tests.pool import CLI, ROOT, cli, processes_of

_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


class Start:
    """`mpspool start` with its pool file behind a pipe, which holds it in its first moments.

    Args:
        root: for its run folder and the pipe.
        model: a base path.
        args: more for start.
        within: a command that runs another.
        terminal: it is the first process of a terminal.
    """

    def __init__(
        self, root: Path, model: Path, *args: str, within: tuple[str, ...] = (), terminal: bool = False
    ) -> None:
        self.run_dir = root / "run"
        self.output = root / "out"
        self._file = root / "pool.yaml"
        self._text = f"models: {{m: {{base_path: {model}, cpu_slots: 1}}}}\ngrpc_port: 0\nrest_port: 0\n"
        os.mkfifo(self._file)
        command = [*within, *CLI, "start", str(self._file), "--run-dir", str(self.run_dir), *args]
        self._terminal, slave = pty.openpty() if terminal else (0, 0)
        take_it = functools.partial(fcntl.ioctl, slave, termios.TIOCSCTTY, 0) if terminal else None
        with self.output.open("w") as out:
            self.outer = subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
                cwd=ROOT,
                env={**os.environ, **LIGHT},
                start_new_session=True,
                preexec_fn=take_it,  # noqa: PLW1509  one ioctl
            )
        if slave:
            os.close(slave)
        self._pipe = until(self._open, 20, "start reads its file")
        # `within` forks its child, or becomes it.
        self.pid = next(iter(process.children(self.outer.pid)), self.outer.pid)

    def _open(self) -> int:
        with contextlib.suppress(OSError):  # nobody reads yet
            return os.open(self._file, os.O_WRONLY | os.O_NONBLOCK)
        return 0

    def go_on(self) -> None:
        """Lets it have its pool file."""
        os.write(self._pipe, self._text.encode())
        os.close(self._pipe)
        self._pipe = 0

    def kill(self, signum: signal.Signals = signal.SIGTERM) -> None:
        os.kill(self.pid, signum)

    def hang_up(self) -> None:
        """Its terminal goes, and the kernel tells it."""
        os.close(self._terminal)
        self._terminal = 0

    def has_started_nothing(self) -> bool:
        return not (self.run_dir / "logs" / "supervisord.log").exists()

    def ends(self, status: int) -> None:
        """Waits for its end, and for everything else's."""
        until(lambda: self.outer.poll() is not None, 30, "its end")
        assert self.outer.returncode == status, self.output.read_text()
        until(lambda: not processes_of(self.run_dir), 15, f"processes left: {processes_of(self.run_dir)}")
        assert not [path for path in self.run_dir.rglob("*") if path.is_socket()]

    def clear(self) -> None:
        for descriptor in filter(None, (self._pipe, self._terminal)):
            os.close(descriptor)
        for pid in [self.outer.pid, *processes_of(self.run_dir)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.outer.wait(10)


Starter = Callable[..., Start]


@pytest.fixture
def start(model_dir: Callable[[str], Path]) -> Iterator[Starter]:
    with short_dir() as root, contextlib.ExitStack() as stack:

        def make(*args: str, **more: Any) -> Start:
            begun = Start(root, model_dir("half_plus_two"), *args, **more)
            stack.callback(begun.clear)
            return begun

        yield make


@pytest.fixture(params=["child", "PID 1"])
def within(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """What to start it with, so that it is a process as others are, or the first one of a pid namespace."""
    if request.param == "child":
        return ()
    for more in ((), ("--user", "--map-root-user")):
        command = (*_NAMESPACE, *more)
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
            return command
    pytest.skip("unshare(1) may not make a pid namespace here")


def test_an_order_before_anything_is_started(start: Starter, within: tuple[str, ...]) -> None:
    """It is honoured once it is known what would be started: exit status 0, and nothing was."""
    begun = start(within=within)
    begun.kill()
    begun.go_on()
    begun.ends(0)
    assert begun.has_started_nothing()


@pytest.mark.parametrize("seen", ["lock", "supervisord.conf", "supervisord.sock", "pool-control.sock"])
def test_an_order_while_the_pool_comes_up(start: Starter, within: tuple[str, ...], seen: str) -> None:
    """Whatever is there by then: all of it ends, exit status 0."""
    begun = start(within=within)
    begun.go_on()
    until((begun.run_dir / seen).exists, 20, seen)
    begun.kill()
    begun.ends(0)


def test_the_end_of_the_terminal(start: Starter) -> None:
    """It is an order as SIGTERM is, but to a pool that was started by nohup it is none."""
    begun = start(terminal=True)
    begun.go_on()
    until((begun.run_dir / "supervisord.sock").exists, 20)
    begun.hang_up()
    begun.ends(0)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_hangup_is_no_end(start: Starter, terminal: bool) -> None:
    """SIGHUP asks for a reload, of which the pool thinks when it is there; a file that can be read once is refused."""
    begun = start(terminal=terminal)
    begun.kill(signal.SIGHUP)
    begun.go_on()
    until(lambda: "reload: refused" in begun.output.read_text(), 30)
    assert "is no regular file" in begun.output.read_text()
    begun.kill()
    begun.ends(0)


def test_nohup(start: Starter) -> None:
    """A pool goes on whose caller has it ignore SIGHUP."""
    begun = start(within=("nohup",))
    begun.kill(signal.SIGHUP)
    begun.go_on()
    until(lambda: cli("wait", "--run-dir", begun.run_dir, "--timeout", 20).returncode == 0, 30)
    begun.kill(signal.SIGHUP)
    assert cli("status", "--run-dir", begun.run_dir).returncode == 0
    begun.kill()
    begun.ends(0)


def test_orders_to_the_last_moment(start: Starter) -> None:
    """One after the other until the process has gone: none of them is what ends it."""
    begun = start()
    begun.go_on()
    until((begun.run_dir / "supervisord.sock").exists, 20)
    until(lambda: begun.outer.poll() is not None or begun.kill(), 30, "its end")
    begun.ends(0)


def test_ctrl_c_breaks_off_what_has_not_begun(start: Starter) -> None:
    """As in any other command.

    Pressed again where nothing came of it: Python misses a signal between its last look for one and a system call
    that blocks, which is here the one that reads the file.
    """
    begun = start()
    for _ in range(5):
        begun.kill(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            begun.outer.wait(3)
            break
    begun.ends(1)
    assert "Aborted!" in begun.output.read_text()
    assert begun.has_started_nothing()


@pytest.mark.parametrize("seen", ["", "lock", "supervisord.conf"])
def test_an_order_to_who_waits_for_a_detached_start(start: Starter, seen: str) -> None:
    """It is passed on: what runs in the background ends, too."""
    begun = start("--detach")
    if not seen:
        begun.kill()
    begun.go_on()
    if seen:
        until((begun.run_dir / seen).exists, 20, seen)
        begun.kill()
    begun.ends(0)


def test_stop_from_outside_of_the_namespace(start: Starter, within: tuple[str, ...]) -> None:
    """Who does not see the pool's processes is told that it runs on, with exit status 1; who does ends it."""
    begun = start(within=within)
    begun.go_on()
    until(lambda: cli("status", "--run-dir", begun.run_dir).returncode == 0, 20)
    done = cli("stop", "--run-dir", begun.run_dir)
    if within:
        assert (done.returncode, f"the pool in {begun.run_dir} runs on" in done.stderr) == (1, True)
        begun.kill()
    begun.ends(0)


def test_a_hangup_is_one_order() -> None:
    """The terminal and the shell both tell of it: the second is no order to hurry, as a second SIGTERM is."""
    calls: list[bool] = []
    orders = Orders(lambda: True)
    before = {signum: signal.signal(signum, signal.SIG_DFL) for signum in (signal.SIGHUP, signal.SIGTERM)}
    try:
        orders.note(*before)
        orders.obey(lambda: calls.append(True))
        for signum, count in ((signal.SIGHUP, 1), (signal.SIGHUP, 1), (signal.SIGTERM, 2)):
            signal.raise_signal(signum)
            assert len(calls) == count
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
