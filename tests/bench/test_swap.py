"""What requests see of a new version, as the benchmark writes it down."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from bench import embedding
from bench.measure import Memory, Segments
from bench.swap import figures
from bench.swap_load import Requests
from bench.swap_servers import Seen
from tests.bench.commands import run


def test_swap_runs(models_root: Path, tmp_path: Path) -> None:
    """`python -m bench.swap` swaps twice in either server: no request fails, and there is a figure for each swap."""
    cache = models_root / "bench"
    named = "--name", "smoke", "--results", tmp_path, "--cache", cache
    try:
        run("bench.swap", "--quick", *named, timeout_s=600)
    finally:  # a gigabyte, which pytest would keep for a while
        shutil.rmtree(cache / "models" / embedding.NAME, ignore_errors=True)
    found = json.loads((tmp_path / "smoke.json").read_text())
    pool, process = found["swaps"]
    for server in (pool, process):
        assert (server["failed"], server["failures"]) == (0, [])
        assert server["sent"] > 0
        assert [swap["version"] for swap in server["swaps"]] == [2, 3]
        for swap in server["swaps"]:
            assert min(swap[name] for name in ("seconds", "steady_ms", "during_ms", "first_ms", "pss_mb")) > 0
    assert process["swaps"][-1]["processes"] == 1
    table_mb = embedding.ROWS * embedding.WIDTH * 4 / 2**20
    # One copy, of the version that is there.
    assert all(table_mb <= swap["segments_mb"] < 1.5 * table_mb for swap in pool["swaps"])
    table = (tmp_path / "smoke.md").read_text()
    assert f"mpspool {found['machine']['commit']}" in table
    assert "| failed requests in 2 swaps | 0 | 0 | reached |" in table
    assert (tmp_path / "smoke.png").read_bytes().startswith(b"\x89PNG")


class _Cpu:
    """One CPU in the steady time, and two in the swap."""

    def used(self, begin: float, end: float) -> dict[str, float]:
        return {"worker": (end - begin) * (2 if begin >= 104 else 1), "foreign": 0.0}


def test_figures_of_a_swap() -> None:
    """Requests count by when they were due, the new version's first answer by when it came, failures with what is near."""
    due = np.array([99.0, 101, 102, 105, 106, 107, 120])
    took = np.array([9.0, 0.001, 0.002, 0.005, 3, 0.007, 9])
    version = np.array([1, 1, 1, 1, 2, 2, 2], np.int32)
    version[1] = 0
    requests = Requests(due, due + 0.0001, due + took, version)
    seen = Seen(2, 100.0, 104.0, 110.0, Memory(9, 2000.0, 1700.0), Segments(1, 954.0))
    swap = figures(requests, seen, _Cpu())  # type: ignore[arg-type]
    assert (swap.begin_s, swap.seconds, swap.failed) == (5, 6, 1)
    assert swap.steady_ms < 2 < 2900 < swap.during_ms
    assert round(swap.first_ms, 3) == 7  # the one before it was due earlier, and answered later
    assert round(swap.late_ms, 3) == 0.1
    assert swap.cpu_s == {"worker": 6, "foreign": 0}
    assert swap.first_ratio > 3
