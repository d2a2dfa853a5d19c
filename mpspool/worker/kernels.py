"""Which operations of a model have no GPU kernel, and so run on the CPU wherever the model runs.

TensorFlow's own registry says it: its wheel for x86-64 has the GPU kernels on a machine without a GPU too.
What lies around such an operation on the device is copied from it and back at every request.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry

from mpspool.worker.graph_names import node_name, tensor_names

# "DEFAULT" kernels run on every device, some of them on host memory.
_ON_GPU = frozenset(("GPU", "DEFAULT"))


@dataclass(frozen=True, slots=True)
class CpuOnly:
    """An operation with no GPU kernel, as a model uses it.

    Attributes:
        types: the type attributes that it is used with, "T=string"; empty where no type would have one.
        count: its nodes in all signatures, and in the functions that they call, each function once.
        example: the name of one of them.
    """

    op: str
    types: str
    count: int
    example: str


def cpu_only(meta_graph: Any, signatures: Iterable[Any]) -> list[CpuOnly] | None:
    """The operations that no GPU can run of those the signatures run, most frequent first.

    Args:
        meta_graph: a MetaGraphDef.
        signatures: SignatureDefs of it.

    Returns:
        None where this TensorFlow has no GPU kernels at all, so that its registry says nothing.
    """
    if not tf.test.is_built_with_gpu_support():
        return None
    registered = functools.cache(lambda op: tuple(kernels.get_registered_kernels_for_op(op).kernel))
    found: dict[tuple[str, str], list[str]] = {}
    for node in nodes_run(meta_graph.graph_def, signatures):
        on_gpu = [kernel for kernel in registered(node.op) if kernel.device_type in _ON_GPU]
        # Without any kernel it is a function's name, or the graph's own bookkeeping.
        if registered(node.op) and not any(_fits(kernel, node) for kernel in on_gpu):
            found.setdefault((node.op, _types(node) if on_gpu else ""), []).append(node.name)
    listed = [CpuOnly(op, types, len(names), names[0]) for (op, types), names in found.items()]
    return sorted(listed, key=lambda one: (-one.count, one.op, one.types))


def unregistered(meta_graph: Any, signatures: Iterable[Any]) -> list[str]:
    """The operations that TensorFlow does not know, by name: of the graph, which is loaded whole, and of the functions
    that the signatures call.
    """
    functions = {function.signature.name for function in meta_graph.graph_def.library.function}
    nodes = itertools.chain(meta_graph.graph_def.node, nodes_run(meta_graph.graph_def, signatures))
    ops = {node.op for node in nodes} - functions
    return sorted(op for op in ops if op_def_registry.get(op) is None)


def nodes_run(graph: Any, signatures: Iterable[Any]) -> Iterator[Any]:
    """Every node that is run for an output, those of called functions included, each once."""
    nodes = {node.name: node for node in graph.node}
    functions = {function.signature.name: function for function in graph.library.function}
    needed = {name for signature in signatures for name in _needed(nodes, signature)}
    found = [node for node in graph.node if node.name in needed]
    called: set[str] = set()
    for node in found:
        yield node
        for name in _callees(node):
            if name in functions and name not in called:
                called.add(name)
                found.extend(functions[name].node_def)  # the loop comes to these too


def _needed(nodes: Mapping[str, Any], signature: Any) -> set[str]:
    """The names of the nodes that one signature's outputs depend on, up to what it is fed."""
    seen = {node_name(name) for info in signature.inputs.values() for name in tensor_names(info)}
    fed = frozenset(seen)
    left = [node_name(name) for info in signature.outputs.values() for name in tensor_names(info)]
    while left:
        name = left.pop()
        if name not in seen and name in nodes:
            seen.add(name)
            left.extend(node_name(parent) for parent in nodes[name].input)
    return seen - fed


def _callees(node: Any) -> Iterator[str]:
    yield node.op  # TF1 calls a function by its name
    for value in node.attr.values():
        yield value.func.name
        yield from (function.name for function in value.list.func)


def _fits(kernel: Any, node: Any) -> bool:
    if kernel.label and ("_kernel" not in node.attr or node.attr["_kernel"].s.decode() != kernel.label):
        return False
    for constraint in kernel.constraint:
        value = _attribute(node, constraint.name)
        if value is None:
            return False
        used = value.list.type if value.WhichOneof("value") == "list" else [value.type]
        if not set(used) <= set(constraint.allowed_values.list.type):
            return False
    return True


def _attribute(node: Any, name: str) -> Any:
    """The node's attribute, or its operation's default, which exporters leave out; None for neither."""
    if name in node.attr:
        return node.attr[name]
    definition = op_def_registry.get(node.op)
    for attribute in definition.attr if definition else ():
        if attribute.name == name and attribute.HasField("default_value"):
            return attribute.default_value
    return None


def _types(node: Any) -> str:
    types = {name: value.type for name, value in node.attr.items() if value.WhichOneof("value") == "type"}
    return ", ".join(f"{name}={tf.dtypes.as_dtype(number).name}" for name, number in sorted(types.items()))
