"""structlog over the standard library: one line an event, JSON when not a terminal."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from mpspool.core.lossy import Lossy


def configure(**context: Any) -> None:
    """Sets up logging to stderr for this process and binds its context (worker, gpu, model ...)."""
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        # Whoever reads it may go away.
        logger_factory=structlog.WriteLoggerFactory(file=Lossy(sys.stderr, BrokenPipeError)),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(**context)


def get(name: str) -> Any:
    """A logger that names its component."""
    return structlog.get_logger(component=name)
