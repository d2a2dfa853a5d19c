"""What a client may send along with a gRPC call (grpc/doc/PROTOCOL-HTTP2.md, Custom-Metadata). Pure."""

from __future__ import annotations

import re

_KEY = re.compile(r"(?!grpc-)[0-9a-z_.-]+")
_VALUE = re.compile(r"[\x20-\x7e]*")
_BINARY = "-bin"
# gRPC's and HTTP's own.
_RESERVED = frozenset(
    {"te", "content-type", "content-length", "user-agent", "connection", "transfer-encoding", "host"}
)


class MetadataError(ValueError):
    """No such key or value can be sent."""


def is_text_key(key: str) -> bool:
    """Whether a client may have text under this key, which is in lower-case letters: gRPC keeps grpc- to itself, and under -bin are bytes."""
    return _KEY.fullmatch(key) is not None and not key.endswith(_BINARY)


def value(key: str, text: str) -> str | bytes:
    """What is sent for this text under that key: bytes where the key ends in "-bin".

    Raises:
        MetadataError: the key is none, or not the caller's, or takes other values.
    """
    if not _KEY.fullmatch(key) or key in _RESERVED:
        raise MetadataError(
            f"{key!r} is no key of metadata: lower-case letters, digits, '-', '_' and '.',"
            " and none of gRPC's or HTTP's own"
        )
    if key.endswith(_BINARY):
        return text.encode(errors="surrogateescape")  # as the command line has bytes that are no text
    if not _VALUE.fullmatch(text):
        raise MetadataError(f"the value of {key!r} is no printable ASCII; a key that ends in -bin takes any")
    return text
