"""TFRecord files: how a record is written, and known, without TensorFlow (tsl/lib/io/record_writer.h)."""

from __future__ import annotations

import struct

import google_crc32c

LENGTH = struct.Struct("<QI")
CRC = struct.Struct("<I")
_MASK = 0xA282EAD8


def framed(record: bytes) -> bytes:
    """A record as it stands in a file."""
    length = struct.pack("<Q", len(record))
    return b"".join([length, CRC.pack(masked_crc(length)), record, CRC.pack(masked_crc(record))])


def masked_crc(data: bytes) -> int:
    """The checksum of data as TFRecord writes it."""
    return masked(google_crc32c.value(data))


def masked(crc32c: int) -> int:
    """A checksum as TensorFlow's files have it: so that one of data with checksums in it is none of theirs."""
    return ((crc32c >> 15 | crc32c << 17) + _MASK) & 0xFFFFFFFF
