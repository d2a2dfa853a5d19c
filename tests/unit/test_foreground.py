"""The process around supervisord, as far as it can be seen without one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from mpspool.core.errors import StartError
from mpspool.core.rundir import RunDir
from mpspool.core.settings import PoolSettings, RouterSettings
from mpspool.mps.leftovers import LeftoverError
from mpspool.supervisor import foreground, leftovers, lock
from mpspool.supervisor.foreground import _Foreground
from mpspool.supervisor.orders import Orders

# `mpspool reload`: the first says something more once the second is there, and waits; the second is done when it is told to be.
RELOAD = """#!/bin/sh
cd {folder}
if mkdir first 2>/dev/null; then
    echo slots come
    until [ -e second ]; do sleep 0.01; done
    echo and go
    exec sleep 60
fi
touch second
until [ -e taken ]; do sleep 0.01; done
echo a model is added
"""

# The first fails, and the second waits.
FAILS_ONCE = """#!/bin/sh
cd {folder}
mkdir first 2>/dev/null && exit 1
echo a model is added
exec sleep 60
"""


def settings_of(run: Path) -> PoolSettings:
    fronts = {"run_dir": str(run), "host": "127.0.0.1", "grpc_port": 0, "rest_port": 0}
    return PoolSettings(
        run_dir=str(run), mps="off", models=[], mps_daemons=[], router=RouterSettings(**fronts)
    )


def test_what_an_earlier_pool_left_and_nothing_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said as any other reason, and the folder is let go of."""

    def end(_run: RunDir) -> list[int]:
        raise LeftoverError("MPS processes [7] of /pipe do not end; the GPU may need a reset")

    monkeypatch.setattr(leftovers, "end", end)
    with pytest.raises(StartError, match="the GPU may need a reset"):
        foreground.run(settings_of(tmp_path), cast("Any", None), orders=cast("Any", None), say=print)
    assert not lock.holder(RunDir(tmp_path))


def in_place_of_python(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """What is run as `mpspool reload`: this script, which lies in the folder."""
    program = folder / "python"
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


async def is_said(said: list[str], line: str) -> None:
    """Waits for it. Raises TimeoutError."""
    async with asyncio.timeout(60):
        while line not in said:
            await asyncio.sleep(0.01)


def test_a_reload_that_cannot_be_started_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told, as where Python has been taken away from under the pool; the next order is obeyed again."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    async def story() -> list[str]:
        said: list[str] = []
        done = asyncio.Event()

        def say(line: str) -> None:
            said.append(line)
            if "failed" in line:
                done.set()

        process = _Foreground(RunDir(tmp_path), settings_of(tmp_path), Orders(), say)
        obeying = asyncio.create_task(process._reload_for_ever())
        for _ in range(2):
            done.clear()
            process._reload.set()
            await asyncio.wait(
                [obeying, waiting := asyncio.create_task(done.wait())], return_when=asyncio.FIRST_COMPLETED
            )
            waiting.cancel()
        obeying.cancel()
        return said

    failed = "reload: failed: /nowhere/python cannot be started: No such file or directory"
    assert asyncio.run(story()) == 2 * ["reload: asked for by SIGHUP", failed]


def test_a_reload_gives_way_to_the_next_when_that_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before: it says on what changes, and the other is not ended for it."""
    in_place_of_python(tmp_path, monkeypatch, RELOAD.format(folder=tmp_path))

    async def story() -> list[str]:
        said: list[str] = []
        process = _Foreground(RunDir(tmp_path), settings_of(tmp_path), Orders(), said.append)
        obeying = asyncio.create_task(process._reload_for_ever())
        process._reload.set()
        await is_said(said, "reload: slots come")
        process._reload.set()
        await is_said(said, "reload: and go")
        (tmp_path / "taken").touch()
        await is_said(said, "reload: done")
        await is_said(said, "reload: another has been taken up in its place")
        obeying.cancel()
        return said

    said = asyncio.run(story())
    asked = ["reload: asked for by SIGHUP"]
    assert said[:5] == [
        *asked, "reload: slots come", *asked, "reload: and go", "reload: a model is added"
    ]  # fmt: skip


def test_a_reload_that_is_waited_for_has_not_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the one before it has: a model_config_file would be tried again, and again, in its place."""
    in_place_of_python(tmp_path, monkeypatch, FAILS_ONCE.format(folder=tmp_path))

    async def story() -> list[bool]:
        said: list[str] = []
        process = _Foreground(RunDir(tmp_path), settings_of(tmp_path), Orders(), said.append)
        obeying = asyncio.create_task(process._reload_for_ever())
        failed = []
        for line in ("reload: failed", "reload: a model is added"):
            process._reload.set()
            await is_said(said, line)
            failed.append(process._reload_failed)
        reloader = process._reloaders[0]
        reloader.kill()
        await asyncio.to_thread(reloader.wait)
        obeying.cancel()
        return failed

    assert asyncio.run(story()) == [True, False]


def test_a_reload_that_cannot_be_followed_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said, and the next is followed."""
    in_place_of_python(tmp_path, monkeypatch, "#!/bin/sh\necho nothing has changed\n")
    to_thread, left = asyncio.to_thread, [RuntimeError("can't start new thread")]

    async def no_thread_at_first(*words: Any) -> Any:
        if left:
            raise left.pop()
        return await to_thread(*words)

    monkeypatch.setattr(asyncio, "to_thread", no_thread_at_first)

    async def story() -> None:
        said: list[str] = []
        process = _Foreground(RunDir(tmp_path), settings_of(tmp_path), Orders(), said.append)
        obeying = asyncio.create_task(process._reload_for_ever())
        unknown = "reload: nobody knows what came of it: RuntimeError: can't start new thread"
        for line in (unknown, "reload: done"):
            process._reload.set()
            await is_said(said, line)
        obeying.cancel()

    asyncio.run(story())
