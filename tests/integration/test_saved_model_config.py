"""assets.extra/saved_model_config.pb: what a version says of its session is done, or the log says why not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from structlog.testing import capture_logs

from mpspool.core import tfs
from mpspool.core.settings import ModelSettings
from mpspool.worker.engine.load import load
from mpspool.worker.engine.saved_model_config import overridden
from tests.pool import ROOT

ModelDir = Callable[[str], Path]
_LOAD = """
import sys
import tensorflow as tf
from mpspool.core.settings import ModelSettings
from mpspool.worker.engine.load import load

settings = ModelSettings(name="m", version=1, path=sys.argv[1], slots=[], engine="tf2")
print(load(settings, tf.compat.v1.ConfigProto()).run("serving_default", {"x": [1.0]}, ["y"])[0])
print(tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer"))
"""


def write(folder: Path, content: bytes) -> None:
    """The file of a version folder."""
    (folder / "assets.extra").mkdir(parents=True, exist_ok=True)
    (folder / "assets.extra" / "saved_model_config.pb").write_bytes(content)


def disabling() -> bytes:
    """What switches the graph's optimizers off."""
    found = tfs.SavedModelConfig()
    found.session_overrides.disable_meta_optimizer = True
    content: bytes = found.SerializeToString()
    return content


def disabled(config: Any) -> bool:
    found: bool = config.graph_options.rewrite_options.disable_meta_optimizer
    return found


@pytest.fixture
def version(model_dir: ModelDir, tmp_path: Path) -> Path:
    """A version folder with such a file."""
    shutil.copytree(model_dir("half_plus_two") / "1", tmp_path / "1")
    write(tmp_path / "1", disabling())
    return tmp_path / "1"


def test_no_file_or_an_empty_one(tmp_path: Path) -> None:
    """Nothing is said, and the configuration stays what it is."""
    ours = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=3)
    assert overridden(tmp_path, ours) is ours
    assert overridden(tmp_path, None) is None
    write(tmp_path, b"")
    assert overridden(tmp_path, ours) is ours


def test_the_versions_word_goes_before_ours(tmp_path: Path) -> None:
    """Of what it says, both ways; the rest is ours, and ours is not changed."""
    ours = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=3)
    write(tmp_path, disabling())
    found = overridden(tmp_path, ours)
    assert found is not None
    assert (disabled(found), found.intra_op_parallelism_threads) == (True, 3)
    assert not disabled(ours)
    assert disabled(overridden(tmp_path, None))
    ours.graph_options.rewrite_options.disable_meta_optimizer = True
    write(tmp_path, tfs.SavedModelConfig(session_overrides={}).SerializeToString())
    assert not disabled(overridden(tmp_path, ours))


def test_what_has_no_meaning_here_is_told(tmp_path: Path) -> None:
    """By file and field; what has one counts all the same."""
    asked = tfs.SavedModelConfig(tfrt_runtime_config=b"\x0a\x00", critical=True)
    overrides = asked.session_overrides
    overrides.remote_op_remap_config = overrides.batch_op_rewriter_config = b""
    overrides.disable_meta_optimizer = True
    write(tmp_path, asked.SerializeToString())
    with capture_logs() as logs:
        assert disabled(overridden(tmp_path, None))
    warned = [line for line in logs if line["log_level"] == "warning"]
    assert [line["field"] for line in warned] == [
        "session_overrides.remote_op_remap_config",
        "session_overrides.batch_op_rewriter_config",
        "tfrt_runtime_config",
        "critical",
    ]
    assert {line["file"] for line in warned} == {str(tmp_path / "assets.extra" / "saved_model_config.pb")}


def test_what_cannot_be_read_counts_as_none(tmp_path: Path) -> None:
    """With a warning, as TensorFlow Serving: the model is served."""
    write(tmp_path, b"\x0a\xff")
    with capture_logs() as logs:
        assert overridden(tmp_path, None) is None
    (line,) = logs
    assert (line["log_level"], line["file"]) == (
        "warning",
        str(tmp_path / "assets.extra" / "saved_model_config.pb"),
    )


def test_the_session_has_it(version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is loaded in a Session is loaded in such a one."""
    made = []
    session = tf.compat.v1.Session

    def making(**arguments: Any) -> Any:
        made.append(arguments["config"])
        return session(**arguments)

    monkeypatch.setattr(tf.compat.v1, "Session", making)
    settings = ModelSettings(name="m", version=1, path=str(version), slots=[], engine="session")
    engine = load(settings, tf.compat.v1.ConfigProto())
    (y,) = engine.run("serving_default", {"x": np.array([1], np.float32)}, ["y"])
    assert y == [2.5]
    assert [disabled(config) for config in made] == [True]


def test_the_tf2_loader_has_it(version: Path) -> None:
    """Of a process of its own: there it holds for all that runs."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", _LOAD, str(version)]
    done = subprocess.run(
        command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines()[-2:] == ["[2.5]", "True"], done.stderr
