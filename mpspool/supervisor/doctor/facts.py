"""What the doctor knows of a machine before it judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mpspool.compiled import Obstacle
from mpspool.core.errors import Problem
from mpspool.mps.device_state import GpuState, Survey
from mpspool.mps.devices import GpuDevice
from mpspool.mps.leftovers import Running
from mpspool.supervisor.planning.drafts import Draft, Machine, device_name
from mpspool.supervisor.planning.plan import client_counts


@dataclass(frozen=True, slots=True)
class GpuUse:
    """A GPU that workers are planned for.

    Attributes:
        state: how it is set, for a MIG device the GPU that it is a part of; None where NVML does not say.
        limit: the most workers that MPS takes on it.
    """

    device: GpuDevice
    state: GpuState | None
    workers: int
    limit: int

    @property
    def name(self) -> str:
        return device_name(self.device)


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The file system at /dev/shm, in bytes; `source` is what is mounted, by the mount's own word."""

    kind: str
    source: str
    size: int
    free: int
    writable: bool


@dataclass(frozen=True, slots=True)
class Host:
    """The machine, or the container, around the GPUs.

    Attributes:
        uid: the user we are.
        open_files: the limit and the hard limit; None for unlimited.
        raises_limits: we may raise hard limits, as root may outside of containers (CAP_SYS_RESOURCE).
        locked_memory: the limit in bytes; None for unlimited.
        memory_bytes: of the machine; 0 where not known.
        shared_memory: None where /dev/shm is not there.
        container: "docker", "kubernetes", ...; empty outside.
        first_process: the name of PID 1.
        nvidia_devices: NVIDIA's display devices on the PCI bus, seen from a container too.
        cuda_library: the driver's libcuda.so.1 is where the linker looks.
        environ: the variables of CUDA, of MPS and of the container toolkit.
        not_compiled: why what requests pass through runs as Python; None where it runs as C.
    """

    uid: int
    open_files: tuple[int | None, int | None]
    locked_memory: int | None
    memory_bytes: int
    shared_memory: SharedMemory | None
    container: str = ""
    first_process: str = ""
    nvidia_devices: int = 0
    cuda_library: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
    not_compiled: Obstacle | None = None
    raises_limits: bool = False


@dataclass(frozen=True, slots=True)
class TensorFlow:
    """What a child process with TensorFlow in it says, or its installed files.

    Attributes:
        error: why it could not be imported, or nothing is known of it; empty where neither is so.
        cuda: the CUDA version it is built for, "12.5.1"; empty for a build without CUDA.
        capabilities: what its GPU kernels are compiled for: "sm_80", or "compute_90" with PTX as well.
        import_s: how long the import took.
        available_bytes: of memory, for us and our container; None where the kernel does not say.
        gpus: by UUID, why TensorFlow cannot use the GPU; empty where it can.
    """

    error: str = ""
    version: str = ""
    cuda: str = ""
    capabilities: tuple[str, ...] = ()
    import_s: float = 0.0
    available_bytes: int | None = None
    gpus: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Intent:
    """What is to be served, and what start makes of it.

    Attributes:
        gpus_wanted: a model would use GPUs where they are visible.
        mps: the plan's: "on", "off" or "simulated".
        slots: where the workers are planned, a line each.
        forked: whether workers share one TensorFlow.
        workers: how many there are.
        on_gpus: how many of them have a GPU.
        problems: what start would refuse.
        warnings: what start would warn of.
        without_mps: why workers on one GPU take turns; empty where they do not.
        fronts: where they would listen, "8500 on 127.0.0.1"; empty with both off.
        tls: what is known of the gRPC port's certificate; empty without TLS, or where it is no good.
        tls_warnings: of it.
        backings: where the weights that workers share are kept: "memfd", "shm", "file".
    """

    gpus_wanted: bool = True
    mps: str = "off"
    slots: Sequence[str] = ()
    forked: bool = True
    workers: int = 0
    on_gpus: int = 0
    problems: Sequence[Problem] = ()
    warnings: Sequence[str] = ()
    without_mps: str = ""
    fronts: str = ""
    tls: str = ""
    tls_warnings: Sequence[str] = ()
    backings: frozenset[str] = frozenset({"memfd"})


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything.

    Attributes:
        uses: the GPUs that workers are planned for; none for CPU slots.
        run_dir: the run folder.
        pool: the pid of the pool that runs there; 0 for none.
        mps_processes: every MPS daemon and server that can be seen.
        pipes: the devices whose pipe folders are not empty.
        mps_server: the path of nvidia-cuda-mps-server; empty where it is not found.
    """

    machine: Machine
    uses: Sequence[GpuUse]
    intent: Intent
    host: Host
    tensorflow: TensorFlow
    run_dir: str
    pool: int = 0
    mps_processes: Sequence[Running] = ()
    pipes: Sequence[str] = ()
    mps_server: str = ""


def gpu_uses(drafts: Sequence[Draft], machine: Machine) -> list[GpuUse]:
    """The GPUs that have a place, by index."""
    return [
        GpuUse(gpu, _state(gpu, machine.survey), workers, limit)
        for gpu, (workers, limit) in client_counts(drafts, machine).items()
    ]


def _state(gpu: GpuDevice, survey: Survey) -> GpuState | None:
    return next((state for state in survey.gpus if gpu.uuid in (state.uuid, *(state.mig or ()))), None)
