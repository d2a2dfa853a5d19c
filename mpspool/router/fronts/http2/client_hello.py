"""What a TLS client begins with, before the library has it: that it is TLS, and which protocols it offers (RFC 7301)."""

from __future__ import annotations

import enum
from dataclasses import dataclass

_HANDSHAKE, _CLIENT_HELLO, _ALPN = 22, 1, 16
_RECORD_HEAD_BYTES = 5
# With post-quantum keys it is some 2 KiB, with the ticket of a session that had a client's certificates some more.
_MAX_BYTES = 2**15
# They are all read again with each piece that comes, and anyone may send pieces of one byte.
_MAX_RECORDS = 64


class Kind(enum.Enum):
    """What the first bytes are."""

    CUT = "to be continued"
    CLEAR = "no TLS"
    HELLO = "a ClientHello"


@dataclass(frozen=True, slots=True)
class Hello:
    """What is known so far.

    Attributes:
        offered: by ALPN; empty where it offers nothing, or what it says cannot be read.
    """

    kind: Kind
    offered: tuple[bytes, ...] = ()


def read(data: bytes) -> Hello:
    """Of all the bytes that have come so far, of which there is one."""
    message = b""
    position = 0
    for _ in range(_MAX_RECORDS):
        if data[position : position + 1] not in (bytes([_HANDSHAKE]), b""):
            return Hello(Kind.CLEAR)
        if data[position + 1 : position + 2] not in (b"\x03", b""):  # of the version, in all there are
            return Hello(Kind.CLEAR)
        if position > _MAX_BYTES:
            return Hello(Kind.CLEAR)
        begin = position + _RECORD_HEAD_BYTES
        size = int.from_bytes(data[position + 3 : begin], "big")
        if len(data) < begin + size or len(data) < begin:
            return Hello(Kind.CUT)
        message += data[begin : begin + size]
        if message and message[0] != _CLIENT_HELLO:
            return Hello(Kind.CLEAR)
        if len(message) >= 4 and len(message) >= 4 + int.from_bytes(message[1:4], "big"):
            return Hello(Kind.HELLO, _offered(message[4 : 4 + int.from_bytes(message[1:4], "big")]))
        position = begin + size
    return Hello(Kind.CLEAR)


def _offered(body: bytes) -> tuple[bytes, ...]:
    try:
        rest = body[2 + 32 :]
        _, rest = _take(rest, 1)  # the session's id
        _, rest = _take(rest, 2)  # ciphers
        _, rest = _take(rest, 1)  # compressions
        extensions, _ = _take(rest, 2) if rest else (b"", b"")
        while extensions:
            kind = int.from_bytes(extensions[:2], "big")
            content, extensions = _take(extensions[2:], 2)
            if kind == _ALPN:
                return tuple(_names(_take(content, 2)[0]))
    except ValueError:  # the library will refuse it
        pass
    return ()


def _names(listed: bytes) -> list[bytes]:
    found = []
    while listed:
        name, listed = _take(listed, 1)
        found.append(name)
    return found


def _take(data: bytes, head: int) -> tuple[bytes, bytes]:
    """What has its length before it, and the rest. Raises ValueError."""
    size = int.from_bytes(data[:head], "big")
    if len(data) < head + size:
        raise ValueError
    return data[head : head + size], data[head + size :]
