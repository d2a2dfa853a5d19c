"""Fills a Session's variables from a segment without a copy, and restores what is not in it.

A Session takes an aligned array that it is fed as it is, but does not own it, and copies in full what it
does not own as soon as a row is gathered from it. A part of that array it does own: so each variable is
fed with an element to spare, and assigned the slice before it. TensorFlow's reference variables copy
what they are assigned: they become resource variables, where nothing that is served writes to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from mpspool.core import log
from mpspool.core.weights import WeightsReport
from mpspool.worker.weights.report import Account
from mpspool.worker.weights.restores import (
    Restores,
    Table,
    Variable,
    ancestors,
    node_name,
    restores,
    written,
)
from mpspool.worker.weights.segment import Placed, Segment

logger = log.get("weights")

v1 = tf.compat.v1

_INIT_SIGNATURE = "__saved_model_init_op"
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")
_ASSETS_COLLECTION = "saved_model_assets"
_COLOCATION = b"loc:@"
_DT_INT64 = 9


def bind(session: Any, path: Path, meta_graph: Any, segment: Segment) -> WeightsReport:
    """Loads a meta graph into an empty Session: its graph, its variables and tables, its init op.

    Args:
        session: with an empty graph.
        path: the version folder.
        meta_graph: of its SavedModel.
        segment: mapped; it must never be unmapped.

    Raises:
        tf.errors.OpError, ValueError: TensorFlow's, where the model cannot be loaded like this.
    """
    model = _Model(path, meta_graph)
    known = restores(meta_graph)
    account = Account(segment.manifest)
    with session.graph.as_default():
        if known.unknown:
            _bind_after_restore(session, model, segment, known, account)
        else:
            _bind(session, model, segment, known, account)
        if model.init:
            session.run(session.graph.as_graph_element(model.init, allow_tensor=False), model.assets)
    return account.report()


class _Model:
    """A version folder and its meta graph.

    Attributes:
        assets: what to feed: tensor name -> file.
        init: the name of the op that fills tables and local variables; empty for none.
        prefix: of the checkpoint.
    """

    def __init__(self, path: Path, meta_graph: Any) -> None:
        self.meta_graph = meta_graph
        self.nodes: dict[str, Any] = {node.name: node for node in meta_graph.graph_def.node}
        self.assets = dict(_assets(path, meta_graph))
        self.init = _init(meta_graph)
        self.prefix = str(path / "variables" / "variables")

    def import_graph(self, graph_def: Any) -> None:
        """Makes the nodes in the current graph. Raises ValueError."""
        info = self.meta_graph.meta_info_def
        producer = info.stripped_op_list if info.HasField("stripped_op_list") else None
        v1.import_graph_def(graph_def, name="", producer_op_list=producer)

    def restore(self, session: Any) -> None:
        """Runs the SavedModel's own restore op."""
        saver = self.meta_graph.saver_def
        session.run(saver.restore_op_name, {saver.filename_tensor_name: self.prefix})


def _bind(session: Any, model: _Model, segment: Segment, known: Restores, account: Account) -> None:
    """Restores nothing but what is private."""
    served = _served(model, known)
    nodes = [model.nodes[name] for name in sorted(served)]
    writers = written(nodes, [variable.node for variable in known.variables if variable.is_ref])
    bound = _Bound(segment, account)
    filled: list[Variable] = []
    for variable in known.variables:
        if variable.node not in served:
            continue  # an optimizer's, which nothing that is served reads
        reason = bound.refusal(variable, model.nodes[variable.node])
        if not reason and variable.node in writers:
            reason = f"{writers[variable.node]} takes a reference to it"
        if reason:
            account.keep(variable.source.key, variable.source.spec, reason)
            filled.append(variable)
        else:
            bound.add(variable)
    for table in known.tables:
        for source in (table.keys, table.values):
            account.keep(source.key, source.spec, "a table")
    replaced = {variable.node for variable in bound.variables if variable.is_ref}
    handles = _Handles(model.nodes, replaced)
    graph_def = _pruned(model, nodes, handles)
    assigns = bound.add_assigns(graph_def, handles)
    model.import_graph(graph_def)
    fills = _fills(session.graph, model.prefix, filled, known.tables)
    session.run([*assigns.operations, *fills], assigns.feeds)


def _bind_after_restore(
    session: Any, model: _Model, segment: Segment, known: Restores, account: Account
) -> None:
    """The SavedModel's own restore, and then the resource variables once more, shared.

    Each worker needs the memory for a copy of its own, but only for as long as that takes.
    """
    what = "; ".join(known.unknown[:3])
    logger.warning("weights restored before they are shared", unknown=what)
    bound = _Bound(segment, account)
    account.note(f"the restore op does more than assign variables ({what}): each worker ran it")
    for variable in known.variables:
        reason = bound.refusal(variable, model.nodes[variable.node])
        if not reason and variable.is_ref:
            reason = "a reference variable that the restore op needs"
        if reason:
            account.keep(variable.source.key, variable.source.spec, reason)
        else:
            bound.add(variable)
    graph_def = model.meta_graph.graph_def
    assigns = bound.add_assigns(graph_def, _Handles(model.nodes, set()))
    model.import_graph(graph_def)
    model.restore(session)
    session.run(assigns.operations, assigns.feeds)


def _served(model: _Model, known: Restores) -> set[str]:
    """The nodes that serving needs: not the saver's, the initialisers' and the training's.

    All resources are among them: other nodes may name the same one.
    """
    names = [name for definition in model.meta_graph.signature_def.values() for name in _tensors(definition)]
    names += [variable.node for variable in known.variables if not variable.is_ref]
    names += [table.node for table in known.tables]
    names += [*model.assets, model.init]
    return ancestors(model.nodes, names)


def _pruned(model: _Model, nodes: Iterable[Any], handles: _Handles) -> Any:
    """A GraphDef of the nodes, the replaced variables' reads in place of the variables."""
    whole = model.meta_graph.graph_def
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


class _Handles:
    """Resource variables in place of reference variables.

    Args:
        nodes: of the graph.
        replaced: the reference variables' names. Each of these nodes becomes the read of its new variable,
            so that whoever read the one now reads the other.
    """

    def __init__(self, nodes: Mapping[str, Any], replaced: set[str]) -> None:
        self.replaced = replaced
        self._nodes = nodes

    def name(self, node: str) -> str:
        """The node that gives a variable's handle."""
        if node not in self.replaced:
            return node
        name = f"{node}/shared"
        while name in self._nodes:
            name += "_"
        return name

    def replacement(self, node: Any) -> Iterator[Any]:
        handle = node_def_pb2.NodeDef(name=self.name(node.name), op="VarHandleOp", device=node.device)
        handle.attr["dtype"].CopyFrom(node.attr["dtype"])
        handle.attr["shape"].CopyFrom(node.attr["shape"])
        handle.attr["shared_name"].s = handle.name.encode()
        read = node_def_pb2.NodeDef(name=node.name, op="ReadVariableOp", device=node.device)
        read.input.append(handle.name)
        read.attr["dtype"].CopyFrom(node.attr["dtype"])
        yield from (handle, read)


@dataclass(frozen=True, slots=True)
class _Share:
    variable: Variable
    placed: Placed


class _Bound:
    """The variables that take their memory from the segment."""

    def __init__(self, segment: Segment, account: Account) -> None:
        self._segment = segment
        self._account = account
        self._shares: dict[tuple[str, str], _Share] = {}

    @property
    def variables(self) -> list[Variable]:
        return [share.variable for share in self._shares.values()]

    def refusal(self, variable: Variable, node: Any) -> str:
        """Why a variable cannot be bound; empty where it can."""
        source = variable.source
        placed = self._segment.find(source.key, source.spec)
        if placed is None:
            return self._account.reason(source.key, source.spec)
        if (placed.key, placed.spec) in self._shares:
            return "another variable has its memory"  # each writes to its own
        shape = tf.TensorShape(node.attr["shape"].shape)
        if placed.dtype != node.attr["dtype"].type or not shape.is_compatible_with(placed.shape):
            return "the checkpoint's is of another type or shape"
        return ""

    def add(self, variable: Variable) -> None:
        placed = self._segment.find(variable.source.key, variable.source.spec)
        assert placed is not None
        self._shares[placed.key, placed.spec] = _Share(variable, placed)
        self._account.share(placed.key, placed.spec)

    def add_assigns(self, graph_def: Any, handles: _Handles) -> _Assigns:
        """Adds the nodes that bind them: of thousands of variables, so not one by one through Python's API."""
        nodes = _Nodes(graph_def)
        assigns = _Assigns([], {})
        for share in self._shares.values():
            placed = share.placed
            array = self._segment.array(placed.key, placed.spec, spare=True)
            assert array is not None
            fed = nodes.add("Placeholder", dtype=placed.dtype)
            begin, size = nodes.constant((0,)), nodes.constant((math.prod(placed.shape),))
            owned = nodes.add("Slice", fed, begin, size, T=placed.dtype, Index=_DT_INT64)
            shape = nodes.constant(placed.shape)
            value = nodes.add("Reshape", owned, shape, T=placed.dtype, Tshape=_DT_INT64)
            handle = handles.name(share.variable.node)
            assigns.operations.append(
                nodes.add("AssignVariableOp", handle, value, on_cpu=False, dtype=placed.dtype)
            )
            assigns.feeds[f"{fed}:0"] = array
        return assigns


@dataclass(frozen=True, slots=True)
class _Assigns:
    """What to run and what to feed, by name."""

    operations: list[Any]
    feeds: dict[str, np.ndarray[Any, Any]]


class _Nodes:
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
            name = self.add("Const", dtype=_DT_INT64)
            value = tf.make_tensor_proto(numbers, tf.int64, [len(numbers)])
            self._graph_def.node[-1].attr["value"].tensor.CopyFrom(value)
            self._constants[numbers] = name
        return self._constants[numbers]


def _fills(graph: Any, prefix: str, variables: Iterable[Variable], tables: Iterable[Table]) -> list[Any]:
    """The ops that restore the variables and tables from the checkpoint."""
    variables, tables = list(variables), list(tables)
    sources = [variable.source for variable in variables]
    sources += [source for table in tables for source in (table.keys, table.values)]
    if not sources:
        return []
    with tf.device("/CPU:0"):
        tensors = tf.raw_ops.RestoreV2(
            prefix=prefix,
            tensor_names=[source.key for source in sources],
            shape_and_slices=[source.spec for source in sources],
            dtypes=[source.dtype for source in sources],
        )
    left = iter(tensors)
    fills = [_fill(graph.get_tensor_by_name(f"{variable.node}:0"), next(left)) for variable in variables]
    for table in tables:
        handle = graph.get_tensor_by_name(f"{table.node}:0")
        keys, values = next(left), next(left)
        fills.append(tf.raw_ops.LookupTableImportV2(table_handle=handle, keys=keys, values=values))
    return fills


def _fill(target: Any, value: Any) -> Any:
    if target.dtype == tf.resource:
        return tf.raw_ops.AssignVariableOp(resource=target, value=value)
    return v1.assign(target, value, validate_shape=target.shape.is_fully_defined())


def _tensors(definition: Any) -> Iterator[str]:
    """The names of a signature's tensors."""
    for info in [*definition.inputs.values(), *definition.outputs.values()]:
        yield from _tensors_of(info)


def _tensors_of(info: Any) -> Iterator[str]:
    encoding = info.WhichOneof("encoding")
    if encoding == "coo_sparse":
        sparse = info.coo_sparse
        yield from (
            sparse.values_tensor_name,
            sparse.indices_tensor_name,
            sparse.dense_shape_tensor_name,
        )
    elif encoding == "composite_tensor":
        for component in info.composite_tensor.components:
            yield from _tensors_of(component)
    else:
        yield info.name


def _init(meta_graph: Any) -> str:
    """The name of the op that a loader runs last; the first of the three places where exporters put it."""
    if _INIT_SIGNATURE in meta_graph.signature_def:
        return node_name(meta_graph.signature_def[_INIT_SIGNATURE].outputs[_INIT_SIGNATURE].name)
    for key in _INIT_COLLECTIONS:
        if key in meta_graph.collection_def:
            for name in meta_graph.collection_def[key].node_list.value:
                return node_name(name)
    return ""


def _assets(path: Path, meta_graph: Any) -> Iterator[tuple[str, str]]:
    definitions = list(meta_graph.asset_file_def)
    if not definitions and _ASSETS_COLLECTION in meta_graph.collection_def:
        for packed in meta_graph.collection_def[_ASSETS_COLLECTION].any_list.value:
            definition = meta_graph_pb2.AssetFileDef()
            packed.Unpack(definition)
            definitions.append(definition)
    for definition in definitions:
        yield definition.tensor_info.name, str(path / "assets" / definition.filename)
