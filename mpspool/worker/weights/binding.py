"""Fills a Session's variables from a segment without a copy, and restores what is not in it.

TensorFlow's reference variables copy what they are assigned: they become resource variables, where nothing
that is served writes to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from mpspool.core import log
from mpspool.worker.graph_names import node_name, tensor_names
from mpspool.worker.weights.bound import Bound
from mpspool.worker.weights.report import Account
from mpspool.worker.weights.restores import (
    REF_OPS,
    RESOURCE_OPS,
    Restores,
    Table,
    Variable,
    ancestors,
    identity,
    restores,
    written,
)
from mpspool.worker.weights.rewriting import Handles, pruned
from mpspool.worker.weights.segment import Segment
from mpspool.worker.weights.shared_variables import Shares

logger = log.get("weights")

v1 = tf.compat.v1

_INIT_SIGNATURE = "__saved_model_init_op"
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")
_ASSETS_COLLECTION = "saved_model_assets"


def bind(session: Any, path: Path, meta_graph: Any, segment: Segment) -> Bound:
    """Loads a meta graph into an empty Session: its graph, its variables and tables, its init op.

    Where the variables lie can be asked as long as the Session lives.

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
            shares = _bind_after_restore(session, model, segment, known, account)
        else:
            shares = _bind(session, model, segment, known, account)
        if model.init:
            session.run(session.graph.as_graph_element(model.init, allow_tensor=False), model.assets)
    return shares.bound(session)


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
        self._twins: dict[tuple[str, str, str], set[str]] = {}
        for node in meta_graph.graph_def.node:
            if node.op in RESOURCE_OPS | REF_OPS:
                self._twins.setdefault(identity(node), set()).add(node.name)
        self.assets = dict(_assets(path, meta_graph))
        self.init = _init(meta_graph)
        self.prefix = str(path / "variables" / "variables")

    def twins(self, variable: Variable) -> set[str]:
        """All nodes that give it."""
        return self._twins[identity(self.nodes[variable.node])]

    def import_graph(self, graph_def: Any) -> None:
        """Makes the nodes in the current graph. Raises ValueError."""
        info = self.meta_graph.meta_info_def
        producer = info.stripped_op_list if info.HasField("stripped_op_list") else None
        v1.import_graph_def(graph_def, name="", producer_op_list=producer)

    def restore(self, session: Any) -> None:
        """Runs the SavedModel's own restore op."""
        saver = self.meta_graph.saver_def
        session.run(saver.restore_op_name, {saver.filename_tensor_name: self.prefix})


def _bind(session: Any, model: _Model, segment: Segment, known: Restores, account: Account) -> Shares:
    """Restores nothing but what is private."""
    served = _served(model, known)
    nodes = [model.nodes[name] for name in sorted(served)]
    writers = written(nodes, [node.name for node in nodes if node.op in REF_OPS])
    shares = Shares(segment, account)
    filled: list[Variable] = []
    replaced: dict[str, str] = {}
    for restored in known.variables:
        twins = sorted(model.twins(restored) & served)
        if not twins:
            continue  # an optimizer's, which nothing that is served reads
        variable = replace(restored, node=twins[0])
        reason = shares.refusal(variable, [model.nodes[name] for name in twins])
        if not reason and (writer := next((writers[name] for name in twins if name in writers), "")):
            reason = f"{writer} takes a reference to it"
        if reason:
            account.keep(variable.source.key, variable.source.spec, reason)
            filled.append(variable)
            continue
        shares.add(variable)
        if variable.is_ref:
            replaced |= dict.fromkeys(twins, variable.node)
    for table in known.tables:
        for source in (table.keys, table.values):
            account.keep(source.key, source.spec, "a table")
    handles = Handles(model.nodes, replaced)
    graph_def = pruned(model.meta_graph.graph_def, nodes, handles)
    assigns = shares.add_nodes(graph_def, handles)
    model.import_graph(graph_def)
    fills = _fills(session.graph, model.prefix, filled, known.tables)
    session.run([*assigns.operations, *fills], assigns.feeds)
    return shares


def _bind_after_restore(
    session: Any, model: _Model, segment: Segment, known: Restores, account: Account
) -> Shares:
    """The SavedModel's own restore, and then the resource variables once more, shared.

    Each worker needs the memory for a copy of its own, but only for as long as that takes.
    """
    what = "; ".join(known.unknown[:3])
    logger.warning("weights restored before they are shared", unknown=what)
    shares = Shares(segment, account)
    account.note(f"the restore op does more than assign variables ({what}): each worker ran it")
    for variable in known.variables:
        reason = shares.refusal(variable, [model.nodes[name] for name in model.twins(variable)])
        if not reason and variable.is_ref:
            reason = "a reference variable that the restore op needs"
        if reason:
            account.keep(variable.source.key, variable.source.spec, reason)
        else:
            shares.add(variable)
    graph_def = model.meta_graph.graph_def
    assigns = shares.add_nodes(graph_def, Handles(model.nodes, {}))
    model.import_graph(graph_def)
    model.restore(session)
    session.run(assigns.operations, assigns.feeds)
    return shares


def _served(model: _Model, known: Restores) -> set[str]:
    """The nodes that serving needs: not the saver's, the initialisers' and the training's.

    All resources are among them: other nodes may name the same one.
    """
    names = [name for definition in model.meta_graph.signature_def.values() for name in _tensors(definition)]
    names += [variable.node for variable in known.variables if not variable.is_ref]
    names += [table.node for table in known.tables]
    names += [*model.assets, model.init]
    return ancestors(model.nodes, names)


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
        yield from tensor_names(info)


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
