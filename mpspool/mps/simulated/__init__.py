"""Stand-ins for GPUs and their MPS control daemon, for machines that have none."""

from __future__ import annotations

import sys

DEFAULT_PIPE_DIR = "/tmp/nvidia-mps"  # noqa: S108 - the real one's default
# What `simulate_fault` can do, and whether a client's pid may follow.
FAULTS = {
    "server-fault": True,
    "client-wedge": True,
    "daemon-death": False,
    "server-death": False,
    "gpu-lost": False,
}
# In the pipe folder: commands come in there.
CONTROL = "control"


def control_command() -> list[str]:
    """The stand-in of nvidia-cuda-mps-control, as MpsSettings.control takes it."""
    return [sys.executable, "-P", "-m", "mpspool.mps.simulated.nvidia_cuda_mps_control"]
