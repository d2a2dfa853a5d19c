"""The configuration file as a layer: YAML, with the line of every value and no key given twice."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import yaml

from mpspool.core.errors import Problem
from mpspool.supervisor.config.layers import Layer, Location, Source, dotted
from mpspool.supervisor.config.values import why_no_text

_MAX_SHOWN_CHARS = 80
# By what PyYAML says, what that most often is.
_PLAIN = {
    r"expected ',' or '\}', but got ':'": "a { is not closed, a comma is missing, or a value with `:` has to be in quotes",
    r"expected ',' or '\}'": "a { is not closed, or a comma is missing",
    r"expected ',' or '\]'": "a [ is not closed, or a comma is missing",
    r"expected the node content": "a value is missing here, or has to be in quotes",
    r"expected <block end>": "the indentation is not that of the lines it belongs to",
    r"sequence entries are not allowed": "a list cannot begin within a line; put its first `- ` on the next",
    r"mapping values are not allowed": "a second `: ` in one line, or a wrong indentation; put a value with `: ` in quotes",
    r"could not find expected ':'": "a key has no `: `",
    r"found character '\\t'": "a tab; indent with spaces",
    r"found character": "a value cannot begin with this; put it in quotes",
    r"found unexpected end of stream": "a quote is not closed",
    r"but found another document": "a second document; one file is for one pool",
}
# After comments.
_MODEL_CONFIG = re.compile(r"(?:\s|#.*\n)*model_config_list\b")


def read_file(path: Path) -> Layer:
    """Reads the file; what is wrong with it as YAML is among the layer's problems."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        return _unreadable(path, f"cannot be read: {error.strerror}; name a YAML file such as pool.yaml")
    except UnicodeDecodeError as error:
        return _unreadable(path, f"is not a text file: {error.reason} at byte {error.start}")
    if _MODEL_CONFIG.match(text):
        convert = f"mpspool convert {shlex.quote(str(path))}"
        return _unreadable(
            path, f"is TensorFlow Serving's model_config_file; `{convert}` prints a pool file of it"
        )
    return read_text(text, path)


def read_text(text: str, path: Path) -> Layer:
    """As read_file(), of what was read there."""
    try:
        return _Reader(text, path.name).read()
    except yaml.YAMLError as error:
        return _unreadable(path, _describe(error, text.splitlines()))
    except RecursionError:
        return _unreadable(path, "refers to itself: an alias (*) stands within its own anchor (&)")


def _unreadable(path: Path, message: str) -> Layer:
    return Layer(problems=[Problem(str(path), message)], complete=False)


def _describe(error: yaml.YAMLError, lines: list[str]) -> str:
    """Where, what in plain words where there are some for it, and the line itself."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return str(error).splitlines()[0]
    said, begun = str(getattr(error, "problem", "")), getattr(error, "context_mark", None)
    plain = next((words for pattern, words in _PLAIN.items() if re.match(pattern, said)), said)
    since = f" (it begins in line {begun.line + 1})" if begun is not None and begun.line != mark.line else ""
    shown = lines[mark.line].strip() if mark.line < len(lines) else ""
    line = f": {shown[:_MAX_SHOWN_CHARS]}" if shown else ""
    return f"line {mark.line + 1}, column {mark.column + 1}: {plain}{since}{line}"


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
            if not location and (why := why_no_text(key)):  # below, where it stands is known
                raise yaml.MarkedYAMLError(problem=f"a key {why}", problem_mark=key_node.start_mark)
            if key in values:
                self._twice(here, self._line(key_node))
            self._layer.sources[here] = self._line(key_node)
            values[key] = self._value(value_node, here)
        return values

    def _twice(self, location: Location, again: Source) -> None:
        text = f"given in {self._layer.sources[location]} and again in {again}; keep one"
        self._layer.problems.append(Problem(dotted(location), text, again.line))
