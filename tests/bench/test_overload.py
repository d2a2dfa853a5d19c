"""What is answered in time under more than can be answered, as the benchmark tells it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench.commands import run


def test_overload_runs(models_root: Path, tmp_path: Path) -> None:
    """`python -m bench.overload` sends parts and multiples of what the pool can, and writes what was answered of it in time."""
    load = "--times", "0.5,3", "--seconds", 0.5, "--repeat", 2, "--deadline-ms", 5000
    named = "--results", tmp_path, "--name", "o", "--cache", models_root / "bench"
    run("bench.overload", *load, *named, timeout_s=240)
    told = json.loads((tmp_path / "o.json").read_text())
    assert [can > 0 for can in told["able"]] == [True, True]
    for less, more in told["rounds"]:
        assert less["in_time"] > 0
        assert 0 < less["sent"] < more["sent"]
    rows = [
        line for line in (tmp_path / "o.md").read_text().splitlines() if line.startswith(("| 0.5", "| 3"))
    ]
    assert len(rows) == 2
