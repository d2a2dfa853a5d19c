"""What is read of GPUs that run, which errors mean the end of one, and how it is told on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mpspool.mps.telemetry import RESET_XIDS, GpuReading, Telemetry, as_message
from tests.fakes.nvml import (
    FakeNvml,
    Gpu,
    LiveNvml,
    NVMLError_GpuIsLost,
    NVMLError_NotFound,
    NVMLError_Unknown,
    NVMLLibraryMismatchError,
)

A, B = "GPU-aaaa", "GPU-bbbb"
READINGS = {
    "utilisation": 41,
    "used": 12 * 2**30,
    "temperature": 54,
    "power": 310_500,
    "limit": 700_000,
    "ecc": 0,
    "processes": {10: 2**20, 11: None},
    "clients": {10: 2**20, 12: 2**30},
}


def busy(uuid: str = A, **readings: Any) -> Gpu:
    return Gpu(uuid, readings={**READINGS, **readings})


def one(gpu: Gpu, **fields: Any) -> tuple[LiveNvml, Telemetry]:
    nvml = LiveNvml([gpu], **fields)
    return nvml, Telemetry([gpu.uuid], nvml)


def test_a_gpu_is_read_in_its_units() -> None:
    """Shares, bytes, degrees and watts; an MPS client counts once, a process of unknown size not at all."""
    _, telemetry = one(busy())
    assert telemetry.read() == {
        A: GpuReading(
            A,
            "NVIDIA H100",
            utilisation=0.41,
            memory_used_bytes=12 * 2**30,
            memory_total_bytes=80 * 2**30,
            temperature_c=54,
            power_w=310.5,
            power_limit_w=700.0,
            ecc_uncorrected=0,
            processes={10: 2**20, 12: 2**30},
        )
    }


def test_what_a_device_does_not_tell_is_none() -> None:
    """NotSupported, an older library and an older driver are no failure; neither is a library with less in it."""
    gpu = Gpu(A, total=None, readings={"temperature": 30, "power": NVMLLibraryMismatchError("old")})
    _, telemetry = one(gpu)
    assert telemetry.read() == {A: GpuReading(A, "NVIDIA H100", temperature_c=30)}
    few = FakeNvml([gpu])
    few.nvmlDeviceGetHandleByUUID = lambda uuid: gpu  # type: ignore[attr-defined]
    assert Telemetry([A], few).read() == {A: GpuReading(A, "NVIDIA H100")}


def test_a_mig_device_tells_its_memory() -> None:
    """The rest is its GPU's."""
    part = Gpu("MIG-1", "H100 MIG 1g.10gb", total=10 * 2**30, readings={"used": 2**30, "processes": {7: 5}})
    nvml = LiveNvml([Gpu(A, mig=[part])])
    found = Telemetry(["MIG-1"], nvml).read()["MIG-1"]
    assert (found.utilisation, found.temperature_c, found.power_w) == (None, None, None)
    assert (found.memory_used_bytes, found.memory_total_bytes, found.processes) == (
        2**30,
        10 * 2**30,
        {7: 5},
    )
    assert nvml.registered == [A]


def test_without_nvml_there_is_nothing_to_read() -> None:
    """Until there is: it is tried again at each reading."""
    nvml = LiveNvml([busy()], init_error="Driver Not Loaded")
    telemetry = Telemetry([A], nvml)
    telemetry.close()
    assert telemetry.read() == {}
    nvml.init_error = ""
    assert telemetry.read()[A].temperature_c == 54
    telemetry.close()
    assert nvml.shutdowns == 1


def test_the_real_library_is_asked_where_none_is_given() -> None:
    """The package itself is called, and a machine without a driver gives nothing, not an exception."""
    telemetry = Telemetry(["GPU-none"])
    found = telemetry.read()
    assert found in ({}, {"GPU-none": GpuReading("GPU-none")})
    telemetry.close()


def test_an_unknown_device_is_not_lost() -> None:
    """It never was there; one that cannot be found for another reason is read once it can be."""
    nvml = LiveNvml([])
    telemetry = Telemetry([A], nvml)
    for _ in range(5):
        assert telemetry.read() == {A: GpuReading(A)}
    nvml.gpus.append(busy())
    assert telemetry.read()[A].utilisation == 0.41


@pytest.mark.parametrize("known", [True, False])
def test_a_lost_gpu_is_lost_at_once_and_not_asked_again(known: bool) -> None:
    """Whether it was read before or not; a driver that hangs over it is left alone."""
    gpu = busy()
    nvml, telemetry = one(gpu)
    if known:
        telemetry.read()
    gpu.fault = NVMLError_GpuIsLost("GPU is lost")
    assert telemetry.read()[A].lost == "NVML says: GPU is lost"
    calls = nvml.calls
    gpu.fault = None
    assert telemetry.read()[A].lost == "NVML says: GPU is lost"
    assert nvml.calls == calls


@pytest.mark.parametrize("fault", [NVMLError_Unknown("Unknown Error"), NVMLError_NotFound("Not Found")])
def test_a_gpu_that_answers_nothing_any_more_is_lost(fault: Any) -> None:
    """After three readings in a row; an answer in between, or to one question of many, is an answer."""
    gpu = busy()
    _, telemetry = one(gpu)
    telemetry.read()
    for _ in range(2):
        gpu.fault = fault
        assert [telemetry.read()[A].lost for _ in range(2)] == ["", ""]
        gpu.fault = None
        assert telemetry.read()[A].lost == ""
    gpu.readings["utilisation"] = fault
    assert [telemetry.read()[A].lost for _ in range(4)] == [""] * 4
    gpu.fault = fault
    assert [bool(telemetry.read()[A].lost) for _ in range(4)] == [False, False, True, True]
    assert str(fault) in telemetry.read()[A].lost


@pytest.mark.parametrize("xid", sorted(RESET_XIDS))
def test_an_xid_that_needs_a_reset_loses_the_gpu(xid: int) -> None:
    """And only the one it is about; it stays lost."""
    nvml = LiveNvml([busy(A), busy(B)])
    telemetry = Telemetry([A, B], nvml)
    telemetry.read()
    nvml.events = [(nvml.gpus[0], xid)]
    for _ in range(2):
        found = telemetry.read()
        assert found[A] == GpuReading(A, "NVIDIA H100", xids={xid: 1}, lost=f"Xid {xid}, {RESET_XIDS[xid]}")
        assert (found[B].lost, found[B].xids, found[B].utilisation) == ("", {}, 0.41)


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 48, 63, 74, 92, 94, 109, 154])
def test_an_xid_that_a_new_process_survives_is_counted(xid: int) -> None:
    """The driver's own word tells where the GPU does need a reset after one of those."""
    gpu = busy()
    nvml, telemetry = one(gpu)
    telemetry.read()
    nvml.events = [(gpu, xid), (gpu, xid), (gpu, 13)]
    found = telemetry.read()[A]
    assert (found.lost, found.utilisation) == ("", 0.41)
    assert found.xids == ({13: 3} if xid == 13 else {xid: 2, 13: 1})
    assert telemetry.read()[A].xids == found.xids


@pytest.mark.parametrize(
    ("action", "lost"),
    [
        (None, ""),
        (0, ""),
        (1, "a reset"),
        (2, "the node to be rebooted"),
        (3, ""),
        (4, ""),
        (7, "the system to be rebooted"),
        (99, ""),
    ],
)
def test_the_driver_says_what_a_gpu_needs(action: int | None, lost: str) -> None:
    """Draining peer traffic, or a reset when it is convenient, lets it serve on."""
    gpu = busy()
    gpu.recovery = action
    _, telemetry = one(gpu)
    found = telemetry.read()[A]
    assert found.lost == (f"the driver says that it needs {lost}" if lost else "")
    assert (found.utilisation is None) == bool(lost)


def test_an_xid_hits_the_mig_device_it_names() -> None:
    """One that names none hits all of the GPU; their GPU's events are asked for once."""
    parts = [Gpu("MIG-1", instance=(1, 0)), Gpu("MIG-2", instance=(2, 0))]
    whole = Gpu(A, mig=[*parts])
    nvml = LiveNvml([whole])
    telemetry = Telemetry(["MIG-1", "MIG-2"], nvml)
    telemetry.read()
    assert nvml.registered == [A]
    nvml.events = [(whole, 94, (1, 0)), (whole, 31, (2, 0xFFFFFFFF)), (whole, 45)]
    found = telemetry.read()
    assert found["MIG-1"].xids == {94: 1, 45: 1}
    assert found["MIG-2"].xids == {31: 1, 45: 1}
    nvml.events = [(whole, 95, (1, 0))]
    assert {uuid: bool(one.lost) for uuid, one in telemetry.read().items()} == {"MIG-1": True, "MIG-2": False}


def test_a_message_is_what_json_carries() -> None:
    """The workers' shares are found by pid; error and simulated stand only where there is something to say."""
    reading = GpuReading(A, "H100", utilisation=0.5, processes={10: 5, 11: 6}, xids={79: 1, 13: 2})
    workers = {"half@1.gpu0.0": 10, "half@1.gpu0.1": 99}
    message = as_message("gpu0", reading, "SERVING", faults=3, workers=workers)
    assert message == {
        "device": "gpu0",
        "uuid": A,
        "name": "H100",
        "state": "SERVING",
        "faults": 3,
        "utilisation": 0.5,
        "memory_used_bytes": None,
        "memory_total_bytes": None,
        "temperature_c": None,
        "power_w": None,
        "power_limit_w": None,
        "ecc_uncorrected": None,
        "xids": {"13": 2, "79": 1},
        "workers": {"half@1.gpu0.0": 5},
    }
    assert json.loads(json.dumps(message)) == message
    told = as_message("gpu0", GpuReading(A), "LOST", "Xid 79", simulated=True)
    assert (told["error"], told["simulated"], told["workers"]) == ("Xid 79", True, {})
