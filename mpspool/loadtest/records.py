"""TFRecord files of PredictionLogs, as TensorFlow Serving's warm-up requests are kept, without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import DecodeError

from mpspool.core import tfs
from mpspool.core.tfrecord import CRC, LENGTH, masked_crc


class RecordError(Exception):
    """The file is damaged, or holds what cannot be sent."""


def are_records(data: bytes) -> bool:
    """Whether a file begins as a TFRecord does: with a length, and the right checksum of it."""
    if len(data) < LENGTH.size:
        return False
    _, crc = LENGTH.unpack_from(data)
    return bool(crc == masked_crc(data[:8]))


def records(data: bytes) -> Iterator[bytes]:
    """Raises RecordError for bytes that are not those that were written."""
    at, number = 0, 0
    while at < len(data):
        number += 1
        if len(data) - at < LENGTH.size:
            raise RecordError(f"record {number} is broken off")
        length, crc = LENGTH.unpack_from(data, at)
        if crc != masked_crc(data[at : at + 8]):
            raise RecordError(f"the length of record {number} does not have its checksum")
        begin = at + LENGTH.size
        at = begin + length + CRC.size
        if at > len(data):
            raise RecordError(f"record {number} is broken off")
        record = data[begin : begin + length]
        if CRC.unpack_from(data, begin + length)[0] != masked_crc(record):
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
