"""`mpspool doctor` as a user calls it, with TensorFlow in its children."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from mpspool.mps.devices import GpuDevice
from mpspool.supervisor.doctor.ask_tensorflow import ask_tensorflow
from mpspool.supervisor.doctor.facts import GpuUse
from tests.conftest import short_dir
from tests.pool import cli

NO_PORTS = ["--grpc-port", 0, "--rest-port", 0]
# This machine's own GPUs, if any, are not looked at.
HIDDEN = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
SHOWN = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}


def test_without_a_gpu() -> None:
    """TensorFlow is there; one line says that no GPU is, and the exit status is 0."""
    with short_dir() as root:
        done = cli("doctor", *NO_PORTS, "--run-dir", root / "run", env=HIDDEN)
        assert not (root / "run").exists()
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert "no GPU is visible" in lines[0]
    assert any(line.startswith("ok       tensorflow     TensorFlow 2.") for line in lines)
    assert lines[-1].startswith("no error")
    assert "SIMULATED" not in done.stdout


def test_with_stand_ins() -> None:
    """The header and every line that looks at one say SIMULATED."""
    with short_dir() as root:
        args = ["doctor", *NO_PORTS, "--run-dir", root / "run", "--simulate-gpus", 2]
        done = cli(*args, "--json", env=SHOWN)
        shown = cli(*args, env=SHOWN)
    report: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, report["ok"], report["simulated"]) == (0, True, "gpus")
    marked = {check["name"] for check in report["checks"] if "SIMULATED" in check["evidence"]}
    assert {"gpu", "driver", "kernels", "compute_mode", "clients", "tensorflow_gpu", "slots"} <= marked
    assert shown.stdout.startswith("SIMULATED: 2 GPUs")


def test_a_gpu_that_tensorflow_does_not_see(tmp_path: Path) -> None:
    """The worker's own check, in a child: without the driver's library it says so."""
    (tmp_path / "libcuda.so.1").write_text("no library")
    device = GpuDevice(0, "GPU-11111111-2222-3333-4444-555555555555", "Test GPU", (9, 0), 0, None)
    found = ask_tensorflow(
        [GpuUse(device, None, 1, 48)], {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}, tmp_path / "nowhere"
    )
    assert found.error == ""
    assert found.cuda.startswith("12.")
    assert any(name.startswith("compute_") for name in found.capabilities)
    assert "libcuda.so.1 is not there" in found.gpus[device.uuid]
