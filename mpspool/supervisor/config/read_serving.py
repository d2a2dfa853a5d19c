"""A command line of tensorflow_model_server, with the files that it names from this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mpspool.supervisor.config.schema import pool_fields
from mpspool.supervisor.config.tensorflow_serving import serve
from mpspool.supervisor.config.tensorflow_serving.serve import Serving


def read_serving(arguments: Sequence[str], environ: Mapping[str, str]) -> Serving:
    """As serve.read_serving(), paths starting from the working folder. Raises StartError."""
    return serve.read_serving(arguments, environ, read_text, pool_fields())


def read_text(file: str) -> str:
    """Raises OSError, or UnicodeDecodeError."""
    return Path(file).read_text(encoding="utf-8")
