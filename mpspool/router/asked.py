"""What a request asks for, as far as the router looks at it: which method, of which model, of how many rows. Pure."""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from mpspool.core import tfs
from mpspool.core.envelope import (
    ModelSpecPeek,
    names_twice,
    peek,
    peek_examples,
    peek_rows,
    peek_signatures,
    peek_start,
)
from mpspool.core.methods import Method
from mpspool.core.settings import BatchingSettings
from mpspool.router.rest_rows import rest_rows, rest_signature
from mpspool.router.scheduling.entry import Kind, kept_name

# Methods whose answers to some rows go together without being read: protobuf merges messages that follow one another.
_MERGED = frozenset({Method.CLASSIFY, Method.REGRESS})
# Methods whose rows are tf.Examples, and can be counted.
EXAMPLES = frozenset({Method.CLASSIFY, Method.REGRESS, Method.MULTI_INFERENCE})
# Characters of a signature's name, and bytes of an output_filter.
_NAME = 512
# A class is asked for its members more slowly.
_PREDICT: Final = Method.PREDICT
_MULTI_INFERENCE: Final = Method.MULTI_INFERENCE


class Asked(NamedTuple):
    """A method, and of whom it is asked where that does not stand in the request's bytes: REST has it in the path."""

    method: Method
    told: ModelSpecPeek | None = None

    def spec(self, body: bytes) -> ModelSpecPeek:
        """The model_spec; its signature_name those of all tasks where there are several. Raises PoolError for bytes without a right one."""
        if self.told is not None:
            return self.told._replace(signature_name=rest_signature(body))
        spec = peek(body, self.method)
        if self.method is _MULTI_INFERENCE:
            names = [name or tfs.DEFAULT_SIGNATURE for name in peek_signatures(body)]
            spec = spec._replace(signature_name=", ".join(names))
        return spec

    def spec_at_start(self, start: bytes) -> ModelSpecPeek | None:
        """The model_spec, from the first bytes; None where they do not say."""
        return self.told or peek_start(start, self.method)

    def signature(self, spec: ModelSpecPeek) -> str:
        """What its cost is known by: requests of one method and signature cost alike."""
        name = kept_name(spec.signature_name, _NAME) or tfs.DEFAULT_SIGNATURE
        if self.method is _PREDICT:
            return name
        return f"{'REST ' if self.method.is_rest else ''}{self.method.api} {name}"

    def examples(self, body: bytes) -> int:
        """How many examples the request has, as far as can be told; 0 for a method whose rows are none. To be asked once."""
        return peek_examples(body) if self.method in EXAMPLES else 0

    @property
    def goes_in_parts(self) -> bool:
        """Whether what has more rows than run at once is taken apart here: where the answers to its parts go together."""
        return self.method is _PREDICT or self.method in _MERGED

    def rows(
        self, body: bytes, signature: str, batching: BatchingSettings, examples: int
    ) -> tuple[int, Kind]:
        """How many rows the request has, as far as can be told, and with whom it may share a batch.

        Args:
            body: the request.
            signature: of signature().
            batching: its model version's.
            examples: of examples().
        """
        if self.method is _PREDICT:
            rows, outputs, inputs = peek_rows(body, padded=batching.pad_variable_length_inputs)
            if rows > batching.run_rows:
                if names_twice(body):  # by its parts, rows of another tensor would be asked for
                    return 0, (signature, b"", b"")
                # Parts are not padded to others' sizes: their outputs are put together again.
                inputs = peek_rows(body)[2]
            if len(outputs) > _NAME:
                outputs = hashlib.blake2b(outputs).digest()
            return rows, (signature, outputs, inputs)
        return rows_of(self.method, body, examples), (signature, b"", b"")


def rows_of(method: Method, body: bytes, examples: int) -> int:
    """How many rows a request that has so many examples has, as far as can be told; 0 where it has none."""
    if method is _PREDICT:
        return peek_rows(body)[0]
    return rest_rows(body) if method.is_rest else examples
