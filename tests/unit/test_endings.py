"""Which ends are under way, and since when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from mpspool.core.ids import WorkerId
from mpspool.core.rundir import RunDir
from mpspool.supervisor.pool import ladder
from mpspool.supervisor.pool.endings import Endings
from mpspool.supervisor.pool.ladder import Ladder

FIRST, SECOND = (WorkerId("m", 1, "cpu0", slot) for slot in range(2))


async def _ends_of_two(run: RunDir) -> None:
    over = asyncio.Event()

    async def end(*_: object) -> None:
        await over.wait()

    endings = Endings(run, cast("Any", SimpleNamespace(end=end)), lambda: None)
    endings.leave([FIRST], "goes", 60.0)
    between = time.monotonic()
    endings.leave([SECOND], "goes", 60.0)
    assert endings.begun_after(0.0) == [FIRST, SECOND]
    assert endings.begun_after(between) == [SECOND]
    over.set()
    while endings:
        await asyncio.sleep(0)
    assert endings.begun_after(0.0) == []


def test_a_worker_that_takes_long_to_leave_is_not_waited_for(tmp_path: Path) -> None:
    """Whoever asks for the ends that have begun lately does not hear of one that hangs."""
    (tmp_path / "errors").mkdir()
    asyncio.run(_ends_of_two(RunDir(tmp_path)))


async def _end_without_words(run: RunDir) -> list[WorkerId]:
    ended: list[WorkerId] = []

    async def end(workers: list[WorkerId], _steps: object) -> None:
        ended.extend(workers)

    endings = Endings(run, cast("Any", SimpleNamespace(end=end)), lambda: None)
    endings.hung(FIRST, "no heartbeat")
    while endings:
        await asyncio.sleep(0)
    return ended


def test_a_worker_that_hangs_is_ended_whatever_becomes_of_its_last_words(tmp_path: Path) -> None:
    """On a full file system they cannot be written."""
    run = RunDir(tmp_path)
    run.error_file(FIRST.program).mkdir(parents=True)
    assert asyncio.run(_end_without_words(run)) == [FIRST]


async def _fault_while_one_leaves(run: RunDir) -> None:
    gone, ended = asyncio.Event(), []

    async def end(workers: Iterable[WorkerId], steps: Ladder) -> None:
        ended.append((set(workers), steps))
        await gone.wait()

    endings = Endings(run, cast("Any", SimpleNamespace(end=end)), lambda: None)
    endings.leave([FIRST], "goes", 600.0)
    await asyncio.sleep(0)
    for _ in range(2):
        endings.lost([FIRST, SECOND], "its GPU has failed")
        await asyncio.sleep(0)
    assert ended[0] == ({FIRST}, ladder.retiring(600.0))
    assert sorted(ended[1:], key=str) == sorted([({FIRST}, ladder.LOST), ({SECOND}, ladder.LOST)], key=str)
    gone.set()
    while endings:
        await asyncio.sleep(0)
    before = len(ended)
    endings.lost([FIRST], "its GPU has failed")  # the one that came in its place
    while endings:
        await asyncio.sleep(0)
    assert ended[before:] == [({FIRST}, ladder.LOST)]


def test_a_worker_that_leaves_does_not_keep_its_gpu_from_coming_back(tmp_path: Path) -> None:
    """One that hangs has long to leave, and the server takes nobody until all it hit have ended."""
    run = RunDir(tmp_path)
    run.progress.mkdir()
    asyncio.run(_fault_while_one_leaves(run))
