"""`python -P -m mpspool.supervisor.supervisord_process -n -c FILE`: supervisord, which a full disk does not end.

A line that does not go into a log it puts on standard error, with why; where that is on the same disk it would fail there, too,
and take all that runs with it.
"""

import contextlib
import sys
from typing import TextIO

from supervisor.supervisord import main


class _Lossy:
    """A stream to which what cannot be written is lost."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()

    def flush(self) -> None:
        """There is nothing left to flush."""


if __name__ == "__main__":
    sys.stdout = _Lossy(sys.stdout)
    sys.stderr = _Lossy(sys.stderr)
    main()
