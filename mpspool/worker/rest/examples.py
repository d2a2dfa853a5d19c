"""Classify and Regress by REST: JSON examples to tf.Examples, results to a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from mpspool.core import tfs
from mpspool.core.errors import invalid
from mpspool.core.ids import ModelVersion
from mpspool.core.methods import Method
from mpspool.worker.call import Call, Kind
from mpspool.worker.engine.base import Array
from mpspool.worker.examples.reader import ExamplesReader, as_array, call, check_context
from mpspool.worker.examples.response import ExamplesResponse
from mpspool.worker.examples.tasks import Classification
from mpspool.worker.plan import Plan, Plans
from mpspool.worker.rest import document, write
from mpspool.worker.rest.document import as_bytes, kind_of, wrong
from mpspool.worker.rest.values import decode_b64, is_b64

_CONTEXT, _EXAMPLES = "context", "examples"
_METHODS = {Method.REST_CLASSIFY: Method.CLASSIFY, Method.REST_REGRESS: Method.REGRESS}
_FIELDS: dict[type, str] = {str: "bytes_list", float: "float_list", int: "int64_list"}
_KINDS = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64"}
_MAX_INT64 = 2**63 - 1
_MIN_INT64 = -(2**63)


class RestExamplesReader:
    """Reads Classify requests, or Regress requests, in JSON.

    Args:
        method: which of them.
        plans: of the model version.
        model: its name and version.
    """

    def __init__(self, method: Method, plans: Plans, model: ModelVersion) -> None:
        self._examples = ExamplesReader(_METHODS[method], plans, model)
        self._responses: dict[str, RestExamplesResponse] = {}

    def read(self, body: bytes) -> Call:
        """A request, parsed and checked. Raises PoolError."""
        found = document.parse(body)
        name = document.signature_of(found) or tfs.DEFAULT_SIGNATURE
        context = example(found[_CONTEXT]) if _CONTEXT in found else b""
        given = _given(found)
        check_context(len(context), len(given))
        serialised = [context + example(one) for one in given]
        plan, answer = self._examples.answer(name)
        return call(Kind(plan, self._response(plan, answer)), [plan], body, as_array(serialised))

    def _response(self, plan: Plan, answer: ExamplesResponse) -> RestExamplesResponse:
        response = self._responses.get(plan.name)
        if response is None:
            response = self._responses[plan.name] = RestExamplesResponse(answer)
        return response


def _given(found: dict[str, Any]) -> list[Any]:
    if _EXAMPLES not in found:
        raise wrong(found, f"When method is classify, key '{_EXAMPLES}' is expected and was not found")
    given = found[_EXAMPLES]
    if not isinstance(given, list):
        raise wrong(found, f"Expecting '{_EXAMPLES}' value to be an list/array")
    if not given:
        raise wrong(found, f"'{_EXAMPLES}' value is an empty array")
    return given


def example(given: Any) -> bytes:
    """A serialised tf.Example. Raises PoolError."""
    if not isinstance(given, dict):
        raise invalid(f"Example must be JSON object but got JSON {kind_of(given)}")
    made = tfs.Example()
    features = made.features.feature
    for name, content in given.items():
        try:
            feature = features[name]
        except UnicodeEncodeError:
            raise invalid(f"Feature: {name} has a name that is not UTF-8") from None
        if not isinstance(content, list):
            _add(feature, name, content)
        elif not _add_at_once(feature, content):
            for value in content:
                _add(feature, name, value)
    serialised: bytes = made.SerializeToString()
    return serialised


def _add_at_once(feature: Any, values: list[Any]) -> bool:
    """Whether the values are of one class and in range, and now in the feature."""
    classes = set(map(type, values))
    field = _FIELDS.get(classes.pop()) if len(classes) == 1 else None
    if field is None:
        return False
    found = map(as_bytes, values) if field == "bytes_list" else values
    try:
        getattr(feature, field).value.extend(found)
    except ValueError:  # an integer out of range
        feature.Clear()
        return False
    return True


def _add(feature: Any, name: str, value: Any) -> None:
    field, converted = _converted(name, value)
    present = feature.WhichOneof("kind")
    if present not in (None, field):
        raise invalid(f"Unexpected element type in feature: {name} expecting type: {_KINDS[present]}")
    getattr(feature, field).value.append(converted)


def _converted(name: str, value: Any) -> tuple[str, Any]:
    if isinstance(value, str):
        return "bytes_list", as_bytes(value)
    if isinstance(value, float):
        return "float_list", value
    if isinstance(value, int):
        if value > _MAX_INT64 or value < _MIN_INT64:
            raise invalid(f"Feature: {name} has uint64_t element. Only int64_t is supported.")
        return "int64_list", int(value)
    if is_b64(value):
        return "bytes_list", decode_b64(value)
    raise invalid(f"Feature: {name} has element with unexpected JSON type: {kind_of(value)}")


class RestExamplesResponse:
    """The answer to a Classify or Regress request: {"results": [...]}.

    Attributes:
        aliases: the outputs, in order.
        output_rows, form, whole: see call.Response.

    Args:
        answer: to the same request by gRPC.
    """

    whole = True

    def __init__(self, answer: ExamplesResponse) -> None:
        self._task = answer.tasks[0].task
        self.aliases = answer.aliases
        self.output_rows = answer.output_rows
        self.form = ("REST", *answer.form)

    def encode(self, outputs: Sequence[Array], count: int) -> bytes:
        """The document for so many examples. Raises PoolError."""
        return self.encode_each(outputs, (0, count))[0]

    def encode_each(self, outputs: Sequence[Array], bounds: Sequence[int]) -> list[bytes]:
        """The document for each range of rows. Raises PoolError."""
        count = bounds[-1]
        self._task.check(outputs, count)
        rows = self._classes(outputs) if isinstance(self._task, Classification) else _values(outputs[0])
        return [b'{"results":[' + b",".join(rows[start:end]) + b"]}" for start, end in pairwise(bounds)]

    def _classes(self, outputs: Sequence[Array]) -> list[bytes]:
        by_alias = dict(zip(self.aliases, outputs, strict=True))
        labels, scores = by_alias.get("classes"), by_alias.get("scores")
        count, width = outputs[0].shape
        texts = [b'""'] * (count * width) if labels is None else write.rows(labels.reshape(-1))
        numbers = [b"0.0"] * (count * width) if scores is None else _values(scores)
        classes = [b"[" + text + b"," + number + b"]" for text, number in zip(texts, numbers, strict=True)]
        return [b"[" + b",".join(classes[row * width : (row + 1) * width]) + b"]" for row in range(count)]


def _values(array: Array) -> list[bytes]:
    return write.rows(array.reshape(-1))
