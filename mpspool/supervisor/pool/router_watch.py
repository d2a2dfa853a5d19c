"""A router that hangs: it says something every second, and one that says nothing for long is ended, so that supervisord starts another.

One that was only stopped is told to go on first: it has the requests.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from mpspool.core import log, process
from mpspool.core.process import ProcessStat
from mpspool.core.rundir import RunDir
from mpspool.supervisor import programs
from mpspool.supervisor.pool import signals

logger = log.get("pool")

_PERIOD_S = 1.0
# So many periods without a word. They are ours: what stops us, too, makes nobody silent.
_LIMIT = 10
# Of one that has said nothing yet: it may import what users wrote.
_STARTING_LIMIT = 60
_STARVED_FACTOR = 6
_DUMP_S = 1.0
# To say something after it was told to go on.
_GOES_ON_S = 2.0
_MODULE = b"mpspool.router"


class Silence:
    """How long the router has said nothing, in periods."""

    def __init__(self) -> None:
        self._pid = 0
        self._heard_at = 0.0
        self._periods = 0
        self._has_spoken = False

    def hung(self, pid: int, heard_at: float, stat: Callable[[int], ProcessStat | None]) -> str:
        """Once a period: the reason why it counts as hung, or "" while it does not.

        Args:
            pid: of its process; 0 where there is none, or nothing is expected of it.
            heard_at: when it said something last.
            stat: gives a process' state, None for one that is gone; asked only where it is silent.
        """
        if pid != self._pid:
            self._pid, self._periods, self._has_spoken = pid, 0, False
        elif heard_at != self._heard_at:
            self._periods, self._has_spoken = 0, True
        else:
            self._periods += 1
        self._heard_at = heard_at
        limit = _LIMIT if self._has_spoken else _STARTING_LIMIT
        if not pid or self._periods < limit or (found := stat(pid)) is None:
            return ""
        if self._periods < limit * (_STARVED_FACTOR if found.is_starved else 1):
            return ""
        return f"it has said nothing for {self._periods * _PERIOD_S:.0f} s (process state {found.state})"


class RouterWatch:
    """Ends a router that hangs, and has its stacks in its log before.

    Args:
        run: where that is.
        pid: of the router's process; 0 where there is none, or nothing is expected of it.
        heard_at: when it said something last.
    """

    def __init__(self, run: RunDir, pid: Callable[[], int], heard_at: Callable[[], float]) -> None:
        self._run = run
        self._pid = pid
        self._heard_at = heard_at

    async def watch_for_ever(self) -> None:
        silence = Silence()
        while True:
            await asyncio.sleep(_PERIOD_S)
            pid = self._pid()
            if reason := silence.hung(pid, self._heard_at(), process.stat):
                await self._end(pid, reason)

    async def _end(self, pid: int, reason: str) -> None:
        held = signals.hold(pid)
        if held < 0:
            return
        try:
            if _MODULE not in process.strings(pid, "cmdline"):
                return
            logger.warning("the router hangs", reason=reason)
            heard_at = self._heard_at()
            await signals.dump(held, self._run.log_file(programs.ROUTER), asyncio.Event(), _DUMP_S)
            await asyncio.sleep(_GOES_ON_S)
            if self._heard_at() != heard_at:
                logger.warning("the router goes on")
                return
            logger.warning("the router is ended")
            signals.send(held, signal.SIGKILL)
        finally:
            os.close(held)
