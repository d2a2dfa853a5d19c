"""What a pool was started with: kept in its run folder, so that its configuration can be read again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mpspool.core.rundir import RunDir, write_file

_FILE = "origin"
_PREFIXES = ("MPSPOOL_", "CUDA_", "NVIDIA_")
_NAMES = (
    "CONTEXTS_COUNT_PER_GPU",
    "ENABLE_MPS",
    "KUBERNETES_SERVICE_HOST",
    "LD_LIBRARY_PATH",
    "MERGE_COMPUTE_COPY_STREAM",
    "PATH",
    "SESSION_GROUP_CPUSET",
    "SET_SESSION_THREAD_POOL_AFFINITY",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "container",
)


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a configuration was read from.

    Attributes:
        folder: the working folder, from which paths in flags and variables start.
        file: absolute; "" for none.
        flags: by name, those that were given.
        environ: of the environment what a configuration, and the look at the machine, go by.
        arguments: of tensorflow_model_server, in place of file and flags; None where it was not started so.
        watched: the model_config_file that is looked at for changes, absolute; "" for none.
        poll_s: how often.
        digest: of what stood in it.
    """

    folder: str
    file: str = ""
    flags: dict[str, Any] = {}
    environ: dict[str, str] = {}
    arguments: list[str] | None = None
    watched: str = ""
    poll_s: int = 0
    digest: str = ""


def here(file: Path | None, flags: Mapping[str, Any], environ: Mapping[str, str]) -> Origin:
    """Of a configuration that is read in this process."""
    return Origin(
        folder=os.getcwd(),
        file="" if file is None else os.path.abspath(file),
        flags={name: value for name, value in flags.items() if value not in (None, ())},
        environ={
            name: value for name, value in environ.items() if name.startswith(_PREFIXES) or name in _NAMES
        },
    )


def save(run: RunDir, origin: Origin) -> None:
    """By the standard library, which has an escape for bytes of a path or variable that are no UTF-8."""
    write_file(run.settings_file(_FILE), json.dumps(msgspec.to_builtins(origin), indent=1).encode())


def load(run: RunDir) -> Origin:
    """Raises OSError, or msgspec.DecodeError."""
    content = run.settings_file(_FILE).read_bytes()
    try:
        return msgspec.convert(json.loads(content), Origin)
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from error
