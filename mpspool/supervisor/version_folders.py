"""The version folders of a model: which there are, and whether one is whole. Light: the pool process looks every second."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

# As TensorFlow Serving's int64; longer names of digits are no versions.
MAX_VERSION = 2**63 - 1
# TensorFlow Serving's place for recorded requests.
WARMUP_FILE = Path("assets.extra") / "tf_serving_warmup_requests"
# TensorFlow Serving's place for how a version's requests are joined.
BATCHING_FILE = "batching_params.pbtxt"
SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")

_NUMBER = re.compile(r"[0-9]+", re.ASCII)


def is_number(name: str) -> bool:
    """Whether a folder of this name may be a version's."""
    return bool(_NUMBER.fullmatch(name))


def version_folders(base_path: Path, names: Iterable[str]) -> dict[int, Path]:
    """The folders among `names` that hold versions, by number.

    Folders whose names are not plain numbers, and files, are ignored. Leading zeros do not count:
    "007" is version 7, as in TensorFlow Serving. Of two folders for one version the name without
    zeros is taken (TensorFlow Serving takes whichever the file system lists last).
    """
    # Longest first, so that the spelling without zeros is what stays.
    numeric = sorted(filter(is_number, names), key=len, reverse=True)
    return {
        int(name): base_path / name
        for name in numeric
        if len(name.lstrip("0")) <= len(str(MAX_VERSION))
        and int(name) <= MAX_VERSION
        and (base_path / name).is_dir()
    }


def is_saved_model(folder: Path) -> bool:
    """Whether there is a SavedModel in it, whole or not."""
    return any((folder / name).exists() for name in SAVED_MODEL_FILES)


def stamp(folder: Path) -> str:
    """Changes with any file below the folder: names, sizes and times of change. Raises OSError."""
    found = []
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            try:
                status = os.stat(path)
            except FileNotFoundError:  # a link to nowhere
                status = os.lstat(path)
            found.append(f"{os.path.relpath(path, folder)}:{status.st_size}:{status.st_mtime_ns}")
    content = "\n".join(sorted(found)).encode(errors="surrogateescape")
    return hashlib.blake2b(content, digest_size=16).hexdigest()
