"""grpc.health.v1: says of every service whether the pool is ready, and tells watchers when that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer

SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_Status = health_pb2.HealthCheckResponse.ServingStatus


class Readiness(Protocol):
    """What decides whether the pool is ready."""

    def unready(self) -> str:
        """Why not; empty when ready."""

    def on_change(self, callback: Callable[[], None]) -> None:
        """Calls back, on the event loop, whenever unready() may answer otherwise."""


class Health:
    """Keeps a health servicer in step with a Readiness.

    Attributes:
        servicer: to be added to a grpc.aio server.
    """

    def __init__(self, readiness: Readiness, services: Iterable[str]) -> None:
        self.servicer = HealthServicer()
        self._readiness = readiness
        self._services = ("", *services)
        self._change = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Sets the first statuses; call it before the server takes calls."""
        await self._publish()
        self._readiness.on_change(self._change.set)
        self._follower = asyncio.create_task(self._follow(), name="health")

    async def stop(self) -> None:
        """Says NOT_SERVING for good."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
        await self.servicer.enter_graceful_shutdown()

    async def _follow(self) -> None:
        while True:
            await self._change.wait()
            self._change.clear()
            await self._publish()

    async def _publish(self) -> None:
        status = _Status.NOT_SERVING if self._readiness.unready() else _Status.SERVING
        for service in self._services:
            await self.servicer.set(service, status)
