"""One Predict call: request bytes to a checked call of the engine to response bytes.

What is refused, in which order and with which words follows TensorFlow Serving. Its choice among
several faults of one request is by hash order in places; here it is by alias.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, cast

from google.protobuf.message import DecodeError

from mpspool.core import envelope, tfs
from mpspool.core.errors import Code, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.worker import codec, varints
from mpspool.worker.engine.base import Array, Engine, Signature

_OUTPUTS_TAG = b"\x0a"
_MODEL_SPEC_TAG = b"\x12"
_KEY_TAG = b"\x0a"
_VALUE_TAG = b"\x12"
_MAX_PLANS = 256


class Timings(NamedTuple):
    """Where a call's time went, in microseconds."""

    parse_us: int
    run_us: int
    encode_us: int


def predict(engine: Engine, model: ModelVersion, body: bytes) -> tuple[bytes, Timings]:
    """Runs a serialised PredictRequest and returns the serialised PredictResponse.

    Args:
        engine: of this model version; hashable, by identity.
        model: what the worker serves; a request for another model is refused.
        body: the request.

    Raises:
        PoolError: the request is refused, here or by the model's kernels.
    """
    start = time.perf_counter_ns()
    request = _parse(body)
    _check_model(request, model)
    signature = request.model_spec.signature_name or tfs.DEFAULT_SIGNATURE
    plan = _plan(engine, model, signature)
    inputs = plan.inputs(request.inputs, body)
    output_plan = plan.output_plan(tuple(request.output_filter))
    plan.check_types(inputs)
    parsed = time.perf_counter_ns()
    outputs = engine.run(signature, inputs, output_plan.aliases)
    ran = time.perf_counter_ns()
    response = output_plan.encode(outputs)
    encoded = time.perf_counter_ns()
    timings = Timings((parsed - start) // 1000, (ran - parsed) // 1000, (encoded - ran) // 1000)
    return response, timings


def _parse(body: bytes) -> Any:
    try:
        return tfs.RawPredictRequest.FromString(body)
    except DecodeError:
        raise envelope.malformed(body) from None


def _check_model(request: Any, model: ModelVersion) -> None:
    name = request.model_spec.name
    if name == model.name:
        return
    if not request.HasField("model_spec"):
        raise envelope.missing_spec()
    if not name:
        raise envelope.missing_name()
    raise _invalid(f'The request is for model "{name}", but "{model.name}" was asked to run it.')


def _invalid(message: str) -> PoolError:
    return PoolError(Code.INVALID_ARGUMENT, message)


class _OutputPlan:
    """The outputs of a call: which, in which order, and all of the response that does not vary."""

    def __init__(self, model: ModelVersion, signature: Signature, aliases: tuple[str, ...]) -> None:
        self.aliases = aliases
        self._types = [signature.outputs[alias].dtype for alias in aliases]
        self._keys = [_delimited(_KEY_TAG, alias.encode()) + _VALUE_TAG for alias in aliases]
        spec = tfs.ModelSpec(name=model.name, signature_name=signature.name)
        spec.version.value = model.version
        self._model_spec = _delimited(_MODEL_SPEC_TAG, spec.SerializeToString())

    def encode(self, outputs: list[Array]) -> bytes:
        """The PredictResponse. Copies each tensor once."""
        parts: list[bytes | memoryview] = []
        for key, number, output in zip(self._keys, self._types, outputs, strict=True):
            head, payload = codec.encode(output, number)
            size = len(head) + len(payload)
            value_size = varints.one(size)
            entry_size = varints.one(len(key) + len(value_size) + size)
            parts += (_OUTPUTS_TAG, entry_size, key, value_size, head, payload)
        parts.append(self._model_spec)
        return b"".join(parts)


def _delimited(tag: bytes, content: bytes) -> bytes:
    return tag + varints.one(len(content)) + content


class _Plan:
    """A signature, with what every call of it needs worked out once."""

    def __init__(self, model: ModelVersion, signature: Signature, feed_names: dict[str, str]) -> None:
        self._model = model
        self._signature = signature
        self._feed_names = feed_names
        self._aliases = sorted(signature.inputs)
        # TensorFlow numbers a session's arguments by the sorted names of the fed tensors.
        by_feed_name = sorted(self._aliases, key=lambda alias: feed_names[alias])
        numbers = [signature.inputs[alias].dtype for alias in by_feed_name]
        # A type without arrays needs no check: no tensor of it is ever decoded.
        self._types = [
            (index, alias, codec.array_dtype(number))
            for index, (alias, number) in enumerate(zip(by_feed_name, numbers, strict=True))
            if number in tfs.DATA_TYPES and tfs.DATA_TYPES[number].field
        ]
        self._output_plans: dict[tuple[str, ...], _OutputPlan] = {}

    def inputs(self, given: Any, body: bytes) -> dict[str, Array]:
        """The arrays to feed, by alias, the defaults of those left out among them."""
        self._check_count(given)
        defaults = self._signature.defaults
        arrays = {}
        used = 0
        for alias in self._aliases:
            if alias in given:
                arrays[alias] = _tensor(given[alias], alias, body)
                used += 1
            elif alias in defaults:
                arrays[alias] = defaults[alias]
            else:
                raise self._missing(alias, given)
        if used != len(given):
            known = [alias for alias in self._aliases if alias in given]
            raise _invalid(
                f"Inputs contains invalid name. Used request inputs: {','.join(known)}, "
                f"request input: {','.join(sorted(given))}"
            )
        return arrays

    def _check_count(self, given: Any) -> None:
        sent, wanted = len(given), len(self._aliases)
        if sent == wanted or (sent < wanted and self._signature.defaults):
            return
        extra = sorted(set(given) - set(self._aliases))
        missing = sorted(set(self._aliases) - set(given))
        raise _invalid(
            f"input size does not match signature: {sent}!={wanted} "
            f"len({{{','.join(sorted(given))}}}) != len({{{','.join(self._aliases)}}}). "
            f"Sent extra: {{{','.join(extra)}}}. Missing but required: {{{','.join(missing)}}}."
        )

    def _missing(self, alias: str, given: Any) -> PoolError:
        return _invalid(
            f"Signature input alias: {alias}(feed name: {self._feed_names[alias]}) not found in request "
            f"and no default value provided. Inputs expected to be in the request "
            f"{{{','.join(sorted(given))}}}, or default input alias set: "
            f"{','.join(sorted(self._signature.defaults))}"
        )

    def check_types(self, inputs: dict[str, Array]) -> None:
        for index, alias, dtype in self._types:
            if inputs[alias].dtype != dtype:
                wanted = tfs.type_text(self._signature.inputs[alias].dtype)
                given = tfs.type_text(tfs.number_of(inputs[alias].dtype))
                raise _invalid(f"Expects arg[{index}] to be {wanted} but {given} is provided")

    def output_plan(self, output_filter: tuple[str, ...]) -> _OutputPlan:
        plan = self._output_plans.get(output_filter)
        if plan is None:
            self._check_filter(output_filter)
            aliases = output_filter or tuple(self._signature.outputs)
            plan = _OutputPlan(self._model, self._signature, aliases)
            if len(self._output_plans) < _MAX_PLANS:
                self._output_plans[output_filter] = plan
        return plan

    def _check_filter(self, output_filter: tuple[str, ...]) -> None:
        seen: set[str] = set()
        for alias in output_filter:
            if alias not in self._signature.outputs:
                raise _invalid(
                    f"output tensor alias not found in signature: {alias} Outputs expected to be in the "
                    f"set {{{','.join(sorted(self._signature.outputs))}}}."
                )
            if alias in seen:
                raise _invalid(f"duplicate output tensor alias: {alias}")
            seen.add(alias)


def _tensor(raw: Any, alias: str, body: bytes) -> Array:
    try:
        return codec.decode(raw, lambda: tfs.PredictRequest.FromString(body).inputs[alias])
    except codec.TensorError:
        raise _invalid(f"tensor parsing error: {alias}") from None


def _make_plan(engine: Engine, model: ModelVersion, name: str) -> _Plan:
    signature = engine.signatures.get(name)
    if signature is None:
        raise PoolError(Code.FAILED_PRECONDITION, f'Serving signature key "{name}" not found.')
    definitions = tfs.SignatureDefMap.FromString(engine.signature_def_map).signature_def
    feed_names = {alias: definitions[name].inputs[alias].name for alias in signature.inputs}
    return _Plan(model, signature, feed_names)


_plan = cast("Callable[[Engine, ModelVersion, str], _Plan]", lru_cache(maxsize=_MAX_PLANS)(_make_plan))
