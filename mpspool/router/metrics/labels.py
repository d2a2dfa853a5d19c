"""The labels that say of which version or worker slot a metric is."""

from __future__ import annotations

from mpspool.core.ids import WorkerId

VERSION = ("model", "version")
WORKER = ("model", "version", "device", "slot")


def worker_labels(worker: str) -> tuple[str, str, str, str]:
    """The values of WORKER for a worker's id."""
    found = WorkerId.parse(worker)
    return found.model, str(found.version), found.device, str(found.slot)
