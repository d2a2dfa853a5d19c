"""Whether clients of one version can be clients of another: its signatures say. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def unfit(before: bytes, after: bytes) -> str:
    """Why requests that one version answers would fail with the other; "" where they would not.

    More signatures and more outputs do no harm, nor do inputs with defaults. A dimension that one of them leaves open
    says nothing.

    Args:
        before: the signatures of the one, a serialised SignatureDefMap.
        after: those of the other.
    """
    from mpspool.core import tfs

    old = tfs.SignatureDefMap.FromString(before).signature_def
    new = tfs.SignatureDefMap.FromString(after).signature_def
    return "; ".join(_differences(old, new))


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(old):
        if name not in new:
            yield f"it has no signature {name!r}"
            continue
        where = f" in signature {name!r}"
        yield from (f"{text}{where}" for text in _inputs(old[name], new[name]))
        yield from (f"{text}{where}" for text in _outputs(old[name], new[name]))


def _inputs(old: Any, new: Any) -> Iterator[str]:
    for alias in sorted(old.inputs):
        if alias not in new.inputs:
            yield f"it has no input {alias!r}"
        else:
            yield from _tensor("input", alias, old.inputs[alias], new.inputs[alias])
    for alias in sorted(new.inputs):
        if alias not in new.defaults and (alias not in old.inputs or alias in old.defaults):
            yield f"it needs an input {alias!r}"


def _outputs(old: Any, new: Any) -> Iterator[str]:
    for alias in sorted(old.outputs):
        if alias not in new.outputs:
            yield f"it has no output {alias!r}"
        else:
            yield from _tensor("output", alias, old.outputs[alias], new.outputs[alias])


def _tensor(what: str, alias: str, old: Any, new: Any) -> Iterator[str]:
    from mpspool.core import tfs

    if old.dtype != new.dtype:
        yield (f"its {what} {alias!r} is {tfs.type_text(new.dtype)}, and was {tfs.type_text(old.dtype)}")
    if not _agree(old.tensor_shape, new.tensor_shape):
        yield f"its {what} {alias!r} has shape {_shape(new.tensor_shape)}, and had {_shape(old.tensor_shape)}"


def _agree(old: Any, new: Any) -> bool:
    if old.unknown_rank or new.unknown_rank:
        return True
    if len(old.dim) != len(new.dim):
        return False
    return all(-1 in (a.size, b.size) or a.size == b.size for a, b in zip(old.dim, new.dim, strict=True))


def _shape(shape: Any) -> str:
    return "[" + ", ".join("?" if dim.size < 0 else str(dim.size) for dim in shape.dim) + "]"
