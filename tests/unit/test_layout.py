"""Requests known by their bytes are read as the ones that are parsed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpspool.core import tfs
from mpspool.core.errors import PoolError
from mpspool.core.ids import ModelVersion
from mpspool.worker import layout
from mpspool.worker.engine.base import Array, Signature, TensorSpec
from mpspool.worker.layout import Layouts
from mpspool.worker.predict import Predictor
from tests import tensors
from tests.fakes.engine import FakeEngine, predict

MODEL = ModelVersion("half", 7)
FLOAT, DOUBLE, INT32, STRING, INT64, BOOL, QINT8, BFLOAT16, UINT64 = 1, 2, 3, 7, 9, 10, 11, 14, 23
TYPES = (FLOAT, DOUBLE, INT32, STRING, INT64, BOOL, QINT8, BFLOAT16, UINT64)


def _engine(*numbers: int) -> FakeEngine:
    """Answers the bytes of what it was fed; the last input has a default."""
    aliases = {f"in{index}": number for index, number in enumerate(numbers)}
    last = f"in{len(numbers) - 1}"
    signature = Signature(
        name=tfs.DEFAULT_SIGNATURE,
        method_name="tensorflow/serving/predict",
        inputs={alias: TensorSpec(number, None) for alias, number in aliases.items()},
        outputs={"fed": TensorSpec(STRING, None)},
        defaults={last: np.zeros(1, tfs.numpy_dtype(numbers[-1]))},
    )
    return FakeEngine([signature], _fed)


def _fed(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    said = [f"{alias} {array.dtype} {array.shape} {array.tolist()}" for alias, array in inputs.items()]
    return {"fed": np.array([text.encode() for text in sorted(said)], object)}


def _body(inputs: Mapping[str, tuple[Array, int]], *, content: bool) -> bytes:
    request = tfs.PredictRequest()
    request.model_spec.name = "half"
    for alias, (array, number) in inputs.items():
        encode = tensors.with_content if content else tensors.encode
        request.inputs[alias].ParseFromString(encode(array, number))
    return bytes(request.SerializeToString())


def _answer(predictor: Predictor, body: bytes) -> Any:
    try:
        return predict(predictor, body)
    except PoolError as error:
        return error.code, error.message


def _array(number: int, shape: tuple[int, ...], seed: int) -> Array:
    random = np.random.default_rng(seed)
    if number == STRING:
        array = np.empty(shape, object)
        array[...] = b"text"
        return array
    dtype = tfs.numpy_dtype(number)
    return (random.integers(0, 2, shape) * 100).astype(dtype)


@given(
    numbers=st.lists(st.sampled_from(TYPES), min_size=1, max_size=3),
    given_inputs=st.integers(1, 3),
    shape=st.lists(st.integers(0, 3), max_size=3).map(tuple),
    content=st.booleans(),
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 3),
)
@settings(max_examples=600)
def test_nothing_changes_with_what_was_met_before(
    numbers: list[int],
    given_inputs: int,
    shape: tuple[int, ...],
    content: bool,
    flips: list[tuple[int, int]],
    cut: int,
) -> None:
    """Other values, and bytes changed anywhere, are answered or refused as if the request were the first."""
    engine = _engine(*numbers)
    used = numbers[: max(given_inputs, len(numbers) - 1)]

    def body(seed: int) -> bytes:
        arrays = {f"in{i}": (_array(number, shape, seed + i), number) for i, number in enumerate(used)}
        return _body(arrays, content=content)

    met = Predictor(engine, MODEL)
    for seed in (1, 2, 3):
        _answer(met, body(seed))
    changed = bytearray(body(4))
    for position, byte in flips:
        changed[position % len(changed)] = byte
    for asked in (body(5), bytes(changed), bytes(changed[: len(changed) - cut])):
        assert _answer(met, asked) == _answer(Predictor(engine, MODEL), asked)


def test_a_request_without_inputs_is_known_too() -> None:
    """All of them have defaults: it is answered by these the third time as the first."""
    predictor = Predictor(_engine(FLOAT), MODEL)
    answers = {_answer(predictor, _body({}, content=True)) for _ in range(4)}
    assert [b"in0 float32 (1,) [0.0]" in answer for answer in answers] == [True]


@pytest.mark.parametrize(
    ("number", "content", "known"),
    [
        (FLOAT, True, True),
        (FLOAT, False, True),
        (DOUBLE, False, True),
        (INT64, True, True),
        (INT64, False, True),
        (INT32, False, True),
        (QINT8, False, True),
        (BFLOAT16, True, True),
        (BFLOAT16, False, False),
        (BOOL, True, False),
        (STRING, False, False),
    ],
)
def test_what_is_known_by_its_bytes(number: int, content: bool, known: bool) -> None:
    """Numbers whose bytes need no look, and short lists of integers, from the third request on."""
    predictor = Predictor(_engine(number), MODEL)
    body = _body({"in0": (_array(number, (2, 2), 1), number)}, content=content)
    kinds = [predictor.read(body).kind for _ in range(4)]
    assert kinds[0] is not kinds[1]
    assert (kinds[2] is kinds[1]) is known
    assert (kinds[3] is kinds[2]) is known


def test_lists_that_are_too_short_or_too_long_are_parsed() -> None:
    """They are filled or cut as ever, although another list of so many bytes fitted exactly."""
    engine = _engine(INT64)
    predictor = Predictor(engine, MODEL)
    usual = _body({"in0": (np.array([300, 301]), INT64)}, content=False)
    for _ in range(3):
        predict(predictor, usual)
    for values in (b"\x80\x80\x80\x01", b"\x01\x02\x80\x01", b"\x01\x02\x03\x04", b"\x80\x80\x80\x80"):
        odd = usual[:-4] + values if usual.endswith(b"\xac\x02\xad\x02") else b""
        assert odd
        assert _answer(predictor, odd) == _answer(Predictor(engine, MODEL), odd)


def test_two_tensors_under_one_alias() -> None:
    """The last one counts, as in protobuf, and nothing is learnt from such a request."""
    engine = _engine(FLOAT)
    first = _body({"in0": (np.array([1.0], np.float32), FLOAT)}, content=False)
    second = _body({"in0": (np.array([2.0], np.float32), FLOAT)}, content=False)
    predictor = Predictor(engine, MODEL)
    for _ in range(4):
        predict(predictor, first + second)
    assert engine.calls[-1][1]["in0"].tolist() == [2.0]


@pytest.mark.parametrize("number", [FLOAT, BOOL])
def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A client that never sends the same twice does not fill the memory."""
    monkeypatch.setattr(layout, "_MAX_KNOWN", 3)
    monkeypatch.setattr(layout, "_MAX_MET", 5)
    predictor = Predictor(_engine(number), MODEL)
    for rows in range(1, 20):
        body = _body({"in0": (np.ones(rows, tfs.numpy_dtype(number)), number)}, content=True)
        for _ in range(3):
            predict(predictor, body)
    known: Layouts[Any] = predictor._known
    assert sum(len(of_size) for of_size in known._by_size.values()) <= 3
    assert len(known._by_size) <= 3
    assert len(known._met) <= 5
