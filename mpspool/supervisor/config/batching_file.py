"""TensorFlow Serving's batching_parameters_file and batching_params.pbtxt: BatchingParameters as text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mpspool.supervisor.config.explain import nearest

_EXAMPLE = "max_batch_size { value: 128 }"
_MAX_SHOWN_CHARS = 80
_POSITION = re.compile(r"^\d+:\d+ : ")
_UNKNOWN = re.compile(r'Message type "([^"]*)" has no field named "([^"]*)"')
# At the end of the file.
_UNCLOSED = ('Expected "}"', 'Expected ">"')
_TWICE = re.compile(r'should not have multiple "([^"]*)" fields')


class BatchingFileError(Exception):
    """A file that cannot be read; the text says where and what to do, without the file's name."""


def read_batching_file(path: Path) -> tuple[dict[str, object], dict[str, int]]:
    """What the file says, by TensorFlow Serving's names, each with the line that it stands in.

    Raises:
        BatchingFileError: it is not there, or no text of BatchingParameters.
    """
    from google.protobuf import text_format

    from mpspool.core import tfs

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BatchingFileError(
            f"cannot be read: {error.strerror}; it holds lines such as {_EXAMPLE}"
        ) from None
    except UnicodeDecodeError as error:
        raise BatchingFileError(f"is not a text file: {error.reason} at byte {error.start}") from None
    message = tfs.BatchingParameters()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise BatchingFileError(_describe(error, text)) from None
    values = parameters(message)
    return values, {name: _line(text, name) for name in values}


def parameters(message: Any) -> dict[str, object]:
    """What a BatchingParameters says, by TensorFlow Serving's names."""
    # Those in wrappers may be absent; of the others, what is not there cannot be told from their defaults.
    values = {field.name: getattr(value, "value", value) for field, value in message.ListFields()}
    if sizes := values.get("allowed_batch_sizes"):
        values["allowed_batch_sizes"] = list(sizes)
    if not values.get("enable_large_batch_splitting"):
        # TensorFlow's queues take it so, for models that rely on it.
        if values.get("max_enqueued_batches") == 0:
            values["max_enqueued_batches"] = 1
        if values.get("max_execution_batch_size") == 0:  # nobody looks at it
            del values["max_execution_batch_size"]
    return values


def _line(text: str, name: str) -> int:
    lines = (line.partition("#")[0] for line in text.splitlines())
    return next((number for number, line in enumerate(lines, 1) if re.search(rf"\b{name}\b", line)), 0)


def _describe(error: Exception, text: str) -> str:
    """Where, what in plain words where there are some for it, and the line itself."""
    from google.protobuf import text_format

    assert isinstance(error, text_format.ParseError)
    row, column = error.GetLine() or 1, error.GetColumn() or 1
    lines = [*text.splitlines(), ""]
    line = lines[row - 1]
    said = _POSITION.sub("", str(error)).removeprefix(f"{line!r}: ").removeprefix("'': ")
    plain = _plain(said.rstrip("."), "\n".join([*lines[: row - 1], line[: column - 1]]))
    shown = f": {line.strip()[:_MAX_SHOWN_CHARS]}" if line.strip() else ""
    return f"line {row}, column {column}: {plain}{shown}"


def _plain(said: str, before: str) -> str:
    from mpspool.core import tfs

    known = tfs.BatchingParameters.DESCRIPTOR.fields_by_name
    words = re.findall(r"\w+", re.sub("#.*", "", before))
    key = next((word for word in reversed(words) if word in known), "")
    opened = f"{key} of line {_line(before, key)}"
    if found := _UNKNOWN.search(said):
        message, name = found.groups()
        if message != tfs.BatchingParameters.DESCRIPTOR.full_name:
            what = (
                f"{name} stands within {opened}, which is not closed"
                if name in known
                else f"unknown field {name}"
            )
            return f"{what}; write {_written(key)}"
        near = nearest(name, known)
        return f"unknown field {name}; " + (
            f"did you mean {near}?" if near else f"known are {', '.join(known)}"
        )
    if found := _TWICE.search(said):
        return f"{found[1]} is given twice; keep one"
    if said.startswith("Expected identifier"):
        return f"expected lines such as {_EXAMPLE}"
    if said in _UNCLOSED:
        return f"{opened} is not closed; write {_written(key)}"
    said = said.replace('Expected ","', 'Expected "," or "]"')
    return f"{said[:1].lower()}{said[1:]}" + (f"; write {_written(key)}" if key else "")


def _written(key: str) -> str:
    """How this field is written."""
    values = {"thread_pool_name": '"batch"', "enable_large_batch_splitting": "true"}
    plain = {"allowed_batch_sizes": "8", "pad_variable_length_inputs": "true"}
    return f"{key}: {plain[key]}" if key in plain else f"{key} {{ value: {values.get(key, '128')} }}"
