"""The client limit of an MPS server, and the variables a worker gets."""

from __future__ import annotations

import pytest

from mpspool.mps.environment import worker_environment
from mpspool.mps.limits import max_clients


@pytest.mark.parametrize(
    ("capability", "driver", "expected"),
    [
        ((6, 1), "590.44.01", 16),
        ((7, 0), "", 48),
        ((9, 0), "580.65.06", 48),
        ((9, 0), "unknown", 48),
        ((7, 0), "590.44.01", 60),
        ((10, 0), "615", 60),
    ],
)
def test_limit_follows_architecture_and_driver(
    capability: tuple[int, int], driver: str, expected: int
) -> None:
    """60 only where the driver is known to allow it."""
    assert max_clients(capability, driver) == expected


def test_worker_is_given_its_device_and_its_daemon() -> None:
    """The device goes by UUID, the folders are the daemon's own."""
    assert worker_environment("GPU-1", "/run/p/mps/gpu0/pipe") == {
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "CUDA_MPS_PIPE_DIRECTORY": "/run/p/mps/gpu0/pipe",
        "CUDA_MPS_LOG_DIRECTORY": "/run/p/mps/gpu0/log",
    }
