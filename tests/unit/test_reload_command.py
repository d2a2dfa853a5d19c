"""What `mpspool reload` makes of a pool's answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mpspool.core.control import ControlServer, Message
from mpspool.core.rundir import RunDir
from mpspool.supervisor import reload_command
from mpspool.supervisor.reload_command import ReloadError
from tests.conftest import short_dir


def test_one_that_another_takes_the_place_of_says_so() -> None:
    """At once, and not that it is late: what it waits for will never be."""

    async def reloaded(_request: Message) -> Message:
        return {"settings": "later", "waits": ["m@1 is LOADING"], "failed": [], "served": []}

    async def story(run: RunDir) -> None:
        control = ControlServer(run.pool_control, {"reloaded": reloaded})
        await control.start()
        answer = {"settings": "mine", "failed": [], "changed": []}
        try:
            with pytest.raises(ReloadError, match="another configuration has been taken up meanwhile"):
                await asyncio.to_thread(reload_command._wait, run, answer, 60.0, print)
        finally:
            await control.close()

    with short_dir() as root:
        run = RunDir(Path(root))
        for folder in run.folders():
            folder.mkdir(exist_ok=True)
        asyncio.run(story(run))


def test_what_failed_before_is_a_warning() -> None:
    """It was not touched; what fails by this one is an error."""

    async def reloaded(_request: Message) -> Message:
        return {"settings": "mine", "waits": [], "failed": failed, "served": []}

    async def story(run: RunDir) -> None:
        control = ControlServer(run.pool_control, {"reloaded": reloaded})
        await control.start()
        answer = {"settings": "mine", "failed": [("m", "m@2: corrupt")], "changed": ["n"]}
        try:
            await asyncio.to_thread(reload_command._wait, run, answer, 60.0, told.append)
            failed.append(("n", "n@1: corrupt"))
            with pytest.raises(ReloadError, match=r"^n@1: corrupt$"):
                await asyncio.to_thread(reload_command._wait, run, answer, 60.0, told.append)
        finally:
            await control.close()

    told: list[str] = []
    failed = [("m", "m@2: corrupt")]
    with short_dir() as root:
        run = RunDir(Path(root))
        for folder in run.folders():
            folder.mkdir(exist_ok=True)
        asyncio.run(story(run))
    assert told == ["warning: as before: m@2: corrupt"]
