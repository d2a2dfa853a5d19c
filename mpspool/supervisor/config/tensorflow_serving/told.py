"""What a command line or a file of TensorFlow Serving comes to: keys of the pool file, notes and problems."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mpspool.core.errors import Problem
from mpspool.supervisor.config.layers import Layer, Location, Source

Values = dict[str, Any]


@dataclass(slots=True)
class Model:
    """One model, with what is said of it.

    Attributes:
        name: what clients ask for.
        values: keys of an entry of `models`.
        sources: where a value stands, by its key; "" for the model itself.
        model_id: DeepRec's number of it, by which a platform_config_file knows it.
    """

    name: str
    values: Values = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    model_id: int = 0

    def put(self, key: str, value: object, source: Source) -> None:
        """Sets a key, or for "section.key" one of a section."""
        section, _, inner = key.partition(".")
        if inner:
            self.values.setdefault(section, {})[inner] = value
        else:
            self.values[key] = value
        self.sources[key] = source

    def fill(self, values: Mapping[str, object], source: Source) -> None:
        """Sets those of these keys that nobody has set yet."""
        for key, value in values.items():
            if key not in self.sources:
                self.put(key, copy.deepcopy(value), source)


@dataclass(slots=True)
class Told:
    """What has been read so far.

    Attributes:
        pool: keys of the pool ("section.key" for those of a section), each with where it stands.
        models: by name, in order.
        notes: what has no equivalent, or comes to something else, a line each.
        problems: what cannot be served.
        left_out: keys that could not be read at all.
        lists_none: a model_config_file that lists no model; "" for none.
    """

    pool: dict[str, tuple[object, Source]] = field(default_factory=dict)
    models: dict[str, Model] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    left_out: set[str] = field(default_factory=set)
    lists_none: str = ""

    def put(self, key: str, value: object, source: Source) -> None:
        """Sets a key of the pool."""
        self.pool[key] = (value, source)

    def note(self, text: str) -> None:
        """Says it once, however often it is so."""
        if text not in self.notes:
            self.notes.append(text)

    def refuse(self, path: str, text: str, line: int = 0) -> None:
        self.problems.append(Problem(path, text, line))

    def layer(self) -> Layer:
        """As the pool file would say it."""
        made = Layer(problems=list(self.problems), left_out=set(self.left_out))
        for key, (value, source) in self.pool.items():
            made.put(key, value, source.name)
            made.sources[tuple(key.split("."))] = source
        if self.models:
            made.values["models"] = {model.name: dict(model.values) for model in self.models.values()}
        for model in self.models.values():
            made.sources |= {_location(model.name, key): source for key, source in model.sources.items()}
        return made

    def document(self) -> Values:
        """As pool.yaml has it."""
        made: Values = {}
        if self.models:
            made["models"] = {model.name: dict(model.values) for model in self.models.values()}
        for key, (value, _) in self.pool.items():
            section, _, inner = key.partition(".")
            if inner:
                made.setdefault(section, {})[inner] = value
            else:
                made[key] = value
        return made


def _location(name: str, key: str) -> Location:
    return ("models", name, *key.split(".")) if key else ("models", name)


def sessions(count: int) -> Values:
    """So many workers on each GPU, or, where there is none, on the CPU."""
    return {"contexts_per_gpu": count, "cpu_slots": count}
