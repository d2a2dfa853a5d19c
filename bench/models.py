"""The two models: their inputs, their answers in NumPy, and their export as SavedModels.

    python -m bench.models FOLDER      writes FOLDER/<name>/1 for both; the only part that needs TensorFlow

The weights come from a seed, so the NumPy answer is computed from the same numbers that the
SavedModel holds, and from nothing that TensorFlow or a server has touched.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.environments import BenchError

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = Mapping[str, Array]

_CATEGORIES, _VOCABULARY, _DIMENSION, _DENSE = 26, 20_000, 16, 13
_HIDDEN = (512, 256)
_SEED = 7
# Goes up when an exported model would come out different.
_EXPORT = "1"


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output: its element type, and its shape after the batch dimension."""

    dtype: type[np.generic]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """What a client has to know of one model."""

    name: str
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    batches: tuple[int, ...]


MODELS: Mapping[str, Model] = {
    "half_plus_two": Model(
        "half_plus_two", {"x": Tensor(np.float32, ())}, {"y": Tensor(np.float32, ())}, batches=(1,)
    ),
    # 26 embedding tables of 20,000 x 16, 13 dense features, a 512-256-1 tower, and a linear part.
    "widedeep": Model(
        "widedeep",
        {"cat": Tensor(np.int64, (_CATEGORIES,)), "dense": Tensor(np.float32, (_DENSE,))},
        {"score": Tensor(np.float32, (1,))},
        batches=(1, 32, 512),
    ),
}


def inputs_for(model: Model, batch: int, seed: int = 3) -> dict[str, Array]:
    """Inputs of one request."""
    random = np.random.default_rng(seed)
    if model.name == "half_plus_two":
        return {"x": random.normal(size=batch).astype(np.float32)}
    return {
        "cat": random.integers(0, _VOCABULARY, (batch, _CATEGORIES), dtype=np.int64),
        "dense": random.normal(size=(batch, _DENSE)).astype(np.float32),
    }


def reference(model: Model, inputs: Arrays) -> dict[str, Array]:
    """The right answer."""
    if model.name == "half_plus_two":
        return {"y": inputs["x"] * np.float32(0.5) + np.float32(2)}
    weights = _widedeep_weights()
    cat, dense = inputs["cat"], inputs["dense"]
    layer = np.concatenate([table[cat[:, i]] for i, table in enumerate(weights.tables)] + [dense], axis=1)
    for kernel, bias in weights.layers[:-1]:
        layer = np.maximum(layer @ kernel + bias, 0)
    kernel, bias = weights.layers[-1]
    wide = weights.wide[cat + weights.offsets].sum(axis=1, keepdims=True) + dense @ weights.wide_dense
    return {"score": 1 / (1 + np.exp(-(layer @ kernel + bias + wide)))}


def check(model: Model, inputs: Arrays, outputs: Arrays) -> None:
    """Raises AssertionError where the outputs are not the right answer to the inputs."""
    for name, want in reference(model, inputs).items():
        got = np.asarray(outputs[name], want.dtype).reshape(want.shape)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@dataclass(frozen=True, slots=True)
class _WideDeepWeights:
    tables: list[Array]
    wide: Array
    wide_dense: Array
    layers: list[tuple[Array, Array]]
    offsets: Array


@functools.cache
def _widedeep_weights() -> _WideDeepWeights:
    random = np.random.default_rng(_SEED)

    def normal(*shape: int) -> Array:
        return random.normal(0, 0.05, shape).astype(np.float32)

    widths = (_CATEGORIES * _DIMENSION + _DENSE, *_HIDDEN, 1)
    return _WideDeepWeights(
        tables=[normal(_VOCABULARY, _DIMENSION) for _ in range(_CATEGORIES)],
        wide=normal(_CATEGORIES * _VOCABULARY),
        wide_dense=normal(_DENSE, 1),
        layers=[(normal(*pair), normal(pair[1])) for pair in itertools.pairwise(widths)],
        offsets=np.arange(_CATEGORIES, dtype=np.int64) * _VOCABULARY,
    )


def ensure_exported(cache: Path) -> Path:
    """Exports the models if they are not there; returns the folder of their base paths.

    Raises:
        BenchError: the export did not succeed.
    """
    folder = cache / "models"
    marker = folder / "export"
    if marker.is_file() and marker.read_text() == _EXPORT:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-m", "bench.models", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"the models could not be exported:\n{done.stderr[-2000:]}")
    marker.write_text(_EXPORT)
    return folder


def _export(folder: Path) -> None:
    import tensorflow as tf

    weights = _widedeep_weights()

    class HalfPlusTwo(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = tf.Variable(0.5), tf.Variable(2.0)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> dict[str, Any]:
            return {"y": self.a * x + self.b}

    class WideDeep(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tables = [tf.Variable(table) for table in weights.tables]
            self.wide, self.wide_dense = tf.Variable(weights.wide), tf.Variable(weights.wide_dense)
            self.kernels = [tf.Variable(kernel) for kernel, _ in weights.layers]
            self.biases = [tf.Variable(bias) for _, bias in weights.layers]

        @tf.function(  # type: ignore[untyped-decorator]
            input_signature=[
                tf.TensorSpec([None, _CATEGORIES], tf.int64, name="cat"),
                tf.TensorSpec([None, _DENSE], tf.float32, name="dense"),
            ]
        )
        def __call__(self, cat: Any, dense: Any) -> dict[str, Any]:
            rows = [tf.gather(table, cat[:, i]) for i, table in enumerate(self.tables)]
            layer = tf.concat([*rows, dense], axis=1)
            for kernel, bias in zip(self.kernels[:-1], self.biases[:-1], strict=True):
                layer = tf.nn.relu(layer @ kernel + bias)
            deep = layer @ self.kernels[-1] + self.biases[-1]
            linear = tf.reduce_sum(tf.gather(self.wide, cat + weights.offsets), axis=1, keepdims=True)
            return {"score": tf.sigmoid(deep + linear + dense @ self.wide_dense)}

    for name, module in (("half_plus_two", HalfPlusTwo()), ("widedeep", WideDeep())):
        path = str(folder / name / "1")
        tf.saved_model.save(module, path, signatures={"serving_default": module.__call__})


if __name__ == "__main__":
    _export(Path(sys.argv[1]))
