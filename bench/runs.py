"""Every whole run of the pool's benchmark, in one table. `python -m bench.runs`

Reads what runs have left in `results/` and writes `results/runs.md`: each run's ratios, and over all of them the median, the
least and the most. A run is whole that has a ratio for each of the targets.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import report
from bench.cell import Sample
from bench.report import LIMIT, OURS, OURS_BATCHING, TARGETS, Target
from bench.suite import PAIRS, Cell, Results
from bench.tables import table

RESULTS = Path(__file__).resolve().parent / "results"
_MODELS = (("half_plus_two", 1), ("widedeep", 1), ("widedeep", 32), ("widedeep", 512))


@dataclass(frozen=True, slots=True)
class Run:
    """One of them.

    Attributes:
        name: of its files.
        machine: what it says of its circumstances.
        rounds: in each cell.
        ratios: of each target.
        p99: of each cell at a steady rate, ours by the other's.
    """

    name: str
    machine: dict[str, Any]
    rounds: int
    ratios: dict[Target, float]
    p99: Sequence[float]


def read(folder: Path) -> list[Run]:
    """The whole runs, the oldest first."""
    found = []
    for file in folder.glob("*.json"):
        figures = json.loads(file.read_text())
        if isinstance(figures.get("plan"), dict) and "footprints" in figures:
            run = _run(file.stem, figures)
            if len(run.ratios) == len(TARGETS):
                found.append(run)
    return sorted(found, key=lambda run: run.machine["time"])


def _run(name: str, figures: dict[str, Any]) -> Run:
    results = Results()
    for cell in figures["cells"]:
        place = Cell(cell["part"], cell["model"], cell["batch"], cell["concurrency"])
        samples = [Sample(**one) for one in cell["rounds"]]
        results.samples.setdefault(place, {})[cell["contender"]] = samples
    ratios = {
        target: ratio for target in TARGETS if (ratio := report.target_ratio(results, target)) is not None
    }
    steady = [cell for cell in results.samples if cell.part == "steady"]
    p99 = [results.p99_ratio(cell, pair.ours, pair.theirs) for cell in steady for pair in PAIRS]
    rounds = figures["plan"]["repeat"]
    return Run(name, figures["machine"], rounds, ratios, [ratio for ratio in p99 if ratio is not None])


def page(runs: Sequence[Run]) -> str:
    """All of it, as Markdown."""
    lines = [
        "# All whole runs of the pool's benchmark",
        "",
        "Written by `python -m bench.runs` from what lies beside it. Requests a second with 32 in flight, as ratios: ours by Triton's",
        "as it comes, then by Triton's with our call inside. Bold is what the [targets](../README.md) ask for and was not reached.",
        "",
        f"## Over {len(runs)} runs: the median, the least to the most",
        "",
        *summary(runs),
        "",
        _latency(runs),
    ]
    for title, ours in (("Without batching", OURS), ("With batching", OURS_BATCHING)):
        lines += ["", f"## {title}", "", *_table(runs, ours)]
    return "\n".join([*lines, ""])


def summary(runs: Sequence[Run]) -> Iterator[str]:
    """The lines of a table of the median, the least and the most."""
    header = ("", "Triton", "with our call inside", "batching: Triton", "with our call inside")
    rows = [
        (
            f"{model}, batch {batch}",
            *(_spread(runs, target) for ours in (OURS, OURS_BATCHING) for target in _of(model, batch, ours)),
        )
        for model, batch in _MODELS
    ]
    alone, batching = (_spread(runs, _limit(ours)) for ours in (OURS, OURS_BATCHING))
    yield from table(header, [*rows, ("widedeep, batch 512, of the limit", alone, "", batching, "")])


def _spread(runs: Iterable[Run], target: Target) -> str:
    ratios = [run.ratios[target] for run in runs]
    return f"{statistics.median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f})"


def _latency(runs: Iterable[Run]) -> str:
    ratios = sorted(ratio for run in runs for ratio in run.p99)
    over = [f"{ratio:.2f}" for ratio in ratios if ratio > 1]
    return (
        f"p99 at 70 % of what Triton can, ours by its own at the same rate: {statistics.median(ratios):.2f}, from {ratios[0]:.2f} on;"
        f" more than 1 in {len(over)} of {len(ratios)} cells ({', '.join(over)})."
    )


def _of(model: str, batch: int, ours: str) -> list[Target]:
    """Against Triton as it comes, and with our call inside."""
    return [
        target
        for target in TARGETS
        if (target.model, target.batch, target.ours) == (model, batch, ours) and target.theirs != LIMIT
    ]


def _limit(ours: str) -> Target:
    return next(target for target in TARGETS if (target.ours, target.theirs) == (ours, LIMIT))


def _table(runs: Iterable[Run], ours: str) -> Iterator[str]:
    header = (
        "",
        "CPU",
        "commit",
        "rounds",
        *(f"{model}, {batch}" for model, batch in _MODELS),
        "of the limit",
    )
    rows = [
        (
            f"[{run.name}]({run.name}.md)",
            run.machine["cpu"],
            run.machine["commit"],
            str(run.rounds),
            *(", ".join(_ratio(run, target) for target in _of(*place, ours)) for place in _MODELS),
            _ratio(run, _limit(ours)),
        )
        for run in runs
    ]
    yield from table(header, rows)


def _ratio(run: Run, target: Target) -> str:
    ratio = run.ratios[target]
    return f"{ratio:.2f}" if ratio >= target.at_least else f"**{ratio:.2f}**"


def main() -> int:
    """Exits with 1 where there is no whole run."""
    runs = read(RESULTS)
    if not runs:
        print(f"bench: no whole run lies in {RESULTS}; make bench leaves one", file=sys.stderr)
        return 1
    file = RESULTS / "runs.md"
    file.write_text(page(runs))
    print(f"bench: {len(runs)} runs, written to {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
