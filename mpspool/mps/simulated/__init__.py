"""Stand-ins for GPUs and their MPS control daemon, for machines that have none."""

from __future__ import annotations

import sys


def control_command() -> list[str]:
    """The stand-in of nvidia-cuda-mps-control, as MpsSettings.control takes it."""
    return [sys.executable, "-P", "-m", "mpspool.mps.simulated.nvidia_cuda_mps_control"]
