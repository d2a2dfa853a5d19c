"""A data plane without workers: the request says what is to happen to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from mpspool.core import tfs
from mpspool.core.errors import Code, PoolError
from mpspool.core.states import ModelVersionState
from mpspool.core.weights import WeightsReport
from mpspool.router.asked import Asked
from mpspool.router.memory import Admission, Memory
from mpspool.router.models import VersionStatus
from mpspool.router.pending import Head

_WORKER = {"id": "half@3.cpu0.0", "pid": 0, "busy_s": 0.0, "weights": msgspec.to_builtins(WeightsReport())}
SIGNATURES = tfs.SignatureDefMap()
SIGNATURES.signature_def[tfs.DEFAULT_SIGNATURE].method_name = "tensorflow/serving/predict"


def version_told(number: int, state: str, error: str = "", **counts: int) -> dict[str, Any]:
    """What a snapshot has of a version."""
    none = dict.fromkeys(("queued", "queued_limit", "queued_slow", "policy_failures", "policy_s"), 0)
    return {"version": number, "state": state, "error": error} | none | counts


class FakeDataplane:
    """Has model "half" in version 3 AVAILABLE and in version 4 failed.

    What runs a model answers b"wait", and what begins with it, never, b"break" with an error of its own making, b"refuse:TEXT" with
    RESOURCE_EXHAUSTED and the text, and anything else with itself.

    Attributes:
        reason: what unready() answers; tell() lets the fronts know of a change.
        admitted: size and start of each message that was announced.
        deadlines: of each call, in nanoseconds of CLOCK_MONOTONIC.
        heads: of each call.
        waiting: how many calls run.
        cancelled: how many were cancelled.
    """

    def __init__(self, limit_bytes: int = 2**32) -> None:
        self.memory = Memory(limit_bytes)
        self.admitted: list[tuple[int, bytes]] = []
        self.heads: list[Head] = []
        self.draining = False
        self.reason = ""
        self.deadlines: list[int] = []
        self.waiting = 0
        self.cancelled = 0
        self.release = asyncio.Event()
        self._callbacks: list[Callable[[], None]] = []

    def admit(self, _asked: Asked, size: int, start: bytes, _head: Head) -> Admission:
        self.admitted.append((size, start))
        return self.memory.admit(size)

    async def call(
        self, _asked: Asked, body: bytes, deadline_ns: int, admission: Admission, head: Head
    ) -> bytes:
        self.heads.append(head)
        try:
            return await self._answer(body, deadline_ns)
        finally:
            admission.release()

    async def _answer(self, body: bytes, deadline_ns: int) -> bytes:
        self.deadlines.append(deadline_ns)
        if body == b"break":
            raise ZeroDivisionError("a secret of the server")
        if body.startswith(b"refuse:"):
            raise PoolError(Code.RESOURCE_EXHAUSTED, body[7:].decode(errors="surrogateescape"))
        if body.startswith(b"wait"):
            await self._wait()
        return body

    async def _wait(self) -> None:
        self.waiting += 1
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1

    def labelled(self, name: str, label: str) -> int | None:
        return None

    def metadata(self, name: str, version: int | None, label: str | None = None) -> tuple[int, bytes]:
        if label is not None:
            raise PoolError(Code.INVALID_ARGUMENT, f"Unrecognized servable version label: {label}")
        if name != "half" or version not in (None, 3):
            raise PoolError(Code.NOT_FOUND, f"Servable not found for request: Latest({name})")
        return 3, SIGNATURES.SerializeToString()

    def status(self, name: str, version: int | None) -> list[VersionStatus]:
        found = [
            VersionStatus(3, ModelVersionState.AVAILABLE, Code.OK, ""),
            VersionStatus(4, ModelVersionState.END, Code.UNKNOWN, "no such file"),
        ]
        mine = [status for status in found if name == "half" and version in (None, status.version)]
        if not mine:
            raise PoolError(Code.NOT_FOUND, f"Could not find any versions of model {name}")
        return mine

    def unready(self) -> str:
        return self.reason

    def on_change(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def tell(self) -> None:
        for callback in self._callbacks:
            callback()

    def snapshot(self) -> dict[str, Any]:
        return {
            "epoch": 1,
            "draining": self.draining,
            "models": [
                {
                    "name": "half",
                    "versions": [
                        version_told(3, "AVAILABLE", queued=7, queued_slow=2, policy_failures=5),
                        version_told(4, "END", "no such file"),
                    ],
                }
            ],
            "workers": [
                {"generation": 1, "state": "FAILED", "in_flight": 2, "served": 9, **_WORKER},
                {"generation": 2, "state": "READY", "in_flight": 1, "served": 0, **_WORKER},
            ],
            "queued": 10,
            "held_bytes": 3,
            "held_bytes_limit": 100,
            "restarts": {"half@3.cpu0.0": 1, "half@3.cpu0.1": 4},
            "slots": {"half@3.cpu0.0": "READY", "half@3.cpu0.1": "FATAL"},
            "devices": [],
            "tasks": [],
        }
