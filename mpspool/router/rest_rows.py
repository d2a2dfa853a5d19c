"""How many rows a REST request has, and of which signature, guessed from its bytes: the router does not parse JSON. Pure.

The first row is looked at bracket by bracket; the others are taken to be like it, and counted by theirs: as far as a few milliseconds
go, and beyond that by their bytes, for all others wait meanwhile. What stands in strings counts for nothing. Rows that differ make the
guess wrong: a batch is larger or smaller than it should be, and a request that seems larger than the room in its queue is refused.
"""

from __future__ import annotations

import re

_LISTS = (b'"instances"', b'"examples"')
_COLUMNS = b'"inputs"'
_LIST = re.compile(rb"\s*:\s*\[\s*")
# The first input, or all of the only one: {"inputs": {"x": [, or {"inputs": [.
_INPUT = re.compile(rb'\s*:\s*(?:\{\s*"[^"]*"\s*:\s*)?\[\s*')
_BRACKETS = b"[]{}"
# Of the first row: one with more is not looked at any further.
_MOST_BRACKETS = 512
_BYTES = bytes(range(256))
# Of a body as much is copied at a time.
_BLOCK_BYTES = 64 * 1024
# Of a body no more is looked at than so many bytes, or so many of those that rows are told by.
_MOST_BYTES = 2**21
_MOST_MARKS = 2**18
# Within a string the quotes of the key would have backslashes before them.
_SIGNATURE = re.compile(rb'"signature_name"\s*+:\s*+"([^"\\]{1,256})"')
# It stands before the rows or behind them.
_SIGNATURE_WITHIN = 512


def rest_signature(body: bytes) -> str:
    """The signature that a request names, in the bytes that it begins or ends with; "" where there is none to be seen."""
    found = _SIGNATURE.search(body, 0, _SIGNATURE_WITHIN)
    if found is None and len(body) > _SIGNATURE_WITHIN:
        found = _SIGNATURE.search(body, len(body) - _SIGNATURE_WITHIN)
    return found[1].decode(errors="replace") if found else ""


def rest_rows(body: bytes) -> int:
    """Of a Predict, Classify or Regress request; 1 where nothing can be told."""
    for key in _LISTS:
        at = body.find(key, 0, _MOST_BYTES)
        if at >= 0 and (found := _LIST.match(body, at + len(key), _MOST_BYTES)):
            return _like_the_first(body, found.end())
    at = body.find(_COLUMNS, 0, _MOST_BYTES)
    if at >= 0 and (found := _INPUT.match(body, at + len(_COLUMNS), _MOST_BYTES)):
        return _like_the_first(body, found.end())
    return 1


def _like_the_first(body: bytes, start: int) -> int:
    """The elements of the list whose first begins there."""
    opening = body[start : start + 1]
    if opening not in (b"[", b"{"):
        marks, looked = _outside(body, start, b",]")
        values, end, _ = marks.partition(b"]")
        rows = values.count(b",") + 1
    else:
        marks, looked = _outside(body, start, _BRACKETS)
        row = _first(marks)
        if not row:
            return 1
        # The last row ends as the first does, and the list with it.
        values, end, _ = marks.partition(row[max(row.rfind(b"["), row.rfind(b"{")) + 1 :] + b"]")
        rows = max(1, values.count(opening) // row.count(opening))
    if end or looked == len(body):
        return rows
    return rows * (_end(body, start, looked) - start) // (looked - start)


def _end(body: bytes, start: int, looked: int) -> int:
    """Where the list ends at the latest that goes on there: without a string in it, before the name of what is next."""
    name = -1 if b'"' in body[start:looked] else body.find(b'"', looked)
    return name if name >= 0 else len(body)


def _first(brackets: bytes) -> bytes:
    """Those of the first row; none where it has too many, or does not end."""
    depth = 0
    for count, bracket in enumerate(brackets[:_MOST_BRACKETS], 1):
        depth += 1 if bracket in b"[{" else -1
        if not depth:
            return brackets[:count]
    return b""


def _outside(body: bytes, start: int, marks: bytes) -> tuple[bytes, int]:
    """All of these bytes, in their order, that stand behind there and in no string; and how far was looked."""
    others = _BYTES.translate(None, marks + b'"')
    found = []
    count, looked = 0, start
    half = b""  # of an escape, whose other half is in the next block
    while looked < min(len(body), start + _MOST_BYTES) and count < _MOST_MARKS:
        block = half + body[looked : looked + _BLOCK_BYTES]
        looked = min(len(body), looked + _BLOCK_BYTES)
        half = b""
        if b"\\" in block:
            block = block.replace(rb"\\", b"")
            half = block[-1:] if block.endswith(b"\\") else b""
            block = block.replace(rb"\"", b"")
        # Two quotes together, of one string or of two, leave all else within a string, or without, as it was.
        found.append(block.translate(None, others).replace(b'""', b""))
        count += len(found[-1])
    return b"".join(b"".join(found).split(b'"')[::2]), looked
