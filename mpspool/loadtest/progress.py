"""How far a load test is: a bar on a terminal, else a line for each repeat; both on standard error."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from mpspool.loadtest import messages
from mpspool.loadtest.figures import Run, digits
from mpspool.loadtest.options import Options
from mpspool.loadtest.report import count, ms


class Progress:
    """What is told while it runs.

    Args:
        options: of the test.
        bar: rich's, and its task; None where nobody looks.
        say: prints a line.
    """

    def __init__(self, options: Options, bar: Any, say: Any) -> None:
        self._options = options
        self._bar = bar
        self._say = say
        self._name = ""
        self._done_s = self._phase_s = self._began_s = 0.0
        self._repeat = 0
        self._task = None
        if bar is not None:
            one_s = options.warmup_s + options.repeat * options.seconds
            self._task = bar.add_task("", total=one_s * len(options.levels), counts="")

    def level(self, wanted: float) -> None:
        """A level begins, with its warm-up."""
        self._name = f"{digits(wanted)} {'requests/s' if self._options.is_open else 'in flight'}"
        self._begin("warming up", self._options.warmup_s)

    def repeat(self, number: int) -> None:
        """A repeat begins."""
        self._repeat = number
        self._begin(f"{number} of {self._options.repeat}", self._options.seconds)

    def watch(self, so_far: messages.Progress) -> None:
        """How far the phase is that runs."""
        if self._bar is not None:
            failed = f", [red]{count(so_far.failed)} failed[/]" if so_far.failed else ""
            passed_s = min(time.monotonic() - self._began_s, self._phase_s)
            counts = f"{count(so_far.right)} right{failed}"
            self._bar.update(self._task, completed=self._done_s + passed_s, counts=counts)

    def ran(self, run: Run) -> None:
        """A repeat is over."""
        if self._bar is None:
            failed = sum(run.failed.values())
            self._say(
                f"{self._name}, {self._repeat} of {self._options.repeat}: {count(run.figures['rate'])} requests/s,"
                f" p50 {ms(run.figures['p50'])} ms, p99 {ms(run.figures['p99'])} ms"
                + (f", {count(failed)} failed" if failed else "")
            )

    def _begin(self, what: str, seconds: float) -> None:
        self._done_s += self._phase_s
        self._phase_s, self._began_s = seconds, time.monotonic()
        if self._bar is not None:
            self._bar.update(
                self._task, completed=self._done_s, description=f"{self._name}, {what}", counts=""
            )


@contextlib.contextmanager
def progress(options: Options) -> Iterator[Progress]:
    """While the test runs."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield Progress(options, None, console.print)
        return
    from rich import progress as rich_progress

    with rich_progress.Progress(
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.TimeRemainingColumn(),
        rich_progress.TextColumn("{task.fields[counts]}"),
        console=console,
        transient=True,
    ) as bar:
        yield Progress(options, bar, console.print)
