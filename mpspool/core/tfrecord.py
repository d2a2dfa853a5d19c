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
    """As TFRecord writes a checksum: so that one of data with checksums in it is none of theirs."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
