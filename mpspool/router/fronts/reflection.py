"""Server reflection over the serving protos, which are not in protobuf's default pool.

Clients ask for its v1 or for v1alpha, whose messages are the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import ReflectionServicer

from mpspool.core import envelope, tfs
from mpspool.router.fronts.grpc_call import SMALL_BYTES, Admit, Call, Method, Streaming

_ALPHA, _V1 = "grpc.reflection.v1alpha", "grpc.reflection.v1"


def methods(services: Iterable[str], admit: Admit) -> dict[str, Method]:
    """Describes these services, and reflection itself."""
    packages = (_V1, _ALPHA)
    servicer = ReflectionServicer(
        [*services, *(f"{package}.ServerReflection" for package in packages)], _pool()
    )

    async def describe(call: Call) -> None:
        while (body := await call.receive()) is not None:
            try:
                request = reflection_pb2.ServerReflectionRequest.FromString(body)
            except DecodeError:
                raise envelope.malformed(body, f"{_V1}.ServerReflectionRequest") from None
            for response in servicer.ServerReflectionInfo([request], None):
                await call.send(response.SerializeToString())

    return {
        f"/{package}.ServerReflection/ServerReflectionInfo": Streaming(describe, admit, max_bytes=SMALL_BYTES)
        for package in packages
    }


def _pool() -> descriptor_pool.DescriptorPool:
    """One pool with the files of everything that is served."""
    serving = [tfs.POOL.FindServiceByName(name).file for name in (tfs.PREDICTION_SERVICE, tfs.MODEL_SERVICE)]
    pool = descriptor_pool.DescriptorPool()
    seen: set[str] = set()
    for file in (*serving, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        _copy(file, pool, seen)
    pool.AddSerializedFile(_file_of_v1().SerializeToString())
    return pool


def _copy(file: FileDescriptor, pool: descriptor_pool.DescriptorPool, seen: set[str]) -> None:
    """Adds a file after those it imports."""
    if file.name in seen:
        return
    seen.add(file.name)
    for dependency in file.dependencies:
        _copy(dependency, pool, seen)
    pool.AddSerializedFile(file.serialized_pb)


def _file_of_v1() -> FileDescriptorProto:
    """v1alpha's under the other names; grpcio-reflection has that alone."""
    file = FileDescriptorProto.FromString(reflection_pb2.DESCRIPTOR.serialized_pb)
    file.name, file.package = "grpc/reflection/v1/reflection.proto", _V1
    for message in file.message_type:
        for field in (field for field in message.field if field.type_name):
            field.type_name = field.type_name.replace(f".{_ALPHA}.", f".{_V1}.")
    for method in file.service[0].method:
        method.input_type = method.input_type.replace(f".{_ALPHA}.", f".{_V1}.")
        method.output_type = method.output_type.replace(f".{_ALPHA}.", f".{_V1}.")
    return file
