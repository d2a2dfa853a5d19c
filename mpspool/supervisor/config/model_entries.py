"""The models that file, environment and command line name, still raw: one entry each, with where its values stand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpspool.core.errors import Problem
from mpspool.supervisor.config.layers import Layer, Location, Source, dotted, rebase, source_of
from mpspool.supervisor.config.values import MAX_NAME_BYTES

FLAG = "--model"
_REQUEST = "the request"
_STAND_IN = "(none)"
_PATHS = ("base_path", "custom_ops", "weights.folder")


@dataclass(slots=True)
class Entry:
    """One model.

    Attributes:
        location: where it stands as its author sees it: ("models", 1), or ("models", "half") in a mapping.
        values: its fields, or whatever stands there instead.
        sources: where a value stands, by its location within the entry.
    """

    location: Location
    values: object
    sources: dict[Location, Source]

    @property
    def name(self) -> object:
        return self.values.get("name") if isinstance(self.values, dict) else None

    @property
    def stand_in_name(self) -> str:
        """Where the model stands. The refused name may be part of that: nothing is left in it that is ever refused."""
        name = dotted(self.location)
        if isinstance(self.location[-1], int):
            return name
        return re.sub(r"[^A-Za-z0-9_.]", "_", name)[:MAX_NAME_BYTES]

    @property
    def unplaced(self) -> bool:
        """Its base_path is a stand-in."""
        return isinstance(self.values, dict) and self.values["base_path"] == _STAND_IN

    def fill(self) -> None:
        """Stand-ins for what a model cannot be without, where that was left out."""
        if isinstance(self.values, dict):
            self.values.setdefault("name", self.stand_in_name)
            self.values.setdefault("base_path", _STAND_IN)

    def places(self) -> dict[str, tuple[str, Source]]:
        """By the path of a problem with a value: the path as its author sees it, and where the value stands."""
        assert isinstance(self.values, dict)
        above = dotted(self.location) if self.name == self.stand_in_name else f"models.{self.name}"
        fields: list[Location] = [(field,) for field in self.values]
        for section, value in self.values.items():
            fields += [(section, field) for field in value] if isinstance(value, dict) else []
        return {
            f"models.{self.name}.{dotted(field)}": (
                f"{above}.{dotted(field)}",
                source_of(self.sources, field),
            )
            for field in fields
        }


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
        text = f"{raw!r} in {source}: expected a list, or a mapping by name"
        layer.problems.append(Problem("models", text, source.line))
        layer.left_out.add("models")
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
        text = f"{value['name']!r} in {source}: the key says {name!r}; leave this out"
        layer.problems.append(Problem(f"models.{name}.name", text, source.line))
    return {**value, "name": name}


def _entry(layer: Layer, location: Location, value: object, folder: Path) -> Entry:
    length = len(location)
    sources = {key[length:]: text for key, text in layer.sources.items() if key[:length] == location}
    return Entry(location, rebase(value, _PATHS, folder) if isinstance(value, dict) else value, sources)


def put_named(layer: Layer, entries: list[Entry], texts: Sequence[str], source: str, folder: Path) -> None:
    """Adds what NAME=BASE_PATH names; gives an entry of that name the other base_path.

    Args:
        layer: where problems go.
        entries: those there are already.
        texts: one NAME=BASE_PATH each.
        source: the flag or variable that says so.
        folder: where its paths start.
    """
    seen: set[str] = set()
    for text in texts:
        name, equals, base_path = text.partition("=")
        if not (name and equals and base_path):
            layer.problems.append(Problem(source, f"{text!r}: expected NAME=BASE_PATH"))
            layer.left_out.add("models")
        elif name in seen:
            layer.problems.append(Problem(source, f"{text!r}: {name!r} is given twice; keep one"))
        else:
            _put(entries, name, rebase({"base_path": base_path}, _PATHS, folder), source)
        seen.add(name)


def _put(entries: list[Entry], name: str, values: dict[str, object], source: str) -> None:
    for entry in entries:
        if entry.name == name and isinstance(entry.values, dict):
            entry.values.update(values)
            entry.sources[("base_path",)] = Source(source)
            return
    sources: dict[Location, Source] = {(): Source(f"{source} {name}")}
    entries.append(Entry(("models", len(entries)), {"name": name, **values}, sources))


def only(
    entries: Sequence[Entry], models: Sequence[Mapping[str, object]], every: Mapping[str, object]
) -> list[Entry]:
    """These models: what is said of them here goes before what their entries say, or `every` of one that has none."""
    known = {entry.name: entry for entry in entries if isinstance(entry.values, dict)}
    found = []
    for index, values in enumerate(models):
        below = known.get(values["name"])
        mine = below.values if below is not None and isinstance(below.values, dict) else every
        found.append(Entry(("models", index), {**mine, **values}, {(): Source(_REQUEST)}))
    return found


def override(entries: list[Entry], fields: Mapping[str, tuple[object, Source]]) -> dict[str, list[str]]:
    """Takes from each entry what a flag or variable says for all models.

    Args:
        entries: those of the file.
        fields: by "field" or "section.field", what is said for all, and where.

    Returns:
        By a model's name what has been taken and was another value, a line each.
    """
    found: dict[str, list[str]] = {}
    for entry in entries:
        for name, (value, above) in fields.items():
            section, _, inner = name.partition(".")
            values = entry.values.get(section) if inner and isinstance(entry.values, dict) else entry.values
            if isinstance(values, dict) and (inner or name) in values:
                if _plain(values.pop(inner or name)) == _plain(value):
                    continue
                place = source_of(entry.sources, tuple(name.split(".")))
                line = f"{dotted(entry.location)}.{name} in {place} has no say: {above} is for all models"
                found.setdefault(str(entry.name), []).append(line)
    return found


def _plain(value: object) -> str:
    """A value as a flag, or YAML, may say it: true and on are one."""
    if isinstance(value, list | tuple):
        return ",".join(map(_plain, value))
    text = str(value).strip().lower()
    return {"true": "1", "on": "1", "yes": "1", "false": "0", "off": "0", "no": "0"}.get(text, text)


def check_names(entries: list[Entry]) -> list[Problem]:
    """A problem for each name that an earlier entry has already; another stands in for it."""
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
            problems.append(Problem(where, text, source.line))
            assert isinstance(entry.values, dict)
            entry.values["name"] = entry.stand_in_name
    return problems
