"""`python -m mpspool.worker.probe SLOT`: what TensorFlow is here, and whether it has the GPU of a slot, as one line of JSON.

    {"version", "cuda", "capabilities": [...], "import_s", "available_bytes", "gpu": WHY, "" where it can be used}

or {"error": TEXT, "available_bytes"}, with exit status 1, where it cannot be imported.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from mpspool.core import settings
from mpspool.core.settings import SlotSettings
from mpspool.worker import device, gpu
from mpspool.worker.weights.available_memory import available_bytes
from mpspool.worker.without_keras import without_keras


def probe(slot: SlotSettings) -> dict[str, Any]:
    """Asks for devices and makes no context on them. The environment is the worker's own."""
    os.environ.update(device.placement(slot))
    for name, value in device.AT_IMPORT.items():
        os.environ.setdefault(name, value)
    available = available_bytes()
    begin = time.monotonic()
    try:
        with without_keras():
            import tensorflow as tf
    except Exception as error:  # noqa: BLE001 - an installation can be broken in any way
        return {"error": f"{type(error).__name__}: {error}", "available_bytes": available}
    import_s = time.monotonic() - begin
    build = tf.sysconfig.get_build_info()
    found: dict[str, Any] = {
        "version": tf.__version__,
        "cuda": build.get("cuda_version", ""),
        "capabilities": list(build.get("cuda_compute_capabilities", [])),
        "import_s": import_s,
        "available_bytes": available,
        "gpu": "",
    }
    try:
        gpu.check(slot)
    except gpu.NoGpuError as error:
        found["gpu"] = str(error)
    return found


def main(slot_json: str) -> int:
    """Takes a SlotSettings as JSON. What TensorFlow prints goes to standard error."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    found = probe(settings.decode(slot_json.encode(), SlotSettings))
    with answer:
        print(json.dumps(found), file=answer)
    return int("error" in found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
