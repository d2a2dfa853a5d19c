"""What makes a process use one GPU, through one control daemon, and how much of it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mpspool.core.settings import SlotSettings

_PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_PINNED = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_PRIORITY = "CUDA_MPS_CLIENT_PRIORITY"
_MIB = 2**20
_UNITS = {"M": _MIB, "G": 2**30}
_LIMIT = re.compile(r"\s*([^=\s]+)\s*=\s*(\d+)([MG])B?\s*")


def worker_environment(gpu_uuid: str, pipe_dir: str) -> dict[str, str]:
    """The variables CUDA reads in a worker. They must be set before the CUDA driver is first used.

    The device is named by UUID: the daemon renumbers what it sees, so that an index means something
    else to its clients. The log folder is the pipe folder's neighbour, as RunDir lays them out; a client
    logs nothing.
    """
    return {
        "CUDA_VISIBLE_DEVICES": gpu_uuid,
        "CUDA_MPS_PIPE_DIRECTORY": pipe_dir,
        "CUDA_MPS_LOG_DIRECTORY": str(Path(pipe_dir).with_name("log")),
    }


def share_environment(slot: SlotSettings) -> dict[str, str]:
    """What the slot gives its worker of the GPU, whatever the worker's parents have set; nothing of what it inherits.

    Source: NVIDIA's "Multi-Process Service", "Environment Variables": percentage and limit only lower what the daemon
    gives, the priority is the client's own choice, and all of it holds for as long as the client lives. A client of
    ours sees one device, number 0. There is no word for no limit: it is all that the device has.
    """
    share, found = slot.share, {}
    if share.active_thread_percentage is not None:
        found[_PERCENTAGE] = str(share.active_thread_percentage)
    if share.pinned_bytes is not None:
        limit_bytes = share.pinned_bytes or slot.memory_bytes
        found[_PINNED] = f"0={math.ceil(limit_bytes / _MIB)}M" if limit_bytes else ""
    if share.priority is not None:
        found[_PRIORITY] = str(share.priority)
    return found


@dataclass(frozen=True, slots=True)
class Inherited:
    """What CUDA reads in a process that was given nothing; None for what is not set, or says nothing."""

    active_thread_percentage: float | None = None
    pinned_bytes: int | None = None
    priority: int | None = None


def inherited(environ: Mapping[str, str], gpu_uuid: str) -> Inherited:
    """Of these variables, what holds for the only device of a client."""
    limits = [
        found.groups() for entry in environ.get(_PINNED, "").split(",") if (found := _LIMIT.fullmatch(entry))
    ]
    ours = [int(number) * _UNITS[unit] for device, number, unit in limits if device in ("0", gpu_uuid)]
    priority = environ.get(_PRIORITY, "")
    return Inherited(
        _percentage(environ.get(_PERCENTAGE, "")),
        ours[-1] if ours else None,
        int(priority) if priority in ("0", "1") else None,
    )


def _percentage(text: str) -> float | None:
    try:
        return found if 0 < (found := float(text)) <= 100 else None
    except ValueError:
        return None
