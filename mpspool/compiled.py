"""The modules that a request passes through run as C where the installation has compiled them (docs/adr/0026).

They are the same modules: what they are written in is what they do. MPSPOOL_COMPILED=0 has a process, and what it starts,
run them as they are written, as in an installation without a compiler; a profiler of Python then sees into them.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

# By folder of this package; those of a folder but for its __init__.py. hatch_build.py compiles them as one library.
MODULES = (
    "core/envelope.py",
    "core/http2_frames.py",
    "core/inbox.py",
    "core/progress.py",
    "core/zmq_frames.py",
    "router/accounts.py",
    "router/arrivals.py",
    "router/asked.py",
    "router/clients.py",
    "router/dataplane.py",
    "router/link.py",
    "router/memory.py",
    "router/models.py",
    "router/pending.py",
    "router/relief.py",
    "router/rest_rows.py",
    "router/task_log.py",
    "router/workers.py",
    "router/fronts/deadlines.py",
    "router/fronts/reading_turns.py",
    "router/fronts/grpc_call.py",
    "router/fronts/grpc_server.py",
    "router/fronts/tfs_grpc.py",
    "router/fronts/http2/*.py",
    "router/metrics/buckets.py",
    "router/metrics/exposition.py",
    "router/metrics/requests.py",
    "router/scheduling/admission.py",
    "router/scheduling/batching.py",
    "router/scheduling/cost.py",
    "router/scheduling/entry.py",
    "router/scheduling/fair_share.py",
    "router/scheduling/line.py",
    "router/scheduling/load.py",
    "router/scheduling/next_dispatch.py",
    "router/scheduling/placement.py",
    "router/scheduling/queues.py",
    "router/scheduling/room.py",
    "router/scheduling/rules.py",
    "router/scheduling/scheduler.py",
    "router/scheduling/suspicion.py",
    "router/scheduling/turns.py",
    "worker/aligned.py",
    "worker/batch.py",
    "worker/call.py",
    "worker/codec.py",
    "worker/layout.py",
    "worker/link.py",
    "worker/plan.py",
    "worker/predict.py",
    "worker/response.py",
    "worker/run_sizes.py",
    "worker/runner.py",
    "worker/varints.py",
    "worker/engine/session.py",
    "worker/examples/*.py",
)

VARIABLE = "MPSPOOL_COMPILED"
# What is compiled of all of them lies beside the package.
LIBRARY = "mpspool__mypyc"

_PACKAGE = Path(__file__).parent
_AGAIN = "mpspool again (in a checkout: make compiled)"


class Obstacle(NamedTuple):
    """Why they do not run as C, and what to do about it."""

    reason: str
    remedy: str


def why_not() -> Obstacle | None:
    """Why this process does not run them as C; None where it does."""
    return _why_not


def obstacle(package: Path, environ: Mapping[str, str]) -> Obstacle | None:
    """Why those of an installed package are not to run as C; None where they are.

    In an installation in place a module may have been changed since it was compiled: then all run as they are written.
    """
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    library = next(
        (file for suffix in suffixes if (file := package.parent / f"{LIBRARY}{suffix}").exists()), None
    )
    if library is None:
        return Obstacle("they are not compiled", f"install gcc and Python's headers, then {_AGAIN}")
    if environ.get(VARIABLE) == "0":
        return Obstacle(f"{VARIABLE}=0", f"unset {VARIABLE}")
    if (package.parent / "pyproject.toml").exists():
        compiled_ns = library.stat().st_mtime_ns
        for file in [*files(package), package / Path(__file__).name]:
            if file.stat().st_mtime_ns > compiled_ns:
                return Obstacle(f"{file} is newer than what was compiled of it", "make compiled")
    return None


def files(package: Path) -> list[Path]:
    """What they are written in."""
    found = (file for pattern in MODULES for file in package.glob(pattern))
    return sorted(file for file in found if file.name != "__init__.py")


def _settle() -> Obstacle | None:
    """Before any of them is imported: where they are not to run as C, they are looked for as Python alone."""
    found = obstacle(_PACKAGE, os.environ)
    if found is not None:
        sys.path_hooks.insert(0, _finder)
        for path in [path for path in sys.path_importer_cache if _is_ours(path)]:
            del sys.path_importer_cache[path]
    return found


def _finder(path: str) -> importlib.machinery.FileFinder:
    if not _is_ours(path):
        raise ImportError
    loader = importlib.machinery.SourceFileLoader
    return importlib.machinery.FileFinder(path, (loader, importlib.machinery.SOURCE_SUFFIXES))


def _is_ours(path: str) -> bool:
    return Path(path).is_relative_to(_PACKAGE)


_why_not = _settle()
