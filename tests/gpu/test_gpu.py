"""A pool on a real GPU under NVIDIA MPS."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mpspool.core import settings
from mpspool.core.settings import MpsSettings
from mpspool.mps.control import Control
from mpspool.mps.devices import inventory
from tests.conftest import PoolStarter
from tests.pool import cli

FOUND = inventory(os.environ)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not FOUND.devices, reason=f"no GPU is visible: {FOUND.reason or 'none is left by the mask'}"
    ),
]


def test_two_contexts_under_mps(start_pool: PoolStarter, model_dir: Callable[[str], Path]) -> None:
    """Both workers are clients of GPU 0's MPS server, and what they answer is right."""
    model = f"half_plus_two={model_dir('half_plus_two')}"
    pool = start_pool("--model", model, "--gpus", "0", "--contexts-per-gpu", 2, "--mps", "on").wait()
    status = pool.status()
    assert status["pool"]["mps"] == "on"
    assert {worker["device"] for worker in status["workers"]} == {"gpu0"}
    assert not any("error" in worker for worker in status["workers"])
    control = Control.of(settings.load(pool.run_dir / "settings" / "mps.gpu0.json", MpsSettings), os.environ)
    clients = {pid for server in control.server_list() for pid in control.client_list(server)}
    assert clients == {worker["pid"] for worker in status["workers"]}
    done = cli("predict", "half_plus_two", "--input", '{"x": [1, 2, 5]}', "--address", pool.address)
    assert json.loads(done.stdout) == {"y": [2.5, 3.0, 4.5]}, done.stderr
    assert pool.stop(60) == 0
    pool.assert_nothing_left()
