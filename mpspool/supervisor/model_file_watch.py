"""The model_config_file of a pool that was started as tensorflow_model_server: whether it has changed."""

from __future__ import annotations

import contextlib
import hashlib
import math
from pathlib import Path

import msgspec

from mpspool.core.rundir import RunDir
from mpspool.supervisor import origin

# Where nothing is to be looked at, whether there is something now.
_IDLE_S = 5.0
_AGAIN_S = 30.0


def digest(text: str) -> str:
    """Tells one state of a file from another."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class ModelFileWatch:
    """Looks at the file that the pool's origin names.

    Args:
        run: the pool's.
    """

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._seen: tuple[str, str] | None = None
        self._again_s = math.inf

    @property
    def poll_s(self) -> float:
        """How long until the next look."""
        return self._origin().poll_s or _IDLE_S

    def look(self, now_s: float, *, failed: bool) -> str:
        """Why the configuration should be read again; "" where it should not.

        Args:
            now_s: the time.
            failed: it did not come to hold when it was last read.
        """
        begun = self._origin()
        if not begun.poll_s or not begun.watched:
            return ""
        if self._seen is None or self._seen[0] != begun.watched:
            self._seen = begun.watched, begun.digest
        try:
            now = digest(Path(begun.watched).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            now = ""  # the reload says why
        if now != self._seen[1]:
            self._seen = begun.watched, now
            self._again_s = now_s + max(_AGAIN_S, begun.poll_s)
            return f"{begun.watched} has changed"
        due = now_s >= self._again_s
        if failed and (due or self._again_s == math.inf):
            self._again_s = now_s + max(_AGAIN_S, begun.poll_s)
        return f"{begun.watched} is tried again" if failed and due else ""

    def _origin(self) -> origin.Origin:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return origin.load(self._run)
        return origin.Origin(folder="")
