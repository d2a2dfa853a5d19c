"""What a plan says to the person who started it: what was chosen, and what was hardly meant."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from mpspool.core.settings import ModelSettings, SlotSettings
from mpspool.mps.devices import RESET, GpuDevice
from mpspool.supervisor.config.schema import PoolConfig
from mpspool.supervisor.config.sections import Shares
from mpspool.supervisor.cpus import format_cpus
from mpspool.supervisor.number_words import counted
from mpspool.supervisor.planning.drafts import (
    CORES_PER_CPU_SLOT,
    Draft,
    Machine,
    default_cpu_slots,
    device_name,
    gpus_in_use,
)
from mpspool.supervisor.shares import PRIORITIES, overcommitted, size_text


def facts(
    config: PoolConfig,
    drafts: Sequence[Draft],
    models: Sequence[ModelSettings],
    machine: Machine,
    mps: str,
) -> list[str]:
    """One line each: stand-ins, why the CPU, each model's slots, MPS, what each model's workers get of their GPU."""
    lines = [simulated(machine)] if machine.simulated else []
    if fallback := _fallback(drafts, machine):
        lines.append(fallback)
    lines += [f"{model.name}@{model.version}: {layout(model)}" for model in models]
    if mps != "off":
        names = _names(gpus_in_use(drafts))
        what = f"a control daemon each for {names}"
        if config.mps.mode == "external" and machine.external is not None:
            owner = f" ({machine.external.owner})" if machine.external.owner else ""
            what = f"the control daemon on {machine.external.pipe_dir}, which is not ours{owner}, for {names}"
        lines.append(f"MPS {mps}: {what}")
        lines += [line for model in models if (line := _share(model))]
    return lines


def _share(model: ModelSettings) -> str:
    """What its workers get of their GPUs; "" where nothing bounds them."""
    on_gpu = [slot for slot in model.slots if slot.mps_pipe]
    parts = [
        _each(
            "at most {} of the multiprocessors",
            _by_gpu(on_gpu, lambda slot: slot.share.active_thread_percentage or 100),
            100,
            "{}%".format,
        ),
        _each("{} of its memory", _by_gpu(on_gpu, lambda slot: slot.pinned_bytes), 0, size_text),
        _each(
            "priority {}",
            _by_gpu(on_gpu, lambda slot: slot.share.priority or 0),
            0,
            list(PRIORITIES).__getitem__,
        ),
    ]
    told = ", ".join(filter(None, parts))
    return f"{model.name}: each worker gets {told}" if told else ""


def _by_gpu(slots: Sequence[SlotSettings], value: Callable[[SlotSettings], int]) -> dict[str, list[int]]:
    """By device, the values of its slots, each once."""
    found: dict[str, dict[int, None]] = {}
    for slot in slots:
        found.setdefault(slot.device, {})[value(slot)] = None
    return {device: list(values) for device, values in found.items()}


def _each(form: str, by_gpu: Mapping[str, list[int]], none: int, word: Callable[[int], str]) -> str:
    """The values, GPU by GPU where these differ; "" where there is no more than `none`."""
    texts = {device: " | ".join(map(word, values)) for device, values in by_gpu.items()}
    if all(values == [none] for values in by_gpu.values()):
        return ""
    if len(set(texts.values())) == 1:
        return form.format(next(iter(texts.values())))
    return form.format(", ".join(f"{text} on {device}" for device, text in texts.items()))


def simulated(machine: Machine) -> str:
    """What is a stand-in, marked so; for a machine that has some."""
    what = {
        "gpus": f"{counted(len(machine.devices), 'GPU')} (models run on the CPU)",
        "cpus": f"{counted(len(machine.topology.cpus), 'CPU')} (nothing is pinned)",
    }
    return f"SIMULATED: {' and '.join(what[word] for word in machine.simulated.split(','))}"


def _fallback(drafts: Sequence[Draft], machine: Machine) -> str:
    """The choice of CPU slots, where nobody made it."""
    on_cpu = [draft for draft in drafts if not gpus_in_use([draft])]
    unasked = [draft for draft in on_cpu if draft.model.gpus in (None, "auto") and not draft.model.cpu_slots]
    if not unasked or machine.devices:
        return ""
    reason = f" ({machine.no_gpu})" if machine.no_gpu else ""
    count = counted(default_cpu_slots(machine.topology, len(on_cpu)), "slot")
    if any(draft.model.cpu_slots for draft in on_cpu):
        each = " each" if len(unasked) > 1 else ""
        count += f"{each} for {', '.join(draft.model.name for draft in unasked)}"
    elif len(on_cpu) > 1:
        count += " per model"
    return f"no GPU visible{reason}: 1 CPU slot per {CORES_PER_CPU_SLOT} cores, {count}"


def layout(model: ModelSettings) -> str:
    """Where a model's slots are, and their CPUs."""
    per_device = Counter(slot.device for slot in model.slots)
    devices = ", ".join(f"{counted(count, 'slot')} on {device}" for device, count in per_device.items())
    if not any(slot.cpus for slot in model.slots):
        return f"{devices}, not pinned"
    sets = dict.fromkeys(format_cpus(slot.cpus) for slot in model.slots)
    return f"{devices}, CPUs {' | '.join(sets)}"


def _names(gpus: Sequence[GpuDevice]) -> str:
    return ", ".join(device_name(gpu) for gpu in gpus)


def warnings(config: PoolConfig, drafts: Sequence[Draft], machine: Machine, mps: str) -> list[str]:
    """One line each: what will run, but hardly as it was meant."""
    lines = [_few_cpusets(draft) for draft in drafts] + [_memory(gpu, drafts) for gpu in gpus_in_use(drafts)]
    lines += [_sharing(drafts, machine), without_mps(config, drafts, mps), _unused(drafts, machine)]
    lines += [_contexts_without_gpu(drafts), _open_host(config), _no_front(config)]
    lines += _broken(machine) if gpus_in_use(drafts) else []
    return list(dict.fromkeys(line for line in lines if line))


def _broken(machine: Machine) -> list[str]:
    return [
        f"gpu{index} is left out, of which NVML says: {error}; {RESET}"
        for index, error in machine.broken.items()
    ]


def shares_warnings(config: PoolConfig, models: Sequence[ModelSettings], mps: str) -> list[str]:
    """One line each: shares that mean nothing, or more than there is."""
    lines = []
    if config.mps.pipe_directory and config.mps.mode != "external":
        lines.append(
            f"mps.pipe_directory is for mode: external, and mode is {config.mps.mode}: it is not used"
        )
    given = [
        f"{prefix}mps.{name}"
        for prefix, own in [
            ("", config.mps),
            *((f"models.{model.name}.", model.mps) for model in config.models),
        ]
        for name in Shares.model_fields
        if getattr(own, name)
    ]
    if given and mps == "off":
        lines.append(f"{given[0]} bounds what a worker gets under MPS, which is off: it has no effect")
    return lines + overcommitted(slot for model in models for slot in model.slots)


def _few_cpusets(draft: Draft) -> str:
    sets = draft.model.cpusets
    if not isinstance(sets, tuple) or len(sets) == len(draft.places):
        return ""
    slots = counted(len(draft.places), "slot")
    given = f"{draft.path('cpusets')}: {counted(len(sets), 'set')} for {slots} of {draft.model.name}"
    return f"{given}: shared in turn" if len(sets) < len(draft.places) else f"{given}: the last are not used"


def _contexts_without_gpu(drafts: Sequence[Draft]) -> str:
    if any(place.gpu for draft in drafts for place in draft.places):
        return ""
    paths = [
        draft.path("contexts_per_gpu")
        for draft in drafts
        if draft.model.contexts_per_gpu and not draft.model.cpu_slots
    ]
    return f"{paths[0]} is for GPUs: on the CPU cpu_slots says how many workers there are" if paths else ""


def _sharing(drafts: Sequence[Draft], machine: Machine) -> str:
    sharing = [draft for draft in drafts if draft.model.cpusets in (None, "auto", "split")]
    places = [place for draft in sharing for place in draft.places]
    cpus = len(machine.topology.cpus)
    if len(places) <= cpus:
        return ""
    several = [place for draft in sharing if len(draft.places) > 1 for place in draft.places]
    fields = dict.fromkeys("cpu_slots" if place.gpu is None else "contexts_per_gpu" for place in several)
    remedy = f"; ask for fewer ({', '.join(fields)})" if fields else ""
    return f"{len(places)} slots on {counted(cpus, 'CPU')}: they have to share{remedy}"


def _memory(gpu: GpuDevice, drafts: Sequence[Draft]) -> str:
    wanted = sum(
        draft.model.gpu_memory.limit_bytes or draft.model.gpu_memory.fraction * gpu.memory_bytes
        for draft in drafts
        for place in draft.places
        if place.gpu == gpu
    )
    if not 0 < gpu.memory_bytes < wanted:
        return ""
    return (
        f"{device_name(gpu)}: its workers may take {wanted / gpu.memory_bytes:.0%} of its memory;"
        " lower gpu_memory.fraction or limit_bytes"
    )


def without_mps(config: PoolConfig, drafts: Sequence[Draft], mps: str) -> str:
    """Why workers on one GPU take turns; "" where they do not. `mps` is the plan's."""
    shared = [
        gpu
        for gpu in gpus_in_use(drafts)
        if sum(place.gpu == gpu for draft in drafts for place in draft.places) > 1
    ]
    if mps != "off" or not shared:
        return ""
    reason = (
        "MPS is off" if config.mps.mode == "off" else "nvidia-cuda-mps-control is not found, so MPS is off"
    )
    return f"{reason}: the workers on {_names(shared)} take turns instead of running at once"


def _unused(drafts: Sequence[Draft], machine: Machine) -> str:
    """GPUs that were there for the taking, but cpu_slots alone was given."""
    asked = [draft for draft in drafts if draft.model.gpus is None and draft.model.cpu_slots]
    if not asked or not machine.devices:
        return ""
    return (
        f"{asked[0].path('cpu_slots')} asks for the CPU: {_names(machine.devices)} not used by"
        f" {', '.join(draft.model.name for draft in asked)}; give gpus to use them, or gpus: none to silence this"
    )


def _open_host(config: PoolConfig) -> str:
    """Of a gRPC port with TLS, whether its clients need a certificate stands among the facts."""
    if is_local(config.host):
        return ""
    served = "says which models are served, and from which folders of this machine"
    texts = []
    if not config.tls.given or config.rest_port:
        by = " by HTTP" if config.tls.given else ""
        texts.append(f"whoever reaches this machine reaches the models{by}, without TLS or a password")
    if config.allow_reload:
        texts.append(
            f"by allow_reload {'every client of the gRPC port' if config.tls.given else 'also'} {served}"
        )
    return f"host {config.host}: {'; '.join(texts)}" if texts else ""


def is_local(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _no_front(config: PoolConfig) -> str:
    both_off = config.grpc_port == config.rest_port == 0 and not config.grpc_socket_path
    return "grpc_port and rest_port are both 0: nobody can reach the models" if both_off else ""
