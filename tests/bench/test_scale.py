"""What a request costs the router by workers and connections, as the benchmark writes it down."""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench.commands import run


def test_scale_runs(models_root: Path, tmp_path: Path) -> None:
    """`python -m bench.scale` has a figure for each number of both, in a table that names the machine, and as JSON."""
    load = "--workers", "1,3", "--connections", "1,20", "--rate", 500, "--seconds", 1, "--repeat", 2
    named = "--name", "smoke", "--results", tmp_path, "--cache", models_root / "bench"
    run("bench.scale", *load, *named, timeout_s=300)
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
