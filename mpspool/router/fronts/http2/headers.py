"""Header blocks: HPACK (RFC 7541) in and out, and what a gRPC request says in its headers.

A client that repeats itself sends the same few bytes in every header block, or, where it sends a deadline that
differs, the same fields but for one. So what a block means is remembered while the dynamic table does not
change, and what the fields mean is remembered for good.

What is written here uses no dynamic table: a block is then always the same bytes, and needs no order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from hpack.exceptions import HPACKError
from hpack.hpack import decode_integer, encode_integer
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from mpspool.core.http2_frames import ErrorCode, ProtocolError

Field = tuple[bytes, bytes]

TABLE_BYTES = 4096

_FIELD_OVERHEAD = 32
# That a block may begin with (RFC 7541, section 4.2): the least that there was since the block before, and the last.
_SIZE_UPDATES = 2
# A list so many times as long as allowed is not even read to its end, though the table needs it.
_FAR_TOO_LONG = 4
# Of what a connection's client makes up, what is remembered: some 500 KiB at most.
_BLOCKS, _BLOCK_BYTES, _BLOCKS_BYTES = 64, 512, 2**17
_HEADS, _HEAD_BYTES = 32, 2048
# Of memory, that a field of the metadata takes beside its bytes.
_KEPT_OVERHEAD = 128

_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_UNIT_NS = {
    b"H": 3_600_000_000_000, b"M": 60_000_000_000, b"S": 1_000_000_000, b"m": 1_000_000, b"u": 1_000, b"n": 1,
}  # fmt: skip
_LENGTH = re.compile(rb"\d{1,18}")
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE = re.compile(rb"[\x00\r\n]")
_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
# Of a connection, not of a request (RFC 9113, section 8.2.2).
_FORBIDDEN = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
_RESERVED = frozenset((b"te", b"content-type", b"content-length", b"host"))
_GRPC_PREFIX = b"grpc-"


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What a request's headers say.

    Attributes:
        timeout_ns: of grpc-timeout; None for none, -1 for one that is malformed.
        encoding: of grpc-encoding; "identity" for none.
        content_length: -1 for none.
        metadata: what is neither HTTP's nor gRPC's own, by lower-case name; values of one name are joined by commas.
        peer: who sent it.
        malformed: why it is no request (RFC 9113, section 8.1.1); empty for one that is.
        trailers: it is none, and may end one: it has no pseudo-header.
        oversized: it was longer than allowed, and nothing else is known of it.
        kept_bytes: of memory, for what its sender says of itself, or nearly so.
    """

    method: str = ""
    path: str = ""
    content_type: str = ""
    timeout_ns: int | None = None
    encoding: str = "identity"
    content_length: int = -1
    metadata: Mapping[str, str] = field(default_factory=dict)
    peer: str = ""
    malformed: str = ""
    trailers: bool = False
    oversized: bool = False
    kept_bytes: int = 0

    @property
    def is_call(self) -> bool:
        """Whether it is a call of gRPC."""
        kind = self.content_type
        return self.method == "POST" and kind.startswith("application/grpc") and kind[16:17] in ("", "+", ";")

    def is_due(self, open_s: float) -> bool:
        """Whether its time may have run out by its sender's clock, so long after it was read: half of it is over by ours."""
        return self.timeout_ns is not None and 0 < self.timeout_ns <= open_s * 2e9


class HeaderDecoder:
    """The reading half of HPACK, for one connection.

    Args:
        peer: for RequestHead.peer.
        max_list_bytes: as SETTINGS_MAX_HEADER_LIST_SIZE counts them.
    """

    def __init__(self, peer: str, max_list_bytes: int) -> None:
        self._peer = peer
        self._max_list_bytes = max_list_bytes
        self._table = HeaderTable()
        self._blocks: dict[bytes, RequestHead] = {}
        self._blocks_bytes = 0
        self._heads: dict[tuple[Field, ...], RequestHead] = {}

    def knows(self, block: bytes) -> bool:
        """Whether what it means is remembered: to decode it takes no time."""
        return block in self._blocks

    def decode(self, block: bytes) -> RequestHead:
        """Raises ProtocolError for what is no block or far too long: the table is not the peer's any more."""
        head = self._blocks.get(block)
        return self._decode(block) if head is None else head

    def _decode(self, block: bytes) -> RequestHead:
        try:
            fields, timeout, list_bytes, changes = self._fields(block)
        except (HPACKError, IndexError) as error:
            raise ProtocolError(ErrorCode.COMPRESSION_ERROR, f"header block: {error}") from None
        if list_bytes > self._max_list_bytes:
            head = RequestHead(peer=self._peer, oversized=True)
        else:
            head = self._head(tuple(fields), list_bytes)
            if timeout is not None:
                head = replace(head, timeout_ns=_timeout_ns(timeout))
        if changes:
            self._forget_blocks()
        elif len(block) <= _BLOCK_BYTES:
            if len(self._blocks) >= _BLOCKS or self._blocks_bytes + head.kept_bytes > _BLOCKS_BYTES:
                self._forget_blocks()
            self._blocks[block] = head
            self._blocks_bytes += head.kept_bytes
        return head

    def _forget_blocks(self) -> None:
        self._blocks.clear()
        self._blocks_bytes = 0

    def _fields(self, block: bytes) -> tuple[list[Field], bytes | None, int, bool]:
        """The fields but grpc-timeout, its value, the size of all, and whether the table was changed.

        Of a list over the limit no more fields are kept; the table follows it to the end all the same.
        """
        fields: list[Field] = []
        timeout: bytes | None = None
        list_bytes, changes, updates_left = 0, False, _SIZE_UPDATES
        position, end = 0, len(block)
        while position < end:
            byte = block[position]
            if byte & 0x80:
                index, position = _integer(block, position, 7)
                found = self._table.get_by_index(index)
            elif byte & 0x40:
                found, position = self._literal(block, position, 6)
                self._table.add(*found)
                changes = True
            elif byte & 0x20:
                size, position = _integer(block, position, 5)
                if not updates_left or size > TABLE_BYTES:
                    raise HPACKError("a size update where it may not be, or too large")
                self._table.maxsize = size
                updates_left -= 1
                changes = True
                continue
            else:
                found, position = self._literal(block, position, 4)
            updates_left = 0
            list_bytes += len(found[0]) + len(found[1]) + _FIELD_OVERHEAD
            if list_bytes > _FAR_TOO_LONG * self._max_list_bytes:
                raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "headers that are far too long")
            if found[0] == b"grpc-timeout":
                timeout = found[1]
            elif list_bytes <= self._max_list_bytes:
                fields.append(found)
        return fields, timeout, list_bytes, changes

    def _literal(self, block: bytes, position: int, bits: int) -> tuple[Field, int]:
        index, position = _integer(block, position, bits)
        if index:
            name = self._table.get_by_index(index)[0]
        else:
            name, position = _string(block, position)
        value, position = _string(block, position)
        return (name, value), position

    def _head(self, fields: tuple[Field, ...], list_bytes: int) -> RequestHead:
        head = self._heads.get(fields)
        if head is None:
            head = _read(fields, self._peer)
            if list_bytes <= _HEAD_BYTES:
                if len(self._heads) >= _HEADS:
                    self._heads.clear()
                self._heads[fields] = head
        return head


def _integer(block: bytes, position: int, bits: int) -> tuple[int, int]:
    """Value and the position after it. Raises IndexError or HPACKError."""
    most = (1 << bits) - 1
    value = block[position] & most
    if value < most:
        return value, position + 1
    value, consumed = decode_integer(block[position : position + 8], bits)
    return value, position + consumed


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    coded = block[position] & 0x80
    size, start = _integer(block, position, 7)
    stop = start + size
    if stop > len(block):
        raise HPACKError("a string goes past the end")
    text = block[start:stop]
    return (bytes(decode_huffman(text)) if coded else text), stop


def _timeout_ns(text: bytes) -> int:
    found = _TIMEOUT.fullmatch(text)
    return int(found[1]) * _UNIT_NS[found[2]] if found else -1


def _read(fields: tuple[Field, ...], peer: str) -> RequestHead:
    """Whether these are a request's headers, and what they say."""
    pseudo: dict[bytes, str] = {}
    known: dict[bytes, str] = {}
    metadata: dict[str, str] = {}
    for name, raw in fields:
        value = raw.strip(b" \t").decode("latin-1")
        if name[:1] == b":":
            if name not in _PSEUDO or name in pseudo or known or metadata:
                return _malformed(peer, f"{name!r} twice, unknown or after other fields")
            pseudo[name] = value
        elif not _NAME.fullmatch(name) or _BAD_VALUE.search(raw) or name in _FORBIDDEN:
            return _malformed(peer, f"the field {name!r} may not be in a request")
        elif name in _RESERVED or name.startswith(_GRPC_PREFIX):
            if name == b"te" and value.lower() != "trailers":
                return _malformed(peer, "te is not trailers")
            if name == b"content-length" and not (_LENGTH.fullmatch(raw) and known.get(name, value) == value):
                return _malformed(peer, "content-length is no number, or two of them")
            known[name] = value
        else:
            text = name.decode("latin-1")
            metadata[text] = f"{metadata[text]},{value}" if text in metadata else value
    if missing := [name for name in (b":method", b":scheme", b":path") if not pseudo.get(name)]:
        return _malformed(peer, f"there is no {missing[0].decode()}", trailers=not pseudo)
    kept = sum(map(len, pseudo.values())) + sum(map(len, known.values()))
    kept += sum(len(name) + len(value) + _KEPT_OVERHEAD for name, value in metadata.items())
    return RequestHead(
        method=pseudo[b":method"],
        path=pseudo[b":path"],
        content_type=known.get(b"content-type", ""),
        encoding=known.get(b"grpc-encoding", "identity"),
        content_length=int(known.get(b"content-length", -1)),
        metadata=MappingProxyType(metadata),
        peer=peer,
        kept_bytes=kept,
    )


def _malformed(peer: str, why: str, *, trailers: bool = False) -> RequestHead:
    return RequestHead(peer=peer, malformed=why, trailers=trailers)


def encode(*fields: Field) -> bytes:
    """A header block that any peer can read at any time."""
    return b"".join(_encode(name, value) for name, value in fields)


def _encode(name: bytes, value: bytes) -> bytes:
    index, values = HeaderTable.STATIC_TABLE_MAPPING.get(name, (0, {}))
    if value in values:
        return bytes((0x80 | values[value],))
    key = bytes(encode_integer(index, 4)) if index else b"\x00" + bytes(encode_integer(len(name), 7)) + name
    return key + bytes(encode_integer(len(value), 7)) + value
