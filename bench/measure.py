"""CPU seconds and memory of processes, found by a mark in their environment, and of the machine."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psutil

# Every process that a run starts inherits this variable, and so keeps it through re-parenting,
# setsid and exec, by which servers get away from process groups and parent links.
MARK = "MPSPOOL_BENCH"
_ROLES = {
    "mpspool.router": "router",
    "mpspool.worker": "worker",
    "mpspool.worker.nursery": "nursery",
    "mpspool.supervisor": "pool",
    "mpspool": "foreground",
    "supervisor.supervisord": "supervisord",
}
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def marked(mark: str) -> list[int]:
    """Living processes of ours whose mark starts with `mark`."""
    needle = f"{MARK}={mark}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
            if any(item.startswith(needle) for item in file.read().split(b"\0")):
                found.append(int(entry))
    return found


def cpu_by_pid(pids: Iterable[int]) -> dict[int, float]:
    """User and system seconds each process has used so far, threads included; without those gone."""
    return _cpu({pid: f"/proc/{pid}/stat" for pid in pids})


def cpu_by_thread(pid: int) -> dict[int, float]:
    """The same for the threads of one process, by thread id."""
    with contextlib.suppress(OSError):
        return _cpu(
            {int(thread): f"/proc/{pid}/task/{thread}/stat" for thread in os.listdir(f"/proc/{pid}/task")}
        )
    return {}


def thread_name(pid: int, thread: int) -> str:
    """The kernel's name of a thread."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/comm") as file:
        return file.read().strip()
    return "gone"


def _cpu(files: Mapping[int, str]) -> dict[int, float]:
    seconds = {}
    for number, path in files.items():
        with contextlib.suppress(OSError, IndexError), open(path) as file:
            fields = file.read().rsplit(")", 1)[1].split()
            seconds[number] = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return seconds


def role(pid: int) -> str:
    """What a process is: the last part of its Python module or script, else its program."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().decode(errors="replace").split("\0")
    except OSError:
        return "gone"
    if thread_name(pid, pid) == "mpspool-worker":  # forked: it shows itself by its name and slot
        return "worker"
    if words[0].rsplit("/", 1)[-1].startswith("python"):
        if "-m" in words[:-1]:
            module = words[words.index("-m") + 1]
            return _ROLES.get(module) or " ".join([module, *words[words.index("-m") + 2 :][:1]])
        scripts = [word for word in words[1:] if word.endswith(".py")]
        return scripts[0].rsplit("/", 1)[-1] if scripts else words[0].rsplit("/", 1)[-1]
    return words[0].rsplit("/", 1)[-1].split(" ")[0] or "unnamed"


def by_role(before: Mapping[int, float], after: Mapping[int, float]) -> dict[str, float]:
    """Seconds used between two readings of cpu_by_pid(), of the processes in the first."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for pid, start in before.items():
        if pid in after:
            seconds[role(pid)] += after[pid] - start
    return dict(seconds)


def machine_busy_s() -> float:
    """Seconds of CPU that anyone on the machine has used since it started, all CPUs together."""
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    idle, io_wait = ticks[3], ticks[4]
    return (sum(ticks) - idle - io_wait) / _TICKS_PER_S


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident and proportional (shared pages divided by their users) megabytes."""

    processes: int
    rss_mb: float
    pss_mb: float


def memory(pids: Iterable[int]) -> Memory:
    count, rss, pss = 0, 0.0, 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            info = psutil.Process(pid).memory_full_info()
            count, rss, pss = count + 1, rss + info.rss, pss + info.pss
    return Memory(count, rss / 2**20, pss / 2**20)


def end_marked(mark: str, grace_s: float = 3.0) -> None:
    """Ends every process of the mark: SIGTERM, and SIGKILL to what is left after `grace_s`."""
    for signum, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        for pid in marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
        deadline = time.monotonic() + wait_s
        while marked(mark):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        else:
            return


def wait_until_quiet(limit_s: float = 4.0, share: float = 0.1) -> None:
    """Waits until the machine uses less than `share` of one CPU, or the limit is over."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        before = machine_busy_s()
        time.sleep(0.25)
        if machine_busy_s() - before < 0.25 * share:
            return
