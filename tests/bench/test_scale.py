"""What a request costs the router by workers and connections, as the benchmark writes it down."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.pool import ROOT


def test_scale_runs(models_root: Path, tmp_path: Path) -> None:
    """`python -m bench.scale` has a figure for each number of both, in a table that names the machine, and as JSON."""
    command = [
        sys.executable,
        "-m",
        "bench.scale",
        "--workers",
        "1,3",
        "--connections",
        "1,20",
        "--rate",
        "500",
    ]
    command += [
        "--seconds",
        "1",
        "--repeat",
        "2",
        "--name",
        "smoke",
        "--results",
        str(tmp_path),
        "--cache",
        str(models_root / "bench"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "smoke.json").read_text())
    assert [series["counts"] for series in found["series"]] == [[1, 3], [1, 20]]
    rounds = [costs for series in found["series"] for costs in series["rounds_us"]]
    assert len(rounds) == 4
    assert all(cost > 0 for costs in rounds for cost in costs)
    assert {"cpu", "commit", "time"} <= set(found["machine"])
    table = (tmp_path / "smoke.md").read_text()
    assert f"mpspool {found['machine']['commit']}" in table
    assert "| workers, 32 connections | 1 | 3 |\n|---|---|---|\n| us a request | " in table
    assert "| connections, 2 workers | 1 | 20 |" in table
