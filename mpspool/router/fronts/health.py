"""grpc.health.v1: says of every service whether the pool is ready, and tells watchers when that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from mpspool.core import envelope
from mpspool.core.errors import Code, PoolError
from mpspool.router.fronts.grpc_call import Admit, Call, Method, Streaming, Unary
from mpspool.router.memory import Admission

SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_Status = health_pb2.HealthCheckResponse.ServingStatus


class Readiness(Protocol):
    """What decides whether the pool is ready."""

    def unready(self) -> str:
        """Why not; empty when ready."""

    def on_change(self, callback: Callable[[], None]) -> None:
        """Calls back, on the event loop, whenever unready() may answer otherwise."""


class Health:
    """The service, over a Readiness."""

    def __init__(self, readiness: Readiness, services: Iterable[str]) -> None:
        self._readiness = readiness
        self._services = frozenset(("", *services))
        self._stopped = False
        self._watchers: set[asyncio.Event] = set()
        readiness.on_change(self._tell)

    def methods(self, admit: Admit) -> dict[str, Method]:
        return {
            f"/{SERVICE}/Check": Unary(self._check, admit),
            f"/{SERVICE}/Watch": Streaming(self._watch, admit, one=True),
        }

    def stop(self) -> None:
        """Says NOT_SERVING for good; watchers are told so, and end."""
        self._stopped = True
        self._tell()

    def _tell(self) -> None:
        for changed in self._watchers:
            changed.set()

    def _status(self, service: str) -> int | None:
        """None for a service that is not here."""
        if service not in self._services:
            return None
        ready = not self._stopped and not self._readiness.unready()
        return int(_Status.SERVING if ready else _Status.NOT_SERVING)

    async def _check(self, body: bytes, _call: Call, admission: Admission) -> bytes:
        admission.release()
        status = self._status(_service(body))
        if status is None:
            raise PoolError(Code.NOT_FOUND, "There is no such service here")
        return _response(status)

    async def _watch(self, call: Call) -> None:
        service = _service(await call.receive() or b"")
        changed = asyncio.Event()
        self._watchers.add(changed)
        told: int | None = None
        try:
            while True:
                changed.clear()
                status = self._status(service)
                if status is None:
                    status = _Status.SERVICE_UNKNOWN
                if status != told:
                    await call.send(_response(status))
                    told = status
                if self._stopped:
                    raise PoolError(Code.UNAVAILABLE, "This server is shutting down; watch another")
                await changed.wait()
        finally:
            self._watchers.discard(changed)


def _service(body: bytes) -> str:
    kind: Any = health_pb2.HealthCheckRequest
    try:
        return str(kind.FromString(body).service)
    except DecodeError:
        raise envelope.malformed(body, kind.DESCRIPTOR.full_name) from None


def _response(status: int) -> bytes:
    return bytes(health_pb2.HealthCheckResponse(status=status).SerializeToString())
