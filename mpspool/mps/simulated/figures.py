"""Keeps the GPU's state file up to date: at once after a change, and not more than a few times a second."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mpspool.core.process import FOREGROUND_VARIABLE
from mpspool.mps.simulated import state_file
from mpspool.mps.simulated.state import XID_CONTAINED_MEMORY_ERROR
from mpspool.mps.simulated.state_file import Event, GpuState, ProcessName

# What a context and a small model take.
CLIENT_MEMORY_BYTES = 2**30
_PERIOD_S = 0.2
_EVENTS = 16


class Figures:
    """What the daemon tells of its GPU. Used in the daemon's event loop.

    A GPU that is lost stays so until the pool has ended that its daemon belongs to, however often the daemon is
    started again; without a pool, until the daemon has ended.
    """

    def __init__(self, path: Path, device_uuid: str, environ: Mapping[str, str]) -> None:
        before = state_file.read(path)
        us = ProcessName.of(os.getpid())
        assert us is not None
        self._path = path
        self._owner = ProcessName.of(int(environ.get(FOREGROUND_VARIABLE) or 0)) or us
        self._state = GpuState(
            device_uuid=device_uuid,
            daemon=us,
            lost_for=before.lost_for if before and before.lost else None,
            events=before.events if before else [],
            uncorrected_errors=before.uncorrected_errors if before else 0,
        )
        self._written_s = 0.0
        self._due: asyncio.TimerHandle | None = None

    @property
    def lost(self) -> bool:
        return self._state.lost_for is not None

    def lose(self) -> None:
        self._change(lost_for=self._owner)
        self.write()

    def report(self, xid: int) -> None:
        """The driver reports this event."""
        self._change(
            events=[*self._state.events, Event(xid, time.monotonic())][-_EVENTS:],
            uncorrected_errors=self._state.uncorrected_errors + (xid == XID_CONTAINED_MEMORY_ERROR),
        )

    def update(self, use: Mapping[str, Any], clients: Sequence[Mapping[str, Any]]) -> None:
        """Takes what a server says of the GPU's use, nothing where it is gone, and all there is of clients."""
        memory: dict[int, int] = {}
        for client in clients:
            limit = client["pinned_mem_bytes"]
            used = CLIENT_MEMORY_BYTES if limit is None else min(CLIENT_MEMORY_BYTES, limit)
            memory[client["pid"]] = memory.get(client["pid"], 0) + used
        self._change(
            utilisation=use.get("utilisation", 0.0),
            busy=use.get("busy", False),
            at_s=use.get("at_s", 0.0),
            clients=memory,
        )

    def write(self) -> None:
        """Now. A file that cannot be written is not missed by the daemon."""
        if self._due is not None:
            self._due.cancel()
        self._due = None
        self._written_s = time.monotonic()
        with contextlib.suppress(OSError):
            state_file.write(self._path, self._state)

    def close(self) -> None:
        """The daemon ends."""
        self.write()

    def _change(self, **fields: Any) -> None:
        self._state = msgspec.structs.replace(self._state, **fields)
        if self._due is None:
            delay_s = max(0.0, self._written_s + _PERIOD_S - time.monotonic())
            self._due = asyncio.get_running_loop().call_later(delay_s, self.write)
