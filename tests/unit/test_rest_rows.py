"""How many rows a REST request has is guessed right where its rows are alike, and never raises."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpspool.router import rest_rows as rest_rows_module
from mpspool.router.rest_rows import rest_rows, rest_signature

NAMED = {"x": [1, 2], "y": {"b64": "AA=="}}
ROWS: list[Any] = [1, "a", True, [1.5, 2], [[1], [2]], {"b64": "AA=="}, ["a"] * 600]
# What rows are told by, were it in no string.
MARKS = st.text('[]{},:"\\a\n', max_size=20)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("count", [1, 2, 33])
@pytest.mark.parametrize("indent", [None, 1])
def test_rows_that_are_alike(row: Any, count: int, indent: int | None) -> None:
    """In each form, with what may stand before and after them, and spread over lines."""
    for document in (
        {"signature_name": "serving_default", "instances": [row] * count},
        {"examples": [NAMED] * count, "signature_name": "x"},
        {"inputs": [row] * count},
        {"inputs": {"x": [row] * count, "y": [[[3]]] * count}},
    ):
        assert rest_rows(json.dumps(document, indent=indent).encode()) == count, document


@given(st.lists(MARKS, min_size=1), st.integers(1, 20))
def test_what_is_in_strings_counts_for_nothing(texts: list[str], block_bytes: int) -> None:
    """Wherever a block of the body ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rest_rows_module, "_BLOCK_BYTES", block_bytes)
        for rows in (
            texts,
            [[text] for text in texts],
            [{"x": text, "y": [text]} for text in texts],
        ):
            for document in ({"instances": rows}, {"inputs": rows}, {"inputs": {"x": rows, "y": rows}}):
                assert rest_rows(json.dumps(document).encode()) == len(texts), document


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"instances": [', b'{"instances": [[', b'{"inputs": {"x": 5}}', b'{"instances": 7}'],
)
def test_what_tells_nothing_is_one_row(body: bytes) -> None:
    """The worker says what is wrong with it."""
    assert rest_rows(body) == 1


def test_a_first_row_without_an_end_is_not_gone_through() -> None:
    """Of a document of brackets the first few hundred are looked at one by one."""
    assert rest_rows(b'{"instances": ' + b"[" * 10**7) == 1


@pytest.mark.parametrize(
    "body",
    [
        b'{"instances": [["' + b'\\"' * 10**6,
        b'{"instances": [["' + b'\\"' * 10**6 + b"\\",
        b'{"inputs": {"x": ' + b"[" * 400 + b"1" + b"]" * 400 + b", " + (b"]" * 399 + b"1") * 10**4,
        b'{"inputs": {"x": ' + b"[" * 400 + b"1" + b"]" * 400 + b", " + (b"] " * 399 + b"1") * 10**4,
        b'{"inputs": {"x": [{"y": 1}, ' + b"} " * 10**6,
        b'{"instances": ["' + b"\\" * 10**6,
        b'{"instances": [[1], ' + b'"[" [' * 10**6,
    ],
    ids=["string", "escape", "closed", "closed apart", "object", "backslashes", "strings of brackets"],
)
def test_what_does_not_end_is_gone_through_once(body: bytes) -> None:
    """It would be minutes otherwise, in which the router does nothing else."""
    assert rest_rows(body) >= 1


class Watched(bytes):
    """Counts what is copied of it."""

    copied = 0

    def __getitem__(self, part: Any) -> Any:
        found = super().__getitem__(part)
        self.copied += len(found)
        return found


@pytest.mark.parametrize("row", [[1], 1, {"x": [1]}, "a", "\\", "x" * 500])
def test_of_a_long_body_a_part_is_looked_at(row: Any) -> None:
    """All others wait meanwhile: the rest is taken to be like it."""
    text = json.dumps(row).encode() + b","
    copied = []
    for count in (2**23 // len(text), 2**24 // len(text)):
        body = Watched(b'{"instances": [' + text * count + b"0]}")
        assert rest_rows(body) == pytest.approx(count, rel=1e-3)
        copied.append(body.copied)
    assert copied[0] == pytest.approx(copied[1], rel=1e-3)


@pytest.mark.parametrize("row", [[1, 2], 0.5])
def test_a_long_column_is_not_counted_with_the_next(row: Any) -> None:
    """Nor with whatever else has a name behind it."""
    column = [row] * 500_000
    for document in (
        {"inputs": {"x": column, "y": column}},
        {"inputs": column, "signature_name": "x" * 10**6},
    ):
        assert rest_rows(json.dumps(document).encode()) == pytest.approx(len(column), rel=1e-3)


def test_a_long_space_is_not_looked_at() -> None:
    """Where the rows do not begin within what is looked at there is one."""
    for start in (b'{"instances":', b'{"inputs": {"x"', b"{"):
        assert rest_rows(start + b" " * 2**22 + b'"inputs": [1, 2]}') == 1


@given(st.binary(), st.sampled_from([b'{"instances":[', b'{"inputs":{"x":[', b""]))
def test_any_bytes_have_some_rows(body: bytes, start: bytes) -> None:
    """One at least, however little of them is looked at."""
    assert rest_rows(start + body) >= 1
    with pytest.MonkeyPatch.context() as patch:
        for limit in ("_BLOCK_BYTES", "_MOST_MARKS"):
            patch.setattr(rest_rows_module, limit, 4)
        assert rest_rows(start + body) >= 1


@pytest.mark.parametrize("indent", [None, 1])
def test_the_signature_that_is_named(indent: int | None) -> None:
    """Before the rows or behind them, however many; what is within a string is none."""
    rows = [[0.5] * 100] * 100
    for document, named in (
        ({"signature_name": "a", "instances": rows}, "a"),
        ({"instances": rows, "signature_name": "b"}, "b"),
        ({"instances": rows}, ""),
        ({"instances": ['"signature_name": "c"']}, ""),
        ({"signature_name": "x" * 300, "instances": [1]}, ""),
    ):
        assert rest_signature(json.dumps(document, indent=indent).encode()) == named, named


@given(st.binary(max_size=2000))
def test_any_bytes_name_some_signature(body: bytes) -> None:
    """And raise nothing."""
    assert rest_signature(body) == "" or b"signature_name" in body
