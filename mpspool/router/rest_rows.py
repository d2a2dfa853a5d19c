"""How many rows a REST request has, and of which signature, guessed from its bytes: the router does not parse JSON. Pure.

The first row is looked at bracket by bracket; the others are taken to be like it, and counted by theirs. Rows that differ, or strings
with brackets, make the guess wrong, which costs no more than a batch that is larger or smaller than it should be.
"""

from __future__ import annotations

import re

_LISTS = (b'"instances"', b'"examples"')
_COLUMNS = b'"inputs"'
_LIST = re.compile(rb"\s*:\s*\[\s*")
# The first input, or all of the only one: {"inputs": {"x": [, or {"inputs": [.
_INPUT = re.compile(rb'\s*:\s*(?:\{\s*"[^"]*"\s*:\s*)?\[\s*')
# A string that has no end goes on to the body's: where nothing matched, all that it holds would be looked at again and again.
_BRACKETS = re.compile(rb'[][{}]|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
# What stands before so many closing brackets, and they; begun nowhere but there, or each of a run too short would be looked at as often.
_CLOSE = rb"[^]\s]\s*+(?:\]\s*+){%d}"
# Of the first row: one with more is not looked at any further.
_MOST_BRACKETS = 512
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
            return _like_the_first(body, found.end(), len(body))
    at = body.find(_COLUMNS)
    if at >= 0 and (found := _INPUT.match(body, at + len(_COLUMNS))):
        return _like_the_first(body, found.end(), None)
    return 1


def _like_the_first(body: bytes, start: int, end: int | None) -> int:
    """The elements of the list whose first begins there. `end`: no bracket of another list comes before it; None for one that may."""
    opening = body[start : start + 1]
    if opening not in (b"[", b"{"):
        return _scalars(body, start)
    brackets, levels = _first(body, start, opening)
    if not brackets:
        return 1
    if end is None:
        close = re.compile(_CLOSE % (levels + 1) if opening == b"[" else rb"\}\s*+\]").search(body, start)
        end = close.start() + 1 if close else len(body)
    return max(1, body.count(opening, start, end) // brackets)


def _first(body: bytes, start: int, opening: bytes) -> tuple[int, int]:
    """How many of the brackets that it begins with the first row has, and how many of them stand together at its end; 0 for unknown."""
    depth = brackets = levels = 0
    for count, found in enumerate(_BRACKETS.finditer(body, start)):
        bracket = found[0]
        brackets += bracket == opening
        if bracket in (b"[", b"{"):
            depth += 1
            levels = max(levels, depth)
        elif bracket in (b"]", b"}"):
            depth -= 1
            if not depth:
                return brackets, levels
        if count > _MOST_BRACKETS:
            break
    return 0, 0


def _scalars(body: bytes, start: int) -> int:
    """Numbers or strings, up to the end of their list."""
    end = body.find(b"]", start)
    end = len(body) if end < 0 else end
    return body.count(b",", start, end) + 1
