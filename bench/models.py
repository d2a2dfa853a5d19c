"""The models: their inputs, their answers in NumPy, and their export as SavedModels.

    python -m bench.models FOLDER      writes FOLDER/<name>/1 for each; the only part that needs TensorFlow

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
# The tower: each of the square kernels is applied _TURNS times, 1.1 TFLOP for a batch of 4096.
_FEATURES, _WIDTH, _KERNELS, _TURNS, _CLASSES = 64, 2048, 4, 8, 8
_SEED = 7
# Goes up when an exported model would come out different.
_EXPORT = "2"


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output: its element type, and its shape after the batch dimension."""

    dtype: type[np.generic]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """What a client has to know of one model.

    Attributes:
        batches: those that `python -m bench` measures; none for a model that only a GPU is worth.
        rows: of an answer that are compared, evenly spread over it; 0 for all.
        tolerance: relative, of an output's largest value too. Matrix products are in TF32 on GPUs that have it.
    """

    name: str
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    batches: tuple[int, ...]
    rows: int = 0
    tolerance: float = 1e-4


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
    # 34 matrix products in a row, 2048 wide: each fills a GPU by itself where the batch is large.
    "tower": Model(
        "tower",
        {"x": Tensor(np.float32, (_FEATURES,))},
        {"y": Tensor(np.float32, (_CLASSES,))},
        batches=(),
        rows=4,
        tolerance=2e-2,
    ),
}


def inputs_for(model: Model, batch: int, seed: int = 3) -> dict[str, Array]:
    """Inputs of one request."""
    random = np.random.default_rng(seed)
    if model.name == "half_plus_two":
        return {"x": random.normal(size=batch).astype(np.float32)}
    if model.name == "tower":
        return {"x": random.normal(size=(batch, _FEATURES)).astype(np.float32)}
    return {
        "cat": random.integers(0, _VOCABULARY, (batch, _CATEGORIES), dtype=np.int64),
        "dense": random.normal(size=(batch, _DENSE)).astype(np.float32),
    }


def reference(model: Model, inputs: Arrays) -> dict[str, Array]:
    """The right answer."""
    if model.name == "half_plus_two":
        return {"y": inputs["x"] * np.float32(0.5) + np.float32(2)}
    if model.name == "tower":
        return {"y": _tower(inputs["x"])}
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
    batch = len(next(iter(inputs.values())))
    rows = slice(None, None, max(1, batch // model.rows) if model.rows else 1)
    for name, want in reference(model, {name: array[rows] for name, array in inputs.items()}).items():
        got = np.asarray(outputs[name], want.dtype).reshape(batch, *want.shape[1:])[rows]
        absolute = max(1e-5, model.tolerance * float(np.abs(want).max())) if model.rows else 1e-5
        np.testing.assert_allclose(got, want, rtol=model.tolerance, atol=absolute)


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


@dataclass(frozen=True, slots=True)
class _TowerWeights:
    first: Array
    square: list[Array]
    last: Array


@functools.cache
def _tower_weights() -> _TowerWeights:
    random = np.random.default_rng(_SEED)

    def normal(rows: int, columns: int, gain: float = 2.0) -> Array:
        """Keeps a layer's scale through a ReLU, by a gain of 2."""
        kernel = random.standard_normal((rows, columns), np.float32)
        return (kernel * np.float32(np.sqrt(gain / rows))).astype(np.float32)

    return _TowerWeights(
        normal(_FEATURES, _WIDTH),
        [normal(_WIDTH, _WIDTH) for _ in range(_KERNELS)],
        normal(_WIDTH, _CLASSES, gain=1.0),
    )


def _tower(x: Array) -> Array:
    weights = _tower_weights()
    layer = np.maximum(x @ weights.first, 0)
    for kernel in weights.square * _TURNS:
        layer = np.maximum(layer @ kernel, 0)
    answer: Array = layer @ weights.last
    return answer


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

    weights, tower = _widedeep_weights(), _tower_weights()

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

    class Tower(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = tf.Variable(tower.first), tf.Variable(tower.last)
            self.square = [tf.Variable(kernel) for kernel in tower.square]

        @tf.function(input_signature=[tf.TensorSpec([None, _FEATURES], tf.float32, name="x")])  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> dict[str, Any]:
            layer = tf.nn.relu(x @ self.first)
            for _ in range(_TURNS):
                for kernel in self.square:
                    layer = tf.nn.relu(layer @ kernel)
            return {"y": layer @ self.last}

    for name, module in (("half_plus_two", HalfPlusTwo()), ("widedeep", WideDeep()), ("tower", Tower())):
        path = str(folder / name / "1")
        tf.saved_model.save(module, path, signatures={"serving_default": module.__call__})


if __name__ == "__main__":
    _export(Path(sys.argv[1]))
