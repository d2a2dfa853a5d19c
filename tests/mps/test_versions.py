"""Versions on a GPU: no more workers than MPS takes as clients."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests import light
from tests.conftest import PoolStarter
from tests.polling import until

CLIENTS = 48
CONTEXTS = 24


def test_all_versions_at_once_are_no_more_than_mps_takes(start_pool: PoolStarter, tmp_path: Path) -> None:
    """With `version_policy: all`, two versions fill the GPU; a third says so and waits, and serves once one has gone."""
    base = light.write_model(tmp_path / "half")
    config = {
        "simulate_gpus": 1,
        "contexts_per_gpu": CONTEXTS,
        "file_system_poll_wait_seconds": 0.2,
        "weights": {"shared": "off"},
        "models": {"half": {"base_path": str(base), "version_policy": "all"}},
    }
    (tmp_path / "pool.yaml").write_text(json.dumps(config))
    pool = start_pool(tmp_path / "pool.yaml", env=light.LIGHT).wait()

    def versions() -> dict[int, str]:
        (model,) = pool.status()["models"]
        return {version["version"]: version["state"] for version in model["versions"]}

    def why() -> str:
        (model,) = pool.status()["models"]
        return next((found["error"] for found in model["versions"] if found["version"] == 3), "")

    for number in (2, 3):
        shutil.copytree(base / "1", base / "incoming")
        (base / "incoming").rename(base / str(number))
        if number == 2:
            until(lambda: versions() == {1: "AVAILABLE", 2: "AVAILABLE"}, 60, "both serve")
    assert until(why, 20, "the third has no room").startswith(
        f"no room on gpu0: {CONTEXTS} more workers beside {CLIENTS} would be more than the {CLIENTS} clients"
    )
    assert versions() == {1: "AVAILABLE", 2: "AVAILABLE", 3: "END"}
    assert len(pool.mps_clients("gpu0")) == CLIENTS
    shutil.rmtree(base / "1")
    until(lambda: versions() == {2: "AVAILABLE", 3: "AVAILABLE"}, 60, "the third has come")
    assert len(pool.mps_clients("gpu0")) == CLIENTS
