"""Changes to a model's graph before it is made: what is not served is left out, our own nodes are added."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

_COLOCATION = b"loc:@"
DT_INT64 = 9


def pruned(whole: Any, nodes: Iterable[Any], handles: Handles) -> Any:
    """Of a GraphDef one of these nodes only, the replaced variables' reads in place of the variables."""
    graph_def = graph_pb2.GraphDef(versions=whole.versions, library=whole.library)
    for node in nodes:
        if node.name in handles.replaced:
            graph_def.node.extend(handles.replacement(node))
        else:
            graph_def.node.add().CopyFrom(node)
    kept = {node.name for node in graph_def.node}
    for node in graph_def.node:
        _drop_colocations(node, kept)
    return graph_def


def _drop_colocations(node: Any, kept: set[str]) -> None:
    """Those with nodes that are no more. Colocation says where a node runs, and not what it computes."""
    if "_class" not in node.attr:
        return
    groups = node.attr["_class"].list.s
    left = [name for name in groups if name.removeprefix(_COLOCATION).decode() in kept]
    del node.attr["_class"]
    if left:
        node.attr["_class"].list.s.extend(left)


class Handles:
    """Resource variables in place of reference variables.

    Args:
        nodes: of the graph.
        replaced: the reference variables' nodes: name -> which of the nodes that give the same variable
            stands for it. Each becomes the read of its new variable, so that whoever read the one now reads
            the other.
    """

    def __init__(self, nodes: Mapping[str, Any], replaced: Mapping[str, str]) -> None:
        self.replaced = replaced
        self._taken = {*nodes, *(node.attr["shared_name"].s.decode() for node in nodes.values())}

    def name(self, node: str) -> str:
        """The node that gives a variable's handle."""
        if node not in self.replaced:
            return node
        name = f"{self.replaced[node]}/shared"
        while name in self._taken:
            name += "_"
        return name

    def replacement(self, node: Any) -> Iterator[Any]:
        """The nodes in place of a reference variable's."""
        name = self.name(node.name)
        if self.replaced[node.name] == node.name:
            handle = node_def_pb2.NodeDef(name=name, op="VarHandleOp", device=node.device)
            handle.attr["dtype"].CopyFrom(node.attr["dtype"])
            handle.attr["shape"].CopyFrom(node.attr["shape"])
            handle.attr["shared_name"].s = name.encode()
            yield handle
        read = node_def_pb2.NodeDef(name=node.name, op="ReadVariableOp", device=node.device)
        read.input.append(name)
        read.attr["dtype"].CopyFrom(node.attr["dtype"])
        yield read


class Nodes:
    """Adds nodes of our own to a GraphDef."""

    def __init__(self, graph_def: Any) -> None:
        self._graph_def = graph_def
        self._constants: dict[tuple[int, ...], str] = {}
        self._scope = "shared_weights"
        while any(node.name.startswith(self._scope) for node in graph_def.node):
            self._scope += "_"

    def add(self, op: str, *inputs: str, on_cpu: bool = True, **types: int) -> str:
        """Adds a node and returns its name. The types are attributes."""
        name = f"{self._scope}/{len(self._graph_def.node)}"
        device = "/device:CPU:0" if on_cpu else ""
        node = self._graph_def.node.add(name=name, op=op, input=inputs, device=device)
        for attribute, dtype in types.items():
            node.attr[attribute].type = dtype
        return name

    def constant(self, numbers: tuple[int, ...]) -> str:
        """The name of a node that gives a vector of them."""
        if numbers not in self._constants:
            name = self.add("Const", dtype=DT_INT64)
            value = tf.make_tensor_proto(numbers, tf.int64, [len(numbers)])
            self._graph_def.node[-1].attr["value"].tensor.CopyFrom(value)
            self._constants[numbers] = name
        return self._constants[numbers]

    def owned_slice(self, fed: str, count: int, dtype: int) -> str:
        """What gives the first elements of a vector, where their size is a multiple of what TensorFlow aligns to."""
        return self.add("Slice", fed, self.constant((0,)), self.constant((count,)), T=dtype, Index=DT_INT64)

    def owned_rows(self, matrices: Sequence[tuple[str, int, int]]) -> list[str]:
        """What gives the one row of each matrix, of whatever size: together they are one element of a data set.

        That keeps a thread for as long as the Session lives: so it is one for all of them.

        Args:
            matrices: what gives each, how many elements its row has, and their type.
        """
        if not matrices:
            return []
        data = self.add("TensorSliceDataset", *(fed for fed, _, _ in matrices))
        self._describe("Toutput_types", matrices)
        rows = self.add("DatasetToSingleElement", data)
        self._describe("output_types", matrices)
        return [f"{rows}:{number}" for number in range(len(matrices))]

    def _describe(self, types: str, vectors: Sequence[tuple[str, int, int]]) -> None:
        """Says of the last node that its outputs, or its elements, are vectors of these sizes and types."""
        attributes = self._graph_def.node[-1].attr
        for _, count, dtype in vectors:
            attributes[types].list.type.append(dtype)
            attributes["output_shapes"].list.shape.add().dim.add(size=count)
