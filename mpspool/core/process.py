"""Linux process facts: who dies with whom, who is alive, and what a process is doing."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import select
import signal
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

# A worker ends with this status when starting it again could never help (sysexits' EX_CONFIG).
EXIT_NEVER = 78
# A launcher ends with this status when its worker has ended and nobody can say how (EX_SOFTWARE).
EXIT_UNKNOWN = 70
# A launcher ends with this status when the nursery could not do what was asked (EX_OSERR).
EXIT_REFUSED = 71

# How often the kernel is told a session's nice value, and how long after the last time.
_ASKED, _ASK_AGAIN_S = 20, 0.1
# How often one that may starve is looked at.
_LOOKS = 10
# Of a processor, for who is to be woken at once; the kernel's least.
_SLICE_NS = 100_000
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
# struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period.
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")
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


def raise_open_files() -> None:
    """This process may open as many files as its hard limit allows: the soft one is meant for programs that call select()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # It may be more than the kernel's own bound, where that was lowered since.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Asks the kernel to signal us when `parent`, our parent now, dies; at once if it already has."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    foreground = int(os.environ.get(FOREGROUND_VARIABLE) or 0)
    if os.getppid() != parent or (foreground and not alive(foreground)):
        os.kill(os.getpid(), signum)


def die_with_peer(connection: int) -> None:
    """Has the kernel kill us, stopped or not, when the other end of a connection closes; at once if it has.

    Args:
        connection: a stream socket's descriptor on which nothing is ever sent to us.

    Raises:
        OSError: the kernel cannot.
    """
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    if poll.poll(0):
        os.kill(os.getpid(), signal.SIGKILL)


def show_as(name: str, *arguments: str) -> None:
    """Has top and ps show this process under another name, with these arguments.

    The kernel cuts the name to 15 bytes; and all of it has the room of the command line that the process was
    started with: what does not fit is cut off, and where the kernel does not say where that is, it stays.
    """
    Path("/proc/self/comm").write_bytes(os.fsencode(name))
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    begin, end = map(int, fields[45:47])  # proc(5): arg_start, arg_end
    room = end - begin
    if begin and room > 0:
        shown = b"\0".join(map(os.fsencode, (name, *arguments)))
        # The last byte stays 0: else the kernel would read on, into the environment.
        ctypes.memmove(begin, shown[: room - 1].ljust(room, b"\0"), room)


def lead_session() -> None:
    """Leaves for a session of this process's own. Does nothing where it leads one.

    Where the kernel shares the processors out among sessions first (sched_autogroup_enabled), what a process gets beside
    others is a matter of its session: in one with others it takes their part, and they its.

    supervisord makes each of its children the leader of a process group, which must not begin a session: so it first joins
    its parent's group.
    """
    if os.getsid(0) != os.getpid():
        with contextlib.suppress(OSError):  # the parent has just ended
            os.setpgid(0, os.getpgid(os.getppid()))
            try:
                os.setsid()
            except OSError:  # a sandbox forbids it; who ends our group is to find us in it
                os.setpgid(0, 0)
                raise


def give_way(nice: int) -> None:
    """Leaves the processors to others, for good: by a nice value, and by that of a session of its own."""
    lead_session()
    with contextlib.suppress(OSError):  # a sandbox that forbids it does not keep it from its work
        os.nice(nice)
    for _ in range(_ASKED):
        if set_session_nice(nice):
            return
        time.sleep(_ASK_AGAIN_S)


def give_way_to_all(starving_s: float) -> None:
    """Leaves the processors to all others, for good. Comes back in a child of the caller, which waits for it.

    The child gets nothing but what nobody else wants (SCHED_IDLE), and only on half of the processors: others are put
    beside it as on an idle one. It ends with the caller, and the caller as the child does.

    Args:
        starving_s: if it wants a processor for so long and gets less than a quarter of one, it is killed, and begins again
            with a nice value alone.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = os.getpid()
    for policy in (os.SCHED_IDLE, os.SCHED_OTHER):
        child = os.fork()
        if not child:
            die_with_parent(parent)
            if policy == os.SCHED_IDLE:
                with contextlib.suppress(OSError):
                    os.sched_setscheduler(0, policy, os.sched_param(0))
                    _keep_to_half()
            give_way(19)
            return
        if policy == os.SCHED_OTHER or not _starves(child, starving_s):
            _end_as(os.waitpid(child, 0)[1])
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):  # it has come through after all
            _end_as(status)


def _keep_to_half() -> None:
    """Of the processors that this thread may use, the last: the first have most of the interrupts."""
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, processors[-max(1, len(processors) // 2) :])


def _starves(child: int, for_s: float) -> bool:
    """Waits until it ends, or wants a processor for so long, at each look, and has too little of one.

    One that waits for a disk or for the pool, or is stopped, does not starve.
    """
    try:
        pidfd = os.pidfd_open(child)
    except OSError:
        return False
    looks, had_s = 0, 0.0
    try:
        while not select.select([pidfd], [], [], for_s / _LOOKS)[0]:
            found = stat(child)
            if found is None:
                return False
            looks = looks + 1 if found.state == "R" else 0
            if looks == _LOOKS and found.cpu_s - had_s < for_s / 4:
                return True
            if looks in (0, _LOOKS):
                looks, had_s = 0, found.cpu_s
        return False
    finally:
        os.close(pidfd)


def _end_as(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        signum = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has left one, where that is wanted
        with contextlib.suppress(OSError):  # SIGKILL
            signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
    os._exit(os.waitstatus_to_exitcode(status))


def wake_first() -> None:
    """Has this process's threads, and those that they start, take a processor when they wake, from who has long work there.

    By asking for short slices: a kernel that hands out processors by deadline (EEVDF) lets whoever runs go on to the end of
    the shortest slice among those that wait, and that is some milliseconds where nobody asks. It changes nobody's share. A
    kernel before Linux 6.12 does not look at it; one of an architecture whose number for the call we do not know is not asked.

    Source: sched_setattr(2); the kernel's Documentation/scheduler/sched-eevdf.rst.
    """
    call = _SCHED_SETATTR.get(os.uname().machine)
    if call is None:
        return
    syscall = ctypes.CDLL(None).syscall
    for thread in _threads():
        with contextlib.suppress(ProcessLookupError):
            policy, nice = os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread)
            attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, policy, 0, nice, 0, _SLICE_NS, 0, 0)
            syscall(call, thread, attributes, 0)


def set_session_nice(nice: int, *, shared: bool = False) -> bool:
    """Says how much of the processors our session gets beside others, where it is ours and the kernel asks that.

    Unlike a process's nice value it can be lowered again by everybody, down to 0.

    Args:
        nice: of the session.
        shared: say it for the others in it, too, whoever leads it.

    Returns:
        False if it should be said again: the kernel takes ten a second from all who are not root.
    """
    if not shared and os.getsid(0) != os.getpid():
        return True
    try:
        Path("/proc/self/autogroup").write_text(str(nice), encoding="ascii")
    except BlockingIOError:
        return False
    except OSError:  # a kernel that knows no such thing
        return True
    return True


def end_giving_way(nice: int) -> None:
    """Has the end of this process, in which the kernel frees its memory, take less of the processors than others get.

    Whichever of its threads is the last one frees it, so all of them are told.

    Args:
        nice: of its threads, and of its session where that is its own.
    """
    set_session_nice(nice)
    for thread in _threads():
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, thread, max(nice, os.getpriority(os.PRIO_PROCESS, thread)))


def _threads() -> list[int]:
    return list(map(int, os.listdir("/proc/self/task")))


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

    @property
    def is_starved(self) -> bool:
        """It wants to run but is not let (R), or waits for a disk (D): slow, not hung. One that turns for ever looks alike."""
        return self.state in "RD"


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
    """Every process below `root`, zombies too, parents before children."""
    below = _children()
    order = list(below.get(root, []))
    for pid in order:
        order.extend(below.get(pid, []))
    return order


def children(parent: int) -> list[int]:
    """The processes whose parent it is, zombies too."""
    return _children().get(parent, [])


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (process := stat(int(entry))) is not None:
            found.setdefault(process.ppid, []).append(int(entry))
    return found


@dataclass(frozen=True, slots=True)
class Memory:
    """What a process takes of the machine's memory, in bytes.

    Attributes:
        pss: its private pages and its part of the shared ones: these add up over processes.
        private: pages that no other process maps.
        shared: pages that others map as well.
    """

    pss: int
    private: int
    shared: int


def memory(pid: int) -> Memory | None:
    """From /proc/PID/smaps_rollup; None for a process that is not there. Takes milliseconds per mapped GB."""
    sizes: dict[str, int] = {}
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii", errors="replace") as file:
            for line in file:
                words = line.split()
                if words[-1] == "kB":
                    sizes[words[0]] = int(words[1]) * 1024
    except OSError:
        return None
    if "Pss:" not in sizes:
        return None
    return Memory(
        sizes["Pss:"],
        sizes["Private_Clean:"] + sizes["Private_Dirty:"],
        sizes["Shared_Clean:"] + sizes["Shared_Dirty:"],
    )
