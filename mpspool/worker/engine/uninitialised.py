"""Which resources a loaded Session would miss when it is asked, found out without asking it.

The v1 loader restores variables by name. A Keras model saved by tf.saved_model.save reads some under
other names than its checkpoint restores, and would fail at the first request.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf


def uninitialised(session: Any, operations: Iterable[Any]) -> list[str]:
    """The names of the variables and tables that the operations depend on and nothing has filled.

    Adds probes to the session's graph.
    """
    needed = _ancestors(operations)
    variables = [operation for operation in needed if operation.type == "VarHandleOp"]
    tables = [operation for operation in needed if operation.type == "HashTableV2"]
    with session.graph.as_default():
        # One run for all: each new choice of fetches is compiled.
        probes = [tf.raw_ops.VarIsInitializedOp(resource=variable.outputs[0]) for variable in variables]
        filled = session.run(probes) if probes else []
        missing = [
            variable.name for variable, is_filled in zip(variables, filled, strict=True) if not is_filled
        ]
        missing += [table.name for table in tables if not _is_filled(session, table)]
    return sorted(missing)


def _ancestors(operations: Iterable[Any]) -> set[Any]:
    """The operations and all that they depend on."""
    found = set(operations)
    left = list(found)
    while left:
        operation = left.pop()
        parents = {tensor.op for tensor in operation.inputs} | set(operation.control_inputs)
        left.extend(parents - found)
        found |= parents
    return found


def _is_filled(session: Any, table: Any) -> bool:
    """Looking up nothing at all fails in a table that was never filled."""
    key_type, value_type = (table.get_attr(name) for name in ("key_dtype", "value_dtype"))
    found = tf.raw_ops.LookupTableFindV2(
        table_handle=table.outputs[0],
        keys=tf.zeros([0], key_type),
        default_value=tf.zeros([], value_type),
    )
    try:
        session.run(found)
    except tf.errors.FailedPreconditionError:
        return False
    return True
