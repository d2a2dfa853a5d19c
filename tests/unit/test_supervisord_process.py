"""What supervisord does with logs that cannot be written."""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

from supervisor.loggers import LevelsByName, LogRecord

from mpspool.supervisor.supervisord_process import Rotating


class _Full(io.BytesIO):
    """A file on a full disk: what it has kept back is not to be written, and it is closed all the same."""

    def close(self) -> None:
        super().close()
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_log_that_cannot_be_put_aside_goes_on(tmp_path: Path) -> None:
    """It neither ends who writes it, nor stays closed."""
    log: Any = Rotating(str(tmp_path / "log"), maxBytes=10, backupCount=1)
    log.stream.close()
    log.stream = _Full()
    for line in ("is lost, which is no harm", "is there"):
        log.emit(LogRecord(LevelsByName.INFO, line))
    log.close()
    assert "is there" in "".join(file.read_text() for file in tmp_path.iterdir())
