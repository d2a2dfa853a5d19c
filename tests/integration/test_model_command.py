"""`mpspool model` and the memory in `mpspool status`, as a user calls them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import models
from tests.conftest import PoolStarter
from tests.pool import Pool, cli

ModelDir = Callable[[str], Path]

PREDICT = "tensorflow/serving/predict"
LARGE_BYTES = models.LARGE_ROWS * models.LARGE_COLUMNS * 4
# What exporters of today do not write, but TensorFlow Serving takes.
ODD_TENSORS = """
saved_model_schema_version: 1
meta_graphs {
  meta_info_def { tags: "serve" }
  signature_def { key: "odd [one]" value {
    inputs { key: "anything" value { name: "a:0" dtype: DT_STRING tensor_shape { unknown_rank: true } } }
    inputs { key: "one" value { name: "b:0" dtype: DT_FLOAT tensor_shape {} } }
    inputs { key: "ragged" value { composite_tensor {
      components { name: "c:0" dtype: DT_FLOAT tensor_shape { dim { size: -1 } } }
      components { name: "d:0" dtype: DT_INT64 tensor_shape { dim { size: -1 } } } } } }
    inputs { key: "sparse" value { dtype: DT_INT32 tensor_shape { dim { size: -1 } dim { size: 3 } }
      coo_sparse { values_tensor_name: "e:0" indices_tensor_name: "f:0" dense_shape_tensor_name: "g:0" } } }
    outputs { key: "handle" value { name: "h:0" dtype: DT_RESOURCE tensor_shape {} } }
    outputs { key: "nothing" value { } }
    outputs { key: "ref" value { name: "i:0" dtype: DT_FLOAT_REF tensor_shape { dim { size: 2 } } } } } }
}
"""


@pytest.fixture(scope="module")
def pool(start_module_pool: PoolStarter, model_dir: ModelDir) -> Pool:
    """A model whose weights are shared and one without any, two workers each."""
    named = [f"large={model_dir('large')}", f"strings={model_dir('strings')}"]
    arguments = [word for name in named for word in ("--model", name)]
    return start_module_pool(*arguments, "--cpu-slots", 2, "--intra-op-threads", 1).wait()


def shown(*args: object) -> str:
    """What the command prints; nothing of TensorFlow's own on standard error."""
    done = cli("model", *args)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def described(*args: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shown(*args, "--json"))
    return found


def refused(*args: object) -> str:
    """The one line of a refusal."""
    done = cli("model", *args)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    return done.stderr


def tensor(
    dtype: str, shape: list[int | None] | None, kind: str = "dense", *, optional: bool = False
) -> object:
    return {"dtype": dtype, "shape": shape, "kind": kind, "optional": optional}


def test_a_model_of_the_pool(pool: Pool, model_dir: ModelDir) -> None:
    """Its files, and what its workers share."""
    found = described("large", "--run-dir", pool.run_dir)
    signature = {
        "method": PREDICT,
        "inputs": {"ids": tensor("int64", [None])},
        "outputs": {"rows": tensor("float32", [None, models.LARGE_COLUMNS])},
    }
    shape = [models.LARGE_ROWS, models.LARGE_COLUMNS]
    table = {"name": "table", "dtype": "float32", "shape": shape, "bytes": LARGE_BYTES}
    assert found == {
        "model": "large",
        "version": 1,
        "state": "AVAILABLE",
        "error": "",
        "weights": {
            "shared_bytes": LARGE_BYTES,
            "private_bytes": 0,
            "shared_variables": 1,
            "private_variables": 0,
            "why": {},
            "excess_bytes": 0,
        },
        "path": str(model_dir("large") / "1"),
        "signatures": {"serving_default": signature},
        "variables": {"count": 1, "bytes": LARGE_BYTES, "largest": [table]},
        "cpu_only": [],
        "unregistered": [],
        "batch_functions": [],
    }
    text = shown("large", "--version", 1, "--run-dir", pool.run_dir)
    assert "large version 1  AVAILABLE" in text
    assert "67.1 MB in 1 variable: one copy for all workers" in text
    assert "every operation has a kernel" in text


def test_what_the_pool_does_not_have_is_refused(pool: Pool) -> None:
    """With what it has."""
    assert "no model 'nope'; it has: large, strings" in refused("nope", "--run-dir", pool.run_dir)
    assert "no version 7 of 'large'; it has: 1" in refused("large", "--version", 7, "--run-dir", pool.run_dir)


def test_the_status_shows_memory(pool: Pool) -> None:
    """Each worker's, and what a version shares; the workers of one copy count it only once."""
    status = pool.status()
    memory = [worker["memory"] for worker in status["workers"]]
    assert len(memory) == 4
    for one in memory:
        assert 10e6 < one["private_bytes"] < one["pss_bytes"] < one["private_bytes"] + one["shared_bytes"]
    text = cli("status", "--run-dir", pool.run_dir).stdout
    assert "67.1 MB shared" in text
    assert "PSS MB  own MB" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_saved_model_needs_no_pool(model_dir: ModelDir) -> None:
    """By its base path or its version folder; strings and tables have no GPU kernels."""
    base_path = model_dir("strings")
    found = described("--path", base_path)
    assert found == described("--path", base_path / "1")
    assert found["path"] == str(base_path / "1")
    assert found["variables"] == {"count": 0, "bytes": 0, "largest": []}
    ops = {one["op"] for one in found["cpu_only"]}
    assert {"StringToHashBucketFast", "StringJoin", "LookupTableFindV2"} <= ops
    text = shown("--path", base_path, "--version", 1)
    assert "StringToHashBucketFast" in text
    assert "weights in memory" not in text


def test_slices_are_one_variable(model_dir: ModelDir) -> None:
    """A partitioned one has its whole shape and size; what training left is in the checkpoint too."""
    variables = described("--path", model_dir("ranker_ref_parts"))["variables"]
    assert variables["count"] == 4
    shapes = {one["name"]: (one["shape"], one["bytes"]) for one in variables["largest"]}
    assert shapes == {
        "ranker/table": ([1000, 32], 128_000),
        "slot": ([1000, 32], 128_000),
        "ranker/w": ([128, 8], 4096),
        "ranker/b": ([8], 32),
    }


def test_every_type_is_shown(model_dir: ModelDir) -> None:
    """float8 and strings among the variables, scalars and empty ones."""
    found = described("--path", model_dir("tables"))
    assert found["variables"]["count"] == 25
    casts = [one["types"] for one in found["cpu_only"] if one["op"] == "Cast"]
    assert casts == ["DstT=float64, SrcT=float8_e4m3fn", "DstT=float64, SrcT=float8_e5m2"]


def test_odd_tensors_are_shown(tmp_path: Path) -> None:
    """Sparse, composite and unknown ones, resources and references, names that look like markup."""
    (tmp_path / "saved_model.pbtxt").write_text(ODD_TENSORS)
    (signature,) = described("--path", tmp_path)["signatures"].values()
    assert signature == {
        "method": "",
        "inputs": {
            "anything": tensor("string", None),
            "one": tensor("float32", []),
            "ragged": tensor("float32, int64", None, "composite"),
            "sparse": tensor("int32", [None, 3], "sparse"),
        },
        "outputs": {
            "handle": tensor("resource", []),
            "nothing": tensor("unknown", []),
            "ref": tensor("float32_ref", [2]),
        },
    }
    text = shown("--path", tmp_path)
    for words in ("signature odd [one]", "any rank", "scalar", "[?, 3]", "composite", "variables  none"):
        assert words in text


def test_a_library_makes_its_operations_known(model_dir: ModelDir, testing_ops: Path) -> None:
    """Without it the operation is named, with the remedy; with it, it is one for the CPU."""
    path = model_dir("aborter")
    assert "TestingAbort; name the library that defines it with --custom-op" in shown("--path", path)
    found = described("--path", path, "--custom-op", testing_ops)
    assert found["unregistered"] == []
    assert [one["op"] for one in found["cpu_only"]] == ["TestingAbort"]


def test_batches_within_the_graph_are_told(model_dir: ModelDir) -> None:
    """The op, by how long each call is to wait for others, and for fewer than how many rows."""
    path = model_dir("batches_itself")
    one = {"name": "batch/BatchFunction", "max_batch_size": 8, "batch_timeout_micros": 500_000}
    assert described("--path", path)["batch_functions"] == [one]
    assert "batches within the graph: batch/BatchFunction" in shown("--path", path)


def test_the_tags_can_be_named(model_dir: ModelDir) -> None:
    """The refusal shows those there are, and they can be given."""
    path = model_dir("training_tags")
    assert "{train}, {gpu, serve}: set saved_model_tags" in refused("--path", path)
    found = described("--path", path, "--saved-model-tag", "serve", "--saved-model-tag", "gpu")
    assert list(found["signatures"]) == ["serving_default"]


def test_check_reads_every_model(model_dir: ModelDir, tmp_path: Path) -> None:
    """`start --check` finds what only a look into the files shows, of each model; sound ones are well."""
    cut = models.corrupt(model_dir("widedeep"), "truncated", tmp_path / "cut")
    bare = tmp_path / "bare"
    shutil.copytree(model_dir("widedeep"), bare)
    shutil.rmtree(bare / "1" / "variables")
    good = (
        "--model",
        f"good={model_dir('half_plus_two')}",
        "--cpu-slots",
        1,
        "--grpc-port",
        0,
        "--rest-port",
        0,
    )
    strange = ("--model", f"strange={model_dir('aborter')}")
    done = cli("start", *good, "--model", f"cut={cut}", "--model", f"bare={bare}", *strange, "--check")
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert [error.split(": ")[1] for error in errors] == ["models.cut", "models.bare", "models.strange"]
    assert "variables.data-00000-of-00001 is cut" in errors[0]
    assert "variables.index is missing, and the model restores" in errors[1]
    assert "TestingAbort; name the library that defines it with custom_ops in the pool file" in errors[2]
    waiting = ("--model", f"waiting={model_dir('batches_itself')}")
    done = cli("start", *good, *waiting, "--check")
    assert (
        "warning: models.waiting: batch/BatchFunction is to join calls to batches of up to 8 rows"
        in done.stderr
    )
    told = "It can start, with the warnings above; nothing was started."  # nobody can reach it
    assert (done.returncode, told in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize("how", ["truncated", "missing_shard", "missing_index", "bad_index"])
def test_a_damaged_checkpoint_is_refused(model_dir: ModelDir, tmp_path: Path, how: str) -> None:
    """In one line, which names the file and what to do."""
    path = models.corrupt(model_dir("widedeep"), how, tmp_path / "damaged")
    line = refused("--path", path)
    assert f"{path}/1/variables" in line
    assert " again" in line


def test_what_is_no_saved_model_is_refused(tmp_path: Path, model_dir: ModelDir) -> None:
    """Nothing there, nothing in it, something else, or not in that version."""
    (tmp_path / "1").mkdir()
    assert "no such path" in refused("--path", tmp_path / "nowhere")
    assert "is not a SavedModel" in refused("--path", tmp_path)
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"\xff no SavedModel")
    assert "copy or export it again" in refused("--path", tmp_path)
    (tmp_path / "1" / "saved_model.pb").unlink()
    (tmp_path / "1" / "saved_model.pbtxt").write_text("no text format")
    assert "cannot be parsed" in refused("--path", tmp_path)
    path = model_dir("half_plus_two")
    assert "the latest version is 1" in refused("--path", path, "--version", 3)
    assert "leave --version out" in refused("--path", path / "1", "--version", 1)
