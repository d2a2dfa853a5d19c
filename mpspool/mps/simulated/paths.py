"""The files of a stand-in, where the real ones have theirs, and its log lines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TextIO

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
    def figures(self) -> Path:
        """What the stand-in for NVML knows. The real daemon writes no such file."""
        return self.log / state_file.NAME


class Log:
    """One of the two log files, in the real ones' layout, each line marked SIMULATED."""

    def __init__(self, path: Path, role: str, echo: TextIO | None = None) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._role = role
        self._echo = echo

    def __call__(self, message: str) -> None:
        now = datetime.now().astimezone().replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
        line = f"[{now} {self._role} {os.getpid():5d}] SIMULATED {message}"
        for file in (self._file, self._echo):
            if file is not None:
                print(line, file=file, flush=True)
