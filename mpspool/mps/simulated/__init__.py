"""Stand-ins for GPUs and their MPS control daemon, for machines that have none."""

from __future__ import annotations

import sys

DEFAULT_PIPE_DIR = "/tmp/nvidia-mps"  # noqa: S108 - the real one's default
# What `simulate_fault` can do, and what may follow: whose doing it is, for how long; "" for nothing.
FAULTS = {
    "server-fault": "PID",
    "client-wedge": "PID",
    "ecc": "PID",
    "daemon-hang": "SECONDS",
    "daemon-death": "",
    "server-death": "",
    "gpu-lost": "",
}
# In the pipe folder: commands come in there.
CONTROL = "control"


def control_command() -> list[str]:
    """The stand-in of nvidia-cuda-mps-control, as MpsSettings.control takes it."""
    return [sys.executable, "-P", "-m", "mpspool.mps.simulated.nvidia_cuda_mps_control"]
