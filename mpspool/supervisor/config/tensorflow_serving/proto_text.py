"""Protocol buffers as text, as TensorFlow Serving's files are: read, or said in plain words why not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from mpspool.supervisor.config.explain import nearest

_MAX_SHOWN_CHARS = 80
_POSITION = re.compile(r"^\d+:\d+ : ")
_UNKNOWN = re.compile(r'Message type "([^"]*)" has no field named "([^"]*)"')
_NO_TYPE = re.compile(r"Type (\S+) not found in descriptor pool")
# Fields whose contents have no meaning here: nobody has to define them. A custom_model_config is refused by its name.
_HOLLOW = (
    "cluster_def",
    "cuda_graph_mode_options",
    "custom_model_config",
    "experimental_fixed_input_tensors",
    "graph_options",
    "in_graph_batching_parameters",
    "logging_config",
    "rpc_options",
    "session_stage_subgraph_thread_pool",
)
# GPUOptions has a field of this name that is read; ConfigProto's is not.
_EXPERIMENTAL = "experimental"
_GPU = ("gpu_options", "pluggable_device_options")
_TOKEN = re.compile(r"""#[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[\w.+-]+|\S""")


class TextError(Exception):
    """A text that is not that message; the text of the error says where and what to do, without the file's name."""


def parse(text: str, message: Any) -> Any:
    """Reads the text into the message, and returns it. Raises TextError."""
    from google.protobuf import text_format

    from mpspool.core import tfs

    hollow = _hollowed(text)
    try:
        text_format.Parse(hollow, message, descriptor_pool=tfs.POOL)
    except text_format.ParseError as error:
        raise TextError(_describe(error, text, message.DESCRIPTOR)) from None
    except (RecursionError, ValueError, TypeError, KeyError) as error:  # what its own checks let through
        raise TextError(f"cannot be read as {message.DESCRIPTOR.name}: {error}") from None
    return message


def first_field(text: str) -> str:
    """The name of the first field; "" where there is none."""
    return next((match[0] for match in _tokens(text) if re.match(r"[A-Za-z_]", match[0])), "")


def line_of(text: str, value: str) -> int:
    """The line that this string stands in, in quotes; 0 where none does."""
    for match in _tokens(text):
        if match[0][:1] in "\"'" and match[0][1:-1] == value:
            return text.count("\n", 0, match.start()) + 1
    return 0


def lines_of(text: str, field: str) -> Iterator[int]:
    """The lines that a field of this name begins in."""
    for match in _tokens(text):
        if match[0] == field:
            yield text.count("\n", 0, match.start()) + 1


def _tokens(text: str) -> Iterator[re.Match[str]]:
    return (match for match in _TOKEN.finditer(text) if not match[0].startswith("#"))


def _hollowed(text: str) -> str:
    """The text without what is inside the fields that nobody looks at; every line stays where it is."""
    cut: list[tuple[int, int]] = []
    opened: list[str] = []
    hollow: tuple[int, int] | None = None  # how deep, and where what is inside begins
    name = ""
    for match in _tokens(text):
        word = match[0]
        if word in "{<":
            above = opened[-1] if opened else ""
            opened.append(name)
            if hollow is None and (name in _HOLLOW or (name == _EXPERIMENTAL and above not in _GPU)):
                hollow = len(opened), match.end()
            name = ""
        elif word in "}>" and opened:
            if hollow is not None and hollow[0] == len(opened):
                cut.append((hollow[1], match.start()))
                hollow = None
            opened.pop()
        elif word != ":":
            name = word
    for start, end in reversed(cut):
        text = text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]
    return text


def _describe(error: Any, text: str, descriptor: Any) -> str:
    """Where, what in plain words where there are some for it, and the line itself."""
    row, column = error.GetLine() or 1, error.GetColumn() or 1
    lines = [*text.splitlines(), ""]
    line = lines[min(row, len(lines)) - 1]
    said = _POSITION.sub("", str(error)).removeprefix(f"{line!r}: ").removeprefix("'': ").rstrip(".")
    shown = f": {line.strip()[:_MAX_SHOWN_CHARS]}" if line.strip() else ""
    before = "\n".join([*lines[: row - 1], line[: column - 1]])
    return f"line {row}, column {column}: {_plain(said, before, descriptor)}{shown}"


def _plain(said: str, before: str, descriptor: Any) -> str:
    from mpspool.core import tfs

    if found := _UNKNOWN.search(said):
        message, name = found.groups()
        if unclosed := _unclosed(name, before, descriptor):
            return f"{name} stands within {unclosed}, which is not closed; close it first"
        known = list(tfs.POOL.FindMessageTypeByName(message).fields_by_name)
        near = nearest(name, known)
        remedy = f"did you mean {near}?" if near else f"known are {', '.join(known) or 'none'}"
        return f"unknown field {name} of {message.rpartition('.')[2]}; {remedy}"
    if found := _NO_TYPE.search(said):
        return f"{found[1]} is not known here"
    if said in ('Expected "}"', 'Expected ">"'):
        return f"{said[-2]} is missing: something before it is not closed"
    return f"{said[:1].lower()}{said[1:]}" if said else f"no text of {descriptor.name}"


def _unclosed(name: str, before: str, descriptor: Any) -> str:
    """What has to be closed for a field of this name to stand in a message that has one; "" where none does."""
    opened: list[tuple[str, int]] = []
    word = ""
    for match in _tokens(before):
        if match[0] in "{<":
            opened.append((word, before.count("\n", 0, match.start()) + 1))
        elif match[0] in "}>" and opened:
            opened.pop()
        elif match[0] != ":":
            word = match[0]
    unclosed = ""
    for word, line in opened:
        field = descriptor.fields_by_name.get(word)
        if field is None or field.message_type is None:  # in brackets: one of a list, or of any type
            break
        if name in descriptor.fields_by_name:
            unclosed = f"{word} of line {line}"
        descriptor = field.message_type
    return unclosed
