"""The variables that were bound to a segment, and where they lie now: asked of TensorFlow, not guessed.

Where the buffer that TensorFlow reads does not lie in the segment, the variable has a copy of its own. If that
has the value that was published, nobody asked for it. Otherwise the model wrote to the variable, in a buffer of
its own or page by page in the mapping, and what it wrote can be nobody else's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mpspool.core.segment_file import PAGE
from mpspool.core.weights import COPIED, WRITTEN, WeightsReport
from mpspool.worker.weights.buffers import Buffers
from mpspool.worker.weights.report import Account, Stray
from mpspool.worker.weights.segment import Placed, Segment


class Bound:
    """What was bound.

    Args:
        segment: where they were bound to.
        account: with all of them counted as shared.
        placed: their places.
        buffers: gives TensorFlow's own, in this order.
    """

    def __init__(
        self, segment: Segment, account: Account, placed: Sequence[Placed], buffers: Callable[[], Buffers]
    ) -> None:
        self._segment = segment
        self._account = account
        self._placed = placed
        self._buffers = buffers

    def report(self) -> WeightsReport:
        """Where all variables lie now. Nothing may run in the model meanwhile."""
        return self._account.report(self._strays())

    def _strays(self) -> Iterator[Stray]:
        written = self._segment.written()
        for placed, buffer in zip(self._placed, self._buffers(), strict=True):
            if buffer is None:
                continue
            if self._segment.offset(buffer) == placed.offset:
                first, last = placed.offset // PAGE, -(-(placed.offset + placed.size) // PAGE)
                if own := int(written[first:last].sum()):
                    yield Stray(placed, min(own * PAGE, placed.size), WRITTEN)
            else:
                reason = COPIED if self._segment.published(placed, buffer) else WRITTEN
                yield Stray(placed, placed.size, reason)
