"""Requests as they arrive, and files of them: JSON lines, or CSV with the same names in its first line.

    {"time": 0.0132, "model": "cnn", "rows": 1, "bytes": 2048, "cost_us": 9000, "client": "a", "deadline_ms": 100}

Only `time` and `model` must be there.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request, as it arrives.

    Attributes:
        time: seconds, from any origin.
        model: which service it is for.
        signature: as the client named it; "" for the default.
        rows: dimension 0 of its inputs.
        bytes: of its body.
        cost_us: what it takes of a worker's time with the device to itself; 0 where the service's means hold.
        client: whose it is.
        priority: as the client gave it.
        deadline_ms: from its arrival; 0 for none.
    """

    time: float
    model: str
    signature: str = ""
    rows: int = 1
    bytes: int = 1000
    cost_us: float = 0.0
    client: str = ""
    priority: int = 0
    deadline_ms: float = 0.0


def write(file: Path, requests: Iterable[Request]) -> None:
    """Writes a trace; as CSV where the file's name says so."""
    if file.suffix != ".csv":
        encode = msgspec.json.Encoder().encode
        with file.open("wb") as out:
            out.writelines(encode(request) + b"\n" for request in requests)
        return
    with file.open("w", newline="") as table:
        writer = csv.DictWriter(table, Request.__struct_fields__)
        writer.writeheader()
        writer.writerows(msgspec.structs.asdict(request) for request in requests)


def read(file: Path) -> list[Request]:
    """The requests of a trace in the order of their times, the first one's time being 0.

    Raises:
        ValueError: the file is no trace: msgspec.ValidationError says where.
    """
    found = sorted(_read_csv(file) if file.suffix == ".csv" else _read_lines(file), key=lambda one: one.time)
    first_s = found[0].time if found else 0.0
    return [msgspec.structs.replace(one, time=one.time - first_s) for one in found]


def _read_lines(file: Path) -> Iterator[Request]:
    decode = msgspec.json.Decoder(Request).decode
    with file.open("rb") as lines:
        yield from (decode(line) for line in lines if line.strip())


def _read_csv(file: Path) -> Iterator[Request]:
    with file.open(newline="") as table:
        for row in csv.DictReader(table):
            filled = {name: text for name, text in row.items() if text}
            yield msgspec.convert(filled, Request, strict=False)
