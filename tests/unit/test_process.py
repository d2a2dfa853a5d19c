"""Who dies with whom, who is whose child, and what ps shows."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpspool.core import process
from tests import slices
from tests.polling import until


@pytest.mark.parametrize("stopped", [False, True])
def test_dies_with_its_peer(stopped: bool) -> None:
    """The end of a connection kills the process that holds the other end, whatever it is doing."""
    code = (
        "import sys, time; from mpspool.core import process\n"
        "process.die_with_peer(int(sys.argv[1])); print('', flush=True)\nwhile True: pass"
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", code, str(theirs.fileno())]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            if stopped:
                child.send_signal(signal.SIGSTOP)
                until(lambda: process.stat(child.pid).state == "T")
            assert child.poll() is None
            ours.close()
            assert child.wait(10) == -signal.SIGKILL


def test_dies_with_a_peer_that_is_gone() -> None:
    """So does one whose other end was closed before it asked."""
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        code = "import sys; from mpspool.core import process; process.die_with_peer(int(sys.argv[1]))"
        command = [sys.executable, "-c", code, str(theirs.fileno())]
        done = subprocess.run(command, pass_fds=[theirs.fileno()], check=False)
    assert done.returncode == -signal.SIGKILL


def test_children() -> None:
    """A process's children are its own, and not their children."""
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert child.pid in process.children(os.getpid())
        assert grandchild not in process.children(os.getpid())
        assert process.children(child.pid) == [grandchild]
        os.kill(grandchild, signal.SIGKILL)


@pytest.mark.parametrize(
    ("shown", "name", "command"),
    [
        (["mpspool-worker", "half@1.cpu0.0"], "mpspool-worker", [b"mpspool-worker", b"half@1.cpu0.0"]),
        (["a name of more than 15 bytes"], "a name of more ", [b"a name of more than 15 bytes"]),
        (["w", "x" * 100_000], "w", None),
    ],
)
def test_shows_as(shown: list[str], name: str, command: list[bytes] | None) -> None:
    """The new name and arguments are what ps shows, cut to the room there is; the environment stays."""
    code = (
        "import os, sys; from mpspool.core import process\n"
        "before = dict(os.environb); print(flush=True)\n"
        "process.show_as(*sys.stdin.readline().rstrip('\\n').split('|'))\n"
        "print(dict(os.environb) == before, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "\n"  # until it runs the kernel shows nothing of it
        environment = process.strings(child.pid, "environ")
        room = sum(len(word) + 1 for word in process.strings(child.pid, "cmdline")) - 1
        child.stdin.write("|".join(shown) + "\n")
        child.stdin.flush()
        assert child.stdout.readline() == "True\n"
        assert Path(f"/proc/{child.pid}/comm").read_text() == f"{name}\n"
        found = [word for word in process.strings(child.pid, "cmdline") if word]
        assert found == (command or [b"w", b"x" * (room - 3)])
        assert process.strings(child.pid, "environ") == environment
        child.stdin.close()


SAY_IF_ALONE = "import os; print(os.getsid(0) == os.getpgid(0) == os.getpid(), flush=True)\n"


def test_who_leads_a_session_has_it_for_itself() -> None:
    """Whether it leads a process group, as supervisord's children do, or is in its parent's; and a second time changes nothing."""
    code = "from mpspool.core import process\nprocess.lead_session()\n" + SAY_IF_ALONE
    for group in (0, -1):
        with subprocess.Popen(
            [sys.executable, "-c", code + code], stdout=subprocess.PIPE, text=True, process_group=group
        ) as child:
            assert child.stdout is not None
            assert child.stdout.read().split() == ["True", "True"]
            assert child.wait(10) == 0


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel does not ask it")
def test_a_nice_value_of_a_session_that_is_shared() -> None:
    """One that leads none says nothing of its session, unless it speaks for all in it; and it is lowered again."""
    code = (
        "import os, sys; from mpspool.core import process\n"
        "nice = lambda: open('/proc/self/autogroup').read().split()[-1]\n"
        "os.setsid()\n"
        "if os.fork(): sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
        "process.set_session_nice(3)\n"
        "said = [nice()]\n"
        "while not process.set_session_nice(3, shared=True): pass\n"
        "said.append(nice())\n"
        "while not process.set_session_nice(0, shared=True): pass\n"
        "print(*said, nice())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "3", "0"]


def giving_way(then: str, starving_s: float = 0.0, before: str = "") -> subprocess.Popen[str]:
    """A process that gives way, to all where it may starve, and says what it is then: its policy, its nice values and its
    session's, its processors.
    """
    gives_way = f"give_way_to_all({starving_s})" if starving_s else "give_way(19)"
    code = (
        "import os, signal; from pathlib import Path; from mpspool.core import process\n"
        f"{before}process.{gives_way}\n"
        "group = Path('/proc/self/autogroup')\n"
        # Nothing stands there of the session that began with the kernel.
        "nice = (group.exists() and group.read_text().split() or ['19'])[-1]\n"
        "processors = ','.join(map(str, sorted(os.sched_getaffinity(0))))\n"
        "alone = os.getsid(0) == os.getpid()\n"
        "print(os.sched_getscheduler(0), os.nice(0), nice, alone, processors, os.getpid(), flush=True)\n"
        + then
    )
    # As supervisord's children are: the leader of a process group.
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, process_group=0)


@pytest.mark.parametrize(("starving_s", "policy"), [(0.0, os.SCHED_OTHER), (60.0, os.SCHED_IDLE)])
@pytest.mark.parametrize(
    ("then", "status"),
    [("raise SystemExit(7)", 7), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)],
)
def test_gives_way(starving_s: float, policy: int, then: str, status: int) -> None:
    """In a session of its own, where a nice value counts beside others; and its end is its caller's."""
    every = sorted(os.sched_getaffinity(0))
    mine = every[-max(1, len(every) // 2) :] if policy == os.SCHED_IDLE else every
    with giving_way(then, starving_s) as child:
        assert child.stdout is not None
        said = child.stdout.read().split()
        assert said[:5] == [str(policy), "19", "19", "True", ",".join(map(str, mine))]
        assert child.wait(10) == status


def test_gives_way_as_far_as_it_may() -> None:
    """Where a sandbox refuses another policy, it goes on without."""
    forbid = "def forbidden(*_): raise PermissionError\nos.sched_setscheduler = forbidden\n"
    with giving_way("raise SystemExit(7)", 60.0, forbid) as child:
        assert child.stdout is not None
        assert child.stdout.read().split()[:4] == [str(os.SCHED_OTHER), "19", "19", "True"]
        assert child.wait(10) == 7


def test_who_gave_way_dies_with_who_waits() -> None:
    with giving_way("signal.pause()", 60.0) as child:
        assert child.stdout is not None
        forked = int(child.stdout.readline().split()[-1])
        assert process.children(child.pid) == [forked]
        child.kill()
    until(lambda: not process.alive(forked))


def test_who_waits_for_something_else_does_not_begin_again() -> None:
    """It gets little of a processor, and wants no more."""
    # With what nobody else wants it may not get as far as to wait.
    wants = "process.give_way = lambda _: None\nos.sched_setscheduler = lambda *_: None\n"
    waits = "import time; time.sleep(6); raise SystemExit(7)"
    with giving_way(waits, starving_s=5.0, before=wants) as child:
        assert child.stdout is not None
        assert len(child.stdout.read().splitlines()) == 1
        assert child.wait(10) == 7


def test_who_never_gets_a_processor_begins_again() -> None:
    """Others want the only one it may use: after a while it is one of those, and comes last among them."""
    [processor, *_] = sorted(os.sched_getaffinity(0))
    spinning = f"import os; os.sched_setaffinity(0, {{{processor}}})\nwhile True: pass"
    spinners = [subprocess.Popen([sys.executable, "-c", spinning], process_group=0) for _ in range(3)]
    try:
        until(lambda: all(os.sched_getaffinity(one.pid) == {processor} for one in spinners))
        wanting = f"os.sched_setaffinity(0, {{{processor}}})\n"
        wanting += f"while os.sched_getscheduler(0) == {os.SCHED_IDLE}: pass\nraise SystemExit(7)"
        with giving_way(wanting, starving_s=2.0) as child:
            assert child.stdout is not None
            assert child.wait(60) == 7
            policies = [line.split()[0] for line in child.stdout.read().splitlines()]
        assert policies == [str(os.SCHED_IDLE), str(os.SCHED_OTHER)]
    finally:
        for one in spinners:
            one.kill()
            one.wait()


@contextlib.contextmanager
def threads_of_one_that(does: str) -> Iterator[list[int]]:
    """The threads of a process that leads a session, and did this: its first, one from before it and one from after it."""
    code = (
        "import sys, threading\nfrom mpspool.core import process\n"
        "start = lambda: threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        f"start()\n{does}\nstart()\nprint(flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "\n"
        threads = sorted(map(int, os.listdir(f"/proc/{child.pid}/task")))
        assert len(threads) == 3
        yield threads
        child.stdin.close()


@pytest.mark.skipif(not slices.KNOWN, reason="this kernel has no slices of a thread's own")
def test_who_wakes_first_asks_for_short_slices() -> None:
    """All its threads do; its nice value stays, and who is not asked has the kernel's own."""
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    with threads_of_one_that("process.os.nice(1)\nprocess.wake_first()") as threads:
        assert {slices.slice_ns(thread) for thread in threads} == {slices.SHORT_NS}
        # The thread from before it has a nice value of its own, and keeps that.
        assert sorted(os.getpriority(os.PRIO_PROCESS, thread) for thread in threads) == [
            nice,
            nice + 1,
            nice + 1,
        ]
    assert slices.slice_ns(0) != slices.SHORT_NS


def test_who_ends_giving_way_does_so_in_all_threads() -> None:
    """Its session does, too; a thread that gave way more than that goes on doing so."""
    with threads_of_one_that("process.os.nice(12)\nprocess.end_giving_way(10)") as threads:
        assert [os.getpriority(os.PRIO_PROCESS, thread) for thread in threads] == [12, 10, 12]
        group = Path(f"/proc/{threads[0]}/autogroup")
        assert not group.exists() or group.read_text().split()[-1] == "10"
