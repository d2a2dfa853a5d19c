"""The signatures of a model version, with what every call of one needs worked out once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from mpspool.core import envelope, tfs
from mpspool.core.errors import Code, PoolError, invalid
from mpspool.core.ids import ModelVersion
from mpspool.worker import codec
from mpspool.worker.engine.base import Array, Engine, Signature
from mpspool.worker.response import ResponsePlan

_MAX_RESPONSES = 256
# By Predict all of them may be asked for.
_PREDICTED = ("tensorflow/serving/predict", "tensorflow/serving/classify", "tensorflow/serving/regress")
_PREDICTED_TEXT = f"{{{', '.join(_PREDICTED)}}}"


class Rules(NamedTuple):
    """What a pool has chosen of how requests are answered.

    Attributes:
        tensor_content: answers of Predict have their values in tensor_content, not in lists.
        check_method_names: only the methods that a signature's method_name allows are answered.
    """

    tensor_content: bool = False
    check_method_names: bool = False


TENSORFLOW_SERVINGS = Rules()


class Plans:
    """Of one model version.

    Args:
        engine: of it.
        model: its name and version.
        rules: of the pool.
    """

    def __init__(self, engine: Engine, model: ModelVersion, rules: Rules) -> None:
        self._engine = engine
        self._model = model
        self._rules = rules
        self._plans: dict[str, Plan] = {}

    def find(self, name: str) -> Plan | None:
        """Of a signature; None where there is none of this name."""
        plan = self._plans.get(name)
        if plan is None and (signature := self._engine.signatures.get(name)) is not None:
            plan = self._plans[name] = Plan(self._model, signature, self.definition(name), self._rules)
        return plan

    def definition(self, name: str) -> Any:
        """The SignatureDef of a signature that there is."""
        return tfs.SignatureDefMap.FromString(self._engine.signature_def_map).signature_def[name]


class Plan:
    """A signature, with what every call of it needs worked out once.

    Attributes:
        name: the signature's key.
        signature: what it takes and gives.
        input_rows: TensorSpec.rows of each input.
    """

    def __init__(self, model: ModelVersion, signature: Signature, definition: Any, rules: Rules) -> None:
        feed_names = {alias: definition.inputs[alias].name for alias in signature.inputs}
        self.name = signature.name
        self.signature = signature
        self.input_rows = {spec.rows for spec in signature.inputs.values()}
        self._model = model
        self._rules = rules
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

    def check_predict(self) -> None:
        """Raises PoolError where method names are looked at and the signature's has nothing to do with Predict."""
        self.check_method(
            _PREDICTED, Code.INTERNAL, f"prediction signature method_name to be one of {_PREDICTED_TEXT}"
        )

    def check_method(self, names: Sequence[str], code: Code, expected: str) -> None:
        """Raises PoolError of the code where method names are looked at and the signature's is none of these."""
        name = self.signature.method_name
        if self._rules.check_method_names and name not in names:
            raise PoolError(code, f"Expected {expected}. Was: {name}")

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
            raise invalid(
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
        raise invalid(
            f"input size does not match signature: {sent}!={wanted} "
            f"len({{{','.join(sorted(given))}}}) != len({{{','.join(self._aliases)}}}). "
            f"Sent extra: {{{','.join(extra)}}}. Missing but required: {{{','.join(missing)}}}."
        )

    def _missing(self, alias: str, given: Any) -> PoolError:
        return invalid(
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
                raise invalid(f"Expects arg[{index}] to be {wanted} but {given} is provided")

    def response(self, output_filter: tuple[str, ...]) -> ResponsePlan:
        """How the outputs asked for are answered. Raises PoolError."""
        plan = self._responses.get(output_filter)
        if plan is None:
            self._check_filter(output_filter)
            aliases = output_filter or tuple(self.signature.outputs)
            plan = ResponsePlan(self._model, self.signature, aliases, self._rules.tensor_content)
            if len(self._responses) < _MAX_RESPONSES:
                self._responses[output_filter] = plan
        return plan

    def _check_filter(self, output_filter: tuple[str, ...]) -> None:
        seen: set[str] = set()
        for alias in output_filter:
            if alias not in self.signature.outputs:
                raise invalid(
                    f"output tensor alias not found in signature: {alias} Outputs expected to be in the "
                    f"set {{{','.join(sorted(self.signature.outputs))}}}."
                )
            if alias in seen:
                raise invalid(f"duplicate output tensor alias: {alias}")
            seen.add(alias)


def _tensor(raw: Any, alias: str, body: bytes) -> Array:
    try:
        return codec.decode(raw, lambda: tfs.PredictRequest.FromString(body).inputs[alias])
    except codec.TensorError:
        raise invalid(f"tensor parsing error: {alias}") from None
    except DecodeError:  # in a list, which is not looked into before
        raise envelope.malformed(body) from None
