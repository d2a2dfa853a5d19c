"""Loads with the TF2 loader and fills the variables from a segment without a copy.

As in a Session TensorFlow must own the memory: see shares.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from mpspool.core import log
from mpspool.worker.weights.bound import Bound
from mpspool.worker.weights.buffers import of_eager
from mpspool.worker.weights.layout import ALIGNMENT
from mpspool.worker.weights.report import Account
from mpspool.worker.weights.segment import Placed, Segment

logger = log.get("weights")

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "VARIABLE_VALUE"
_SAVE_COUNTER = "save_counter/.ATTRIBUTES/VARIABLE_VALUE"


def load(path: Path, tags: Sequence[str], segment: Segment) -> tuple[Any, Bound]:
    """Loads a version folder. Returns the loaded root and its variables, of which can be asked where they lie.

    Args:
        path: the version folder.
        tags: of the meta graph to load.
        segment: mapped; it must never be unmapped.

    Raises:
        tf.errors.OpError, OSError, ValueError, RuntimeError: TensorFlow's, where it cannot be loaded.
    """
    checkpoint = _Checkpoint.read(path)
    others = checkpoint.others()
    if not others:
        options = tf.saved_model.LoadOptions(experimental_skip_checkpoint=True)
        root = tf.saved_model.load(str(path), tags=list(tags), options=options)
        # A variable that nothing filled would be an empty tensor, and no error.
        found = checkpoint.find(root)
        if len(found) == len(checkpoint.keys()) and not _unfilled(root, found.values()):
            return root, _fill(found, checkpoint, segment, Account(segment.manifest))
        others = ["variables that the loaded model has elsewhere"]
    what = ", ".join(others[:3])
    logger.warning("weights restored before they are shared", others=what)
    root = tf.saved_model.load(str(path), tags=list(tags))
    account = Account(segment.manifest)
    account.note(f"the checkpoint has more than variables ({what}): each worker restored it whole")
    found = checkpoint.find(root)
    for key in checkpoint.keys() - set(found):
        account.keep(key, "", "not found in the loaded model")
    account.keep_others(checkpoint.keys(), "no variable")
    return root, _bind(found, segment, account)


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A TF2 checkpoint: which object of the model has which key.

    Attributes:
        prefix: of its files.
        graph: a TrackableObjectGraph.
        dtypes: of its tensors, by key.
    """

    prefix: str
    graph: Any
    dtypes: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> _Checkpoint:
        """Raises ValueError for the checkpoint of a TF1 model."""
        prefix = str(path / "variables" / "variables")
        reader = tf.train.load_checkpoint(prefix)
        if not reader.has_tensor(_OBJECT_GRAPH):
            raise ValueError("the TF2 loader shares the variables of TF2 models only")
        graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(reader.get_tensor(_OBJECT_GRAPH))
        return cls(prefix, graph, reader.get_variable_to_dtype_map())

    def keys(self) -> set[str]:
        """Of all variables."""
        return {key for node in self.graph.nodes for key in _keys(node)}

    def others(self) -> list[str]:
        """What it has beside variables: the keys of tables and the like."""
        attributes = (attribute for node in self.graph.nodes for attribute in node.attributes)
        return [attribute.checkpoint_key for attribute in attributes if attribute.name != _VALUE]

    def find(self, root: Any) -> dict[str, Any]:
        """The variables that are in the loaded model where the checkpoint has them: key -> variable."""
        found: dict[str, Any] = {}
        seen: set[int] = set()
        left = [(0, root)]
        while left:
            number, trackable = left.pop()
            if number in seen:
                continue
            seen.add(number)
            node = self.graph.nodes[number]
            if isinstance(trackable, tf.Variable):
                found |= dict.fromkeys(_keys(node), trackable)
            children = tf.train.TrackableView.children(trackable)
            left += [
                (child.node_id, children[child.local_name])
                for child in node.children
                if child.local_name in children
            ]
        return found


def _keys(node: Any) -> Iterator[str]:
    for attribute in node.attributes:
        if attribute.name == _VALUE and attribute.checkpoint_key != _SAVE_COUNTER:
            yield attribute.checkpoint_key


def _unfilled(root: Any, filled: Any) -> list[Any]:
    """The loaded model's variables that are not among the filled ones."""
    known = {id(variable) for variable in filled}
    variables = (item for item in tf.train.TrackableView(root).descendants() if isinstance(item, tf.Variable))
    return [variable for variable in variables if id(variable) not in known]


def _fill(found: Mapping[str, Any], checkpoint: _Checkpoint, segment: Segment, account: Account) -> Bound:
    """Binds what the segment has, and restores the others one by one."""
    for key, variable in found.items():
        if segment.find(key) is None:
            tensors = tf.raw_ops.RestoreV2(
                prefix=checkpoint.prefix,
                tensor_names=[key],
                shape_and_slices=[""],
                dtypes=[checkpoint.dtypes[key]],
            )
            variable.assign(tensors[0], read_value=False)
    return _bind(found, segment, account)


def _bind(found: Mapping[str, Any], segment: Segment, account: Account) -> Bound:
    """Binds what the segment has."""
    bound: list[tuple[Placed, Any]] = []
    for key, variable in found.items():
        placed = segment.find(key)
        if placed is None:
            account.keep(key, "", account.reason(key))
        else:
            variable.assign(_tensor(segment, placed), read_value=False)
            account.share(key)
            bound.append((placed, variable))
    return Bound(
        segment,
        account,
        [placed for placed, _ in bound],
        lambda: of_eager(variable for _, variable in bound),
    )


def _tensor(segment: Segment, placed: Placed) -> Any:
    """A tensor over the segment's memory, which TensorFlow takes for its own."""
    array = segment.array(placed.key, placed.spec, spare=True)
    assert array is not None
    dtype, count = tf.dtypes.as_dtype(placed.dtype), math.prod(placed.shape)
    with tf.device("/CPU:0"):
        if placed.size % ALIGNMENT:
            owned = _element(_borrowed(array[None, :count], dtype))
        else:
            owned = tf.slice(_borrowed(array, dtype), np.array([0]), np.array([count]))
        return tf.reshape(owned, placed.shape)


def _element(rows: Any) -> Any:
    """The one row of a matrix."""
    data = tf.raw_ops.TensorSliceDataset(components=[rows], output_shapes=[rows.shape[1:]])
    (element,) = tf.raw_ops.DatasetToSingleElement(
        dataset=data, output_types=[rows.dtype], output_shapes=[rows.shape[1:]]
    )
    return element


def _borrowed(array: np.ndarray[Any, Any], dtype: Any) -> Any:
    """A tensor over an array's memory. NumPy exports its own types only: the others go as integers."""
    if array.dtype.isbuiltin == 1:
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    integers = array.view(f"u{array.dtype.itemsize}")
    return tf.bitcast(tf.experimental.dlpack.from_dlpack(integers.__dlpack__()), dtype)
