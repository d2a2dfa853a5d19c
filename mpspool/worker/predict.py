"""One Predict call: request bytes to a checked call of the engine to response bytes.

What is refused, in which order and with which words follows TensorFlow Serving. Its choice among
several faults of one request is by hash order in places; here it is by alias.
"""

from __future__ import annotations

import time
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from mpspool.core import envelope, tfs
from mpspool.core.errors import Code, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.worker import codec
from mpspool.worker.engine.base import Array, Engine, Signature
from mpspool.worker.layout import Layout, Layouts
from mpspool.worker.response import ResponsePlan

_MAX_PLANS = 256


class Timings(NamedTuple):
    """Where a call's time went, in microseconds."""

    parse_us: int
    run_us: int
    encode_us: int


class Predictor:
    """Reads, runs and answers requests for one model version. Not thread-safe.

    Args:
        engine: of this model version.
        model: what the worker serves; a request for another model is refused.
    """

    def __init__(self, engine: Engine, model: ModelVersion) -> None:
        self._engine = engine
        self._model = model
        self._plans: dict[str, Plan] = {}
        self._known: Layouts[Kind] = Layouts()

    @property
    def model(self) -> ModelVersion:
        return self._model

    def predict(self, body: bytes) -> tuple[bytes, Timings]:
        """Runs a serialised PredictRequest and returns the serialised PredictResponse.

        Raises:
            PoolError: the request is refused, here or by the model's kernels.
        """
        start = time.perf_counter_ns()
        call = self.read(body)
        inputs = call.inputs()
        parsed = time.perf_counter_ns()
        outputs = self.run(call.kind, inputs)
        ran = time.perf_counter_ns()
        response = call.kind.response.encode(outputs)
        encoded = time.perf_counter_ns()
        timings = Timings((parsed - start) // 1000, (ran - parsed) // 1000, (encoded - ran) // 1000)
        return response, timings

    def run(self, kind: Kind, inputs: dict[str, Array]) -> list[Array]:
        """Calls the engine. Raises what that raises."""
        return self._engine.run(kind.plan.name, inputs, kind.response.aliases)

    def read(self, body: bytes) -> Call:
        """A request, parsed and checked. Raises PoolError."""
        known = self._known.find(body)
        if known is not None:
            if known.is_fixed:
                return Call(known, body)
            if inputs := known.known_inputs(body):
                return Call(known, body, inputs)
        request = _parse(body)
        spec = request.model_spec
        if spec.name != self._model.name:
            raise self._other_model(request)
        plan = self._plan(spec.signature_name or tfs.DEFAULT_SIGNATURE)
        inputs = plan.inputs(request.inputs, body)
        output_filter = request.output_filter
        response = plan.response(tuple(output_filter) if len(output_filter) else ())
        plan.check_types(inputs)
        kind = Kind(plan, response)
        if self._known.worth_learning(body):
            given = {alias: array for alias, array in inputs.items() if alias in request.inputs}
            kind.know(self._known.learn(body, given, kind), inputs, given)
        return Call(kind, body, inputs)

    def _other_model(self, request: Any) -> PoolError:
        if not request.HasField("model_spec"):
            return envelope.missing_spec()
        name = request.model_spec.name
        if not name:
            return envelope.missing_name()
        return _invalid(f'The request is for model "{name}", but "{self._model.name}" was asked to run it.')

    def _plan(self, name: str) -> Plan:
        plan = self._plans.get(name)
        if plan is not None:
            return plan
        signature = self._engine.signatures.get(name)
        if signature is None:
            raise PoolError(Code.FAILED_PRECONDITION, f'Serving signature key "{name}" not found.')
        definitions = tfs.SignatureDefMap.FromString(self._engine.signature_def_map).signature_def
        feed_names = {alias: definitions[name].inputs[alias].name for alias in signature.inputs}
        plan = self._plans[name] = Plan(self._model, signature, feed_names)
        return plan


class Kind:
    """What a request asks for, its values aside.

    Attributes:
        plan: of the signature.
        response: of the outputs.
        layout: by which others of the kind are known; None where they cannot be.
        is_fixed: there is a layout, and nothing to find out about the values.
        defaults: the inputs left out, where there is a layout.
        rows: of the request, where it can share a run with others, otherwise 0; -1 until batch.py has looked.
        key: equal for those that can share a run; set with `rows`.
    """

    __slots__ = ("defaults", "is_fixed", "key", "layout", "plan", "response", "rows")

    def __init__(self, plan: Plan, response: ResponsePlan) -> None:
        self.plan = plan
        self.response = response
        self.layout: Layout | None = None
        self.is_fixed = False
        self.defaults: dict[str, Array] = {}
        self.rows = -1
        self.key: int | None = None

    def know(self, layout: Layout | None, inputs: Mapping[str, Array], given: Container[str]) -> None:
        """Takes the layout of a request with these inputs, of which these were given."""
        self.layout = layout
        self.is_fixed = layout is not None and layout.is_fixed
        self.defaults = {alias: array for alias, array in inputs.items() if alias not in given}

    def known_inputs(self, body: bytes) -> dict[str, Array] | None:
        """The inputs of a body that fits the layout; None where it has to be parsed all the same."""
        inputs = self.layout.arrays(body) if self.layout else None
        return inputs | self.defaults if inputs and self.defaults else inputs


class Call:
    """A request that is right as far as can be said without running it.

    Attributes:
        kind: what it asks for.
        body: its bytes.
        part_rows: so many of the request's rows are asked for, and the inputs are just these; 0 for all.
    """

    __slots__ = ("_inputs", "body", "kind", "part_rows")

    def __init__(
        self, kind: Kind, body: bytes, inputs: dict[str, Array] | None = None, part_rows: int = 0
    ) -> None:
        self.kind = kind
        self.body = body
        self.part_rows = part_rows
        self._inputs = inputs

    def inputs(self) -> dict[str, Array]:
        """The arrays to feed, by alias, the defaults of those left out among them."""
        if self._inputs is None:
            self._inputs = self.kind.known_inputs(self.body)
            assert self._inputs is not None
        return self._inputs


def _parse(body: bytes) -> Any:
    try:
        return tfs.RawPredictRequest.FromString(body)
    except DecodeError:
        raise envelope.malformed(body) from None


def _invalid(message: str) -> PoolError:
    return PoolError(Code.INVALID_ARGUMENT, message)


class Plan:
    """A signature, with what every call of it needs worked out once.

    Attributes:
        name: the signature's key.
        signature: what it takes and gives.
        input_rows: TensorSpec.rows of each input.
    """

    def __init__(self, model: ModelVersion, signature: Signature, feed_names: dict[str, str]) -> None:
        self.name = signature.name
        self.signature = signature
        self.input_rows = {spec.rows for spec in signature.inputs.values()}
        self._model = model
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
        self._responses: dict[tuple[str, ...], ResponsePlan] = {}

    def inputs(self, given: Any, body: bytes) -> dict[str, Array]:
        """The arrays to feed, by alias, the defaults of those left out among them."""
        self._check_count(given)
        defaults = self.signature.defaults
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
        if sent == wanted or (sent < wanted and self.signature.defaults):
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
            f"{','.join(sorted(self.signature.defaults))}"
        )

    def check_types(self, inputs: dict[str, Array]) -> None:
        for index, alias, dtype in self._types:
            if inputs[alias].dtype != dtype:
                wanted = tfs.type_text(self.signature.inputs[alias].dtype)
                given = tfs.type_text(tfs.number_of(inputs[alias].dtype))
                raise _invalid(f"Expects arg[{index}] to be {wanted} but {given} is provided")

    def response(self, output_filter: tuple[str, ...]) -> ResponsePlan:
        """How the outputs asked for are answered. Raises PoolError."""
        plan = self._responses.get(output_filter)
        if plan is None:
            self._check_filter(output_filter)
            aliases = output_filter or tuple(self.signature.outputs)
            plan = ResponsePlan(self._model, self.signature, aliases)
            if len(self._responses) < _MAX_PLANS:
                self._responses[output_filter] = plan
        return plan

    def _check_filter(self, output_filter: tuple[str, ...]) -> None:
        seen: set[str] = set()
        for alias in output_filter:
            if alias not in self.signature.outputs:
                raise _invalid(
                    f"output tensor alias not found in signature: {alias} Outputs expected to be in the "
                    f"set {{{','.join(sorted(self.signature.outputs))}}}."
                )
            if alias in seen:
                raise _invalid(f"duplicate output tensor alias: {alias}")
            seen.add(alias)


def _tensor(raw: Any, alias: str, body: bytes) -> Array:
    try:
        return codec.decode(raw, lambda: tfs.PredictRequest.FromString(body).inputs[alias])
    except codec.TensorError:
        raise _invalid(f"tensor parsing error: {alias}") from None
