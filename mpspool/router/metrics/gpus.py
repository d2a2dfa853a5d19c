"""The GPUs in the exposition, from what the pool told last. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mpspool.core.states import DomainState
from mpspool.router.metrics.labels import WORKER, worker_labels

_DEVICE = ("device", "uuid")
# As the pool names them in its message.
_GAUGES = {
    "utilisation": (
        "utilization_ratio",
        "Share of the driver's last sample period in which any kernel ran.",
    ),
    "memory_used_bytes": ("memory_used_bytes", "Device memory in use, by anyone."),
    "memory_total_bytes": ("memory_total_bytes", "Device memory in all."),
    "temperature_c": ("temperature_celsius", "Temperature of the GPU."),
    "power_w": ("power_watts", "Power drawn by the whole board."),
    "power_limit_w": ("power_limit_watts", "Power limit in force."),
    "ecc_uncorrected": (
        "ecc_uncorrected_errors",
        "Uncorrected memory errors since the driver was loaded.",
    ),
}


def families(devices: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """The metrics of the pool's devices; what a device does not tell has no sample.

    Args:
        devices: as the pool's "devices" call has them.
    """
    yield _info(devices)
    yield _states(devices)
    for field, (name, text) in _GAUGES.items():
        gauge = GaugeMetricFamily(f"mpspool_gpu_{name}", text, labels=_DEVICE)
        for device in devices:
            if device[field] is not None:
                gauge.add_metric(_labels(device), device[field])
        yield gauge
    yield _faults(devices)
    yield _xids(devices)
    yield _workers(devices)


def _info(devices: Sequence[Mapping[str, Any]]) -> Metric:
    family = GaugeMetricFamily(
        "mpspool_gpu_info",
        "Always 1. `simulated` says SIMULATED of a stand-in.",
        labels=(*_DEVICE, "name", "simulated"),
    )
    for device in devices:
        mark = "SIMULATED" if device.get("simulated") else ""
        family.add_metric((*_labels(device), device["name"], mark), 1)
    return family


def _states(devices: Sequence[Mapping[str, Any]]) -> Metric:
    family = GaugeMetricFamily(
        "mpspool_gpu_state", "1 for the state that a GPU is in, 0 for the others.", labels=(*_DEVICE, "state")
    )
    for device in devices:
        for state in DomainState:
            family.add_metric((*_labels(device), state.value), float(device["state"] == state.value))
    return family


def _faults(devices: Sequence[Mapping[str, Any]]) -> Metric:
    family = CounterMetricFamily(
        "mpspool_gpu_faults", "How often all workers of a GPU were ended, for it had failed.", labels=_DEVICE
    )
    for device in devices:
        family.add_metric(_labels(device), device["faults"])
    return family


def _xids(devices: Sequence[Mapping[str, Any]]) -> Metric:
    family = CounterMetricFamily(
        "mpspool_gpu_xid_errors", "Xids that the driver reported.", labels=(*_DEVICE, "xid")
    )
    for device in devices:
        for xid, count in device["xids"].items():
            family.add_metric((*_labels(device), xid), count)
    return family


def _workers(devices: Sequence[Mapping[str, Any]]) -> Metric:
    family = GaugeMetricFamily(
        "mpspool_gpu_worker_memory_bytes", "Device memory of a worker process.", labels=WORKER
    )
    for device in devices:
        for worker, size in device["workers"].items():
            family.add_metric(worker_labels(worker), size)
    return family


def _labels(device: Mapping[str, Any]) -> tuple[str, str]:
    return device["device"], device["uuid"]
