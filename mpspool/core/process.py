"""Linux process facts: who dies with whom, who is alive, and what a process is doing."""

from __future__ import annotations

import ctypes
import os
import signal
from dataclasses import dataclass

# A worker ends with this status when starting it again could never help (sysexits' EX_CONFIG).
EXIT_NEVER = 78

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _prctl(option: int, argument: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0):
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


# The foreground process puts its pid there for all below it: a child that was started while it was being
# killed has a new parent before it can ask for the old one's death.
FOREGROUND_VARIABLE = "MPSPOOL_FOREGROUND"


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Asks the kernel to signal us when `parent`, our parent now, dies; at once if it already has."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    foreground = int(os.environ.get(FOREGROUND_VARIABLE) or 0)
    if os.getppid() != parent or (foreground and not alive(foreground)):
        os.kill(os.getpid(), signum)


def become_subreaper() -> None:
    """Orphans among our descendants become our children, so that we can find and reap them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """From /proc/PID/stat. `start_ticks` with the pid names a process for good."""

    state: str
    ppid: int
    cpu_s: float
    start_ticks: int


def stat(pid: int) -> ProcessStat | None:
    """None for a process that is not there."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return ProcessStat(
        state=fields[0],
        ppid=int(fields[1]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        start_ticks=int(fields[19]),
    )


def alive(pid: int) -> bool:
    """Whether the process is there and not a zombie."""
    found = stat(pid)
    return found is not None and found.state not in "ZX"


def strings(pid: int, name: str) -> list[bytes]:
    """/proc/PID/cmdline or environ in its parts; nothing where it cannot be read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def descendants(root: int) -> list[int]:
    """Every living process below `root`, parents before children."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (found := stat(int(entry))) is not None:
            children.setdefault(found.ppid, []).append(int(entry))
    order = list(children.get(root, []))
    for pid in order:
        order.extend(children.get(pid, []))
    return order
