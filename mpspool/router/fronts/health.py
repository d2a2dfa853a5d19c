"""grpc.health.v1: says of every service whether the pool is ready, and tells watchers when that changes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from mpspool.core import envelope
from mpspool.core.errors import Code, PoolError
from mpspool.router.fronts.grpc_call import SMALL_BYTES, Admit, Call, Method, Streaming, Unary
from mpspool.router.memory import Admission

SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
# Some milliseconds.
_TOLD_AT_ONCE = 128
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
        # What they are told, and those that have yet to be.
        self._told = self._is_ready()
        self._untold: deque[asyncio.Event] = deque()
        readiness.on_change(self._tell)

    def methods(self, admit: Admit) -> dict[str, Method]:
        return {
            f"/{SERVICE}/Check": Unary(self._check, admit, max_bytes=SMALL_BYTES),
            f"/{SERVICE}/Watch": Streaming(self._watch, admit, one=True, max_bytes=SMALL_BYTES),
        }

    def stop(self) -> None:
        """Says NOT_SERVING for good; watchers are told so, and end."""
        self._stopped = True
        self._tell()

    def _tell(self) -> None:
        """Where it is another than it was, or for the last time."""
        ready = self._is_ready()
        if ready == self._told and not self._stopped:
            return
        self._told = ready
        if not self._untold:
            asyncio.get_running_loop().call_soon(self._tell_some)
        self._untold = deque(self._watchers)

    def _tell_some(self) -> None:
        """There may be thousands, and requests do not wait for all of them."""
        for _ in range(min(_TOLD_AT_ONCE, len(self._untold))):
            self._untold.popleft().set()
        if self._untold:
            asyncio.get_running_loop().call_soon(self._tell_some)

    def _is_ready(self) -> bool:
        return not self._stopped and not self._readiness.unready()

    def _status(self, service: str) -> int | None:
        """None for a service that is not here."""
        if service not in self._services:
            return None
        return int(_Status.SERVING if self._is_ready() else _Status.NOT_SERVING)

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
