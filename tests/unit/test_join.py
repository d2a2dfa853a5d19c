"""Responses to consecutive rows of a request become the one to all of them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpspool.core import tfs
from mpspool.core.join import join
from mpspool.worker.engine.base import Array
from tests import tensors

NUMBERS = [number for number, data_type in tfs.DATA_TYPES.items() if data_type.field]


def _response(outputs: dict[str, bytes], version: int = 7) -> bytes:
    response = tfs.PredictResponse()
    response.model_spec.name = "half"
    response.model_spec.version.value = version
    for alias, tensor in outputs.items():
        response.outputs[alias].ParseFromString(tensor)
    return bytes(response.SerializeToString())


def _tensor(shape: tuple[int, ...], number: int = 1, **fields: Any) -> bytes:
    tensor = tfs.TensorProto(dtype=number, **fields)
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    return bytes(tensor.SerializeToString())


def _values(number: int, shape: tuple[int, ...], seed: int) -> Array:
    random = np.random.default_rng(seed)
    if number == tfs.DT_STRING:
        values = np.empty(shape, object)
        values.reshape(-1)[:] = [bytes(random.bytes(size)) for size in random.integers(0, 300, values.size)]
        return values
    dtype = tfs.numpy_dtype(number)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max, shape, dtype, endpoint=True)
    return random.integers(0, 2, shape).astype(dtype)


@pytest.mark.parametrize("encode", [tensors.encode, tensors.with_content], ids=["list", "content"])
@pytest.mark.parametrize("number", NUMBERS)
@given(
    rows=st.lists(st.integers(1, 4), min_size=1, max_size=4), inner=st.sampled_from([(), (3,), (2, 1), (0,)])
)
def test_rows_follow_one_another(number: int, encode: Any, rows: list[int], inner: tuple[int, ...]) -> None:
    """Values of each type, in lists and as content, come out in order under one shape and one model_spec."""
    whole = _values(number, (sum(rows), *inner), seed=len(rows))
    pieces = np.split(whole, np.cumsum(rows)[:-1])
    joined = join([_response({"y": encode(piece, number), "z": encode(piece, number)}) for piece in pieces])
    assert joined == bytes(
        tfs.PredictResponse.FromString(
            _response({"y": encode(whole, number), "z": encode(whole, number)})
        ).SerializeToString(deterministic=True)
    )


@pytest.mark.parametrize("number", [number for number in NUMBERS if number != tfs.DT_STRING])
def test_lists_and_content(number: int) -> None:
    """While a reload of tensor_content is under way, one worker answers in lists and another one does not."""
    whole = _values(number, (5, 2), seed=3)
    for first, second in ((tensors.encode, tensors.with_content), (tensors.with_content, tensors.encode)):
        joined = join(
            [_response({"y": first(whole[:2], number)}), _response({"y": second(whole[2:], number)})]
        )
        assert joined == bytes(
            tfs.PredictResponse.FromString(
                _response({"y": tensors.with_content(whole, number)})
            ).SerializeToString(deterministic=True)
        )


def test_strings_of_all_lengths() -> None:
    """Lengths of one byte, of two and of more."""
    whole = np.array([b"x" * length for length in (0, 1, 127, 128, 16_383, 16_384, 3_000_000, 5)], object)
    pieces = [whole[:3], whole[3:6], whole[6:]]
    joined = join([_response({"y": tensors.with_content(piece, tfs.DT_STRING)}) for piece in pieces])
    assert joined == _response({"y": tensors.with_content(whole, tfs.DT_STRING)})


def test_one_part_is_itself() -> None:
    """A request that was not split after all."""
    only = _response({"y": tensors.encode(np.ones((2, 3), np.float32))})
    assert tfs.PredictResponse.FromString(join([only])) == tfs.PredictResponse.FromString(only)


Y = _tensor((1,), float_val=[1])


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ({"y": Y}, {"z": Y}, r"the outputs differ: \['y'\], then \['z'\]"),
        ({"y": Y}, {"y": Y, "z": Y}, "the outputs differ"),
        ({"y": Y}, {"y": _tensor((1,), 2, double_val=[1])}, r'output "y": the types differ: .*double'),
        ({"y": Y}, {"y": _tensor((1, 1), float_val=[1])}, "the shapes differ in more than dimension 0"),
        ({"y": Y}, {"y": _tensor((), float_val=[1])}, "without dimensions has no rows"),
        ({"y": Y}, {"y": _tensor((1,), tensor_content=b"\0\0\0")}, "size"),
        ({"y": _tensor((1,), 7, tensor_content=b"\1a")}, {"y": _tensor((1,), 7, string_val=[b"a"])},
         r"the values are in several fields: \['string_val', 'tensor_content'\]"),
        ({"y": _tensor((2,), 9, int64_val=[300])}, {"y": _tensor((1,), 9, tensor_content=b"\0" * 8)}, "1 values for 2"),
        ({"y": Y}, {"y": _tensor((2,), float_val=[1])}, "1 values for 2 elements"),
        ({"y": Y}, {"y": _tensor((1,))}, "0 values for 1 elements"),
        ({"y": _tensor((2,), 9, int64_val=[300])}, {"y": _tensor((1,), 9, int64_val=[1])}, "1 values for 2"),
        ({"y": _tensor((1,), 7)}, {"y": _tensor((1,), 7)}, "0 values for 1 elements"),
        ({"y": _tensor((1,), tensor_content=b"\0\0\0")}, {"y": _tensor((1,), tensor_content=b"\0")}, "size"),
        ({"y": _tensor((2,), 7, tensor_content=b"\x01a")}, {"y": Y}, "the types differ"),
        ({"y": _tensor((2,), 7, tensor_content=b"\x81")}, {"y": _tensor((1,), 7, tensor_content=b"\1a")}, "ends"),
        ({"y": _tensor((1,), 7, tensor_content=b"\1")}, {"y": _tensor((1,), 7, tensor_content=b"\1a")}, "size"),
        ({"y": _tensor((1,), 20)}, {"y": _tensor((1,), 20)}, "no values of the type resource"),
        ({"y": _tensor((1,), 99)}, {"y": _tensor((1,), 99)}, "no values of the type unknown"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(left: dict[str, bytes], right: dict[str, bytes], message: str) -> None:
    """Outputs, types, shapes and fields that differ, and lists that are not complete, are refused by name."""
    with pytest.raises(ValueError, match=message):
        join([_response(left), _response(right)])


def test_lists_that_are_not_packed() -> None:
    """A value with a tag of its own is for parsers, and no worker writes it."""
    tensor = b"\x08\x01\x12\x04\x12\x02\x08\x01" + b"\x2d\0\0\0\0"
    entry = b"\x0a\x01y\x12" + bytes([len(tensor)]) + tensor
    with pytest.raises(ValueError, match="not packed"):
        join([b"\x0a" + bytes([len(entry)]) + entry] * 2)


def test_parts_of_other_models_and_garbage() -> None:
    """Answers of two versions, and bytes that are none, are not joined."""
    with pytest.raises(ValueError, match="the model differs"):
        join([_response({"y": Y}), _response({"y": Y}, version=8)])
    with pytest.raises(ValueError, match="3 bytes are no PredictResponse"):
        join([_response({"y": Y}), b"\x0a\x05a"])


def test_joining_is_light() -> None:
    """The router joins, so neither TensorFlow nor the worker's code is imported by it, and NumPy for no answers that are alike."""
    parts = [
        _response({"y": tensors.with_content(_values(number, (2, 3), seed=1), number)}) for number in NUMBERS
    ]
    code = (
        "import sys; from mpspool.core.join import join;"
        "[join([part, part]) for part in map(bytes.fromhex, sys.argv[1:])];"
        "print([m for m in sys.modules if m.startswith(('tensorflow', 'mpspool.worker', 'numpy', 'zmq'))])"
    )
    command = [sys.executable, "-c", code, *(part.hex() for part in parts)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
