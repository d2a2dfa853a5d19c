"""Requests as they arrive, and files of them: JSON lines, or CSV with the same names in its first line.

    {"time": 0.0132, "model": "cnn", "rows": 1, "bytes": 2048, "cost_us": 9000, "client": "a", "deadline_ms": 100}

Only `time` and `model` must be there. `mpspool record` writes the like.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from mpspool.supervisor.config.explain import nearest

_AT_LEAST_0 = msgspec.Meta(ge=0)
_SHOWN = 100


class TraceError(Exception):
    """A file is no trace: its name, the line, what is there and what should be."""


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One request, as it arrives.

    Attributes:
        time: seconds, from any origin.
        model: which service it is for.
        version: of the model, for the record: the versions of a model are one service; 0 where it is not known.
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
    version: int = 0
    signature: str = ""
    rows: Annotated[int, msgspec.Meta(ge=1)] = 1
    bytes: Annotated[int, _AT_LEAST_0] = 1000
    cost_us: Annotated[float, _AT_LEAST_0] = 0.0
    client: str = ""
    priority: Annotated[int, msgspec.Meta(ge=-999, le=999)] = 0
    deadline_ms: Annotated[float, _AT_LEAST_0] = 0.0


_REMEDY = (
    'a line is as {"time": 0.0132, "model": "cnn"}, or CSV has these names in its first line; `mpspool record` writes '
    f"what arrives at a pool; the names, which bench/sim/README.md explains, are {', '.join(Request.__struct_fields__)}"
)


def write(file: Path, requests: Iterable[Request]) -> None:
    """Writes a trace; as CSV where the file's name says so."""
    if file.suffix != ".csv":
        encode = msgspec.json.Encoder().encode
        with file.open("wb") as out:
            out.writelines(encode(request) + b"\n" for request in requests)
        return
    with file.open("w", newline="", encoding="utf-8") as table:
        writer = csv.DictWriter(table, Request.__struct_fields__)
        writer.writeheader()
        writer.writerows(msgspec.structs.asdict(request) for request in requests)


def read(file: Path) -> list[Request]:
    """The requests of a trace in the order of their times, the first one's time being 0.

    Raises:
        TraceError: the file cannot be read, is no trace, has no request, or is of one moment.
    """
    try:
        found = list(_read_csv(file) if file.suffix == ".csv" else _read_lines(file))
    except OSError as error:
        raise TraceError(
            f"cannot read {file}: {error.strerror or error}; name another with --trace"
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{file} is no CSV: {error}; {_REMEDY}") from error
    if not found:
        raise TraceError(f"{file}: there is no request in it; {_REMEDY}")
    found.sort(key=lambda one: one.time)
    if found[0].time == found[-1].time:
        raise TraceError(
            f"{file}: all of it arrives at time {found[0].time:g}, which tells no rate; {_REMEDY}"
        )
    return [msgspec.structs.replace(one, time=one.time - found[0].time) for one in found]


def _read_lines(file: Path) -> Iterator[Request]:
    decode = msgspec.json.Decoder(Request).decode
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if text := line.strip():
                try:
                    yield decode(text)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise _not_one(file, number, text.decode(errors="replace"), str(error)) from error


def _read_csv(file: Path) -> Iterator[Request]:
    with file.open(newline="", encoding="utf-8-sig") as table:
        reader = csv.DictReader(table)
        for name in reader.fieldnames or ():
            if name and name not in Request.__struct_fields__:
                near = nearest(name, Request.__struct_fields__)
                meant = f"; did you mean {near}?" if near else ""
                raise TraceError(f"{file}, line 1: {name[:_SHOWN]!r} is no name of a trace{meant}; {_REMEDY}")
        for row in reader:
            text = ",".join(",".join(one) if isinstance(one, list) else one or "" for one in row.values())
            if None in row:
                raise _not_one(file, reader.line_num, text, "more values than names")
            if None in row.values():
                raise _not_one(file, reader.line_num, text.rstrip(","), "fewer values than names")
            try:
                found = msgspec.convert({k: v for k, v in row.items() if v}, Request, strict=False)
            except msgspec.ValidationError as error:
                raise _not_one(file, reader.line_num, text, str(error)) from error
            if not math.isfinite(found.time + found.cost_us + found.deadline_ms):
                raise _not_one(file, reader.line_num, text, "time, cost_us or deadline_ms is not finite")
            yield found


def _not_one(file: Path, line: int, text: str, why: str) -> TraceError:
    return TraceError(f"{file}, line {line}, {text[:_SHOWN]!r}: {why}; {_REMEDY}")
