"""Batches that a model forms within its graph: by BatchFunction, which is `tf.nondifferentiable_batch_function`, or by Batch.

Such an op joins calls that run at the same time in one process. A worker runs one after another: a call of fewer rows than a batch
of the op has would wait for others until the op's own timeout is over, and none would come.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from mpspool.worker.kernels import nodes_run

_OPS = ("BatchFunction", "Batch")


@dataclass(frozen=True, slots=True)
class BatchFunction:
    """An op by which calls are to wait for others.

    Attributes:
        name: the node's.
        max_batch_size: rows with which it waits no more.
        batch_timeout_micros: how long it is to wait.
    """

    name: str
    max_batch_size: int
    batch_timeout_micros: int


def batch_functions(meta_graph: Any, signatures: Iterable[Any]) -> list[BatchFunction]:
    """Those that the signatures run and that wait, the longest first.

    Args:
        meta_graph: a MetaGraphDef.
        signatures: SignatureDefs of it.
    """
    graph = meta_graph.graph_def
    if next(_nodes(graph), None) is None:
        return []  # of nearly all models, and seen sooner than what the signatures run
    found = [
        BatchFunction(node.name, node.attr["max_batch_size"].i, node.attr["batch_timeout_micros"].i)
        for node in nodes_run(graph, signatures)
        if node.op in _OPS and node.attr["batch_timeout_micros"].i > 0
    ]
    return sorted(found, key=lambda one: (-one.batch_timeout_micros, one.name))


def stop_waiting(meta_graph: Any) -> None:
    """Has all such ops of a MetaGraphDef run what is there at once."""
    for node in _nodes(meta_graph.graph_def):
        node.attr["batch_timeout_micros"].i = 0


def _nodes(graph: Any) -> Iterator[Any]:
    functions = (function.node_def for function in graph.library.function)
    return (node for node in itertools.chain(graph.node, *functions) if node.op in _OPS)
