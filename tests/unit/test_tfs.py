"""The messages are TensorFlow Serving's own, and come without TensorFlow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import descriptor_pb2

import mpspool.core
from mpspool.core import tfs

PROTOS = Path(mpspool.core.__file__).parent / "protos"


def _ours(path: Path) -> dict[str, descriptor_pb2.FileDescriptorProto]:
    files = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file
    return {file.name: file for file in files if not file.name.startswith("google/")}


def test_descriptors_are_what_the_protos_compile_to(tmp_path: Path) -> None:
    """The committed descriptor set is not stale: `make protos` was run after the last change."""
    fresh = tmp_path / "fresh.binpb"
    names = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{PROTOS}",
            "--include_imports",
            f"--descriptor_set_out={fresh}",
            *names,
        ],
        check=True,
        timeout=60,
    )
    assert _ours(fresh) == _ours(PROTOS / "descriptors.binpb")


def test_import_brings_no_tensorflow() -> None:
    """Nor numpy, nor gRPC: commands that have no use for them start at once."""
    code = (
        "import sys; import mpspool.core.tfs, mpspool.core.envelope;"
        "print(*{'tensorflow', 'numpy', 'grpc', 'ml_dtypes'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == []


STOCK = """
import warnings; warnings.simplefilter("ignore")
import sys
from tensorflow_serving.apis import (get_model_metadata_pb2, get_model_status_pb2, model_management_pb2, model_service_pb2,
    predict_pb2, prediction_log_pb2, prediction_service_pb2)
from mpspool.core import tfs

def fields(message, stock, seen):
    if message.full_name in seen:
        return
    seen.add(message.full_name)
    for field in message.fields:
        if field.full_name == "tensorflow.serving.ModelConfig.model_id":
            continue  # DeepRec's
        theirs = stock.fields_by_name[field.name]
        ours = (field.number, field.type, field.is_repeated, field.json_name)
        assert ours == (theirs.number, theirs.type, theirs.is_repeated, theirs.json_name), field.full_name
        assert (field.containing_oneof and field.containing_oneof.name) == (
            theirs.containing_oneof and theirs.containing_oneof.name), field.full_name
        if field.enum_type:
            assert field.enum_type.full_name == theirs.enum_type.full_name
            # The stock enum of codes has one value more, which is not for use.
            assert {(v.name, v.number) for v in field.enum_type.values} <= {
                (v.name, v.number) for v in theirs.enum_type.values}, field.enum_type.full_name
        if field.message_type:
            assert field.message_type.full_name == theirs.message_type.full_name
            fields(field.message_type, theirs.message_type, seen)

seen = set()
for module in (predict_pb2, get_model_metadata_pb2, get_model_status_pb2, model_management_pb2, prediction_log_pb2):
    file = tfs.POOL.FindFileByName(module.DESCRIPTOR.name)
    for name, message in file.message_types_by_name.items():
        fields(message, module.DESCRIPTOR.message_types_by_name[name], seen)
for module, name in ((prediction_service_pb2, tfs.PREDICTION_SERVICE), (model_service_pb2, tfs.MODEL_SERVICE)):
    stock = module.DESCRIPTOR.services_by_name[name.rpartition(".")[2]]
    ours = tfs.POOL.FindServiceByName(name)
    assert [(m.name, m.input_type.full_name, m.output_type.full_name) for m in ours.methods] == [
        (m.name, m.input_type.full_name, m.output_type.full_name) for m in stock.methods]
print(len(seen))
"""


def test_messages_are_the_stock_ones() -> None:
    """Each name, number, type, oneof and JSON name is that of the stock API, which loads beside ours."""
    # A process of its own: it is the stock modules in the default pool beside ours that is tried.
    run = subprocess.run(
        [sys.executable, "-c", STOCK],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={"TF_CPP_MIN_LOG_LEVEL": "3", "PATH": ""},
        cwd=Path(mpspool.core.__file__).parents[2],
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 20


def test_raw_request_has_the_numbers_of_the_real_one() -> None:
    """What the worker parses instead of PredictRequest differs from it in how lists are typed only."""
    for raw, real in ((tfs.RawPredictRequest, tfs.PredictRequest), (tfs.RawTensor, tfs.TensorProto)):
        numbers = {field.name: field.number for field in real.DESCRIPTOR.fields}
        assert {field.name: field.number for field in raw.DESCRIPTOR.fields} == numbers


def test_services_list_their_methods() -> None:
    """Every method of both services is known, served or not."""
    assert tfs.methods(tfs.PREDICTION_SERVICE) == [
        "Classify",
        "Regress",
        "Predict",
        "MultiInference",
        "GetModelMetadata",
    ]
    assert tfs.methods(tfs.MODEL_SERVICE) == ["GetModelStatus", "HandleReloadConfigRequest"]


def test_data_types_match_the_enum() -> None:
    """The table has every number of the enum that is no reference, under the enum's own name."""
    enum = tfs.POOL.FindEnumTypeByName("tensorflow.DataType")
    expected = {value.number: value.name for value in enum.values if 0 < value.number < 100}
    assert {number: data_type.name for number, data_type in tfs.DATA_TYPES.items()} == expected


@pytest.mark.parametrize(
    ("number", "text"),
    [(1, "float"), (19, "half"), (0, "INVALID"), (101, "float_ref"), (77, "unknown dtype enum (77)")],
)
def test_type_text(number: int, text: str) -> None:
    """Types are called what TensorFlow calls them, unknown ones included."""
    assert tfs.type_text(number) == text


def test_number_of_is_the_inverse_of_numpy_dtype() -> None:
    """A dtype leads back to its type; a quantized one by its structure."""
    for number, data_type in tfs.DATA_TYPES.items():
        if data_type.numpy_name and not data_type.text.startswith("q"):
            assert tfs.number_of(tfs.numpy_dtype(number)) == number
    assert tfs.number_of(np.dtype([("quint16", np.uint16)])) == 16
    assert tfs.number_of(np.dtype("S3")) == tfs.DT_STRING
    with pytest.raises(KeyError):
        tfs.number_of(np.dtype("M8[s]"))
    with pytest.raises(KeyError):
        tfs.numpy_dtype(20)
