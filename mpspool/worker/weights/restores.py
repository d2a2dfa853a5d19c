"""What a SavedModel's restore op puts where: read off the graph, without running it. Pure.

TF1 savers restore at graph level: RestoreV2 -> Identity -> Assign or AssignVariableOp. TF2 exporters
call a function for it, whose arguments are the handles. Names say nothing here: a TF2 variable's node
and its checkpoint key have none in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from mpspool.worker.graph_names import node_name

RESOURCE_OPS = frozenset({"VarHandleOp"})
REF_OPS = frozenset({"Variable", "VariableV2"})
_ASSIGNS = frozenset({"Assign", "AssignVariableOp"})
_TABLE_IMPORT = "LookupTableImportV2"
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
# They change nothing; what else a restore op runs may.
_HARMLESS = (
    RESOURCE_OPS
    | REF_OPS
    | {
        "Const",
        "Identity",
        "NoOp",
        "Placeholder",
        "PlaceholderWithDefault",
        "RestoreV2",
    }
)
# So do the many kinds of tables, as long as nothing is put into them.
_TABLE = "HashTable"


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor of the checkpoint: its key, RestoreV2's shape_and_slice and TensorFlow's number of its type."""

    key: str
    spec: str
    dtype: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable and what it is restored from.

    Attributes:
        node: of the graph; it gives the handle, or the reference. Where several nodes do, one of them.
        op: one of RESOURCE_OPS or REF_OPS.
    """

    node: str
    op: str
    source: Source

    @property
    def is_ref(self) -> bool:
        return self.op in REF_OPS


@dataclass(frozen=True, slots=True)
class Table:
    """A table, by the node of its handle, and what its keys and values are restored from."""

    node: str
    keys: Source
    values: Source


@dataclass(frozen=True, slots=True)
class Restores:
    """What the restore op does.

    Attributes:
        unknown: what else it does, or may do, each in a few words. With none of them the variables and
            tables are all that it fills.
    """

    variables: tuple[Variable, ...]
    tables: tuple[Table, ...]
    unknown: tuple[str, ...]


def restores(meta_graph: Any) -> Restores:
    """Reads a MetaGraphDef's restore op. One without a restore op restores nothing."""
    found = _Found()
    name = meta_graph.saver_def.restore_op_name
    if name:
        graph = _Scope.of_graph(meta_graph.graph_def)
        if node_name(name) not in graph.nodes:
            return Restores((), (), (f"the graph has no node {name}",))
        found.read(graph, ancestors(graph.nodes, [name]))
    return Restores(tuple(found.variables.values()), tuple(found.tables.values()), tuple(found.unknown))


def identity(node: Any) -> tuple[str, str, str]:
    """Which variable a node of RESOURCE_OPS or REF_OPS gives: nodes with one identity give one variable.

    Returns:
        The kind ("ref" or "resource"; the two never meet), the container and the name in it.
    """
    kind = "ref" if node.op in REF_OPS else "resource"
    container, name = (node.attr[attribute].s.decode() for attribute in ("container", "shared_name"))
    # The kernels of reference variables go by their node where they have no other name; VarHandleOp's do not.
    return kind, container, name or (node.name if kind == "ref" else "")


def ancestors(nodes: Mapping[str, Any], names: Iterable[str]) -> set[str]:
    """The nodes of these names or tensors, and all that they depend on."""
    found: set[str] = set()
    left = [node_name(name) for name in names]
    while left:
        name = left.pop()
        if name in nodes and name not in found:
            found.add(name)
            left.extend(node_name(edge) for edge in nodes[name].input)
    return found


def written(nodes: Iterable[Any], names: Iterable[str]) -> dict[str, str]:
    """Which reference variables are the input of an op that may write to them: name -> that op's type.

    Args:
        nodes: the NodeDefs that are kept.
        names: of the variables' nodes.
    """
    variables = set(names)
    writers: dict[str, str] = {}
    for node in nodes:
        fed = variables.intersection(node_name(edge) for edge in node.input if not edge.startswith("^"))
        if fed and _takes_references(node.op):
            writers |= dict.fromkeys(fed, node.op)
    return writers


def _takes_references(op: str) -> bool:
    definition = op_def_registry.get(op)
    return definition is None or any(argument.is_ref for argument in definition.input_arg)


@dataclass(slots=True)
class _Scope:
    """The graph, or a function's body.

    Attributes:
        arguments: of the function: name -> the graph's node that it stands for, None where that is not
            known. None altogether for the graph.
    """

    nodes: dict[str, Any]
    functions: Mapping[str, Any]
    arguments: Mapping[str, str | None] | None = None
    _texts: dict[str, list[str] | None] = field(default_factory=dict)

    @classmethod
    def of_graph(cls, graph_def: Any) -> Self:
        functions = {function.signature.name: function for function in graph_def.library.function}
        return cls({node.name: node for node in graph_def.node}, functions)

    def of_call(self, call: Any) -> _Scope | None:
        """The body of the function that a node calls."""
        function = self.functions.get(call.attr["f"].func.name)
        if function is None:
            return None
        values = [self.target(edge) for edge in call.input if not edge.startswith("^")]
        names = [argument.name for argument in function.signature.input_arg]
        return _Scope(
            {node.name: node for node in function.node_def},
            self.functions,
            dict(zip(names, values, strict=False)),
        )

    def target(self, edge: str) -> str | None:
        """The graph's node that a handle or reference comes from."""
        name = node_name(edge)
        if self.arguments and name in self.arguments:
            return self.arguments[name]
        node = self.nodes.get(name)
        if node is None or node.op == "Identity":
            return self.target(node.input[0]) if node else None
        # A handle made within a function is no node of the graph.
        return name if self.arguments is None else None

    def source(self, edge: str) -> Source | None:
        """The tensor of the checkpoint that an edge carries, where it does so unchanged."""
        node = self.nodes.get(node_name(edge))
        while node is not None and node.op == "Identity":
            edge = node.input[0]
            node = self.nodes.get(node_name(edge))
        if node is None or node.op != "RestoreV2":
            return None
        keys, specs = (self._texts_of(tensor) for tensor in node.input[1:3])
        _, colon, position = edge.rpartition(":")
        index = int(position) if colon else 0
        if keys is None or specs is None:
            return None
        return Source(keys[index], specs[index], node.attr["dtypes"].list.type[index])

    def _texts_of(self, edge: str) -> list[str] | None:
        """A constant's strings. They are as many as there are variables, and read for each of them."""
        name = node_name(edge)
        if name not in self._texts:
            node = self.nodes.get(name)
            is_const = node is not None and node.op == "Const"
            self._texts[name] = _strings(node) if is_const else None
        return self._texts[name]


def _strings(const: Any) -> list[str]:
    return [text.decode() for text in tf.make_ndarray(const.attr["value"].tensor).reshape(-1).tolist()]


@dataclass(slots=True)
class _Found:
    """What was read; the variables by identity."""

    variables: dict[tuple[str, str, str], Variable] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    _graph: _Scope | None = None

    def read(self, scope: _Scope, names: Iterable[str]) -> None:
        """Takes down what the named nodes of a scope restore."""
        self._graph = self._graph or scope
        for name in sorted(names):
            node = scope.nodes[name]
            if node.op in _CALLS:
                body = scope.of_call(node)
                if body is None:
                    self.unknown.append(
                        f"it calls {node.attr['f'].func.name}, which the graph does not define"
                    )
                else:
                    self.read(body, body.nodes)
            elif not (
                self._assign(scope, node)
                or self._table(scope, node)
                or node.op in _HARMLESS
                or _TABLE in node.op
            ):
                self.unknown.append(f"its {node.op} {name}")

    def _assign(self, scope: _Scope, node: Any) -> bool:
        if node.op not in _ASSIGNS:
            return False
        target, source = scope.target(node.input[0]), scope.source(node.input[1])
        if target is None or source is None:
            return False
        assert self._graph is not None
        node = self._graph.nodes[target]
        if node.op not in RESOURCE_OPS | REF_OPS:
            return False
        # Of two values for one variable none can be taken for the right one.
        return self.variables.setdefault(identity(node), Variable(target, node.op, source)).source == source

    def _table(self, scope: _Scope, node: Any) -> bool:
        if node.op != _TABLE_IMPORT:
            return False
        target = scope.target(node.input[0])
        keys, values = (scope.source(edge) for edge in node.input[1:3])
        if target is None or keys is None or values is None or target in self.tables:
            return False
        self.tables[target] = Table(target, keys, values)
        return True
