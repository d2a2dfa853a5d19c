"""Whether clients of one version can be clients of another, by their signatures."""

from __future__ import annotations

from typing import Any

import pytest

from mpspool.core import tfs
from mpspool.supervisor.pool.fitness import unfit

FLOAT, INT64 = tfs.DATA_TYPES_BY_NAME["DT_FLOAT"].number, tfs.DATA_TYPES_BY_NAME["DT_INT64"].number
Tensors = dict[str, tuple[int, list[int] | None]]
X: Tensors = {"x": (FLOAT, [-1, 3])}
Y: Tensors = {"y": (FLOAT, [-1])}


def signatures(
    inputs: Tensors, outputs: Tensors, name: str = "serving_default", *, defaults: str = ""
) -> bytes:
    found = tfs.SignatureDefMap()
    signature = found.signature_def[name]
    for tensors, into in ((inputs, signature.inputs), (outputs, signature.outputs)):
        for alias, (dtype, shape) in tensors.items():
            _describe(into[alias], dtype, shape)
    if defaults:
        signature.defaults[defaults].dtype = FLOAT
    return bytes(found.SerializeToString(deterministic=True))


def _describe(info: Any, dtype: int, shape: list[int] | None) -> None:
    info.dtype = dtype
    if shape is None:
        info.tensor_shape.unknown_rank = True
    else:
        for size in shape:
            info.tensor_shape.dim.add().size = size


BEFORE = signatures(X, Y)
EXTRA: Tensors = {"z": (FLOAT, [-1])}


@pytest.mark.parametrize(
    "after",
    [
        BEFORE,
        signatures(X, Y | EXTRA),
        signatures(X | EXTRA, Y, defaults="z"),
        signatures({"x": (FLOAT, [-1, -1])}, Y),
        signatures({"x": (FLOAT, None)}, Y),
    ],
    ids=["the same", "another output", "another input with a default", "an open dimension", "an open rank"],
)
def test_what_does_clients_no_harm(after: bytes) -> None:
    """More outputs, an input that may be left out, and a shape that leaves more open."""
    assert unfit(BEFORE, after) == ""


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (signatures(X, Y, "other"), "it has no signature 'serving_default'"),
        (signatures(EXTRA, Y), "it has no input 'x' in signature 'serving_default'"),
        (signatures(X | EXTRA, Y), "it needs an input 'z' in signature 'serving_default'"),
        (signatures(X, EXTRA), "it has no output 'y' in signature 'serving_default'"),
        (signatures({"x": (INT64, [-1, 3])}, Y), "its input 'x' is int64, and was float"),
        (signatures({"x": (FLOAT, [-1, 4])}, Y), "its input 'x' has shape [?, 4], and had [?, 3]"),
        (signatures({"x": (FLOAT, [-1])}, Y), "its input 'x' has shape [?], and had [?, 3]"),
        (signatures(X, {"y": (INT64, [-1])}), "its output 'y' is int64, and was float"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_clients_would_stumble_over(after: bytes, why: str) -> None:
    """A signature, input or output that is gone, another input that is needed, another type or shape."""
    assert why in unfit(BEFORE, after)


def test_an_input_that_may_not_be_left_out_any_more() -> None:
    """Clients that leave it out would be refused."""
    before = signatures(X | EXTRA, Y, defaults="z")
    assert unfit(before, signatures(X | EXTRA, Y)) == "it needs an input 'z' in signature 'serving_default'"
    assert unfit(before, before) == ""
