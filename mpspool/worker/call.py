"""A request that has been read: what it asks for, and what it is run with."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Protocol

from mpspool.core import envelope
from mpspool.core.errors import Code, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.worker.engine.base import Array, Engine
from mpspool.worker.layout import Layout
from mpspool.worker.plan import Plan


class Response(Protocol):
    """How outputs become an answer.

    Attributes:
        aliases: the outputs, in order.
        output_rows: TensorSpec.rows of each.
        form: with it, the same in all answers that one run gives.
        whole: the router does not take requests of its method apart, however many rows they have.
    """

    aliases: tuple[str, ...]
    output_rows: set[int | None]
    form: tuple[str, ...]
    whole: bool

    def encode(self, outputs: Sequence[Array], count: int) -> bytes:
        """The answer to a request of so many rows, where it has rows. Raises PoolError."""

    def encode_each(self, outputs: Sequence[Array], bounds: Sequence[int]) -> list[bytes]:
        """The answer for each range of rows.

        Args:
            outputs: of one run; rows after the last bound are left out.
            bounds: where the ranges begin and end, 0 the first of them.
        """


class Kind:
    """What a request asks for, its values aside.

    Attributes:
        plan: of the signature.
        response: of the outputs.
        layout: by which others of the kind are known; None where they cannot be.
        is_fixed: there is a layout, and nothing to find out about the values.
        defaults: the inputs left out, where there is a layout.
        rows: of the request, where it can share a run with others, otherwise 0; -1 until batch.py has looked.
        key: equal for those that can share a run; set with `rows`.
        fed_bytes: of the request's inputs as they are fed; set with `rows`.
    """

    __slots__ = ("defaults", "fed_bytes", "is_fixed", "key", "layout", "plan", "response", "rows")

    def __init__(self, plan: Plan, response: Response) -> None:
        self.plan = plan
        self.response = response
        self.layout: Layout | None = None
        self.is_fixed = False
        self.defaults: dict[str, Array] = {}
        self.rows = -1
        self.key: int | None = None
        self.fed_bytes = 0

    def of_part(self) -> Kind:
        """Of some rows of such a request."""
        return Kind(self.plan, self.response)

    def run(self, engine: Engine, inputs: Mapping[str, Array]) -> list[Array]:
        """The outputs, in the order of `response.aliases`. Raises what the engine does."""
        return engine.run(self.plan.name, inputs, self.response.aliases)

    def know(self, layout: Layout | None, inputs: Mapping[str, Array], given: Container[str]) -> None:
        """Takes the layout of a request with these inputs, of which these were given."""
        self.layout = layout
        self.is_fixed = layout is not None and layout.is_fixed
        self.defaults = {alias: array for alias, array in inputs.items() if alias not in given}

    def known_inputs(self, body: bytes) -> dict[str, Array] | None:
        """The inputs of a body that fits the layout; None where it has to be parsed all the same."""
        inputs = self.layout.arrays(body) if self.layout else None
        return inputs if inputs is None or not self.defaults else inputs | self.defaults


class Call:
    """A request that is right as far as can be said without running it.

    Attributes:
        kind: what it asks for.
        body: its bytes.
        part_rows: so many of the request's rows are asked for, and the inputs are just these; 0 for all.
    """

    __slots__ = ("_inputs", "body", "kind", "part_rows")

    def __init__(
        self, kind: Kind, body: bytes, inputs: dict[str, Array] | None = None, part_rows: int = 0
    ) -> None:
        self.kind = kind
        self.body = body
        self.part_rows = part_rows
        self._inputs = inputs

    def inputs(self) -> dict[str, Array]:
        """The arrays to feed, by alias, the defaults of those left out among them."""
        if self._inputs is None:
            self._inputs = self.kind.known_inputs(self.body)
            assert self._inputs is not None
        return self._inputs

    def first_rows(self) -> int:
        """Dimension 0 of its first input that has one; 0 where none has."""
        return next((len(array) for array in self.inputs().values() if array.ndim), 0)

    def encode(self, outputs: Sequence[Array]) -> bytes:
        """The answer, of the outputs of a run of its own. Raises PoolError."""
        return self.kind.response.encode(outputs, self.first_rows())


def check_model(request: Any, model: ModelVersion) -> None:
    """Raises PoolError for a request that is not for the model."""
    name = request.model_spec.name
    if name == model.name:
        return
    if not request.HasField("model_spec"):
        raise envelope.missing_spec()
    if not name:
        raise envelope.missing_name()
    text = f'The request is for model "{name}", but "{model.name}" was asked to run it.'
    raise PoolError(Code.INVALID_ARGUMENT, text)
