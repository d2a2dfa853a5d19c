"""Warm-up: recorded requests by TensorFlow Serving's rules, else synthetic calls."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
import tensorflow as tf

from mpspool.core import tfs
from mpspool.core.errors import Code, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.settings import ModelSettings
from mpspool.worker import warmup
from mpspool.worker.engine.base import Array, Engine, Signature, TensorSpec
from mpspool.worker.engine.load import LoadError, load
from mpspool.worker.predict import Predictor
from tests.conftest import PoolStarter
from tests.fakes.engine import predict
from tests.polling import until

MODEL = ModelVersion("half_plus_two", 1)
DT_FLOAT, DT_STRING, DT_RESOURCE = 1, 7, 20


class Recording:
    """An engine that notes what it is asked and passes it on."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.name = engine.name
        self.signatures = engine.signatures
        self.signature_def_map = engine.signature_def_map
        self.calls: list[tuple[str, Mapping[str, Array]]] = []
        self.fails_on: list[float] | None = None

    def run(self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        self.calls.append((signature, inputs))
        if self.fails_on is not None and inputs["x"].tolist() == self.fails_on:
            raise PoolError(Code.INVALID_ARGUMENT, "a kernel fails")
        return self.engine.run(signature, inputs, outputs)

    def run_all(self, wanted: Sequence[tuple[str, Sequence[str]]], value: Array) -> list[Array]:
        self.calls += [(signature, {"inputs": value}) for signature, _ in wanted]
        return self.engine.run_all(wanted, value)


@pytest.fixture
def path(model_dir: Callable[[str], Path], tmp_path: Path) -> Path:
    """A version folder of the test's own, without warm-up requests yet."""
    return Path(shutil.copytree(model_dir("half_plus_two") / "1", tmp_path / "1"))


@pytest.fixture
def engine(path: Path) -> Recording:
    return loaded(path)


def loaded(path: Path) -> Recording:
    return Recording(load(ModelSettings(name="m", version=1, path=str(path), slots=[])))


def warm_up(engine: Recording, path: Path, others: Path | None = None, **how: Any) -> tuple[int, int]:
    predictor = Predictor(engine, MODEL)
    return warmup.warm_up(predictor, functools.partial(predict, predictor), path, others, **how)


def predict_log(x: list[float], alias: str = "x") -> Any:
    entry = tfs.PredictionLog()
    request = entry.predict_log.request
    request.model_spec.name = "the name it had when it was recorded"
    request.inputs[alias].ParseFromString(tf.make_tensor_proto(x, tf.float32).SerializeToString())
    return entry


def write(path: Path, records: Sequence[bytes]) -> None:
    (path / "assets.extra").mkdir()
    with tf.io.TFRecordWriter(str(path / warmup.REQUESTS_FILE)) as file:
        for record in records:
            file.write(record)


def test_recorded_requests(engine: Recording, path: Path) -> None:
    """Each recorded request is replayed, whatever name the model had then."""
    write(path, [predict_log([1, 2]).SerializeToString(), predict_log([3]).SerializeToString()])
    warm_up(engine, path)
    assert [inputs["x"].tolist() for _, inputs in engine.calls] == [[1, 2], [3]]


def test_recorded_requests_are_repeated_or_not_sent(engine: Recording, path: Path) -> None:
    """Each as often as is said, one after the other; with no iterations nothing is sent, nor made up."""
    write(path, [predict_log([1]).SerializeToString(), predict_log([3]).SerializeToString()])
    assert warm_up(engine, path, iterations=2) == (4, 4)
    assert [inputs["x"].tolist() for _, inputs in engine.calls] == [[1], [1], [3], [3]]
    engine.calls.clear()
    assert warm_up(engine, path, iterations=0) == (0, 0)
    (path / warmup.REQUESTS_FILE).unlink()
    assert warm_up(engine, path, iterations=0) == (0, 0)
    assert not engine.calls


def test_recorded_request_that_fails(engine: Recording, path: Path) -> None:
    """A recorded request that fails fails the load, as in TensorFlow Serving."""
    write(path, [predict_log([1]).SerializeToString(), predict_log([1], "typo").SerializeToString()])
    with pytest.raises(LoadError, match=r"warm-up record 2 of .* failed: .*typo"):
        warm_up(engine, path)


def borrowed(path: Path, *records: Any) -> Path:
    """A file of requests that were recorded for another version than the one in this folder."""
    write(path, [record.SerializeToString() for record in records])
    others = (path / warmup.REQUESTS_FILE).rename(path.parent / "others")
    (path / "assets.extra").rmdir()
    return others


def test_another_versions_request_that_fails(engine: Recording, path: Path) -> None:
    """It fails the load too, for the model is at fault, but where that is allowed. The version's own may not fail."""
    others = borrowed(path, predict_log([1]), predict_log([2]))
    engine.fails_on = [1]
    with pytest.raises(LoadError, match=r"warm-up record 1 of .*others failed: a kernel fails"):
        warm_up(engine, path, others)
    with structlog.testing.capture_logs() as logs:
        assert warm_up(engine, path, others, others_may_fail=True) == (1, 1)
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == [
        "another version's request failed"
    ]
    (path / "assets.extra").mkdir()
    others.rename(path / warmup.REQUESTS_FILE)
    with pytest.raises(LoadError, match="warm-up record 1"):
        warm_up(engine, path, others, others_may_fail=True)


def test_what_is_no_request_for_these_signatures(engine: Recording, path: Path) -> None:
    """It is passed over, recorded for another version: signatures are compared elsewhere. With nothing left a call is made up."""
    other_type = predict_log([5])
    other_type.predict_log.request.inputs["x"].ParseFromString(
        tf.make_tensor_proto([5], tf.int64).SerializeToString()
    )
    unknown = predict_log([6])
    unknown.predict_log.request.model_spec.signature_name = "gone"
    unfit = [predict_log([3], "gone"), other_type, unknown]
    others = borrowed(path, *unfit, predict_log([2]))
    assert warm_up(engine, path, others) == (1, 1)
    assert [inputs["x"].tolist() for _, inputs in engine.calls] == [[2]]
    engine.calls.clear()
    others = borrowed(path, *unfit)
    assert warm_up(engine, path, others) == (1, 0)
    assert [inputs["x"].tolist() for _, inputs in engine.calls] == [[0]]


def test_a_shape_that_signatures_do_not_allow(model_dir: Callable[[str], Path], tmp_path: Path) -> None:
    """The model's kernels refuse it, and are not at fault."""
    path = Path(shutil.copytree(model_dir("multi_signature") / "1", tmp_path / "1"))
    others = borrowed(path, predict_log([1]))
    assert warm_up(loaded(path), path, others) == (3, 0)


def examples_log(field: str, *signatures: str) -> Any:
    """For two examples with x = 1 and x = 2."""
    entry = tfs.PredictionLog()
    request = getattr(entry, field).request
    for signature in signatures:
        spec = request.tasks.add() if field == "multi_inference_log" else request
        if field == "multi_inference_log":
            spec.method_name = f"tensorflow/serving/{signature.partition('_')[0]}"
        spec.model_spec.name, spec.model_spec.signature_name = "another name", signature
    for x in (1.0, 2.0):
        request.input.example_list.examples.add().features.feature["x"].float_list.value.append(x)
    return entry


@pytest.mark.parametrize("name", ["examples", "examples_tf1"])
def test_other_methods(model_dir: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    """Recorded Classify, Regress and MultiInference requests are replayed; one that fails fails the load."""
    path = Path(shutil.copytree(model_dir(name) / "1", tmp_path / "1"))
    engine = loaded(path)
    recorded = [
        examples_log("classify_log", "classify_both"),
        examples_log("regress_log", "regress_x_to_y"),
        examples_log("multi_inference_log", "regress_x_to_y", "classify_x_to_y"),
        tfs.PredictionLog(),
    ]
    write(path, [entry.SerializeToString() for entry in recorded])
    warm_up(engine, path)
    found = ["classify_both", "regress_x_to_y", "regress_x_to_y", "classify_x_to_y"]
    assert [signature for signature, _ in engine.calls] == found
    shutil.rmtree(path / "assets.extra")
    write(path, [examples_log("regress_log", "classify_both").SerializeToString()])
    with pytest.raises(LoadError, match=r"warm-up record 1 of .* failed: Expected one output Tensor\."):
        warm_up(engine, path)


@pytest.mark.parametrize("field", ["session_run_log", "predict_streamed_log"])
def test_unsupported_records(engine: Recording, path: Path, field: str) -> None:
    """What TensorFlow Serving does not replay fails the load, as there."""
    refused = tfs.PredictionLog()
    getattr(refused, field).SetInParent()
    write(path, [refused.SerializeToString()])
    with pytest.raises(LoadError, match=f"Unsupported log_type for warmup: {field}"):
        warm_up(engine, path)


@pytest.mark.parametrize("count", [1000, 1001])
def test_record_limit(engine: Recording, path: Path, count: int) -> None:
    """1000 records are replayed, one more fails the load."""
    write(path, [predict_log([1]).SerializeToString()] * count)
    if count > warmup.MAX_RECORDS:
        with pytest.raises(LoadError, match=r"Number of warmup records exceeds the maximum \(1000\)"):
            warm_up(engine, path)
    else:
        warm_up(engine, path)
    assert len(engine.calls) == 1000


def test_garbage(engine: Recording, path: Path) -> None:
    """What is no TFRecord file, and a record that is no PredictionLog, fail the load and say so."""
    write(path, [b"\xff\xff"])
    with pytest.raises(LoadError, match="Failed to parse warmup record 1"):
        warm_up(engine, path)
    (path / warmup.REQUESTS_FILE).write_bytes(b"no record" * 20)
    with pytest.raises(LoadError, match="verify your warmup data is in TFRecord format"):
        warm_up(engine, path)


def test_another_versions_file_that_cannot_be_read(engine: Recording, path: Path) -> None:
    """It is no fault of this version's: what could be read was sent, and with none of it a call is made up."""
    unsupported = tfs.PredictionLog()
    unsupported.session_run_log.SetInParent()
    others = borrowed(path, predict_log([1]), unsupported, predict_log([2]))
    assert warm_up(engine, path, others) == (1, 1)
    for data in (b"no record" * 20, others.read_bytes()[:-1]):
        others.write_bytes(data)
        with structlog.testing.capture_logs() as logs:
            calls, _ = warm_up(engine, path, others)
        assert calls == 1
        assert "another version's requests cannot be read" in [line["event"] for line in logs]


def test_synthetic_calls(model_dir: Callable[[str], Path]) -> None:
    """Without recorded requests each signature is called once with a batch of one, where its shapes are known."""
    path = model_dir("multi_signature") / "1"
    engine = loaded(path)
    assert warm_up(engine, path) == (3, 0)
    calls = {signature: {alias: x.shape for alias, x in inputs.items()} for signature, inputs in engine.calls}
    assert calls == {
        "serving_default": {"x": (1, 3)},
        "add": {"a": (1,), "b": ()},
        "classify": {"inputs": (1,)},
    }


def test_synthetic_calls_of_more_rows(engine: Recording, path: Path) -> None:
    """As many as the smallest batch has that the model is asked for."""
    assert warm_up(engine, path, rows=8)[0] > 0
    assert {inputs["x"].shape for _, inputs in engine.calls} == {(8,)}


def test_synthetic_call_that_fails(capsys: pytest.CaptureFixture[str], engine: Recording, path: Path) -> None:
    """A synthetic call that the model refuses is logged and not fatal."""

    def refuse(*_: object) -> list[Array]:
        raise PoolError(Code.INVALID_ARGUMENT, "zeros mean nothing to me")

    engine.run = refuse  # type: ignore[method-assign,assignment]
    assert warm_up(engine, path) == (0, 0)
    logged = capsys.readouterr()
    assert "zeros mean nothing to me" in logged.out + logged.err


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (TensorSpec(DT_FLOAT, (None, 2)), np.zeros((1, 2), np.float32)),
        (TensorSpec(DT_FLOAT, ()), np.zeros((), np.float32)),
        (TensorSpec(DT_STRING, (None,)), np.array([b""], object)),
        (TensorSpec(DT_FLOAT, (None, None)), None),
        (TensorSpec(DT_FLOAT, None), None),
        (TensorSpec(DT_RESOURCE, ()), None),
        (TensorSpec(0, ()), None),
    ],
    ids=["open batch", "scalar", "string", "open inner", "open rank", "resource", "composite"],
)
def test_synthetic_inputs(spec: TensorSpec, expected: Array | None) -> None:
    """Only the batch may be open; strings are empty; what NumPy cannot hold is left alone."""
    inputs = warmup.synthetic_inputs(Signature("s", "", {"x": spec}, {}, {}))
    if expected is None:
        assert inputs is None
    else:
        assert inputs is not None
        assert (inputs["x"].dtype, inputs["x"].shape) == (expected.dtype, expected.shape)
        assert np.all(inputs["x"] == expected)


def test_synthetic_inputs_take_defaults() -> None:
    """An input with a default gets it, its shape known or not."""
    default = np.array(5.0, np.float32)
    inputs = warmup.synthetic_inputs(
        Signature("s", "", {"x": TensorSpec(DT_FLOAT, None)}, {}, {"x": default})
    )
    assert inputs is not None
    assert inputs["x"] is default


def test_a_worker_is_warm_before_it_is_ready(start_pool: PoolStarter, path: Path) -> None:
    """A recorded request that fails keeps the worker from READY, for good, with the record's error."""
    write(path, [predict_log([1]).SerializeToString(), predict_log([1], "typo").SerializeToString()])
    pool = start_pool("--model", f"half={path.parent}", "--cpu-slots", 1)
    worker = until(lambda: (w := pool.workers()["half@1.cpu0.0"])["state"] in ("READY", "FATAL") and w, 60)
    assert (worker["state"], worker["generation"]) == ("FATAL", 1)
    assert f"warm-up record 2 of {path / warmup.REQUESTS_FILE} failed: " in worker["error"]


def test_a_recorded_request_runs_as_a_clients_does(start_pool: PoolStarter, tmp_path: Path) -> None:
    """Padded to a size that is allowed: a model that takes four rows alone would refuse it as it was sent."""
    module = tf.Module()
    module.halve = tf.function(
        lambda x: {"y": tf.reshape(tf.reshape(x, [2, 2]) / 2, [4])},
        input_signature=[tf.TensorSpec([4], tf.float32, "x")],
    )
    path = tmp_path / "four" / "1"
    tf.saved_model.save(module, str(path), {"serving_default": module.halve})
    write(path, [predict_log([1, 2, 3]).SerializeToString()])
    parameters = tmp_path / "parameters"
    parameters.write_text("max_batch_size { value: 4 } allowed_batch_sizes: 4")
    batched = ("--enable-batching", "--batching-parameters-file", parameters)
    pool = start_pool("--model", f"four={path.parent}", "--cpu-slots", 1, *batched)
    worker = until(lambda: (w := pool.workers()["four@1.cpu0.0"])["state"] in ("READY", "FATAL") and w, 60)
    assert worker["state"] == "READY", worker
