"""Classify, Regress and MultiInference requests: their bytes to checked calls of the engine.

What is refused, in which order and with which words follows TensorFlow Serving (servables/tensorflow/classifier.cc,
regressor.cc, multi_inference.cc, util.cc).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from mpspool.core import envelope, tfs
from mpspool.core.errors import Code, PoolError, invalid
from mpspool.core.ids import ModelVersion
from mpspool.core.methods import Method
from mpspool.worker.call import Call, Kind, check_model
from mpspool.worker.codec import MAX_FILLED_BYTES
from mpspool.worker.engine.base import Array, Engine
from mpspool.worker.examples.response import Asked, ExamplesResponse, MultiInferenceResponse, asked
from mpspool.worker.examples.tasks import CLASSIFY, INPUTS, REGRESS, Classification, Regression
from mpspool.worker.plan import Plan, Plans

# With what a signature for it is called, and the tag of its result in an InferenceResult.
_TASKS: dict[str, tuple[type[Classification | Regression], str, bytes]] = {
    CLASSIFY: (Classification, "classification", b"\x12"),
    REGRESS: (Regression, "regression", b"\x1a"),
}
_NAMES = {Method.CLASSIFY: CLASSIFY, Method.REGRESS: REGRESS}
# The order of a request's tasks is the client's choice.
_MAX_ANSWERS = 256


class ExamplesReader:
    """Reads Classify requests, or Regress requests.

    Args:
        method: which of them.
        plans: of the model version.
        model: its name and version.
    """

    def __init__(self, method: Method, plans: Plans, model: ModelVersion) -> None:
        self._method = method
        self._plans = plans
        self._model = model
        self._answers: dict[str, tuple[Plan, ExamplesResponse]] = {}

    def read(self, body: bytes) -> Call:
        """A request, parsed and checked. Raises PoolError."""
        request = _parse(tfs.RawExamplesRequest, body, self._method)
        check_model(request, self._model)
        plan, answer = self.answer(request.model_spec.signature_name or tfs.DEFAULT_SIGNATURE)
        return call(Kind(plan, answer), [plan], body, examples(request.input))

    def answer(self, name: str) -> tuple[Plan, ExamplesResponse]:
        """Of a signature. Raises PoolError for one that is not for this method."""
        found = self._answers.get(name)
        if found is None:
            plan = self._plans.find(name)
            if plan is None:
                raise invalid(f"No signature was found with the name: {name}")
            one = _asked(_NAMES[self._method], plan, self._plans, self._model)
            found = self._answers[name] = plan, ExamplesResponse([one])
        return found


class MultiInferenceReader:
    """Reads MultiInference requests.

    Args:
        plans: of the model version.
        model: its name and version.
    """

    def __init__(self, plans: Plans, model: ModelVersion) -> None:
        self._plans = plans
        self._model = model
        self._answers: dict[tuple[tuple[str, str], ...], tuple[list[Plan], MultiInferenceResponse]] = {}

    def read(self, body: bytes) -> Call:
        """A request, parsed and checked. Raises PoolError."""
        request = _parse(tfs.RawMultiInferenceRequest, body, Method.MULTI_INFERENCE)
        if not request.tasks:
            raise envelope.missing_name()
        check_model(request.tasks[0], self._model)
        tasks = tuple(
            (task.model_spec.signature_name or tfs.DEFAULT_SIGNATURE, task.method_name)
            for task in request.tasks
        )
        names = [task.model_spec.name for task in request.tasks]
        known = self._answers.get(tasks) if names.count(self._model.name) == len(names) else None
        plans, answer = known or self._answer(names, tasks)
        return call(MultiKind(plans, answer), plans, body, examples(request.input))

    def _answer(
        self, names: Sequence[str], tasks: Sequence[tuple[str, str]]
    ) -> tuple[list[Plan], MultiInferenceResponse]:
        """Of tasks, for the models of these names. The first task with something wrong says what is. Raises PoolError."""
        found: dict[str, tuple[Plan, Asked]] = {}
        for model, (name, method) in zip(names, tasks, strict=True):
            self._check_name(model)
            if name in found:
                raise invalid(f"Duplicate evaluation of signature: {name}")
            plan = self._plans.find(name)
            if plan is None:
                raise invalid(f"Requested signature not found in model graph: {name}")
            if method not in _TASKS:
                raise PoolError(Code.UNIMPLEMENTED, f"Unsupported signature method_name: {method}")
            found[name] = plan, _asked(method, plan, self._plans, self._model)
        answer = MultiInferenceResponse([one for _, one in found.values()])
        plans = [plan for plan, _ in found.values()]
        if len(self._answers) < _MAX_ANSWERS:
            self._answers[tuple(tasks)] = plans, answer
        return plans, answer

    def _check_name(self, model: str) -> None:
        if not model:
            raise invalid("Found ModelSpec with an empty model name.")
        if model != self._model.name:
            raise invalid("All ModelSpecs in a MultiInferenceRequest must access the same model name.")


class MultiKind(Kind):
    """Of a request for several signatures, which are all given the same examples.

    Args:
        plans: of the signatures, in order.
        response: their answer.
    """

    __slots__ = ("_answer", "_plans")

    def __init__(self, plans: Sequence[Plan], response: MultiInferenceResponse) -> None:
        super().__init__(plans[0], response)
        self._plans, self._answer = plans, response

    def of_part(self) -> Kind:
        """See Kind.of_part."""
        return MultiKind(self._plans, self._answer)

    def run(self, engine: Engine, inputs: Mapping[str, Array]) -> list[Array]:
        """See Kind.run."""
        wanted = [(one.signature, one.task.aliases) for one in self._answer.tasks]
        return engine.run_all(wanted, inputs[INPUTS])


def _asked(method: str, plan: Plan, plans: Plans, model: ModelVersion) -> Asked:
    make, kind, tag = _TASKS[method]
    plan.check_method((method,), Code.INVALID_ARGUMENT, f"{kind} signature method_name to be {method}")
    return asked(make(plans.definition(plan.name)), tag, model, plan.signature)


def call(kind: Kind, plans: Sequence[Plan], body: bytes, found: Array) -> Call:
    """A call for these examples. Raises PoolError where a signature does not take examples."""
    inputs = {INPUTS: found}
    for plan in plans:
        plan.check_types(inputs)
    return Call(kind, body, inputs)


def examples(given: Any) -> Array:
    """The serialised tf.Examples of a RawInput, each after its context.

    Messages that follow one another are one to protobuf, in which what comes later wins.

    Raises:
        PoolError: there are none, or they are too much with their contexts.
    """
    which = given.WhichOneof("kind")
    found = list(getattr(given, which).examples) if which else []
    if not found:
        raise invalid("Input is empty.")
    context = b"".join(given.example_list_with_context.context)
    check_context(len(context), len(found))
    return as_array([context + one for one in found] if context else found)


def check_context(size: int, count: int) -> None:
    """Raises PoolError where a context of so many bytes is too much before each of so many examples: little is sent, and much is made."""
    if size * count > MAX_FILLED_BYTES:
        text = f"The context of {size} bytes before each of {count} examples is more than {MAX_FILLED_BYTES} bytes"
        raise PoolError(Code.RESOURCE_EXHAUSTED, f"{text}: send fewer examples at a time")


def as_array(found: Sequence[bytes]) -> Array:
    """What a signature is fed."""
    array = np.empty(len(found), object)
    array[:] = found
    return array


def _parse(kind: Any, body: bytes, method: Method) -> Any:
    try:
        return kind.FromString(body)
    except DecodeError:
        raise envelope.malformed(body, method.message) from None
