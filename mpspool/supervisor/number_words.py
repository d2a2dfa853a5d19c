"""Numbers for people."""

from __future__ import annotations


def counted(number: int, word: str) -> str:
    """As "1 CPU", "2 CPUs", "1,200 operations"."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def short(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
