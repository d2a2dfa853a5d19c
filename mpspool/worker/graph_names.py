"""What a graph's nodes and tensors are called. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def node_name(edge: str) -> str:
    """The node that an input of a NodeDef, or a tensor's name, is of."""
    return edge.removeprefix("^").partition(":")[0]


def tensor_names(info: Any) -> Iterator[str]:
    """The tensors that a TensorInfo stands for: one, or the components of a sparse or composite one."""
    encoding = info.WhichOneof("encoding")
    if encoding == "coo_sparse":
        sparse = info.coo_sparse
        yield from (sparse.values_tensor_name, sparse.indices_tensor_name, sparse.dense_shape_tensor_name)
    elif encoding == "composite_tensor":
        for component in info.composite_tensor.components:
            yield from tensor_names(component)
    else:
        yield info.name
