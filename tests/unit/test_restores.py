"""What a restore op does, read off small graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from mpspool.worker.weights.restores import (
    Source,
    Table,
    Variable,
    ancestors,
    identity,
    restores,
    written,
)

v1 = tf.compat.v1
DT_FLOAT, DT_INT64 = 1, 9


@pytest.fixture
def graph() -> Iterator[Any]:
    with tf.Graph().as_default() as graph:
        yield graph


def exported(graph: Any, saver: Any) -> Any:
    return v1.train.export_meta_graph(graph=graph, saver_def=saver.as_saver_def())


def node(meta_graph: Any, name: str) -> Any:
    return next(node for node in meta_graph.graph_def.node if node.name == name)


def test_tf1(graph: Any) -> None:
    """Reference and resource variables are found by their nodes, under whichever key."""
    a = v1.get_variable("a", [2], use_resource=False)
    b = v1.get_variable("b", [3], tf.int64, use_resource=True, initializer=v1.zeros_initializer())
    found = restores(exported(graph, v1.train.Saver({"x/a": a, "x/b": b})))
    assert set(found.variables) == {
        Variable("a", "VariableV2", Source("x/a", "", DT_FLOAT)),
        Variable("b", "VarHandleOp", Source("x/b", "", DT_INT64)),
    }
    assert {variable.node: variable.is_ref for variable in found.variables} == {"a": True, "b": False}
    assert (found.tables, found.unknown) == ((), ())


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("sharded", [False, True])
def test_slices(graph: Any, resource: bool, sharded: bool) -> None:
    """The parts of a partitioned variable are slices of one key."""
    partitioner = v1.fixed_size_partitioner(2)
    v1.get_variable("table", [5, 4], partitioner=partitioner, use_resource=resource)
    found = restores(exported(graph, v1.train.Saver(sharded=sharded)))
    assert [(variable.node, variable.source.key, variable.source.spec) for variable in found.variables] == [
        ("table/part_0", "table", "5 4 0,3:0,4"),
        ("table/part_1", "table", "5 4 3,2:0,4"),
    ]
    assert not found.unknown


def test_nothing_to_restore(graph: Any) -> None:
    """A graph without a saver restores nothing."""
    tf.constant(1)
    found = restores(v1.train.export_meta_graph(graph=graph))
    assert (found.variables, found.tables, found.unknown) == ((), (), ())


def test_restore_op_that_is_not_there(graph: Any) -> None:
    """A saver that names a node that the graph lacks is not understood."""
    v1.get_variable("a", [2])
    meta_graph = exported(graph, v1.train.Saver())
    meta_graph.saver_def.restore_op_name = "gone"
    assert restores(meta_graph).unknown == ("the graph has no node gone",)


def test_value_that_is_computed(graph: Any) -> None:
    """A value that is changed between the checkpoint and the variable is not understood."""
    v1.get_variable("a", [2], use_resource=True)
    meta_graph = exported(graph, v1.train.Saver())
    assign = next(node for node in meta_graph.graph_def.node if node.name == "save/AssignVariableOp")
    source = assign.input[1]
    doubled = meta_graph.graph_def.node.add(name="doubled", op="AddV2", input=[source, source])
    doubled.attr["T"].type = DT_FLOAT
    assign.input[1] = "doubled"
    found = restores(meta_graph)
    assert not found.variables
    assert set(found.unknown) == {"its AddV2 doubled", "its AssignVariableOp save/AssignVariableOp"}


@pytest.mark.parametrize(("key", "unknown"), [("one", 0), ("two", 1)])
def test_variable_restored_twice(graph: Any, key: str, unknown: int) -> None:
    """Of two values for one variable none is taken for the right one; one value twice is one value."""
    a = v1.get_variable("a", [2], use_resource=True)
    b = v1.get_variable("b", [2], use_resource=True)
    meta_graph = exported(graph, v1.train.Saver({"one": a, "two": b}))
    by_target = {item.input[0]: item for item in meta_graph.graph_def.node if item.op == "AssignVariableOp"}
    first, other = by_target["a"], by_target["b"]
    second = meta_graph.graph_def.node.add()
    second.CopyFrom(first if key == "one" else other)
    second.name, second.input[0] = "again", "a"
    node(meta_graph, meta_graph.saver_def.restore_op_name).input.append("^again")
    found = restores(meta_graph)
    assert len(found.unknown) == unknown
    assert len(found.variables) == 2


def test_nodes_of_one_variable(graph: Any) -> None:
    """A reference variable goes by its shared name or else its node, a resource variable by its shared name only."""

    def reference(name: str, shared_name: str = "", container: str = "") -> Any:
        made = tf.raw_ops.VariableV2(
            shape=[2], dtype=tf.float32, name=name, shared_name=shared_name, container=container
        )
        return identity(made.op.node_def)

    def resource(name: str, shared_name: str = "") -> Any:
        made = tf.raw_ops.VarHandleOp(shape=[2], dtype=tf.float32, name=name, shared_name=shared_name)
        return identity(made.op.node_def)

    assert reference("a", "one") == reference("b", "one") == reference("one")
    assert reference("c", "one") != reference("d", "one", "other")
    assert reference("e") != reference("f")
    assert resource("g", "one") == resource("h", "one") != resource("one_")
    assert resource("i", "one") != reference("j", "one")
    assert resource("k") == resource("l")


def function_restore(*, table: bool = False) -> Any:
    """A MetaGraphDef whose restore op is a function of a function, as of a TF2 exporter."""
    with tf.Graph().as_default() as graph:
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2], name="handle")
        lookup = tf.raw_ops.MutableHashTableV2(key_dtype=tf.string, value_dtype=tf.float32, name="lookup")

        @tf.function
        def inner(path: Any, target: Any, words: Any) -> None:
            types = [tf.string, tf.float32, tf.float32]
            tensors = tf.raw_ops.RestoreV2(
                prefix=path, tensor_names=["k", "v", "a"], shape_and_slices=["", "", ""], dtypes=types
            )
            tf.raw_ops.AssignVariableOp(resource=target, value=tf.identity(tensors[2]))
            if table:
                tf.raw_ops.LookupTableImportV2(table_handle=words, keys=tensors[0], values=tensors[1])

        @tf.function
        def outer(path: Any, words: Any, target: Any) -> Any:
            inner(path, target, words)
            return tf.identity(path)

        path = v1.placeholder(tf.string, [], name="path")
        done = outer(path, lookup, handle)
        meta_graph = v1.train.export_meta_graph(graph=graph)
        meta_graph.saver_def.restore_op_name = done.op.name
        return meta_graph


def test_tf2() -> None:
    """Handles are followed through the arguments of functions, nested ones too; tables are found with them."""
    found = restores(function_restore(table=True))
    assert found.variables == (Variable("handle", "VarHandleOp", Source("a", "", DT_FLOAT)),)
    assert [(table.node, table.keys.key, table.values.key) for table in found.tables] == [
        ("lookup", "k", "v")
    ]
    assert isinstance(found.tables[0], Table)
    assert not found.unknown


def test_function_that_is_not_there() -> None:
    """A call of a function that the graph does not define is not understood."""
    meta_graph = function_restore()
    del meta_graph.graph_def.library.function[:]
    (reason,) = restores(meta_graph).unknown
    assert "which the graph does not define" in reason


def test_written(graph: Any) -> None:
    """Ops that take a reference may write to it; those that take its value do not."""
    a, b = (v1.get_variable(name, [2], use_resource=False) for name in "ab")
    v1.assign_add(a, b)
    nodes = graph.as_graph_def().node
    assert written(nodes, ["b"]) == {"b": "Assign"}
    served = [node for node in nodes if not node.name.endswith("/Assign")]
    assert written(served, ["a", "b"]) == {"a": "AssignAdd"}
    served[-1].op = "NeverHeardOf"
    assert written(served, ["a"]) == {"a": "NeverHeardOf"}


def test_ancestors(graph: Any) -> None:
    """Inputs and control inputs count, and what is only after a node does not."""
    a = tf.constant(1, name="a")
    with tf.control_dependencies([tf.constant(2, name="b")]):
        c = tf.identity(a, name="c")
    tf.identity(c, name="d")
    nodes = {node.name: node for node in graph.as_graph_def().node}
    assert ancestors(nodes, ["c:0"]) == {"a", "b", "c"}
