"""What a run leaves: a table, the same figures as JSON, a plot; and which targets were reached."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from bench import sharing_report, swap_report
from bench.cell import Sample
from bench.environments import REPOSITORY
from bench.processors import sentence
from bench.suite import PAIRS, STEADY, Cell, Plan, Results
from bench.tables import table
from mpspool import compiled

OURS, OURS_BATCHING, LIMIT = "mpspool", "mpspool_batch", "inprocess"


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """At concurrency 32, ours / theirs is to be at least this."""

    model: str
    batch: int
    ours: str
    theirs: str
    at_least: float


def _targets(model: str, batch: int, alone: float, batched: float) -> list[Target]:
    """Against Triton's Python backend and its dynamic batcher; with our call in them, never to be the slower one."""
    return [
        Target(model, batch, OURS, "triton", alone),
        Target(model, batch, OURS, "triton_session", 1.0),
        Target(model, batch, OURS_BATCHING, "triton_batch", batched),
        Target(model, batch, OURS_BATCHING, "triton_session_batch", 1.0),
    ]


TARGETS: Sequence[Target] = (
    *_targets("half_plus_two", 1, 2.0, 1.3),
    *_targets("widedeep", 1, 1.8, 1.5),
    *_targets("widedeep", 32, 1.6, 1.2),
    *_targets("widedeep", 512, 1.1, 1.1),
    Target("widedeep", 512, OURS, LIMIT, 0.92),
    Target("widedeep", 512, OURS_BATCHING, LIMIT, 0.92),
)
_TARGET_CONCURRENCY = 32


def markdown(results: Results, plan: Plan) -> str:
    """The whole report."""
    return "\n".join(
        [
            *_head(plan),
            *_front_tables(results),
            *_pool_tables(results),
            *_steady_table(results),
            *_footprints(results),
            *(sharing_report.tables(results.sharing) if results.sharing else ()),
            *(swap_report.tables(results.swaps) if results.swaps else ()),
            *target_lines(results),
            *_notes("Went away and was started again", results.restarts),
            *_notes("Did not run", results.failures),
            "",
        ]
    )


def _head(plan: Plan) -> Iterator[str]:
    facts = machine()
    yield "# Benchmark"
    yield ""
    yield f"{facts['cpus']} CPUs ({facts['cpu']}), {facts['system']}, Python {facts['python']}, TensorFlow"
    yield f"{facts['tensorflow']}, mpspool {facts['commit']}, {facts['time']}. {plan.repeat} rounds of"
    yield f"{plan.seconds:g} s a cell; medians. Two model processes with one TensorFlow thread each, everywhere."
    yield f"{sentence(plan.load_cpus)} What the figures mean: bench/README.md."


def machine() -> dict[str, Any]:
    """The circumstances, for whoever compares."""
    git = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    names = [line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")]
    return {
        "time": time.strftime("%Y-%m-%d %H:%M %Z"),
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": names[0] if names else platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "tensorflow": metadata.version("tensorflow"),
        "commit": (commit or "unknown") + (" as it is written" if compiled.why_not() else ""),
    }


def _cpuinfo() -> list[str]:
    return Path("/proc/cpuinfo").read_text().splitlines()


def _groups(results: Results, part: str) -> list[tuple[str, int]]:
    found = {(cell.model, cell.batch): None for cell in results.samples if cell.part == part}
    return list(found)


def _concurrencies(results: Results, part: str) -> list[int]:
    return sorted({cell.concurrency for cell in results.samples if cell.part == part})


def _names(results: Results, part: str, model: str, batch: int) -> list[str]:
    """Who was measured there, in the order they started."""
    rows = [
        row
        for cell, row in results.samples.items()
        if (cell.part, cell.model, cell.batch) == (part, model, batch)
    ]
    return [name for name in results.titles if any(name in row for row in rows)]


def _front_tables(results: Results) -> Iterator[str]:
    if not _groups(results, "front"):
        return
    yield from ("", "## The way in: CPU of each request", "")
    header = (
        "model, batch, concurrency",
        "layers",
        "requests/s",
        "p50 / p99 ms",
        "us CPU per request",
        "of these by",
    )
    rows = []
    for cell, row in results.samples.items():
        if cell.part == "front":
            for name, samples in row.items():
                rows.append(
                    (
                        f"{cell.model}, {cell.batch}, {cell.concurrency}",
                        *_front_row(results, cell, name, samples),
                    )
                )
    yield from table(header, rows)


def _front_row(results: Results, cell: Cell, name: str, samples: Sequence[Sample]) -> tuple[str, ...]:
    one = results.median(cell, name)
    assert one is not None
    last = samples[-1]
    total = sum(last.cpu_by_role.values()) or 1.0
    shares = ", ".join(
        f"{role} {1000 * one.cpu_s_per_1000 * cpu / total:.0f}"
        for role, cpu in sorted(last.cpu_by_role.items(), key=lambda item: -item[1])
        if cpu / total > 0.005
    )
    times = f"{one.p50_ms:.2f} / {one.p99_ms:.2f}"
    return results.titles[name], f"{one.rate:.0f}", times, f"{1000 * one.cpu_s_per_1000:.0f}", shares


def _pool_tables(results: Results) -> Iterator[str]:
    concurrencies = _concurrencies(results, "pool")
    for model, batch in _groups(results, "pool"):
        yield from ("", f"## {model}, batch {batch}", "")
        header = [
            "",
            *(f"c{c}: answers/s, p50 / p99 ms" for c in concurrencies),
            *(f"c{c}: CPU s per 1000" for c in concurrencies),
            *(f"c{c}: ours / it" for c in concurrencies),
            "cores at the last: server + client + foreign",
        ]
        cells = [Cell("pool", model, batch, concurrency) for concurrency in concurrencies]
        yield from table(
            header, [_pool_row(results, cells, n) for n in _names(results, "pool", model, batch)]
        )


def _pool_row(results: Results, cells: Sequence[Cell], name: str) -> list[str]:
    samples = [results.median(cell, name) for cell in cells]
    ratios = [results.ratio(cell, _rival(name), name) for cell in cells]
    last = samples[-1]
    return [
        results.titles[name],
        *(f"{one.rate:.0f}, {one.p50_ms:.2f} / {one.p99_ms:.2f}" if one else "" for one in samples),
        *(f"{one.cpu_s_per_1000:.3f}" if one else "" for one in samples),
        *(f"{ratio:.2f}" if ratio and name != _rival(name) else "" for ratio in ratios),
        f"{last.server_cores:.2f} + {last.client_cores:.2f} + {last.foreign_cores:.2f}" if last else "",
    ]


def _steady_table(results: Results) -> Iterator[str]:
    rows = []
    for (model, batch), pair in itertools.product(_groups(results, "steady"), PAIRS):
        for cell in (Cell("steady", model, batch, c) for c in _concurrencies(results, "steady")):
            ours, theirs = results.median(cell, pair.ours), results.median(cell, pair.theirs)
            ratio = results.p99_ratio(cell, pair.ours, pair.theirs)
            if ours is None or theirs is None or ratio is None:
                continue
            rows.append(
                (
                    f"{model}, {batch}: {results.titles[pair.theirs]}",
                    f"{theirs.rate:.0f}",
                    f"{ours.p50_ms:.2f} / {ours.p99_ms:.2f}",
                    f"{theirs.p50_ms:.2f} / {theirs.p99_ms:.2f}",
                    f"{ratio:.2f}",
                    "reached" if ratio <= 1 else "not reached",
                )
            )
    if rows:
        yield from ("", f"## Latency at {STEADY:.0%} of what the other can", "")
        yield "Both at the same rate, sent at even times over 32 connections; the ratio of p99 is to be at most 1."
        yield ""
        header = ("", "requests/s", "ours: p50 / p99 ms", "it: p50 / p99 ms", "p99: ours / it", "")
        yield from table(header, rows)


def _rival(name: str) -> str:
    """Which of ours another is compared with: batching with batching."""
    return OURS_BATCHING if name.endswith("_batch") else OURS


def _footprints(results: Results) -> Iterator[str]:
    if not results.footprints:
        return
    yield from ("", "## Start and memory", "")
    rows = [
        (
            model,
            results.titles[name],
            f"{footprint.ready_s:.1f}",
            str(footprint.memory.processes),
            f"{footprint.memory.rss_mb:.0f}",
            f"{footprint.memory.pss_mb:.0f}",
        )
        for (_, model, name), footprint in results.footprints.items()
    ]
    yield from table(("model", "", "first answer, s", "processes", "RSS MB", "PSS MB"), rows)


def target_lines(results: Results) -> Iterator[str]:
    """The targets of what was measured, and whether each is reached."""
    rows = []
    for target in TARGETS:
        ratio = target_ratio(results, target)
        if ratio is not None:
            rows.append(
                (
                    f"{target.model}, batch {target.batch}",
                    f"{results.titles[target.ours]} against {results.titles[target.theirs]}",
                    f"{target.at_least:.2f}",
                    f"{ratio:.2f}",
                    "reached" if ratio >= target.at_least else "not reached",
                )
            )
    if rows:
        yield from ("", f"## Targets, concurrency {_TARGET_CONCURRENCY}", "")
        yield from table(("", "", "at least", "ratio", ""), rows)
    if results.sharing:
        yield from ("", "## Targets, one copy", "")
        yield from table(("", "at most", "measured", ""), list(sharing_report.targets(results.sharing)))
    if results.swaps:
        yield from swap_report.target_lines(results.swaps)


def target_ratio(results: Results, target: Target) -> float | None:
    """What was measured of it; None where not both were."""
    cell = Cell("pool", target.model, target.batch, _TARGET_CONCURRENCY)
    return results.ratio(cell, target.ours, target.theirs)


def _notes(title: str, notes: Sequence[str]) -> Iterator[str]:
    if notes:
        yield from ("", f"## {title}", "")
        yield from (f"- {note.splitlines()[0]}" for note in notes)


def as_json(results: Results, plan: Plan) -> str:
    """Every sample of every round."""
    cells = [
        {
            **dataclasses.asdict(cell),
            "contender": name,
            "rounds": [dataclasses.asdict(one) for one in samples],
        }
        for cell, row in results.samples.items()
        for name, samples in row.items()
    ]
    footprints = [
        {"part": part, "model": model, "contender": name, **dataclasses.asdict(footprint)}
        for (part, model, name), footprint in results.footprints.items()
    ]
    whole = {
        "machine": machine(),
        "plan": dataclasses.asdict(plan),
        "cells": cells,
        "footprints": footprints,
        "sharing": sharing_report.as_dict(results.sharing) if results.sharing else None,
        "swaps": swap_report.as_dict(results.swaps),
        "restarts": results.restarts,
        "failures": results.failures,
    }
    return json.dumps(whole, indent=1)


def plot(results: Results, file: Path) -> None:
    """Answers per second in each cell, and CPU per request of the front's layers."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels = [(part, *group) for part in ("front", "pool") for group in _groups(results, part)]
    if not panels:
        return
    columns = min(4, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(5 * columns, 4 * lines), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, (part, model, batch) in zip(axes.flat, panels, strict=False):
        _panel(axis, results, part, model, batch)
    labels = {
        label: handle
        for axis in figure.axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(labels.values(), labels.keys(), loc="lower center", ncols=len(labels), fontsize=8)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _panel(axis: Any, results: Results, part: str, model: str, batch: int) -> None:
    """One group of bars for each concurrency; the in-process limit is a line, or far above."""
    concurrencies = _concurrencies(results, part)
    names = [name for name in _names(results, part, model, batch) if name != LIMIT]
    width = 0.8 / max(1, len(names))
    for index, name in enumerate(names):
        samples = [results.median(Cell(part, model, batch, c), name) for c in concurrencies]
        places = [place + index * width for place in range(len(concurrencies))]
        color = f"C{list(results.titles).index(name) % 10}"
        axis.bar(
            places, [_height(part, one) for one in samples], width, label=results.titles[name], color=color
        )
    title = f"{model}, batch {batch}"
    limit = results.median(Cell(part, model, batch, concurrencies[-1]), LIMIT)
    if limit is not None:
        title += f" (in-process limit {limit.rate:.0f}/s)"
        if limit.rate < 2 * axis.get_ylim()[1]:
            axis.axhline(limit.rate, color="black", linestyle="--", linewidth=1)
    axis.set_xticks([place + 0.4 - width / 2 for place in range(len(concurrencies))])
    axis.set_xticklabels([f"concurrency {c}" for c in concurrencies])
    axis.set_title(title, fontsize=10)
    axis.set_ylabel("answers per second" if part == "pool" else "us of CPU per request")


def _height(part: str, sample: Sample | None) -> float:
    if sample is None:
        return 0.0
    return sample.rate if part == "pool" else 1000 * sample.cpu_s_per_1000


def write(folder: Path, name: str, text: str, figures: Mapping[str, Any]) -> None:
    """A report as Markdown and its figures as JSON, and both told."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(text)
    (folder / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(f"\n{text}\nbench: written to {folder / name}.md, .json", flush=True)
