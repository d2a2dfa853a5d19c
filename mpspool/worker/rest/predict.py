"""Predict by REST: a JSON document to a checked call of the engine, outputs to a JSON document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import orjson

from mpspool.core import tfs
from mpspool.core.errors import PoolError, invalid
from mpspool.worker.call import Call, Kind
from mpspool.worker.engine.base import Array, Signature
from mpspool.worker.plan import Plan, Plans
from mpspool.worker.rest import document, write
from mpspool.worker.rest.document import shown, wrong
from mpspool.worker.rest.values import Type, is_b64

_INSTANCES, _INPUTS = "instances", "inputs"
_ROW, _COLUMN = "row", "column"

T = TypeVar("T")


class RestPredictReader:
    """Reads Predict requests in JSON.

    Args:
        plans: of the model version.
    """

    def __init__(self, plans: Plans) -> None:
        self._plans = plans
        self._known: dict[str, _Known] = {}

    def read(self, body: bytes) -> Call:
        """A request, parsed and checked. Raises PoolError."""
        found = document.parse(body)
        known = self._signature(document.signature_of(found))
        if _INSTANCES in found and _INPUTS in found:
            raise wrong(
                found,
                f"Not formatted correctly expecting only one of '{_INPUTS}' or '{_INSTANCES}' keys to exist ",
            )
        if _INSTANCES in found:
            instances = _instances(found)
            inputs = known.rows_at_once(instances) or known.rows(instances)
            form = _ROW
        elif _INPUTS in found:
            inputs = known.columns(found[_INPUTS])
            form = _COLUMN
        else:
            raise invalid("Missing 'inputs' or 'instances' key")
        known.plan.check_predict()
        known.plan.check_types(inputs)
        return Call(Kind(known.plan, known.responses[form]), body, inputs)

    def _signature(self, name: str) -> _Known:
        key = name or tfs.DEFAULT_SIGNATURE
        known = self._known.get(key)
        if known is None:
            plan = self._plans.find(key)
            if plan is None:
                raise invalid(f'Serving signature name: "{key}" not found in signature def')
            if not plan.signature.inputs:
                raise invalid(f"Failed to get input map for signature: {name or 'DEFAULT'}")
            known = self._known[key] = _Known(plan)
        return known


def _instances(found: Mapping[str, Any]) -> list[Any]:
    instances = found[_INSTANCES]
    if not isinstance(instances, list):
        raise wrong(found, f"Expecting '{_INSTANCES}' to be an list/array")
    if not instances:
        raise wrong(found, f"No values in '{_INSTANCES}' array")
    return instances


class _Known:
    """A signature, and how documents become its inputs.

    Attributes:
        plan: of the signature.
        responses: its answers, by the form of the request.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.responses = {_ROW: RowResponse(plan.signature), _COLUMN: ColumnResponse(plan.signature)}
        self._types = {alias: Type(spec.dtype) for alias, spec in sorted(plan.signature.inputs.items())}
        self._first = next(iter(self._types))

    def rows_at_once(self, instances: list[Any]) -> dict[str, Array] | None:
        """The inputs of a list of rows; None where they have to be gone through."""
        if not _is_object(instances[0]):
            values = {self._first: instances} if len(self._types) == 1 else {}
        else:
            width = len(self._types)
            try:
                if any(len(row) != width for row in instances):
                    return None
                values = {alias: [row[alias] for row in instances] for alias in self._types}
            except (KeyError, TypeError, IndexError):
                return None
        inputs = {}
        for alias, column in values.items():
            array = self._types[alias].at_once(column)
            if array is None:
                return None
            inputs[alias] = array
        return inputs or None

    def rows(self, instances: list[Any]) -> dict[str, Array]:
        """The inputs of a list of rows. Raises PoolError."""
        if not _is_object(instances[0]) and len(self._types) > 1:
            raise invalid(
                "instances is a plain list, but expecting list of objects as multiple input tensors required as "
                "per tensorinfo_map"
            )
        named = _is_object(instances[0])
        columns: dict[str, list[Array]] = {alias: [] for alias in self._types}
        for number, row in enumerate(instances):
            if _is_object(row) != named:
                expected, given = ("object", "list") if named else ("value/list", "object")
                raise invalid(f"Expecting {expected} but got {given} at item {number} of input list")
            for alias, value in row.items() if named else ((self._first, row),):
                where = f"element: {number} key: {alias}" if named else f"element: {number}"
                try:
                    self._add(columns, alias, value)
                except PoolError as error:
                    text = f"{error.code.name}: {error.message}"
                    raise invalid(f"Failed to process {where} of 'instances' list. Error: {text}") from None
            if named and set(row) != set(self._types):
                raise invalid(
                    f"Failed to process element: {number} of 'instances' list. JSON object: {shown(row)} keys must "
                    f"be equal to: {','.join(self._types)}"
                )
        return {alias: _stacked(arrays) for alias, arrays in columns.items()}

    def _add(self, columns: Mapping[str, list[Array]], alias: str, value: Any) -> None:
        if alias not in self._types:
            raise invalid(f"JSON object: does not have named input: {alias}")
        array = self._types[alias].one_by_one(value)
        if columns[alias]:
            first = columns[alias][0]
            if array.size != first.size:
                raise invalid(f"Expecting tensor size: {first.size} but got: {array.size}")
            if array.shape != first.shape:
                raise invalid(f"Expecting shape {_shape(first)} but got: {_shape(array)}")
        columns[alias].append(array)

    def columns(self, given: Any) -> dict[str, Array]:
        """The inputs of whole tensors. Raises PoolError."""
        if not _is_object(given):
            if len(self._types) > 1:
                raise invalid(
                    "inputs is a plain value/list, but expecting an object as multiple input tensors required as "
                    "per tensorinfo_map"
                )
            given = {self._first: given}
        inputs = {}
        for alias, data_type in self._types.items():
            if alias not in given:
                raise invalid(f"Missing named input: {alias} in 'inputs' object.")
            array = data_type.at_once(given[alias])
            inputs[alias] = data_type.one_by_one(given[alias]) if array is None else array
        return inputs


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and not is_b64(value)


def _shape(array: Array) -> str:
    return f"[{','.join(map(str, array.shape))}]"


def _stacked(arrays: list[Array]) -> Array:
    return np.stack(arrays)


class ColumnResponse:
    """The answer to a request of whole tensors: {"outputs": ...}.

    Attributes:
        aliases: the outputs, in order.
        output_rows, form, whole: see call.Response.

    Args:
        signature: what is run.
    """

    whole = True

    def __init__(self, signature: Signature) -> None:
        self.aliases = tuple(sorted(signature.outputs))
        self.output_rows = {signature.outputs[alias].rows for alias in self.aliases}
        self.form: tuple[str, ...] = ("REST", type(self).__name__)
        self._types = {alias: signature.outputs[alias].dtype for alias in self.aliases}

    def encode(self, outputs: Sequence[Array], _count: int = 0) -> bytes:
        """The document. Raises PoolError for an output that has no JSON form."""
        if not self.aliases:
            raise invalid("Cannot convert empty tensor map to JSON")
        return self._document(outputs)

    def encode_each(self, outputs: Sequence[Array], bounds: Sequence[int]) -> list[bytes]:
        """The document for each range of rows. Raises PoolError."""
        return [self.encode([output[start:end] for output in outputs]) for start, end in pairwise(bounds)]

    def _document(self, outputs: Sequence[Array]) -> bytes:
        texts = [self._written(write.text, alias, output) for alias, output in self._named(outputs)]
        if len(texts) == 1:
            return b'{"outputs":' + texts[0] + b"}"
        return b'{"outputs":' + _object(self.aliases, texts) + b"}"

    def _named(self, outputs: Sequence[Array]) -> Sequence[tuple[str, Array]]:
        return list(zip(self.aliases, outputs, strict=True))

    def _written(self, writer: Callable[..., T], alias: str, output: Array) -> T:
        try:
            return writer(output, as_bytes=write.is_bytes(alias))
        except write.UnwritableError:
            raise write.unwritable(tfs.type_text(self._types[alias])) from None


class RowResponse(ColumnResponse):
    """The answer to a request of rows: {"predictions": [...]}, an object for each row where there are several outputs."""

    def _document(self, outputs: Sequence[Array]) -> bytes:
        named = self._named(outputs)
        count = -1
        for alias, output in named:
            if not output.ndim:
                raise invalid(f"Tensor name: {alias} has no shape information ")
            if count not in (-1, len(output)):
                raise invalid(
                    f"Tensor name: {alias} has inconsistent batch size: {len(output)} expecting: {count}"
                )
            count = len(output)
        if len(named) == 1:
            return b'{"predictions":' + self._written(write.text, *named[0]) + b"}"
        columns = [self._written(write.rows, alias, output) for alias, output in named]
        rows = [_object(self.aliases, row) for row in zip(*columns, strict=True)]
        return b'{"predictions":[' + b",".join(rows) + b"]}"


def _object(names: Sequence[str], texts: Sequence[bytes]) -> bytes:
    return b"{" + b",".join(_key(name) + text for name, text in zip(names, texts, strict=True)) + b"}"


def _key(name: str) -> bytes:
    return orjson.dumps(name) + b":"
