"""A stream that takes less than it is given. Standard library only."""

from __future__ import annotations

import contextlib
from typing import TextIO


class Lossy:
    """What cannot be written is lost: what a process has to do must not fail for want of a log.

    Args:
        stream: where the rest goes.
        losing: the failures that are borne.
    """

    def __init__(self, stream: TextIO, losing: type[OSError] = OSError) -> None:
        self._stream = stream
        self._losing = losing

    def write(self, text: str) -> None:
        with contextlib.suppress(self._losing):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(self._losing):
            self._stream.flush()
