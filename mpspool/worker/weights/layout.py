"""Where each tensor of a checkpoint lies in the segment, and which ones cannot be shared and why. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from mpspool.core import tfs
from mpspool.core.segment_file import MAGIC, PAGE, Manifest, Placed, Private, header
from mpspool.worker.weights.checkpoint import Tensor, element_bytes

# TensorFlow takes a part of a buffer as a tensor of its own only where the part's size is a multiple of this.
ALIGNMENT = 64
# What the exporter keeps for itself.
_BOOKKEEPING = {"_CHECKPOINTABLE_OBJECT_GRAPH", "save_counter/.ATTRIBUTES/VARIABLE_VALUE"}
# Longer in JSON than any offset.
_LONGEST = 2**63 - 1


def lay_out(tensors: Iterable[Tensor], model: str, version: int, source: str) -> Manifest:
    """Places what can be shared: each tensor at the start of a page, with a spare element after it.

    Args:
        tensors: those of the checkpoint, in its order.
        model: these three are for the manifest.
        version: see model.
        source: see model.
    """
    shared: list[Tensor] = []
    private: list[Private] = []
    for tensor in tensors:
        if tensor.key in _BOOKKEEPING:
            continue
        reason = why_private(tensor)
        if reason:
            private.append(Private(tensor.key, tensor.spec, tensor.dtype, tensor.size, reason))
        else:
            shared.append(tensor)

    def manifest(offsets: Iterable[int], size: int) -> Manifest:
        placed = [
            Placed(tensor.key, tensor.spec, tensor.dtype, tensor.shape, offset, tensor.size)
            for tensor, offset in zip(shared, offsets, strict=True)
        ]
        return Manifest(model, version, source, placed, private, size)

    longest = header(manifest([_LONGEST] * len(shared), _LONGEST))
    offset = _whole_pages(len(MAGIC) + len(longest))
    offsets = []
    for tensor in shared:
        offsets.append(offset)
        offset += _whole_pages(tensor.size + (element_bytes(tensor.dtype) or 0))
    return manifest(offsets, offset)


def why_private(tensor: Tensor) -> str:
    """Why a tensor cannot be shared; empty where it can."""
    known = tfs.DATA_TYPES.get(tensor.dtype)
    text = known.text if known else f"number {tensor.dtype}"
    if text == "string":
        return text
    # The quantized types are none of NumPy's: no array of theirs can be handed to TensorFlow without a copy.
    if element_bytes(tensor.dtype) is None or text.startswith("q"):
        return f"dtype {text}"
    if not math.prod(tensor.shape):
        return "empty"
    if tensor.size % ALIGNMENT:
        return f"its size is no multiple of {ALIGNMENT} bytes"
    return ""


def _whole_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
