"""Judges the GPUs themselves: which there are, their driver, their architecture and how they are set."""

from __future__ import annotations

from collections.abc import Sequence

from mpspool.mps import device_state
from mpspool.mps.device_state import Survey
from mpspool.mps.devices import RESET, VISIBLE
from mpspool.supervisor.doctor.facts import GpuUse, Host, TensorFlow
from mpspool.supervisor.doctor.finding import Finding, Status, Verdict, ok, per_gpu
from mpspool.supervisor.planning.drafts import Machine, device_name

_FIRST_WITH_MPS = (3, 5)
_VOLTA = (7, 0)
_GIB = 2**30
_ON_THE_CPU = "workers run on the CPU"


def visible(machine: Machine, uses: Sequence[GpuUse], host: Host) -> Finding:
    """Which GPUs workers are planned for, or why none."""
    simulated = any(device.simulated for device in machine.devices)
    if uses:
        listed = ", ".join(f"{use.name} {_described(use)}" for use in uses)
        if machine.broken:
            lost = ", ".join(f"gpu{index} (NVML says: {error})" for index, error in machine.broken.items())
            return Finding("gpu", Status.WARNING, f"{listed}; left out: {lost}", RESET, simulated=simulated)
        return Finding("gpu", Status.OK, listed, simulated=simulated)
    if machine.devices:
        there = ", ".join(f"{device_name(device)} {device.name}" for device in machine.devices)
        text = f"not used, for CPU slots are asked for: {there}; checked is what CPU slots need"
        return Finding("gpu", Status.OK, text, simulated=simulated)
    reason = f" ({machine.no_gpu})" if machine.no_gpu else ""
    text = f"no GPU is visible{reason}: checked is what CPU slots need"
    if remedy := _how_to_see_one(machine, host):
        return Finding("gpu", Status.WARNING, text, remedy)
    return Finding("gpu", Status.OK, text)


def _described(use: GpuUse) -> str:
    memory = f", {use.device.memory_bytes / _GIB:.0f} GiB" if use.device.memory_bytes else ""
    return f"({use.device.name}{memory})"


def _how_to_see_one(machine: Machine, host: Host) -> str:
    """Empty where nothing speaks for there being one."""
    if machine.broken:
        return RESET
    if machine.survey.gpus:
        hidden = VISIBLE in host.environ
        return f"unset {VISIBLE}, or have it name GPUs there are (nvidia-smi -L)" if hidden else ""
    if not host.nvidia_devices:
        return ""
    if host.container:
        return (
            f"{host.nvidia_devices} of NVIDIA's devices are on this machine's bus: give the container its GPUs"
            " (docker run --gpus all; nvidia.com/gpu in the pod's limits)"
        )
    return (
        f"{host.nvidia_devices} of NVIDIA's devices are on the bus: install the driver (nvidia-smi must work)"
    )


def driver(machine: Machine, tensorflow: TensorFlow) -> Finding:
    """Does the driver run the CUDA that TensorFlow is built for? Within one major version it does."""
    status, evidence, remedy = _driver(machine, tensorflow)
    simulated = any(device.simulated for device in machine.devices)
    return Finding("driver", status, evidence, remedy, simulated)


def _driver(machine: Machine, tensorflow: TensorFlow) -> Verdict:
    cuda = machine.survey.cuda
    has = f"driver {machine.driver or 'of unknown version'}"
    if cuda:
        has += f" runs CUDA up to {cuda[0]}.{cuda[1]}"
    if all(device.simulated for device in machine.devices):
        return ok(f"{has}; {_ON_THE_CPU}")
    if tensorflow.error:
        return ok(f"{has}; what TensorFlow needs is not known")
    if not tensorflow.cuda:
        text = f"{has}, and TensorFlow {tensorflow.version} is built without CUDA"
        install = f"pip install 'tensorflow[and-cuda]=={tensorflow.version}'"
        return Status.ERROR, text, f"{install}, where there is one for this machine; or gpus: none"
    text = f"{has}, and TensorFlow {tensorflow.version} is built for {tensorflow.cuda}"
    if cuda and cuda[0] < numbers(tensorflow.cuda)[0]:
        return Status.ERROR, text, f"update the driver to one for CUDA {numbers(tensorflow.cuda)[0]} or newer"
    return ok(text)


def numbers(version: str) -> tuple[int, ...]:
    """Of a version such as "12.5.1"."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def architecture(uses: Sequence[GpuUse], mps: str) -> list[Finding]:
    """MPS as it is needed here came with Volta. `mps` is the plan's."""

    def judge(use: GpuUse) -> Verdict:
        has = use.device.compute_capability
        text = f"compute capability {has[0]}.{has[1]}"
        if has >= _VOLTA:
            return ok(f"{text}, Volta or newer")
        if mps == "off":
            return ok(f"{text}; MPS is off")
        if has >= _FIRST_WITH_MPS:
            remedy = "serve on a GPU from Volta on, or with mps: off"
            return (
                Status.WARNING,
                f"{text} is older than Volta: under MPS its workers share one address space",
                remedy,
            )
        return Status.ERROR, f"{text} is older than MPS", "use another GPU, mps: off, or gpus: none"

    return per_gpu("architecture", uses, judge)


def kernels(uses: Sequence[GpuUse], tensorflow: TensorFlow, cuda: tuple[int, int] | None) -> list[Finding]:
    """Which of TensorFlow's compiled kernels fit: of the same major architecture, or from PTX of an older one."""
    built = ", ".join(tensorflow.capabilities)

    def judge(use: GpuUse) -> Verdict:
        if use.device.simulated:
            return ok(_ON_THE_CPU)
        has = use.device.compute_capability
        binaries = [_capability(name) for name in tensorflow.capabilities]
        if any(of[0] == has[0] and of <= has for of in binaries):
            return ok(f"TensorFlow has kernels compiled for {has[0]}.{has[1]} (it is built for {built})")
        if all(of > has for of in _ptx(tensorflow)):
            text = (
                f"TensorFlow has no kernels for compute capability {has[0]}.{has[1]}: it is built for {built}"
            )
            return Status.ERROR, text, "use a GPU it is built for, another build of TensorFlow, or gpus: none"
        text = f"TensorFlow compiles its kernels for {has[0]}.{has[1]} from PTX at the first start: minutes"
        if cuda and cuda < numbers(tensorflow.cuda)[:2]:
            newer = ".".join(tensorflow.cuda.split(".")[:2])
            return (
                Status.ERROR,
                f"{text}, and the driver is too old for that PTX",
                f"a driver for CUDA {newer}",
            )
        remedy = (
            "keep CUDA's cache between starts (CUDA_CACHE_PATH, CUDA_CACHE_MAXSIZE=4294967296), and raise"
            " start_timeout_s if 600 s are too few"
        )
        return Status.WARNING, text, remedy

    known = not tensorflow.error and tensorflow.capabilities
    return per_gpu("kernels", uses, judge) if known else []


def _capability(name: str) -> tuple[int, int]:
    """Of "sm_90", "compute_100" or "sm_90a"; the last digit is the minor one."""
    digits = "".join(letter for letter in name.partition("_")[2] if letter.isdigit())
    return (int(digits[:-1] or 0), int(digits[-1:] or 0))


def _ptx(tensorflow: TensorFlow) -> list[tuple[int, int]]:
    return [_capability(name) for name in tensorflow.capabilities if name.startswith("compute_")]


def compute_mode(uses: Sequence[GpuUse], mps: str) -> list[Finding]:
    """Are this GPU's workers let in? `mps` is the plan's."""
    shared = mps != "off"

    def judge(use: GpuUse) -> Verdict:
        if use.state is None or use.state.compute_mode is None:
            return ok("compute mode not known")
        mode = use.state.compute_mode
        text, change = f"compute mode {mode}", f"nvidia-smi -i {use.state.uuid} -c"
        if mode == device_state.PROHIBITED:
            wanted = device_state.EXCLUSIVE_PROCESS if shared else device_state.DEFAULT
            return Status.ERROR, f"{text} lets no process in", f"{change} {wanted}"
        if mode == device_state.DEFAULT:
            advice = "; EXCLUSIVE_PROCESS would keep off whoever does not come through MPS"
            return ok(text + advice * shared)
        if not shared and use.workers > 1:
            text += f" lets one process in, and without MPS {use.workers} workers would need it"
            return Status.ERROR, text, f"mps: on, contexts_per_gpu: 1, or {change} {device_state.DEFAULT}"
        if mode == device_state.EXCLUSIVE_THREAD:
            return Status.WARNING, f"{text} is obsolete", f"{change} {device_state.EXCLUSIVE_PROCESS}"
        return ok(text + ", which NVIDIA recommends for MPS" * shared)

    return per_gpu("compute_mode", uses, judge)


def mig(survey: Survey, uses: Sequence[GpuUse]) -> list[Finding]:
    """MIG devices go by UUID; a GPU in MIG mode without one cannot be used, and a pool runs without it."""
    findings = []
    for state in survey.gpus:
        if state.mig == ():
            text = f"{state.uuid} is in MIG mode and has no instance: nothing can run on it"
            remedy = f"nvidia-smi mig -i {state.uuid} -cgi PROFILE -C makes one, nvidia-smi -i {state.uuid} -mig 0 ends it"
            findings.append(Finding("mig", Status.WARNING, text, remedy))

    def judge(use: GpuUse) -> Verdict:
        parts = use.state.mig if use.state else None
        if not parts:
            return ok("not in MIG mode")
        used = {other.device.uuid for other in uses}
        if unused := [part for part in parts if part not in used]:
            text = f"MIG device {use.device.uuid} is used, {len(unused)} more of its GPU are not"
            return Status.WARNING, text, f"name them: {VISIBLE}={','.join(parts)}"
        return ok(f"MIG device {use.device.uuid}, by its UUID")

    return findings + per_gpu("mig", uses, judge)


def ecc(uses: Sequence[GpuUse]) -> list[Finding]:
    """Uncorrected errors of the GPU's memory kill what runs, or worse."""

    def judge(use: GpuUse) -> Verdict:
        errors = use.state.uncorrected_errors if use.state else None
        if errors:
            text = f"{errors} uncorrected memory errors since the driver was loaded"
            return (
                Status.WARNING,
                text,
                "nvidia-smi -q -d ECC,ROW_REMAPPER shows more; reset the GPU, or replace it",
            )
        return ok("memory errors are not counted" if errors is None else "no uncorrected memory error")

    return per_gpu("ecc", uses, judge)


def persistence(uses: Sequence[GpuUse]) -> list[Finding]:
    """Without it the driver unloads with its last user, and whoever comes next waits for it."""

    def judge(use: GpuUse) -> Verdict:
        on = use.state.persistent if use.state else None
        if on is False:
            remedy = "nvidia-smi -pm 1, or the nvidia-persistenced service, on the host"
            return Status.WARNING, "persistence mode is off: a first start takes seconds longer", remedy
        return ok("persistence mode is on" if on else "persistence mode not known")

    return per_gpu("persistence", uses, judge)
