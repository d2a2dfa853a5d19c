"""`python -P -m mpspool.supervisor.supervisord_process -n -c FILE`: supervisord, which a full disk does not end.

A line that does not go into a log it puts on standard error, with why; where that is on the same disk it would fail there, too,
and take all that runs with it.
"""

import contextlib
import sys

from supervisor import loggers
from supervisor.loggers import RotatingFileHandler
from supervisor.supervisord import main

from mpspool.core.lossy import Lossy


class Rotating(RotatingFileHandler):  # type: ignore[misc]
    """A log that begins anew where it cannot be put aside. Else the first line after that would end supervisord, or none be written any more."""

    def doRollover(self) -> None:  # noqa: N802  supervisor's name
        try:
            super().doRollover()
        except (OSError, ValueError):  # ValueError: it is closed already
            self.closed = True  # by who failed to, if it was open
            with contextlib.suppress(OSError):
                self.reopen()


if __name__ == "__main__":
    loggers.RotatingFileHandler = Rotating
    sys.stderr = Lossy(sys.stderr)
    main()
