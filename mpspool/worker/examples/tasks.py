"""What a signature has to be for Classify and Regress, and the results its outputs become.

The rules, their order and their words are TensorFlow Serving's (servables/tensorflow/classifier.cc, regressor.cc).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from mpspool.core import tfs
from mpspool.core.errors import invalid
from mpspool.worker import codec, varints
from mpspool.worker.engine.base import Array

CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"
INPUTS = "inputs"
_CLASSES, _SCORES = "classes", "scores"
_OUTPUTS = "outputs"
# Tags: an entry of a result; a Class's label and score; a Regression's value.
_ENTRY, _LABEL, _SCORE, _VALUE = b"\x0a", b"\x0a", b"\x15", b"\x0d"
_MAX_LABELS = 4096


class Task(Protocol):
    """One signature, asked in one way.

    Attributes:
        aliases: the outputs that are wanted.
    """

    aliases: tuple[str, ...]

    def check(self, outputs: Sequence[Array], count: int) -> None:
        """Whether the outputs are what they have to be.

        Args:
            outputs: in the order of `aliases`.
            count: how many examples there were.

        Raises:
            PoolError: they are not.
        """

    def entries(self, outputs: Sequence[Array], count: int) -> list[bytes]:
        """What each example becomes: a field of the ClassificationResult or RegressionResult. Raises as check()."""


class Classification:
    """See Task.

    Args:
        definition: the SignatureDef.

    Raises:
        PoolError: INVALID_ARGUMENT, it is not for Classify.
    """

    def __init__(self, definition: Any) -> None:
        _check_one_input(definition)
        if len(definition.outputs) not in (1, 2):
            raise invalid(f"Expected one or two output Tensors, found {len(definition.outputs)}")
        if INPUTS not in definition.inputs:
            raise invalid(f"No classification inputs found in SignatureDef: {definition}")
        self.aliases = tuple(alias for alias in (_CLASSES, _SCORES) if alias in definition.outputs)
        if not self.aliases:
            raise invalid(
                "Expected classification signature outputs to contain at least one of "
                f'"{_CLASSES}" or "{_SCORES}". Signature was: {definition}'
            )
        # The bytes before a score, by label.
        self._heads: dict[bytes, bytes] = {}

    def check(self, outputs: Sequence[Array], count: int) -> None:
        """See Task."""
        labels, scores = self._labels_and_scores(outputs)
        for array, alias, number in ((labels, _CLASSES, "DT_STRING"), (scores, _SCORES, "DT_FLOAT")):
            if array is not None:
                _check_classes(array, alias, number, count)
        if labels is not None and scores is not None and labels.shape[1] != scores.shape[1]:
            raise invalid(
                "Tensors class and score should match in dim_size(1). Got "
                f"{labels.shape[1]} vs. {scores.shape[1]}"
            )

    def _labels_and_scores(self, outputs: Sequence[Array]) -> tuple[Array | None, Array | None]:
        by_alias = dict(zip(self.aliases, outputs, strict=True))
        return by_alias.get(_CLASSES), by_alias.get(_SCORES)

    def entries(self, outputs: Sequence[Array], count: int) -> list[bytes]:
        """See Task."""
        self.check(outputs, count)
        labels, scores = self._labels_and_scores(outputs)
        width = outputs[0].shape[1]
        classes = self._classes(labels, scores, count * width)
        return [_delimited(b"".join(classes[row : row + width])) for row in _starts(count, width)]

    def _classes(self, labels: Array | None, scores: Array | None, count: int) -> list[bytes]:
        """Each class of each example, one example after the other."""
        heads = [b"\x0a\x05\x15"] * count
        if labels is not None:
            found = labels.reshape(-1).tolist()
            if scores is None:
                return [_delimited(_labelled(label)) for label in found]
            heads = [self._heads.get(label) or self._head(label) for label in found]
        assert scores is not None
        values = scores.astype("<f4", copy=False).tobytes()
        return [head + values[at : at + 4] for head, at in zip(heads, range(0, len(values), 4), strict=True)]

    def _head(self, label: Any) -> bytes:
        field = _labelled(label)
        head = _ENTRY + varints.one(len(field) + 5) + field + _SCORE
        if len(self._heads) < _MAX_LABELS:
            self._heads[label] = head
        return head


class Regression:
    """See Task.

    Args:
        definition: the SignatureDef.

    Raises:
        PoolError: INVALID_ARGUMENT, it is not for Regress.
    """

    def __init__(self, definition: Any) -> None:
        _check_one_input(definition)
        if len(definition.outputs) != 1:
            raise invalid("Expected one output Tensor.")
        if INPUTS not in definition.inputs:
            raise invalid(f"No regression inputs found in SignatureDef: {definition}")
        if _OUTPUTS not in definition.outputs:
            raise invalid(f"No regression outputs found in SignatureDef: {definition}")
        self.aliases: tuple[str, ...] = (_OUTPUTS,)

    def check(self, outputs: Sequence[Array], count: int) -> None:
        """See Task."""
        (values,) = outputs
        if values.ndim != 1 and not (values.ndim == 2 and values.shape[1] == 1):
            raise invalid(
                "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got "
                f"{_shape(values)}"
            )
        if len(values) != count:
            raise invalid(f"Input batch size did not match output batch size: {count} vs. {len(values)}")
        if (number := _type(values)) != "DT_FLOAT":
            raise invalid(f"Expected output Tensor of DT_FLOAT.  Got: {number}")

    def entries(self, outputs: Sequence[Array], count: int) -> list[bytes]:
        """See Task."""
        self.check(outputs, count)
        data = outputs[0].astype("<f4", copy=False).tobytes()
        return [b"\x0a\x05" + _VALUE + data[at : at + 4] for at in range(0, len(data), 4)]


def _check_one_input(definition: Any) -> None:
    if len(definition.inputs) != 1:
        raise invalid("Expected one input Tensor.")


def _check_classes(array: Array, alias: str, number: str, count: int) -> None:
    if array.ndim != 2:
        raise invalid(f"Expected Tensor shape: [batch_size num_classes] but got {_shape(array)}")
    if (found := _type(array)) != number:
        raise invalid(f"Expected {alias} Tensor of {number}. Got: {found}")
    if len(array) != count:
        raise invalid(f"Expected {alias} output batch size of {count}. Got: {len(array)}")


def _shape(array: Array) -> str:
    """As TensorShape.DebugString()."""
    return f"[{','.join(map(str, array.shape))}]"


def _type(array: Array) -> str:
    return tfs.DATA_TYPES[codec.number_of(array)].name


def _labelled(label: Any) -> bytes:
    text = label if isinstance(label, bytes) else str(label).encode()
    return _LABEL + varints.one(len(text)) + text


def _delimited(content: bytes) -> bytes:
    return _ENTRY + varints.one(len(content)) + content


def _starts(count: int, width: int) -> Sequence[int]:
    return range(0, count * width, width) if width else [0] * count
