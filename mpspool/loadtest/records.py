"""TFRecord files of PredictionLogs, as TensorFlow Serving's warm-up requests are kept, without TensorFlow."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import google_crc32c
from google.protobuf.message import DecodeError

from mpspool.core import tfs

_LENGTH = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_MASK = 0xA282EAD8


class RecordError(Exception):
    """The file is damaged, or holds what cannot be sent."""


def are_records(data: bytes) -> bool:
    """Whether a file begins as a TFRecord does: with a length, and the right checksum of it."""
    if len(data) < _LENGTH.size:
        return False
    _, crc = _LENGTH.unpack_from(data)
    return bool(crc == masked_crc(data[:8]))


def records(data: bytes) -> Iterator[bytes]:
    """Raises RecordError for bytes that are not those that were written."""
    at, number = 0, 0
    while at < len(data):
        number += 1
        if len(data) - at < _LENGTH.size:
            raise RecordError(f"record {number} is broken off")
        length, crc = _LENGTH.unpack_from(data, at)
        if crc != masked_crc(data[at : at + 8]):
            raise RecordError(f"the length of record {number} does not have its checksum")
        begin = at + _LENGTH.size
        at = begin + length + _CRC.size
        if at > len(data):
            raise RecordError(f"record {number} is broken off")
        record = data[begin : begin + length]
        if _CRC.unpack_from(data, begin + length)[0] != masked_crc(record):
            raise RecordError(f"record {number} does not have its checksum")
        yield record


def predict_requests(data: bytes) -> Iterator[bytes]:
    """The serialised PredictRequests of a file of PredictionLogs; logs of other methods are left out.

    Raises:
        RecordError: of a record that is none, or no PredictionLog.
    """
    for number, record in enumerate(records(data), 1):
        try:
            entry = tfs.PredictionLog.FromString(record)
        except DecodeError as error:
            raise RecordError(f"record {number} is no PredictionLog") from error
        if entry.WhichOneof("log_type") == "predict_log":
            yield entry.predict_log.request.SerializeToString()


def masked_crc(data: bytes) -> int:
    """As TFRecord writes a checksum: so that one of data with checksums in it is none of theirs."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
