"""The models a file and the command line name, still raw: one entry each, with where its values stand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpspool.core.errors import Problem
from mpspool.supervisor.config.layers import Layer, Location, dotted, rebase, source_of

FLAG = "--model"
_PATHS = ("base_path", "custom_ops")


@dataclass(slots=True)
class Entry:
    """One model.

    Attributes:
        location: where it stands as its author sees it: ("models", 1), or ("models", "half") in a mapping.
        values: its fields, or whatever stands there instead.
        sources: words for where a value stands, by its location within the entry.
    """

    location: Location
    values: object
    sources: dict[Location, str]

    @property
    def name(self) -> object:
        return self.values.get("name") if isinstance(self.values, dict) else None


def take_entries(layer: Layer, folder: Path) -> list[Entry]:
    """Takes `models`, a list or a mapping by name, out of a file's layer; its paths start from `folder`."""
    raw = layer.values.pop("models", None)
    if raw is None:
        return []
    if isinstance(raw, list):
        keyed: Iterable[tuple[str | int, object]] = enumerate(raw)
    elif isinstance(raw, dict):
        keyed = [(key, _named(layer, key, value)) for key, value in raw.items()]
    else:
        source = source_of(layer.sources, ("models",))
        layer.problems.append(
            Problem("models", f"{raw!r} in {source}: expected a list, or a mapping by name")
        )
        layer.complete = False
        return []
    return [_entry(layer, ("models", key), value, folder) for key, value in keyed]


def _named(layer: Layer, name: str, value: object) -> object:
    """In a mapping the key is the name, and a bare text the base_path."""
    if isinstance(value, str):
        return {"name": name, "base_path": value}
    if not isinstance(value, dict):
        return value
    if value.get("name", name) != name:
        source = source_of(layer.sources, ("models", name, "name"))
        layer.problems.append(
            Problem(
                f"models.{name}.name", f"{value['name']!r} in {source}: the key says {name!r}; leave this out"
            )
        )
    return {**value, "name": name}


def _entry(layer: Layer, location: Location, value: object, folder: Path) -> Entry:
    length = len(location)
    sources = {key[length:]: text for key, text in layer.sources.items() if key[:length] == location}
    return Entry(location, rebase(value, _PATHS, folder) if isinstance(value, dict) else value, sources)


def put_flags(entries: list[Entry], flags: Sequence[str], folder: Path) -> list[Problem]:
    """Adds what `--model NAME=BASE_PATH` names; gives an entry of that name the other base_path."""
    problems = []
    seen: set[str] = set()
    for flag in flags:
        name, equals, base_path = flag.partition("=")
        if not (name and equals and base_path):
            problems.append(Problem(FLAG, f"{flag!r}: expected NAME=BASE_PATH"))
        elif name in seen:
            problems.append(Problem(FLAG, f"{flag!r}: {name!r} is given twice; keep one"))
        else:
            _put(entries, name, rebase({"base_path": base_path}, _PATHS, folder))
        seen.add(name)
    return problems


def _put(entries: list[Entry], name: str, values: dict[str, object]) -> None:
    for entry in entries:
        if entry.name == name and isinstance(entry.values, dict):
            entry.values.update(values)
            entry.sources[("base_path",)] = FLAG
            return
    entries.append(Entry(("models", len(entries)), {"name": name, **values}, {(): f"{FLAG} {name}"}))


def override(entries: list[Entry], fields: Iterable[str]) -> None:
    """Takes from each entry what a flag or variable says for all models."""
    for entry in entries:
        if isinstance(entry.values, dict):
            for name in fields:
                entry.values.pop(name, None)


def check_names(entries: list[Entry]) -> list[Problem]:
    """A problem for each name that an earlier entry has already."""
    problems = []
    first: dict[str, Entry] = {}
    for entry in entries:
        if not isinstance(entry.name, str):
            continue
        other = first.setdefault(entry.name, entry)
        if other is not entry:
            where = f"{dotted(entry.location)}.name"
            source = source_of(entry.sources, ("name",))
            text = f"{entry.name!r} in {source}: {dotted(other.location)} has this name already; rename one"
            problems.append(Problem(where, text))
    return problems
