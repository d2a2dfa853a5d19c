"""How many rows a REST request has, and of which signature, guessed from its bytes: the router does not parse JSON. Pure.

The first row is looked at bracket by bracket; the others are taken to be like it, and counted by theirs. What stands in strings counts
for nothing. Rows that differ make the guess wrong: a batch is larger or smaller than it should be, and a request that seems larger than
the room in its queue is refused.
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
        at = body.find(key)
        if at >= 0 and (found := _LIST.match(body, at + len(key))):
            return _like_the_first(body, found.end())
    at = body.find(_COLUMNS)
    if at >= 0 and (found := _INPUT.match(body, at + len(_COLUMNS))):
        return _like_the_first(body, found.end())
    return 1


def _like_the_first(body: bytes, start: int) -> int:
    """The elements of the list whose first begins there."""
    opening = body[start : start + 1]
    if opening not in (b"[", b"{"):
        return _outside(body, start, b",]").partition(b"]")[0].count(b",") + 1
    brackets = _outside(body, start, _BRACKETS)
    row = _first(brackets)
    if not row:
        return 1
    # The last row ends as the first does, and the list with it.
    end = row[max(row.rfind(b"["), row.rfind(b"{")) + 1 :] + b"]"
    return max(1, brackets.partition(end)[0].count(opening) // row.count(opening))


def _first(brackets: bytes) -> bytes:
    """Those of the first row; none where it has too many, or does not end."""
    depth = 0
    for count, bracket in enumerate(brackets[:_MOST_BRACKETS], 1):
        depth += 1 if bracket in b"[{" else -1
        if not depth:
            return brackets[:count]
    return b""


def _outside(body: bytes, start: int, marks: bytes) -> bytes:
    """All of these bytes, in their order, that stand behind there and in no string."""
    others = _BYTES.translate(None, marks + b'"')
    found = []
    half = b""  # of an escape, whose other half is in the next block
    for at in range(start, len(body), _BLOCK_BYTES):
        block = half + body[at : at + _BLOCK_BYTES]
        half = b""
        if b"\\" in block:
            block = block.replace(rb"\\", b"")
            half = block[-1:] if block.endswith(b"\\") else b""
            block = block.replace(rb"\"", b"")
        # Two quotes together, of one string or of two, leave all else within a string, or without, as it was.
        found.append(block.translate(None, others).replace(b'""', b""))
    return b"".join(b"".join(found).split(b'"')[::2])
