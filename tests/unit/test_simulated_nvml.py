"""The stand-in for NVML: what it says of GPUs that are idle, used, failing and lost."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from mpspool.core.process import FOREGROUND_VARIABLE
from mpspool.mps.devices import inventory
from mpspool.mps.simulated import nvml, state_file
from mpspool.mps.simulated.figures import CLIENT_MEMORY_BYTES, Figures
from mpspool.mps.simulated.inventory import simulated
from mpspool.mps.simulated.nvml import Nvml
from mpspool.mps.simulated.state_file import Event, GpuState, ProcessName

UUID = simulated(2)[0].uuid
GIB = 2**30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the daemon of the first of two GPUs writes."""
    return tmp_path / state_file.NAME


@pytest.fixture
def machine(path: Path) -> Nvml:
    return Nvml(2, lambda uuid: path if uuid == UUID else None)


def us() -> ProcessName:
    found = ProcessName.of(os.getpid())
    assert found is not None
    return found


def gone() -> ProcessName:
    """A process that has ended."""
    with subprocess.Popen(["true"]) as process:
        pass
    return ProcessName(process.pid, 1)


def test_devices_are_the_inventorys(machine: Nvml) -> None:
    """Found as pynvml's would be, and the driver says what it is."""
    found = inventory({}, nvml=machine)
    assert [device.uuid for device in found.devices] == [device.uuid for device in simulated(2)]
    assert {device.name for device in found.devices} == {"SIMULATED GPU"}
    assert "SIMULATED" in found.driver
    assert machine.nvmlDeviceGetHandleByUUID(UUID.encode()) == machine.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(nvml.NVMLError_NotFound, match="Not Found"):
        machine.nvmlDeviceGetHandleByUUID("GPU-none")
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        machine.nvmlDeviceGetHandleByIndex(2)


def idle(machine: Nvml, index: int) -> bool:
    handle = machine.nvmlDeviceGetHandleByIndex(index)
    return (
        machine.nvmlDeviceGetUtilizationRates(handle).gpu == 0
        and machine.nvmlDeviceGetMemoryInfo(handle).used < GIB
        and machine.nvmlDeviceGetComputeRunningProcesses(handle) == []
    )


def test_gpu_without_a_daemon_is_idle(machine: Nvml, path: Path) -> None:
    """There is no file, or it cannot be read, or who wrote it has ended."""
    assert idle(machine, 0)
    assert idle(machine, 1)
    path.write_text("{")
    assert idle(machine, 0)
    state_file.write(
        path,
        GpuState(
            device_uuid=UUID,
            daemon=gone(),
            busy=True,
            utilisation=1.0,
            at_s=time.monotonic(),
            clients={7: GIB},
        ),
    )
    assert idle(machine, 0)


def test_use_is_what_the_daemon_says(machine: Nvml, path: Path) -> None:
    """Memory and processes are the clients', and all that is warm follows the use, which goes on after it was told."""
    state = GpuState(
        device_uuid=UUID, daemon=us(), utilisation=0.5, at_s=time.monotonic(), clients={7: GIB, 8: 5}
    )
    state_file.write(path, state)
    handle = machine.nvmlDeviceGetHandleByIndex(0)
    assert 0 < machine.nvmlDeviceGetUtilizationRates(handle).gpu <= 50
    assert machine.nvmlDeviceGetTemperature(handle, machine.NVML_TEMPERATURE_GPU) > 31
    assert 70_000 < machine.nvmlDeviceGetPowerUsage(handle) < machine.nvmlDeviceGetEnforcedPowerLimit(handle)
    memory = machine.nvmlDeviceGetMemoryInfo(handle)
    assert memory.used > GIB + 5
    assert memory.used + memory.free == memory.total == handle.memory_bytes
    processes = machine.nvmlDeviceGetComputeRunningProcesses(handle)
    assert {process.pid: process.usedGpuMemory for process in processes} == {7: GIB, 8: 5}
    state_file.write(path, GpuState(device_uuid=UUID, daemon=us(), busy=True, at_s=time.monotonic() - 1))
    assert machine.nvmlDeviceGetUtilizationRates(handle).gpu == 100
    assert idle(machine, 1)


def test_lost_gpu_answers_only_what_was_known(machine: Nvml, path: Path) -> None:
    """As long as its pool is there, also without a daemon; then it is back."""
    handle = machine.nvmlDeviceGetHandleByIndex(0)
    for owner, lost in ((us(), True), (gone(), False)):
        state_file.write(path, GpuState(device_uuid=UUID, daemon=gone(), lost_for=owner))
        if not lost:
            assert idle(machine, 0)
            continue
        assert machine.nvmlDeviceGetCount() == 2
        assert machine.nvmlDeviceGetUUID(handle) == UUID
        for ask in (
            machine.nvmlDeviceGetUtilizationRates,
            machine.nvmlDeviceGetMemoryInfo,
            machine.nvmlDeviceGetPowerUsage,
            machine.nvmlDeviceGetEnforcedPowerLimit,
            machine.nvmlDeviceGetComputeRunningProcesses,
            machine.nvmlDeviceGetComputeMode,
            machine.nvmlDeviceGetPersistenceMode,
        ):
            with pytest.raises(machine.NVMLError, match="GPU is lost") as error:
                ask(handle)
            assert isinstance(error.value, machine.NVMLError_GpuIsLost)
            assert error.value.value == 15
    assert idle(machine, 1)


def test_events_come_once_and_in_order(machine: Nvml, path: Path) -> None:
    """Those since the device was registered; without one, waiting times out."""
    handle = machine.nvmlDeviceGetHandleByIndex(0)
    before = Event(13, time.monotonic())
    events = machine.nvmlEventSetCreate()
    machine.nvmlDeviceRegisterEvents(handle, machine.nvmlEventTypeXidCriticalError, events)
    now = time.monotonic()
    told = [before, Event(31, now), Event(79, now + 1e-3)]
    state_file.write(path, GpuState(device_uuid=UUID, daemon=gone(), events=told))
    found = [machine.nvmlEventSetWait_v2(events, 0) for _ in range(2)]
    assert [(event.eventType, event.eventData) for event in found] == [(8, 31), (8, 79)]
    assert {machine.nvmlDeviceGetUUID(event.device) for event in found} == {UUID}
    with pytest.raises(machine.NVMLError_Timeout):
        machine.nvmlEventSetWait_v2(events, 60)
    machine.nvmlEventSetFree(events)


def test_memory_errors_are_counted(machine: Nvml, path: Path) -> None:
    """Those that cannot be corrected, by whatever daemon, and also while none runs."""

    async def report(*xids: int) -> None:
        figures = Figures(path, UUID, {})
        for xid in xids:
            figures.report(xid)
        figures.close()

    handle = machine.nvmlDeviceGetHandleByIndex(0)
    for xids in ((13, 94), (94,)):
        asyncio.run(report(*xids))
    kinds = (machine.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, machine.NVML_MEMORY_ERROR_TYPE_CORRECTED)
    ask = machine.nvmlDeviceGetTotalEccErrors
    assert [ask(handle, kind, machine.NVML_VOLATILE_ECC) for kind in kinds] == [2, 0]
    state = state_file.read(path)
    assert state is not None
    state_file.write(path, msgspec.structs.replace(state, daemon=gone()))
    assert ask(handle, kinds[0], machine.NVML_VOLATILE_ECC) == 2
    assert ask(machine.nvmlDeviceGetHandleByIndex(1), kinds[0], machine.NVML_VOLATILE_ECC) == 0


def client(pid: int, limit: int | None = None) -> dict[str, object]:
    return {"pid": pid, "pinned_mem_bytes": limit}


def test_daemon_writes_at_once_and_then_seldom(path: Path) -> None:
    """A first change soon, many more together; a process with two contexts has the memory of two."""

    async def run() -> None:
        figures = Figures(path, UUID, {})
        figures.write()
        assert state_file.read(path) is not None
        for _ in range(100):
            figures.update(
                {"utilisation": 0.5, "busy": True, "at_s": 1.0}, [client(7), client(7), client(8, 5)]
            )
        found = state_file.read(path)
        assert found is not None
        assert found.clients == {}, "not yet"
        await asyncio.sleep(0.3)
        found = state_file.read(path)
        assert found is not None
        assert (found.clients, found.busy) == ({7: 2 * CLIENT_MEMORY_BYTES, 8: 5}, True)

    asyncio.run(run())


def test_gpu_stays_lost_for_its_pool(path: Path) -> None:
    """Whatever daemon comes next, as long as the pool's foreground process is there; its events are not forgotten."""

    async def lose(environ: dict[str, str]) -> None:
        figures = Figures(path, UUID, environ)
        assert not figures.lost
        figures.report(79)
        figures.lose()
        assert figures.lost

    with subprocess.Popen(["sleep", "60"]) as pool:
        asyncio.run(lose({FOREGROUND_VARIABLE: str(pool.pid)}))
        again = Figures(path, UUID, {FOREGROUND_VARIABLE: str(pool.pid)})
        assert again.lost
        again.write()
        found = state_file.read(path)
        assert found is not None
        assert [event.xid for event in found.events] == [79]
        pool.kill()
    assert not Figures(path, UUID, {}).lost
