"""Server reflection over the serving protos, which are not in protobuf's default pool."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha._async import ReflectionServicer

from mpspool.core import tfs

SERVICE = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name


def add(server: Any, services: Iterable[str]) -> None:
    """Makes a grpc.aio server describe these services, and reflection itself."""
    servicer = ReflectionServicer([*services, SERVICE], _pool())
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)


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
