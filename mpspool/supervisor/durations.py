"""A length of time as options say it."""

from __future__ import annotations

import re

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d{1,6}(?:\.\d{1,6})?) ?(ms|s|m|h)?", re.ASCII)
LEAST_S = 0.001


def seconds(option: str, text: str) -> float:
    """What an option says; a number alone is seconds. Raises ValueError, for whoever said it."""
    found = _DURATION.fullmatch(text.strip())
    duration_s = float(found[1]) * _UNITS_S[found[2] or "s"] if found else 0.0
    if duration_s < LEAST_S:
        raise ValueError(
            f"{option} is {text!r}, which is no time of 1 ms or more; "
            "write a number and ms, s, m or h, as 500ms, 30s or 2m"
        )
    return duration_s
