"""How the file that says how a version's requests are joined is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpspool.core.settings import BatchingSettings, VersionBatching
from mpspool.supervisor.pool import version_batching
from mpspool.supervisor.pool.version_batching import BatchingFiles
from mpspool.supervisor.pool.versions import Found
from mpspool.supervisor.version_folders import BATCHING_FILE


def test_what_could_not_be_read_is_read_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that had no time says nothing of the file: the version is not held to it for ever."""
    (tmp_path / BATCHING_FILE).write_text("max_batch_size { value: 8 }")
    files = BatchingFiles("m", VersionBatching(given={}, without=None))
    found = {1: Found(str(tmp_path), "whole")}
    with monkeypatch.context() as patched:
        patched.setattr(version_batching, "_LIMIT_S", 0.0)
        assert "cannot be read: " in files.of(found, ())[1].wrong
    assert files.of(found, ())[1].batching == BatchingSettings(max_batch_size=8)


def test_what_was_read_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the folder is as it was: a look is taken every second."""
    (tmp_path / BATCHING_FILE).write_text("max_batch_size { value: 8 }")
    files = BatchingFiles("m", VersionBatching(given={}, without=None))
    first = files.of({1: Found(str(tmp_path), "whole")}, ())
    monkeypatch.setattr(version_batching, "_LIMIT_S", 0.0)
    assert files.of({1: Found(str(tmp_path), "whole")}, ()) == first
    assert "cannot be read: " in files.of({1: Found(str(tmp_path), "other")}, ())[1].wrong
