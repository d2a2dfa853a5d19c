"""Whether an MPS daemon that somebody else runs can have our workers: by the namespaces that it is in."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpspool.mps import external
from mpspool.mps.external import Folders, Peer
from tests.conftest import short_dir

# Listens in the folder it is given, until its input ends.
_LISTEN = """
import socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
    listener.bind(sys.argv[1] + "/control")
    listener.listen()
    print("listening", flush=True)
    sys.stdin.read()
"""
_OWN_SHM = ["sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh"]


@pytest.mark.parametrize(
    ("same", "near", "words"),
    [
        ({"ns/pid": True, "ns/ipc": True}, True, ""),
        ({"ns/pid": False, "ns/ipc": True}, False, "in another pid namespace"),
        ({"ns/pid": True, "ns/ipc": False, "root/dev/shm": False}, False, "in another IPC namespace"),
        ({"ns/pid": True, "ns/ipc": False, "root/dev/shm": None}, False, "in another IPC namespace"),
        ({"ns/pid": True, "ns/ipc": False, "root/dev/shm": True}, True, ""),
        ({"ns/pid": None, "ns/ipc": None}, None, ""),
        ({"ns/pid": True, "ns/ipc": None}, None, ""),
        ({"ns/pid": None, "ns/ipc": False, "root/dev/shm": False}, False, "in another IPC namespace"),
    ],
)
def test_namespaces(
    monkeypatch: pytest.MonkeyPatch, same: dict[str, bool | None], near: bool | None, words: str
) -> None:
    """Another one of either kind is named with its remedy, but for one IPC namespace each over one /dev/shm."""
    monkeypatch.setattr(external, "peer", lambda _pipe_dir: Peer(7, 0))
    monkeypatch.setattr(external, "_same", lambda _pid, path: same[path])
    assert external.look(Folders("/p", "/l")) == Folders("/p", "/l", "process 7 of user 0", near)
    told = external.elsewhere("/p")
    assert (words in told, bool(words)) == (True, bool(told))
    assert ("mps: {mode: own}" in told) == bool(told)


def test_a_daemon_outside_of_our_pid_namespace_is_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no number here, so nothing else of it can be looked at."""
    monkeypatch.setattr(external, "peer", lambda _pipe_dir: Peer(0, 0))
    assert external.look(Folders("/p", "/l")).near is False
    assert "hostPID: true" in external.elsewhere("/p")


@pytest.fixture
def pipe() -> Iterator[Path]:
    with short_dir() as folder:
        yield folder


@pytest.mark.parametrize(
    ("before", "near"),
    [([], True), (["unshare", "--ipc"], True), (["unshare", "--ipc", "--mount", *_OWN_SHM], False)],
    ids=["here", "same /dev/shm", "own /dev/shm"],
)
def test_what_the_kernel_says_of_a_process(pipe: Path, before: list[str], near: bool) -> None:
    """A listener here; in an IPC namespace of its own with our /dev/shm; and in one with its own."""
    if before and (
        shutil.which("unshare") is None or subprocess.run([*before, "true"], check=False).returncode
    ):
        pytest.skip("no IPC namespace can be made here")
    command = [*before, sys.executable, "-c", _LISTEN, str(pipe)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == b"listening\n"
        found = external.look(Folders(str(pipe), "/l"))
        told = external.elsewhere(str(pipe))
        listener.communicate()
    assert (found.owner, found.near) == (f"process {listener.pid} of user {os.geteuid()}", near)
    assert ("hostIPC: true" in told) != near


def test_a_folder_without_a_daemon_tells_nothing(pipe: Path) -> None:
    """Nobody listens, or what listens has just gone."""
    assert external.look(Folders(str(pipe), "/l")) == Folders(str(pipe), "/l")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(pipe / "control"))
    assert external.elsewhere(str(pipe)) == ""
