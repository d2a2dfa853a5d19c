"""`mpspool start`: the process around supervisord. It takes the signals, and leaves nothing behind.

SIGHUP has it run `mpspool reload`, whose lines it says.

supervisord ends its groups one after another and restarts everything at SIGHUP, so it lives in a
session of its own and never sees a signal of the user's: the pool ends the workers, all at once, and
supervisord is shut down after that. It dies with us, and its children with it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import math
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import IO, Any

import msgspec

from mpspool.core import process, settings
from mpspool.core.control import ControlError, Message, NotTakenError, acall, astream
from mpspool.core.errors import Problem, StartError
from mpspool.core.rundir import RunDir
from mpspool.core.settings import PoolSettings
from mpspool.core.states import PoolState
from mpspool.mps.leftovers import LeftoverError
from mpspool.supervisor import grace, leftovers, lock, programs, report, settings_files
from mpspool.supervisor.example import example_input
from mpspool.supervisor.model_file_watch import ModelFileWatch
from mpspool.supervisor.orders import Orders
from mpspool.supervisor.origin import Origin
from mpspool.supervisor.origin import save as save_origin
from mpspool.supervisor.remote.place import COPYING
from mpspool.supervisor.supervisord import Supervisord, SupervisordError

_START_S = 15.0
_POLL_S = 0.05
# A pool process that was killed is back by then, on a busy machine, too.
_POOL_BACK_S = 10.0
_POOL_ANSWER_S = 1.0
# What supervisord's end and the last processes may take (at least, at most), whatever is left of the
# grace time; an MPS daemon is given the time to `quit`.
_SHUTDOWN_S = (2.0, 8.0)
_MPS_SHUTDOWN_S = (8.0, 20.0)
_LEFT_S = (0.3, 0.3)
_MPS_LEFT_S = (3.0, 12.0)
# A process in the state D does not even die.
_KILLED_S = 5.0
_LOG_LINES = 8

Say = Callable[[str], None]


def run(
    config: PoolSettings,
    origin: Origin,
    *,
    orders: Orders,
    say: Say,
    started: Callable[[], None] = lambda: None,
) -> int:
    """Starts the pool and stays until it has ended.

    Args:
        config: the resolved plan.
        origin: where that was read from.
        orders: to end; after one that has come already nothing is started.
        say: takes one line at a time for whoever watches.
        started: called once when the lock is held and supervisord answers.

    Returns:
        0 after an end that was asked for, 1 when supervisord ended by itself.

    Raises:
        StartError: nothing was started.
    """
    folder = RunDir(Path(config.run_dir))
    if problems := check(folder):
        raise StartError(problems)
    with lock.held(folder):
        _prepare(folder, config, origin, say)
        process.become_subreaper()
        # Every process below us looks at it: none outlives us, even one that is just being started.
        os.environ[process.FOREGROUND_VARIABLE] = str(os.getpid())
        status = asyncio.run(_Foreground(folder, config, orders, say).serve(started))
        if status == 0:
            lock.leave(folder)
        return status


def _prepare(folder: RunDir, config: PoolSettings, origin: Origin, say: Say) -> None:
    """Leaves nothing of an earlier pool in the run folder but its logs, and writes what this one's processes read.

    Raises:
        StartError: that cannot be done.
    """
    try:
        if pids := leftovers.end(folder):
            say(f"ended what an earlier pool left in {folder.root}: {', '.join(map(str, pids))}")
        leftovers.remove_files(folder)
        leftovers.put_logs_aside(folder)
        settings_files.write(folder, config)
        save_origin(folder, origin)
    except LeftoverError as error:
        raise StartError([Problem("", str(error))]) from error
    except OSError as error:
        raise lock.unusable(folder, error) from error


def check(folder: RunDir) -> list[Problem]:
    """What supervisord's configuration could not carry."""
    texts = [programs.refusal(path) for path in (folder.root, sys.executable)]
    return [Problem("run_dir", text) for text in texts if text]


class _Foreground:
    def __init__(self, folder: RunDir, config: PoolSettings, orders: Orders, say: Say) -> None:
        self._folder = folder
        self._given = config
        self._orders = orders
        self._say = say
        self._supervisord = Supervisord(folder.supervisord_socket)
        self._child: subprocess.Popen[bytes] | None = None
        self._reloaders: list[subprocess.Popen[str]] = []
        self._last_reloader: subprocess.Popen[str] | None = None
        self._reload = asyncio.Event()
        self._reload_why = ""
        self._asked = asyncio.Event()
        self._hurry = asyncio.Event()
        self._died = asyncio.Event()
        self._end = math.inf
        self._trouble = ""
        self._reload_failed = False

    @property
    def _config(self) -> PoolSettings:
        """As it is now: a reload changes it."""
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return settings.load(self._folder.settings_file(programs.POOL), PoolSettings)
        return self._given

    async def serve(self, started: Callable[[], None]) -> int:
        loop = asyncio.get_running_loop()
        self._orders.obey(functools.partial(loop.call_soon_threadsafe, self._on_order))
        self._orders.note(signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        tasks: list[asyncio.Task[None]] = []
        try:
            if self._orders.given:
                return 0
            await self._start()
            started()
            self._orders.reload_by(functools.partial(loop.call_soon_threadsafe, self._reload.set))
            works = (self._follow(), self._reload_for_ever(), self._watch_models())
            tasks = [asyncio.create_task(work) for work in works]
            await _first(self._asked.wait(), self._died.wait())
            if not self._died.is_set():
                await self._stop()
                return 0
            self._say(
                f"supervisord ended unexpectedly, so the pool ends; see {self._folder.log_file('supervisord')}"
            )
            return 1
        finally:
            for task in tasks:
                task.cancel()
            for reloader in self._reloaders:
                reloader.kill()
            await self._clear()
            self._orders.ignore()
            self._say("stopped")

    def _on_order(self) -> None:
        if self._asked.is_set():
            self._hurry.set()
        self._asked.set()

    # -- supervisord ------------------------------------------------------------------------------

    async def _start(self) -> None:
        """Raises StartError where supervisord does not come up."""
        output = self._folder.logs / "supervisord.out"
        try:
            with output.open("wb") as file:
                self._child = subprocess.Popen(  # noqa: ASYNC220  nothing else runs yet
                    programs.supervisord_command(self._folder),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=functools.partial(process.die_with_parent, os.getpid()),  # noqa: PLW1509  no thread yet
                )
        except OSError as error:
            raise StartError([Problem("", f"supervisord cannot be started: {error}")]) from error
        end = time.monotonic() + _START_S
        while time.monotonic() < end and not self._died.is_set():
            with contextlib.suppress(SupervisordError):
                await self._supervisord.processes()
                return
            await asyncio.sleep(_POLL_S)
        lines = _tail(output) + _tail(self._folder.log_file("supervisord"))
        raise StartError([Problem("", "\n  ".join(["supervisord does not start:", *lines]))])

    def _reap(self) -> None:
        """Takes every ended child: supervisord's status stays with its Popen, orphans are forgotten."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            if self._child is not None and found.si_pid == self._child.pid:
                self._child.poll()
                self._died.set()
            elif mine := [one for one in self._reloaders if one.pid == found.si_pid]:
                mine[0].poll()
            else:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(found.si_pid, os.WNOHANG)

    # -- while it runs ----------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Says what happens. While the pool is not there, supervisord is made to look after it."""
        last: Message | None = None
        tried = False
        while True:
            with contextlib.suppress(ControlError, ValueError):
                async with contextlib.aclosing(astream(self._folder.pool_control, "watch")) as statuses:
                    async for status in statuses:
                        self._show(last, status)
                        if not tried and status["pool"]["state"] == PoolState.RUNNING.value:
                            await self._say_how_to_try()
                            tried = True
                        last = status
            await self._supervisord.turn()
            await asyncio.sleep(_POLL_S)

    def _show(self, before: Message | None, after: Message) -> None:
        try:
            for line in report.changes(before, after):
                self._say(line)
        except Exception as error:  # noqa: BLE001  what cannot be shown must not end the showing
            if self._trouble != (trouble := f"{type(error).__name__}: {error}"):
                self._trouble = trouble
                self._say(f"a status could not be shown: {trouble}")

    async def _say_how_to_try(self) -> None:
        if not self._config.models:
            return
        model = self._config.models[0].name
        answer = await acall(self._folder.router_control, "signatures", model=model)
        document = example_input(base64.b64decode(answer["signatures"]))
        if command := report.how_to_try(self._config, document):
            self._say(f"try: {command}")

    async def _reload_for_ever(self) -> None:
        """Once for all orders that come before the pool has been asked; how long that takes to hold is in nobody's way."""
        async with asyncio.TaskGroup() as following:
            while True:
                await self._reload.wait()
                self._reload.clear()
                self._say(f"reload: {self._reload_why or 'asked for by SIGHUP'}")
                self._reload_why = ""
                if (reloader := self._start_reload()) is not None:
                    asked = asyncio.Event()
                    following.create_task(self._follow_reload(reloader, asked))
                    await asked.wait()

    def _start_reload(self) -> subprocess.Popen[str] | None:
        """None where it cannot be started, which is said."""
        command = [sys.executable, "-P", "-m", "mpspool", "reload", "--run-dir", str(self._folder.root)]
        pipe = subprocess.PIPE
        try:
            reloader = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace"
            )
        except OSError as error:
            # No memory or processes, say, or another environment in the place of ours.
            self._reload_failed = True
            self._say(f"reload: failed: {sys.executable} cannot be started: {error.strerror}")
            return None
        self._reloaders.append(reloader)
        self._last_reloader = reloader
        self._reload_failed = False  # nobody knows yet, and it is not to be tried again meanwhile
        return reloader

    async def _follow_reload(self, reloader: subprocess.Popen[str], asked: asyncio.Event) -> None:
        """Says what it says, and what comes of it.

        Args:
            reloader: `mpspool reload`.
            asked: set once the pool has taken up what that has read, or it has ended.
        """

        def on_line(line: str) -> None:
            if not asked.is_set() and not line.startswith(COPYING):  # what changes: the pool has it
                for other in self._reloaders:
                    if other is not reloader:
                        other.kill()
                asked.set()

        try:
            await asyncio.gather(
                self._say_lines(reloader.stdout, on_line), self._say_lines(reloader.stderr, lambda _: None)
            )
            await asyncio.to_thread(reloader.wait)
            if reloader is self._last_reloader:
                self._reload_failed = reloader.returncode != 0
            elif reloader.returncode < 0:
                self._say("reload: another has been taken up in its place")
                return
            done = {0: "done", 2: "refused"}.get(reloader.returncode, "failed")
            self._say(f"reload: {done}")
        except Exception as error:  # noqa: BLE001  those after it are followed all the same
            with reloader:
                reloader.kill()
            self._reload_failed = True
            self._say(f"reload: nobody knows what came of it: {type(error).__name__}: {error}")
        finally:
            self._reloaders.remove(reloader)
            asked.set()

    async def _say_lines(self, stream: IO[str] | None, on_line: Callable[[str], None]) -> None:
        assert stream is not None
        with stream:
            while line := await asyncio.to_thread(stream.readline):
                on_line(line)
                self._say(f"reload: {line.rstrip()}")

    async def _watch_models(self) -> None:
        """Has a reload done when a model_config_file that is to be looked at has changed.

        One that was refused may be right later, by what has come to be there, and a reload that was killed or found no pool
        process has read nothing that counts: it is tried again, but not all the time.
        """
        watch = ModelFileWatch(self._folder)
        while True:
            await asyncio.sleep(watch.poll_s)
            if why := await asyncio.to_thread(watch.look, time.monotonic(), failed=self._reload_failed):
                self._reload_why = why
                self._reload.set()

    # -- the end ----------------------------------------------------------------------------------

    async def _stop(self) -> None:
        grace_s = self._config.grace_s
        self._end = time.monotonic() + grace_s
        pool_s = grace.pool_s(grace_s, mps=bool(self._config.own_daemons()))
        self._say(f"stopping: what is in flight has up to {grace.drain_s(pool_s):.0f} s (once more to hurry)")
        await self._until_hurried(self._end_workers(pool_s))
        await self._until_hurried(self._shut_down())

    async def _until_hurried(self, work: Coroutine[Any, Any, None]) -> None:
        await _first(work, self._hurry.wait(), self._died.wait())

    async def _end_workers(self, grace_s: float) -> None:
        """Has the pool do it; one that was killed meanwhile is waited for, one that stays away is not."""
        end = time.monotonic() + grace_s
        gone_since = time.monotonic()
        while time.monotonic() < end and time.monotonic() - gone_since < _POOL_BACK_S:
            try:
                if await self._ask_pool_to_end(end - time.monotonic()):
                    return
                gone_since = time.monotonic()
            except NotTakenError:
                pass
            except (ControlError, ValueError, TimeoutError):
                gone_since = time.monotonic()
            await self._supervisord.turn()
            await asyncio.sleep(_POLL_S)
        self._say("the pool process does not answer: going on without it")

    async def _ask_pool_to_end(self, within_s: float) -> bool:
        """Whether it has ended the workers; not where it ends meanwhile.

        Raises:
            NotTakenError: it is not there.
            ControlError, ValueError, TimeoutError: it was there, and does not answer.
        """
        async with (
            asyncio.timeout(within_s + _POOL_ANSWER_S),
            contextlib.aclosing(astream(self._folder.pool_control, "stop", grace_s=within_s)) as answers,
        ):
            async for answer in answers:
                if answer["unanswered"]:
                    self._say(f"the time is over, requests answered UNAVAILABLE: {answer['unanswered']}")
                if answer["left"]:
                    self._say(f"{answer['left']} workers did not end")
                return True
        return False

    async def _shut_down(self) -> None:
        within_s = self._left_s(*(_MPS_SHUTDOWN_S if self._config.own_daemons() else _SHUTDOWN_S))
        with contextlib.suppress(SupervisordError, TimeoutError):
            async with asyncio.timeout(within_s):
                await self._supervisord.shutdown()
                while not self._died.is_set():
                    await self._supervisord.turn()
                    await asyncio.sleep(_POLL_S)

    def _left_s(self, least: float, most: float) -> float:
        """What is left of the grace time, within these bounds."""
        return max(least, min(self._end - time.monotonic(), most))

    async def _clear(self) -> None:
        """Kills and reaps everything below us, supervisord first: without it nothing is started again."""
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
        patience_s = self._left_s(*(_MPS_LEFT_S if self._config.own_daemons() else _LEFT_S))
        left = await self._gone(0.0 if self._hurry.is_set() else patience_s, killing=False)
        if left and (left := await self._gone(_KILLED_S, killing=True)):
            self._say(f"still there {_KILLED_S:g} s after SIGKILL: {', '.join(map(str, left))}")
        leftovers.remove_sockets(self._folder)

    async def _gone(self, limit_s: float, *, killing: bool) -> list[int]:
        """Waits until nothing is left below us, and returns what is."""
        end = time.monotonic() + limit_s
        while True:
            self._reap()
            left = process.descendants(os.getpid())
            if not left or time.monotonic() > end:
                return left
            for pid in left if killing else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(_POLL_S)


async def _first(*works: Coroutine[Any, Any, Any]) -> None:
    """Until one of them is done; the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _tail(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
    except OSError:
        return []


def detach(config: PoolSettings, origin: Origin, *, orders: Orders, announce: Say) -> int:
    """run() in a process of its own session, which writes to logs/mpspool.log.

    Args:
        config: the resolved plan.
        origin: where that was read from.
        orders: to end; passed on to that process until it has started.
        announce: takes what there is to say then.

    Returns:
        0 once the pool's lock is held and supervisord runs, or it was told to end before that.

    Raises:
        StartError: nothing was started.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _become_daemon(config, origin, orders, write)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read, "r", encoding="utf-8") as file:
        end = functools.partial(_terminate, int(file.readline() or 0))
        orders.obey(end)
        try:
            answer = file.read()
        except KeyboardInterrupt:
            end()
            raise
    first, _, rest = answer.partition("\n")
    if orders.given and first != "failed":
        return 0
    if first != "started":
        raise StartError([Problem("", rest.strip() or "the detached process ended before it had started")])
    announce(rest.strip())
    return 0


def _terminate(pid: int) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _become_daemon(config: PoolSettings, origin: Origin, orders: Orders, report_to: int) -> None:
    """The first child: leaves the caller's session, and ends once the second one is on its way."""
    os.setsid()
    if os.fork():
        os._exit(0)
    status = 1
    try:
        status = _run_detached(config, origin, orders, report_to)
    finally:
        os._exit(status)


def _run_detached(config: PoolSettings, origin: Origin, orders: Orders, report_to: int) -> int:
    folder = RunDir(Path(config.run_dir))
    waiting = os.fdopen(report_to, "w", encoding="utf-8")
    print(os.getpid(), file=waiting, flush=True)

    def answer(text: str) -> None:
        with contextlib.suppress(OSError), waiting:
            waiting.write(text)

    def started() -> None:
        _redirect(folder.log_file("mpspool"))
        answer(f"started\nprocess {os.getpid()}, log {folder.log_file('mpspool')}")

    try:
        return run(config, origin, orders=orders, say=say_with_time, started=started)
    except StartError as error:
        answer(f"failed\n{error}")
        return 2
    except BaseException as error:
        if waiting.closed:
            traceback.print_exc()
        else:
            answer(f"failed\n{type(error).__name__}: {error}")
        raise


def _redirect(log_file: Path) -> None:
    """Standard input from nowhere, output to the log."""
    descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def say_with_time(line: str) -> None:
    """A line to standard output, with the time of day to a terminal, else in UTC as all logs have it.

    A terminal that is gone is no reason to end.
    """
    with contextlib.suppress(OSError, ValueError):
        now = (
            time.strftime("%H:%M:%S")
            if sys.stdout.isatty()
            else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        )
        print(f"{now} {line}", flush=True)
