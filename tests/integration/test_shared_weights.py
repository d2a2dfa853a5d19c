"""Weights bound from a segment: the same results as private ones, no copy, and what cannot be shared."""

from __future__ import annotations

import dataclasses
import hashlib
import mmap
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from mpspool.core.segment_file import PAGE
from mpspool.core.settings import ModelSettings, WeightsSettings
from mpspool.core.weights import COPIED, WRITTEN, WeightsReport
from mpspool.worker.engine.base import Engine
from mpspool.worker.engine.load import LoadError, load
from mpspool.worker.engine.session import SessionEngine
from mpspool.worker.weights import binding, buffers, eager
from mpspool.worker.weights.attach import UNTRIED, checked
from mpspool.worker.weights.bound import Bound
from mpspool.worker.weights.memory import private_bytes
from mpspool.worker.weights.publish import publish
from mpspool.worker.weights.report import Account
from mpspool.worker.weights.rewriting import Nodes
from mpspool.worker.weights.segment import Segment
from tests import models

ModelDir = Callable[[str], Path]
Segments = Callable[[Path], Segment]

WORDS = np.array([b"plum", b"none", b"apple"], object)
IDS = np.array([[0, 333, 334, 999], [1, 2, 3, 4], [667, 666, 668, 5]])
RANKER = {"ids": IDS, "word": WORDS}
KERAS = {"word": WORDS[:, None], "x": np.linspace(-2, 2, 24, dtype=np.float32).reshape(3, 8)}
WIDEDEEP = {
    "cat": np.random.default_rng(1).integers(0, 1000, (5, 26)),
    "dense": np.random.default_rng(2).normal(size=(5, 13)).astype(np.float32),
}
INPUTS = {
    "widedeep": WIDEDEEP,
    "ranker_ref": RANKER,
    "ranker_resource": RANKER,
    "ranker_ref_parts": RANKER,
    "ranker_resource_parts": RANKER,
    "keras_words_exported": KERAS,
    "keras_words_saved": {"inputs": KERAS["word"], "inputs_1": KERAS["x"]},
    "odd": {"word": WORDS},
    "tables": {"word": WORDS},
    "mutable_table_tf1": {"word": WORDS},
    "updated": {"x": np.float32(2)},
    "updated_tf1": {"x": np.float32(2)},
    "assigned": {"x": np.float32(2)},
    "uneven": {"ids": np.array([0, 1, 77_777, 131_070])},
    "uneven_tf1": {"ids": np.array([0, 1, 77_777, 131_070])},
}
TABLE_BYTES = models.LARGE_ROWS * models.LARGE_COLUMNS * 4


def settings(base_path: Path, *, shared: str = "auto", engine: str = "auto") -> ModelSettings:
    weights = WeightsSettings(shared=shared)
    path = str(base_path / "1")
    return ModelSettings(name=base_path.name, version=1, path=path, slots=[], engine=engine, weights=weights)


@pytest.fixture(scope="module")
def segments() -> Segments:
    """Publishes a model, once, and gives a mapping of its own for every call."""
    published = cache(lambda base_path: publish(settings(base_path, shared="on"))[0])
    return lambda base_path: Segment.open(os.dup(published(base_path)))


def content(segment: Segment) -> str:
    """A digest of the whole file."""
    size = os.fstat(segment.fd).st_size
    return hashlib.sha256(os.pread(segment.fd, size, 0)).hexdigest()


def predict(engine: Engine, inputs: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Every output's dtype, shape and bytes."""
    names = sorted(engine.signatures["serving_default"].outputs)
    values = engine.run("serving_default", {name: np.asarray(value) for name, value in inputs.items()}, names)
    return {
        name: (value.dtype, value.shape, value.tolist() if value.dtype == object else value.tobytes())
        for name, value in zip(names, values, strict=True)
    }


@pytest.mark.parametrize(
    ("name", "engine", "shared", "private"),
    [
        ("widedeep", "session", 32, 2),
        ("widedeep", "tf2", 32, 2),
        ("ranker_ref", "session", 2, 1),
        ("ranker_resource", "session", 3, 1),
        ("ranker_ref_parts", "session", 4, 3),
        ("ranker_resource_parts", "session", 5, 3),
        ("keras_words_exported", "session", 16, 3),
        ("keras_words_exported", "tf2", 16, 3),
        ("keras_words_saved", "auto", 8, 1),
        ("odd", "session", 16, 7),
        ("odd", "tf2", 16, 7),
        ("tables", "session", 16, 9),
        ("tables", "tf2", 16, 9),
        ("mutable_table_tf1", "session", 1, 2),
        ("updated", "session", 1, 0),
        ("updated", "tf2", 1, 0),
        ("updated_tf1", "session", 1, 1),
        ("assigned", "session", 2, 0),
        ("assigned", "tf2", 2, 0),
        ("uneven", "session", 1, 0),
        ("uneven", "tf2", 1, 0),
        ("uneven_tf1", "session", 1, 0),
    ],
)
def test_same_results(
    model_dir: ModelDir, segments: Segments, name: str, engine: str, shared: int, private: int
) -> None:
    """Each kind of model gives bit for bit what it gives with private weights, call after call."""
    base_path = model_dir(name)
    segment = segments(base_path)
    before = content(segment)
    alone = load(settings(base_path, shared="off", engine=engine))
    together = load(settings(base_path, shared="on", engine=engine), segment=segment)
    assert together.name == alone.name
    report = together.weights()
    for _ in range(3):
        assert predict(together, INPUTS[name]) == predict(alone, INPUTS[name])
        assert together.weights().excess_bytes == 0
    assert content(segment) == before
    assert (report.shared_variables, report.private_variables) == (shared, private)
    assert report.shared_bytes > 0
    assert COPIED not in report.why
    assert WRITTEN not in report.why
    assert alone.weights().why.keys() == {"weights.shared: off"}
    assert alone.weights().private_bytes >= report.shared_bytes + report.private_bytes
    assert alone.weights().shared_bytes == alone.weights().shared_variables == 0


def test_reasons(model_dir: ModelDir, segments: Segments) -> None:
    """What cannot be shared is named with its reason, and everything else is shared."""
    base_path = model_dir("tables")
    report = load(settings(base_path), segment=segments(base_path)).weights()
    uneven = report.why.pop("less than 64 KiB, and no multiple of 64 bytes")
    assert sorted(uneven) == ["counter", "scalar", "uneven"]
    assert report.why == {
        "string": ["words"],
        "empty": ["empty"],
        "dtype float8_e4m3fn": ["typed/float8_e4m3fn"],
        "dtype float8_e5m2": ["typed/float8_e5m2"],
        "a table": ["mutable/.ATTRIBUTES/table-keys", "mutable/.ATTRIBUTES/table-values"],
    }
    # 64 x 4 of 3 types of one byte, 4 of two, 3 of four, 4 of eight and one of 16; and `unshaped`.
    assert report.shared_bytes == 64 * 4 * (3 * 1 + 4 * 2 + 3 * 4 + 4 * 8 + 16) + 32 * 2 * 4


def test_a_batch_within_the_graph_is_not_waited_for(model_dir: ModelDir, segments: Segments) -> None:
    """As where the weights are private."""
    base_path = model_dir("batches_itself")
    loaded = load(settings(base_path, shared="on"), segment=segments(base_path))
    assert loaded.weights().shared_variables == 1

    def took_s() -> float:
        began_s = time.monotonic()
        loaded.run("serving_default", {"x": np.zeros(2, np.float32)}, ["y"])
        return time.monotonic() - began_s

    assert min(took_s() for _ in range(5)) < 0.5


def test_updates_are_private(model_dir: ModelDir, segments: Segments) -> None:
    """A model that writes to its variables writes to its own pages: another worker starts as it did."""
    base_path = model_dir("updated")
    first, second = (load(settings(base_path), segment=segments(base_path)) for _ in range(2))
    for calls in (1, 2, 3):
        (total,) = first.run("serving_default", {"x": np.array(1, np.float32)}, ["total"])
        np.testing.assert_array_equal(total, np.arange(4096, dtype=np.float32) + calls)
    (total,) = second.run("serving_default", {"x": np.array(0, np.float32)}, ["total"])
    np.testing.assert_array_equal(total, np.arange(4096, dtype=np.float32))


@pytest.mark.parametrize("engine", ["session", "tf2"])
@pytest.mark.parametrize(("name", "written"), [("updated", "total"), ("assigned", "last")])
def test_what_the_model_writes_to(
    model_dir: ModelDir, segments: Segments, name: str, written: str, engine: str
) -> None:
    """In place or anew, what a model writes is its own: private for that reason, and no excess."""
    base_path = model_dir(name)
    loaded = load(settings(base_path, engine=engine), segment=segments(base_path))
    before = loaded.weights()
    predict(loaded, INPUTS[name])
    after = loaded.weights()
    assert (after.why, after.excess_bytes) == ({WRITTEN: [written]}, 0)
    assert after.private_bytes == 4096 * 4
    assert after.shared_bytes == before.shared_bytes - 4096 * 4
    assert after.private_variables == 1


@pytest.mark.parametrize("engine", ["session", "tf2"])
def test_a_copy_is_named(
    model_dir: ModelDir, segments: Segments, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Of memory that TensorFlow does not own it copies what is gathered from, however small: found, by name."""
    monkeypatch.setattr(Segment, "array", borrowed)
    base_path = model_dir("widedeep")
    loaded = load(settings(base_path, engine=engine), segment=segments(base_path))
    before = loaded.weights()
    assert COPIED not in before.why
    predict(loaded, INPUTS["widedeep"])
    after = loaded.weights()
    largest, *others = after.why[COPIED]
    assert (largest, len(others), {name.partition("/")[0] for name in others}) == ("wide", 4, {"embeddings"})
    # 26 tables of 1000 x 8 and the wide one of 26,000.
    assert after.excess_bytes == (26 * 8_000 + 26_000) * 4
    assert after.private_variables == before.private_variables + 27
    assert after.shared_bytes == before.shared_bytes - after.excess_bytes


@pytest.mark.parametrize("engine", ["session", "tf2"])
def test_a_copy_at_once(
    model_dir: ModelDir, segments: Segments, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Variables that were given a copy when they were bound are not shared, and "on" refuses the model."""
    real = Segment.array

    def copied(self: Segment, key: str, spec: str = "", *, spare: bool = False) -> Any:
        array = real(self, key, spec, spare=spare)
        return None if array is None else array.copy()

    monkeypatch.setattr(Segment, "array", copied)
    base_path = model_dir("large")
    report = load(settings(base_path, engine=engine), segment=segments(base_path)).weights()
    assert report == WeightsReport(
        private_bytes=TABLE_BYTES, private_variables=1, why={COPIED: ["table"]}, excess_bytes=TABLE_BYTES
    )
    with pytest.raises(LoadError, match="none of its variables can be shared: TensorFlow copied it"):
        load(settings(base_path, engine=engine, shared="on"), segment=segments(base_path))


def test_partly_written(model_dir: ModelDir, segments: Segments) -> None:
    """A variable of which some rows were written to stays a shared one, without its pages that are private."""
    segment = segments(model_dir("large"))
    segment.map()
    table = segment.array("table/.ATTRIBUTES/VARIABLE_VALUE")
    assert table is not None
    account = Account(segment.manifest)
    account.share("table/.ATTRIBUTES/VARIABLE_VALUE")
    bound = Bound(segment, account, segment.manifest.tensors, lambda: [table])
    table[0] = table[1000] = 1
    report = bound.report()
    assert (report.private_bytes, report.shared_bytes) == (2 * PAGE, TABLE_BYTES - 2 * PAGE)
    assert (report.shared_variables, report.private_variables) == (1, 0)
    assert (report.why, report.excess_bytes) == ({WRITTEN: ["table"]}, 0)


def test_variables_on_a_device(
    model_dir: ModelDir, segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a Session has more than CPUs each variable's own device decides whether it is asked."""
    device = tf.compat.v1.Session.list_devices
    gpu = SimpleNamespace(device_type="GPU")
    monkeypatch.setattr(tf.compat.v1.Session, "list_devices", lambda self: [*device(self), gpu])
    monkeypatch.setattr(Segment, "array", borrowed)
    base_path = model_dir("large")
    loaded = load(settings(base_path), segment=segments(base_path))
    predict(loaded, {"ids": [1]})
    assert loaded.weights().why == {COPIED: ["table"]}
    monkeypatch.setattr(buffers, "_is_cpu", lambda device: device == "")
    loaded = load(settings(base_path), segment=segments(base_path))
    predict(loaded, {"ids": [1]})
    assert loaded.weights().why == {}


def test_without_the_private_call(
    model_dir: ModelDir, segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TensorFlow that lacks it serves all the same, from shared weights, of which nothing more is known."""
    name = "_make_callable_from_options"
    owner = next(found for found in tf.compat.v1.Session.__mro__ if name in vars(found))
    monkeypatch.delattr(owner, name)
    base_path = model_dir("widedeep")
    loaded = load(settings(base_path, engine="session"), segment=segments(base_path))
    assert predict(loaded, WIDEDEEP) == predict(load(settings(base_path, shared="off")), WIDEDEEP)
    report = loaded.weights()
    assert (report.shared_variables, report.excess_bytes, COPIED in report.why) == (32, 0, False)


def borrowed(self: Segment, key: str, spec: str = "", **_: bool) -> Any:
    """Without the spare element a slice is the whole, and not TensorFlow's own."""
    array = _array(self, key, spec)
    return None if array is None else array.reshape(-1)


_array = Segment.array


def test_written_reference_variables(model_dir: ModelDir, segments: Segments) -> None:
    """A reference variable that the serving graph writes to stays one, and private; its neighbour is shared."""
    base_path = model_dir("updated_tf1")
    report = load(settings(base_path), segment=segments(base_path)).weights()
    assert report.why == {"AssignAdd takes a reference to it": ["total"]}
    assert report.private_bytes == report.shared_bytes == 4096 * 4


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("large", "session"),
        ("large", "tf2"),
        ("large_tf1", "session"),
        ("uneven", "session"),
        ("uneven", "tf2"),
        ("uneven_tf1", "session"),
    ],
)
def test_no_silent_copy(model_dir: ModelDir, name: str, engine: str) -> None:
    """Gathering all rows of a shared table costs no memory of its size, nor does asking where it lies."""
    assert growth(model_dir(name), engine, "owned") < models.UNEVEN_ROWS * models.UNEVEN_COLUMNS * 4 // 2


@pytest.mark.parametrize("engine", ["session", "tf2"])
def test_silent_copy(model_dir: ModelDir, engine: str) -> None:
    """The control: memory that TensorFlow does not take for its own is copied, and the measure shows it."""
    assert growth(model_dir("large"), engine, "borrowed") > TABLE_BYTES * 0.9


def growth(base_path: Path, engine: str, memory: str) -> int:
    """What measure() says, in a process where nothing else was loaded before."""
    command = [sys.executable, "-m", __name__, str(base_path), engine, memory]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    child = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, env=environment, cwd=models.REPOSITORY, timeout=120
    )
    return int(child.stdout.split()[-1])


def measure(base_path: Path, engine: str, memory: str) -> int:
    """The private memory that loading the model and gathering all of its table took, in bytes."""
    segment = Segment.open(publish(settings(base_path))[0])
    if memory == "borrowed":
        Segment.array = borrowed  # type: ignore[method-assign, assignment]
    rows = segment.manifest.tensors[0].shape[0]
    before = private_bytes()
    model = load(settings(base_path, engine=engine, shared="on"), segment=segment)
    for start in range(0, rows, 1024):
        model.run("serving_default", {"ids": np.arange(start, min(rows, start + 1024))}, ["rows"])
        model.weights()
    return private_bytes() - before


def with_init_op(base_path: Path, into: Path) -> Path:
    """A copy of the TF2 model "updated" whose init op adds one to its variable."""
    shutil.copytree(base_path, into)
    file = into / "1" / "saved_model.pb"
    saved_model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    meta_graph = saved_model.meta_graphs[0]
    [handle] = [node.name for node in meta_graph.graph_def.node if node.op == "VarHandleOp"]
    nodes = Nodes(meta_graph.graph_def)
    one = nodes.add("Const", dtype=1)
    value = tf.make_tensor_proto(np.ones(4096, np.float32))
    meta_graph.graph_def.node[-1].attr["value"].tensor.CopyFrom(value)
    added = nodes.add("AssignAddVariableOp", handle, one, dtype=1)
    init = meta_graph.signature_def["__saved_model_init_op"].outputs["__saved_model_init_op"].name
    next(node for node in meta_graph.graph_def.node if node.name == init).input.append(f"^{added}")
    file.write_bytes(saved_model.SerializeToString())
    return into


def test_what_a_failed_engine_wrote_is_forgotten(
    model_dir: ModelDir, segments: Segments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Session whose init op wrote to the variables, and which cannot serve: the next engine has them as published."""
    base_path = with_init_op(model_dir("updated"), tmp_path / "updated")
    engine = load(settings(base_path, engine="session"), segment=segments(base_path))
    assert engine.weights().why == {WRITTEN: ["total"]}
    (total,) = engine.run("serving_default", {"x": np.float32(0)}, ["total"])
    np.testing.assert_array_equal(total, np.arange(4096, dtype=np.float32) + 1)
    monkeypatch.setattr(SessionEngine, "unready", lambda self: "1 resource is not initialised")
    engine = load(settings(base_path), segment=segments(base_path))
    assert engine.name == "tf2"
    assert engine.weights().why == {}
    (total,) = engine.run("serving_default", {"x": np.float32(0)}, ["total"])
    np.testing.assert_array_equal(total, np.arange(4096, dtype=np.float32))


def twins(folder: Path, kind: str) -> Path:
    """A TF1 model in which several nodes give one variable.

    Args:
        folder: the base path.
        kind: "both" are served, only the one that the saver does not know ("second"), one goes by the other's
            name ("named after"), one is written to ("written"), the saver has both under a key each ("two keys"),
            or they are resource variables ("resource").
    """
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [], name="x")
        values = tf.range(4096, dtype=tf.float32)
        if kind == "resource":
            first: Any = v1.get_variable("first", initializer=values, use_resource=True)
            handle = tf.raw_ops.VarHandleOp(
                dtype=tf.float32, shape=[4096], shared_name="first", name="second"
            )
            second: Any = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
            init: Any = first.initializer
        else:
            name = {} if kind == "named after" else {"shared_name": "one"}
            first = tf.raw_ops.VariableV2(shape=[4096], dtype=tf.float32, name="first", **name)
            name = name or {"shared_name": "first"}
            second = tf.raw_ops.VariableV2(shape=[4096], dtype=tf.float32, name="second", **name)
            init = v1.assign(first, values)
        session.run(init)
        y = tf.identity(second) * x
        if kind == "written":
            y = v1.assign_add(second, tf.fill([4096], x)) + 0.0
        elif kind != "second":
            y = tf.identity(first) + y
        saver = v1.train.Saver({"one": first, "two": second} if kind == "two keys" else {"one": first})
        builder = v1.saved_model.Builder(str(folder / "1"))
        signature = v1.saved_model.predict_signature_def({"x": x}, {"y": y})
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature}, saver=saver)
        builder.save()
    return folder


@pytest.mark.parametrize(
    ("kind", "shared", "private"),
    [
        ("both", 1, 0),
        ("second", 1, 0),
        ("named after", 1, 0),
        ("resource", 1, 0),
        ("written", 0, 1),
        ("two keys", 0, 1),
    ],
)
def test_several_nodes_of_one_variable(
    segments: Segments, tmp_path: Path, kind: str, shared: int, private: int
) -> None:
    """Nodes with one shared name give one variable, as in TensorFlow, whichever of them the checkpoint fills."""
    base_path = twins(tmp_path / "twins", kind)
    alone = load(settings(base_path, shared="off", engine="session"))
    together = load(settings(base_path, engine="session"), segment=segments(base_path))
    for x in (np.float32(2), np.float32(3)):
        assert predict(together, {"x": x}) == predict(alone, {"x": x})
    report = together.weights()
    assert (report.shared_variables, report.private_variables) == (shared, private)
    assert report.excess_bytes == 0


def test_private_bytes() -> None:
    """Pages of a mapped file count when they were written to, and not when they were read."""
    size = 32 << 20
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, size)
    os.pwrite(descriptor, b"x" * size, 0)
    with mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE) as memory:
        array = np.frombuffer(memory, np.uint8)
        before = private_bytes()
        assert array.max() == ord("x")
        assert private_bytes() - before < size // 4
        array[:] = 0
        assert private_bytes() - before > size * 0.9
        del array
    os.close(descriptor)


def with_odd_restore(base_path: Path, into: Path) -> Path:
    """A copy of a TF1 model whose restore op does something more."""
    shutil.copytree(base_path, into)
    file = into / "1" / "saved_model.pb"
    saved_model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    graph_def = saved_model.meta_graphs[0].graph_def
    graph_def.node.add(name="clock", op="Timestamp")
    name = saved_model.meta_graphs[0].saver_def.restore_op_name
    next(node for node in graph_def.node if node.name == name).input.append("^clock")
    file.write_bytes(saved_model.SerializeToString())
    return into


@pytest.mark.parametrize(("name", "shared", "private"), [("ranker_resource", 3, 1), ("ranker_ref", 0, 4)])
def test_restore_op_not_understood(
    model_dir: ModelDir, segments: Segments, tmp_path: Path, name: str, shared: int, private: int
) -> None:
    """Where the restore op does more than is known it is run, and what can be is shared afterwards."""
    base_path = with_odd_restore(model_dir(name), tmp_path / name)
    expected = predict(load(settings(base_path, shared="off")), RANKER)
    engine = load(settings(base_path), segment=segments(base_path))
    assert predict(engine, RANKER) == expected
    assert (engine.weights().shared_variables, engine.weights().private_variables) == (shared, private)
    assert any("its Timestamp clock" in reason for reason in engine.weights().why)


def test_unbound_variable(model_dir: ModelDir, segments: Segments, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that was neither bound nor restored fails the load, and is named."""
    real = binding.restores

    def forgetful(meta_graph: Any) -> Any:
        known = real(meta_graph)
        return dataclasses.replace(known, variables=known.variables[1:])

    monkeypatch.setattr(binding, "restores", forgetful)
    base_path = model_dir("widedeep")
    with pytest.raises(LoadError, match=r"1 resources are not initialised: \w+"):
        load(settings(base_path, engine="session"), segment=segments(base_path))


def test_variable_that_the_walk_misses(
    model_dir: ModelDir, segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The TF2 loader's model is restored whole where not each variable was found, and is right."""
    real = eager._Checkpoint.find

    def forgetful(self: Any, root: Any) -> Any:
        found = real(self, root)
        del found[min(found)]
        return found

    monkeypatch.setattr(eager._Checkpoint, "find", forgetful)
    base_path = model_dir("widedeep")
    expected = predict(load(settings(base_path, shared="off", engine="tf2")), WIDEDEEP)
    engine = load(settings(base_path, engine="tf2"), segment=segments(base_path))
    assert predict(engine, WIDEDEEP) == expected
    assert len(engine.weights().why["not found in the loaded model"]) == 1
    assert engine.weights().shared_variables > 30


def test_model_that_cannot_share(model_dir: ModelDir, segments: Segments) -> None:
    """With "auto" it is loaded with private weights, and says why; with "on" it is refused with that reason."""
    base_path = model_dir("ranker_ref")
    segment = segments(base_path)
    reason = "the TF2 loader shares the variables of TF2 models only"
    engine = load(settings(base_path, engine="tf2"), segment=segment)
    assert engine.weights().shared_variables == 0
    assert [reason in why for why in engine.weights().why] == [True]
    assert predict(engine, RANKER) == predict(load(settings(base_path, engine="tf2", shared="off")), RANKER)
    with pytest.raises(LoadError, match=rf"weights\.shared is on, but .*{reason}"):
        load(settings(base_path, engine="tf2", shared="on"), segment=segment)
    with pytest.raises(LoadError, match=r"weights\.shared is on, but only 8 bytes could be shared"):
        load(settings(base_path, shared="on"), unshared="only 8 bytes could be shared")


def test_nothing_bound(model_dir: ModelDir, segments: Segments) -> None:
    """With "on" a model of which no variable could be bound is refused with the reasons."""
    segment = segments(model_dir("large"))
    assert load(settings(model_dir("ranker_ref")), segment=segment).weights().shared_variables == 0
    with pytest.raises(
        LoadError, match="none of its variables can be shared: the checkpoint has it in other"
    ):
        load(settings(model_dir("ranker_ref"), shared="on"), segment=segment)


def test_without_segment(model_dir: ModelDir) -> None:
    """A private load reports all variables of the checkpoint under the reason that it was given."""
    engine = load(settings(model_dir("half_plus_two")), unshared="only 8 bytes could be shared")
    names = ["a", "b"]
    expected = WeightsReport(
        private_bytes=8, private_variables=2, why={"only 8 bytes could be shared": names}
    )
    assert engine.weights() == expected


if __name__ == "__main__":
    print(measure(Path(sys.argv[1]), *sys.argv[2:]))


def test_a_silent_copy_is_reported(model_dir: ModelDir) -> None:
    """Memory that grew by far more than a model takes shows as excess; what a model takes does not."""
    report = WeightsReport(shared_bytes=500 * 2**20, shared_variables=1)
    path = model_dir("large") / "1"
    before_bytes = private_bytes()
    assert checked(report, before_bytes, path, warm=True) == report
    assert checked(report, before_bytes, path, warm=False).why == {UNTRIED: []}
    copied = bytearray(b"x") * (200 * 2**20)
    assert 100 * 2**20 < checked(report, before_bytes, path, warm=True).excess_bytes < len(copied)
    assert checked(report, before_bytes, path, warm=True, on_gpu=True) == report, "a CUDA context may take it"
