"""The first request that a start suggests: what the signature takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mpspool.core import json_tensors, tfs
from mpspool.supervisor.example import UNKNOWN, example_input

FLOAT, INT32, STRING, RESOURCE, INT64, BOOL = 1, 3, 7, 20, 9, 10


def info(dtype: int, *sizes: int) -> Any:
    found = tfs.TensorInfo(name="x:0", dtype=dtype)
    found.tensor_shape.SetInParent()
    for size in sizes:
        found.tensor_shape.dim.add(size=size)
    return found


def signatures(inputs: dict[str, Any], key: str = "serving_default") -> bytes:
    """A serialised SignatureDefMap with one signature."""
    known = tfs.SignatureDefMap()
    for alias, value in inputs.items():
        known.signature_def[key].inputs[alias].CopyFrom(value)
    known.signature_def[key].outputs["y"].CopyFrom(info(FLOAT))
    return bytes(known.SerializeToString())


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
def test_values_of_the_right_shape_and_type(inputs: dict[str, Any], document: Any) -> None:
    """One batch for all inputs; what is suggested can be sent."""
    serialised = signatures(inputs)
    text = example_input(serialised)
    assert json.loads(text) == document
    known = tfs.SignatureDefMap.FromString(serialised)
    assert json_tensors.request("m", json.loads(text), known)
    assert json_tensors.misfit(json.loads(text), known) == ""


@pytest.mark.parametrize(
    "value", [info(FLOAT, -1, 224, 224, 3), info(FLOAT, -1, -1), info(RESOURCE), tfs.TensorInfo()]
)
def test_what_is_not_simple_has_its_name(value: Any) -> None:
    """Large, of unknown size, or of a type that is not sent."""
    text = example_input(signatures({"image": value, "k": info(INT32)}))
    assert text == '{"image": [...], "k": 1}'


def test_what_is_not_known_is_not_made_up() -> None:
    """No signature of that name, or none at all."""
    assert example_input(signatures({"x": info(FLOAT)}, key="other")) == UNKNOWN
    assert example_input(b"") == UNKNOWN
