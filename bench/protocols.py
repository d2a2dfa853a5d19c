"""The three protocols the servers speak, as bytes in and bytes out, and one checked call of each.

`tfs` is TensorFlow Serving's gRPC, `kserve` the gRPC of Triton and MLServer, `json` TensorFlow
Serving's columnar REST form over HTTP/1.1.
"""

from __future__ import annotations

import functools
import json
import struct
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from bench.models import Array, Arrays, Model

_TIMEOUT_S = 20.0
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Protocol(ABC):
    """How to ask one model, and what h2load must send for it."""

    path: str
    headers: Sequence[str]

    @abstractmethod
    def encode(self, model: Model, inputs: Arrays) -> bytes:
        """The request message."""

    @abstractmethod
    def decode(self, answer: bytes) -> dict[str, Array]:
        """The response message's outputs."""

    @abstractmethod
    def call(self, address: str, message: bytes) -> bytes:
        """Sends a request message through a real client and returns the response message."""

    @abstractmethod
    def frame(self, message: bytes) -> bytes:
        """A message as it lies in the body of an HTTP request or response."""


class _Grpc(Protocol):
    headers = ("content-type: application/grpc", "te: trailers")

    def call(self, address: str, message: bytes) -> bytes:
        with grpc.insecure_channel(address, options=_UNLIMITED) as channel:
            answer: bytes = channel.unary_unary(self.path)(message, timeout=_TIMEOUT_S)
        return answer

    def frame(self, message: bytes) -> bytes:
        uncompressed = b"\0"
        return uncompressed + struct.pack(">I", len(message)) + message


class Tfs(_Grpc):
    """TensorFlow Serving's PredictionService, tensors as tensor_content."""

    path = "/tensorflow.serving.PredictionService/Predict"
    _types: Mapping[str, int] = {"float32": 1, "int64": 9}

    def encode(self, model: Model, inputs: Arrays) -> bytes:
        from mpspool.core import tfs

        request = tfs.PredictRequest()
        request.model_spec.name = model.name
        for name in sorted(inputs):
            tensor, array = request.inputs[name], inputs[name]
            tensor.dtype = self._types[array.dtype.name]
            for size in array.shape:
                tensor.tensor_shape.dim.add().size = size
            tensor.tensor_content = array.tobytes()
        body: bytes = request.SerializeToString()
        return body

    def decode(self, answer: bytes) -> dict[str, Array]:
        from mpspool.core import tfs

        outputs = {}
        for name, tensor in tfs.PredictResponse.FromString(answer).outputs.items():
            shape = [dim.size for dim in tensor.tensor_shape.dim]
            listed = np.array(tensor.float_val, np.float32)
            array = np.frombuffer(tensor.tensor_content, np.float32) if tensor.tensor_content else listed
            # A list whose tail is all the same value may be cut short: the last one stands for the rest.
            missing = int(np.prod(shape)) - array.size
            outputs[name] = np.pad(array, (0, missing), mode="edge").reshape(shape)
        return outputs


class Kserve(_Grpc):
    """The KServe v2 GRPCInferenceService, tensors as raw contents.

    Args:
        batched: the server's model has a batch dimension of its own: tensors have two at least.
    """

    path = "/inference.GRPCInferenceService/ModelInfer"
    _types: Mapping[str, str] = {"float32": "FP32", "int64": "INT64"}

    def __init__(self, batched: bool = False) -> None:
        self._batched = batched

    def encode(self, model: Model, inputs: Arrays) -> bytes:
        request = _kserve("ModelInferRequest")(model_name=model.name)
        for name in sorted(inputs):
            array = inputs[name]
            shape = (len(array), array[:1].size) if self._batched else array.shape
            request.inputs.add(name=name, datatype=self._types[array.dtype.name], shape=shape)
            request.raw_input_contents.append(array.tobytes())
        body: bytes = request.SerializeToString()
        return body

    def decode(self, answer: bytes) -> dict[str, Array]:
        response = _kserve("ModelInferResponse").FromString(answer)
        raw = response.raw_output_contents
        outputs = {}
        for index, tensor in enumerate(response.outputs):
            listed = np.array(tensor.contents.fp32_contents, np.float32)
            outputs[tensor.name] = np.frombuffer(raw[index], np.float32) if raw else listed
        return outputs


class Json(Protocol):
    """{"inputs": {...}} in, {"outputs": {...}} out."""

    headers = ("content-type: application/json",)

    def __init__(self, path: str = "/predict") -> None:
        self.path = path

    def encode(self, model: Model, inputs: Arrays) -> bytes:  # noqa: ARG002  the address says which model
        return json.dumps({"inputs": {name: array.tolist() for name, array in inputs.items()}}).encode()

    def decode(self, answer: bytes) -> dict[str, Array]:
        return {
            name: np.asarray(values, np.float32) for name, values in json.loads(answer)["outputs"].items()
        }

    def call(self, address: str, message: bytes) -> bytes:
        headers = dict(header.split(": ", 1) for header in self.headers)
        request = urllib.request.Request(f"http://{address}{self.path}", message, headers)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            answer: bytes = response.read()
        return answer

    def frame(self, message: bytes) -> bytes:
        return message


# The fields of the KServe v2 protocol used here: (name, number, type, repeated).
_STRING, _BYTES, _INT64, _FLOAT = "TYPE_STRING", "TYPE_BYTES", "TYPE_INT64", "TYPE_FLOAT"
_KSERVE_FIELDS: Mapping[str, Sequence[tuple[str, int, str, bool]]] = {
    "Contents": [("fp32_contents", 6, _FLOAT, True)],
    "Tensor": [
        ("name", 1, _STRING, False),
        ("datatype", 2, _STRING, False),
        ("shape", 3, _INT64, True),
        ("contents", 5, "Contents", False),
    ],
    "ModelInferRequest": [
        ("model_name", 1, _STRING, False),
        ("inputs", 5, "Tensor", True),
        ("raw_input_contents", 7, _BYTES, True),
    ],
    "ModelInferResponse": [("outputs", 5, "Tensor", True), ("raw_output_contents", 6, _BYTES, True)],
}


@functools.cache
def _kserve(name: str) -> Any:
    """A message class, in a descriptor pool of its own."""
    return message_factory.GetMessageClass(_kserve_pool().FindMessageTypeByName(f"bench.kserve.{name}"))


@functools.cache
def _kserve_pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(
        name="bench_kserve.proto", package="bench.kserve", syntax="proto3"
    )
    for message, fields in _KSERVE_FIELDS.items():
        described = file.message_type.add(name=message)
        for name, number, kind, repeated in fields:
            field = described.field.add(name=name, number=number)
            field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            if kind.startswith("TYPE_"):
                field.type = field.Type.Value(kind)
            else:
                field.type, field.type_name = field.TYPE_MESSAGE, f".bench.kserve.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool
