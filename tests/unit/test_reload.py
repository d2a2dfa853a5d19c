"""What the pool process answers to those who want another configuration."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from mpspool.core.control import Message
from mpspool.core.rundir import RunDir
from mpspool.core.settings import PoolSettings, RemoteSettings
from mpspool.supervisor.pool import reload
from mpspool.supervisor.pool.changes import compare
from mpspool.supervisor.pool.reload import Reload, reload_with
from mpspool.supervisor.remote import place
from mpspool.supervisor.supervisord import SupervisordError
from tests.unit.test_changes import model, pool, remote


class Asked:
    """One pool's, which counts how often it has begun again."""

    def __init__(
        self,
        root: Path,
        *,
        config: PoolSettings | None = None,
        stopping: bool = False,
        fault: Exception | None = None,
    ) -> None:
        self._fault = fault
        self.ended: list[RemoteSettings] = []
        self.run = RunDir(root)
        for folder in (self.run.settings, self.run.programs):
            folder.mkdir(parents=True)
        self.begun = 0
        servables = SimpleNamespace(try_again=lambda _names: None, failed=list)
        renewals = SimpleNamespace(turn=asyncio.Lock())
        self._reload = Reload(
            config or pool(model()),
            self.run,
            {},
            cast("Any", servables),
            cast("Any", None),
            cast("Any", renewals),
            lambda: None,
            self._end_fetchers,
            self._begin_again,
            lambda: stopping,
        )

    async def _end_fetchers(self, remotes: Iterable[RemoteSettings]) -> None:
        assert not self.begun
        if self._fault is not None:
            raise self._fault
        self.ended += remotes

    def _begin_again(self) -> None:
        self.begun += 1

    def __call__(self, config: PoolSettings) -> Message:
        return asyncio.run(self._reload.reload({"settings": msgspec.to_builtins(config)}))


def test_of_two_close_together_the_second_asks_again(tmp_path: Path) -> None:
    """It would be compared with what is about to go: one that takes the first back would find nothing to change."""
    asked = Asked(tmp_path / "run")
    assert "error" not in asked(pool(model(), grace_s=9.0))
    assert "ask again" in asked(pool(model()))["error"]
    assert asked.begun == 1


def test_a_pool_that_is_stopped_does_not_begin_again(tmp_path: Path) -> None:
    """Its workers would be started once more."""
    asked = Asked(tmp_path / "run", stopping=True)
    assert asked(pool(model(), grace_s=9.0)) == {"error": "the pool is being stopped"}
    assert asked.begun == 0


def test_what_copies_is_ended_before_its_settings_change(tmp_path: Path) -> None:
    """And where that cannot be, nothing changes, but for what the next pool process puts back."""
    with_remote = pool(model(), remotes=[remote()])
    gone = Asked(tmp_path / "run", config=with_remote)
    assert "error" not in gone(pool(model()))
    assert gone.ended == [remote()]
    asked = Asked(tmp_path / "other", config=with_remote, fault=SupervisordError("it does not answer"))
    assert asked(pool(model())) == {"error": "nothing was changed: it does not answer"}
    assert not list(asked.run.settings.iterdir())
    assert asked.begun == 1


def test_copying_has_all_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is for what reads and checks."""
    copies = tmp_path / "copies"
    copies.write_text(f"#!/bin/sh\necho '{place.copying(['s3://b'])}'\nsleep 1\necho refused >&2\nexit 2\n")
    copies.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(copies))
    monkeypatch.setattr(reload, "_READ_S", 0.5)
    assert asyncio.run(reload_with(RunDir(tmp_path), [])) == (2, "refused")


def test_a_check_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may name a folder of a file system that does not answer; others reload after it."""
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(hangs))
    monkeypatch.setattr(reload, "_READ_S", 0.2)
    status, why = asyncio.run(reload_with(RunDir(tmp_path), []))
    assert status == 1
    assert "could not be checked in 0.2 s" in why


@pytest.mark.parametrize(
    ("values", "again"),
    [({"allow_signature_changes": True}, ["m"]), ({"start_timeout_s": 900.0}, ["m"]), ({"quorum": 2}, [])],
)
def test_what_failed_may_not_fail_with_other_settings(values: dict[str, object], again: list[str]) -> None:
    """Where a setting says whether a version is served, one that was refused is tried again; else it is not."""
    assert reload._reworked(compare(pool(model()), pool(model(**values)))) == again
