"""Fetches this worker's segment from the pool, and finds out afterwards whether sharing it held."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mpspool.core import log
from mpspool.core.rundir import RunDir
from mpspool.core.settings import WorkerSettings
from mpspool.core.weights import WeightsReport
from mpspool.worker.weights.handover import want
from mpspool.worker.weights.memory import private_bytes
from mpspool.worker.weights.segment import Segment

logger = log.get("weights")

OFF = "weights.shared: off"
# A pool process that was killed is back by then, and has published again if it had to.
_PATIENCE_S = 120.0
# What TensorFlow's runtime, the graph and a warm-up call take for themselves.
_ALLOWANCE_BYTES = 64 * 2**20
_SUSPICIOUS_SHARE = 0.1


def attach(config: WorkerSettings) -> tuple[Segment | None, str]:
    """The segment of the worker's model version, or the reason why there is none.

    Raises:
        HandoverError: the pool process cannot be reached.
        SegmentError: what it gave cannot be used.
    """
    model = config.model
    if model.weights.shared == "off":
        return None, OFF
    offer, descriptor = want(
        RunDir(Path(config.run_dir)).weights_socket, model.name, model.version, _PATIENCE_S
    )
    if descriptor is None:
        return None, offer.reason
    return Segment.open(descriptor), ""


def checked(report: WeightsReport, before_bytes: int) -> WeightsReport:
    """The report with what was copied in silence, if anything was, which is logged too.

    Args:
        report: the engine's.
        before_bytes: private_bytes() before the model was loaded; now it is loaded and warm.
    """
    grown = private_bytes() - before_bytes - report.private_bytes
    # More than there is to copy cannot have been copied: a large graph takes memory of its own.
    excess = min(grown - _ALLOWANCE_BYTES, report.shared_bytes)
    if excess < report.shared_bytes * _SUSPICIOUS_SHARE or excess <= 0:
        return report
    logger.warning(
        "more private memory than expected: weights may have been copied in silence",
        excess_bytes=excess,
        shared_bytes=report.shared_bytes,
    )
    return msgspec.structs.replace(report, excess_bytes=excess)
