"""A length of time as options say it."""

from __future__ import annotations

import re

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?|\.\d{1,9}) ?(ms|s|m|h)?", re.ASCII)
# Of a stretch of time that is looked at.
LEAST_S = 0.001
# Thirty years: select(), sleep() and gRPC take no time without an end.
MOST_S = 1e9
FORM = "write a number and ms, s, m or h, as 500ms, 30s or 2m"


def parse(text: str) -> float | None:
    """In seconds, as which a number alone counts, MOST_S at most; None for what is not written so."""
    found = _DURATION.fullmatch(text.strip())
    return min(float(found[1]) * _UNITS_S[found[2] or "s"], MOST_S) if found else None
