"""The terminal: draws frames until q or Ctrl-C, and leaves it as it was."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn, Self

from rich.console import Console, Group

from mpspool.core.rundir import RunDir
from mpspool.supervisor import lock, report
from mpspool.supervisor.commands import ask
from mpspool.supervisor.commands.errors import NoPoolError
from mpspool.supervisor.top.figures import Figures, Sample, figures, steady
from mpspool.supervisor.top.frame import Frame, frame
from mpspool.supervisor.top.sample import Sampler

# Quantiles of fewer requests would jump.
_QUANTILES_S = 10.0


def show(run: RunDir, interval_s: float) -> None:
    """Shows the pool in `run`, or that there is none, until it is told to quit.

    Where nobody looks, it prints one frame over one interval.

    Raises:
        NoPoolError: there is nobody to look, and no pool.
    """
    console = report.a_console()
    sampler = Sampler(run)
    if not console.is_terminal:
        _print_once(run, console, sampler, interval_s)
        return
    # Without a finally a signal would leave the terminal as it is drawn.
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _leave)
    with contextlib.suppress(KeyboardInterrupt), _Keyboard() as keyboard:
        _draw_for_ever(console, sampler, interval_s, keyboard)


def _leave(signum: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)


def _print_once(run: RunDir, console: Console, sampler: Sampler, interval_s: float) -> None:
    samples = [sampler.take()]
    if samples[0].status is None:
        raise NoPoolError(samples[0].problem if lock.holder(run) else ask.no_pool(run))
    time.sleep(interval_s)
    samples.append(sampler.take())
    for line in frame(figures(samples), console.width, clock=time.strftime("%H:%M:%S")).lines:
        console.print(line)


def _draw_for_ever(console: Console, sampler: Sampler, interval_s: float, keyboard: _Keyboard) -> None:
    samples: list[Sample] = []
    first = 0
    with console.screen(hide_cursor=True) as screen:
        while True:
            due = time.monotonic() + interval_s
            samples = steady([*samples, sampler.take()], max(_QUANTILES_S, interval_s))
            found, clock = figures(samples), time.strftime("%H:%M:%S")
            while True:
                drawn = _draw(console, found, first, clock)
                screen.update(Group(*drawn.lines))
                keys = keyboard.wait(due - time.monotonic())
                if keys is None:
                    return
                first = moved(keys, drawn, len(found.workers))
                if time.monotonic() >= due:
                    break


def _draw(console: Console, found: Figures, first: int, clock: str) -> Frame:
    width, height = console.size
    return frame(found, width, height, first=first, clock=clock)


def moved(keys: bytes, drawn: Frame, workers: int) -> int:
    """Which worker to begin with after these keys. Pure."""
    steps = {
        b"\x1b[A": -1,
        b"k": -1,
        b"\x1b[B": 1,
        b"j": 1,
        b"\x1b[5~": -drawn.shown,
        b"\x1b[6~": drawn.shown,
    }
    jumps = {b"\x1b[H": 0, b"g": 0, b"\x1b[F": workers, b"G": workers}
    first = jumps.get(keys, drawn.first + steps.get(keys, 0))
    return max(0, min(first, workers - drawn.shown))


class _Keyboard:
    """The keys as they are struck, where standard input is a terminal; and the terminal's new size, at once."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._typed = sys.stdin.fileno() if sys.stdin.isatty() else -1
        self._woken = -1

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._woken = stack.enter_context(_woken_by(signal.SIGWINCH))
            if self._typed >= 0:
                stack.enter_context(_unbuffered(self._typed))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wait(self, timeout_s: float) -> bytes | None:
        """What was typed; nothing where the time is over or the size has changed; None for the end."""
        waiting = [self._woken, *([self._typed] if self._typed >= 0 else [])]
        ready, _, _ = select.select(waiting, [], [], max(0.0, timeout_s))
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._typed not in ready:
            return b""
        keys = os.read(self._typed, 64)
        return None if not keys or keys.lower() == b"q" else keys


@contextlib.contextmanager
def _unbuffered(terminal: int) -> Iterator[None]:
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _woken_by(signum: int) -> Iterator[int]:
    """A descriptor that can be read once the signal has come."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    handler = signal.signal(signum, lambda *_: None)
    descriptor = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(descriptor)
        signal.signal(signum, handler)
        os.close(reading)
        os.close(writing)
