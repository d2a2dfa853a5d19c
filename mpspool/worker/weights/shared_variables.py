"""The variables of a Session that take their memory from a segment.

A Session takes an aligned array that it is fed as it is, but does not own it, and copies in full what it
does not own as soon as a row is gathered from it. A part of that array it does own: so each variable is
fed with an element to spare, and assigned the slice before it. Where the slice would be no multiple of what
TensorFlow aligns to it is copied; an element of a data set is such a part whatever its size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from mpspool.worker.weights.bound import Bound
from mpspool.worker.weights.buffers import Reads
from mpspool.worker.weights.layout import ALIGNMENT
from mpspool.worker.weights.report import Account
from mpspool.worker.weights.restores import Variable
from mpspool.worker.weights.rewriting import DT_INT64, Handles, Nodes
from mpspool.worker.weights.segment import Placed, Segment


@dataclass(frozen=True, slots=True)
class Assigns:
    """What to run and what to feed, by name."""

    operations: list[Any]
    feeds: dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class _Share:
    """A variable, its place, and what it is fed: with an element to spare, or as the one row of a matrix."""

    variable: Variable
    placed: Placed
    array: np.ndarray[Any, Any]

    @property
    def count(self) -> int:
        """How many elements the variable has."""
        return math.prod(self.placed.shape)

    @property
    def is_row(self) -> bool:
        return self.array.ndim == 2


class Shares:
    """The variables that take their memory from the segment."""

    def __init__(self, segment: Segment, account: Account) -> None:
        self._segment = segment
        self._account = account
        self._shares: dict[tuple[str, str], _Share] = {}
        self._reads = Reads()
        self._bound: list[Placed] = []

    def refusal(self, variable: Variable, nodes: Iterable[Any]) -> str:
        """Why a variable, which these nodes give, cannot be bound; empty where it can."""
        source = variable.source
        placed = self._segment.find(source.key, source.spec)
        if placed is None:
            return self._account.reason(source.key, source.spec)
        if (placed.key, placed.spec) in self._shares:
            return "another variable has its memory"  # each writes to its own
        for node in nodes:
            shape = tf.TensorShape(node.attr["shape"].shape)
            if placed.dtype != node.attr["dtype"].type or not shape.is_compatible_with(placed.shape):
                return "the checkpoint's is of another type or shape"
        return ""

    def add(self, variable: Variable) -> None:
        """Takes a variable that nothing was said against."""
        source = variable.source
        placed = self._segment.find(source.key, source.spec)
        array = self._segment.array(source.key, source.spec, spare=True)
        assert placed is not None
        assert array is not None
        if placed.size % ALIGNMENT:
            array = array[None, : math.prod(placed.shape)]
        self._shares[placed.key, placed.spec] = _Share(variable, placed, array)
        self._account.share(placed.key, placed.spec)

    def add_nodes(self, graph_def: Any, handles: Handles) -> Assigns:
        """Adds the nodes that bind them, and those that read them for bound().

        They are for thousands of variables, so they are not made one by one through Python's API.
        """
        nodes = Nodes(graph_def)
        assigns = Assigns([], {})
        for share, memory in self._memory(nodes, assigns.feeds):
            placed, handle = share.placed, handles.name(share.variable.node)
            shape = nodes.constant(placed.shape)
            value = nodes.add("Reshape", memory, shape, T=placed.dtype, Tshape=DT_INT64)
            assigns.operations.append(
                nodes.add("AssignVariableOp", handle, value, on_cpu=False, dtype=placed.dtype)
            )
            self._reads.add(nodes, handle, placed.dtype)
            self._bound.append(placed)
        return assigns

    def bound(self, session: Any) -> Bound:
        """Where they lie, for a Session with these nodes in which they were assigned."""
        return Bound(self._segment, self._account, self._bound, self._reads.of(session))

    def _memory(self, nodes: Nodes, feeds: dict[str, np.ndarray[Any, Any]]) -> Iterator[tuple[_Share, str]]:
        """Each variable, and the tensor that is its memory: fed, and TensorFlow's own."""

        def fed(share: _Share) -> tuple[str, int, int]:
            name = nodes.add("Placeholder", dtype=share.placed.dtype)
            feeds[f"{name}:0"] = share.array
            return name, share.count, share.placed.dtype

        for share in self._shares.values():
            if not share.is_row:
                yield share, nodes.owned_slice(*fed(share))
        rows = [share for share in self._shares.values() if share.is_row]
        yield from zip(rows, nodes.owned_rows([fed(share) for share in rows]), strict=True)
