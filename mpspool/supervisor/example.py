"""What a model may be asked to begin with, from its signature."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

UNKNOWN = '{"INPUT": [...]}'
_MAX_ELEMENTS = 16


def example_input(signatures: bytes) -> str:
    """JSON for `mpspool predict --input`.

    A value for each input whose shape is known, but perhaps for its batch, and is small; [...] for any other, and
    UNKNOWN where there is no default signature.

    Args:
        signatures: a serialised SignatureDefMap.
    """
    from mpspool.core import tfs

    known = tfs.SignatureDefMap.FromString(signatures).signature_def
    return _document(known[tfs.DEFAULT_SIGNATURE]) if tfs.DEFAULT_SIGNATURE in known else UNKNOWN


def _document(signature: Any) -> str:
    needed = {alias: signature.inputs[alias] for alias in sorted(signature.inputs)}
    needed = {alias: info for alias, info in needed.items() if alias not in signature.defaults}
    # One batch for all of them: three where each is a list of numbers, or less.
    batch = 3 if all(len(info.tensor_shape.dim) < 2 for info in needed.values()) else 1
    parts = [f"{json.dumps(alias)}: {_value(info, batch)}" for alias, info in needed.items()]
    return f"{{{', '.join(parts)}}}"


def _value(info: Any, batch: int) -> str:
    """JSON of a value that the input takes; "[...]" where that is not simple."""
    samples = _samples(info.dtype)
    sizes = [dimension.size for dimension in info.tensor_shape.dim]
    if sizes[:1] == [-1]:
        sizes[0] = batch
    if (
        info.WhichOneof("encoding") != "name"
        or info.tensor_shape.unknown_rank
        or min(sizes, default=1) < 0
        or math.prod(sizes) > _MAX_ELEMENTS
        or not samples
    ):
        return "[...]"
    return json.dumps(_nested(sizes, itertools.cycle(samples)))


def _samples(dtype: int) -> tuple[Any, ...]:
    """Elements of that type; none where it cannot be sent as JSON."""
    from mpspool.core import tfs

    known = tfs.DATA_TYPES.get(dtype)
    if known is None or not known.field:
        return ()
    if known.text.startswith(("int2", "uint2")):
        return (1, 0)
    return {"string": ("a", "b", "c"), "bool": (True, False)}.get(known.text, (1, 2, 5))


def _nested(sizes: list[int], samples: Iterator[Any]) -> Any:
    return [_nested(sizes[1:], samples) for _ in range(sizes[0])] if sizes else next(samples)
