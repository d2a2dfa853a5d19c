"""The `batching` sections: TensorFlow Serving's BatchingParameters under their own names, and what we add."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PlainValidator, ValidationError

from mpspool.core.errors import Problem
from mpspool.supervisor.config.batching_file import BatchingFileError, read_batching_file
from mpspool.supervisor.config.explain import explain
from mpspool.supervisor.config.layers import Location, Source
from mpspool.supervisor.config.values import Section

# TensorFlow Serving's own, where a parameter is not given.
MAX_BATCH_SIZE = 1000
MAX_ENQUEUED_BATCHES = 10
_WORDS = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
_INT32_MAX, _INT64_MAX = 2**31 - 1, 2**63 - 1
# What TensorFlow Serving has for the whole server, whatever a version's file says; and what its files cannot say.
POOL_WIDE = ("num_batch_threads", "thread_pool_name", "adaptive")


def _read_switch(value: object) -> bool:
    word = str(value).strip().lower()
    if word not in _WORDS:
        raise ValueError("must be on or off, or, in the pool file, parameters such as {max_batch_size: 128}")
    return _WORDS[word]


def _split(value: object) -> object:
    """A flag or variable has commas between."""
    if isinstance(value, str):
        return value.split(",")
    if isinstance(value, int):
        return [value]
    if isinstance(value, list | tuple):
        return value
    raise ValueError("must be a list of whole numbers, such as [8, 32, 128]")


def _ascending(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if any(size >= following for size, following in itertools.pairwise(sizes)):
        raise ValueError(f"must ascend; write {', '.join(map(str, sorted(set(sizes))))}")
    return sizes


def as_batching(value: object) -> object:
    """`batching: on` says that alone."""
    return value if isinstance(value, dict | BaseModel) else {"enabled": value}


def as_asked_for(value: object) -> object:
    """As in a file, where parameters alone ask for batching."""
    return {"enabled": True, **value} if isinstance(value, dict) else as_batching(value)


Switch = Annotated[bool | None, PlainValidator(_read_switch, json_schema_input_type=bool | str)]
Rows = Annotated[int, Field(ge=1, le=_INT64_MAX)]
BatchSizes = Annotated[
    tuple[Annotated[int, Field(ge=1, le=_INT32_MAX)], ...],
    BeforeValidator(_split, json_schema_input_type=int | str | list[int | str]),
    AfterValidator(_ascending),
]


class Parameters(Section):
    """TensorFlow Serving's, with its defaults: what a batching_parameters_file can hold."""

    max_batch_size: Rows = MAX_BATCH_SIZE
    """Rows (dimension 0) of a batch, and of a request, at most."""
    batch_timeout_micros: Annotated[int, Field(ge=0, le=_INT64_MAX)] = 0
    """Microseconds that a batch waits for more requests, from its first on, but none for more than half of what its deadline leaves it; 0 for only as long as all workers run."""
    max_enqueued_batches: Annotated[int, Field(ge=1, le=_INT64_MAX)] = MAX_ENQUEUED_BATCHES
    """Batches that may wait, per signature of a model version; a request that would begin one more is answered UNAVAILABLE."""
    num_batch_threads: Annotated[int, Field(ge=1, le=_INT32_MAX)] | None = None
    """Taken for TensorFlow Serving's sake; as many batches run at once as there are workers."""
    thread_pool_name: str = ""
    """Taken for TensorFlow Serving's sake, without a meaning here."""
    allowed_batch_sizes: BatchSizes = ()
    """Rows that a batch may have, ascending: it is padded to the next of them. Empty for any number."""
    pad_variable_length_inputs: bool = False
    """Inputs of a batch that differ in a dimension other than the first are padded to the largest."""
    enable_large_batch_splitting: bool = False
    """A request of more rows than max_execution_batch_size is cut into parts, which several workers run; one of fewer rows is not."""
    max_execution_batch_size: Rows | None = None
    """With enable_large_batch_splitting, rows of a batch; max_batch_size, when not given, bounds requests alone."""


class ModelBatching(Parameters):
    """What one model says."""

    enabled: Switch = None
    """Requests are joined to batches."""
    adaptive: bool = False
    """A batch grows while every worker runs, and goes as soon as one is free, whatever batch_timeout_micros says."""


class BatchingConfig(ModelBatching):
    """What the pool says."""

    parameters_file: str = ""
    """TensorFlow Serving's batching_parameters_file: BatchingParameters as text."""
    per_model: bool = False
    """The parameters of each version come from batching_params.pbtxt in its folder alone; one without is not batched."""


@dataclass(frozen=True, slots=True)
class VersionFile:
    """A batching_params.pbtxt in a version's folder.

    Attributes:
        path: of the file.
        parameters: what it says.
        lines: of each of them, the line that it stands in.
    """

    path: Path
    parameters: Parameters
    lines: Mapping[str, int]

    def place(self, name: str) -> str:
        """Where this parameter stands, and its name."""
        return f"{Source(str(self.path), self.lines[name])}: {name}"


def read_version_file(path: Path) -> tuple[VersionFile | None, list[Problem]]:
    """What a version's file of BatchingParameters says, checked; None where something is wrong with it."""
    try:
        values, lines = read_batching_file(path)
        for name in POOL_WIDE:  # nobody looks at these there
            values.pop(name, None)
        return VersionFile(path, Parameters.model_validate(values), lines), []
    except BatchingFileError as error:
        return None, [Problem(str(path), str(error))]
    except ValidationError as error:
        found = error.errors()
    fields = {"": {name: field.description or "" for name, field in Parameters.model_fields.items()}}
    sources: dict[Location, Source] = {(name,): Source(str(path), line) for name, line in lines.items()}
    return None, explain(found, fields, sources, lambda location: location)
