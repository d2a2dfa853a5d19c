"""What a load sends over HTTP/2, made once: the frames' heads, and a call's bytes but for its stream id."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable
from enum import IntEnum

from mpspool.core import metadata
from mpspool.core.errors import Code
from mpspool.core.http2_frames import END_HEADERS, END_STREAM, ErrorCode

# Until a server has said otherwise (RFC 9113, section 6.5.2); of the windows the most there can be, too.
FRAME_BYTES = 16384
WINDOW_BYTES = 65535
LAST_STREAM = MAX_WINDOW_BYTES = 2**31 - 1
# Before the first header block: no dynamic table, whatever size the server allows (RFC 7541, section 6.3).
NO_TABLE = b"\x20"

# Length (in two parts), type, flags, stream.
read_head = struct.Struct(">BHBBI").unpack_from
_MESSAGE = struct.Struct(">BI")
_SETTING = struct.Struct(">HI")

_TIMEOUT_UNITS = (("u", 1e-6), ("m", 1e-3), ("S", 1.0))
_MAX_TIMEOUT = 99_999_999


class Kind(IntEnum):
    """Types of frames."""

    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


# What a gRPC client makes of a stream's end without a status (grpc/doc/PROTOCOL-HTTP2.md); of all others INTERNAL.
CODE_OF_RESET = {
    ErrorCode.STREAM_CLOSED: Code.UNKNOWN,
    ErrorCode.REFUSED_STREAM: Code.UNAVAILABLE,
    ErrorCode.CANCEL: Code.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: Code.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: Code.PERMISSION_DENIED,
}
# Of HTTP's status where there is none of gRPC's (grpc/doc/http-grpc-status-mapping.md); of all others UNKNOWN.
CODE_OF_HTTP = {
    400: Code.INTERNAL,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.UNIMPLEMENTED,
    429: Code.UNAVAILABLE,
    502: Code.UNAVAILABLE,
    503: Code.UNAVAILABLE,
    504: Code.UNAVAILABLE,
}


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return head(kind, flags, len(payload)) + stream.to_bytes(4, "big") + payload


def head(kind: int, flags: int, size: int) -> bytes:
    """A frame's first five bytes: all but its stream."""
    return size.to_bytes(3, "big") + bytes((kind, flags))


def settings(values: dict[int, int]) -> bytes:
    return frame(Kind.SETTINGS, 0, 0, b"".join(_SETTING.pack(*item) for item in values.items()))


def read_settings(payload: bytes) -> Iterable[tuple[int, int]]:
    """Raises struct.error for half a setting."""
    return _SETTING.iter_unpack(payload)


def window_update(stream: int, size: int) -> bytes:
    return frame(Kind.WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big"))


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
    if len(block) + len(NO_TABLE) > FRAME_BYTES:
        raise metadata.MetadataError(f"the metadata takes {len(block)} bytes; {FRAME_BYTES} are the most")
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
        self.head = head(Kind.HEADERS, END_HEADERS, len(block))
        self.middle = block + head(Kind.DATA, END_STREAM, min(self.size, 2**24 - 1))
