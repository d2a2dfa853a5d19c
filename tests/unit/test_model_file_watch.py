"""Whether the model_config_file of a pool that runs has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpspool.core.rundir import RunDir
from mpspool.supervisor import origin
from mpspool.supervisor.model_file_watch import ModelFileWatch, digest
from mpspool.supervisor.origin import Origin


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.settings.mkdir(parents=True)
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "models.config"
    path.write_text("one")
    return path


def watch(run: RunDir, file: Path, text: str = "one", poll_s: int = 2) -> ModelFileWatch:
    """Of a pool that was started when this stood in the file."""
    begun = Origin(folder="/", arguments=[], watched=str(file), poll_s=poll_s, digest=digest(text))
    origin.save(run, begun)
    return ModelFileWatch(run)


def test_a_change_is_seen_once(run: RunDir, file: Path) -> None:
    """Also one from before the first look, and that the file has gone or come."""
    watching = watch(run, file)
    assert watching.poll_s == 2
    assert not watching.look(0.0, failed=False)
    file.write_text("two")
    assert watching.look(1.0, failed=False) == f"{file} has changed"
    assert not watching.look(2.0, failed=False)
    file.unlink()
    assert watching.look(3.0, failed=False)
    assert not watching.look(4.0, failed=False)
    file.write_bytes(b"\xff")  # as unreadable as none
    assert not watching.look(5.0, failed=False)
    assert watch(run, file, "what stood there at the start").look(0.0, failed=False)


def test_what_failed_is_tried_again_after_a_while(run: RunDir, file: Path) -> None:
    """What it names may have come to be there; not at every look, for that takes a second of a processor."""
    watching = watch(run, file)
    file.write_text("two")
    assert watching.look(0.0, failed=False)
    assert not watching.look(29.0, failed=True)
    assert not watching.look(30.0, failed=False)
    assert watching.look(30.0, failed=True) == f"{file} is tried again"
    assert not watching.look(31.0, failed=True)


def test_a_reload_that_somebody_asked_for_and_failed_is_tried_again_too(run: RunDir, file: Path) -> None:
    """Though the file has not changed."""
    watching = watch(run, file)
    assert not watching.look(0.0, failed=False)
    assert not watching.look(100.0, failed=True)
    assert not watching.look(129.0, failed=True)
    assert watching.look(130.0, failed=True) == f"{file} is tried again"


def test_nothing_is_looked_at_where_nobody_asked(run: RunDir, file: Path) -> None:
    """Not without an interval, nor once the pool has another configuration, nor before there is any."""
    assert not ModelFileWatch(run).look(0.0, failed=False)
    assert ModelFileWatch(run).poll_s == 5
    assert not watch(run, file, "other", poll_s=0).look(0.0, failed=False)
    origin.save(run, Origin(folder="/", file="/pool.yaml", poll_s=2))
    assert not ModelFileWatch(run).look(0.0, failed=False)
