"""The worker's place: its CPUs, its GPU, its MPS daemon, and what TensorFlow may take of them."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mpspool.core import control, log
from mpspool.core.control import ControlError
from mpspool.core.rundir import RunDir
from mpspool.core.settings import SlotSettings, WorkerSettings

logger = log.get("device")

# TensorFlow then sees no GPU, and never makes a CUDA context.
NO_GPU = "-1"
# How long a pool process, or an MPS daemon, that is being started again may be away; and how long a daemon that
# answers may take to list a client that has a context: it may have to start its server first.
_POOL_S = 60.0
_LISTED_S = 10.0
_POLL_S = 0.1
_SILENT_POLL_S = 1.0

# Read when NumPy and TensorFlow are imported. NumPy multiplies nothing here; and what OpenBLAS's threads
# would cost is a process that cannot be forked.
AT_IMPORT: Mapping[str, str] = {"TF_CPP_MIN_LOG_LEVEL": "1", "OPENBLAS_NUM_THREADS": "1"}


class NotAttachedError(Exception):
    """The worker would run without MPS. The text names the daemon and the remedy."""


def prepare(settings: WorkerSettings) -> None:
    """Pins the process and sets its environment. Call before TensorFlow's runtime starts.

    Where it has not been imported yet, call it before NumPy is too: AT_IMPORT counts only then.

    The device is ours to say: CUDA_VISIBLE_DEVICES and CUDA_MPS_PIPE_DIRECTORY are overwritten.
    Everything else is a default that the caller's own environment wins over.
    """
    _pin(settings.slot)
    os.environ.update(placement(settings.slot))
    for name, value in defaults(settings).items():
        os.environ.setdefault(name, value)
    # Its notes on deprecated loaders are for us, not for who reads a worker's log.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)


def on_gpu(slot: SlotSettings) -> bool:
    """Whether there is a GPU behind it: none is behind a CPU slot and a stand-in."""
    return bool(slot.gpu_uuid) and not slot.simulated


def placement(slot: SlotSettings) -> Mapping[str, str]:
    """The environment that puts a process on its device, and on no other."""
    environment = {"CUDA_VISIBLE_DEVICES": slot.gpu_uuid if on_gpu(slot) else NO_GPU}
    if slot.mps_pipe:
        environment["CUDA_MPS_PIPE_DIRECTORY"] = slot.mps_pipe
    return environment


def defaults(settings: WorkerSettings) -> Mapping[str, str]:
    """The environment where the caller has not set it.

    With 0 intra- or inter-op threads, TensorFlow takes TF_NUM_INTRAOP_THREADS and
    TF_NUM_INTEROP_THREADS where the caller has set them, else as many as the process may run on.
    """
    chosen = dict(AT_IMPORT)
    # Custom ops that use OpenMP keep to the worker's share.
    threads = settings.model.intra_op_threads or len(settings.slot.cpus)
    if threads:
        chosen["OMP_NUM_THREADS"] = str(threads)
    if on_gpu(settings.slot):
        # Also where neither ConfigProto nor tf.config reaches: a memory limit's logical device.
        chosen["TF_FORCE_GPU_ALLOW_GROWTH"] = "true" if settings.model.gpu_memory_growth else "false"
    return chosen


def run_clock_ns(settings: WorkerSettings) -> Callable[[], int] | None:
    """By what it is found out whether two runs are sooner than one; None on a GPU, where larger runs cost less.

    Where one thread of the CPU runs the model that is its CPU time: the wall clock would also count how long other processes have
    had the CPU.
    """
    if on_gpu(settings.slot):
        return None
    one_thread = settings.model.intra_op_threads == 1 and settings.model.inter_op_threads <= 1
    return time.process_time_ns if one_thread else time.perf_counter_ns


def _pin(slot: SlotSettings) -> None:
    """All threads that are there already: sched_setaffinity alone moves the calling one."""
    if slot.simulated or not slot.cpus:
        return
    if absent := set(slot.cpus) - os.sched_getaffinity(0):
        logger.warning("not pinned", cpus=slot.cpus, not_available=sorted(absent))
        return
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(int(thread), slot.cpus)


def require_mps(settings: WorkerSettings) -> None:
    """Has the pool look whether our MPS daemon counts us among its clients: CUDA runs without MPS, and does not say so.

    Call once there is a CUDA context.

    Raises:
        NotAttachedError: it does not.
    """
    slot = settings.slot
    if not slot.mps_pipe:
        return
    pool = RunDir(Path(settings.run_dir)).pool_control
    end = time.monotonic() + _POOL_S
    denied, see = False, f"mpspool logs mps.{slot.device}"
    while (left_s := end - time.monotonic()) > 0:
        attached: bool | None = None
        with contextlib.suppress(ControlError):
            answer = control.call(pool, "attached", worker=settings.worker, timeout_s=left_s)
            attached, see = answer["attached"], answer.get("see", see)
            if never := answer.get("never"):
                raise NotAttachedError(f"{slot.device}: {never}")
        if attached:
            return
        if attached is False:
            denied = True
            end = min(end, time.monotonic() + _LISTED_S)
        time.sleep(_SILENT_POLL_S if attached is None else _POLL_S)
    found = "it is no client of"
    if not denied:
        found = f"nobody has said for {_POOL_S:g} s that it is a client of"
    raise NotAttachedError(
        f"{found} the MPS daemon of {slot.device} ({slot.mps_pipe}), and would run without MPS: "
        f"see {see}; mps: off runs without it"
    )


def session_config(settings: WorkerSettings) -> Any:
    """The tf.compat.v1.ConfigProto of this worker.

    A limit in bytes becomes a virtual device with that limit: it is exact and needs no knowledge
    of the device's size. TensorFlow refuses it together with a fraction, so the limit wins.
    """
    import tensorflow as tf  # prepare() comes first

    model = settings.model
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=model.intra_op_threads,
        inter_op_parallelism_threads=model.inter_op_threads,
        # A model exported with device names of another machine runs all the same.
        allow_soft_placement=True,
    )
    gpu = config.gpu_options
    gpu.allow_growth = model.gpu_memory_growth
    if model.gpu_memory_limit_bytes:
        gpu.experimental.virtual_devices.add().memory_limit_mb.append(_mib(model.gpu_memory_limit_bytes))
    else:
        gpu.per_process_gpu_memory_fraction = model.gpu_memory_fraction
    if model.merge_copy_streams:
        merged = gpu.experimental.stream_merge_options
        merged.merge_host_to_device_stream = True
        merged.merge_device_to_host_stream = True
        merged.merge_device_to_device_stream = True
    return config


def configure_eager(config: Any) -> None:
    """Gives the TF2 runtime what session_config() gives a Session. Call before anything runs in it."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(config.intra_op_parallelism_threads)
    tf.config.threading.set_inter_op_parallelism_threads(config.inter_op_parallelism_threads)
    tf.config.set_soft_device_placement(config.allow_soft_placement)
    if config.graph_options.rewrite_options.disable_meta_optimizer:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    for gpu in tf.config.list_physical_devices("GPU"):
        if limit_mib := _limit_mib(config.gpu_options):
            # TF_FORCE_GPU_ALLOW_GROWTH has it grow: tf.config takes one or the other.
            tf.config.set_logical_device_configuration(gpu, [tf.config.LogicalDeviceConfiguration(limit_mib)])
        else:
            tf.config.experimental.set_memory_growth(gpu, config.gpu_options.allow_growth)


def _limit_mib(options: Any) -> float:
    """tf.config knows no fraction: it is taken of the device's size. 0 for no limit."""
    for device in options.experimental.virtual_devices:
        return float(device.memory_limit_mb[0])
    fraction = options.per_process_gpu_memory_fraction
    return float(fraction * _mib(_visible_gpu_bytes())) if fraction else 0.0


def _visible_gpu_bytes() -> int:
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(os.environ["CUDA_VISIBLE_DEVICES"])
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    finally:
        pynvml.nvmlShutdown()


def _mib(size_bytes: int) -> float:
    return size_bytes / 2**20
