"""Judges TensorFlow, by what a child process with it said."""

from __future__ import annotations

from collections.abc import Sequence

from mpspool.supervisor.doctor.facts import GpuUse, TensorFlow
from mpspool.supervisor.doctor.finding import Finding, Status, Verdict, ok, per_gpu

_CANNOT = " cannot be used: "


def installed(tensorflow: TensorFlow) -> Finding:
    """Can it be imported?"""
    if tensorflow.error:
        remedy = "make serve sets it up, and so does pip install of this package's requirements"
        return Finding(
            "tensorflow", Status.ERROR, f"TensorFlow cannot be imported: {tensorflow.error}", remedy
        )
    kind = f"built for CUDA {tensorflow.cuda}" if tensorflow.cuda else "built without CUDA"
    text = f"TensorFlow {tensorflow.version}, {kind}, imported in {tensorflow.import_s:.1f} s"
    return Finding("tensorflow", Status.OK, text)


def sees_gpus(uses: Sequence[GpuUse], tensorflow: TensorFlow) -> list[Finding]:
    """Would a worker have its GPU? The answer is the worker's own check."""

    def judge(use: GpuUse) -> Verdict:
        if use.device.simulated:
            return ok("workers run on the CPU")
        if use.device.uuid not in tensorflow.gpus:
            return Status.ERROR, "nobody could ask TensorFlow for it", "see tensorflow"
        if why := tensorflow.gpus[use.device.uuid]:
            # The worker names its GPU, which is named already.
            evidence, _, remedy = why.rpartition(_CANNOT)[2].partition("; ")
            return Status.ERROR, evidence, remedy
        return ok("TensorFlow sees it")

    return per_gpu("tensorflow_gpu", uses, judge)
