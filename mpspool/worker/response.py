"""A PredictResponse's bytes, written from the outputs of a run: of one request, or of several that shared it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise, repeat

from mpspool.core import tfs
from mpspool.core.ids import ModelVersion
from mpspool.worker import codec, varints
from mpspool.worker.codec import Payload
from mpspool.worker.engine.base import Array, Signature

_OUTPUTS_TAG = b"\x0a"
_MODEL_SPEC_TAG = b"\x12"
_KEY_TAG = b"\x0a"
_VALUE_TAG = b"\x12"
_MAX_HEADS = 1024


class ResponsePlan:
    """The outputs of a call: which, in which order, and all of the response that does not vary.

    Attributes:
        aliases: the outputs, in order.
        output_rows: TensorSpec.rows of each.
        form, whole: see call.Response.

    Args:
        model: what is served.
        signature: what is run.
        aliases: the outputs.
        content: their values are sent in tensor_content.
    """

    whole = False

    def __init__(
        self, model: ModelVersion, signature: Signature, aliases: tuple[str, ...], content: bool = False
    ) -> None:
        self.aliases = aliases
        self.form = aliases
        self.output_rows = {signature.outputs[alias].rows for alias in aliases}
        self._outputs = [_Output(alias, signature.outputs[alias].dtype, content) for alias in aliases]
        spec = tfs.ModelSpec(name=model.name, signature_name=signature.name)
        spec.version.value = model.version
        self._model_spec = _delimited(_MODEL_SPEC_TAG, spec.SerializeToString())

    def encode(self, outputs: Sequence[Array], _count: int = 0) -> bytes:
        """The PredictResponse. Copies each tensor once."""
        parts: list[Payload] = []
        for plan, output in zip(self._outputs, outputs, strict=True):
            payload = plan.payloads(output)[0]
            parts += (plan.head(output, output.shape, len(payload)), payload)
        parts.append(self._model_spec)
        return b"".join(parts)

    def encode_each(self, outputs: Sequence[Array], bounds: Sequence[int]) -> list[bytes]:
        """The PredictResponse for each range of rows.

        Args:
            outputs: of one run; rows after the last bound are left out.
            bounds: where the ranges begin and end, 0 the first of them.
        """
        columns: list[Iterable[Payload]] = []
        for plan, output in zip(self._outputs, outputs, strict=True):
            payloads = plan.payloads(output, bounds)
            columns += (plan.heads(output, payloads, bounds), payloads)
        columns.append(repeat(self._model_spec, len(bounds) - 1))
        return [b"".join(parts) for parts in zip(*columns, strict=False)]


class _Output:
    """One output of a response."""

    def __init__(self, alias: str, number: int, content: bool) -> None:
        self._number = number
        self._content = content
        self._key = _delimited(_KEY_TAG, alias.encode()) + _VALUE_TAG
        self._heads: dict[tuple[tuple[int, ...], int], bytes] = {}

    def payloads(self, output: Array, bounds: Sequence[int] | None = None) -> list[Payload]:
        """See codec.payloads()."""
        return codec.payloads(output, self._type_of(output), bounds, self._content)

    def _type_of(self, output: Array) -> int:
        return self._number or codec.number_of(output)

    def head(self, output: Array, shape: tuple[int, ...], size: int) -> bytes:
        """All that stands before a payload of so many bytes: tags, sizes, alias, type and shape."""
        if self._number and (head := self._heads.get((shape, size))):
            return head
        tensor = codec.head(self._type_of(output), shape, size, self._content)
        value_size = varints.one(len(tensor) + size)
        entry_size = varints.one(len(self._key) + len(value_size) + len(tensor) + size)
        head = b"".join((_OUTPUTS_TAG, entry_size, self._key, value_size, tensor))
        if len(self._heads) >= _MAX_HEADS:
            self._heads.clear()
        self._heads[shape, size] = head
        return head

    def heads(self, output: Array, payloads: Sequence[Payload], bounds: Sequence[int]) -> Iterable[bytes]:
        inner = output.shape[1:]
        if bounds[-1] == len(payloads) and len(set(map(len, payloads))) == 1:  # one row each
            return repeat(self.head(output, (1, *inner), len(payloads[0])))
        return [
            self.head(output, (end - start, *inner), len(payload))
            for payload, (start, end) in zip(payloads, pairwise(bounds), strict=True)
        ]


def _delimited(tag: bytes, content: bytes) -> bytes:
    return tag + varints.one(len(content)) + content
