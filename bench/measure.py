"""CPU seconds and memory of processes, found by a mark in their environment, and of the machine."""

from __future__ import annotations

import bisect
import contextlib
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import psutil

# Every process that a run starts inherits this variable, and so keeps it through re-parenting,
# setsid and exec, by which servers get away from process groups and parent links.
MARK = "MPSPOOL_BENCH"
_ROLES = {
    "mpspool.router": "router",
    "mpspool.worker": "worker",
    "mpspool.worker.nursery": "nursery",
    "mpspool.worker.weights": "publisher",
    "mpspool.supervisor": "pool",
    "mpspool": "foreground",
    "mpspool.supervisor.supervisord_process": "supervisord",
    "bench.swap": "bench",
    "bench.swap_load": "load",
}
FOREIGN = "foreign"
_LOOK_S = 0.1
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def marked(mark: str) -> list[int]:
    """Living processes of ours whose mark starts with `mark`."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [pid for pid in pids if is_marked(pid, mark)]


def is_marked(pid: int, mark: str) -> bool:
    """Whether it lives, and is ours, with a mark that starts with `mark`."""
    needle = f"{MARK}={mark}".encode()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return any(item.startswith(needle) for item in file.read().split(b"\0"))
    return False


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


@dataclass(frozen=True, slots=True)
class Segments:
    """Files in memory only (memfds), each once, however many processes have it."""

    count: int
    mb: float


def segments(pids: Iterable[int]) -> Segments:
    """Those that these processes hold open."""
    sizes: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{entry}"
                with contextlib.suppress(OSError):
                    if os.readlink(path).startswith("/memfd:"):
                        found = os.stat(path)
                        sizes[found.st_ino] = found.st_blocks * 512
    return Segments(len(sizes), sum(sizes.values()) / 2**20)


class CpuMeter:
    """CPU seconds over time by role, of processes that come and go; FOREIGN is what all others use of the machine.

    To be entered: a thread looks now and then.

    Args:
        mark: of the processes; this one counts among them.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._ours: dict[int, bool] = {os.getpid(): True}
        self._last: dict[int, float] = {}
        self._totals: defaultdict[str, float] = defaultdict(float)
        self._looks: list[tuple[float, Mapping[str, float]]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        there = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
        self._ours = {
            pid: self._ours[pid] if pid in self._ours else is_marked(pid, self._mark) for pid in there
        }
        used = cpu_by_pid(pid for pid, ours in self._ours.items() if ours)
        for pid, seconds in used.items():
            # Of one that was there before the first look, only what it uses from then on.
            since = self._last.get(pid, 0.0 if self._looks else seconds)
            self._totals[role(pid)] += seconds - since
        self._last = used
        now = time.monotonic()
        busy = machine_busy_s() - sum(self._totals.values())
        self._looks.append((now, {**self._totals, FOREIGN: busy}))

    def used(self, begin: float, end: float) -> dict[str, float]:
        """By role, between two times of CLOCK_MONOTONIC; exact to a look."""
        first, last = self._at(begin), self._at(end)
        return {role: seconds - first.get(role, 0.0) for role, seconds in last.items()}

    def _at(self, moment: float) -> Mapping[str, float]:
        index = bisect.bisect_left(self._looks, moment, key=lambda look: look[0])
        return self._looks[min(index, len(self._looks) - 1)][1]


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
