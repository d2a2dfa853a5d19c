"""What `mpspool reload` makes of a pool's answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mpspool.core.control import ControlServer, Message
from mpspool.core.rundir import RunDir
from mpspool.supervisor import reload_command
from mpspool.supervisor.origin import Origin
from mpspool.supervisor.reload_command import ReloadError
from tests.conftest import short_dir


def warnings_of(answer: Message, **found: Any) -> list[str]:
    """What it warns of where a pool that gave this answer to a reload says `found` from then on. Raises ReloadError."""
    told: list[str] = []

    async def reloaded(_request: Message) -> Message:
        return {"waits": [], "served": [], **found}

    async def status(_request: Message) -> Message:
        return {"models": []}

    async def story(run: RunDir) -> None:
        control = ControlServer(run.pool_control, {"reloaded": reloaded, "status": status})
        await control.start()
        try:
            await asyncio.to_thread(reload_command._wait, run, answer, 60.0, told.append)
        finally:
            await control.close()

    with short_dir() as root:
        run = RunDir(Path(root))
        for folder in run.folders():
            folder.mkdir(exist_ok=True)
        asyncio.run(story(run))
    return told


def test_one_that_another_takes_the_place_of_says_so() -> None:
    """At once, and not that it is late: what it waits for will never be."""
    answer = {"settings": "mine", "failed": [], "changed": []}
    with pytest.raises(ReloadError, match="another configuration has been taken up meanwhile"):
        warnings_of(answer, settings="later", waits=["m@1 is LOADING"], failed=[])


def test_what_failed_before_is_a_warning() -> None:
    """It was not touched; what fails by this one is an error."""
    before, now = ("m", "m@2: corrupt"), ("n", "n@1: corrupt")
    answer = {"settings": "mine", "failed": [before], "changed": ["n"]}
    assert warnings_of(answer, settings="mine", failed=[before]) == ["warning: as before: m@2: corrupt"]
    with pytest.raises(ReloadError, match=r"^n@1: corrupt$"):
        warnings_of(answer, settings="mine", failed=[before, now])


def test_what_stands_in_the_file_in_vain() -> None:
    """A setting that a flag or a variable of the start gives, too; not those that only one of them has."""
    with short_dir() as root:
        file = Path(root) / "pool.yaml"
        file.write_text(
            "cpu_slots: 2\nbatching: {max_batch_size: 8, enabled: true}\nmodels: {m: {base_path: /m}}\n"
        )
        told = Origin(
            folder=root,
            file=str(file),
            flags={"cpu_slots": 4, "grpc_port": 1, "model": ["n=/n"]},
            environ={"MPSPOOL_BATCHING": "on", "MPSPOOL_LOG_LEVEL": "info", "PATH": "/bin"},
        )
        assert reload_command._overruled(told) == ["cpu_slots", "batching.enabled"]
        assert not reload_command._overruled(msgspec.structs.replace(told, flags={}, environ={}))
        assert not reload_command._overruled(msgspec.structs.replace(told, file=""))
