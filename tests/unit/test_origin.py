"""What a pool was started with, as it is kept."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from mpspool.core.rundir import RunDir
from mpspool.supervisor import origin


def test_it_is_kept_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's place, the flags that were given and the folder that paths start from; of the environment no secrets."""
    run = RunDir(tmp_path)
    run.settings.mkdir()
    monkeypatch.chdir(tmp_path)
    flags = {"gpus": None, "model": ("a=/a", "b=b"), "cpusets": "0;1", "enable_batching": True}
    environ = {
        "MPSPOOL_HOST": "h",
        "CONTEXTS_COUNT_PER_GPU": "2",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "PATH": "/bin",
    }
    origin.save(run, origin.here(Path("pool.yaml"), flags, environ))
    found = origin.load(run)
    assert (found.file, found.folder) == (str(tmp_path / "pool.yaml"), str(tmp_path))
    assert found.flags == {"model": ["a=/a", "b=b"], "cpusets": "0;1", "enable_batching": True}
    assert "AWS_SECRET_ACCESS_KEY" not in found.environ
    assert found.environ["MPSPOOL_HOST"] == "h"


def test_bytes_that_are_no_text_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder's name, the file's and a variable, as Linux has them; what is no origin is said to be none."""
    run = RunDir(tmp_path)
    run.settings.mkdir()
    folder = tmp_path / os.fsdecode(b"d\xf6r")
    folder.mkdir()
    monkeypatch.chdir(folder)
    begun = origin.here(Path(os.fsdecode(b"p\xf6l.yaml")), {}, {"PATH": os.fsdecode(b"/bin:/opt/\xf6")})
    origin.save(run, begun)
    assert origin.load(run) == begun
    run.settings_file("origin").write_text('{"file": ')
    with pytest.raises(msgspec.DecodeError):
        origin.load(run)
