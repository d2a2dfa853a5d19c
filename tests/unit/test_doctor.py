"""The doctor's judgement, on facts of machines that are well and machines that are not."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mpspool.cli import main
from mpspool.compiled import Obstacle
from mpspool.core.errors import Problem
from mpspool.core.rundir import RunDir
from mpspool.mps.device_state import GpuState, Survey
from mpspool.mps.devices import GpuDevice
from mpspool.mps.external import Folders
from mpspool.mps.leftovers import Running
from mpspool.supervisor import lock
from mpspool.supervisor.config.schema import PoolConfig
from mpspool.supervisor.cpus import Topology
from mpspool.supervisor.doctor import (
    ask_tensorflow,
    examine,
    gather,
    gpus,
    host,
    mps,
    pool,
    read_host,
    read_tensorflow,
    table,
    tensorflow,
)
from mpspool.supervisor.doctor.facts import Facts, GpuUse, Host, Intent, SharedMemory, TensorFlow, gpu_uses
from mpspool.supervisor.doctor.finding import Finding, Status
from mpspool.supervisor.planning import preflight
from mpspool.supervisor.planning.drafts import Machine, draft_places
from tests.configuration import load_config
from tests.conftest import short_dir

CONTROL = "/usr/bin/nvidia-cuda-mps-control"
RUN = "/run/pool"
GIB = 2**30
TF = TensorFlow(
    version="2.21.0",
    cuda="12.5.1",
    capabilities=("sm_60", "sm_70", "sm_80", "sm_89", "compute_90"),
    import_s=3.0,
    available_bytes=50 * GIB,
    gpus={"GPU-0": "", "GPU-1": ""},
)
HOST = Host(
    uid=1000,
    open_files=(65536, 65536),
    locked_memory=None,
    memory_bytes=64 * GIB,
    shared_memory=SharedMemory("tmpfs", "tmpfs", 32 * GIB, 32 * GIB, writable=True),
)
STATE = GpuState("GPU-0", "EXCLUSIVE_PROCESS", None, True, 0)
WELL = Intent(mps="on", slots=["half: 4 slots on gpu0"], forked=False, workers=4, fronts="8500 on 127.0.0.1")


def use(index: int = 0, state: GpuState | None = STATE, **device: Any) -> GpuUse:
    made = GpuDevice(index, f"GPU-{index}", "NVIDIA H200", (9, 0), 139 * GIB, 0)
    return GpuUse(replace(made, **device), state, 4, 48)


def gpu_machine(uses: Sequence[GpuUse] | None = None, **changes: Any) -> Facts:
    """A GPU server in good order, but for what is given."""
    uses = [use()] if uses is None else uses
    states = tuple(one.state for one in uses if one.state is not None)
    machine = Machine(
        [one.device for one in uses],
        Topology.simulate(8),
        [CONTROL],
        "580.65.06",
        survey=Survey(states, (13, 0)),
    )
    machine = replace(machine, topology=replace(machine.topology, simulated=False))
    facts = Facts(machine, uses, WELL, HOST, TF, RUN, mps_server="/usr/bin/nvidia-cuda-mps-server")
    return replace(facts, **changes)


def cpu_machine(**changes: Any) -> Facts:
    """Without a GPU, and without anything that speaks for one."""
    machine = Machine([], Topology.simulate(2), no_gpu="NVML does not start: no driver")
    intent = Intent(slots=["half: 1 slot on cpu0"], workers=1, fronts="8500 on 127.0.0.1")
    facts = Facts(machine, [], intent, HOST, replace(TF, gpus={}), RUN)
    return replace(facts, **changes)


def found(facts: Facts, check: str) -> list[Finding]:
    return [finding for finding in examine.examine(facts) if finding.check == check]


def one(facts: Facts, check: str) -> Finding:
    (finding,) = found(facts, check)
    return finding


def worst(facts: Facts, check: str) -> str:
    return max((finding.status for finding in found(facts, check)), key=list(Status).index).value


def test_a_gpu_server_in_good_order_passes_every_check() -> None:
    """All that is looked at on GPUs is ok, has evidence and needs no remedy."""
    findings = examine.examine(gpu_machine())
    assert {finding.status for finding in findings} == {Status.OK}
    assert not any(finding.remedy for finding in findings)
    assert all(finding.evidence for finding in findings)
    shown = [finding.check for finding in findings]
    assert shown == [name for name in examine.CHECKS if name in shown]
    assert set(examine.CHECKS) - set(shown) == {"driver_capabilities", "tls", "configuration"}


def test_a_gpu_that_is_lost_is_warned_of() -> None:
    """It is left out, and the others serve."""
    facts = gpu_machine()
    lost = one(replace(facts, machine=replace(facts.machine, broken={1: "GPU is lost"})), "gpu")
    assert lost.status is Status.WARNING
    assert lost.evidence == "gpu0 (NVIDIA H200, 139 GiB); left out: gpu1 (NVML says: GPU is lost)"
    assert "nvidia-smi --gpu-reset" in lost.remedy


def test_without_a_gpu_it_says_so_and_looks_at_the_rest() -> None:
    """One line on GPUs, none on MPS; what CPU slots need is checked."""
    findings = examine.examine(cpu_machine())
    first = findings[0]
    assert (first.check, first.status) == ("gpu", Status.OK)
    assert (
        "no GPU is visible (NVML does not start: no driver): checked is what CPU slots need" in first.evidence
    )
    rest = [
        "tensorflow",
        "compiled",
        "cpus",
        "memory",
        "shared_memory",
        "open_files",
        "container",
        "run_dir",
        "ports",
        "slots",
    ]
    assert [finding.check for finding in findings[1:]] == rest
    assert examine.passed(findings)


@pytest.mark.parametrize(
    ("facts", "remedy"),
    [
        (cpu_machine(host=replace(HOST, nvidia_devices=2)), "install the driver"),
        (cpu_machine(host=replace(HOST, nvidia_devices=2, container="docker")), "--gpus all"),
        (
            cpu_machine(
                machine=Machine([], Topology.simulate(2), no_gpu="hidden", survey=Survey((STATE,))),
                host=replace(HOST, environ={"CUDA_VISIBLE_DEVICES": ""}),
            ),
            "unset CUDA_VISIBLE_DEVICES",
        ),
    ],
)
def test_a_gpu_that_nobody_can_use_is_a_warning(facts: Facts, remedy: str) -> None:
    """There is one on the bus, or the mask hides it: what to do about it."""
    finding = one(facts, "gpu")
    assert finding.status is Status.WARNING
    assert remedy in finding.remedy


def test_gpus_that_are_not_asked_for_are_named() -> None:
    """CPU slots on a machine with GPUs: they are said to be there, and not looked at."""
    facts = replace(cpu_machine(), machine=gpu_machine().machine, intent=Intent(gpus_wanted=False))
    assert "gpu0 NVIDIA H200" in one(facts, "gpu").evidence
    assert not found(facts, "driver")
    assert not found(facts, "mig")


@pytest.mark.parametrize(
    ("cuda", "built", "status"),
    [
        ((13, 0), "12.5.1", "ok"),
        ((12, 2), "12.5.1", "ok"),
        ((11, 8), "12.5.1", "error"),
        (None, "12.5.1", "ok"),
        ((13, 0), "", "error"),
    ],
)
def test_driver_fits_from_tensorflows_major_version_on(
    cuda: tuple[int, int] | None, built: str, status: str
) -> None:
    """An older major version of CUDA does not do, nor a TensorFlow without CUDA."""
    facts = gpu_machine()
    facts = replace(
        facts,
        machine=replace(facts.machine, survey=Survey((STATE,), cuda)),
        tensorflow=replace(TF, cuda=built),
    )
    assert one(facts, "driver").status.value == status


@pytest.mark.parametrize(
    ("capability", "architecture", "kernels"),
    [
        ((9, 0), "ok", "ok"),
        ((8, 6), "ok", "ok"),  # sm_80 fits
        ((7, 5), "ok", "ok"),
        ((6, 1), "warning", "ok"),
        ((12, 0), "ok", "warning"),  # from PTX
        ((5, 2), "warning", "error"),
        ((3, 0), "error", "error"),
    ],
)
def test_architecture_and_kernels(capability: tuple[int, int], architecture: str, kernels: str) -> None:
    """Volta or newer for MPS; for TensorFlow a kernel of the same major version, else PTX of an older one."""
    facts = gpu_machine([use(compute_capability=capability)])
    assert one(facts, "architecture").status.value == architecture
    assert one(facts, "kernels").status.value == kernels


def test_ptx_needs_a_driver_as_new_as_its_toolkit() -> None:
    """Compiled at the first start only by a driver that knows that PTX."""
    facts = gpu_machine([use(compute_capability=(12, 0))])
    facts = replace(facts, machine=replace(facts.machine, survey=Survey((STATE,), (12, 4))))
    assert one(facts, "kernels").status is Status.ERROR
    assert "CUDA 12.5" in one(facts, "kernels").remedy


@pytest.mark.parametrize(
    ("mode", "mps", "status"),
    [
        ("EXCLUSIVE_PROCESS", "on", "ok"),
        ("DEFAULT", "on", "ok"),
        ("DEFAULT", "off", "ok"),
        (None, "on", "ok"),
        ("EXCLUSIVE_THREAD", "on", "warning"),
        ("EXCLUSIVE_PROCESS", "off", "error"),
        ("PROHIBITED", "on", "error"),
        ("PROHIBITED", "off", "error"),
    ],
)
def test_compute_mode_has_to_let_the_workers_in(mode: str | None, mps: str, status: str) -> None:
    """EXCLUSIVE_PROCESS and DEFAULT both do under MPS; without it the one lets in a single worker."""
    facts = gpu_machine([use(state=replace(STATE, compute_mode=mode))], intent=replace(WELL, mps=mps))
    assert one(facts, "compute_mode").status.value == status


def configure(**flags: object) -> PoolConfig:
    return load_config(None, {"model": ["half=/models/half"], "run_dir": RUN, **flags}, {})


def test_mig() -> None:
    """Instances go by UUID; those left out are named; a GPU in MIG mode needs one."""
    whole = replace(STATE, mig=("MIG-1", "MIG-2"))
    both = [use(0, whole, uuid="MIG-1"), use(1, whole, uuid="MIG-2")]
    assert one(replace(gpu_machine(both[:1]), tensorflow=TF), "mig").remedy.endswith(
        "CUDA_VISIBLE_DEVICES=MIG-1,MIG-2"
    )
    assert {finding.status for finding in found(gpu_machine(both), "mig")} == {Status.OK}
    empty = Survey((replace(STATE, mig=()),))
    nothing = Machine([], Topology.simulate(2), no_gpu="no usable GPU", survey=empty)
    assert one(cpu_machine(machine=nothing), "mig").status is Status.WARNING
    beside = gpu_machine()
    beside = replace(beside, machine=replace(beside.machine, survey=empty))
    assert worst(beside, "mig") == "warning"


def test_a_mig_device_has_the_state_of_its_gpu() -> None:
    """The compute mode is the whole GPU's; the plan's numbers come with it."""
    whole = replace(STATE, mig=("MIG-1",))
    machine = gpu_machine([use(0, whole, uuid="MIG-1")]).machine
    config = configure(contexts_per_gpu=6)
    drafts, _ = draft_places(config, machine)
    (made,) = gpu_uses(drafts, machine)
    assert (made.name, made.state, made.workers, made.limit) == ("gpu0", whole, 6, 48)


def test_errors_of_memory_and_persistence_are_warnings() -> None:
    """What a GPU counts against itself is said; what it does not say is no fault."""
    bad = gpu_machine([use(state=replace(STATE, uncorrected_errors=3, persistent=False))])
    assert "3 uncorrected" in one(bad, "ecc").evidence
    assert [one(bad, check).status.value for check in ("ecc", "persistence")] == ["warning", "warning"]
    unknown = gpu_machine([use(state=None)])
    assert examine.passed(examine.examine(unknown))


def test_gpus_of_which_the_same_is_true_share_a_line() -> None:
    """One line for the like, another for who differs."""
    facts = gpu_machine([use(0), use(1, replace(STATE, uuid="GPU-1")), use(2, None, uuid="GPU-1")])
    lines = [finding.evidence for finding in found(facts, "compute_mode")]
    assert [line.partition(":")[0] for line in lines] == ["gpu0, gpu1", "gpu2"]


def test_mps_programs() -> None:
    """Both, or how to get them; without them a warning where workers would take turns, an error where MPS is on."""
    facts = gpu_machine()
    assert one(replace(facts, mps_server=""), "mps_programs").status is Status.ERROR
    none = replace(facts, machine=replace(facts.machine, mps_control=None))
    turns = replace(WELL, mps="off", without_mps="it is not found, so MPS is off: they take turns")
    finding = one(replace(none, intent=turns), "mps_programs")
    assert (finding.status, "install" in finding.remedy) == (Status.WARNING, True)
    inside = replace(none, intent=turns, host=replace(HOST, container="docker"))
    assert "NVIDIA_DRIVER_CAPABILITIES" in one(inside, "mps_programs").remedy
    insisting = replace(turns, problems=[Problem("mps", "on, but it is not found; install it")])
    finding = one(replace(none, intent=insisting), "mps_programs")
    assert (finding.status, finding.remedy) == (Status.ERROR, "install it")
    assert one(replace(facts, intent=turns), "mps_programs").remedy == "mps: auto, or on"
    off = replace(WELL, mps="off")
    assert one(replace(none, intent=off), "mps_programs").status is Status.OK
    assert not found(replace(none, intent=off), "clients")


def test_clients_count_against_the_limit() -> None:
    """How many of how many; a variable that lowers the limit is a warning, start's refusal an error."""
    facts = gpu_machine()
    assert "4 of 48 clients" in one(facts, "clients").evidence
    lowered = replace(HOST, environ={"CUDA_DEVICE_MAX_CONNECTIONS": "8"})
    assert one(replace(facts, host=lowered), "clients").remedy == "unset CUDA_DEVICE_MAX_CONNECTIONS"
    too_many = Problem(
        "models.half.contexts_per_gpu", "50 workers on gpu0, where MPS takes 48 clients; ask for fewer"
    )
    finding = one(replace(facts, intent=replace(WELL, problems=[too_many])), "clients")
    assert (finding.status, finding.remedy) == (Status.ERROR, "ask for fewer")


def test_what_runs_on_our_pipe_folders() -> None:
    """Nothing, the pool's own, or what a pool left, which start ends."""
    left = Running(7, True, 1000, f"{RUN}/mps/gpu0/pipe")
    facts = gpu_machine(mps_processes=[left])
    assert one(facts, "mps_leftovers").status is Status.WARNING
    assert "start" in one(facts, "mps_leftovers").remedy
    assert one(replace(facts, pool=99), "mps_leftovers").status is Status.OK
    assert one(facts, "mps_elsewhere").status is Status.OK
    assert (
        "start removes what lies in those of gpu0"
        in one(gpu_machine(pipes=["gpu0"]), "mps_leftovers").evidence
    )


def test_other_mps_of_this_machine() -> None:
    """Ours by another place, or another user's: each with what it does to us; stand-ins do nothing."""
    ours, theirs = Running(7, True, 1000, "/tmp/nvidia-mps"), Running(8, False, 0, None)
    stand_in = Running(9, True, 1000, "/run/other/mps/gpu0/pipe", simulated=True)
    facts = gpu_machine(mps_processes=[ours, theirs, stand_in])
    same, other = one(facts, "mps_elsewhere"), one(facts, "user")
    assert (same.status, other.status) == (Status.WARNING, Status.WARNING)
    assert "daemon 7 (user 1000, /tmp/nvidia-mps)" in same.evidence
    assert "every CUDA program" in same.evidence
    assert "take turns" in same.evidence
    assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in same.remedy
    assert "server 8 (user 0)" in other.evidence
    assert "EXCLUSIVE_PROCESS" in other.evidence
    alone = gpu_machine(mps_processes=[stand_in])
    assert one(alone, "mps_elsewhere").status is Status.OK


@pytest.mark.parametrize(
    ("environ", "status", "words"),
    [
        ({}, "ok", "nothing is set"),
        (
            {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"},
            "ok",
            "inherited: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50",
        ),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mine"}, "ok", "is not used"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu/pipe"}, "warning", "device plugin"),
    ],
)
def test_variables_of_mps(environ: Mapping[str, str], status: str, words: str) -> None:
    """A pipe folder from outside is not used; where a device plugin shares the GPU, that is a trap."""
    finding = one(gpu_machine(host=replace(HOST, environ=environ)), "mps_environment")
    assert (finding.status.value, words in finding.evidence) == (status, True)


def joining(owner: str = "", near: bool | None = None, **changes: Any) -> Facts:
    """A GPU server whose workers are to be the clients of a daemon that is not ours."""
    facts = gpu_machine(**changes)
    return replace(
        facts, machine=replace(facts.machine, external=Folders("/node/pipe", "/node/log", owner, near))
    )


def test_joined_is_a_daemon_that_was_seen_and_can_be_joined() -> None:
    """Not one that nobody runs, and not one that start refuses to join."""
    seen = "process 7 of user 1000"
    joined = one(joining(seen, True), "mps_environment")
    assert (joined.status, joined.remedy) == (Status.OK, "")
    assert f"is joined, and left to its owner ({seen})" in joined.evidence
    refusal = Problem(
        "mps", "external, but the MPS daemon on /node/pipe belongs to user 7; run it as that user"
    )
    refused = joining(seen, None, intent=replace(WELL, problems=[refusal]))
    for facts, whose in ((refused, seen), (joining(), "nobody was seen")):
        finding = one(facts, "mps_environment")
        assert finding.status is Status.WARNING
        assert f"/node/pipe ({whose}) is asked for, and not joined" in finding.evidence
        assert "see mps_programs" in finding.remedy


@pytest.mark.parametrize(
    ("facts", "status", "words"),
    [
        (gpu_machine(host=replace(HOST, container="docker")), "ok", "nothing of the host's"),
        (cpu_machine(host=replace(HOST, container="docker")), "ok", "PID 1 is "),
        (joining(near=True, host=replace(HOST, container="docker")), "ok", "namespaces are"),
        (joining(near=None, host=replace(HOST, container="docker")), "ok", "cannot be seen"),
        (joining(near=False, host=replace(HOST, container="docker")), "warning", "they are not"),
        (joining(near=False), "ok", "none"),
    ],
)
def test_what_a_container_shares_with_its_host(facts: Facts, status: str, words: str) -> None:
    """Nothing for a daemon of our own, two namespaces for somebody else's; without MPS nothing is said of it."""
    finding = one(facts, "container")
    assert (finding.status.value, words in finding.evidence) == (status, True)
    assert ("MPS" in finding.evidence) == bool(facts.uses and facts.host.container)
    assert ("hostIPC: true and hostPID: true" in finding.remedy) == (status == "warning")


def test_tensorflow_has_to_be_there_and_to_see_the_gpus() -> None:
    """An import that fails, and a GPU that it does not take, each with the worker's own words."""
    facts = gpu_machine(tensorflow=TensorFlow(error="ModuleNotFoundError: no tensorflow"))
    assert one(facts, "tensorflow").status is Status.ERROR
    assert one(facts, "tensorflow_gpu").status is Status.ERROR
    assert one(facts, "driver").status is Status.OK
    assert not found(facts, "kernels")
    why = "gpu0 (GPU-0) cannot be used: the driver is for CUDA 11.4; update it; gpus: none for CPU slots"
    finding = one(gpu_machine(tensorflow=replace(TF, gpus={"GPU-0": why})), "tensorflow_gpu")
    assert finding.evidence == "gpu0: the driver is for CUDA 11.4"
    assert finding.remedy == "update it; gpus: none for CPU slots"


@pytest.mark.parametrize(
    ("limits", "raises", "mps", "status"),
    [
        ((65536, 65536), False, "on", "ok"),
        ((None, None), False, "on", "ok"),
        ((1024, 65536), False, "on", "warning"),
        ((1024, 4096), False, "on", "warning"),
        ((1024, 4096), False, "off", "ok"),
        ((256, 512), False, "off", "error"),
        ((256, 512), True, "off", "ok"),
    ],
)
@pytest.mark.parametrize("uid", [0, 1000])
def test_open_files(
    limits: tuple[int | None, int | None], raises: bool, mps: str, status: str, uid: int
) -> None:
    """16384 under MPS, and what supervisord asks for in any case; who may, root or not, has it raise the limit."""
    finding = host.open_files(
        Intent(mps=mps), replace(HOST, open_files=limits, raises_limits=raises, uid=uid)
    )
    assert finding.status.value == status
    assert bool(finding.remedy) == (status != "ok")


SHM = SharedMemory("tmpfs", "shm", 64 * 2**20, 64 * 2**20, writable=True)


@pytest.mark.parametrize(
    ("shm", "mps", "backing", "status"),
    [
        (SHM, "on", "memfd", "ok"),
        (SHM, "on", "shm", "warning"),
        (replace(SHM, free=2**20), "on", "memfd", "warning"),
        (replace(SHM, free=2**20), "off", "memfd", "ok"),
        (replace(SHM, writable=False), "on", "memfd", "error"),
        (None, "off", "memfd", "warning"),
        (None, "simulated", "memfd", "warning"),
        (None, "off", "shm", "error"),
        (replace(SHM, size=32 * GIB, free=32 * GIB), "on", "memfd", "warning"),  # half of the memory
        (replace(SHM, size=32 * GIB, free=32 * GIB, source="tmpfs"), "on", "memfd", "ok"),
    ],
)
def test_shared_memory(shm: SharedMemory | None, mps: str, backing: str, status: str) -> None:
    """MPS and backing: shm need it; one that the device plugin has mounted is every pod's."""
    inside = replace(HOST, container="kubernetes", shared_memory=shm)
    intent = Intent(mps=mps, backings=frozenset({backing}))
    assert host.shared_memory(intent, inside).status.value == status
    assert (
        host.shared_memory(intent, replace(inside, container="")).status.value != "warning"
        or status == "warning"
    )


def test_limits_of_memory() -> None:
    """Locked memory below today's default, and too little for so many TensorFlows, are warnings."""
    assert host.locked_memory(replace(HOST, locked_memory=65536)).status is Status.WARNING
    assert host.locked_memory(replace(HOST, locked_memory=8 * 2**20)).status is Status.OK
    little = replace(TF, available_bytes=10**9)
    assert host.memory(replace(WELL, workers=4), HOST, little).status is Status.WARNING
    forked = replace(WELL, workers=4, forked=True)
    assert host.memory(forked, HOST, little).status is Status.OK
    assert host.memory(replace(forked, on_gpus=4), HOST, little).status is Status.WARNING, (
        "CUDA takes some, too"
    )
    assert host.memory(WELL, HOST, replace(TF, available_bytes=None)).status is Status.OK


def test_what_is_not_compiled() -> None:
    """It says why, and what to do."""
    found = host.compiled(replace(HOST, not_compiled=Obstacle("they are not compiled", "install gcc")))
    assert found.status is Status.WARNING
    assert found.evidence.endswith("answers fewer of them: they are not compiled")
    assert found.remedy == "install gcc"
    assert host.compiled(HOST).status is Status.OK


@pytest.mark.parametrize(
    ("given", "used", "status"),
    [
        ("compute,utility", True, None),
        ("all", True, None),
        ("", True, None),
        ("utility", True, "error"),
        ("utility", False, "warning"),
        ("graphics", True, "error"),
        ("compute", True, "warning"),  # NVML was found all the same
    ],
)
def test_a_container_needs_the_drivers_compute_part(given: str, used: bool, status: str | None) -> None:
    """CUDA and MPS come with compute, NVML with utility; it is no error where CUDA came by another way."""
    inside = replace(HOST, container="docker", environ={"NVIDIA_DRIVER_CAPABILITIES": given})
    statuses = [found.status.value for found in host.driver_capabilities(inside, used)]
    assert statuses == ([] if status is None else [status])
    there = host.driver_capabilities(replace(inside, cuda_library=True), used)
    assert [found.status.value for found in there] == ([] if status is None else ["warning"])
    assert host.driver_capabilities(replace(inside, container=""), used) == []


def test_what_start_refuses_is_an_error_of_its_check() -> None:
    """Each problem under the check it belongs to, instead of that check's ok; all others are configuration."""
    problems = [
        Problem("gpus", "GPU 7 is not visible; visible are 0"),
        Problem("grpc_port", "port 8500 is taken; choose another"),
        Problem("run_dir", "it is not a folder; choose another --run-dir"),
        Problem("models.mps.base_path", "no such path"),
    ]
    facts = gpu_machine(
        intent=replace(WELL, problems=problems, warnings=["8 slots on 2 CPUs; ask for fewer"])
    )
    for check in ("gpu", "ports", "run_dir"):
        assert one(facts, check).status is Status.ERROR
    error, warning = found(facts, "configuration")
    assert (error.evidence, error.remedy) == ("models.mps.base_path: no such path", "")
    assert (warning.status, warning.remedy) == (Status.WARNING, "ask for fewer")
    assert not examine.passed(examine.examine(facts))


def test_stand_ins_are_marked_wherever_they_are_looked_at() -> None:
    """In the evidence of each such line, and not in those that look at the machine itself."""
    facts = gpu_machine([use(simulated=True)], intent=replace(WELL, mps="simulated"))
    report = examine.for_scripts(facts, examine.examine(facts))
    assert report["simulated"] == "gpus"
    marked = {check["name"] for check in report["checks"] if check["evidence"].startswith("SIMULATED: ")}
    plain = {
        "tensorflow",
        "compiled",
        "cpus",
        "memory",
        "shared_memory",
        "locked_memory",
        "open_files",
        "container",
        "run_dir",
    }
    assert {check["name"] for check in report["checks"]} - marked == plain | {"ports", "mps_environment"}


def test_the_table_fits_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Statuses and names are aligned, a remedy stands on lines of its own, and the last line sums up."""
    bad = gpu_machine([use(state=replace(STATE, compute_mode="PROHIBITED", persistent=False))])
    table.print_findings(bad, examine.examine(bad))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    named = [line for line in lines[:-2] if not line.startswith(" ")]
    start = len("warning  ") + len("mps_environment  ")
    assert {line[start - 2 : start] for line in named} == {"  "}
    assert {line.split()[0] for line in named} == {"ok", "warning", "error"}
    assert f"{' ' * start}-> nvidia-smi -i GPU-0 -c EXCLUSIVE_PROCESS" in lines
    assert lines[-1] == "1 error, 1 warning: this would not serve"


def test_the_host_is_read_from_proc_sys_and_mounts(tmp_path: Path) -> None:
    """The last mount on /dev/shm counts; a GPU on the bus is known by vendor and class."""
    files = {
        "proc/meminfo": "MemTotal:       1024 kB\n",
        "proc/1/comm": "tini\n",
        "proc/1/cgroup": "0::/kubepods.slice/pod1\n",
        "proc/self/status": "Name:\tpython\nCapEff:\t0000000001000000\n",
        "proc/self/mountinfo": "25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw\n30 25 0:27 / /dev/shm rw - tmpfs shm rw\n",
        "sys/bus/pci/devices/0000:0a:00.0/vendor": "0x10de\n",
        "sys/bus/pci/devices/0000:0a:00.0/class": "0x030200\n",
        "sys/bus/pci/devices/0000:0b:00.0/vendor": "0x10de\n",
        "sys/bus/pci/devices/0000:0b:00.0/class": "0x068000\n",  # a bridge
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    read = read_host.read_host({"CUDA_X": "1", "NVIDIA_Y": "2", "HOME": "/"}, tmp_path)
    assert read.shared_memory is None
    (tmp_path / "dev/shm").mkdir(parents=True)
    read = read_host.read_host({"CUDA_X": "1", "NVIDIA_Y": "2", "HOME": "/"}, tmp_path)
    assert read.shared_memory is not None
    assert (read.shared_memory.kind, read.shared_memory.source) == ("tmpfs", "shm")
    assert (read.memory_bytes, read.first_process, read.container) == (2**20, "tini", "kubernetes")
    assert read.nvidia_devices == 1
    assert not read.cuda_library
    assert read.raises_limits
    (tmp_path / "proc/self/status").write_text("CapEff:\t000001fffeffffff\n")  # all but CAP_SYS_RESOURCE
    assert not read_host.read_host({}, tmp_path).raises_limits
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(b"\xff\0libcuda.so.1\0/usr/lib/libcuda.so.1\0")
    assert read_host.read_host({}, tmp_path).cuda_library
    (tmp_path / "etc/ld.so.cache").unlink()
    (tmp_path / "proc/libcuda.so.1").touch()
    assert read_host.read_host({"LD_LIBRARY_PATH": "/none:/proc"}, tmp_path).cuda_library
    assert read.environ == {"CUDA_X": "1", "NVIDIA_Y": "2"}
    (tmp_path / ".dockerenv").touch()
    assert read_host.read_host({}, tmp_path).container == "docker"
    assert read_host.read_host({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path).container == "kubernetes"


# Reads how TensorFlow is built, and whether that has imported it.
READ_TENSORFLOW = """
import dataclasses, json, sys
from mpspool.supervisor.doctor.read_tensorflow import read_tensorflow
print(json.dumps([dataclasses.asdict(read_tensorflow()), "tensorflow" in sys.modules], default=list))
"""


def read_how_tensorflow_is_built(**environment: str) -> dict[str, Any]:
    """In a child, for our own process may have imported it."""
    command = [sys.executable, "-c", READ_TENSORFLOW]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, **environment}
    )
    read, imported = json.loads(done.stdout)
    assert not imported
    return dict(read)


def test_how_tensorflow_is_built_is_in_its_files(tmp_path: Path) -> None:
    """Read without importing it, the same as a child with it says; where its files are not there, that is said."""
    read = read_how_tensorflow_is_built()
    told = ask_tensorflow.ask_tensorflow([], os.environ, tmp_path / "nowhere")
    assert (read["error"], told.error) == ("", "")
    assert (read["version"], read["cuda"]) == (told.version, told.cuda)
    assert tuple(read["capabilities"]) == tuple(told.capabilities)
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow/__init__.py").write_text("raise AssertionError\n")
    assert "FileNotFoundError" in read_how_tensorflow_is_built(PYTHONPATH=str(tmp_path))["error"]


def test_tensorflow_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert read_tensorflow.read_tensorflow().error == "it is not installed"


# -- what start makes of it -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """An error of the doctor's, and what start makes of it."""

    check: str
    facts: Facts
    refused: bool = True
    why: str = "no worker would ever be READY"
    pool: str = ""


def on(state: GpuState | None = STATE, cuda: tuple[int, int] = (13, 0), **device: Any) -> Facts:
    """One GPU, set like this, with a driver for that CUDA."""
    facts = gpu_machine([use(state=state, **device)])
    return replace(facts, machine=replace(facts.machine, survey=replace(facts.machine.survey, cuda=cuda)))


NO_SHM = replace(HOST, shared_memory=None)
WITHOUT_COMPUTE = replace(HOST, container="docker", environ={"NVIDIA_DRIVER_CAPABILITIES": "utility"})
FEW_FILES = replace(HOST, open_files=(256, 512))
NO_TENSORFLOW = TensorFlow(error="ImportError: broken")
NOT_SEEN = replace(TF, gpus={"GPU-0": "gpu0 (GPU-0) cannot be used: it refuses; look into it"})
IMPORT = "only an import tells; a worker's own check does, and start --check imports it to read the models"

ERRORS = {
    "a driver too old": Case("driver", on(cuda=(11, 8))),
    "TensorFlow for CPUs": Case("driver", gpu_machine(tensorflow=replace(TF, cuda="", capabilities=()))),
    "a GPU older than MPS": Case(
        "architecture",
        replace(on(compute_capability=(3, 0)), tensorflow=replace(TF, capabilities=("sm_30",))),
    ),
    "no kernels": Case("kernels", on(compute_capability=(5, 2))),
    "kernels too new for the driver": Case("kernels", on(compute_capability=(12, 0), cuda=(12, 4))),
    "nobody may use the GPU": Case("compute_mode", on(replace(STATE, compute_mode="PROHIBITED"))),
    "one may, and several would": Case("compute_mode", on(), pool="mps: off"),
    "no MPS server": Case("mps_programs", gpu_machine(mps_server="")),
    "no /dev/shm for MPS": Case("shared_memory", gpu_machine(host=NO_SHM)),
    "no /dev/shm for weights": Case(
        "shared_memory", cpu_machine(host=NO_SHM), why="nothing would be published", pool="weights: {backing: shm}"
    ),
    "too few files": Case("open_files", cpu_machine(host=FEW_FILES), why="supervisord would not start"),
    "a container without compute": Case("driver_capabilities", gpu_machine(host=WITHOUT_COMPUTE)),
    "a TensorFlow that is broken": Case("tensorflow", cpu_machine(tensorflow=NO_TENSORFLOW), False, IMPORT),
    "a TensorFlow that refuses the GPU": Case("tensorflow_gpu", gpu_machine(tensorflow=NOT_SEEN), False, IMPORT),
    "a GPU nobody could ask for": Case("tensorflow_gpu", gpu_machine(tensorflow=replace(TF, gpus={})), False, IMPORT),
}  # fmt: skip
"""Every error that the doctor finds by itself; those of its others are start's refusals in the first place."""

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def on_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[Facts, str], Run]]:
    """Runs commands as if the machine were as the facts say."""
    model = tmp_path / "half/1"
    model.mkdir(parents=True)
    (model / "saved_model.pb").write_bytes(b"\x08\x01\x12\x04\x0a\x02ab\x12\x00")
    monkeypatch.setattr("mpspool.supervisor.commands.describe.check", lambda _models: ([], []))

    def become(facts: Facts, pool: str) -> Run:
        files_say = replace(TF if facts.tensorflow.error else facts.tensorflow, gpus={}, import_s=0.0)
        monkeypatch.setattr(preflight, "read_machine", lambda _config, _environ: facts.machine)
        monkeypatch.setattr(preflight, "read_tensorflow", lambda: files_say)
        monkeypatch.setattr(gather, "ask_tensorflow", lambda _uses, _environ, _nowhere: facts.tensorflow)
        for module in (preflight, gather):
            monkeypatch.setattr(module, "read_host", lambda _environ: facts.host)
            monkeypatch.setattr(module, "find_program", lambda _name, _environ: facts.mps_server)
        file = tmp_path / "pool.yaml"
        file.write_text(f"models: {{half: half}}\ngrpc_port: 0\nrest_port: 0\n{pool}\n")

        def run(*args: str) -> tuple[int, str]:
            done = CliRunner().invoke(main, [*args, str(file), "--run-dir", str(root / "run")])
            return done.exit_code, done.output

        return run

    with short_dir() as root:
        yield become


@pytest.mark.parametrize("case", ERRORS.values(), ids=ERRORS)
def test_start_refuses_the_doctors_errors(case: Case, on_this_machine: Callable[[Facts, str], Run]) -> None:
    """With what was found and its remedy, before anything is started; what it cannot know is for the workers to say."""
    run = on_this_machine(case.facts, case.pool)
    status, output = run("doctor", "--json")
    report = json.loads(output)
    assert (status, set(errors(report))) == (1, {case.check})
    (wrong,) = [check for check in report["checks"] if check["status"] == "error"]
    status, output = run("start", "--check")
    assert status == (2 if case.refused else 0), (output, case.why)
    assert (f"{wrong['evidence']}; {wrong['remedy']}" in output) == case.refused, output


def test_every_error_of_the_doctor_has_its_case() -> None:
    """Whoever adds one says above whether start refuses it."""
    judges = (gpus, host, mps, pool, tensorflow)
    assert sum(inspect.getsource(judge).count("Status.ERROR") for judge in judges) == len(ERRORS)


NOTHING_FITS = {
    "host": replace(WITHOUT_COMPUTE, shared_memory=None),
    "tensorflow": replace(TF, cuda="", capabilities=()),
    "mps_server": "",
}


@pytest.mark.parametrize(
    ("facts", "pool"),
    [
        (gpu_machine([use(simulated=True, compute_capability=(3, 5))], **NOTHING_FITS), ""),
        (gpu_machine([use(state=replace(STATE, compute_mode="PROHIBITED"))], **NOTHING_FITS), "gpus: none"),
        (cpu_machine(**NOTHING_FITS), ""),
        (replace(on(compute_capability=(3, 0)), tensorflow=replace(TF, capabilities=("sm_30",))), "mps: off\ncontexts_per_gpu: 1"),
    ],
    ids=["stand-ins", "CPU slots", "no GPU", "without MPS"],
)  # fmt: skip
def test_what_is_not_needed_is_not_refused(
    facts: Facts, pool: str, on_this_machine: Callable[[Facts, str], Run]
) -> None:
    """What GPUs, CUDA or MPS need does not matter to a pool without them: neither to start nor to the doctor."""
    run = on_this_machine(facts, pool)
    for command in (("start", "--check"), ("doctor",)):
        status, output = run(*command)
        assert status == 0, output


@pytest.mark.parametrize("command", [("start", "--check"), ("doctor",)])
def test_what_a_flag_says_otherwise_for_all_models_is_told(
    command: Sequence[str], on_this_machine: Callable[[Facts, str], Run], tmp_path: Path
) -> None:
    """As a warning."""
    run = on_this_machine(cpu_machine(), "")
    (tmp_path / "pool.yaml").write_text(
        "models: {half: {base_path: half, cpu_slots: 1}}\ngrpc_port: 0\nrest_port: 0\n"
    )
    status, output = run(*command, "--cpu-slots", "2")
    assert status == 0, output
    told = " ".join(output.split())
    assert "models.half.cpu_slots in pool.yaml line 1 has no say: --cpu-slots is for all models" in told


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command with TensorFlow's answer given, on a machine whose GPUs, if any, are hidden."""
    monkeypatch.setattr(gather, "ask_tensorflow", lambda _uses, _environ, _nowhere: TF)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(*args: object) -> tuple[int, dict[str, Any]]:
        if "--simulate-gpus" in args:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")  # it would hide these as well
        off = ["--grpc-port", "0", "--rest-port", "0"]
        done = CliRunner().invoke(main, ["doctor", "--json", *off, *map(str, args)])
        return done.exit_code, json.loads(done.stdout)

    return run


def errors(report: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["evidence"] for check in report["checks"] if check["status"] == "error"}


def test_the_command_needs_no_model(doctor: Any) -> None:
    """Exit 0 on this machine, and where one model's workers would run."""
    with short_dir() as root:
        status, report = doctor("--run-dir", root / "run")
        assert (status, report["ok"], report["simulated"]) == (0, True, "")
        assert not (root / "run").exists()
    slots = next(check for check in report["checks"] if check["name"] == "slots")
    assert "on cpu0" in slots["evidence"]


def test_the_command_says_what_start_would_refuse(doctor: Any, tmp_path: Path) -> None:
    """Of the file, the models and the plan, all at once; exit 1."""
    file = tmp_path / "pool.yaml"
    file.write_text("models: {half: /none}\ngpus: all\nhots: 127.0.0.1\n")
    with short_dir() as root:
        status, report = doctor(file, "--run-dir", root)
    assert (status, report["ok"]) == (1, False)
    told = " ".join(errors(report).values())
    assert set(errors(report)) == {"gpu", "configuration"}
    assert "no GPU is visible" in told
    assert sum(check["name"] == "configuration" for check in report["checks"]) == 2
    with short_dir() as root:
        status, report = doctor("--simulate-gpus", 1, "--contexts-per-gpu", 49, "--run-dir", root)
    assert (status, set(errors(report))) == (1, {"clients"})


def test_a_pool_that_runs_is_no_fault(doctor: Any) -> None:
    """Its folder and ports are its own."""
    with short_dir() as root, lock.held(RunDir(root / "run")):
        status, report = doctor("--run-dir", root / "run", "--grpc-port", 8500)
    assert status == 0, report
    names = {check["name"]: check["evidence"] for check in report["checks"]}
    assert "a pool runs in" in names["run_dir"]
    assert "ports" not in names


def test_its_help_teaches_by_example() -> None:
    """It takes start's flags, but for those that start something."""
    done = CliRunner().invoke(main, ["doctor", "--help"])
    assert "mpspool doctor" in done.output.split("Examples:")[1]
    assert "--simulate-gpus" in done.output
    assert "--detach" not in done.output


def test_children_that_cannot_say_anything(tmp_path: Path) -> None:
    """Out of time, or without TensorFlow: the reason, and no GPU is known to work."""
    nowhere = tmp_path / "nowhere"
    (tmp_path / "tensorflow.py").write_text("raise ImportError('broken')\n")
    late = ask_tensorflow.ask_tensorflow([use()], os.environ, nowhere, limit_s=0.01)
    assert (late.error, late.gpus) == ("no answer in 0.01 s", {})
    broken = ask_tensorflow.ask_tensorflow([use()], {**os.environ, "PYTHONPATH": str(tmp_path)}, nowhere)
    assert (broken.error, broken.gpus) == ("ImportError: broken", {})
    assert broken.available_bytes
    (tmp_path / "tensorflow.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)\n")
    killed = ask_tensorflow.ask_tensorflow([], {**os.environ, "PYTHONPATH": str(tmp_path)}, nowhere)
    assert "SIGSEGV" in killed.error


def test_tensorflows_own_words_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the worker's check refers to its log, which a child does not have."""
    answer = {
        "version": "2.21.0",
        "gpu": "gpu0 (GPU-0) cannot be used: it refuses; its own words are in this worker's log",
    }
    stderr = "I0000 a.cc:1] first\nW0000 00:00:1 b.cc:2] Skipping the GPU\n"
    done = subprocess.CompletedProcess([], 0, json.dumps(answer), stderr)
    monkeypatch.setattr("subprocess.run", lambda *_args, **_kwargs: done)
    told = ask_tensorflow.ask_tensorflow([use()], {}, tmp_path)
    assert told.gpus["GPU-0"].endswith("it refuses; its last words: Skipping the GPU")
