"""Devices that are not there."""

from __future__ import annotations

from collections.abc import Mapping

from mpspool.mps.devices import VISIBLE, GpuDevice, renumber

COMPUTE_CAPABILITY = (9, 0)
_MEMORY_BYTES = 80 * 2**30


def simulated(count: int, environ: Mapping[str, str] | None = None) -> list[GpuDevice]:
    """`count` like devices, the first half on NUMA node 0, the rest on node 1.

    CUDA_VISIBLE_DEVICES in `environ` chooses among them as it would among real ones.
    """
    devices = [
        GpuDevice(
            index=number,
            uuid=f"GPU-{number:08x}-0000-0000-0000-51301a7ed000",
            name="SIMULATED GPU",
            compute_capability=COMPUTE_CAPABILITY,
            memory_bytes=_MEMORY_BYTES,
            numa_node=0 if number < (count + 1) // 2 else 1,
            simulated=True,
        )
        for number in range(count)
    ]
    return renumber(devices, (environ or {}).get(VISIBLE))


def simulated_number(uuid: str) -> int:
    """Which of the stand-ins it is, before CUDA_VISIBLE_DEVICES renumbers them."""
    return int(uuid.split("-")[1], 16)
