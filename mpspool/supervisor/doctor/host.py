"""Judges the machine around the GPUs: its limits, its memory, and the container."""

from __future__ import annotations

from mpspool.supervisor.cpus import Topology
from mpspool.supervisor.doctor.facts import Facts, Host, Intent, SharedMemory, TensorFlow
from mpspool.supervisor.doctor.finding import Finding, Status
from mpspool.supervisor.number_words import counted

# What supervisord asks for (supervisor/programs.py), and what NVIDIA advises under MPS.
_LEAST_OPEN_FILES = 1024
_MPS_OPEN_FILES = 16384
_LEAST_LOCKED_BYTES = 8 * 2**20
_LEAST_SHARED_BYTES = 16 * 2**20
_SHM_BACKING_BYTES = 2**30
# A worker that imports TensorFlow itself, and one that is forked after the import.
_EXEC_BYTES = 500 * 10**6
_FORK_BYTES = 30 * 10**6
# And what CUDA has in host memory for each that has a GPU: of the 440 to 490 MB of an exec'd one on an H200, what is not
# TensorFlow's import.
_CUDA_BYTES = 270 * 10**6
SHM = "/dev/shm"  # noqa: S108 - looked at, not written
CUDA_LIBRARY = "libcuda.so.1"
_GIB, _MIB = 2**30, 2**20
_PLUGINS_ROOT = "/mps/"
_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"


def compiled(host: Host) -> Finding:
    """Slower, and as good, without."""
    if host.not_compiled is None:
        return Finding("compiled", Status.OK, "what requests pass through is compiled")
    reason, remedy = host.not_compiled
    text = f"what requests pass through runs as Python, which answers fewer of them: {reason}"
    return Finding("compiled", Status.WARNING, text, remedy)


def cpus(topology: Topology) -> Finding:
    """What there is to run on."""
    nodes = len({cpu.node for cpu in topology.cpus})
    text = f"{counted(len(topology.cpus), 'CPU')}, {counted(topology.cores, 'core')}, {counted(nodes, 'NUMA node')}"
    quota = "no CPU quota" if topology.quota is None else f"a CPU quota of {topology.quota:g}"
    return Finding("cpus", Status.OK, f"{text}, {quota}", simulated=topology.simulated)


def memory(intent: Intent, host: Host, tensorflow: TensorFlow) -> Finding:
    """Does TensorFlow fit in, as often as it is there? The models' own needs are not known."""
    if tensorflow.available_bytes is None:
        return Finding("memory", Status.OK, "how much is available is not known")
    workers = intent.workers
    forked = _EXEC_BYTES + workers * _FORK_BYTES + intent.on_gpus * _CUDA_BYTES
    needed = forked if intent.forked else workers * _EXEC_BYTES
    text = (
        f"{_size(tensorflow.available_bytes)} of {_size(host.memory_bytes)} available;"
        f" {counted(workers, 'worker')} without the models: about {_size(needed)}"
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
        if intent.mps == "on":
            return Finding(
                "shared_memory", Status.ERROR, f"{text}, where MPS meets its clients", "mount a tmpfs there"
            )
        if "shm" in intent.backings:
            remedy = "mount a tmpfs there, or set weights.backing: memfd"
            return Finding("shared_memory", Status.ERROR, f"{text}, and weights.backing is shm", remedy)
        return Finding("shared_memory", Status.WARNING, text, "mount a tmpfs there")
    text = f"{SHM} is a {shm.kind} of {_size(shm.size)}, {_size(shm.free)} free"
    if whose := _is_the_plugins(shm, host):
        remedy = "give the pod an emptyDir with medium: Memory at /dev/shm, and a GPU without sharing.mps"
        return Finding("shared_memory", Status.WARNING, f"{text}; {whose}", remedy)
    if "shm" in intent.backings and shm.free < _SHM_BACKING_BYTES:
        remedy = "backing: memfd does not need it; or docker run --shm-size, an emptyDir with medium: Memory"
        return Finding("shared_memory", Status.WARNING, f"{text}, for weights with backing: shm", remedy)
    if intent.mps == "on" and shm.free < _LEAST_SHARED_BYTES:
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
    # supervisord raises the limit as far as the hard one allows, and that one, too, where it may.
    if hard is not None and hard < _LEAST_OPEN_FILES and not host.raises_limits:
        text = f"at most {hard} files may be open (ulimit -Hn), and supervisord needs {_LEAST_OPEN_FILES}"
        return Finding("open_files", Status.ERROR, text, _more_open_files(_LEAST_OPEN_FILES))
    if intent.mps == "on" and limit is not None and limit < _MPS_OPEN_FILES:
        text += f", and NVIDIA advises {_MPS_OPEN_FILES} under MPS"
        if hard is None or hard >= _MPS_OPEN_FILES:
            return Finding("open_files", Status.WARNING, text, f"ulimit -n {_MPS_OPEN_FILES}, before start")
        return Finding("open_files", Status.WARNING, text, _more_open_files(_MPS_OPEN_FILES))
    return Finding("open_files", Status.OK, text)


def _more_open_files(count: int) -> str:
    """How to raise the hard limit."""
    return f"LimitNOFILE={count} in a unit, docker run --ulimit nofile={count}, or /etc/security/limits.conf"


def container(facts: Facts) -> Finding:
    """Where we run, and what of the host MPS needs there."""
    host, joined = facts.host, facts.machine.external
    if not host.container:
        return Finding("container", Status.OK, "none")
    text = f"{host.container}, PID 1 is {host.first_process}"
    if facts.intent.mps == "off":
        return Finding("container", Status.OK, text)
    if joined is None:
        text += "; MPS runs inside, so that nothing of the host's (IPC, PIDs) is needed"
        return Finding("container", Status.OK, text)
    text += f"; the MPS daemon on {joined.pipe_dir} is not ours, and its IPC and pid namespaces"
    if joined.near is False:
        remedy = (
            "in a pod hostIPC: true and hostPID: true (deploy/host-mps.yaml), docker run --ipc=host --pid=host;"
            " or mps: {mode: own}, which needs neither"
        )
        return Finding("container", Status.WARNING, f"{text} have to be: they are not", remedy)
    needed = "have to be (hostIPC and hostPID in a pod): whether they are cannot be seen"
    return Finding("container", Status.OK, f"{text} {'are' if joined.near else needed}")


def driver_capabilities(host: Host, gpus_used: bool) -> list[Finding]:
    """Whether a container was given the driver's compute part: by what was asked for, and by what came."""
    given = host.environ.get(_CAPABILITIES, "") if host.container else ""
    parts = {part.strip() for part in given.split(",")}
    missing = sorted({"compute", "utility"} - parts)
    if not given or "all" in parts or not missing:
        return []
    without_cuda = "compute" in missing and not host.cuda_library
    status = Status.ERROR if gpus_used and without_cuda else Status.WARNING
    text = f"{_CAPABILITIES}={given} lacks {' and '.join(missing)}"
    text += f", and there is no {CUDA_LIBRARY}" if without_cuda else ""
    remedy = f"{_CAPABILITIES}=compute,utility: CUDA and MPS are in compute, NVML is in utility"
    return [Finding("driver_capabilities", status, text, remedy)]


def _size(count: int) -> str:
    if count >= _GIB:
        return f"{count / _GIB:.1f} GiB"
    return f"{count / _MIB:.0f} MiB" if count >= _MIB else f"{count // 1024} KiB"
