"""Does a SavedModel folder look whole? What can be seen without TensorFlow, and without reading weights."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import BinaryIO

# A checkpoint index is a LevelDB table: its last 8 bytes are this number (tsl/lib/io/format.h).
_TABLE_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_SHARD = re.compile(r"variables\.data-(\d{5})-of-(\d{5})")
_EXPORT_AGAIN = "the copy is incomplete or damaged: copy or export it again"
# SavedModel: saved_model_schema_version = 1 (varint), meta_graphs = 2 (length and bytes).
_SCHEMA_TAG, _GRAPH_TAG = 0x08, 0x12


def check_saved_model(folder: Path) -> list[str]:
    """Says what is wrong with the folder's files, each with the remedy; nothing when they look whole."""
    try:
        return [f"{text}; {_EXPORT_AGAIN}" for text in [*_check_graph(folder), *_check_variables(folder)]]
    except OSError as error:
        return [f"{error.filename} cannot be read: {error.strerror}"]
    except (ValueError, OverflowError):
        return [f"{folder} announces sizes that no file has; {_EXPORT_AGAIN}"]


def _check_graph(folder: Path) -> list[str]:
    path = folder / "saved_model.pb"
    if not path.exists():
        text = folder / "saved_model.pbtxt"
        return [] if text.stat().st_size else [f"{text} is empty"]
    if path.stat().st_size == 0:
        return [f"{path} is empty"]
    with path.open("rb") as file:
        return [] if _is_whole_graph(file) else [f"{path} is cut short, or no SavedModel"]


def _is_whole_graph(file: BinaryIO) -> bool:
    """Walks the outermost fields only: a graph cut short ends before the length it announces."""
    size = os.fstat(file.fileno()).st_size
    graphs = 0
    while file.tell() < size:
        tag, value = _varint(file), _varint(file)
        if tag == _GRAPH_TAG and value is not None:
            file.seek(value, os.SEEK_CUR)
            graphs += 1
        elif tag != _SCHEMA_TAG or value is None:
            return False
    return graphs > 0 and file.tell() == size


def _varint(file: BinaryIO) -> int | None:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    return None


def _check_variables(folder: Path) -> list[str]:
    variables = folder / "variables"
    names = sorted(os.listdir(variables)) if variables.is_dir() else []
    shards = {name: match for name in names if (match := _SHARD.fullmatch(name))}
    if "variables.index" not in names:
        return [f"{variables} has weights but no variables.index"] if shards else []
    problems = (
        [] if _is_table(variables / "variables.index") else [f"{variables / 'variables.index'} is damaged"]
    )
    count = max((int(match[2]) for match in shards.values()), default=1)
    wanted = [f"variables.data-{index:05}-of-{count:05}" for index in range(count)]
    problems += [f"{variables / name} is missing" for name in wanted if name not in shards]
    return problems + [
        f"{variables / name} is empty" for name in shards if not (variables / name).stat().st_size
    ]


def _is_table(index: Path) -> bool:
    return index.read_bytes()[-len(_TABLE_MAGIC) :] == _TABLE_MAGIC
