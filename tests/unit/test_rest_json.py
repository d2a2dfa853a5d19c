"""TensorFlow Serving's JSON: the cases of its own test of it (util/json_tensor_test.cc), and any document at all."""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpspool.core import tfs
from mpspool.core.errors import Code, PoolError, cut
from mpspool.core.ids import ModelVersion
from mpspool.core.methods import Method
from mpspool.worker.engine.base import Array, Signature, TensorSpec
from mpspool.worker.predict import Predictor
from mpspool.worker.rest import document as rest_document
from mpspool.worker.rest import examples, write
from mpspool.worker.rest.values import Type
from tests.fakes.engine import FakeEngine, predict

MODEL = ModelVersion("m", 1)
TYPES = {name: tfs.DATA_TYPES_BY_NAME[f"DT_{name.upper()}"].number for name in (
    "float", "double", "int32", "uint8", "int8", "int16", "string", "int64", "bool", "uint32", "uint64", "half",
)}  # fmt: skip


def predictor(inputs: Mapping[str, str], **outputs: Array) -> Predictor:
    """Of a model that answers with these outputs, whatever it is asked."""

    def specs(types: Mapping[str, int]) -> dict[str, TensorSpec]:
        return {alias: TensorSpec(number, None) for alias, number in types.items()}

    signature = Signature(
        tfs.DEFAULT_SIGNATURE,
        "",
        specs({alias: TYPES[name] for alias, name in inputs.items()}),
        specs({alias: tfs.number_of(array.dtype) for alias, array in outputs.items()}),
        {},
    )
    return Predictor(FakeEngine([signature], lambda _: outputs), MODEL)


def read(types: Mapping[str, str] | str, document: Any) -> dict[str, Array]:
    """The inputs of a request; of a signature with one input of this type, "x"."""
    inputs = {"x": types} if isinstance(types, str) else types
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return predictor(inputs, y=np.float32([1])).read(body, Method.REST_PREDICT).inputs()


def refused(types: Mapping[str, str] | str, document: Any) -> str:
    with pytest.raises(PoolError) as caught:
        read(types, document)
    assert caught.value.code is Code.INVALID_ARGUMENT
    return caught.value.message


def written(form: str, **outputs: Array) -> Any:
    """What outputs become, as text and parsed."""
    model = predictor({"x": "float"}, **outputs)
    given_ = {"instances": [1]} if form == "row" else {"inputs": [1]}
    body = predict(model, json.dumps(given_).encode(), Method.REST_PREDICT)
    return json.loads(body)


B64 = {"b64": "aGVsbG8="}
WORDS = np.array([b"hello", b"world"], object)
RIGHT: dict[str, tuple[Mapping[str, str] | str, Any, Mapping[str, Any]]] = {
    "rows": ("int32", {"instances": [[1, 2], [3, 4], [5, 6]]}, {"x": np.int32([[1, 2], [3, 4], [5, 6]])}),
    "scalars": ("float", {"instances": [1, 2.5, -3e2]}, {"x": np.float32([1, 2.5, -300])}),
    "named": ("int32", {"instances": [{"x": 1}, {"x": 2}]}, {"x": np.int32([1, 2])}),
    "deep": ("int32", {"instances": [[[[1], [2]]], [[[3], [4]]]]}, {"x": np.int32([[[[1], [2]]], [[[3], [4]]]])}),
    "column": ("int32", {"inputs": [[[1, 2], [3, 4]]]}, {"x": np.int32([[[1, 2], [3, 4]]])}),
    "named column": ("int32", {"inputs": {"x": [1, 2]}}, {"x": np.int32([1, 2])}),
    "a scalar": ("int64", {"inputs": 5}, {"x": np.int64(5)}),
    "a null beside": ("int32", {"instances": [1], "other": None}, {"x": np.int32([1])}),
    "not a number": ("float", b'{"instances": [1.0, NaN, Infinity, -Infinity]}', {"x": np.float32([1, np.nan, np.inf, -np.inf])}),
    "other words for these": ("double", b'{"instances": [-NaN, Inf, -Inf, Infinity]}', {"x": np.float64([np.nan, np.inf, -np.inf, np.inf])}),
    "such words in text": ("string", b'{"instances": ["-NaN \\" Inf", "hello"], "other": Inf}', {"x": np.array([b'-NaN " Inf', b"hello"], object)}),
    "bytes that are not UTF-8": ("string", b'{"instances": ["\xe9t\xe9", "\xc3\xa9"]}', {"x": np.array([b"\xe9t\xe9", b"\xc3\xa9"], object)}),
    "escapes": ("string", b'{"instances": ["\\\\ud800 \\ud83d\\ude00", "\\u0000"], "other": NaN}',
        {"x": np.array([b"\\ud800 \xf0\x9f\x98\x80", b"\0"], object)}),
    "as many dimensions as there can be": ("float", {"inputs": functools.reduce(lambda inner, _: [inner], range(31), 1)}, {"x": np.ones((1,) * 31, np.float32)}),
    "after its end": ("int32", b'{"instances": [1]} and so on', {"x": np.int32([1])}),
    "a mark before": ("int32", b'\xef\xbb\xbf{"instances": [1]}', {"x": np.int32([1])}),
    "too large for a float": ("float", {"instances": [1e300, -1e300]}, {"x": np.float32([np.inf, -np.inf])}),
    "too small for a float": ("float", {"instances": [1e-300]}, {"x": np.float32([0])}),
    "a long integer for a float": ("double", {"instances": [10**30]}, {"x": np.float64([1e30])}),
    "the largest integers": ("uint64", {"instances": [2**64 - 1, 0]}, {"x": np.uint64([2**64 - 1, 0])}),
    "the least integer": ("int64", {"instances": [-(2**63)]}, {"x": np.int64([-(2**63)])}),
    "true": ("bool", {"instances": [[True, False]]}, {"x": np.array([[True, False]])}),
    "text": ("string", {"instances": ["hello", "world"]}, {"x": WORDS}),
    "text with bools beside": ({"s": "string", "b": "bool", "f": "float"},
        {"instances": [{"s": "hello", "b": True, "f": 1}, {"s": "world", "b": False, "f": 2}]},
        {"s": WORDS, "b": np.array([True, False]), "f": np.float32([1, 2])}),
    "base64": ("string", {"instances": [B64, {"b64": "d29ybGQ="}]}, {"x": WORDS}),
    "base64 without padding": ("string", {"instances": [{"b64": "aGVsbG8"}]}, {"x": WORDS[:1]}),
    "base64 in lines": ("string", {"instances": [{"b64": "aGVs\nbG8=\n"}]}, {"x": WORDS[:1]}),
    "base64 of nothing": ("string", {"instances": [{"b64": ""}]}, {"x": np.array([b""], object)}),
    "base64 and text": ("string", {"instances": [[B64, "world"]]}, {"x": WORDS.reshape(1, 2)}),
    "base64 for an input of that name": ({"b64": "string"}, {"instances": [B64]}, {"b64": WORDS[:1]}),
    "base64 in lists": ("string", {"instances": [[B64], [{"b64": "d29ybGQ="}]]}, {"x": WORDS.reshape(2, 1)}),
    "base64 in objects": ("string", {"instances": [{"x": [[B64]]}]}, {"x": WORDS[:1].reshape(1, 1, 1)}),
    "base64 for a column": ("string", {"inputs": B64}, {"x": np.array(b"hello", object)}),
    "several": ({"i": "int32", "s": "string", "f": "float"},
        {"instances": [{"i": [1, 2], "s": "hello", "f": 1}, {"s": "world", "f": 2, "i": [3, 4]}]},
        {"i": np.int32([[1, 2], [3, 4]]), "s": WORDS, "f": np.float32([1, 2])}),
    "several columns": ({"i": "int32", "s": "string"}, {"inputs": {"i": [[1], [2]], "s": ["hello", "world"], "more": 1}},
        {"i": np.int32([[1], [2]]), "s": WORDS}),
    "nothing in a row": ("float", {"instances": [[], []]}, {"x": np.zeros((2, 0), np.float32)}),
}  # fmt: skip


@pytest.mark.parametrize("case", RIGHT)
def test_what_is_read(case: str) -> None:
    """Both forms, with names and without, give the tensors that TensorFlow Serving makes of them."""
    types, document, expected = RIGHT[case]
    found = read(types, document)
    assert found.keys() == expected.keys()
    for alias, array in expected.items():
        assert found[alias].dtype == np.asarray(array).dtype
        assert found[alias].shape == np.asarray(array).shape
        np.testing.assert_array_equal(found[alias], array)


BOTH = {"i": "int32", "s": "string"}
WRONG: dict[str, tuple[Mapping[str, str] | str, Any, str]] = {
    "empty": ("int32", b"", "JSON Parse error: The document is empty"),
    "garbage": ("int32", b"this is not json", "JSON Parse error: Invalid value. at offset: 0"),
    "cut off": ("int32", b'{"instances": [1', "JSON Parse error: Missing a comma, or a bracket at the end. at offset: 16"),
    "too deep": ("int32", b'{"instances": ' + b"[" * 5000 + b"]" * 5000 + b"}", "JSON Parse error: The document is nested too deeply."),
    "more dimensions than there can be": ("int32", b'{"instances": ' + b"[" * 1000 + b"1" + b"]" * 1000 + b"}", "A tensor of 999 dimensions is not supported, only of up to 31"),
    "a deep column": ("string", b'{"inputs": ' + b"[" * 32 + b'"a"' + b"]" * 32 + b"}", "A tensor of 32 dimensions is not supported, only of up to 31"),
    "lists that go deeper elsewhere": ("int32", b'{"inputs": [1, ' + b"[" * 1000 + b"1" + b"]" * 1000 + b"]}", "Encountered list at unexpected level: 1 expected < 1"),
    "deep lists in an error": ("int32", b'{"instances": {"x": ' + b"[" * 1000 + b"]" * 1000 + b"}}", "Expecting 'instances' to be an list/array"),
    "half a character": ("string", b'{"instances": ["\\ud83d\\ude00\\ud800"]}', "JSON Parse error: The surrogate pair in string is invalid. at offset: 28"),
    "the other half": ("string", b'{"instances": ["\\udc80"]}', "JSON Parse error: The surrogate pair in string is invalid. at offset: 16"),
    "half a character in a name": ("int32", b'{"\\ud800": 1}', "JSON Parse error: The surrogate pair in string is invalid. at offset: 2"),
    "a line's end in text": ("string", b'{"instances": ["a\n"]}', "JSON Parse error: Invalid encoding in string. at offset: 17"),
    "too many digits": ("double", b'{"instances": [' + b"1" * 5000 + b"]}", "JSON Parse error: Number too big to be stored in double."),
    "no object": ("int32", b"[1]", "JSON Value: [1] Is not object"),
    "no inputs": ("int32", {"signature_name": "serving_default"}, "Missing 'inputs' or 'instances' key"),
    "a number for a name": ("int32", {"signature_name": 5, "instances": [1]}, "'signature_name' key must be a string value."),
    "unknown signature": ("int32", {"signature_name": "s", "instances": [1]}, 'Serving signature name: "s" not found in signature def'),
    "both forms": ("int32", {"instances": [1], "inputs": [1]}, "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist"),
    "no list": ("int32", {"instances": 5}, "Expecting 'instances' to be an list/array"),
    "no rows": ("int32", {"instances": []}, "No values in 'instances' array"),
    "ragged": ("int32", {"instances": [[1, 2], [3, 4], [5, 6, 7]]}, "Failed to process element: 2 of 'instances' list. Error: INVALID_ARGUMENT: Expecting tensor size: 2 but got: 3"),
    "another shape": ("int32", {"instances": [[1, 2], [3, 4], [[5, 6]]]}, "Expecting shape [2] but got: [1,2]"),
    "a list among scalars": ("int32", {"instances": [1, [1]]}, "Expecting shape [] but got: [1]"),
    "text for numbers": ("int32", {"instances": [[1, 2], ["a", "b"]]}, 'JSON Value: "a" Type: String is not of expected type: int32'),
    "a number for text": ("string", {"instances": ["a", 5]}, "JSON Value: 5 Type: Number is not of expected type: string"),
    "a fraction for integers": ("int32", {"instances": [1.0]}, "JSON Value: 1.0 Type: Number is not of expected type: int32"),
    "too large": ("int32", {"instances": [2**31]}, "JSON Value: 2147483648 Type: Number is not of expected type: int32"),
    "too large for a byte": ("uint8", {"instances": [255, 256]}, "JSON Value: 256 Type: Number is not of expected type: uint8"),
    "too large for 64 bits": ("uint64", {"instances": [2**64]}, "Type: Number is not of expected type: uint64"),
    "below zero in 64 bits": ("uint64", {"instances": [2**64 - 1, -1]}, "JSON Value: -1 Type: Number is not of expected type: uint64"),
    "numbers as text": ("float", {"instances": [1, "1"]}, 'JSON Value: "1" Type: String is not of expected type: float'),
    "below zero": ("uint32", {"instances": [-1]}, "JSON Value: -1 Type: Number is not of expected type: uint32"),
    "true for numbers": ("float", {"instances": [1, True]}, "JSON Value: true Type: True is not of expected type: float"),
    "false for integers": ("int64", {"inputs": [False]}, "JSON Value: false Type: False is not of expected type: int64"),
    "numbers for true": ("bool", {"instances": [1]}, "JSON Value: 1 Type: Number is not of expected type: bool"),
    "null": ("float", {"instances": [None]}, "JSON Value: null Type: Null is not of expected type: float"),
    "base64 for numbers": ("float", {"inputs": B64}, 'JSON Value: {\n    "b64": "aGVsbG8="\n} Type: Object is not of expected type: float'),
    "no base64": ("string", {"instances": [{"b64": "%"}]}, "Unable to base64 decode"),
    "an object for text": ("string", {"instances": [{"x": {"c": 1}}]}, "not formatted correctly for base64 data"),
    "a level deeper": ("int32", {"inputs": [1, [2]]}, "Encountered list at unexpected level: 1 expected < 1"),
    "a level less": ("int32", {"inputs": [[1], 2]}, "JSON Value: 2 found at incorrect level: 2 in the JSON DOM. Expected at level: 2"),
    "a list of another size": ("int32", {"inputs": [[1], [2, 3]]}, "Encountered list at unexpected size: 2 at level: 1 expected size: 1"),
    "base64 for several": (BOTH, {"instances": [B64]}, "instances is a plain list, but expecting list of objects"),
    "plain for several": (BOTH, {"instances": [1]}, "instances is a plain list, but expecting list of objects as multiple input tensors required as per tensorinfo_map"),
    "plain column for several": (BOTH, {"inputs": [1]}, "inputs is a plain value/list, but expecting an object as multiple input tensors required as per tensorinfo_map"),
    "one of several is missing": (BOTH, {"instances": [{"i": 1}]}, "keys must be equal to: i,s"),
    "one column is missing": (BOTH, {"inputs": {"i": [1]}}, "Missing named input: s in 'inputs' object."),
    "an unknown name": (BOTH, {"instances": [{"i": 1, "s": "a", "z": 1}]}, "JSON object: does not have named input: z"),
    "a value among objects": (BOTH, {"instances": [{"i": 1, "s": "a"}, 5]}, "Expecting object but got list at item 1 of input list"),
    "an object among values": ("int32", {"instances": [1, {"x": 1}]}, "Expecting value/list but got object at item 1 of input list"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused(case: str) -> None:
    """INVALID_ARGUMENT, in TensorFlow Serving's words."""
    types, document, text = WRONG[case]
    assert text in refused(types, document)


@pytest.mark.parametrize("end", [b"", b"\\"])
def test_a_string_that_does_not_end_is_gone_through_once(end: bytes) -> None:
    """It would be minutes otherwise."""
    with pytest.raises(PoolError, match="Missing a closing quotation mark in string"):
        rest_document.parse(b'{"instances": [Inf, "' + b'\\"' * 10**6 + end)


def test_too_many_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """RESOURCE_EXHAUSTED before it is read, for they take far more than their bytes; as many as there may be are read."""
    monkeypatch.setattr(rest_document, "MAX_NODES", 22)
    assert len(read("float", {"instances": [[1.0]] * 20})["x"]) == 20
    with pytest.raises(PoolError, match="has 23 lists and objects, more than 22") as caught:
        read("float", {"instances": [[1.0]] * 21})
    assert caught.value.code is Code.RESOURCE_EXHAUSTED


def test_types_without_json() -> None:
    """UNIMPLEMENTED, as in TensorFlow Serving."""
    with pytest.raises(PoolError, match="Conversion of JSON Value: 1 to type: half") as caught:
        read("half", {"inputs": [1]})
    assert caught.value.code is Code.UNIMPLEMENTED


def test_a_long_string_takes_its_own_room() -> None:
    """And not as much for each of the others, as it would in an array of NumPy's strings: 40 GB here."""
    long, short = "x" * 10**6, ["a"] * 10**4
    assert [len(one) for one in read("string", {"instances": [long, *short]})["x"]] == [10**6] + [1] * 10**4
    assert "not of expected type: float" in refused("float", {"instances": [1, long, *short]})


def test_a_long_value_is_cut_short_in_errors() -> None:
    """A document of a megabyte is not in the text."""
    assert len(refused("int32", {"inputs": {"y": [1] * 10**6}, "instances": 1})) < 1000


FLOATS = np.float32([[0.2, 1e-7], [9e6, 3]])
WRITTEN: dict[str, tuple[str, dict[str, Array], Any]] = {
    "rows": ("row", {"y": FLOATS}, {"predictions": [[0.2, 1e-7], [9e6, 3]]}),
    "scalars": ("row", {"y": FLOATS[0]}, {"predictions": [0.2, 1e-7]}),
    "a column": ("column", {"y": FLOATS}, {"outputs": [[0.2, 1e-7], [9e6, 3]]}),
    "a scalar": ("column", {"y": np.array(5, np.int64)}, {"outputs": 5}),
    "several rows": ("row", {"a": FLOATS, "b": np.int64([7, -8]), "c_bytes": WORDS, "d": np.array([[[True]], [[False]]])},
        {"predictions": [
            {"a": [0.2, 1e-7], "b": 7, "c_bytes": {"b64": "aGVsbG8="}, "d": [[True]]},
            {"a": [9e6, 3], "b": -8, "c_bytes": {"b64": "d29ybGQ="}, "d": [[False]]},
        ]}),
    "several columns": ("column", {"a": FLOATS[0], "b": np.array(1.5)}, {"outputs": {"a": [0.2, 1e-7], "b": 1.5}}),
    "text": ("row", {"y": WORDS}, {"predictions": ["hello", "world"]}),
    "text in rows": ("row", {"y": WORDS.reshape(1, 2)}, {"predictions": [["hello", "world"]]}),
    "bytes": ("column", {"y_bytes": WORDS.reshape(1, 2)}, {"outputs": [[{"b64": "aGVsbG8="}, {"b64": "d29ybGQ="}]]}),
    "no text": ("row", {"y": np.array([b"\xff"], object)}, {"predictions": [{"b64": "/w=="}]}),
    "nothing": ("row", {"y": np.zeros((0, 2), np.float32)}, {"predictions": []}),
    "nothing of several": ("row", {"a": np.zeros((0, 2), np.float32), "b": np.zeros(0, np.int32)}, {"predictions": []}),
    "empty rows": ("row", {"a": np.zeros((2, 0), np.float32), "b": np.int32([1, 2])}, {"predictions": [{"a": [], "b": 1}, {"a": [], "b": 2}]}),
    "a slice": ("row", {"a": FLOATS[:, ::-1], "b": FLOATS[:, 0]}, {"predictions": [{"a": [1e-7, 0.2], "b": 0.2}, {"a": [3, 9e6], "b": 9e6}]}),
}  # fmt: skip


@pytest.mark.parametrize("case", WRITTEN)
def test_what_is_written(case: str) -> None:
    """Rows and columns, one output and several; floats with as few digits as tell them apart."""
    form, outputs, expected = WRITTEN[case]
    assert written(form, **outputs) == expected


def test_what_is_no_number() -> None:
    """NaN and the infinities are written as TensorFlow Serving writes them, other floats beside them with few digits."""
    values = np.float32([[np.nan, 0.2], [np.inf, -np.inf]])
    assert write.text(values) == b"[[NaN,0.2],[Infinity,-Infinity]]"
    assert write.text(values[:, ::-1]) == b"[[0.2,NaN],[-Infinity,Infinity]]"
    assert [write.text(np.array(one)) for one in (np.nan, np.inf, -np.inf)] == [
        b"NaN",
        b"Infinity",
        b"-Infinity",
    ]
    assert write.rows(values) == [b"[NaN,0.2]", b"[Infinity,-Infinity]"]


UNWRITABLE = {
    "a scalar in a row": ({"y": np.float32(1)}, "Tensor name: y has no shape information "),
    "rows that differ": ({"a": FLOATS, "b": FLOATS[:1]}, "Tensor name: b has inconsistent batch size: 1 expecting: 2"),
    "a type": ({"y": np.zeros(2, np.float16)}, "Failed to write JSON value for tensor type: half"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNWRITABLE)
def test_what_cannot_be_written(case: str) -> None:
    """INVALID_ARGUMENT, in TensorFlow Serving's words."""
    outputs, text = UNWRITABLE[case]
    with pytest.raises(PoolError) as caught:
        written("row", **{alias: np.asarray(array) for alias, array in outputs.items()})
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARGUMENT, text)


arrays = st.sampled_from(["float32", "float64", "int32", "int64", "uint8", "bool"]).flatmap(
    lambda name: st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 2)).map(
        lambda shape: (
            (np.arange(shape[0] * shape[1] * max(1, shape[2])) * 7.3 - 5)
            .reshape(
                (shape[0], shape[1], max(1, shape[2]))[: 1 + shape[2]] if shape[1] and shape[2] else (-1,)
            )
            .astype(name)
        )
    )
)


@given(arrays)
def test_rows_are_the_whole(array: Array) -> None:
    """Rows written one by one are those of the tensor written at once, which reads as it was."""
    whole = json.loads(write.text(array))
    assert [json.loads(row) for row in write.rows(array)] == whole
    np.testing.assert_allclose(np.array(whole, array.dtype).reshape(array.shape), array)


def test_examples() -> None:
    """A value or a list of them for each feature: whole numbers and booleans, fractions, or strings and bytes."""
    given_ = {"i": [1, -2, 2**63 - 1], "f": [0.5, 1e300], "s": ["a", "\u00e9"], "b": [True, 2, False], "m": ["a", B64], "x": [1.5, math.nan],
        "one": 5, "half": 0.5, "true": True, "text": "a", "bytes": B64, "none": []}  # fmt: skip
    features = tfs.Example.FromString(examples.example(given_)).features.feature
    found = {
        name: (kind := one.WhichOneof("kind")) and list(getattr(one, kind).value)
        for name, one in features.items()
    }
    assert found.pop("x") == [1.5, pytest.approx(math.nan, nan_ok=True)]
    assert found == {"i": [1, -2, 2**63 - 1], "f": [0.5, math.inf], "s": [b"a", b"\xc3\xa9"], "b": [1, 2, 0], "m": [b"a", b"hello"],
        "one": [5], "half": [0.5], "true": [1], "text": [b"a"], "bytes": [b"hello"], "none": None}  # fmt: skip


NO_EXAMPLES = {
    "two classes": ([1, 1.5], "Unexpected element type in feature: x expecting type: int64"),
    "a fraction first": ([1.5, True], "Unexpected element type in feature: x expecting type: float"),
    "text first": (["a", 1], "Unexpected element type in feature: x expecting type: bytes"),
    "too large": ([1, 2**63], "Feature: x has uint64_t element. Only int64_t is supported."),
    "null": ([None, None], "Feature: x has element with unexpected JSON type: Null"),
    "lists": ([[1], [2]], "Feature: x has element with unexpected JSON type: Array"),
    "objects": ({"y": 1}, "Feature: x has element with unexpected JSON type: Object"),
    "no base64": ({"b64": "%"}, "Unable to base64 decode"),
}


@pytest.mark.parametrize("case", NO_EXAMPLES)
def test_what_is_no_example(case: str) -> None:
    """In TensorFlow Serving's words."""
    content, text = NO_EXAMPLES[case]
    with pytest.raises(PoolError) as caught:
        examples.example({"w": ["a"], "x": content})
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARGUMENT, text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["i", "s", "x", "b64"]), inner, max_size=3)
    ),
    max_leaves=12,
)
documents = st.dictionaries(
    st.sampled_from(["instances", "inputs", "signature_name", "examples", "context"]), json_values, max_size=3
)


@given(documents, st.sampled_from(["float", "int32", "string", "bool", "uint8"]), st.booleans())
def test_any_document_is_read_or_refused(document: Any, name: str, several: bool) -> None:
    """Whatever is in a document, it is taken, or refused with a reason; never is anything else raised."""
    types = {"i": name, "s": "string"} if several else {"x": name}
    with contextlib.suppress(PoolError):
        assert read(types, document).keys() == types.keys()


def _check_refusal(error: PoolError) -> None:
    assert error.code is not Code.INTERNAL
    assert cut(error.message).encode()


@given(
    documents,
    st.binary(max_size=3),
    st.integers(0, 100),
    st.integers(0, 1100),
    st.sampled_from(["float", "string"]),
)
def test_any_bytes_are_read_or_refused(document: Any, more: bytes, at: int, depth: int, name: str) -> None:
    """Documents broken off, with other bytes among theirs, or deep: taken or refused, in words that can be sent."""
    whole = json.dumps(document).encode()
    for body in (
        whole[:at] + more + whole[at:],
        whole[:at] + more,
        b'{"inputs":' + b"[" * depth + whole + b"]" * depth + b"}",
    ):
        for method in (Method.REST_PREDICT, Method.REST_CLASSIFY, Method.REST_REGRESS):
            try:
                predictor({"x": name}, y=np.float32([1])).read(body, method)
            except PoolError as error:
                _check_refusal(error)


@given(documents, st.sampled_from(["float", "int32", "int64", "bool", "uint8"]))
def test_at_once_is_as_one_by_one(document: Any, name: str) -> None:
    """What is made in one step is what going through it value by value makes."""
    kind = Type(TYPES[name])
    for value in document.values():
        fast = kind.at_once(value)
        if fast is None:
            continue
        slow = kind.one_by_one(value)
        assert fast.dtype == slow.dtype
        assert fast.shape == slow.shape
        np.testing.assert_array_equal(fast, slow)
