"""The layers a configuration is made of, each value with where it came from."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpspool.core.errors import Problem

Location = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value stands: a flag, a variable, or a file and the line in it."""

    name: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.name} line {self.line}" if self.line else self.name


NOWHERE = Source("")


@dataclass(slots=True)
class Layer:
    """What one source says.

    Attributes:
        values: raw, by field name, nested as in the file.
        sources: where a value stands, by its location.
        problems: what could not even be read.
        left_out: the fields whose values are not here for that reason.
        complete: all of it could be read, so that what is missing is not there.
    """

    values: dict[str, object] = field(default_factory=dict)
    sources: dict[Location, Source] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    left_out: set[str] = field(default_factory=set)
    complete: bool = True

    def put(self, name: str, value: object, source: str) -> None:
        """Sets a field, or for "section.field" a field of a section, which must not be anything else."""
        *sections, last = name.split(".")
        values = self.values
        for section in sections:
            inner = values.setdefault(section, {})
            assert isinstance(inner, dict)
            values = inner
        values[last] = value
        self.sources[(*sections, last)] = Source(source)


def source_of(sources: Mapping[Location, Source], location: Location) -> Source:
    """Where the value came from: its own entry, or that of what it stands in; NOWHERE if unknown."""
    for end in range(len(location), -1, -1):
        if location[:end] in sources:
            return sources[location[:end]]
    return NOWHERE


def overlay(lower: Layer, upper: Layer) -> Layer:
    """What both say; where they differ, what the upper one says, section by section."""
    sources = {
        location: source
        for location, source in lower.sources.items()
        if not any(location[:end] in upper.sources for end in range(1, len(location) + 1))
    }
    return Layer(
        values=_merge(lower.values, upper.values),
        sources=sources | upper.sources,
        problems=lower.problems + upper.problems,
        left_out=lower.left_out | upper.left_out,
        complete=lower.complete and upper.complete,
    )


def _merge(lower: Mapping[str, object], upper: Mapping[str, object]) -> dict[str, object]:
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def dotted(location: Location) -> str:
    """A location as a person writes it: models[1].gpus."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def leave_out(values: Any, location: Location) -> None:
    """Deletes what stands there, if it does; where that is only a part of one value, all of it."""
    key, *rest = location
    if isinstance(values, dict) and key not in values:
        return
    inner = values[key]
    inside = isinstance(inner, dict) or (isinstance(inner, list) and bool(rest) and isinstance(rest[0], int))
    if rest and inside:
        leave_out(inner, tuple(rest))
    else:
        del values[key]


def rebase(values: Mapping[str, object], names: tuple[str, ...], folder: Path) -> dict[str, object]:
    """Makes the paths in these fields (a text, or a list of them) absolute, from `folder`.

    "section.field" names a field of a section.
    """
    based: dict[str, object] = {}
    for key, value in values.items():
        inner = tuple(name.removeprefix(f"{key}.") for name in names if name.startswith(f"{key}."))
        if inner and isinstance(value, dict):
            based[key] = rebase(value, inner, folder)
        else:
            based[key] = _rebase(value, folder) if key in names else value
    return based


def _rebase(value: object, folder: Path) -> object:
    if isinstance(value, list | tuple):
        return [_rebase(item, folder) for item in value]
    if isinstance(value, str | Path) and str(value) and "://" not in str(value):
        return os.path.abspath(folder / os.path.expanduser(value))
    return value
