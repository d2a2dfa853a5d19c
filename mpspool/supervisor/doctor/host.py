"""Judges the machine around the GPUs: its limits, its memory, and the container."""

from __future__ import annotations

from mpspool.supervisor.cpus import Topology
from mpspool.supervisor.doctor.facts import Host, Intent, SharedMemory, TensorFlow
from mpspool.supervisor.doctor.finding import Finding, Status

# What supervisord asks for (supervisor/programs.py), and what NVIDIA advises under MPS.
LEAST_OPEN_FILES = 1024
_MPS_OPEN_FILES = 16384
_LEAST_LOCKED_BYTES = 8 * 2**20
_LEAST_SHARED_BYTES = 16 * 2**20
_SHM_BACKING_BYTES = 2**30
# A worker that imports TensorFlow itself, and one that is forked after the import.
_EXEC_BYTES = 500 * 10**6
_FORK_BYTES = 30 * 10**6
SHM = "/dev/shm"  # noqa: S108 - looked at, not written
_GIB, _MIB = 2**30, 2**20
_PLUGINS_ROOT = "/mps/"
_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"


def cpus(topology: Topology) -> Finding:
    """What there is to run on."""
    nodes = len({cpu.node for cpu in topology.cpus})
    text = (
        f"{_count(len(topology.cpus), 'CPU')}, {_count(topology.cores, 'core')}, {_count(nodes, 'NUMA node')}"
    )
    quota = "no CPU quota" if topology.quota is None else f"a CPU quota of {topology.quota:g}"
    return Finding("cpus", Status.OK, f"{text}, {quota}", simulated=topology.simulated)


def memory(intent: Intent, host: Host, tensorflow: TensorFlow) -> Finding:
    """Does TensorFlow fit in, as often as it is there? The models' own needs are not known."""
    if tensorflow.available_bytes is None:
        return Finding("memory", Status.OK, "how much is available is not known")
    workers = intent.workers
    needed = _EXEC_BYTES + workers * _FORK_BYTES if intent.forked else workers * _EXEC_BYTES
    text = (
        f"{_size(tensorflow.available_bytes)} of {_size(host.memory_bytes)} available;"
        f" {_count(workers, 'worker')} without the models: about {_size(needed)}"
    )
    if tensorflow.available_bytes < needed:
        return Finding(
            "memory", Status.WARNING, text, "ask for fewer workers, or give the container more memory"
        )
    return Finding("memory", Status.OK, text)


def shared_memory(intent: Intent, host: Host) -> Finding:
    """MPS meets its clients in /dev/shm; weights lie there with backing: shm alone."""
    shm = host.shared_memory
    if shm is None or not shm.writable:
        text = f"{SHM} is not {'there' if shm is None else 'writable'}"
        status = Status.WARNING if intent.mps == "off" and "shm" not in intent.backings else Status.ERROR
        return Finding("shared_memory", status, text, "mount a tmpfs there")
    text = f"{SHM} is a {shm.kind} of {_size(shm.size)}, {_size(shm.free)} free"
    if whose := _is_the_plugins(shm, host):
        remedy = "give the pod an emptyDir with medium: Memory at /dev/shm, and a GPU without sharing.mps"
        return Finding("shared_memory", Status.WARNING, f"{text}; {whose}", remedy)
    if "shm" in intent.backings and shm.free < _SHM_BACKING_BYTES:
        remedy = "backing: memfd does not need it; or docker run --shm-size, an emptyDir with medium: Memory"
        return Finding("shared_memory", Status.WARNING, f"{text}, for weights with backing: shm", remedy)
    if intent.mps != "off" and shm.free < _LEAST_SHARED_BYTES:
        return Finding("shared_memory", Status.WARNING, f"{text}, and MPS needs some", "free some of it")
    return Finding("shared_memory", Status.OK, text)


def _is_the_plugins(shm: SharedMemory, host: Host) -> str:
    """What speaks for NVIDIA's device plugin having put its own there, which all MPS pods of a node share."""
    half = host.memory_bytes / 2
    if by_device_plugin(host):
        return "the device plugin's, which every MPS pod of the node shares"
    if host.container and shm.source == "shm" and half > 0 and abs(shm.size - half) < half / 20:
        return (
            "with half of the machine's memory it is probably the device plugin's, which its MPS pods share"
        )
    return ""


def by_device_plugin(host: Host) -> bool:
    """NVIDIA's device plugin has given us a part of a GPU under its own MPS daemon: it says where that is."""
    return host.environ.get("CUDA_MPS_PIPE_DIRECTORY", "").startswith(_PLUGINS_ROOT)


def locked_memory(host: Host) -> Finding:
    """The driver pins host memory by itself; libraries beside it may want to lock some."""
    if host.locked_memory is None or host.locked_memory >= _LEAST_LOCKED_BYTES:
        limit = "unlimited" if host.locked_memory is None else f"at most {_size(host.locked_memory)}"
        return Finding("locked_memory", Status.OK, f"locked memory (ulimit -l): {limit}")
    text = f"locked memory (ulimit -l): at most {_size(host.locked_memory)}"
    remedy = "ulimit -l unlimited; LimitMEMLOCK=infinity in a unit; docker run --ulimit memlock=-1"
    return Finding("locked_memory", Status.WARNING, text, remedy)


def open_files(intent: Intent, host: Host) -> Finding:
    """Enough descriptors for supervisord, and for MPS."""
    limit, hard = host.open_files
    text = f"open files (ulimit -n): {'unlimited' if limit is None else f'at most {limit}'}"
    if too_few_open_files(hard, host.uid):
        evidence = f"{text}, and supervisord needs {LEAST_OPEN_FILES}"
        return Finding("open_files", Status.ERROR, evidence, more_open_files(LEAST_OPEN_FILES))
    if intent.mps not in ("off", "simulated") and limit is not None and limit < _MPS_OPEN_FILES:
        text += f", and NVIDIA advises {_MPS_OPEN_FILES} under MPS"
        if hard is None or hard >= _MPS_OPEN_FILES:
            return Finding("open_files", Status.WARNING, text, f"ulimit -n {_MPS_OPEN_FILES}, before start")
        return Finding("open_files", Status.WARNING, text, more_open_files(_MPS_OPEN_FILES))
    return Finding("open_files", Status.OK, text)


def too_few_open_files(hard: int | None, uid: int) -> bool:
    """Whether supervisord would not start: it raises the limit as far as `hard` allows, and root that one too."""
    return hard is not None and hard < LEAST_OPEN_FILES and uid != 0


def more_open_files(count: int) -> str:
    """How to raise the hard limit."""
    return f"LimitNOFILE={count} in a unit, docker run --ulimit nofile={count}, or /etc/security/limits.conf"


def container(host: Host, gpus_used: bool) -> list[Finding]:
    """Where we run, and whether a container was given the driver's compute part."""
    if not host.container:
        return [Finding("container", Status.OK, "none")]
    text = (
        f"{host.container}, PID 1 is {host.first_process}; MPS runs inside, so that nothing of the host's"
        " (IPC, PIDs) is needed"
    )
    findings = [Finding("container", Status.OK, text)]
    given = host.environ.get(_CAPABILITIES, "")
    parts = {part.strip() for part in given.split(",")}
    if given and "all" not in parts and (missing := sorted({"compute", "utility"} - parts)):
        status = Status.ERROR if gpus_used else Status.WARNING
        remedy = f"{_CAPABILITIES}=compute,utility: CUDA and MPS are in compute, NVML is in utility"
        text = f"{_CAPABILITIES}={given} lacks {' and '.join(missing)}"
        findings.append(Finding("driver_capabilities", status, text, remedy))
    return findings


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _size(count: int) -> str:
    if count >= _GIB:
        return f"{count / _GIB:.1f} GiB"
    return f"{count / _MIB:.0f} MiB" if count >= _MIB else f"{count // 1024} KiB"
