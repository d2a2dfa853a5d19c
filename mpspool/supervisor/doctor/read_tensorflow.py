"""What the installed TensorFlow says of itself without being imported: milliseconds, and no child."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import runpy
from pathlib import Path

from mpspool.supervisor.doctor.facts import TensorFlow

# Generated with the build, and imports nothing of TensorFlow.
_BUILD_INFO = "python/platform/build_info.py"


def read_tensorflow() -> TensorFlow:
    """How it is built. `error` says why that is not known; what only an import tells is left out."""
    found = importlib.util.find_spec("tensorflow")
    if found is None or found.origin is None:
        return TensorFlow(error="it is not installed")
    try:
        built = runpy.run_path(str(Path(found.origin).parent / _BUILD_INFO))["build_info"]
        version = _version()
    except Exception as error:  # noqa: BLE001 - an installation can be broken in any way
        return TensorFlow(error=f"how it is built is not known: {type(error).__name__}: {error}")
    return TensorFlow(
        version=version,
        cuda=built.get("cuda_version", ""),
        capabilities=tuple(built.get("cuda_compute_capabilities", ())),
    )


def _version() -> str:
    try:
        return importlib.metadata.version("tensorflow")
    except importlib.metadata.PackageNotFoundError:
        return importlib.metadata.version("tensorflow-cpu")
