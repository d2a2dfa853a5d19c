"""What is answered in time under more than can be answered, as the benchmark tells it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.pool import ROOT


def test_overload_runs(models_root: Path, tmp_path: Path) -> None:
    """`python -m bench.overload` sends parts and multiples of what the pool can, and writes what was answered of it in time."""
    command = [
        sys.executable,
        "-m",
        "bench.overload",
        "--times",
        "0.5,3",
        "--seconds",
        "0.5",
        "--repeat",
        "2",
    ]
    command += ["--deadline-ms", "5000", "--results", str(tmp_path), "--name", "o"]
    done = subprocess.run(
        [*command, "--cache", str(models_root / "bench")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "o.json").read_text())
    assert [can > 0 for can in told["able"]] == [True, True]
    for less, more in told["rounds"]:
        assert less["in_time"] > 0
        assert 0 < less["sent"] < more["sent"]
    rows = [
        line for line in (tmp_path / "o.md").read_text().splitlines() if line.startswith(("| 0.5", "| 3"))
    ]
    assert len(rows) == 2
