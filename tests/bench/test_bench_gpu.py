"""The GPU benchmark runs from end to end on a stand-in, and its program that faults speaks to a driver."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu import services
from bench.gpu.faulter import PTX
from tests.bench.commands import run
from tests.pool import ROOT

# A driver that takes the kernel and reports that it wrote where it must not.
DRIVER = r"""
#include <string.h>
int cuInit(unsigned flags) { return flags; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuCtxCreate_v2(void** context, unsigned flags, int device) { *context = context; return flags + device; }
int cuModuleLoadData(void** module, const char* image) {
  *module = module;
  return strstr(image, ".entry fault()") == 0 ? 218 : 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = module;
  return strcmp(name, "fault") == 0 ? 0 : 500;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** parameters, void** extra) {
  int one = gx == 1 && gy == 1 && gz == 1 && bx == 1 && by == 1 && bz == 1;
  return function != 0 && one && shared == 0 && stream == 0 && parameters == 0 && extra == 0 ? 0 : 1;
}
int cuCtxSynchronize(void) { return 700; }
"""


# A stand-in with one worker of each model.
SIMULATED = "--simulate", "--contexts", 1, "--seconds", 0.5


def test_everything_runs_on_a_stand_in(models_root: Path, tmp_path: Path) -> None:
    """One command: pairs with one process, attach proof, the stand-in's figures, faults and recoveries; all SIMULATED."""
    named = "--name", "smoke", "--results", tmp_path, "--cache", models_root / "bench"
    run("bench.gpu", *SIMULATED, "--quick", "--models", "widedeep", *named, timeout_s=120)
    found = json.loads((tmp_path / "smoke.json").read_text())
    assert found["simulated"] is True
    (cell,) = found["cells"]
    assert cell["setting"] == {"contexts": 1, "mps": True, "merged": False}
    assert cell["attached"] == 1
    (pair,) = cell["pairs"]
    assert pair["one"]["served"]["rate"] > 0
    assert pair["it"]["used"]["utilisation"] is not None
    assert pair["it"]["worker_bytes"] > 0
    assert [one["what"] for one in found["recoveries"]] == [
        "a client faults",
        "a busy worker is shot after terminate_client",
    ]
    for recovery in found["recoveries"]:
        times = recovery["times"]
        assert recovery["hit"] == 1
        assert 0 < times["seen_s"] <= times["stopped_s"] < times["first_ready_s"] <= times["all_ready_s"]
        assert recovery["right"] > 0
    assert (tmp_path / "smoke.md").read_text().startswith("# Several workers on one GPU: SIMULATED")
    assert (tmp_path / "smoke.png").exists()


def test_the_program_that_faults(tmp_path: Path) -> None:
    """It attaches, waits to be told, faults once, and says what CUDA said."""
    source = tmp_path / "driver.c"
    source.write_text(DRIVER)
    library = ["-x", "c", "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(source)]
    subprocess.run(["g++", *library], check=True, timeout=60)
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu.faulter"],
        input="\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)},
    )
    attached, said = map(json.loads, done.stdout.splitlines())
    assert attached["attached"] > 0
    assert said["cuda_error"] == 700
    assert done.returncode == 0
    assert b".target sm_70" in PTX, "as old as MPS itself allows"


def test_three_services_on_a_stand_in(models_root: Path, tmp_path: Path) -> None:
    """Every policy at one load; the report has a line of each for each service."""
    named = "--name", "services", "--results", tmp_path, "--cache", models_root / "bench"
    run("bench.gpu.services", *SIMULATED, "--levels", 0.3, *named, timeout_s=240)
    found = json.loads((tmp_path / "services.json").read_text())
    assert found["gpu"]["simulated"] is True
    assert list(found["levels"]) == list(services.SETUPS)
    for (level,) in found["levels"].values():
        assert set(level["services"]) == {one.name for one in services.SERVICES}
        assert level["services"]["widedeep"]["rate"] > 0
    told = (tmp_path / "services.md").read_text()
    assert told.startswith("# Three services on one GPU: SIMULATED")
    assert all(told.count(f"| {title} |") == 1 + len(services.SERVICES) for title in services.SETUPS)


def test_the_load_up_to_which_all_are_in_time() -> None:
    """Between two levels by the logarithm of the lateness; the last that was in time where the next one failed; none where none was."""
    alone = {"one": services.Alone(10.0, 100.0)}

    def level(load: float, p95_ms: float) -> services.Level:
        return services.Level(load, {"one": services.Late(1.0, 1.0, p95_ms, 0)})

    assert services.capacity([level(0.5, 40.0), level(0.9, 160.0)], alone) == pytest.approx(0.7)
    assert services.capacity([level(0.5, 40.0), level(0.9, math.inf)], alone) == 0.5
    assert services.capacity([level(0.5, 40.0), level(0.9, 80.0)], alone) == 0.9
    assert services.capacity([level(0.5, 81.0)], alone) == 0.0
