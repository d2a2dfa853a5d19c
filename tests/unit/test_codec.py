"""Tensors cross the wire exactly as TensorFlow's own code has them cross: it is the judge here."""

from __future__ import annotations

import os
import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensorflow as tf
    from tensorflow.core.framework import tensor_pb2

from mpspool.core import tfs
from mpspool.worker import codec, varints
from tests import tensors

# tf.make_tensor_proto does not know these; Tensor::FromProto does.
NOT_MADE = [26, 27, 28]
FED = [number for number, data_type in tfs.DATA_TYPES.items() if data_type.field]
# Each has the same meaning in every tensor: fields of other types among them are to be ignored.
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)


def _bits(array: Any) -> Any:
    """The array as something that compares by bits, so that NaN equals itself."""
    if array.dtype == object:
        return array.tolist()
    if array.dtype.name in ("int4", "uint4", "int2", "uint2", "float4_e2m1fn"):
        array = array.astype(np.float32)  # bits beyond the type's own mean nothing
    return np.ascontiguousarray(array).tobytes()


def _same(left: Any, right: Any) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype and _bits(left) == _bits(right)


def _fed(number: int, shape: tuple[int, ...], draw: Any) -> Any:
    """An array of the type, of any values, in the dtype TensorFlow takes it in."""
    if number == tfs.DT_STRING:
        values = draw(
            st.lists(st.binary(max_size=200), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))
        )
        array = np.empty(len(values), object)
        array[:] = values
        return array.reshape(shape)
    dtype = tfs.numpy_dtype(number)
    if dtype.kind == "b":
        return draw(hnp.arrays(np.bool_, shape))
    if dtype.itemsize == 1 and dtype.kind == "V":
        low = draw(hnp.arrays(np.uint8, shape))
        name = tfs.DATA_TYPES[number].text
        if "int" in name:
            bits = 4 if "4" in name else 2
            array = (low % 2**bits).astype(np.int16)
            array = (
                array if name.startswith("u") else np.where(array >= 2 ** (bits - 1), array - 2**bits, array)
            )
            return array.astype(np.int8).view(dtype)
        return (low % 16 if "float4" in name else low).view(dtype)
    raw = draw(hnp.arrays(np.uint8, (*shape, dtype.itemsize)))
    array = raw.reshape(-1).view(dtype).reshape(shape)
    if dtype.kind in "cf":  # tf.make_tensor_proto may go through Python floats, which quiets a signalling NaN
        array = np.where(np.isnan(array), np.array(np.nan, dtype), array)
    return array.view(codec.array_dtype(number)) if codec.array_dtype(number).names else array


def _parse(data: bytes) -> Any:
    """What Tensor::FromProto makes of the bytes. Raises what TensorFlow raises."""
    number = tensor_pb2.TensorProto.FromString(data).dtype
    value = tf.io.parse_tensor(data, tf.dtypes.as_dtype(number)).numpy()
    return np.array(value, object) if isinstance(value, bytes) else value


def _values(array: Any, number: int) -> Any:
    """An array as its plain integers where it is a structure: TensorFlow gives either."""
    return array.view(tfs.numpy_dtype(number)) if array.dtype.names else array


@pytest.mark.parametrize("number", [number for number in FED if number not in NOT_MADE])
@given(data=st.data())
@settings(max_examples=20)
def test_reads_what_tensorflow_writes(number: int, data: st.DataObject) -> None:
    """An array through tf.make_tensor_proto and our decoder is the same array, in TensorFlow's dtype."""
    array = _fed(number, data.draw(shapes), data.draw)
    sent = tf.make_tensor_proto(array, dtype=tf.dtypes.as_dtype(number))
    decoded = tensors.decode(sent.SerializeToString())
    assert _same(decoded, array)
    assert _same(_values(decoded, number), _values(_parse(sent.SerializeToString()), number))


@pytest.mark.parametrize("number", FED)
@given(data=st.data())
@settings(max_examples=20)
def test_tensorflow_reads_what_we_write(number: int, data: st.DataObject) -> None:
    """Our bytes are a TensorProto, a typed list, that TensorFlow and we read as the same array."""
    array = _fed(number, data.draw(shapes), data.draw)
    encoded = tensors.encode(array, number)
    assert _same(_values(_parse(encoded), number), _values(array, number))
    assert _same(tensors.decode(encoded), array)
    stock = tensor_pb2.TensorProto.FromString(encoded)
    assert stock.SerializeToString(deterministic=True) == encoded
    assert not stock.tensor_content


@pytest.mark.parametrize("number", FED)
@given(data=st.data())
@settings(max_examples=20)
def test_values_as_content(number: int, data: st.DataObject) -> None:
    """Of a whole tensor and of ranges of its rows, they are what tensor_content has to be."""
    array = _fed(number, (data.draw(st.integers(1, 5)), *data.draw(shapes)), data.draw)
    assert tensors.encode(array, number, content=True) == tensors.with_content(array, number)
    assert _same(tensors.decode(tensors.encode(array, number, content=True)), array)
    cut = data.draw(st.integers(1, len(array)))
    bounds = [0, cut, len(array)] if cut < len(array) else [0, cut]
    for payload, (start, end) in zip(
        codec.payloads(array, number, bounds, content=True), pairwise(bounds), strict=True
    ):
        head = codec.head(number, array[start:end].shape, len(payload), True)
        assert head + bytes(payload) == tensors.with_content(array[start:end], number)


@pytest.mark.parametrize("number", FED)
@given(data=st.data())
@settings(max_examples=20)
def test_content_is_read(number: int, data: st.DataObject) -> None:
    """An array whose bytes are sent as they are is read as TensorFlow reads it."""
    array = _fed(number, data.draw(shapes), data.draw)
    sent = tensors.with_content(array, number)
    assert _same(_values(_parse(sent), number), _values(array, number))
    assert _same(tensors.decode(sent), array)


@pytest.mark.parametrize("number", FED)
@given(data=st.data())
@settings(max_examples=20)
def test_lists_are_read_as_tensorflow_reads_them(number: int, data: st.DataObject) -> None:
    """Lists too short, too long, empty, out of range or for another type mean what they mean to it."""
    stock = tensor_pb2.TensorProto(dtype=number)
    for size in data.draw(st.lists(st.integers(0, 3), max_size=3)):
        stock.tensor_shape.dim.add().size = size
    field = tfs.DATA_TYPES[number].field
    for name in {field, data.draw(st.sampled_from(["float_val", "int_val", "int64_val"]))}:
        _draw_list(stock, name, data.draw)
    sent = stock.SerializeToString()
    assert _same(_values(tensors.decode(sent), number), _values(_parse(sent), number))


def _draw_list(stock: Any, field: str, draw: Any) -> None:
    if field == "float8_val":
        stock.float8_val = bytes(value % 16 for value in draw(st.binary(max_size=6)))
        return
    values = {
        "string_val": st.binary(max_size=5),
        "bool_val": st.booleans(),
        "half_val": st.integers(0, 2**16 - 1),
        "int_val": st.integers(-(2**31), 2**31 - 1),
        "int64_val": st.integers(-(2**63), 2**63 - 1),
        "uint32_val": st.integers(0, 2**32 - 1),
        "uint64_val": st.integers(0, 2**64 - 1),
    }.get(field, st.floats(width=32))
    getattr(stock, field).extend(draw(st.lists(values, max_size=30)))


@given(
    number=st.sampled_from(FED),
    sizes=st.lists(st.integers(-1, 3), max_size=3),
    content=st.binary(max_size=24),
)
@settings(max_examples=200)
def test_content_is_judged_as_tensorflow_judges_it(number: int, sizes: list[int], content: bytes) -> None:
    """Content of any bytes is accepted or refused as by Tensor::FromProto, and read to the same values."""
    stock = tensor_pb2.TensorProto(dtype=number, tensor_content=content)
    for size in sizes:
        stock.tensor_shape.dim.add().size = size
    sent = stock.SerializeToString()
    try:
        expected = _parse(sent)
    except tf.errors.InvalidArgumentError:
        with pytest.raises(codec.TensorError):
            tensors.decode(sent)
    else:
        decoded = tensors.decode(sent)
        assert decoded.shape == expected.shape
        # int4 and its like have bits of no meaning: the values count.
        values, wanted = _values(decoded, number), _values(expected, number)
        small = values.dtype.itemsize == 1 and values.dtype.kind == "V"
        assert _bits(values.astype("f4") if small else values) == _bits(
            wanted.astype("f4") if small else wanted
        )


UNPACKED = {
    "float_val": (1, b"\x2d" + np.float32(1.5).tobytes() + b"\x2d" + np.float32(2.5).tobytes()),
    "float_val packed and unpacked": (
        1,
        b"\x2d" + np.float32(1.5).tobytes() + b"\x2a\x04" + np.float32(2.5).tobytes(),
    ),
    "float_val in two chunks": (
        1,
        b"\x2a\x04" + np.float32(1.5).tobytes() + b"\x2a\x04" + np.float32(2.5).tobytes(),
    ),
    "int64_val": (9, b"\x50\x07\x50\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    "int_val": (6, b"\x38\x07\x38\x80\x02"),
    "half_val": (14, b"\x68\x80\x7f\x68\x01"),
    "bool_val": (10, b"\x58\x01\x58\x00"),
    "uint64_val": (23, b"\x88\x01\x05\x88\x01\x06"),
    "scomplex_val": (8, b"".join(b"\x4d" + np.float32(part).tobytes() for part in (1, 2, 3, 4, 5))),
    "int4": (29, b"\x38\x07\x38\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    "string_val beside an unknown field": (7, b"\xf8\x7f\x01\x42\x01a\x42\x02bc"),
    "float8_val beside an unknown field": (24, b"\xf8\x7f\x01\x92\x01\x02\x38\x39"),
}


@pytest.mark.parametrize("name", UNPACKED)
def test_lists_sent_unpacked_or_in_chunks(name: str) -> None:
    """A list one value at a time, in chunks or mixed is read in the order it was sent."""
    number, values = UNPACKED[name]
    sent = bytes([8, number]) + b"\x12\x04\x12\x02\x08\x02" + values
    assert _same(tensors.decode(sent), _parse(sent))


@pytest.mark.parametrize(
    "sizes", [[2**40], [2**40, 2**40], [2**62, 4], [0, 2**62, 2**62], [1] * 65, [-1], [3, -2]]
)
@pytest.mark.parametrize("given", [{"float_val": [1.0]}, {"tensor_content": b"\0\0\0\0"}, {}])
def test_absurd_shapes_are_refused(sizes: list[int], given: dict[str, Any]) -> None:
    """A shape that was never meant, or that no array has, allocates nothing and is refused."""
    tensor = tfs.TensorProto(dtype=1, **given)
    for size in sizes:
        tensor.tensor_shape.dim.add(size=size)
    with pytest.raises(codec.TensorError):
        tensors.decode(tensor.SerializeToString())


def test_a_long_shape_is_not_remembered() -> None:
    """Shapes that a client makes up (here by a long name) do not pile up, and are read all the same."""
    before = codec._known_dimensions.cache_info().currsize
    shape = {"dim": [{"size": 2, "name": "n" * 10**5}]}
    sent = tfs.TensorProto(dtype=1, tensor_shape=shape, float_val=[1]).SerializeToString()
    assert tensors.decode(sent).tolist() == [1, 1]
    assert codec._known_dimensions.cache_info().currsize == before


@pytest.mark.parametrize("number", [0, 20, 21, 34, 101, 10**6, -1])
def test_types_that_cannot_be_fed_are_refused(number: int) -> None:
    """Resources, variants, references and numbers that mean nothing are refused, not looked into."""
    sent = b"\x08" + varints.one(number) + b"\x12\x00"
    with pytest.raises(codec.TensorError):
        tensors.decode(sent)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x08\x01\x12\x00\x2a\x03abc",  # a float list of three bytes
        b"\x08\x09\x12\x00\x52\x01\x80",  # an integer list that ends within an integer
        b"\x08\x09\x12\x00\x52\x0b" + b"\x80" * 10 + b"\x01",
        b"\x08\x09\x12\x00\x52\x20" + b"\x80" * 31 + b"\x01",
    ],
)
def test_garbage_is_refused(sent: bytes) -> None:
    """Lists that are none end in TensorError."""
    with pytest.raises(codec.TensorError):
        tensors.decode(sent)


@pytest.mark.parametrize("number", [1, 3, 9, 10, 19, 22])
def test_large_tensors(number: int) -> None:
    """A million elements cross in both directions, as TensorFlow has them, in either encoding."""
    rng = np.random.default_rng(number)
    dtype = tfs.numpy_dtype(number)
    array = (rng.standard_normal(10**6) * 1000).astype(dtype).reshape(1000, 1000)
    for encode in (tensors.encode, tensors.with_content):
        encoded = encode(array, number)
        assert np.array_equal(tensors.decode(encoded), array)
        assert np.array_equal(tf.make_ndarray(tensor_pb2.TensorProto.FromString(encoded)), array)


@pytest.mark.parametrize(
    ("number", "given", "value"),
    [
        (1, {"float_val": [2.5]}, 2.5),
        (1, {}, 0),
        (7, {"string_val": [b"a"]}, b"a"),
        (7, {}, b""),
        (10, {"bool_val": [True]}, True),
        (14, {"half_val": [0x3FC0]}, 1.5),
        (19, {"half_val": [0x3E00]}, 1.5),
        (11, {"int_val": [-3]}, (-3,)),
    ],
)
def test_one_value_for_all_elements_is_in_memory_once(number: int, given: dict[str, Any], value: Any) -> None:
    """So the parts of a request that is split cost no more than what they are sent."""
    tensor = tfs.TensorProto(dtype=number, **given)
    for size in (5000, 4000):
        tensor.tensor_shape.dim.add(size=size)
    decoded = tensors.decode(tensor.SerializeToString())
    assert (decoded.shape, decoded.strides) == ((5000, 4000), (0, 0))
    assert decoded[7:8, :3].tolist() == [[value] * 3]


def test_large_content_is_not_copied() -> None:
    """Decoded content is a view of the bytes that were parsed, and encoded content one of the array."""
    array = np.zeros(10**5, np.float32)
    raw = tfs.RawTensor.FromString(tensors.with_content(array, 1))
    assert not codec.decode(raw, lambda: raw).flags.owndata
    assert np.shares_memory(np.asarray(codec.payloads(array, 1)[0]), array)


def test_arrays_need_not_be_contiguous_or_of_the_very_type() -> None:
    """A transposed, strided or plain-integer array is sent as its values."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T[:, ::-1]
    assert np.array_equal(_parse(tensors.encode(array)), array)
    integers = np.array([-1, 2], np.int8)
    assert _parse(tensors.encode(integers, 11)).tolist() == [-1, 2]
    texts = np.array(["a", "é"])
    assert _parse(tensors.encode(texts)).tolist() == [b"a", "é".encode()]
    with pytest.raises(codec.TensorError):
        tensors.encode(np.array(["a"], object), 1)
    with pytest.raises(codec.TensorError):
        tensors.encode(np.array([1.0]), tfs.DT_STRING)
    with pytest.raises(codec.TensorError):
        tensors.encode(np.array([1], "M8[s]"))


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 200), max_size=60))
def test_varints_round_trip(values: list[int]) -> None:
    """Lists of any length and width come back, and each varint is protobuf's own."""
    encoded = varints.encode(np.array(values, np.uint64))
    assert encoded == b"".join(varints.one(value) for value in values)
    assert varints.decode(encoded).tolist() == values
    assert varints.read(encoded + b"\xff", len(values)) == (values, len(encoded))
    parsed = tfs.RawTensor(uint64_val=[encoded]).SerializeToString()
    assert list(tfs.TensorProto.FromString(parsed).uint64_val) == values
