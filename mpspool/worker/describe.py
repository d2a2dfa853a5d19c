"""`python -m mpspool.worker.describe SETTINGS`: what a model version is, as one line of JSON.

    {"signatures": {KEY: {"method", "inputs": {ALIAS: TENSOR}, "outputs": {ALIAS: TENSOR}}},
     "variables": {"count", "bytes", "largest": [{"name", "dtype", "shape", "bytes"}]}, or {"unknown": WHY},
     "cpu_only": [{"op", "types", "count", "example"}], null where TensorFlow has no GPU kernels,
     "unregistered": [OP],
     "batch_functions": [{"name", "max_batch_size", "batch_timeout_micros"}]}
    TENSOR: {"dtype", "shape", "kind": "dense", "sparse" or "composite", "optional"}
    "shape": a size or null per dimension; null for an unknown rank

or {"error": TEXT}, with exit status 1. Reads the files alone: no Session, no device, no weights in memory.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpspool.core import settings
from mpspool.core.settings import ModelSettings
from mpspool.worker.without_keras import without_keras

if TYPE_CHECKING:
    from mpspool.core.segment_file import Placed, Private
    from mpspool.worker.engine.base import TensorSpec
    from mpspool.worker.weights.checkpoint import Tensor

_LARGEST = 5
_KINDS = {"coo_sparse": "sparse", "composite_tensor": "composite"}


def describe(model: ModelSettings) -> dict[str, Any]:
    """Raises LoadError for what is no SavedModel, CheckpointError for a checkpoint that cannot be read."""
    from mpspool.worker import kernels
    from mpspool.worker.batch_function import batch_functions
    from mpspool.worker.engine.load import load_ops
    from mpspool.worker.engine.saved_model import Signatures, read_meta_graph

    path = Path(model.path)
    for library in model.custom_ops:
        load_ops(library)
    signatures = Signatures.read(path, model.saved_model_tags)
    meta_graph = read_meta_graph(path, model.saved_model_tags)
    definitions = list(signatures.definitions.values())
    cpu_only = kernels.cpu_only(meta_graph, definitions)
    return {
        "signatures": {
            key: {
                "method": spec.method_name,
                "inputs": _tensors(spec.inputs, signatures.definitions[key].inputs, spec.defaults),
                "outputs": _tensors(spec.outputs, signatures.definitions[key].outputs, ()),
            }
            for key, spec in sorted(signatures.specs.items())
        },
        "variables": _variables(path / "variables" / "variables", meta_graph),
        "cpu_only": None if cpu_only is None else [dataclasses.asdict(one) for one in cpu_only],
        "unregistered": kernels.unregistered(meta_graph, definitions),
        "batch_functions": [dataclasses.asdict(one) for one in batch_functions(meta_graph, definitions)],
    }


def _tensors(
    specs: Mapping[str, TensorSpec], infos: Mapping[str, Any], optional: Container[str]
) -> dict[str, Any]:
    return {
        alias: {
            "dtype": _dtypes(infos[alias]),
            "shape": None if spec.shape is None or _is_shapeless(infos[alias]) else list(spec.shape),
            "kind": _KINDS.get(infos[alias].WhichOneof("encoding"), "dense"),
            "optional": alias in optional,
        }
        for alias, spec in sorted(specs.items())
    }


def _dtypes(info: Any) -> str:
    """A composite tensor's own is often left out: those of its components then."""
    if info.dtype or not info.composite_tensor.components:
        return _dtype(info.dtype)
    return ", ".join(_dtypes(component) for component in info.composite_tensor.components)


def _is_shapeless(info: Any) -> bool:
    """A shape that is left out reads as a scalar's, which no composite tensor has."""
    return info.WhichOneof("encoding") == "composite_tensor" and not info.HasField("tensor_shape")


def _dtype(number: int) -> str:
    import tensorflow as tf

    return tf.dtypes.as_dtype(number).name if number else "unknown"


def _variables(prefix: Path, meta_graph: Any) -> dict[str, Any]:
    """Those of the checkpoint, also what training left there, without the exporter's bookkeeping."""
    from mpspool.worker.weights.checkpoint import (
        EXPORT_AGAIN,
        CheckpointError,
        UnsupportedError,
        index_file,
        is_absent,
        read_index,
        require_whole,
        variable_name,
    )
    from mpspool.worker.weights.layout import lay_out

    if is_absent(prefix):
        # One that restores anything restores it at every load. An old, unsharded checkpoint is a file alone.
        if meta_graph.saver_def.restore_op_name and not prefix.exists():
            raise CheckpointError(
                f"{index_file(prefix)} is missing, and the model restores its variables from there:"
                f" {EXPORT_AGAIN}"
            )
        return {"count": 0, "bytes": 0, "largest": []}
    try:
        checkpoint = read_index(prefix)
    except UnsupportedError as error:
        return {"unknown": str(error)}
    require_whole(prefix, checkpoint)
    manifest = lay_out(checkpoint.tensors, "", 0, "")
    sizes: dict[str, int] = {}
    placed: list[Placed | Private] = [*manifest.tensors, *manifest.private]
    for one in placed:
        sizes[one.key] = sizes.get(one.key, 0) + one.size

    def shown(tensor: Tensor) -> dict[str, Any]:
        whole = tensor.spec.split(" ")[:-1] if tensor.spec else tensor.shape
        return {
            "name": variable_name(tensor.key),
            "dtype": _dtype(tensor.dtype),
            "shape": [int(size) for size in whole],
            "bytes": sizes[tensor.key],
        }

    tensors = {tensor.key: tensor for tensor in checkpoint.tensors}
    largest = sorted(sizes, key=lambda key: (-sizes[key], key))[:_LARGEST]
    return {
        "count": len(sizes),
        "bytes": sum(sizes.values()),
        "largest": [shown(tensors[key]) for key in largest],
    }


def main(settings_json: str) -> int:
    """Takes a ModelSettings as JSON. What TensorFlow and the model's libraries print goes to standard error."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    with without_keras():
        from mpspool.worker.engine.load import LoadError
    from mpspool.worker.weights.checkpoint import CheckpointError

    try:
        found = describe(settings.decode(settings_json.encode(), ModelSettings))
    except (LoadError, CheckpointError, OSError) as error:
        found = {"error": str(error)}
    with answer:
        print(json.dumps(found), file=answer)
    return int("error" in found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
