"""The table of all whole runs: what it takes in, and that the documents say the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import report, runs
from bench.cell import Sample
from bench.report import TARGETS
from bench.suite import Cell, Plan, Results

ROOT = Path(__file__).resolve().parents[2]


def sample(rate: float, p99_ms: float = 1.0) -> Sample:
    return Sample(rate, 1.0, p99_ms, 1.0, 1.0, 1.0, 0.0)


def leave(folder: Path, name: str, times: float, rounds: int = 3) -> None:
    """What a run leaves in which each of ours is so many times as fast as everyone else, and as quick."""
    results = Results()
    for target in TARGETS:
        row = results.samples.setdefault(Cell("pool", target.model, target.batch, 32), {})
        row[target.ours], row[target.theirs] = [sample(100 * times)] * rounds, [sample(100)] * rounds
    steady = Cell("steady", "widedeep", 32, 32)
    results.samples[steady] = {"mpspool": [sample(70, times)], "triton": [sample(70, 2.0)]}
    plan = Plan(["half_plus_two", "widedeep"], [1, 32, 512], [32], 1.0, rounds)
    (folder / f"{name}.json").write_text(report.as_json(results, plan))


def test_a_run_has_its_ratios(tmp_path: Path) -> None:
    leave(tmp_path, "one", 1.5)
    (run,) = runs.read(tmp_path)
    assert (run.name, run.rounds) == ("one", 3)
    assert run.ratios == dict.fromkeys(TARGETS, 1.5)
    assert run.p99 == [0.75]


def test_others_than_whole_runs_are_passed_over(tmp_path: Path) -> None:
    leave(tmp_path, "whole", 2.0)
    left = json.loads((tmp_path / "whole.json").read_text())
    left["cells"] = [cell for cell in left["cells"] if cell["contender"] != "triton_session_batch"]
    (tmp_path / "part.json").write_text(json.dumps(left))
    (tmp_path / "scale.json").write_text(json.dumps({"machine": {}, "rate": 1, "series": []}))
    assert [run.name for run in runs.read(tmp_path)] == ["whole"]


def test_the_page(tmp_path: Path) -> None:
    for name, times in (("slow", 1.0), ("middle", 1.55), ("fast", 3.0)):
        leave(tmp_path, name, times)
    page = runs.page(runs.read(tmp_path))
    spread = "1.55 x (1.00 to 3.00)"
    assert f"| widedeep, batch 32 | {spread} | {spread} | {spread} | {spread} |" in page
    assert f"| widedeep, batch 512, of the limit | {spread} |  | {spread} |  |" in page
    assert "0.78, from 0.50 on; more than 1 in 1 of 3 cells (1.50)." in page
    lines = [line for line in page.splitlines() if line.startswith("| [middle](middle.md) | ")]
    alone, batching = (line.split(" | ", 4)[-1] for line in lines)
    assert alone == "**1.55**, 1.55 | **1.55**, 1.55 | **1.55**, 1.55 | 1.55, 1.55 | 1.55 |"
    assert batching == "1.55, 1.55 | 1.55, 1.55 | 1.55, 1.55 | 1.55, 1.55 | 1.55 |"


def test_without_a_whole_run_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs, "RESULTS", tmp_path)
    assert runs.main() == 1
    assert "no whole run lies in" in capsys.readouterr().err


def test_the_page_and_the_documents_are_of_the_runs_that_are_here() -> None:
    """Else: `python -m bench.runs`, and its summary into docs/speed.md and README.md."""
    found = runs.read(runs.RESULTS)
    assert (runs.RESULTS / "runs.md").read_text() == runs.page(found)
    summary = list(runs.summary(found))
    speed, readme = (ROOT / "docs/speed.md").read_text(), (ROOT / "README.md").read_text()
    assert "\n".join(summary) in speed
    for line in summary[2:-1]:
        _, name, alone, _, batching, *_ = (cell.strip() for cell in line.split("|"))
        assert f"| {name} | {alone} | {batching} |" in readme
    assert f"[{len(found)} whole runs](../bench/results/runs.md)" in speed
    assert f"[{len(found)} runs](bench/results/runs.md)" in readme
