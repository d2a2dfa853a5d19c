"""A request's JSON document, and how errors show parts of it. Rules and words are TensorFlow Serving's (util/json_tensor.cc)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

from mpspool.core.errors import Code, PoolError, invalid

# Lists and objects of a document: empty ones take 30 times their two or three bytes while it is read.
MAX_NODES = 2**24
_MAX_SHOWN_BYTES = 256
_INDENT = 4
_SIGNATURE = "signature_name"
# What orjson refuses and TensorFlow Serving takes: NaN, Infinity, bytes in strings that are not UTF-8, and anything
# after the document's end.
_LENIENT = json.JSONDecoder()
# Other words for these numbers, and strings, in which they are none.
_OTHER_NUMBERS = re.compile(r"-NaN|Inf(?!inity)")
# One without an end goes on to the document's: else all that it holds would be looked at again and again.
_TOKENS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|' + _OTHER_NUMBERS.pattern, re.DOTALL)
_READ_AS = {"-NaN": "NaN", "Inf": "Infinity"}
# An escaped pair of surrogates, one without its other half, and any other escape.
_ESCAPES = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)
# What the parser there says, by what ours says.
_TEXTS = {
    "Expecting value": "Invalid value.",
    "Expecting property name enclosed in double quotes": "Missing a name for object member.",
    "Expecting ':' delimiter": "Missing a colon after a name of object member.",
    "Expecting ',' delimiter": "Missing a comma, or a bracket at the end.",
    "Unterminated string starting at": "Missing a closing quotation mark in string.",
    "Invalid \\escape": "Invalid escape character in string.",
    "Invalid \\uXXXX escape": "Incorrect hex digit after \\u escape in string.",
    "Invalid control character at": "Invalid encoding in string.",
}


def parse(body: bytes) -> dict[str, Any]:
    """The document, which has to be an object.

    Raises:
        PoolError: INVALID_ARGUMENT, it is none; RESOURCE_EXHAUSTED, it has more than MAX_NODES lists and objects.
    """
    if len(body) > MAX_NODES and (nodes := body.count(b"[") + body.count(b"{")) > MAX_NODES:
        text = f"The document has {nodes} lists and objects, more than {MAX_NODES}; send fewer rows at once, or use gRPC"
        raise PoolError(Code.RESOURCE_EXHAUSTED, text)
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = _parse_leniently(body)
    if not isinstance(document, dict):
        raise wrong(document, "Is not object")
    return document


def _parse_leniently(body: bytes) -> Any:
    if not body.strip():
        raise invalid("JSON Parse error: The document is empty")
    text = body.decode("utf-8-sig", "surrogateescape")
    if _OTHER_NUMBERS.search(text):
        text = _TOKENS.sub(lambda token: _READ_AS.get(token[0], token[0]), text)
    try:
        document, end = _LENIENT.raw_decode(text, len(text) - len(text.lstrip()))
    except json.JSONDecodeError as error:
        raise _unread(_TEXTS.get(error.msg, f"{error.msg}."), text, error.pos) from None
    except RecursionError:
        raise invalid("JSON Parse error: The document is nested too deeply.") from None
    except ValueError:  # of more digits than Python reads
        raise invalid("JSON Parse error: Number too big to be stored in double.") from None
    half = next((escape for escape in _ESCAPES.finditer(text, 0, end) if escape[1]), None)
    if half is not None:
        raise _unread("The surrogate pair in string is invalid.", text, half.start())
    return document


def _unread(why: str, text: str, at: int) -> PoolError:
    return invalid(f"JSON Parse error: {why} at offset: {len(as_bytes(text[:at]))}")


def as_bytes(text: str) -> bytes:
    """A string of the document, as it came."""
    return text.encode("utf-8", "surrogateescape")


def signature_of(document: dict[str, Any]) -> str:
    """The signature asked for; "" where none is named. Raises PoolError."""
    name = document.get(_SIGNATURE, "")
    if not isinstance(name, str):
        raise wrong(document, f"not formatted correctly. '{_SIGNATURE}' key must be a string value.")
    return name


def wrong(value: Any, what: str) -> PoolError:
    """The error about a part of the document."""
    return invalid(f"JSON Value: {shown(value)} {what}")


def shown(value: Any) -> str:
    """A part of the document, cut short."""
    text, size = [], 0
    for piece in _pieces(value, 0):
        if size >= _MAX_SHOWN_BYTES:
            break
        text.append(piece)
        size += len(piece.encode(errors="replace"))
    return "".join(text)


def _pieces(value: Any, level: int) -> Iterator[str]:
    """Objects over several lines, arrays on one, as TensorFlow Serving shows them."""
    if isinstance(value, dict):
        yield "{"
        for number, (key, item) in enumerate(value.items()):
            yield f"{',' if number else ''}\n{' ' * _INDENT * (level + 1)}{json.dumps(key, ensure_ascii=False)}: "
            yield from _pieces(item, level + 1)
        yield f"\n{' ' * _INDENT * level}}}" if value else "}"
    elif isinstance(value, list):
        yield "["
        for number, item in enumerate(value):
            if number:
                yield ", "
            yield from _pieces(item, level)
        yield "]"
    else:
        yield json.dumps(value, ensure_ascii=False)


def kind_of(value: Any) -> str:
    """What JSON calls it."""
    if isinstance(value, bool):
        return "True" if value else "False"
    if value is None:
        return "Null"
    names: dict[type, str] = {dict: "Object", list: "Array", str: "String"}
    return names.get(type(value), "Number")
