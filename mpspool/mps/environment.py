"""What makes a process use one GPU, through one control daemon."""

from __future__ import annotations

from pathlib import Path


def worker_environment(gpu_uuid: str, pipe_dir: str) -> dict[str, str]:
    """The variables CUDA reads in a worker. They must be set before the CUDA driver is first used.

    The device is named by UUID: the daemon renumbers what it sees, so that an index means something
    else to its clients. The log folder is the pipe folder's neighbour, as RunDir lays them out.
    """
    return {
        "CUDA_VISIBLE_DEVICES": gpu_uuid,
        "CUDA_MPS_PIPE_DIRECTORY": pipe_dir,
        "CUDA_MPS_LOG_DIRECTORY": str(Path(pipe_dir).with_name("log")),
    }
