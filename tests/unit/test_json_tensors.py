"""JSON to requests and back, and what a person reads where their JSON does not fit."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpspool.core import json_tensors, tfs
from mpspool.core.errors import Code, PoolError
from mpspool.worker import codec
from tests import tensors


def _signatures(defaults: tuple[str, ...] = (), **inputs: tuple[int, list[int] | None]) -> Any:
    definitions = tfs.SignatureDefMap()
    definition = definitions.signature_def["serving_default"]
    for alias, (number, sizes) in inputs.items():
        info = definition.inputs[alias]
        info.dtype = number
        info.tensor_shape.unknown_rank = sizes is None
        for size in sizes or []:
            info.tensor_shape.dim.add(size=size)
    for alias in defaults:
        definition.defaults[alias].dtype = 1
    return definitions


def _sent(document: Any, signatures: Any) -> dict[str, Any]:
    body = json_tensors.request("half", document, signatures)
    inputs = tfs.PredictRequest.FromString(body).inputs
    return {alias: tensors.decode(inputs[alias].SerializeToString()) for alias in inputs}


def _refused(document: Any, signatures: Any) -> str:
    with pytest.raises(PoolError) as raised:
        json_tensors.request("half", document, signatures)
    assert raised.value.code is Code.INVALID_ARGUMENT
    return raised.value.message


FLOATS = _signatures(x=(1, [-1]))


@pytest.mark.parametrize("document", [{"x": [1, 2.5]}, [1, 2.5]])
def test_a_single_input_need_not_be_named(document: Any) -> None:
    """An object by input name and the bare value mean the same."""
    sent = _sent(document, FLOATS)
    assert sent["x"].dtype == np.float32
    assert sent["x"].tolist() == [1, 2.5]


def test_the_spec_is_filled() -> None:
    """Model, signature and version are those asked for."""
    body = json_tensors.request("half", [1], FLOATS, signature="serving_default", version=3)
    spec = tfs.PredictRequest.FromString(body).model_spec
    assert (spec.name, spec.signature_name, spec.version.value) == ("half", "serving_default", 3)
    assert not tfs.PredictRequest.FromString(json_tensors.request("half", [1], FLOATS)).model_spec.HasField(
        "version"
    )


@pytest.mark.parametrize(
    ("number", "value"),
    [
        (1, 1.5),
        (2, -1e300),
        (3, -(2**31)),
        (4, 255),
        (6, -128),
        (9, 2**63 - 1),
        (10, True),
        (11, -5),
        (14, 1.5),
        (16, 65535),
        (19, 0.25),
        (22, 2**32 - 1),
        (23, 2**64 - 1),
        (24, 2.0),
        (25, 2.0),
        (29, -8),
        (30, 15),
        (33, 1.5),
    ],
)
def test_every_type_there_and_back(number: int, value: Any) -> None:
    """A value becomes a tensor of the input's type; the same tensor as an answer is the value again."""
    signatures = _signatures(x=(number, [-1, -1]))
    request = tfs.PredictRequest.FromString(
        json_tensors.request("m", [[value, 0 if value is not True else False]], signatures)
    )
    tensor = request.inputs["x"]
    assert (tensor.dtype, [dim.size for dim in tensor.tensor_shape.dim]) == (number, [1, 2])
    array = tensors.decode(tensor.SerializeToString())
    assert array.dtype == codec.array_dtype(number)
    for encode in (tensors.encode, tensors.with_content):
        answer = tfs.PredictResponse()
        answer.outputs["y"].ParseFromString(encode(array, number))
        document = json.loads(json.dumps(json_tensors.response(answer.SerializeToString())))
        assert document == {"y": [[value, 0]]}


def test_strings_and_bytes() -> None:
    """Text is sent as UTF-8, {"b64": ...} as its bytes; bytes that are no text come back as b64."""
    sent = _sent(["é", {"b64": "/w=="}], _signatures(x=(7, [-1])))
    assert sent["x"].tolist() == ["é".encode(), b"\xff"]
    assert _sent({"b64": "/w=="}, _signatures(x=(7, [])))["x"].tolist() == b"\xff"
    for encode in (tensors.encode, tensors.with_content):
        answer = tfs.PredictResponse()
        answer.outputs["y"].ParseFromString(encode(sent["x"], 7))
        assert json_tensors.response(answer.SerializeToString()) == {"y": ["é", {"b64": "/w=="}]}


@given(st.lists(st.binary(max_size=300), max_size=4))
def test_strings_in_tensor_content(values: list[bytes]) -> None:
    """As TensorFlow writes them: all lengths, then all bytes."""
    answer = tfs.PredictResponse()
    answer.outputs["y"].ParseFromString(tensors.with_content(np.array(values, object), 7))
    assert json_tensors.response(answer.SerializeToString()) == {"y": [_shown(value) for value in values]}


def _shown(value: bytes) -> object:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}


@pytest.mark.parametrize("content", [b"\x01", b"\x01\x02", b"\x01\x80", b"\x01\x01a", b"\x01\x01abc"])
def test_no_strings_in_tensor_content(content: bytes) -> None:
    """Lengths, or bytes, that are missing or too many."""
    answer = tfs.PredictResponse()
    tensor = answer.outputs["y"]
    tensor.dtype, tensor.tensor_content = 7, content
    tensor.tensor_shape.dim.add().size = 2
    with pytest.raises(PoolError, match="no PredictResponse that JSON can show"):
        json_tensors.response(answer.SerializeToString())


def test_complex_numbers() -> None:
    """A complex number is a string, or a plain number; it comes back as a string."""
    sent = _sent(["1+2j", 3], _signatures(x=(8, [-1])))
    assert sent["x"].tolist() == [1 + 2j, 3]
    answer = tfs.PredictResponse()
    answer.outputs["y"].ParseFromString(tensors.encode(sent["x"]))
    assert json_tensors.response(answer.SerializeToString()) == {"y": ["(1+2j)", "(3+0j)"]}
    assert np.isinf(_sent([10**400], _signatures(x=(8, [-1])))["x"][0].real)


def test_scalars_and_empty_lists() -> None:
    """A scalar has no dimensions; an empty list is a zero batch of the signature's shape."""
    assert _sent(2, _signatures(x=(1, [])))["x"].shape == ()
    assert _sent([], _signatures(x=(1, [-1, 3])))["x"].shape == (0, 3)
    assert _sent([[], []], _signatures(x=(1, [-1, -1])))["x"].shape == (2, 0)
    assert _sent([[1], [2]], _signatures(x=(1, None)))["x"].shape == (2, 1)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"z": [1]}, 'There is no input "z". The signature has: "x".'),
        ({}, 'No value for the input "x". The signature has: "x".'),
        (["a"], 'Input "x[0]": "a" is no float; give a number, NaN or Infinity.'),
        ([1, None], 'Input "x[1]": null is no float; give a number, NaN or Infinity.'),
        ([1, [2]], 'Input "x[1]": a list, where the elements before it are none: [2].'),
        ([True], 'Input "x[0]": true is no float; give a number, NaN or Infinity.'),
    ],
)
def test_errors_name_the_input_the_value_and_the_remedy(document: Any, message: str) -> None:
    """What does not fit is said with its place in the document and what would do."""
    assert _refused(document, FLOATS) == message


@pytest.mark.parametrize(
    ("document", "sizes", "misfit"),
    [
        (1, [-1], 'Input "x": the shape is [], but the model takes [any]. Put it in 1 more [ ].'),
        ({"x": [[1]]}, [-1], 'Input "x": the shape is [1, 1], but the model takes [any].'),
        ([[1, 2, 3]], [-1, 2], 'Input "x": the shape is [1, 3], but the model takes [any, 2].'),
        ([1], [-1], ""),
        ([], [-1, 3], ""),
        ([[1]], None, ""),
    ],
)
def test_the_server_judges_shapes(document: Any, sizes: list[int] | None, misfit: str) -> None:
    """Another shape than the signature's is sent; in what it differs can be told beside a refusal."""
    signatures = _signatures(x=(1, sizes))
    assert set(_sent(document, signatures)) == {"x"}
    assert json_tensors.misfit(document, signatures) == misfit


def test_more_errors() -> None:
    """Ranges, ragged lists, base64, several inputs without names, signatures that are not there."""
    matrix = _signatures(x=(3, [-1, 2]))
    ragged = 'Input "x[1]": 1 elements, but the lists before it have 2; no tensor is ragged.'
    assert _refused([[1, 2], [3]], matrix) == _refused([[1, 2], [3]], FLOATS) == ragged
    assert _refused([[1, 2], 3], matrix) == 'Input "x[1]": 3 is no list, as the elements before it are.'
    assert _refused([[1, 1.5]], matrix) == 'Input "x[0][1]": 1.5 is no int32; give a whole number.'
    assert "goes from -2147483648 to 2147483647" in _refused([[1, 2**31]], matrix)
    assert "half of a surrogate pair" in _refused(["\ud800"], _signatures(x=(7, [-1])))
    assert "is not base64" in _refused([{"b64": "?"}], _signatures(x=(7, [-1])))
    assert _refused([1], _signatures(x=(7, [-1]))) == (
        'Input "x[0]": 1 is no string; give "text" or {"b64": "..."}.'
    )
    assert _refused([1], _signatures(x=(1, [-1]), k=(1, [-1]))).startswith(
        'The signature has 2 inputs ("k", "x")'
    )
    assert "cannot be given as JSON" in _refused([1], _signatures(x=(20, [-1])))
    deep: Any = 1
    for _ in range(70):
        deep = [deep]
    assert "70 lists within one another" in _refused(deep, _signatures(x=(1, None)))
    with pytest.raises(
        PoolError, match=re.escape('Model "half" has no signature "s". It has: "serving_default".')
    ):
        json_tensors.request("half", [1], FLOATS, signature="s")


def test_an_input_with_a_default_may_be_left_out() -> None:
    """What the signature has a default for need not be given."""
    assert set(_sent({"x": [1]}, _signatures(("k",), x=(1, [-1]), k=(1, [-1])))) == {"x"}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["b64", "x"]), inner, max_size=2)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("number", [1, 14])
@pytest.mark.parametrize("value", [3.4028235677973366e38, 10**400, -(10**400)])
def test_what_is_beyond_a_float_is_infinite(number: int, value: float) -> None:
    """Also what only rounds beyond it, and integers that no float holds."""
    (sent,) = _sent(value, _signatures(x=(number, []))).values()
    assert np.isinf(sent.astype(np.float64))


@given(values, st.sampled_from([1, 3, 7, 8, 10, 14, 29, 33]), st.sampled_from([None, [], [-1], [2, -1]]))
def test_any_document_is_sent_or_refused(document: Any, number: int, sizes: list[int] | None) -> None:
    """Whatever JSON is given, it becomes a tensor that can be read, or a PoolError."""
    signatures = _signatures(x=(number, sizes))
    try:
        sent = _sent(document, signatures)
    except PoolError:
        assert _refused(document, signatures)
    else:
        assert set(sent) == {"x"}


@pytest.mark.parametrize("body", [b"\xff", b"\x0a\x07\x0a\x01y\x12\x02\x08\x14"])
def test_an_answer_that_is_none(body: bytes) -> None:
    """Bytes that are no answer, or one that JSON cannot show, end in a clear error."""
    with pytest.raises(PoolError) as raised:
        json_tensors.response(body)
    assert raised.value.code is Code.INTERNAL
