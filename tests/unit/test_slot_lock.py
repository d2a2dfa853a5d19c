"""What keeps two processes from filling one slot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpspool.core import slot_lock

_HOLD = """
import sys, time
from pathlib import Path
from mpspool.core import slot_lock
print(slot_lock.take_over(Path(sys.argv[1])), flush=True)
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
    assert slot_lock.holder(path) == 0
    holders.append(Holder(path))
    assert (holders[0].before, slot_lock.holder(path)) == (0, holders[0].pid)
    os.kill(holders[0].pid, signal.SIGSTOP)
    holders.append(Holder(path))
    assert holders[1].before == holders[0].pid
    assert holders[0].process.wait(10) == -signal.SIGKILL
    assert slot_lock.holder(path) == holders[1].pid
    holders[1].end()
    assert slot_lock.holder(path) == 0
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_holder_of_another_pid_namespace_cannot_be_killed(tmp_path: Path, holders: list[Holder]) -> None:
    """It is an error that says so, and nothing to be tried for ever."""
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces may be made here")
    path = tmp_path / "lock"
    holders.append(Holder(path))
    command = [*apart, sys.executable, "-c", _HOLD, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "of another pid namespace" in done.stderr
    assert slot_lock.holder(path) == holders[0].pid
