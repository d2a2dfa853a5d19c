"""What came by REST is recorded as the message that asks the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpspool.core import tfs
from mpspool.supervisor.commands import rest_request


def signatures(**inputs: int) -> Any:
    found = tfs.SignatureDefMap()
    for key in ("serving_default", "other"):
        for name, dtype in inputs.items():
            found.signature_def[key].inputs[name].dtype = dtype
            found.signature_def[key].inputs[name].tensor_shape.unknown_rank = True
    return found


# Of types.proto.
_FLOAT, _STRING, _INT64 = 1, 7, 9
ONE = signatures(x=_FLOAT)
TWO = signatures(ids=_INT64, name=_STRING)


@pytest.mark.parametrize(
    ("body", "shape", "values"),
    [
        (b'{"instances": [[1, 2.5], [3, 4]]}', [2, 2], [1, 2.5, 3, 4]),
        (b'{"instances": [{"x": 1}, {"x": 2}]}', [2], [1, 2]),
        (b'{"inputs": [[1], [2]]}', [2, 1], [1, 2]),
        (b'{"inputs": {"x": 7}}', [], [7]),
    ],
)
def test_rows_and_inputs_of_one_input(body: bytes, shape: list[int], values: list[float]) -> None:
    """In each form that there is."""
    found = tfs.PredictRequest.FromString(rest_request.message("m", body, ONE))
    tensor = found.inputs["x"]
    assert [size.size for size in tensor.tensor_shape.dim] == shape
    assert np.frombuffer(tensor.tensor_content, np.float32).tolist() == values
    assert found.model_spec.name == "m"


def test_several_inputs_bytes_and_a_signature() -> None:
    """By rows, with bytes that are no text."""
    body = b'{"signature_name": "other", "instances": [{"ids": [1], "name": "a"}, {"ids": [2], "name": {"b64": "/w=="}}]}'
    found = tfs.PredictRequest.FromString(rest_request.message("m", body, TWO))
    assert found.model_spec.signature_name == "other"
    assert list(found.inputs["name"].string_val) == [b"a", b"\xff"]
    assert np.frombuffer(found.inputs["ids"].tensor_content, np.int64).tolist() == [1, 2]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"instances": []}', b'{"instances": ["a"]}', b'{"inputs": {"y": 1}}', b"[" * 10**5]
)
def test_what_is_no_message_is_passed_over(body: bytes) -> None:
    """Nothing is raised."""
    assert rest_request.message("m", body, ONE) is None
