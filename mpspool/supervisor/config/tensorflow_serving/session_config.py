"""TensorFlow's ConfigProto: what of it the workers of a model are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mpspool.supervisor.config.tensorflow_serving.told import Values

# What every worker has in any case, being a process of its own.
_ANYWAY = {
    "use_per_session_threads": "each worker is a process with threads of its own",
    "use_per_session_stream": "each worker is a process with streams of its own",
    "allow_soft_placement": "an operation without a kernel for the GPU runs on the CPU in any case",
}
_READ = ("intra_op_parallelism_threads", "inter_op_parallelism_threads", "gpu_options", "device_count")
_GPU_READ = ("per_process_gpu_memory_fraction", "allow_growth", "visible_device_list", "experimental")
_GPU_EXPERIMENTAL_READ = ("use_cuda_malloc_async", "stream_merge_options")


@dataclass(slots=True)
class Session:
    """What a ConfigProto comes to.

    Attributes:
        values: keys of a model.
        fraction: of each GPU's memory, for all that the server has there; 0 for no limit.
        notes: what has no equivalent, by field, and why.
    """

    values: Values = field(default_factory=dict)
    fraction: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def memory(self) -> Values:
        found: Values = self.values.setdefault("gpu_memory", {})
        return found


def read_session(config: Any) -> Session:
    """What this message, a ConfigProto, says of a model's workers."""
    told = Session()
    if (threads := config.intra_op_parallelism_threads) > 0:
        told.values["intra_op_threads"] = threads
    if threads := config.inter_op_parallelism_threads:
        told.values["inter_op_threads"] = max(
            threads, 1
        )  # below 0 the calling thread does it, as with 1 here
    if config.device_count.get("GPU", 1) == 0:
        told.values["gpus"] = "none"
    for kind in config.device_count:
        if (kind, config.device_count[kind]) != ("GPU", 0):
            told.notes.append(f"device_count of {kind}: gpus and cpu_slots say where workers are")
    _read_gpu(config.gpu_options, told)
    _note_others(config, _READ, "", told)
    return told


def _read_gpu(options: Any, told: Session) -> None:
    told.fraction = options.per_process_gpu_memory_fraction
    if options.allow_growth:
        told.memory["growth"] = True
    if devices := options.visible_device_list:
        told.values["gpus"] = [
            int(item) for item in devices.split(",") if item.strip().isdecimal()
        ] or devices
    more = options.experimental
    if more.use_cuda_malloc_async:
        told.memory["allocator"] = "cuda_malloc_async"
    merge = more.stream_merge_options
    if merge.merge_host_to_device_stream and merge.merge_device_to_host_stream:
        told.values["merge_copy_streams"] = True
    elif more.HasField("stream_merge_options"):
        told.notes.append("gpu_options.experimental.stream_merge_options: only both directions are merged")
    _note_others(options, _GPU_READ, "gpu_options.", told)
    _note_others(more, _GPU_EXPERIMENTAL_READ, "gpu_options.experimental.", told)


def _note_others(message: Any, read: tuple[str, ...], prefix: str, told: Session) -> None:
    for described, _ in message.ListFields():
        if described.name not in read:
            why = _ANYWAY.get(described.name, "has no equivalent here")
            told.notes.append(f"{prefix}{described.name}: {why}")
