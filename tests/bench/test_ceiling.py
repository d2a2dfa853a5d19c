"""What a server could reach beside its load, as the benchmark tells it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench.commands import run


def test_ceiling_runs(models_root: Path, tmp_path: Path) -> None:
    """`python -m bench.ceiling` holds limit, ceiling and both pools against one another, and writes what each came to."""
    load = "--batch", 32, "--seconds", 0.3, "--repeat", 2
    named = "--results", tmp_path, "--name", "c", "--cache", models_root / "bench"
    run("bench.ceiling", *load, *named, timeout_s=240)
    rounds = json.loads((tmp_path / "c.json").read_text())["rounds"]
    assert len(rounds) == 2
    for found in rounds:
        assert set(found) == {"inprocess", "ceiling", "mpspool", "mpspool_batch"}
        assert all(turn["rate"] > 0 for turn in found.values())
        assert 0 < found["ceiling"]["rate"] <= found["inprocess"]["rate"]
        assert found["ceiling"]["way_ms"] > 0
    table = [line for line in (tmp_path / "c.md").read_text().splitlines() if line.startswith("| mpspool")]
    assert [float(line.split("|")[3]) > 0 for line in table] == [True, True]
