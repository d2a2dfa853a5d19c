"""Which operations have no GPU kernel, on graphs made by hand."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2, node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from mpspool.worker import kernels
from mpspool.worker.batch_function import BatchFunction, batch_functions, stop_waiting
from mpspool.worker.kernels import CpuOnly, cpu_only, unregistered

FLOAT, STRING = 1, 7


def node(name: str, op: str, *inputs: str, calls: str = "", **types: int) -> Any:
    made = node_def_pb2.NodeDef(name=name, op=op, input=inputs)
    for attribute, number in types.items():
        made.attr[attribute].type = number
    if calls:
        made.attr["f"].func.name = calls
    return made


def function(name: str, *nodes: Any) -> Any:
    made = function_pb2.FunctionDef(node_def=nodes)
    made.signature.name = name
    return made


def graph(*nodes: Any, functions: tuple[Any, ...] = ()) -> Any:
    made = meta_graph_pb2.MetaGraphDef()
    made.graph_def.node.extend(nodes)
    made.graph_def.library.function.extend(functions)
    return made


def signature(*outputs: str, inputs: tuple[str, ...] = ()) -> Any:
    made = meta_graph_pb2.SignatureDef()
    for name in inputs:
        made.inputs[name].name = f"{name}:0"
    for name in outputs:
        made.outputs[name].name = f"{name}:0"
    return made


def test_an_operation_for_the_cpu_alone_is_found() -> None:
    """Without types, as no type would have a GPU kernel; the most frequent comes first."""
    words = [node("word", "Placeholder", dtype=STRING), node("upper", "StringUpper", "word")]
    hashes = [node(f"hash{i}", "StringToHashBucketFast", "upper:0") for i in range(2)]
    assert cpu_only(graph(*words, *hashes), [signature("hash0"), signature("hash1")]) == [
        CpuOnly("StringToHashBucketFast", "", 2, "hash0"),
        CpuOnly("StringUpper", "", 1, "upper"),
    ]


def test_the_types_decide_where_some_have_a_kernel() -> None:
    """Tile runs on a GPU for floats, not for strings; an attribute that is left out has its default."""
    nodes = [node("floats", "Tile", "x", T=FLOAT), node("words", "Tile", "y", T=STRING)]
    found = cpu_only(graph(*nodes), [signature("floats", "words")])
    assert found == [CpuOnly("Tile", "T=string", 1, "words")]


def test_a_kernel_for_every_device_is_one_for_a_gpu() -> None:
    """Unique for strings: it runs where its neighbours do, on what is in host memory anyway."""
    assert cpu_only(graph(node("words", "Unique", "x", T=STRING)), [signature("words")]) == []


@pytest.mark.parametrize(
    "call",
    [node("call", "PartitionedCall", calls="outer"), node("call", "outer")],
    ids=["PartitionedCall", "by its name"],
)
def test_called_functions_count_once(call: Any) -> None:
    """However deep the call and however often; a function that nobody calls does not."""
    inner = function("inner", node("lower", "StringLower"))
    outer = function("outer", *(node(f"call{i}", "StatefulPartitionedCall", calls="inner") for i in range(2)))
    unused = function("unused", node("upper", "StringUpper"))
    meta_graph = graph(call, functions=(inner, outer, unused))
    assert cpu_only(meta_graph, [signature("call")]) == [CpuOnly("StringLower", "", 1, "lower")]
    assert unregistered(meta_graph, [signature("call")]) == []


def test_both_branches_count() -> None:
    """Functions in a list, and under any attribute's name."""
    case = node("case", "Case", "index")
    names = [attr_value_pb2.NameAttrList(name=name) for name in ("one", "two")]
    case.attr["branches"].list.func.extend(names)
    functions = (
        function("one", node("a", "StringLower")),
        function("two", node("b", "StringUpper"), node("again", "Case")),
    )
    functions[1].node_def[1].attr["branches"].list.func.extend(names)  # calls itself
    found = cpu_only(graph(case, functions=functions), [signature("case")])
    assert [one.op for one in found or []] == ["StringLower", "StringUpper"]


def test_only_what_a_signature_runs_counts() -> None:
    """Neither what lies before the tensors that are fed, nor what leads to no output; controls do count."""
    meta_graph = graph(
        node("serialised", "Placeholder", dtype=STRING),
        node("before", "StringLower", "serialised"),
        node("fed", "Identity", "before", T=STRING),
        node("controlled", "StringStrip", "serialised"),
        node("out", "StringUpper", "fed", "^controlled"),
        node("beside", "StringLength", "fed"),
    )
    found = cpu_only(meta_graph, [signature("out", inputs=("fed",))])
    assert {one.op for one in found or []} == {"StringUpper", "StringStrip"}


def test_the_components_of_a_tensor_count() -> None:
    """Of sparse and of composite outputs."""
    made = signature()
    sparse = made.outputs["sparse"].coo_sparse
    sparse.values_tensor_name, sparse.indices_tensor_name, sparse.dense_shape_tensor_name = (
        "a:0",
        "b:0",
        "c:0",
    )
    made.outputs["ragged"].composite_tensor.components.add().name = "d:1"
    nodes = [node(name, "StringLower") for name in "abcd"]
    assert cpu_only(graph(*nodes), [made]) == [CpuOnly("StringLower", "", 4, "a")]


def test_an_operation_nobody_knows_is_told() -> None:
    """Whether a GPU could run it cannot be known; an operation that is known is not told."""
    meta_graph = graph(node("x", "Placeholder", dtype=FLOAT), node("y", "NoSuchOp", "x"))
    assert unregistered(meta_graph, [signature("y")]) == ["NoSuchOp"]
    assert unregistered(meta_graph, [signature("x")]) == ["NoSuchOp"], "the graph is loaded whole"
    assert cpu_only(meta_graph, [signature("y")]) == []


def test_a_tensorflow_without_gpu_kernels_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its registry would have every operation run on the CPU."""
    monkeypatch.setattr(tf.test, "is_built_with_gpu_support", lambda: False)
    assert kernels.cpu_only(graph(node("x", "Identity", T=FLOAT)), [signature("x")]) is None


def test_what_waits_within_the_graph_is_found() -> None:
    """In what a signature runs, the functions that it calls included; not what does not wait, nor what nobody runs."""

    def waiting(name: str, micros: int) -> Any:
        made = node(name, "BatchFunction")
        made.attr["max_batch_size"].i, made.attr["batch_timeout_micros"].i = 32, micros
        return made

    functions = (
        function("body", waiting("inner", 500), waiting("at_once", 0)),
        function("idle", waiting("no", 9)),
    )
    call = node("call", "StatefulPartitionedCall", calls="body")
    found = graph(call, waiting("outer", 2000), waiting("no", 9), functions=functions)
    expected = [BatchFunction("outer", 32, 2000), BatchFunction("inner", 32, 500)]
    assert batch_functions(found, [signature("call", "outer")]) == expected
    assert batch_functions(found, [signature("nothing")]) == []
    assert batch_functions(graph(call), [signature("call")]) == []
    stop_waiting(found)
    assert batch_functions(found, [signature("call", "outer", "no")]) == []
