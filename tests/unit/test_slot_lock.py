"""What keeps two processes from filling one slot, and a process from outliving what it belongs to."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpspool.core import process
from tests.polling import until

_HOLD = """
import sys, time
from pathlib import Path
from mpspool.core import process
print(process.take_over(Path(sys.argv[1])), flush=True)
time.sleep(60)
"""


class Holder:
    """A process that has taken the lock over from `before`."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-c", _HOLD, str(path)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.before = int(self.process.stdout.readline())
        self.pid = self.process.pid

    def end(self) -> None:
        with self.process:
            self.process.kill()


@pytest.fixture
def holders() -> Iterator[list[Holder]]:
    """Ended with the test."""
    found: list[Holder] = []
    yield found
    for holder in found:
        holder.end()


def test_take_over(tmp_path: Path, holders: list[Holder]) -> None:
    """The lock names its holder, goes with it, and whoever takes it over kills the holder, even a stopped one."""
    path = tmp_path / "lock"
    assert process.lock_holder(path) == 0
    holders.append(Holder(path))
    assert (holders[0].before, process.lock_holder(path)) == (0, holders[0].pid)
    os.kill(holders[0].pid, signal.SIGSTOP)
    holders.append(Holder(path))
    assert holders[1].before == holders[0].pid
    assert holders[0].process.wait(10) == -signal.SIGKILL
    assert process.lock_holder(path) == holders[1].pid
    holders[1].end()
    assert process.lock_holder(path) == 0
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("stopped", [False, True])
def test_dies_with_its_peer(stopped: bool) -> None:
    """The end of a connection kills the process that holds the other end, whatever it is doing."""
    code = (
        "import sys, time; from mpspool.core import process\n"
        "process.die_with_peer(int(sys.argv[1])); print('', flush=True)\nwhile True: pass"
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", code, str(theirs.fileno())]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            if stopped:
                child.send_signal(signal.SIGSTOP)
                until(lambda: process.stat(child.pid).state == "T")
            assert child.poll() is None
            ours.close()
            assert child.wait(10) == -signal.SIGKILL


def test_dies_with_a_peer_that_is_gone() -> None:
    """So does one whose other end was closed before it asked."""
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        code = "import sys; from mpspool.core import process; process.die_with_peer(int(sys.argv[1]))"
        command = [sys.executable, "-c", code, str(theirs.fileno())]
        done = subprocess.run(command, pass_fds=[theirs.fileno()], check=False)
    assert done.returncode == -signal.SIGKILL


def test_children() -> None:
    """A process's children are its own, and not their children."""
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert child.pid in process.children(os.getpid())
        assert grandchild not in process.children(os.getpid())
        assert process.children(child.pid) == [grandchild]
        os.kill(grandchild, signal.SIGKILL)
