"""Asks an MPS control daemon, by the program it comes with."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Self

from mpspool.core.settings import MpsSettings
from mpspool.mps.environment import worker_environment

PROGRAM = "nvidia-cuda-mps-control"
# Where drivers put their programs without it being in PATH: the container toolkit, Google's
# container-optimised nodes, the GPU operator's driver container, NixOS.
_DRIVER_FOLDERS = (
    "/usr/bin",
    "/usr/local/nvidia/bin",
    "/home/kubernetes/bin/nvidia/bin",
    "/run/nvidia/driver/usr/bin",
    "/run/opengl-driver/bin",
)
_ANSWER_LIMIT_S = 5.0
# A server takes clients while it is ACTIVE, has them wait while INITIALIZING, and refuses them in FAULT.
STATUSES = ("INITIALIZING", "ACTIVE", "FAULT")


class ControlError(Exception):
    """The control daemon refused a command or said what cannot be read."""


class NotAnsweringError(ControlError):
    """There is no control daemon on that pipe folder, or it hangs."""


def control_command(environ: Mapping[str, str]) -> list[str] | None:
    """The command of nvidia-cuda-mps-control; None where it is not there."""
    found = find_program(PROGRAM, environ)
    return [found] if found else None


def find_program(name: str, environ: Mapping[str, str]) -> str | None:
    """The path of one of the driver's programs, from PATH or a driver's folder; None where it is not there."""
    return shutil.which(name, path=os.pathsep.join([environ.get("PATH", os.defpath), *_DRIVER_FOLDERS]))


def daemon_environment(settings: MpsSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """What the daemon, its server and whoever asks it run with: the caller's environment and its own."""
    return {
        **environ,
        **worker_environment(settings.gpu_uuid, settings.pipe_dir),
        "CUDA_MPS_LOG_DIRECTORY": settings.log_dir,
    }


# Driver 580's daemon takes one connection at a time: of eight questions at once it refused half, most with this text, a few
# with none (docs/gpu-verification.md). So they come one at a time from this process, by pipe folder, and what another
# process's has hit is sent again.
_turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
_BUSY = "Cannot send command to MPS control daemon"
_AGAIN_S = 0.05
# How long a daemon that is told to quit waits for its clients before it cuts them off.
_CLIENTS_LEAVE_S = 1


class Control:
    """One daemon's commands. Each call runs the program once; none keeps a connection."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """`environ` names the daemon by CUDA_MPS_PIPE_DIRECTORY."""
        self._command = list(command)
        self._environ = dict(environ)

    @classmethod
    def of(cls, settings: MpsSettings, environ: Mapping[str, str]) -> Self:
        """The daemon that `settings` describes."""
        return cls(settings.control, daemon_environment(settings, environ))

    def raw(self, command: str, timeout_s: float = _ANSWER_LIMIT_S) -> str:
        """Sends one line and returns what is printed: a refusal, too, where the exit status does not tell.

        Raises:
            NotAnsweringError: no daemon, or no answer in time.
            ControlError: the exit status tells of a refusal.
        """
        by_s = time.monotonic() + timeout_s
        while True:
            done = self._run(command, timeout_s, by_s)
            said = (done.stdout + done.stderr).strip()
            if "Cannot find MPS control daemon" in said:
                pipe = self._environ.get("CUDA_MPS_PIPE_DIRECTORY")
                raise NotAnsweringError(f"no control daemon on {pipe}")
            if not done.returncode:
                return done.stdout
            if said and _BUSY not in said:
                raise ControlError(f"{command!r} failed with status {done.returncode}: {said}")
            time.sleep(_AGAIN_S)

    def _run(self, command: str, timeout_s: float, by_s: float) -> subprocess.CompletedProcess[str]:
        """Raises NotAnsweringError, also where the daemon has been busy for all of the time."""
        try:
            with _turns[self._environ.get("CUDA_MPS_PIPE_DIRECTORY", "")]:
                return subprocess.run(
                    self._command,
                    input=f"{command}\n",
                    env=self._environ,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=max(0.0, by_s - time.monotonic()),
                    check=False,
                )
        except OSError as error:
            raise NotAnsweringError(f"{self._command[0]} does not run: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise NotAnsweringError(f"no answer to {command!r} in {timeout_s:g} s") from error

    def answers(self) -> bool:
        """Whether the daemon is there for clients: started is not enough."""
        try:
            self.server_list()
        except ControlError:
            return False
        return True

    def server_list(self) -> list[int]:
        """Pids of the daemon's MPS servers; empty before the first client."""
        return self._pids("get_server_list")

    def server_status(self, server: int) -> str:
        """One of STATUSES.

        Raises:
            ControlError: no such server, or the daemon refuses: its exit status does not always tell.
        """
        said = self.raw(f"get_server_status {server}").strip()
        if said not in STATUSES:
            raise ControlError(f"get_server_status {server} answered {said!r}")
        return said

    def client_list(self, server: int) -> list[int]:
        """Pids of the processes attached to that server."""
        return self._pids(f"get_client_list {server}")

    def terminate_client(self, server: int, client: int) -> None:
        """Takes a client off its server, so that it can be killed without harm to the others.

        Raises:
            ControlError: the daemon answers with a CUDA error, by its number.
        """
        if (said := self.raw(f"terminate_client {server} {client}").strip()) != "0":
            raise ControlError(f"terminate_client {server} {client} answered {said!r}")

    def quit(self, timeout_s: float = _ANSWER_LIMIT_S) -> None:
        """Ends the servers and the daemon, which may still be there for a moment after the answer.

        Clients have a second to leave; without a limit the daemon waits for them for ever.
        """
        self.raw(f"quit -t {_CLIENTS_LEAVE_S}", timeout_s)

    def _pids(self, command: str) -> list[int]:
        words = self.raw(command).split()
        if not all(word.isdigit() for word in words):
            raise ControlError(f"{command!r} answered {' '.join(words)!r}, which is no list of pids")
        return [int(word) for word in words]
