"""TensorFlow's own buffers: the memory that its kernels read a variable from, as arrays, without a copy.

After a row was gathered from a variable TensorFlow reads it by copying it, until it is told not to. And as
long as one of these arrays lives it takes the variable for being read, and a gather would copy it for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from mpspool.worker.graph_names import node_name
from mpspool.worker.weights.rewriting import Nodes

# None for a variable that is not in host memory, or that cannot be asked.
Buffers = Sequence[np.ndarray[Any, Any] | None]


class Reads:
    """What reads the variables of a Session, in the order in which they were added."""

    def __init__(self) -> None:
        self._handles: list[str] = []
        self._reads: list[str] = []

    def add(self, nodes: Nodes, handle: str, dtype: int) -> None:
        """Adds the nodes for one variable, by the node of its handle."""
        aliasing = nodes.add("DisableCopyOnRead", handle, on_cpu=False)
        read = nodes.add("ReadVariableOp", handle, f"^{aliasing}", on_cpu=False, dtype=dtype)
        self._handles.append(f"{handle}:0")
        self._reads.append(f"{read}:0")

    def of(self, session: Any) -> Callable[[], Buffers]:
        """What gives the buffers, in a Session that has these nodes and in which the variables are filled."""
        here = _in_host_memory(session, self._handles)
        asked = [read for read, is_here in zip(self._reads, here, strict=True) if is_here]
        try:
            # Private, and what it fetches is no copy.
            make = session._make_callable_from_options  # noqa: SLF001
        except AttributeError:
            return lambda: [None] * len(here)
        run: Callable[[], list[Any]] = make(config_pb2.CallableOptions(fetch=asked)) if asked else list

        def buffers() -> Buffers:
            fetched = iter(run())
            return [np.asarray(next(fetched)) if is_here else None for is_here in here]

        return buffers


def of_eager(variables: Iterable[Any]) -> Buffers:
    """The buffers of tf.Variables."""
    return [_of_eager(variable) for variable in variables]


def _of_eager(variable: Any) -> np.ndarray[Any, Any] | None:
    if not _is_cpu(variable.device):
        return None
    tf.raw_ops.DisableCopyOnRead(resource=variable.handle)
    return np.asarray(tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype))


def _in_host_memory(session: Any, handles: Sequence[str]) -> list[bool]:
    """Which variables are, by their handles. On a device of its own there is nothing to share but the upload."""
    if all(device.device_type == "CPU" for device in session.list_devices()):
        return [True] * len(handles)
    placed = config_pb2.RunMetadata()
    session.run(handles, options=config_pb2.RunOptions(output_partition_graphs=True), run_metadata=placed)
    devices = {node.name: node.device for graph in placed.partition_graphs for node in graph.node}
    return [_is_cpu(devices.get(node_name(handle), "")) for handle in handles]


def _is_cpu(device: str) -> bool:
    return str(tf.DeviceSpec.from_string(device).device_type) == "CPU"
