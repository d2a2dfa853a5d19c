"""The model for memory: one embedding table of 1 GB under a small tower.

`python -m bench.embedding FOLDER` exports it there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench.environments import BenchError
from mpspool.core import tfs

NAME = "embedding"
ROWS, WIDTH = 2_500_000, 100


def request(ids: Any) -> bytes:
    """A serialised PredictRequest for rows of the table."""
    request = tfs.PredictRequest()
    request.model_spec.name = NAME
    tensor = request.inputs["ids"]
    tensor.dtype = tfs.DATA_TYPES_BY_NAME["DT_INT64"].number
    tensor.tensor_shape.dim.add().size = len(ids)
    tensor.tensor_content = ids.tobytes()
    body: bytes = request.SerializeToString()
    return body


def ensure_exported(models: Path) -> Path:
    """Exports the 1 GB model if it is not there; returns its base path. Raises BenchError."""
    base_path = models / NAME
    if not (base_path / "1" / "saved_model.pb").exists():
        shutil.rmtree(base_path, ignore_errors=True)
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        command = [sys.executable, "-m", "bench.embedding", str(base_path / "1")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"the 1 GB model could not be exported:\n{done.stderr[-2000:]}")
    return base_path


def _export(path: str) -> None:
    import tensorflow as tf

    class Embedding(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            random = np.random.default_rng(11)
            self.table = tf.Variable(random.random((ROWS, WIDTH), dtype=np.float32))
            self.kernel = tf.Variable(random.random((WIDTH, 1), dtype=np.float32))

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])  # type: ignore[untyped-decorator]
        def __call__(self, ids: Any) -> dict[str, Any]:
            return {"sum": tf.reduce_sum(tf.gather(self.table, ids) @ self.kernel)}

    module = Embedding()
    tf.saved_model.save(module, path, signatures={"serving_default": module.__call__})


if __name__ == "__main__":
    _export(sys.argv[1])
