"""Ends what an earlier run left on a pipe folder: a control daemon, or a server that lost its daemon.

The server puts itself in the background, so it outlives a daemon that is killed, and holds the GPU
and the pipe folder. It is known by its program and by CUDA_MPS_PIPE_DIRECTORY in its environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mpspool.core import process
from mpspool.mps.control import PROGRAM, Control, ControlError

SERVER_PROGRAM = "nvidia-cuda-mps-server"
# Where a daemon and its clients meet whom nobody told another place.
DEFAULT_PIPE_DIR = "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's
_PIPE_DIR = b"CUDA_MPS_PIPE_DIRECTORY="
_SIMULATED = "mpspool.mps.simulated."
_SIMULATED_DAEMON = _SIMULATED + "nvidia_cuda_mps_control"
_DAEMON_FLAGS = {"-f", "-d"}
_FILES = {"control_lock", f"{PROGRAM}.pid"}
_QUIT_LIMIT_S = 5.0
_SIGNAL_LIMIT_S = 2.0
_POLL_S = 0.02


class LeftoverError(Exception):
    """Something of an earlier run is in the way and cannot be ended or removed."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A living process of a pipe folder; its start time tells it from a later one of the same pid."""

    pid: int
    start_ticks: int
    daemon: bool

    @property
    def alive(self) -> bool:
        found = process.stat(self.pid)
        return found is not None and found.state not in "ZX" and found.start_ticks == self.start_ticks

    def send(self, signum: int) -> None:
        """Through a pidfd, so that no other process is ever hit."""
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self.pid)
            try:
                if self.alive:
                    signal.pidfd_send_signal(descriptor, signum)
            finally:
                os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Running:
    """A control daemon or an MPS server of this machine, whoever's it is.

    Attributes:
        daemon: a control daemon; else a server.
        uid: the user it runs as.
        pipe_dir: its pipe folder; None where we may not look.
        simulated: a stand-in.
    """

    pid: int
    daemon: bool
    uid: int
    pipe_dir: str | None
    simulated: bool = False


def running() -> list[Running]:
    """Every control daemon and MPS server that this process can see; those of other containers it cannot."""
    found = []
    for pid, daemon in _by_program():
        environ = process.strings(pid, "environ")
        with contextlib.suppress(OSError):
            uid = os.stat(f"/proc/{pid}").st_uid
            command = process.strings(pid, "cmdline")
            simulated = any(os.fsdecode(word).startswith(_SIMULATED) for word in command)
            found.append(Running(pid, daemon, uid, _pipe_dir(environ), simulated))
    return found


def _pipe_dir(environ: list[bytes]) -> str | None:
    if not any(environ):
        return None
    named = next((entry for entry in environ if entry.startswith(_PIPE_DIR)), None)
    return DEFAULT_PIPE_DIR if named is None else os.fsdecode(named.removeprefix(_PIPE_DIR))


def _by_program() -> Iterator[tuple[int, bool]]:
    """Pids, and whether each is a control daemon; else it is a server."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (daemon := _is_daemon(process.strings(int(entry), "cmdline"))) is not None:
            yield int(entry), daemon


def find(pipe_dir: Path) -> list[Leftover]:
    """The control daemons and MPS servers of that pipe folder that we may look at."""
    named = _PIPE_DIR + os.fsencode(pipe_dir)
    found = []
    for pid, daemon in _by_program():
        stat_now = process.stat(pid)
        if stat_now is None or named not in process.strings(pid, "environ"):
            continue
        leftover = Leftover(pid, stat_now.start_ticks, daemon)
        if leftover.alive:
            found.append(leftover)
    return found


def end(pipe_dir: Path, control: Control) -> list[int]:
    """Ends everything find() finds: by `quit` where a daemon is there, by signals otherwise.

    Returns:
        The pids that were ended.

    Raises:
        LeftoverError: a process survives even SIGKILL, as one stuck in the driver does.
    """
    found = find(pipe_dir)
    if any(leftover.daemon for leftover in found):
        with contextlib.suppress(ControlError):
            control.quit(_QUIT_LIMIT_S)
            _gone(found, _QUIT_LIMIT_S)
    for signum in (signal.SIGTERM, signal.SIGKILL):
        for leftover in found:
            if leftover.alive:
                leftover.send(signum)
        if _gone(found, _SIGNAL_LIMIT_S):
            return [leftover.pid for leftover in found]
    left = [leftover.pid for leftover in found if leftover.alive]
    raise LeftoverError(f"MPS processes {left} of {pipe_dir} do not end; the GPU may need a reset")


def prepare_folder(path: Path) -> None:
    """Makes the folder ours alone (0700). Raises LeftoverError where it is something else."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(parents=True, mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise LeftoverError(
            f"{path} is not a folder of user {os.getuid()}; remove it or choose another run folder"
        )
    path.chmod(0o700)


def clear(pipe_dir: Path) -> None:
    """Removes the sockets, pipes and pid file of a daemon that is gone; whatever else lies there stays."""
    if not pipe_dir.is_dir():
        return
    for path in pipe_dir.iterdir():
        mode = path.lstat().st_mode
        if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode) or path.name in _FILES:
            path.unlink(missing_ok=True)


def _is_daemon(command: list[bytes]) -> bool | None:
    """True for a control daemon, False for an MPS server, None for anything else.

    The daemon's program without a flag only asks, and is left alone.
    """
    words = [os.fsdecode(word) for word in command]
    if not words:
        return None
    module = next((word for word in words if word.startswith(_SIMULATED)), "")
    if os.path.basename(words[0]) == PROGRAM or module == _SIMULATED_DAEMON:
        return True if _DAEMON_FLAGS & set(words) else None
    return False if os.path.basename(words[0]) == SERVER_PROGRAM or module else None


def _gone(found: list[Leftover], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while any(leftover.alive for leftover in found):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
