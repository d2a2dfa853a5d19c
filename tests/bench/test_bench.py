"""The benchmark runs from end to end without its peers: the way in, the pool and its limit, sharing, swaps; table and plots."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from bench import embedding
from bench.front import LAYERS
from bench.variants import VARIANTS
from tests.bench.commands import run


def test_everything_runs_without_a_peer(models_root: Path, tmp_path: Path) -> None:
    """One command: each layer, the pool and the in-process limit give a sample, sharing and swaps their figures; all is written."""
    results, cache = tmp_path / "results", models_root / "bench"
    named = "--name", "smoke", "--results", results, "--cache", cache
    try:
        run("bench", "--quick", "--peers", "", "--models", "half_plus_two", *named, timeout_s=600)
    finally:  # a gigabyte, which pytest would keep for a while
        shutil.rmtree(cache / "models" / embedding.NAME, ignore_errors=True)
    found = json.loads((results / "smoke.json").read_text())
    assert (found["failures"], found["restarts"]) == ([], [])
    measured = {(cell["part"], cell["contender"]): cell["rounds"] for cell in found["cells"]}
    layers = {("front", layer.name) for layer in LAYERS}
    ours = {("pool", name) for name in ("mpspool", "mpspool_batch", "inprocess")}
    assert set(measured) == layers | ours
    assert all(len(rounds) == 1 and rounds[0]["rate"] > 0 for rounds in measured.values())
    assert {(one["part"], one["contender"]) for one in found["footprints"]} == set(measured)
    assert len(found["sharing"]["back_s"]) == len(VARIANTS)
    assert [len(server["swaps"]) for server in found["swaps"]] == [2, 2]
    report = (results / "smoke.md").read_text()
    assert report.startswith("# Benchmark")
    assert "Did not run" not in report
    plots = sorted(results.glob("*.png"))
    assert [plot.name for plot in plots] == ["smoke.png", "smoke.sharing.png", "smoke.swap.png"]
    assert all(plot.read_bytes().startswith(b"\x89PNG") for plot in plots)


def test_shared_runs(models_root: Path) -> None:
    """`python -m bench.batch` prints a line for each encoding and batch, of answers that are right."""
    load = "--models", "half_plus_two", "--batches", "1,4", "--rounds", 1, "--seconds", 0.01
    printed = run("bench.batch", *load, "--cache", models_root / "bench", timeout_s=300)
    shown = [line.split(" x)")[0] for line in printed.splitlines() if line.startswith("half_plus_two")]
    assert [line.split()[1:4] for line in shown] == [
        [encoding, "batch", f"{batch}:"] for encoding in ("content", "lists") for batch in (1, 4)
    ]
