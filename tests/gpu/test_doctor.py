"""The doctor on a machine with a real GPU."""

from __future__ import annotations

import json
import os

import pytest

from mpspool.mps.devices import inventory
from tests.pool import cli

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not inventory(os.environ).devices, reason="no GPU is visible"),
]


def test_a_gpu_machine_that_serves_has_no_error() -> None:
    """TensorFlow sees every GPU, its kernels fit, and MPS is found."""
    done = cli("doctor", "--mps", "on", "--grpc-port", 0, "--rest-port", 0, "--json", timeout=200)
    report = json.loads(done.stdout)
    assert (done.returncode, report["ok"]) == (0, True), report
    assert report["simulated"] == ""
    names = {check["name"] for check in report["checks"]}
    assert {"driver", "kernels", "compute_mode", "mps_programs", "tensorflow_gpu"} <= names
