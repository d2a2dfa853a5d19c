"""What Python holds, so that a test sees what is kept."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def traced(*, collector: bool = True) -> Iterator[Callable[[], int]]:
    """Gives how many bytes are held of those that were had since; without a collector, also what it would have let go."""
    tracemalloc.start()
    was = gc.isenabled()
    if not collector:
        gc.disable()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        if was:
            gc.enable()
        tracemalloc.stop()
