"""The answers to Classify, Regress and MultiInference, written from the outputs of a run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from mpspool.core import tfs
from mpspool.core.ids import ModelVersion
from mpspool.worker import varints
from mpspool.worker.engine.base import Array, Signature
from mpspool.worker.examples.tasks import Task

# Of a ClassificationResponse and a RegressionResponse.
_RESULT, _SPEC = b"\x0a", b"\x12"
# Of an InferenceResult, and of a MultiInferenceResponse.
_RESULT_SPEC = b"\x0a"
_RESULTS = b"\x0a"


class Asked(NamedTuple):
    """A task of a request.

    Attributes:
        task: what its outputs become.
        signature: the key of its signature.
        tag: of its result, in an InferenceResult.
        spec: the serialised ModelSpec that goes with it.
        rows: TensorSpec.rows of each of its outputs.
    """

    task: Task
    signature: str
    tag: bytes
    spec: bytes
    rows: set[int | None]


def asked(task: Task, tag: bytes, model: ModelVersion, signature: Signature) -> Asked:
    """A task of a request for one signature of the model version."""
    spec = tfs.ModelSpec(name=model.name, signature_name=signature.name)
    spec.version.value = model.version
    rows = {signature.outputs[alias].rows for alias in task.aliases}
    return Asked(task, signature.name, tag, spec.SerializeToString(), rows)


class ExamplesResponse:
    """The answer to a Classify or Regress request.

    Attributes:
        tasks: what is asked, in order.
        aliases: the outputs to be run for, in order.
        output_rows, form, whole: see call.Response.
    """

    whole = False

    def __init__(self, tasks: Sequence[Asked]) -> None:
        self.tasks = tasks
        self.aliases = tuple(alias for one in tasks for alias in one.task.aliases)
        self.output_rows = {rows for one in tasks for rows in one.rows}
        asked_for = (f"{type(one.task).__name__} {one.signature}" for one in tasks)
        self.form = (type(self).__name__, *asked_for)

    def encode(self, outputs: Sequence[Array], count: int) -> bytes:
        """The answer to a request of so many examples. Raises PoolError."""
        return self.encode_each(outputs, (0, count))[0]

    def encode_each(self, outputs: Sequence[Array], bounds: Sequence[int]) -> list[bytes]:
        """The answer for each range of rows.

        Args:
            outputs: of one run; rows after the last bound are left out.
            bounds: where the ranges begin and end, 0 the first of them.

        Raises:
            PoolError: the outputs are not what they have to be.
        """
        results, start = [], 0
        count = bounds[-1]
        for one in self.tasks:
            own = outputs[start : start + len(one.task.aliases)]
            start += len(own)
            results.append(one.task.entries(own, count))
        return [
            self._message([b"".join(entries[begin:end]) for entries in results])
            for begin, end in pairwise(bounds)
        ]

    def _message(self, results: Sequence[bytes]) -> bytes:
        (result,), (one,) = results, self.tasks
        return _field(_RESULT, result) + _field(_SPEC, one.spec)


class MultiInferenceResponse(ExamplesResponse):
    """The answer to a MultiInference request."""

    whole = True

    def _message(self, results: Sequence[bytes]) -> bytes:
        return b"".join(
            _field(_RESULTS, _field(_RESULT_SPEC, one.spec) + _field(one.tag, result))
            for one, result in zip(self.tasks, results, strict=True)
        )


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + varints.one(len(content)) + content
