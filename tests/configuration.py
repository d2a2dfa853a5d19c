"""The configuration of a pool, as a test wants it: right, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mpspool.core.errors import StartError
from mpspool.supervisor.config.schema import PoolConfig, read_config


def load_config(file: Path | None, flags: Mapping[str, object], environ: Mapping[str, str]) -> PoolConfig:
    """As read_config(). Raises StartError with every problem, where there is one."""
    config, findings = read_config(file, flags, environ)
    if problems := findings.told():
        raise StartError(problems)
    return config
