"""Fetches this worker's segment from the pool, and finds out afterwards whether sharing it held."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mpspool.core import log
from mpspool.core.rundir import RunDir
from mpspool.core.segment_file import source_of
from mpspool.core.settings import WorkerSettings
from mpspool.core.weights import COPIED, WeightsReport
from mpspool.worker.engine.saved_model import LoadError
from mpspool.worker.weights.memory import private_bytes
from mpspool.worker.weights.segment import Segment
from mpspool.worker.weights.weights_socket import want

logger = log.get("weights")

OFF = "weights.shared: off"
UNTRIED = (
    "not run before READY, so nobody knows whether TensorFlow copies any: give it recorded warm-up requests"
)
# A pool process that was killed is back by then, and has published again if it had to.
_PATIENCE_S = 120.0
# What a loaded and warm model takes beside its variables, at most, as seen: the runtime and a call; the graph and
# the tables, by the size of the files they are made from; and the assignments in the graph, by their number.
_ALLOWANCE_BYTES = 64 * 2**20
_PER_FILE_BYTE = 12
_PER_VARIABLE_BYTES = 300 * 2**10
# And what CUDA keeps in host memory for a context: some 140 MB on an H200, driver 580.
_CONTEXT_BYTES = 192 * 2**20


def attach(config: WorkerSettings) -> tuple[Segment | None, str]:
    """The segment of the worker's model version, or the reason why there is none.

    Raises:
        HandoverError: the pool process cannot be reached.
        SegmentError: what it gave cannot be used.
        LoadError: there will never be one, or not of the files that are there now.
    """
    model = config.model
    if model.weights.shared == "off":
        return None, OFF
    offer, descriptor = want(
        RunDir(Path(config.run_dir)).weights_socket, model.name, model.version, _PATIENCE_S
    )
    if offer.failed:
        raise LoadError(offer.reason)
    if descriptor is None:
        return None, offer.reason
    segment = Segment.open(descriptor)
    if source_of(Path(model.path) / "variables" / "variables") != segment.manifest.source:
        raise LoadError(
            f"{model.path} was changed since its weights were published, and its workers would no longer agree: "
            "give what is new a version number of its own, or start the pool again"
        )
    return segment, ""


def checked(
    report: WeightsReport, before_bytes: int, path: Path, *, warm: bool, on_gpu: bool = False
) -> WeightsReport:
    """The report with what else was copied in silence, beside the variables: logged, if anything was.

    The variables it knows for certain. This finds by its size what TensorFlow keeps of them elsewhere.

    Args:
        report: the engine's, now that it is loaded and warm.
        before_bytes: private_bytes() before the model was loaded.
        path: the version folder.
        warm: whether the model has answered anything yet: TensorFlow copies when it first uses a variable.
        on_gpu: a CUDA context was made meanwhile.
    """
    if report.shared_variables and not warm:
        report = msgspec.structs.replace(report, why={**report.why, UNTRIED: []})
    if copied := report.why.get(COPIED):
        logger.warning("weights were copied in silence", bytes=report.excess_bytes, variables=copied)
    variables = report.shared_variables + report.private_variables
    expected = _ALLOWANCE_BYTES + _PER_FILE_BYTE * _graph_bytes(path) + _PER_VARIABLE_BYTES * variables
    expected += _CONTEXT_BYTES * on_gpu
    grown = private_bytes() - before_bytes - report.private_bytes
    # More than there is to copy cannot have been copied.
    excess = min(grown - expected, report.shared_bytes)
    if excess <= 0:
        return report
    logger.warning(
        "more private memory than expected: weights may have been copied in silence",
        excess_bytes=excess,
        shared_bytes=report.shared_bytes,
    )
    return msgspec.structs.replace(report, excess_bytes=report.excess_bytes + excess)


def _graph_bytes(path: Path) -> int:
    """The graph and the assets: all but the variables."""
    files = [*path.glob("saved_model.pb*"), *(path / "assets").rglob("*")]
    return sum(file.stat().st_size for file in files if file.is_file())
