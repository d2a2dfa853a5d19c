"""Server reflection over the serving protos, which are not in protobuf's default pool."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import ReflectionServicer

from mpspool.core import envelope, tfs
from mpspool.router.fronts.grpc_call import Admit, Call, Method, Streaming

SERVICE = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name


def methods(services: Iterable[str], admit: Admit) -> dict[str, Method]:
    """Describes these services, and reflection itself."""
    servicer = ReflectionServicer([*services, SERVICE], _pool())

    async def describe(call: Call) -> None:
        while (body := await call.receive()) is not None:
            try:
                request = reflection_pb2.ServerReflectionRequest.FromString(body)
            except DecodeError:
                raise envelope.malformed(body, "grpc.reflection.v1alpha.ServerReflectionRequest") from None
            for response in servicer.ServerReflectionInfo([request], None):
                await call.send(response.SerializeToString())

    return {f"/{SERVICE}/ServerReflectionInfo": Streaming(describe, admit)}


def _pool() -> descriptor_pool.DescriptorPool:
    """One pool with the files of everything that is served."""
    serving = [tfs.POOL.FindServiceByName(name).file for name in (tfs.PREDICTION_SERVICE, tfs.MODEL_SERVICE)]
    pool = descriptor_pool.DescriptorPool()
    seen: set[str] = set()
    for file in (*serving, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        _copy(file, pool, seen)
    return pool


def _copy(file: FileDescriptor, pool: descriptor_pool.DescriptorPool, seen: set[str]) -> None:
    """Adds a file after those it imports."""
    if file.name in seen:
        return
    seen.add(file.name)
    for dependency in file.dependencies:
        _copy(dependency, pool, seen)
    pool.AddSerializedFile(file.serialized_pb)
