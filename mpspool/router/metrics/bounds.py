"""TensorFlow Serving's bounds: what is counted here is counted by them, too, so that its histograms can be told exactly. Pure."""

from __future__ import annotations

from mpspool.router.metrics.buckets import Bounds, exponential

US = 1e6
# Times are in microseconds there.
LATENCY_US = exponential(10, 1.8, 33)
QUEUING_US = exponential(100, 1.2, 52)
GRAPH_RUN_US = exponential(1000, 2, 20)
BATCH_SIZES = exponential(1, 2, 14)
EXAMPLES = exponential(1, 2, 15)
# Sizes of batches that have a series of their own; others share one.
MAX_SIZES = 100


def seconds(bounds_us: Bounds) -> Bounds:
    """Bounds as what is counted in seconds is counted by."""
    return tuple(bound / US for bound in bounds_us)
