"""First half of the plan: which places each model has. Pure: the machine comes in as an argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mpspool.core.errors import Problem
from mpspool.mps.device_state import Survey
from mpspool.mps.devices import GpuDevice
from mpspool.mps.external import Folders
from mpspool.supervisor.config.schema import ModelConfig, PoolConfig
from mpspool.supervisor.config.values import DEFAULT_CONTEXTS_PER_GPU
from mpspool.supervisor.cpus import Topology

CPU_DEVICE = "cpu0"
CORES_PER_CPU_SLOT = 2


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is to run on.

    Attributes:
        devices: the visible GPUs, or their stand-ins.
        topology: the CPUs, or their stand-ins.
        mps_control: the command of the MPS control daemon for these devices; None if not found.
        driver: the GPU driver's version; empty if unknown.
        survey: how all GPUs of the machine are set, visible or not; empty where none was looked at.
        no_gpu: why no GPU is visible; empty if unknown.
        external: where the MPS daemon is that somebody else runs; None where none is to be joined.
        broken: why the driver does not give other GPUs, by index.
    """

    devices: Sequence[GpuDevice]
    topology: Topology
    mps_control: Sequence[str] | None = None
    driver: str = ""
    no_gpu: str = ""
    survey: Survey = field(default_factory=Survey)
    external: Folders | None = None
    broken: Mapping[int, str] = field(default_factory=dict)

    @property
    def simulated(self) -> str:
        """What is a stand-in: "gpus", "cpus", both with a comma, or nothing."""
        gpus = any(device.simulated for device in self.devices)
        return ",".join(word for word, so in (("gpus", gpus), ("cpus", self.topology.simulated)) if so)


@dataclass(frozen=True, slots=True)
class Place:
    """A slot before it has CPUs: on a GPU, or on the CPU where there is none."""

    gpu: GpuDevice | None
    slot: int

    @property
    def device(self) -> str:
        return CPU_DEVICE if self.gpu is None else device_name(self.gpu)


@dataclass(frozen=True, slots=True)
class Draft:
    """A model and its places.

    Attributes:
        asked: the model as configured.
        model: with the pool's placement where it has none of its own.
    """

    asked: ModelConfig
    model: ModelConfig
    places: list[Place]

    def path(self, field: str) -> str:
        """Where the user would look for this field: at the model, or at the pool."""
        return field if getattr(self.asked, field) is None else f"models.{self.asked.name}.{field}"


def device_name(gpu: GpuDevice) -> str:
    """The GPU as slots, pipe folders and programs name it."""
    return f"gpu{gpu.index}"


def gpus_in_use(drafts: Sequence[Draft]) -> list[GpuDevice]:
    """The GPUs that have a place, each once, by index."""
    gpus = {place.gpu.index: place.gpu for draft in drafts for place in draft.places if place.gpu is not None}
    return [gpus[index] for index in sorted(gpus)]


def draft_places(config: PoolConfig, machine: Machine) -> tuple[list[Draft], list[Problem]]:
    """Gives every model its places, GPU by GPU; one that cannot have its GPUs has a problem and no place."""
    drafts: list[Draft] = []
    problems: list[Problem] = []
    on_cpu: list[Draft] = []
    for asked in config.models:
        draft = Draft(asked, config.resolved(asked), [])
        gpus, wrong = _gpus(draft, machine)
        draft.places.extend(_gpu_places(draft.model, gpus))
        drafts.append(draft)
        problems += wrong
        if not gpus and not wrong:
            on_cpu.append(draft)
    for draft in on_cpu:
        count = draft.model.cpu_slots or default_cpu_slots(machine.topology, len(on_cpu))
        draft.places.extend(Place(None, slot) for slot in range(count))
    return drafts, problems


def default_cpu_slots(topology: Topology, models: int) -> int:
    """One per 2 cores in all, but at least one for each model."""
    return max(1, topology.cores // CORES_PER_CPU_SLOT // models)


def _gpus(draft: Draft, machine: Machine) -> tuple[list[GpuDevice], list[Problem]]:
    """The model's GPUs; none means the CPU, unless there is a problem."""
    model, path = draft.model, draft.path("gpus")
    if model.gpus is None:
        return [] if model.cpu_slots else list(machine.devices), []
    if model.gpus == "auto":
        return list(machine.devices), []
    if model.gpus == "none":
        return [], []
    if not machine.devices:
        reason = f" ({machine.no_gpu})" if machine.no_gpu else ""
        text = f"{_ids(model.gpus)}: no GPU is visible{reason}; leave gpus out for CPU slots"
        return [], [Problem(path, text)]
    if model.gpus == "all":
        return list(machine.devices), []
    visible = {device.index: device for device in machine.devices}
    missing = [index for index in model.gpus if index not in visible]
    if missing:
        there = ", ".join(f"{index} ({device.name})" for index, device in visible.items())
        return [], [Problem(path, f"GPU {_ids(tuple(missing))} is not visible; visible are {there}")]
    return [visible[index] for index in model.gpus], []


def _ids(gpus: str | tuple[int, ...]) -> str:
    return gpus if isinstance(gpus, str) else ",".join(map(str, gpus))


def _gpu_places(model: ModelConfig, gpus: Sequence[GpuDevice]) -> list[Place]:
    contexts = model.contexts_per_gpu or DEFAULT_CONTEXTS_PER_GPU
    return [Place(gpu, slot) for gpu in gpus for slot in range(contexts)]
