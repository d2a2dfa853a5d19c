"""Serialised tensors: read and written by the worker's codec, and written as its clients may."""

from __future__ import annotations

from mpspool.core import tfs
from mpspool.worker import codec, varints
from mpspool.worker.engine.base import Array


def decode(data: bytes) -> Array:
    """What the codec reads in a serialised TensorProto. Raises codec.TensorError."""
    return codec.decode(tfs.RawTensor.FromString(data), lambda: tfs.TensorProto.FromString(data))


def encode(array: Array, number: int = 0, *, content: bool = False) -> bytes:
    """A serialised TensorProto, as the codec writes it: a typed list, or tensor_content. Raises codec.TensorError."""
    number = number or codec.number_of(array)
    (payload,) = codec.payloads(array, number, content=content)
    return codec.head(number, array.shape, len(payload), content) + payload


def with_content(array: Array, number: int) -> bytes:
    """A serialised TensorProto with the values in tensor_content."""
    tensor = tfs.TensorProto(dtype=number, tensor_content=_content(array))
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    return bytes(tensor.SerializeToString())


def _content(array: Array) -> bytes:
    """The elements' bytes; of strings all lengths, then all bytes."""
    if array.dtype != object:
        return array.tobytes()
    strings = array.reshape(-1).tolist()
    return b"".join([*(varints.one(len(value)) for value in strings), *strings])
