"""Which GPUs are visible, in which order, and what is said where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpspool.mps.devices import inventory, renumber, visible
from mpspool.mps.simulated.inventory import simulated
from tests.fakes.nvml import FakeNvml, Gpu, NVMLError_GpuIsLost

A, B, C = "GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb3333-0000"


def three() -> FakeNvml:
    return FakeNvml([Gpu(A), Gpu(B, bus_id="00000000:0B:00.0"), Gpu(C, bus_id="00000001:AC:00.0")])


def seen(mask: str | None, nvml: FakeNvml) -> list[str]:
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    devices = inventory(environ, nvml=nvml).devices
    assert [device.index for device in devices] == list(range(len(devices)))
    return [device.uuid for device in devices]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, [A, B, C]),
        ("0,1,2", [A, B, C]),
        ("2,0", [C, A]),
        (" 1 , 2 ", [B, C]),
        ("", []),
        ("-1", []),
        ("no", []),
        ("0,2,-1,1", [A, C]),
        ("0,3,1", [A]),
        ("0,x,1", [A]),
        ("1gpu,2", [B, C]),
        ("0,0", []),
        ("0,1,0", []),
        ("0,7,0", []),
        ("0,-1,0", [A]),
        (B, [B]),
        (f"{C},{A}", [C, A]),
        ("GPU-b", [C]),
        ("GPU-", []),
        (B.upper(), [B]),
        (B.lower(), []),
        (f" {B}", []),
        (f"{B} ", [B]),
        (f"{B}0", [B]),
        (f"{A}, {B}", [A]),
        (",0", []),
        ("0x0", [A]),
        ("1;0", [B]),
        ("GPU-aaaa2,GPU-aaaa1", [B, A]),
        ("GPU-aaaa,GPU-b", []),
        ("GPU-b,GPU-none,GPU-aaaa1", [C]),
        (f"{C},{C}", []),
        (f"{C},GPU-b", []),
        (f"{C},0", [C]),
        (f"0,{C}", [A]),
    ],
)
def test_mask_renumbers_as_cuda_does(mask: str | None, expected: list[str]) -> None:
    """Order, prefixes, invalid entries and duplicates have CUDA's meaning."""
    assert seen(mask, three()) == expected


def test_device_carries_what_nvml_and_sysfs_say(tmp_path: Path) -> None:
    """Capability, memory, NUMA node and driver are read; a node of -1 or no file is unknown."""
    for bus, node in (("0000:0a:00.0", "1\n"), ("0000:0b:00.0", "-1\n")):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "numa_node").write_text(node)
    nvml = three()
    nvml.gpus[0].capability = (7, 5)
    nvml.gpus[1].total = None
    found = inventory({}, nvml=nvml, sysfs=tmp_path)
    assert found.driver == "580.65.06"
    assert found.reason == ""
    assert [device.numa_node for device in found.devices] == [1, None, None]
    assert found.devices[0].compute_capability == (7, 5)
    assert [device.memory_bytes for device in found.devices] == [80 * 2**30, 0, 80 * 2**30]
    assert not found.devices[0].simulated
    assert nvml.shutdowns == 1


@pytest.mark.parametrize(
    ("nvml", "mask", "words"),
    [
        (FakeNvml(init_error="NVML Shared Library Not Found"), None, "NVML Shared Library Not Found"),
        (FakeNvml(count_error="GPU is lost"), None, "GPU is lost"),
        (FakeNvml(), None, "finds no GPU"),
        (three(), "", "CUDA_VISIBLE_DEVICES='' hides every GPU"),
        (three(), "0,0", "CUDA_VISIBLE_DEVICES='0,0' hides every GPU"),
        (FakeNvml([Gpu(A, mig=[])]), None, "no usable GPU"),
    ],
)
def test_no_device_is_no_error_and_has_a_reason(nvml: FakeNvml, mask: str | None, words: str) -> None:
    """Whatever is missing, the answer is an empty list and a sentence."""
    found = inventory({} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}, nvml=nvml)
    assert found.devices == []
    assert words in found.reason


@pytest.mark.parametrize(
    ("mask", "expected", "broken"),
    [
        (None, {0: A, 2: C}, [1]),
        ("1,2", {1: C}, [0]),
        (f"{C},{A}", {0: C, 1: A}, []),
        ("GPU-bbbb", {0: C}, []),
        ("1", {}, [0]),
        (f"{A},{B},{C}", {0: A}, [1]),
        (B, {}, [0]),
    ],
)
def test_a_gpu_that_is_lost_takes_no_other_with_it(
    mask: str | None, expected: dict[int, str], broken: list[int]
) -> None:
    """It is left out, and the others keep their numbers."""
    machine = three()
    machine.gpus[1].fault = NVMLError_GpuIsLost("GPU is lost")
    found = inventory({} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}, nvml=machine)
    assert {device.index: device.uuid for device in found.devices} == expected
    assert found.broken == dict.fromkeys(broken, "GPU is lost")
    assert found.reason == ("" if expected else "NVML says of gpu0: GPU is lost")


def test_the_real_library_is_asked_where_none_is_given() -> None:
    """The package itself is called, and a machine without a driver gives an empty list, not an exception."""
    found = inventory({})
    assert visible({}) == found.devices
    assert found.devices or found.reason


def mig_machine() -> FakeNvml:
    parts = [Gpu("MIG-1111", name="H100 MIG 1g.10gb", total=10 * 2**30), None, Gpu("MIG-2222")]
    return FakeNvml([Gpu(A, mig=parts), Gpu(B, mig=[], mig_mode=0), Gpu(C, mig=[])])


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, ["MIG-1111", B]),
        ("1,0", [B, "MIG-1111"]),
        ("MIG-2222,MIG-1111", ["MIG-2222", "MIG-1111"]),
        ("MIG-2222,MIG-none,MIG-1111", ["MIG-2222"]),
        (A, ["MIG-1111"]),
    ],
)
def test_gpu_in_mig_mode_is_never_used_whole(mask: str | None, expected: list[str]) -> None:
    """Its first instance stands for it, instances go by name, and one without instances is left out."""
    assert seen(mask, mig_machine()) == expected


def test_mig_device_has_its_own_memory_and_its_gpus_capability() -> None:
    """What differs between a GPU and its part is read from the part."""
    part = inventory({}, nvml=mig_machine()).devices[0]
    assert (part.memory_bytes, part.compute_capability) == (10 * 2**30, (9, 0))


def test_simulated_devices_say_so_and_are_renumbered() -> None:
    """Stand-ins are marked, spread over two NUMA nodes, and obey CUDA_VISIBLE_DEVICES."""
    devices = simulated(4)
    assert all(device.simulated and "SIMULATED" in device.name for device in devices)
    assert [device.numa_node for device in devices] == [0, 0, 1, 1]
    assert len({device.uuid for device in devices}) == 4
    chosen = simulated(4, {"CUDA_VISIBLE_DEVICES": "3,1"})
    assert [(device.index, device.uuid) for device in chosen] == [(0, devices[3].uuid), (1, devices[1].uuid)]
    assert renumber(devices, "GPU-00000002") == renumber(devices, "2")
