"""What every engine offers: one loaded model version, called with numpy in and numpy out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mpspool.core.weights import WeightsReport

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a signature.

    Attributes:
        dtype: tensorflow.DataType as a number (1 is DT_FLOAT, 7 DT_STRING ...).
        shape: a size or None per dimension; None altogether for unknown rank.
    """

    dtype: int
    shape: tuple[int | None, ...] | None

    @property
    def rows(self) -> int | None:
        """The size of dimension 0 where the signature sets it, -1 where it has no dimension; None for any."""
        if self.shape is None:
            return None
        return self.shape[0] if self.shape else -1


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature of the model, by alias. `defaults` are the inputs a client may leave out."""

    name: str
    method_name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    defaults: Mapping[str, Array]


class Engine(Protocol):
    """A loaded model version. Not thread-safe: a worker calls it from one thread."""

    @property
    def name(self) -> str:
        """What the log and the status call it: "session" or "tf2"."""

    def weights(self) -> WeightsReport:
        """Where its variables lie now. What else was copied in silence is the worker's to find."""

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """By signature key, without the loader's internal ones ("__saved_model_init_op")."""

    @property
    def signature_def_map(self) -> bytes:
        """A serialised tensorflow.serving.SignatureDefMap of all of them."""

    def run(self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Runs the signature and returns the outputs named, in that order.

        Strings are object arrays of bytes, bfloat16 and its like are ml_dtypes arrays. An output
        may alias an input: serialise it before the input's memory is used again.

        Raises:
            PoolError: with TensorFlow's code and text, where the model's kernels refuse the input.
        """

    def run_all(self, wanted: Sequence[tuple[str, Sequence[str]]], value: Array) -> list[Array]:
        """Runs several signatures that take one input each, on the same value.

        Args:
            wanted: each signature, and which of its outputs.
            value: what each is given.

        Returns:
            The outputs, one signature's after the other's.

        Raises:
            PoolError: as run() does.
        """
