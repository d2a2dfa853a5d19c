"""Who dies with whom, who is whose child, and what ps shows."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mpspool.core import process
from tests.polling import until


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


@pytest.mark.parametrize(
    ("shown", "name", "command"),
    [
        (["mpspool-worker", "half@1.cpu0.0"], "mpspool-worker", [b"mpspool-worker", b"half@1.cpu0.0"]),
        (["a name of more than 15 bytes"], "a name of more ", [b"a name of more than 15 bytes"]),
        (["w", "x" * 100_000], "w", None),
    ],
)
def test_shows_as(shown: list[str], name: str, command: list[bytes] | None) -> None:
    """The new name and arguments are what ps shows, cut to the room there is; the environment stays."""
    code = (
        "import os, sys; from mpspool.core import process\n"
        "before = dict(os.environb); print(flush=True)\n"
        "process.show_as(*sys.stdin.readline().rstrip('\\n').split('|'))\n"
        "print(dict(os.environb) == before, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "\n"  # until it runs the kernel shows nothing of it
        environment = process.strings(child.pid, "environ")
        room = sum(len(word) + 1 for word in process.strings(child.pid, "cmdline")) - 1
        child.stdin.write("|".join(shown) + "\n")
        child.stdin.flush()
        assert child.stdout.readline() == "True\n"
        assert Path(f"/proc/{child.pid}/comm").read_text() == f"{name}\n"
        found = [word for word in process.strings(child.pid, "cmdline") if word]
        assert found == (command or [b"w", b"x" * (room - 3)])
        assert process.strings(child.pid, "environ") == environment
        child.stdin.close()
