"""Children that are asked for one answer, and end."""

from __future__ import annotations

import signal


def ending(child: str, status: int, errors: str) -> str:
    """How a child ended that gave no answer.

    Args:
        child: what it did, as "the process that tried".
        status: as subprocess has it: negative where a signal ended it.
        errors: all that it wrote to stderr.
    """
    if status < 0:
        return f"{child} was ended by {signal.Signals(-status).name}"
    last = (errors.strip().splitlines() or ["it said nothing"])[-1]
    return f"{child} ended with status {status}: {last}"
