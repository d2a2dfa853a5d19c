"""So many of something, for people."""

from __future__ import annotations


def counted(number: int, word: str) -> str:
    """As "1 CPU", "2 CPUs", "1,200 operations"."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"
