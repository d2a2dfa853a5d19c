"""What the stand-in's daemon tells the stand-in for NVML: one small file per GPU, replaced whole."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mpspool.core import process
from mpspool.core.rundir import write_file

NAME = "simulated.json"


class ProcessName(msgspec.Struct, frozen=True, array_like=True):
    """One process, and no later one with the same number."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessName | None:
        """None for a process that is not there."""
        found = process.stat(pid)
        return cls(pid, found.start_ticks) if found and found.state not in "ZX" else None

    @property
    def alive(self) -> bool:
        return ProcessName.of(self.pid) == self


class Event(msgspec.Struct, frozen=True):
    """Something that the driver reports, and when (CLOCK_MONOTONIC)."""

    xid: int
    at_s: float


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as its daemon knows it.

    Attributes:
        simulated: for people who find the file.
        daemon: who wrote it; what it says of clients and use holds only while that lives.
        lost_for: the GPU is lost until this process has ended; None while it is not.
        at_s: when `utilisation` was so (CLOCK_MONOTONIC).
        utilisation: 0 to 1, over the second before.
        busy: whether anything ran then.
        clients: device memory in bytes by pid.
        events: the latest, oldest first.
        uncorrected_errors: of its memory, since the first daemon on this file.
    """

    simulated: bool = True
    device_uuid: str
    daemon: ProcessName
    lost_for: ProcessName | None = None
    at_s: float = 0.0
    utilisation: float = 0.0
    busy: bool = False
    clients: dict[int, int] = {}
    events: list[Event] = []
    uncorrected_errors: int = 0

    @property
    def lost(self) -> bool:
        return self.lost_for is not None and self.lost_for.alive


def write(path: Path, state: GpuState) -> None:
    """Raises OSError."""
    write_file(path, msgspec.json.encode(state))


def read(path: Path) -> GpuState | None:
    """None where there is none, or nothing that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=GpuState)
    except (OSError, msgspec.DecodeError):
        return None
