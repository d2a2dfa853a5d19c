"""The engines against the real TensorFlow: loading, calling, and what goes wrong at either."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from structlog.testing import capture_logs
from tensorflow.core.protobuf import saved_model_pb2

from mpspool.core import tfs
from mpspool.core.errors import Code, PoolError
from mpspool.core.settings import ModelSettings
from mpspool.worker.engine.base import Engine, TensorSpec
from mpspool.worker.engine.load import LoadError, load
from tests import models, tensors

Load = Callable[..., Engine]
ModelDir = Callable[[str], Path]

DT_FLOAT, DT_STRING, DT_INT64 = 1, 7, 9


@pytest.fixture(scope="module")
def loaded(model_dir: ModelDir) -> Load:
    """Loads a test model by name, each (name, engine) once."""
    return cache(lambda name, engine="auto": load(settings(model_dir(name), engine=engine)))


def settings(base_path: Path, **fields: Any) -> ModelSettings:
    return ModelSettings(name=base_path.name, version=1, path=str(base_path / "1"), slots=[], **fields)


def floats(*values: float) -> Any:
    return np.array(values, np.float32)


def widedeep_inputs(batch: int, columns: int = 26, dense: int = 13) -> dict[str, Any]:
    random = np.random.default_rng(1)
    return {
        "cat": random.integers(0, 1000, (batch, columns)),
        "dense": random.normal(size=(batch, dense)).astype(np.float32),
    }


@pytest.mark.parametrize("engine", ["session", "tf2"])
@pytest.mark.parametrize("name", ["half_plus_two", "half_plus_two_tf1"])
def test_half_plus_two(loaded: Load, name: str, engine: str) -> None:
    """TF1 models with reference variables and TF2 models compute the same in both engines."""
    model = loaded(name, engine)
    assert model.name == engine
    (y,) = model.run("serving_default", {"x": floats(1, 2, 4)}, ["y"])
    np.testing.assert_array_equal(y, floats(2.5, 3, 4))


@pytest.mark.parametrize("engine", ["session", "tf2"])
def test_empty_batch(loaded: Load, engine: str) -> None:
    """No rows in, no rows out, and the inner shape kept."""
    (score,) = loaded("widedeep", engine).run("serving_default", widedeep_inputs(0), ["score"])
    assert score.shape == (0, 1)
    assert score.dtype == np.float32


def test_engines_agree(loaded: Load) -> None:
    """A recommender gives the same scores through either engine."""
    inputs = widedeep_inputs(16)
    scores = [
        loaded("widedeep", engine).run("serving_default", inputs, ["score"])[0]
        for engine in ("session", "tf2")
    ]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-5)
    assert scores[0].shape == (16, 1)
    assert len(set(scores[0].ravel().tolist())) == 16


def test_signatures(loaded: Load) -> None:
    """Every signature is described and served, the loader's own are not shown."""
    model = loaded("multi_signature")
    assert set(model.signatures) == {"serving_default", "add", "transpose", "classify"}
    assert model.signatures["serving_default"].inputs == {"x": TensorSpec(DT_FLOAT, (None, 3))}
    assert model.signatures["add"].inputs["b"] == TensorSpec(DT_FLOAT, ())
    assert model.signatures["classify"].method_name == "tensorflow/serving/predict"
    total, scaled = model.run("serving_default", {"x": np.ones((2, 3), np.float32)}, ["total", "scaled"])
    np.testing.assert_array_equal(total, floats(6, 6))
    np.testing.assert_array_equal(scaled, [[1, 2, 3]] * 2)
    (sums,) = model.run("add", {"a": floats(1, 2), "b": np.array(3, np.float32)}, ["sum"])
    np.testing.assert_array_equal(sums, floats(4, 5))
    (classes,) = model.run("classify", {"inputs": np.array([b"a", b"abcdef"], object)}, ["classes"])
    assert classes.tolist() == [[b"short", b"long"]] * 2


def test_signature_def_map(loaded: Load) -> None:
    """The bytes are a tensorflow.serving.SignatureDefMap of what is served."""
    parsed = tfs.SignatureDefMap.FromString(loaded("strings").signature_def_map)
    assert list(parsed.signature_def) == ["serving_default"]
    definition = parsed.signature_def["serving_default"]
    assert definition.inputs["word"].dtype == DT_STRING
    assert definition.outputs["id"].dtype == DT_INT64
    assert definition.inputs["word"].name


@pytest.mark.parametrize("engine", ["session", "tf2"])
@pytest.mark.parametrize("name", ["strings", "strings_tf1"])
def test_tables_and_assets(loaded: Load, name: str, engine: str) -> None:
    """A vocabulary table is filled from the model's asset by TF1's and TF2's init ops."""
    words = np.array([b"plum", b"\xff\x00", b"apple"], object)
    ids, twice = loaded(name, engine).run("serving_default", {"word": words}, ["id", "twice"])
    assert ids.tolist() == [2, 3, 0]
    assert twice.tolist() == [b"plumplum", b"\xff\x00\xff\x00", b"appleapple"]


@pytest.mark.parametrize("engine", ["session", "tf2"])
@pytest.mark.parametrize("dtype", models.DTYPES)
@pytest.mark.parametrize("shape", [(), (2, 1)])
def test_dtypes(loaded: Load, dtype: str, engine: str, shape: tuple[int, ...]) -> None:
    """Every element type passes through unchanged, as an array also where it is a scalar."""
    if dtype == "string":
        x = np.full(shape, b"\x00\xfe", object)
    else:
        x = np.ones(shape, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    (y,) = loaded("dtypes", engine).run(dtype, {"x": x}, ["y"])
    assert isinstance(y, np.ndarray)
    assert (y.dtype, y.shape) == (x.dtype, shape)
    assert np.all(y == x)


@pytest.mark.parametrize("engine", ["session", "tf2"])
@pytest.mark.parametrize("dtype", models.DTYPES)
def test_one_value_for_all_elements(loaded: Load, dtype: str, engine: str) -> None:
    """A tensor whose list has one value, and some rows of it, are fed as though each element had been sent."""
    value = b"\x00\xfe" if dtype == "string" else 1
    one = np.array([value], {"bfloat16": ml_dtypes.bfloat16, "string": object}.get(dtype, dtype))
    sent = tfs.TensorProto.FromString(tensors.encode(one))
    sent.tensor_shape.dim[0].size = 4
    sent.tensor_shape.dim.add(size=3)
    filled = tensors.decode(sent.SerializeToString())
    for x in (filled, filled[1:3]):
        (y,) = loaded("dtypes", engine).run(dtype, {"x": x}, ["y"])
        assert (y.dtype, y.shape) == (one.dtype, x.shape)
        assert np.all(y == value)


@pytest.mark.parametrize("engine", ["session", "tf2"])
def test_subnormal_numbers_are_zero(loaded: Load, engine: str) -> None:
    """In kernels, whichever thread runs them and however many rows there are, as in TensorFlow Serving; not before and after."""
    for rows in (1, 4, 100_000):
        x = np.full((rows, 3), 1e-40, np.float32)
        total, _ = loaded("multi_signature", engine).run("serving_default", {"x": x}, ["total", "scaled"])
        assert not total.any()
        assert x.any()
        assert (x * np.float32(2)).any()


def test_outputs_that_are_inputs(loaded: Load) -> None:
    """A tensor under two aliases, and an input as output, are each given where they are asked for."""
    model = loaded("alias")
    x = floats(1, 2)
    also_y, same, y = model.run("serving_default", {"x": x}, ["also_y", "x", "y"])
    np.testing.assert_array_equal(also_y, floats(2, 3))
    np.testing.assert_array_equal(y, floats(2, 3))
    assert same is x
    assert model.run("serving_default", {"x": x}, ["x"])[0] is x


def test_one_tensor_for_two_inputs(loaded: Load) -> None:
    """Two aliases of one placeholder are refused, not guessed between."""
    with pytest.raises(PoolError, match="fed more than once") as caught:
        loaded("alias").run("twice", {"x": floats(1), "again": floats(2)}, ["y"])
    assert caught.value.code == Code.INVALID_ARGUMENT


@pytest.mark.parametrize("engine", ["session", "tf2"])
def test_defaults(loaded: Load, engine: str) -> None:
    """An input with a default may be left out."""
    model = loaded("defaults", engine)
    assert model.signatures["serving_default"].defaults["b"] == 5
    assert model.run("serving_default", {"a": floats(1)}, ["sum"])[0].tolist() == [6]
    assert model.run("serving_default", {"a": floats(1), "b": np.array(2, np.float32)}, ["sum"])[
        0
    ].tolist() == [3]


def test_sparse_signature(loaded: Load) -> None:
    """A signature with a sparse input says that it cannot be served; its neighbour is served."""
    model = loaded("sparse")
    with pytest.raises(PoolError, match='input "x" is a sparse or composite tensor') as caught:
        model.run("serving_default", {"x": floats(1)}, ["y"])
    assert caught.value.code == Code.UNIMPLEMENTED
    assert model.run("dense", {"x": floats(1)}, ["y"])[0].tolist() == [2]


@pytest.mark.parametrize("engine", ["session", "tf2"])
@pytest.mark.parametrize(("columns", "dense"), [(27, 13), (25, 13), (1, 13), (26, 12)])
def test_wrong_inner_dimension(loaded: Load, engine: str, columns: int, dense: int) -> None:
    """A kernel's own INVALID_ARGUMENT comes back, without what TensorFlow's Python side puts around it."""
    with pytest.raises(PoolError) as caught:
        loaded("widedeep", engine).run("serving_default", widedeep_inputs(2, columns, dense), ["score"])
    assert caught.value.code == Code.INVALID_ARGUMENT
    # Several kernels would fail, and which one is first is left to chance.
    kernel = (
        r"Incompatible shapes: |slice index \d+ of dimension 1 out|ConcatOp : |Matrix size-incompatible: "
    )
    assert re.fullmatch(rf"({kernel})[^\n]*\n\t \[\[.*\{{node \w+.*\]\]", caught.value.message)


@pytest.mark.parametrize("engine", ["session", "tf2"])
@pytest.mark.parametrize(
    "change",
    [
        {"cat": np.zeros(26, np.int64)},
        {"cat": np.zeros((2, 26, 1), np.int64)},
        {"cat": np.zeros((3, 26), np.int64)},
        {"cat": np.full((2, 26), 1_000_000)},
        {"cat": np.zeros((2, 26), np.float32)},
        {"dense": np.zeros((2, 13), np.float64)},
        {"dense": np.full((2, 13), b"x", object)},
    ],
    ids=["rank 1", "rank 3", "batches differ", "id out of range", "float ids", "double", "string"],
)
def test_wrong_inputs(loaded: Load, engine: str, change: dict[str, Any]) -> None:
    """Wrong ranks, sizes, values and types are the client's error, and the engine works on after it."""
    model = loaded("widedeep", engine)
    with pytest.raises(PoolError) as caught:
        model.run("serving_default", {**widedeep_inputs(2), **change}, ["score"])
    assert caught.value.code == Code.INVALID_ARGUMENT
    assert model.run("serving_default", widedeep_inputs(2), ["score"])[0].shape == (2, 1)


def test_public_call(loaded: Load, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TensorFlow's private callable the public one serves the same, errors included."""
    from tensorflow.python.client import session

    monkeypatch.delattr(session.BaseSession, "_make_callable_from_options")
    model = load(settings(model_dir("widedeep"), engine="session"))
    inputs = widedeep_inputs(4)
    expected = loaded("widedeep", "session").run("serving_default", inputs, ["score"])
    np.testing.assert_array_equal(model.run("serving_default", inputs, ["score"]), expected)
    with pytest.raises(PoolError, match=r"\] = 99999 is not in \[0, \d+\)") as caught:
        model.run("serving_default", {**inputs, "cat": np.full((4, 26), 99999)}, ["score"])
    assert "stack" not in caught.value.message
    with pytest.raises(PoolError, match="Cannot feed value of shape") as caught:
        model.run("serving_default", widedeep_inputs(2, columns=27), ["score"])
    assert caught.value.code == Code.INVALID_ARGUMENT


def test_many_output_filters(loaded: Load) -> None:
    """A client that asks for outputs in ever new orders does not fill the memory with compiled calls."""
    model = loaded("multi_signature")
    for repeats in range(1, 80):
        results = model.run(
            "serving_default", {"x": np.ones((1, 3), np.float32)}, ["total", "scaled"] * repeats
        )
        assert len(results) == 2 * repeats
    assert model._call.cache_info().currsize <= 64  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "engine"), [("keras_saved", "tf2"), ("keras_exported", "session")])
def test_automatic_choice(
    loaded: Load, capsys: pytest.CaptureFixture[str], name: str, engine: str, model_dir: ModelDir
) -> None:
    """The Session serves what it can; what its loader leaves uninitialised goes to the TF2 loader, and is logged."""
    model = load(settings(model_dir(name)))
    assert model.name == engine
    logged = capsys.readouterr()
    assert f"engine={engine}" in logged.out + logged.err
    key = "inputs" if name == "keras_saved" else "x"
    (y,) = model.run("serving_default", {key: np.ones((2, 4), np.float32)}, ["output_0"])
    (expected,) = loaded(name, "tf2").run("serving_default", {key: np.ones((2, 4), np.float32)}, ["output_0"])
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_forced_session_that_cannot(model_dir: ModelDir) -> None:
    """engine: session on a model that only the TF2 loader can load fails at load, with the reason."""
    with pytest.raises(LoadError, match=r"resources are not initialised: .*batch_normalization"):
        load(settings(model_dir("keras_saved"), engine="session"))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (
            "truncated",
            r"variables.data-00000-of-00001 is cut: it has [\d,]+ of [\d,]+ bytes: export the model again",
        ),
        ("missing_shard", "variables.data-00000-of-00001 is missing: export the model again"),
        ("missing_index", "is not a valid checkpoint"),
        ("bad_index", "variables.index is damaged"),
        ("flipped", "Checksum does not match"),
    ],
)
@pytest.mark.parametrize("name", ["widedeep", "half_plus_two_tf1"])
def test_corrupt_checkpoint(model_dir: ModelDir, tmp_path: Path, name: str, how: str, reason: str) -> None:
    """Each way a checkpoint can be damaged, a single flipped byte included, is found at load and named."""
    damaged = models.corrupt(model_dir(name), how, tmp_path / name)
    with pytest.raises(LoadError, match=reason) as caught:
        load(settings(damaged))
    assert str(damaged / "1") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_node_named_alone_is_its_first_output(model_dir: ModelDir, tmp_path: Path) -> None:
    """As TensorFlow's C++ session, and so TensorFlow Serving, takes it; of an output that is an input, too."""
    copied = Path(shutil.copytree(model_dir("multi_signature"), tmp_path / "multi_signature"))
    file = copied / "1" / "saved_model.pb"
    saved_model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    definition = saved_model.meta_graphs[0].signature_def["serving_default"]
    definition.outputs["echo"].CopyFrom(definition.inputs["x"])
    for info in definition.outputs.values():
        info.name = info.name.removesuffix(":0")
    file.write_bytes(saved_model.SerializeToString())
    model = load(settings(copied, engine="session"))
    scaled, echo = model.run("serving_default", {"x": np.ones((1, 3), np.float32)}, ["scaled", "echo"])
    assert (scaled.tolist(), echo.tolist()) == ([[1, 2, 3]], [[1, 1, 1]])
    told = tfs.SignatureDefMap.FromString(model.signature_def_map).signature_def["serving_default"]
    assert ":" not in told.outputs["echo"].name


def test_wrong_tags(model_dir: ModelDir) -> None:
    """The text lists the tag sets that there are; the right ones load."""
    base_path = model_dir("training_tags")
    with pytest.raises(LoadError, match=r"no graph has the tags \{serve\}.* are \{train\}, \{gpu, serve\}"):
        load(settings(base_path))
    model = load(settings(base_path, saved_model_tags=["gpu", "serve"]))
    assert model.run("serving_default", {"x": floats(1)}, ["y"])[0].tolist() == [2]


def test_not_a_saved_model(tmp_path: Path) -> None:
    """An empty folder, no folder and a garbage file each say what is wrong."""
    (tmp_path / "model" / "1").mkdir(parents=True)
    with pytest.raises(LoadError, match=r"there is no saved_model\.pb in it"):
        load(settings(tmp_path / "model"))
    with pytest.raises(LoadError, match=r"there is no saved_model\.pb in it"):
        load(settings(tmp_path / "nowhere"))
    (tmp_path / "model" / "1" / "saved_model.pb").write_bytes(b"garbage" * 9)
    with pytest.raises(LoadError, match="cannot be parsed"):
        load(settings(tmp_path / "model"))


def test_library_that_cannot_be_loaded(model_dir: ModelDir, tmp_path: Path) -> None:
    """A custom op library that is missing or no library is named, with the reason."""
    base_path = model_dir("half_plus_two")
    with pytest.raises(LoadError, match=r"there is no file .*/none\.so"):
        load(settings(base_path, custom_ops=[str(tmp_path / "none.so")]))
    (tmp_path / "bad.so").write_bytes(b"x")
    with pytest.raises(LoadError, match=r"bad\.so cannot be loaded: .*file too short"):
        load(settings(base_path, custom_ops=[str(tmp_path / "bad.so")]))


def test_custom_ops(model_dir: ModelDir, testing_ops: Path) -> None:
    """A model with an op of its own: without the library the error names it, with it the model serves."""
    base_path = model_dir("aborter")
    with pytest.raises(LoadError, match=r'op "TestingAbort" is not registered in TensorFlow .* custom_ops'):
        load(settings(base_path))
    model = load(settings(base_path, custom_ops=[str(testing_ops)]))
    assert model.run("serving_default", {"x": floats(1, 2)}, ["y"])[0].tolist() == [2.5, 3]
    sleeper = load(settings(model_dir("sleeper"), custom_ops=[str(testing_ops)]))
    assert (
        sleeper.run("serving_default", {"x": floats(0.01)}, ["y"])[0].tolist()
        == (floats(0.01) / 2 + 2).tolist()
    )


def test_demo(tmp_path: Path) -> None:
    """The demo model is exported once, whole, and computes x / 2 + 2."""
    for _ in range(2):
        command = [sys.executable, "-P", "-m", "mpspool.worker.demo", str(tmp_path)]
        subprocess.run(command, check=True, timeout=60, capture_output=True, env={**os.environ})
    assert [path.name for path in (tmp_path / "half_plus_two").iterdir()] == ["1"]
    model = load(settings(tmp_path / "half_plus_two"))
    assert model.run("serving_default", {"x": floats(2)}, ["y"])[0].tolist() == [3]


def test_demo_help(tmp_path: Path) -> None:
    """It is told and not taken for a folder; without a folder nothing is exported."""
    command = [sys.executable, "-P", "-m", "mpspool.worker.demo"]
    for args, status in (["--help"], 0), ([], 2):
        done = subprocess.run(
            [*command, *args], check=False, capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
        assert done.returncode == status
        assert "DIR" in done.stdout + done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("engine", ["session", "tf2"])
def test_a_batch_within_the_graph(model_dir: ModelDir, engine: str) -> None:
    """Nobody else calls meanwhile: a Session does not wait for them, and what does, for the op's own timeout, says so."""
    with capture_logs() as logs:
        loaded = load(settings(model_dir("batches_itself"), engine=engine))

    def took_s() -> float:
        began_s = time.monotonic()
        (y,) = loaded.run("serving_default", {"x": np.zeros(2, np.float32)}, ["y"])
        assert y.tolist() == [1.0, 1.0]
        return time.monotonic() - began_s

    told = [line for line in logs if line["log_level"] == "warning"]
    if engine == "tf2":
        assert took_s() >= 0.5
        assert [(line["op"], line["batch_timeout_micros"]) for line in told] == [
            ("batch/BatchFunction", 500_000)
        ]
    else:
        assert min(took_s() for _ in range(5)) < 0.5
        assert not told
