"""Which calls can share a run, what the run is fed, and whether its outputs can be told apart by rows. Pure.

Where TensorFlow Serving joins requests (batching/batching_session.cc), the joined tensors here are the same as there.
Where it refuses one, or fails a whole batch, because a request cannot be joined, such a request runs by itself here.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mpspool.core.errors import Code, PoolError
from mpspool.core.settings import BatchingSettings
from mpspool.worker import aligned
from mpspool.worker.call import Call, Kind
from mpspool.worker.engine.base import Array

_MAX_NUMBERS = 4096
# Of what would run at once, what the larger of two runs has less than, padding and all.
_MOST_OF_WHOLE = 0.75
# Requests share a run of no more than that, however little was sent for it: a short list fills a large tensor.
_MOST_BYTES = 2**28
# A run that is padded to more than that, and to so many times what was sent, is worth nobody's memory.
_MOST_PADDED_BYTES = 2**24
_MOST_PADDED_TIMES = 4
# Small integers in a list are fed in eight times their bytes; a value that stands for many, in any number of times.
_MOST_FED_TIMES = 16
_ALIAS = operator.itemgetter(0)


class Unsplittable(NamedTuple):
    """An output that does not have a row for each row of the inputs, and its shape."""

    alias: str
    shape: tuple[int | None, ...]

    def error(self) -> PoolError:
        """For a request of which only some rows were run."""
        shape = ", ".join("?" if size is None else str(size) for size in self.shape)
        return PoolError(
            Code.FAILED_PRECONDITION,
            f'The request has too many rows for one run, and cannot be split into several: the output "{self.alias}", '
            f"of shape [{shape}], does not have a row for each row of the inputs. "
            "Turn enable_large_batch_splitting off for this model, or leave the output out with output_filter",
        )


class _Filling:
    """A run that is being filled: what of it is counted goes on with each call, and is not gone through anew.

    Args:
        first: its first call.
        pads: inputs of different sizes are padded.

    Attributes:
        positions: of its calls.
        rows: of all of them.
    """

    __slots__ = ("_bytes", "_first", "_longest", "_pads", "positions", "rows")

    def __init__(self, first: Call, *, pads: bool) -> None:
        self._first = first
        self._pads = pads
        self.positions: list[int] = []
        self.rows = 0
        # By input, once there are calls of several kinds: those of one kind are of one size.
        self._longest: dict[str, tuple[int, ...]] | None = None
        self._bytes = 0

    def takes(self, call: Call, rows: int) -> bool:
        """Whether a run with this call is small enough and, padded to what is longest of it, not much more than was sent."""
        made = sent = self._bytes + call.kind.fed_bytes
        if self._differs(call):
            fed = call.inputs()
            longest = self._longest_with(fed)
            of_row = sum(math.prod(longest[alias]) * array.dtype.itemsize for alias, array in fed.items())
            made = of_row * (self.rows + rows)
        return made <= _MOST_BYTES and (made <= _MOST_PADDED_BYTES or made <= _MOST_PADDED_TIMES * sent)

    def add(self, position: int, call: Call, rows: int) -> None:
        if self._differs(call):
            self._longest = self._longest_with(call.inputs())
        self._bytes += call.kind.fed_bytes
        self.positions.append(position)
        self.rows += rows

    def _differs(self, call: Call) -> bool:
        """Whether its inputs may be of another size than those of the others, and are padded then."""
        return self._pads and (self._longest is not None or call.kind is not self._first.kind)

    def _longest_with(self, fed: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
        """The largest sizes of each input, with another call's."""
        longest = self._longest
        if longest is None:
            longest = {alias: array.shape[1:] for alias, array in self._first.inputs().items()}
        return {alias: tuple(map(max, longest[alias], array.shape[1:])) for alias, array in fed.items()}


class Batching:
    """The rules of one model version.

    Args:
        settings: of its batches.

    Attributes:
        run_rows: the most that run at once.
        max_rows: the most that a request may have.
    """

    def __init__(self, settings: BatchingSettings) -> None:
        self.run_rows = settings.run_rows
        self.max_rows = settings.max_batch_size
        self._settings = settings
        self._sizes: set[int | None] = set(settings.allowed_batch_sizes)
        self._pads_inputs = settings.pad_variable_length_inputs
        self._numbers: dict[Hashable, int] = {}
        self._next_number = itertools.count()

    def runs(self, calls: Sequence[Call]) -> list[list[int]]:
        """The positions of the calls that are to share each run, in order; a call that cannot is in a run of its own."""
        runs: list[list[int]] = []
        open_runs: dict[int | None, _Filling] = {}
        for position, call in enumerate(calls):
            kind = call.kind
            rows = kind.rows if kind.rows >= 0 else self.rows(call)
            filling = open_runs.get(kind.key) if rows else None
            if filling is None or filling.rows + rows > self.run_rows or not filling.takes(call, rows):
                filling = _Filling(call, pads=self._pads_inputs)
                runs.append(filling.positions)
            filling.add(position, call, rows)
            if rows:
                open_runs[kind.key] = filling
        return runs

    def rows(self, call: Call) -> int:
        """Of the call; 0 where it cannot share a run, and is not to be padded either."""
        kind = call.kind
        if kind.rows < 0:
            inputs = call.inputs()
            kind.rows = self._rows(kind, inputs)
            kind.fed_bytes = sum(array.nbytes for array in inputs.values())
            kind.key = self._number(self._key(call)) if kind.rows else None
        return kind.rows

    def parts(self, call: Call, rows: int) -> list[Call]:
        """What a call of too many rows is run in: of some methods the router does not take requests apart.

        Raises:
            PoolError: it has more rows than a request may have.
        """
        self._settings.check_size(rows)
        return [part(call, (at, min(at + self.run_rows, rows))) for at in range(0, rows, self.run_rows)]

    def _rows(self, kind: Kind, inputs: Mapping[str, Array]) -> int:
        rows = -1
        for array in inputs.values():
            if not array.ndim or rows not in (-1, len(array)):
                return 0
            rows = len(array)
        return max(rows, 0) if self.joins(kind) else 0

    def joins(self, kind: Kind) -> bool:
        """Whether the signature leaves dimension 0 open, or has one size for it that runs are padded to."""
        inputs, outputs = kind.plan.input_rows, kind.response.output_rows - {None}
        if inputs == {None}:
            return not outputs
        return len(inputs) == 1 and outputs <= inputs <= self._sizes

    def _number(self, key: Hashable) -> int:
        """Stands for the key, and is quicker to look up."""
        number = self._numbers.get(key)
        if number is None:
            if len(self._numbers) >= _MAX_NUMBERS:
                self._numbers.clear()
            # Never one that was given before: kinds keep theirs.
            number = self._numbers[key] = next(self._next_number)
        return number

    def _key(self, call: Call) -> Hashable:
        inputs = sorted(call.inputs().items(), key=_ALIAS)
        tensors = tuple((array.dtype, *self._alike(call, array)) for _, array in inputs)
        return call.kind.plan.name, call.kind.response.form, tensors

    def _alike(self, call: Call, array: Array) -> tuple[object, ...]:
        """What is the same of tensors that can be joined, beside their types."""
        # The parts of one request are put together again: their outputs must not depend on neighbours. A tensor
        # without elements has none to pad it with.
        if self._pads_inputs and array.size and not call.part_rows:
            return ("rank", array.ndim)
        return tuple(array.shape[1:])

    def padding(self, calls: Sequence[Call], rows: int) -> int:
        """How many rows a run of these calls, of so many, lacks to the next size allowed; 0 where it is larger than all.

        And where memory would be filled with what nobody sent: a short list fills a large row.
        """
        padding = self._settings.padding(rows)
        if padding:
            for call in calls:
                self.rows(call)  # of a part nobody has asked yet
            fed = sum(call.kind.fed_bytes for call in calls)
            made = fed * (rows + padding) // rows
            if made > _MOST_BYTES and fed > _MOST_FED_TIMES * sum(len(call.body) for call in calls):
                return 0
        return padding

    def middle(self, rows: Sequence[int]) -> int:
        """Before which of several calls, of so many rows each, their run would be made two; 0 where one of the two would be nearly as large."""
        *before, total = itertools.accumulate(rows)
        larger, at = min((max(taken, total - taken), at) for at, taken in enumerate(before, start=1))
        lacking = self._settings.padding
        return at if larger + lacking(larger) < _MOST_OF_WHOLE * (total + lacking(total)) else 0

    def joined(self, calls: Sequence[Call], rows: int, padding: int) -> dict[str, Array]:
        """What a run is fed.

        Args:
            calls: which share it.
            rows: of all of them.
            padding: so many times the last call's first row is added.
        """
        kind = calls[0].kind
        if (
            kind.layout is not None
            and kind.is_fixed
            and not kind.defaults
            and all(call.kind is kind for call in calls)
        ):
            return kind.layout.joined([call.body for call in calls], padding)
        fed = [call.inputs() for call in calls]
        return {alias: _join([inputs[alias] for inputs in fed], rows, padding) for alias in fed[0]}


def _join(arrays: list[Array], rows: int, padding: int) -> Array:
    inner = arrays[0].shape[1:]
    same = all(array.shape[1:] == inner for array in arrays)
    if not same:
        inner = tuple(map(max, *(array.shape[1:] for array in arrays)))
    joined = _empty((rows + padding, *inner), arrays[0].dtype)
    if same:
        np.concatenate(arrays, out=joined[:rows])
    else:
        _pad(arrays, joined)
    if padding:
        joined[rows:] = joined[rows - len(arrays[-1])]
    return joined


def _pad(arrays: list[Array], joined: Array) -> None:
    """Each filled up at the end of each dimension, with its own first element, as TensorFlow Serving does."""
    start = 0
    for array in arrays:
        end = start + len(array)
        joined[start:end] = array.item(0) if array.dtype.kind == "O" else array.reshape(-1)[0]
        joined[(slice(start, end), *map(slice, array.shape[1:]))] = array
        start = end


def _empty(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """An array to be filled, aligned for TensorFlow where that saves more than it costs."""
    size = math.prod(shape) * dtype.itemsize
    if size < aligned.FROM_BYTES or dtype.kind == "O":
        return np.empty(shape, dtype)
    return aligned.memory(size).view(dtype).reshape(shape)


def unsplittable(aliases: Sequence[str], outputs: Sequence[Array], rows: int) -> Unsplittable | None:
    """The first output of a run of so many rows that has not just these; None where all have."""
    for alias, output in zip(aliases, outputs, strict=True):
        if not output.ndim or len(output) != rows:
            return Unsplittable(alias, output.shape)
    return None


def part(call: Call, rows: tuple[int, int]) -> Call:
    """The call for some of a request's rows, from and up to.

    Raises:
        PoolError: its inputs do not have these rows, or an output never has any.
    """
    start, end = rows
    first, whole = "", end
    for alias, array in sorted(call.inputs().items(), key=_ALIAS):
        if not array.ndim:
            raise _cannot_be_split(f'its input "{alias}" has no dimension 0')
        if first and len(array) != whole:
            raise _cannot_be_split(
                f'its input "{alias}" has {len(array)} rows (dimension 0), and "{first}" has {whole}'
            )
        first, whole = alias, len(array)
    if not 0 <= start < end <= whole or not first:
        raise _cannot_be_split(f'rows {start} to {end} are asked for, and its input "{first}" has {whole}')
    kind = call.kind.of_part()
    outputs = kind.plan.signature.outputs
    for alias in kind.response.aliases:
        # Of several signatures' outputs those of the others are seen when they have been run.
        if (spec := outputs.get(alias)) is not None and spec.rows is not None:
            raise Unsplittable(alias, spec.shape or ()).error()
    inputs = {alias: array[start:end] for alias, array in call.inputs().items()}
    return Call(kind, call.body, inputs, end - start)


def _cannot_be_split(reason: str) -> PoolError:
    return PoolError(
        Code.INVALID_ARGUMENT,
        f"The request has too many rows for one run, and cannot be split into several: {reason}",
    )
