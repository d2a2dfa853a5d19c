"""What makes a process use one GPU, through one control daemon, and how much of it."""

from __future__ import annotations

from pathlib import Path

from mpspool.core.settings import SlotSettings

_MIB = 2**20


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
    """What the slot gives its worker of the GPU; nothing where it sets no bounds.

    Source: NVIDIA's "Multi-Process Service", "Environment Variables": percentage and limit only lower what the daemon
    gives, the priority is the client's own choice, and all of it holds for as long as the client lives. A client of
    ours sees one device, number 0.
    """
    found = {}
    if slot.active_thread_percentage:
        found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(slot.active_thread_percentage)
    if slot.pinned_bytes:
        found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={slot.pinned_bytes // _MIB}M"
    if slot.priority:
        found["CUDA_MPS_CLIENT_PRIORITY"] = str(slot.priority)
    return found
