"""The files of a stand-in, where the real ones have theirs, and its log lines."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from mpspool.mps.simulated import CONTROL, DEFAULT_PIPE_DIR, state_file

_DEFAULT_LOG_DIR = "/var/log/nvidia-mps"


@dataclass(frozen=True, slots=True)
class Paths:
    """Where a daemon and its clients meet, and where it logs."""

    pipe: Path
    log: Path

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Paths:
        return cls(
            Path(environ.get("CUDA_MPS_PIPE_DIRECTORY", DEFAULT_PIPE_DIR)),
            Path(environ.get("CUDA_MPS_LOG_DIRECTORY", _DEFAULT_LOG_DIR)),
        )

    @property
    def control(self) -> Path:
        """Commands come in here."""
        return self.pipe / CONTROL

    @property
    def clients(self) -> Path:
        """A connection held here is a client. The real daemon has no such socket."""
        return self.pipe / "clients"

    @property
    def lock(self) -> Path:
        return self.pipe / "control_lock"

    @property
    def pid(self) -> Path:
        return self.pipe / "nvidia-cuda-mps-control.pid"

    @property
    def control_log(self) -> Path:
        return self.log / "control.log"

    @property
    def server_log(self) -> Path:
        return self.log / "server.log"

    @property
    def figures(self) -> Path:
        """What the stand-in for NVML knows. The real daemon writes no such file."""
        return self.log / state_file.NAME


def write_log(role: str, message: str) -> None:
    """Writes a line to stderr, in the layout of the real logs, marked SIMULATED.

    There a daemon in the foreground and its servers have theirs; what -d starts has it in files.
    """
    now = datetime.now().astimezone().replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
    with contextlib.suppress(OSError):  # who read it has gone, and a server lives on
        print(f"[{now} {role} {os.getpid():5d}] SIMULATED {message}", file=sys.stderr, flush=True)
