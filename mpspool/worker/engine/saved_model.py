"""A SavedModel as it lies on disk: which graph the tags name, and the signatures it promises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import tensorflow as tf
from google.protobuf import text_format
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from mpspool.core import tfs
from mpspool.core.errors import Code, PoolError
from mpspool.worker.batch_function import BatchFunction, batch_functions
from mpspool.worker.engine.base import Signature, TensorSpec

# "__saved_model_init_op" and its like are the loader's, not the client's.
_INTERNAL_PREFIX = "__saved_model"


class LoadError(Exception):
    """This model can never be loaded as it is; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Signatures:
    """What one meta graph can be asked.

    Attributes:
        definitions: tensorflow.SignatureDef by key, for the graph's own tensor names, each as "node:output".
        specs: the same as an engine shows them.
        serialised: a tensorflow.serving.SignatureDefMap of all of them.
        batch_functions: ops among what they run that wait for other calls.
    """

    definitions: Mapping[str, Any]
    specs: Mapping[str, Signature]
    serialised: bytes
    batch_functions: Sequence[BatchFunction] = ()

    @classmethod
    def read(cls, path: Path, tags: Sequence[str]) -> Self:
        """Reads the version folder's SavedModel. Raises LoadError."""
        meta_graph = read_meta_graph(path, tags)
        # Each is copied by its bytes: a message taken out of a SavedModel keeps all of it in memory.
        definitions = {
            key: meta_graph_pb2.SignatureDef.FromString(definition.SerializeToString())
            for key, definition in meta_graph.signature_def.items()
            if not key.startswith(_INTERNAL_PREFIX)
        }
        if not definitions:
            raise LoadError(f"{path}: the SavedModel has no signatures: export it with signatures=...")
        specs = {key: _signature(key, definition) for key, definition in definitions.items()}
        serialised = _serialise(definitions)
        for definition in definitions.values():
            _complete(definition)
        return cls(definitions, specs, serialised, batch_functions(meta_graph, definitions.values()))

    def require_plain(self, key: str) -> None:
        """Raises PoolError for a signature with sparse or composite tensors, which Predict cannot carry."""
        definition = self.definitions[key]
        for kind, tensors in (("input", definition.inputs), ("output", definition.outputs)):
            for alias, info in tensors.items():
                if info.WhichOneof("encoding") != "name":
                    raise PoolError(
                        Code.UNIMPLEMENTED,
                        f'Signature "{key}" cannot be served: its {kind} "{alias}" is a sparse or composite '
                        "tensor. Export a signature that takes and gives its components.",
                    )


def read_meta_graph(path: Path, tags: Sequence[str]) -> Any:
    """The MetaGraphDef of a version folder that has these tags. Raises LoadError."""
    return _find(_parse(path), tags, path)


def _parse(path: Path) -> Any:
    binary, text = path / "saved_model.pb", path / "saved_model.pbtxt"
    try:
        if text.exists() and not binary.exists():
            return text_format.Parse(text.read_text(encoding="utf-8"), saved_model_pb2.SavedModel())
        return saved_model_pb2.SavedModel.FromString(binary.read_bytes())
    except FileNotFoundError as error:
        raise LoadError(f"{path} is not a SavedModel: there is no saved_model.pb in it") from error
    except (DecodeError, text_format.ParseError, UnicodeDecodeError) as error:
        raise LoadError(
            f"{path} is not a SavedModel: its saved_model.pb cannot be parsed: {error}"
        ) from error


def _find(saved_model: Any, tags: Sequence[str], path: Path) -> Any:
    available = []
    for meta_graph in saved_model.meta_graphs:
        if set(meta_graph.meta_info_def.tags) == set(tags):
            return meta_graph
        available.append("{" + ", ".join(sorted(meta_graph.meta_info_def.tags)) + "}")
    raise LoadError(
        f"{path}: no graph has the tags {{{', '.join(sorted(tags))}}}; "
        f"the SavedModel's tag sets are {', '.join(available) or 'none'}: set saved_model_tags"
    )


def _signature(key: str, definition: Any) -> Signature:
    return Signature(
        name=key,
        method_name=definition.method_name,
        inputs={alias: _spec(info) for alias, info in definition.inputs.items()},
        outputs={alias: _spec(info) for alias, info in definition.outputs.items()},
        defaults={alias: tf.make_ndarray(value) for alias, value in definition.defaults.items()},
    )


def _spec(info: Any) -> TensorSpec:
    if info.tensor_shape.unknown_rank:
        return TensorSpec(info.dtype, None)
    sizes = (dimension.size for dimension in info.tensor_shape.dim)
    return TensorSpec(info.dtype, tuple(size if size >= 0 else None for size in sizes))


def _complete(definition: Any) -> None:
    """A node's name alone, which TensorFlow's C++ session takes too, means its first output."""
    for info in (*definition.inputs.values(), *definition.outputs.values()):
        if info.WhichOneof("encoding") == "name" and ":" not in info.name:
            info.name += ":0"


def _serialise(definitions: Mapping[str, Any]) -> bytes:
    signatures = tfs.SignatureDefMap()
    for key, definition in definitions.items():
        signatures.signature_def[key].ParseFromString(definition.SerializeToString())
    serialised: bytes = signatures.SerializeToString(deterministic=True)
    return serialised
