"""Where each tensor of a checkpoint lies in the segment, and which ones cannot be shared and why. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from mpspool.core import tfs
from mpspool.core.segment_file import MAGIC, PAGE, Manifest, Placed, Private, header
from mpspool.worker.weights.checkpoint import Tensor, element_bytes

# TensorFlow takes a slice of a buffer for a tensor of its own only where its size is a multiple of this.
ALIGNMENT = 64
# What it takes to bind a variable and to see that it stays bound is 50 KB of graph in each worker, and 2 ms.
WORTH_BYTES = 64 * 2**10
# What the exporter keeps for itself.
_BOOKKEEPING = {"_CHECKPOINTABLE_OBJECT_GRAPH", "save_counter/.ATTRIBUTES/VARIABLE_VALUE"}
# Longer in JSON than any offset.
_LONGEST = 2**63 - 1


def lay_out(
    tensors: Iterable[Tensor], model: str, version: int, source: str, *, shared: str = "auto"
) -> Manifest:
    """Places what can be shared: each tensor at the start of a page, with a spare element after it.

    Args:
        tensors: those of the checkpoint, in its order.
        model: these three are for the manifest.
        version: see model.
        source: see model.
        shared: "on" to place the small ones too, whatever it costs the workers.
    """
    taken: list[Tensor] = []
    private: list[Private] = []
    for tensor in tensors:
        if tensor.key in _BOOKKEEPING:
            continue
        reason = why_private(tensor, shared)
        if reason:
            private.append(Private(tensor.key, tensor.spec, tensor.dtype, tensor.size, reason))
        else:
            taken.append(tensor)

    def manifest(offsets: Iterable[int], size: int) -> Manifest:
        placed = [
            Placed(tensor.key, tensor.spec, tensor.dtype, tensor.shape, offset, tensor.size)
            for tensor, offset in zip(taken, offsets, strict=True)
        ]
        return Manifest(model, version, source, placed, private, size)

    longest = header(manifest([_LONGEST] * len(taken), _LONGEST))
    offset = _whole_pages(len(MAGIC) + len(longest))
    offsets = []
    for tensor in taken:
        offsets.append(offset)
        offset += _whole_pages(tensor.size + (element_bytes(tensor.dtype) or 0))
    return manifest(offsets, offset)


def why_private(tensor: Tensor, shared: str = "auto") -> str:
    """Why a tensor is not shared; empty where it is. See lay_out."""
    known = tfs.DATA_TYPES.get(tensor.dtype)
    text = known.text if known else f"number {tensor.dtype}"
    if text == "string":
        return text
    # The quantized types are none of NumPy's: no array of theirs can be handed to TensorFlow without a copy.
    if element_bytes(tensor.dtype) is None or text.startswith("q"):
        return f"dtype {text}"
    if not math.prod(tensor.shape):
        return "empty"
    small = tensor.size < WORTH_BYTES
    if small and shared != "on":
        return f"less than {WORTH_BYTES // 2**10} KiB"
    # There is another way to share these, which costs more.
    if small and tensor.size % ALIGNMENT:
        return f"less than {WORTH_BYTES // 2**10} KiB, and no multiple of {ALIGNMENT} bytes"
    return ""


def _whole_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
