"""What the pool process keeps in a file for its successor, and does not end for where the file system takes nothing."""

from __future__ import annotations

from pathlib import Path

from mpspool.core import log
from mpspool.core.rundir import write_file

logger = log.get("pool")


class Kept:
    """One file. What could not be written is written later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unwritten: bytes | None = None

    def save(self, content: bytes) -> None:
        """Replaces what there is, whole or not at all."""
        try:
            write_file(self._path, content)
        except OSError as error:
            if self._unwritten is None:
                logger.warning("not kept for a successor", file=str(self._path), reason=str(error))
            self._unwritten = content
        else:
            self._unwritten = None

    def again(self) -> None:
        """Tries once more to write what could not be written."""
        if self._unwritten is not None:
            self.save(self._unwritten)
