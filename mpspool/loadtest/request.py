"""A call that a load sends by gRPC: its bytes, made once, but for its stream id."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable

from mpspool.core import metadata
from mpspool.core.http2_frames import (
    DATA,
    DEFAULT_FRAME_BYTES,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    LARGEST_FRAME_BYTES,
    NO_TABLE,
)

_MESSAGE = struct.Struct(">BI")

_TIMEOUT_UNITS = (("u", 1e-6), ("m", 1e-3), ("S", 1.0))
_MAX_TIMEOUT = 99_999_999


def header_block(
    path: str,
    authority: str,
    named: Iterable[tuple[str, str]],
    deadline_s: float,
    *,
    secure: bool = False,
) -> bytes:
    """The headers of a gRPC call without use of the dynamic table: the same bytes wherever they are sent.

    Args:
        path: "/package.Service/Method".
        authority: HOST:PORT.
        named: the caller's own metadata; values of keys that end in "-bin" are sent in base64, as gRPC does.
        deadline_s: for grpc-timeout.
        secure: it goes by TLS.

    Raises:
        MetadataError: a key or a value is none, or it is too much for one frame.
    """
    block = b"\x83\x87" if secure else b"\x83\x86"  # :method POST, :scheme https or http
    block += b"\x04" + _string(path) + b"\x01" + _string(authority)
    # content-type and user-agent have numbers above the four bits that a literal has for them.
    block += b"\x0f\x10" + _string("application/grpc") + b"\x0f\x2b" + _string("mpspool-bench")
    last = [("te", "trailers"), ("grpc-timeout", timeout(deadline_s))]
    last += [(key, _on_the_wire(key, text)) for key, text in named]
    block += b"".join(b"\x00" + _string(key) + _string(value) for key, value in last)
    if len(block) + len(NO_TABLE) > DEFAULT_FRAME_BYTES:
        raise metadata.MetadataError(
            f"the metadata takes {len(block)} bytes; {DEFAULT_FRAME_BYTES} are the most"
        )
    return block


def _on_the_wire(key: str, text: str) -> str:
    value = metadata.value(key, text)
    return base64.b64encode(value).decode().rstrip("=") if isinstance(value, bytes) else value


def timeout(deadline_s: float) -> str:
    """For grpc-timeout: eight digits at most, and a unit."""
    for unit, seconds in _TIMEOUT_UNITS:
        if (count := round(deadline_s / seconds)) <= _MAX_TIMEOUT:
            return f"{max(1, count)}{unit}"
    return f"{_MAX_TIMEOUT}S"


def _string(text: str) -> bytes:
    data = text.encode("ascii")
    return _integer(len(data)) + data


def _integer(value: int) -> bytes:
    """With a prefix of seven bits (RFC 7541, section 5.1)."""
    if value < 127:
        return bytes((value,))
    value -= 127
    found = b"\x7f"
    while value >= 128:
        found += bytes((value % 128 + 128,))
        value //= 128
    return found + bytes((value,))


class Request:
    """A call's bytes.

    Attributes:
        number: which of the load's requests it is.
        block: its headers.
        body: the message with gRPC's prefix.
        size: of the body.
        head, middle: of the frames when the body fits into one: head, stream, middle, stream, body.
    """

    __slots__ = ("block", "body", "head", "middle", "number", "size")

    def __init__(self, block: bytes, message: bytes, number: int = 0) -> None:
        self.number = number
        self.block = block
        self.body = _MESSAGE.pack(0, len(message)) + message
        self.size = len(self.body)
        self.head = _head(HEADERS, END_HEADERS, len(block))
        self.middle = block + _head(DATA, END_STREAM, min(self.size, LARGEST_FRAME_BYTES))


def _head(kind: int, flags: int, size: int) -> bytes:
    """A frame's first five bytes: all but its stream."""
    return size.to_bytes(3, "big") + bytes((kind, flags))
