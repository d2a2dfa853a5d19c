"""One call of a model: request bytes to a checked call of the engine to response bytes.

Of Predict it is read here, of the other methods by readers of their own. What is refused, in which order and with which words
follows TensorFlow Serving. Its choice among several faults of one request is by hash order in places; here it is by alias.
"""

from __future__ import annotations

from typing import Any, Protocol

from google.protobuf.message import DecodeError

from mpspool.core import envelope, tfs
from mpspool.core.errors import Code, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.methods import Method
from mpspool.worker.call import Call, Kind, check_model
from mpspool.worker.engine.base import Array, Engine
from mpspool.worker.examples.reader import ExamplesReader, MultiInferenceReader
from mpspool.worker.layout import Layouts
from mpspool.worker.plan import TENSORFLOW_SERVINGS, Plans, Rules
from mpspool.worker.rest.examples import RestExamplesReader
from mpspool.worker.rest.predict import RestPredictReader


class Reader(Protocol):
    """Reads the requests of one method."""

    def read(self, body: bytes) -> Call:
        """A request, parsed and checked. Raises PoolError."""


class Predictor:
    """Reads, runs and answers requests for one model version. Not thread-safe.

    Args:
        engine: of this model version.
        model: what the worker serves; a request for another model is refused.
        rules: of the pool.
    """

    def __init__(self, engine: Engine, model: ModelVersion, rules: Rules = TENSORFLOW_SERVINGS) -> None:
        self._engine = engine
        self._model = model
        self._plans = Plans(engine, model, rules)
        self._readers: dict[int, Reader] = {
            Method.CLASSIFY: ExamplesReader(Method.CLASSIFY, self._plans, model),
            Method.REGRESS: ExamplesReader(Method.REGRESS, self._plans, model),
            Method.MULTI_INFERENCE: MultiInferenceReader(self._plans, model),
            Method.REST_PREDICT: RestPredictReader(self._plans),
            Method.REST_CLASSIFY: RestExamplesReader(Method.REST_CLASSIFY, self._plans, model),
            Method.REST_REGRESS: RestExamplesReader(Method.REST_REGRESS, self._plans, model),
        }
        self._known: Layouts[Kind] = Layouts()

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def model(self) -> ModelVersion:
        return self._model

    def run(self, kind: Kind, inputs: dict[str, Array]) -> list[Array]:
        """Calls the engine. Raises what that raises."""
        return kind.run(self._engine, inputs)

    def read(self, body: bytes, method: int = Method.PREDICT) -> Call:
        """A request of a Method, parsed and checked. Raises PoolError."""
        return self._readers[method].read(body) if method else self._read_predict(body)

    def _read_predict(self, body: bytes) -> Call:
        known = self._known.find(body)
        if known is not None:
            if known.is_fixed:
                return Call(known, body)
            if inputs := known.known_inputs(body):
                return Call(known, body, inputs)
        request = _parse(body)
        check_model(request, self._model)
        name = request.model_spec.signature_name or tfs.DEFAULT_SIGNATURE
        plan = self._plans.find(name)
        if plan is None:
            raise PoolError(Code.FAILED_PRECONDITION, f'Serving signature key "{name}" not found.')
        plan.check_predict()
        inputs = plan.inputs(request.inputs, body)
        output_filter = request.output_filter
        response = plan.response(tuple(output_filter) if len(output_filter) else ())
        plan.check_types(inputs)
        kind = Kind(plan, response)
        if self._known.worth_learning(body):
            given = {alias: array for alias, array in inputs.items() if alias in request.inputs}
            kind.know(self._known.learn(body, given, kind), inputs, given)
        return Call(kind, body, inputs)


def _parse(body: bytes) -> Any:
    try:
        return tfs.RawPredictRequest.FromString(body)
    except DecodeError:
        raise envelope.malformed(body) from None
