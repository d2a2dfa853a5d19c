"""An engine without TensorFlow: it answers with what the test gives it and notes what it was asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mpspool.core import tfs
from mpspool.core.methods import Method
from mpspool.core.weights import WeightsReport
from mpspool.worker.engine.base import Array, Signature
from mpspool.worker.predict import Predictor

Answer = Callable[[Mapping[str, Array]], Mapping[str, Array]]


def predict(predictor: Predictor, body: bytes, method: Method = Method.PREDICT) -> bytes:
    """Has a request answered as it is, neither padded nor in parts. Raises PoolError."""
    call = predictor.read(body, method)
    return call.encode(predictor.run(call.kind, call.inputs()))


class FakeEngine:
    """Answers every call with `answer(inputs)`.

    The tensor fed for an alias is named after it, unless `feed_names` says otherwise.
    """

    name = "fake"

    def __init__(
        self, signatures: Sequence[Signature], answer: Answer, feed_names: Mapping[str, str] | None = None
    ) -> None:
        self.signatures = {signature.name: signature for signature in signatures}
        self.calls: list[tuple[str, dict[str, Array], tuple[str, ...]]] = []
        self._answer = answer
        self._feed_names = feed_names or {}

    def weights(self) -> WeightsReport:
        return WeightsReport()

    @property
    def signature_def_map(self) -> bytes:
        definitions = tfs.SignatureDefMap()
        for key, signature in self.signatures.items():
            for alias in signature.inputs:
                info = definitions.signature_def[key].inputs[alias]
                info.name = self._feed_names.get(alias, f"{alias}:0")
            for alias in signature.outputs:
                definitions.signature_def[key].outputs[alias].name = f"{alias}:0"
        return definitions.SerializeToString()

    def run(self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        self.calls.append((signature, dict(inputs), tuple(outputs)))
        answer = self._answer(inputs)
        return [answer[alias] for alias in outputs]

    def run_all(self, wanted: Sequence[tuple[str, Sequence[str]]], value: Array) -> list[Array]:
        found = []
        for signature, outputs in wanted:
            found += self.run(signature, dict.fromkeys(self.signatures[signature].inputs, value), outputs)
        return found
