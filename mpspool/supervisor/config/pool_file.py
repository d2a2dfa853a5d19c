"""The configuration file as a layer: YAML, with the line of every value and no key given twice."""

from __future__ import annotations

from pathlib import Path

import yaml

from mpspool.core.errors import Problem
from mpspool.supervisor.config.layers import Layer, Location, Source, dotted


def read_file(path: Path) -> Layer:
    """Reads the file; what is wrong with it as YAML is among the layer's problems."""
    try:
        return _Reader(path.read_text(encoding="utf-8"), path.name).read()
    except OSError as error:
        return _unreadable(path, f"cannot be read: {error.strerror}; name a YAML file such as pool.yaml")
    except UnicodeDecodeError as error:
        return _unreadable(path, f"is not a text file: {error.reason} at byte {error.start}")
    except yaml.YAMLError as error:
        return _unreadable(path, _describe(error))
    except RecursionError:
        return _unreadable(path, "refers to itself: an alias (*) stands within its own anchor (&)")


def _unreadable(path: Path, message: str) -> Layer:
    return Layer(problems=[Problem(str(path), message)], complete=False)


def _describe(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return str(error).splitlines()[0]
    return f"line {mark.line + 1}, column {mark.column + 1}: {getattr(error, 'problem', '')}"


class _Reader:
    """Turns YAML nodes into plain values, noting the line of each in the layer's sources."""

    def __init__(self, text: str, file: str) -> None:
        self._loader = yaml.SafeLoader(text)
        self._file = file
        self._layer = Layer()

    def read(self) -> Layer:
        root = self._loader.get_single_node()
        if root is None:
            return self._layer
        if not isinstance(root, yaml.MappingNode):
            raise yaml.MarkedYAMLError(
                problem="expected fields such as `models:`", problem_mark=root.start_mark
            )
        self._layer.sources[()] = Source(self._file)
        self._layer.values = self._mapping(root, ())
        return self._layer

    def _line(self, node: yaml.Node) -> Source:
        return Source(self._file, node.start_mark.line + 1)

    def _value(self, node: yaml.Node, location: Location) -> object:
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, location)
        if isinstance(node, yaml.SequenceNode):
            return [self._item(item, (*location, index)) for index, item in enumerate(node.value)]
        try:
            return self._loader.construct_object(node)
        except ValueError as error:  # 2024-13-45 looks like a date
            problem = f"{node.value!r} cannot be read ({error}); put it in quotes"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None

    def _item(self, node: yaml.Node, location: Location) -> object:
        self._layer.sources[location] = self._line(node)
        return self._value(node, location)

    def _mapping(self, node: yaml.MappingNode, location: Location) -> dict[str, object]:
        self._loader.flatten_mapping(node)
        values: dict[str, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                problem = "a key must be one word"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            key, here = key_node.value, (*location, key_node.value)
            if key in values:
                self._twice(here, self._line(key_node))
            self._layer.sources[here] = self._line(key_node)
            values[key] = self._value(value_node, here)
        return values

    def _twice(self, location: Location, again: Source) -> None:
        text = f"given in {self._layer.sources[location]} and again in {again}; keep one"
        self._layer.problems.append(Problem(dotted(location), text, again.line))
