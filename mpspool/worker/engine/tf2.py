"""The fallback engine: TensorFlow's TF2 loader, for models whose variables only it can find."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from mpspool.core.errors import PoolError
from mpspool.core.weights import WeightsReport
from mpspool.worker.engine.base import Array, Signature
from mpspool.worker.engine.failure import pool_error
from mpspool.worker.engine.saved_model import Signatures
from mpspool.worker.weights import eager
from mpspool.worker.weights.report import all_private
from mpspool.worker.weights.segment import Segment


class Tf2Engine:
    """A loaded model version. Implements Engine.

    All outputs of a signature are computed, whichever are asked for.

    Args:
        path: the version folder.
        tags: of the meta graph to load.
        signatures: what the meta graph promises.
        weights: a segment, mapped; or why there is none.

    Raises:
        tf.errors.OpError, OSError, ValueError, RuntimeError: the loader's, when it cannot be loaded.
    """

    name = "tf2"

    def __init__(
        self, path: Path, tags: Sequence[str], signatures: Signatures, weights: Segment | str
    ) -> None:
        self._signatures = signatures
        # Kept: the variables live as long as the loaded root does.
        self._root: Any
        self._weights: Callable[[], WeightsReport]
        if isinstance(weights, str):
            self._root = tf.saved_model.load(str(path), tags=list(tags))
            report = all_private(path, weights)
            self._weights = lambda: report
        else:
            self._root, bound = eager.load(path, tags, weights)
            self._weights = bound.report

    def weights(self) -> WeightsReport:
        """See Engine.weights."""
        return self._weights()

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._signatures.specs

    @property
    def signature_def_map(self) -> bytes:
        return self._signatures.serialised

    def run(self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """See Engine.run."""
        self._signatures.require_plain(signature)
        feeds = {**self._signatures.specs[signature].defaults, **inputs}
        try:
            results = self._root.signatures[signature](
                **{alias: tf.constant(value) for alias, value in feeds.items()}
            )
            return [_as_array(results[alias].numpy()) for alias in outputs]
        except PoolError:
            raise
        except Exception as error:
            raise pool_error(error) from error

    def run_all(self, wanted: Sequence[tuple[str, Sequence[str]]], value: Array) -> list[Array]:
        """See Engine.run_all. One signature runs after the other."""
        found = []
        for signature, outputs in wanted:
            (alias,) = self._signatures.specs[signature].inputs
            found += self.run(signature, {alias: value}, outputs)
        return found


def _as_array(value: Any) -> Array:
    """Scalars come as NumPy scalars, and as bytes where they are strings."""
    return np.array(value, dtype=object) if isinstance(value, bytes) else np.asarray(value)
