"""structlog over the standard library: one line an event, JSON when not a terminal."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any, TextIO

import structlog


class _Unbreakable:
    """A stream whose reader may go away: what a process has to end in order must not fail for want of a log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._stream.flush()


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
        logger_factory=structlog.WriteLoggerFactory(file=_Unbreakable(sys.stderr)),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(**context)


def get(name: str) -> Any:
    """A logger that names its component."""
    return structlog.get_logger(component=name)
