"""Calls compiled in this process, which has one model: TensorFlow counts the same for itself, where Python cannot read it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Compiled:
    """How many, and in how many microseconds."""

    count: int = 0
    total_us: int = 0


COMPILED = Compiled()
