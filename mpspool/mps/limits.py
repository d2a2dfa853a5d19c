"""How many CUDA contexts one MPS server carries on one device.

Source: NVIDIA's Multi-Process Service documentation, "Client-Server Connection Limits": 16 before
Volta, 48 from Volta on, 60 as of release r590 (CUDA 13.1). The limit counts contexts, not processes,
and holds for CUDA_DEVICE_MAX_CONNECTIONS at its default of 2: a higher value lowers it.
"""

from __future__ import annotations

_VOLTA = (7, 0)
_FIRST_DRIVER_WITH_60 = 590


def max_clients(compute_capability: tuple[int, int], driver: str = "") -> int:
    """The most client contexts on a device.

    Args:
        compute_capability: (major, minor), (7, 0) for Volta.
        driver: the driver's version as NVML gives it ("590.44.01"); an empty or unreadable one
            counts as old, since 48 holds on every driver.
    """
    if compute_capability < _VOLTA:
        return 16
    major = driver.partition(".")[0]
    return 60 if major.isdigit() and int(major) >= _FIRST_DRIVER_WITH_60 else 48
