"""Has children with TensorFlow in them look at it, one for each GPU: this process never imports it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mpspool.core import settings
from mpspool.core.settings import SlotSettings
from mpspool.supervisor.children import ending
from mpspool.supervisor.doctor.facts import GpuUse, TensorFlow

PROBE = ("-P", "-m", "mpspool.worker.probe")
LIMIT_S = 180.0
# Where a worker would leave TensorFlow's own words; what stands before each of them there.
_IN_LOG = "its own words are in this worker's log"
_LOG_PREFIX = "] "
# Each imports TensorFlow: half a GB.
_AT_ONCE = 8


def ask_tensorflow(
    uses: Sequence[GpuUse], environ: Mapping[str, str], nowhere: Path, *, limit_s: float = LIMIT_S
) -> TensorFlow:
    """What TensorFlow is here, and which of the GPUs it can use.

    Args:
        uses: the GPUs; stand-ins are not asked for.
        environ: the children's environment, but for the device.
        nowhere: a path that does not exist, for MPS: the children are nobody's clients.
        limit_s: for each child.
    """
    uuids = [use.device.uuid for use in uses if not use.device.simulated]
    slots = [
        SlotSettings(device=use.name, slot=0, gpu_uuid=use.device.uuid)
        for use in uses
        if not use.device.simulated
    ] or [SlotSettings(device="cpu0", slot=0)]
    child_environ = {**environ, "CUDA_MPS_PIPE_DIRECTORY": str(nowhere)}
    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), _AT_ONCE)) as threads:
        answers = list(threads.map(lambda slot: _ask(slot, child_environ, limit_s), slots))
    told = next((answer for answer in answers if "error" not in answer), answers[0])
    gpus = {
        uuid: answer.get("gpu", answer.get("error", "")) for uuid, answer in zip(uuids, answers, strict=False)
    }
    return TensorFlow(
        error=told.get("error", ""),
        version=told.get("version", ""),
        cuda=told.get("cuda", ""),
        capabilities=tuple(told.get("capabilities", ())),
        import_s=told.get("import_s", 0.0),
        available_bytes=told.get("available_bytes"),
        gpus={} if "error" in told else gpus,
    )


def _ask(slot: SlotSettings, environ: Mapping[str, str], limit_s: float) -> dict[str, Any]:
    command = [sys.executable, *PROBE, settings.encode(slot).decode()]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            env=dict(environ),
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer in {limit_s:g} s"}
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"error": ending("the process that tried", done.returncode, done.stderr)}
    if answer.get("gpu") and (said := done.stderr.strip().splitlines()):
        last = said[-1].rpartition(_LOG_PREFIX)[2]
        answer["gpu"] = answer["gpu"].replace(_IN_LOG, f"its last words: {last}")
    return answer
