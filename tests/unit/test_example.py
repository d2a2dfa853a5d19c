"""The first request that a start suggests: what the signature takes, read from the SavedModel without TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mpspool.core import json_tensors, tfs
from mpspool.core.settings import ModelSettings
from mpspool.supervisor.planning.example import UNKNOWN, example_input

FLOAT, INT32, STRING, RESOURCE, INT64, BOOL = 1, 3, 7, 20, 9, 10


def info(dtype: int, *sizes: int) -> Any:
    found = tfs.TensorInfo(name="x:0", dtype=dtype)
    found.tensor_shape.SetInParent()
    for size in sizes:
        found.tensor_shape.dim.add(size=size)
    return found


def delimited(number: int, content: bytes) -> bytes:
    size, head = len(content), bytearray([number << 3 | 2])
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(head) + bytes([size]) + content


def graph(inputs: dict[str, Any], tags: Sequence[str] = ("serve",), key: str = "serving_default") -> bytes:
    """A MetaGraphDef with one signature, and a graph that is none before it."""
    known = tfs.SignatureDefMap()
    for alias, value in inputs.items():
        known.signature_def[key].inputs[alias].CopyFrom(value)
    known.signature_def[key].outputs["y"].CopyFrom(info(FLOAT))
    entry = known.SerializeToString()
    about = delimited(1, b"version") + b"".join(delimited(4, tag.encode()) for tag in tags) + b"\x38\x01"
    # Field 1 of a SignatureDefMap is field 5 here.
    return delimited(2, delimited(1, about) + delimited(2, b"\xff" * 300) + b"\x2a" + entry[1:])


def model(path: Path, *graphs: bytes) -> ModelSettings:
    (path / "saved_model.pb").write_bytes(b"\x08\x01" + b"".join(graphs))
    return ModelSettings(name="m", version=1, path=str(path), slots=[])


@pytest.mark.parametrize(
    ("inputs", "document"),
    [
        ({"x": info(FLOAT, -1)}, {"x": [1, 2, 5]}),
        ({"x": info(FLOAT)}, {"x": 1}),
        ({"a": info(STRING, -1), "b": info(BOOL, 2)}, {"a": ["a", "b", "c"], "b": [True, False]}),
        ({"ids": info(INT64, -1), "dense": info(FLOAT, -1, 2)}, {"dense": [[1, 2]], "ids": [1]}),
        ({"x": info(INT32, 2, 2)}, {"x": [[1, 2], [5, 1]]}),
    ],
)
def test_values_of_the_right_shape_and_type(tmp_path: Path, inputs: dict[str, Any], document: Any) -> None:
    """One batch for all inputs; what is suggested can be sent."""
    text = example_input(model(tmp_path, graph(inputs)))
    assert json.loads(text) == document
    signatures = tfs.SignatureDefMap()
    for alias, value in inputs.items():
        signatures.signature_def["serving_default"].inputs[alias].CopyFrom(value)
    assert json_tensors.request("m", json.loads(text), signatures)
    assert json_tensors.misfit(json.loads(text), signatures) == ""


@pytest.mark.parametrize(
    "value", [info(FLOAT, -1, 224, 224, 3), info(FLOAT, -1, -1), info(RESOURCE), tfs.TensorInfo()]
)
def test_what_is_not_simple_has_its_name(tmp_path: Path, value: Any) -> None:
    """Large, of unknown size, or of a type that is not sent."""
    text = example_input(model(tmp_path, graph({"image": value, "k": info(INT32)})))
    assert text == '{"image": [...], "k": 1}'


def test_the_graph_that_is_served(tmp_path: Path) -> None:
    """By its tags."""
    other = graph({"z": info(FLOAT)}, ("serve", "tpu"))
    assert example_input(model(tmp_path, other, graph({"x": info(FLOAT)}))) == '{"x": 1}'


def test_what_cannot_be_read_is_not_made_up(tmp_path: Path) -> None:
    """No signature of that name, no such graph, a damaged file, text, or nothing."""
    whole = graph({"x": info(FLOAT)})
    for graphs in (
        [graph({"x": info(FLOAT)}, key="other")],
        [graph({}, ("tpu",))],
        [whole[:-2]],
        [b"\x13 text"],
    ):
        assert example_input(model(tmp_path, *graphs)) == UNKNOWN
    (tmp_path / "saved_model.pb").unlink()
    assert example_input(ModelSettings(name="m", version=1, path=str(tmp_path), slots=[])) == UNKNOWN
