"""What a run leaves: tables, the same figures as JSON, a plot; the targets, and which setting to use."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.gpu.faults import Recovery
from bench.gpu.pool import ONE, GpuSample, Setting
from bench.gpu.rates import Cell, Load, Pair, Plan, Results
from bench.report import machine

FASTER_AT, FASTER_MODEL, FASTER = Setting(4, mps=True), "widedeep", 2.0
NOT_SLOWER_MODEL, NOT_SLOWER = "tower", 0.95
# What several workers must bring to be worth their memory.
_WORTH_IT = 1.05
_MIB = 2**20
# A load driver that is this busy may be what is measured.
_CLIENT_FULL = 0.9


def markdown(results: Results, plan: Plan) -> str:
    """The whole report."""
    return "\n".join(
        [
            *_head(results, plan),
            *_rates(results, plan),
            *_recoveries(results),
            *target_lines(results, plan),
            *advice(results, plan),
            *_failures(results),
            "",
        ]
    )


def label(results: Results) -> str:
    """What ran, and on what."""
    return f"mpspool with TensorFlow {machine()['tensorflow']} on {results.gpu.label}"


def title(results: Results) -> str:
    return f"Several workers on one GPU{': SIMULATED' if results.gpu.simulated else ''}"


def _head(results: Results, plan: Plan) -> Iterator[str]:
    facts = machine()
    rounds = "1 round" if plan.repeat == 1 else f"{plan.repeat} rounds"
    yield f"# {title(results)}"
    yield ""
    yield f"{label(results)}. Host: {facts['cpus']} CPUs ({facts['cpu']}), {facts['system']}, Python {facts['python']};"
    yield f"mpspool {facts['commit']}, {facts['time']}. {rounds} of {plan.seconds:g} s a load, in pairs with"
    yield "one process without MPS; medians. The load driver runs on the same machine. What the figures mean:"
    yield "bench/README.md."
    if results.gpu.simulated:
        yield ""
        yield "**SIMULATED: no GPU was used. The figures show that the benchmark runs, and nothing of a GPU's speed.**"


# -- answers --------------------------------------------------------------------------------------


def samples(results: Results, cell: Cell, setting: Setting) -> list[GpuSample]:
    """All of its loads; one process has one in each pair of any setting."""
    row = results.pairs.get(cell, {})
    if setting == ONE:
        return [pair.one for pairs in row.values() for pair in pairs]
    return [pair.it for pair in row.get(setting, [])]


def ratio(results: Results, cell: Cell, setting: Setting) -> float | None:
    """The median over the rounds of its answers per second by those of one process; None where not measured."""
    if setting == ONE:
        return 1.0 if cell in results.pairs else None
    pairs: list[Pair] = results.pairs.get(cell, {}).get(setting, [])
    return statistics.median(pair.ratio for pair in pairs) if pairs else None


def _measured(results: Results, cell: Cell) -> list[Setting]:
    return [ONE, *results.pairs[cell]]


def _median(found: Sequence[GpuSample], value: Callable[[GpuSample], float | None]) -> float | None:
    known = [one for sample in found if (one := value(sample)) is not None]
    return statistics.median(known) if known else None


def _shown(value: float | None, form: str) -> str:
    return "not told" if value is None else format(value, form)


_COLUMNS = (
    "", "answers/s", "p50 / p99 ms", "x one process", "GPU used", "power, W", "a worker's MiB on the GPU",
    "GPU's MiB in use", "attached", "cores: pool + client",
)  # fmt: skip


def _rates(results: Results, plan: Plan) -> Iterator[str]:
    for model, batches in plan.batches.items():
        for batch in batches:
            for load in plan.loads:
                cell = Cell(model, batch, load)
                if cell not in results.pairs:
                    continue
                yield from (
                    "",
                    f"## {model}, batch {batch}, {_in_flight(load)}",
                    "",
                    f"{label(results)}.",
                    "",
                )
                yield "| " + " | ".join(_COLUMNS) + " |"
                yield "|" + "---|" * len(_COLUMNS)
                for setting in _measured(results, cell):
                    yield "| " + " | ".join(_row(results, cell, setting)) + " |"


def _in_flight(load: Load) -> str:
    return f"{load.concurrency} requests in flight" if load.concurrency else f"{load.title} in flight"


def _row(results: Results, cell: Cell, setting: Setting) -> Iterator[str]:
    found = samples(results, cell, setting)

    def median(value: Callable[[GpuSample], float | None]) -> float:
        return _median(found, value) or 0.0

    used = _median(found, lambda one: one.used.utilisation)
    power = _median(found, lambda one: one.used.power_w)
    own = _median(found, lambda one: one.worker_bytes)
    whole = _median(found, lambda one: one.used.memory_bytes)
    times = ratio(results, cell, setting)
    client = median(lambda one: one.served.client_cores)
    full = " (full)" if client >= _CLIENT_FULL else ""
    yield setting.title
    yield f"{median(lambda one: one.served.rate):.1f}"
    yield f"{median(lambda one: one.served.p50_ms):.2f} / {median(lambda one: one.served.p99_ms):.2f}"
    yield _shown(times, ".2f")
    yield _shown(used, ".0%")
    yield _shown(power, ".0f")
    yield _shown(own and own / _MIB, ".0f")
    yield _shown(whole and whole / _MIB, ".0f")
    yield _attached(results, cell.model, setting)
    yield f"{median(lambda one: one.served.server_cores):.2f} + {client:.2f}{full}"


def _attached(results: Results, model: str, setting: Setting) -> str:
    if not setting.mps:
        return "no MPS"
    attached = results.attached.get((model, setting))
    return "not told" if attached is None else f"{attached} of {setting.contexts}"


# -- faults ---------------------------------------------------------------------------------------


def _recoveries(results: Results) -> Iterator[str]:
    if not results.recoveries:
        return
    workers = results.recoveries[0].workers
    yield from ("", "## Faults", "", f"{label(results)}.")
    yield f"{workers} workers under MPS, the tower under a steady load, seconds from the fault."
    yield ""
    yield "| | workers hit | first log line | nothing more sent to them | first READY again | all READY | longest time without an answer | answers meanwhile | not answered right | |"
    yield "|" + "---|" * 10
    for recovery in results.recoveries:
        yield "| " + " | ".join(_recovery(recovery)) + " |"


def _recovery(one: Recovery) -> Iterator[str]:
    yield one.what
    yield f"{one.hit} of {one.workers}"
    times = one.times
    for moment in (times.seen_s, times.stopped_s, times.first_ready_s, times.all_ready_s):
        yield "never" if moment is None else f"{moment:.3f}"
    yield f"{one.longest_gap_s:.2f}"
    yield str(one.right)
    yield ", ".join(f"{count} {what}" for what, count in one.failed.items()) or "0"
    yield one.notes


# -- targets and advice ---------------------------------------------------------------------------


def target_lines(results: Results, plan: Plan) -> Iterator[str]:
    """Whether each target that was measured is reached; stand-ins are not judged."""
    rows = list(targets(results, plan))
    if results.gpu.simulated:
        yield from ("", "## Targets", "", "None is judged: SIMULATED.")
    elif rows:
        yield from ("", f"## Targets, {_in_flight(plan.loads[-1])}", "", f"{label(results)}.", "")
        yield from ("| | against | at least | ratio | |", "|---|---|---|---|---|")
        for what, against, at_least, found in rows:
            reached = "reached" if found >= at_least else "not reached"
            yield f"| {what} | {against} | {at_least:.2f} | {found:.2f} | {reached} |"


def targets(results: Results, plan: Plan) -> Iterator[tuple[str, str, float, float]]:
    """(what, against what, the least ratio, the ratio)."""
    for cell in _judged(results, plan):
        what = f"{cell.model}, batch {cell.batch}"
        if cell.model == FASTER_MODEL and (found := ratio(results, cell, FASTER_AT)) is not None:
            yield f"{what}: {FASTER_AT.title}", ONE.title, FASTER, found
        if cell.model == NOT_SLOWER_MODEL:
            best, best_ratio = _best(
                results, cell, lambda setting: setting.contexts == 1 and not setting.merged
            )
            for setting in _measured(results, cell):
                found = ratio(results, cell, setting)
                if setting.mps and not setting.merged and setting.contexts > 1 and found is not None:
                    yield (
                        f"{what}: {setting.title}",
                        f"the best of one, {best.title}",
                        NOT_SLOWER,
                        found / best_ratio,
                    )


def advice(results: Results, plan: Plan) -> Iterator[str]:
    """Which setting to use for each model and batch."""
    if results.gpu.simulated or not results.pairs:
        return
    yield from ("", "## Advice", "")
    for cell in _judged(results, plan):
        yield f"- {cell.model}, batch {cell.batch}: {advised(results, cell)}"


def advised(results: Results, cell: Cell) -> str:
    """One worker, unless several are worth it."""
    single, single_ratio = _best(results, cell, lambda setting: setting.contexts == 1)
    best, best_ratio = _best(results, cell, lambda _: True)
    gain = best_ratio / single_ratio
    if best.contexts == 1 or gain < _WORTH_IT:
        several = f"several give {gain:.2f} x of it at best" if best.contexts > 1 else "several are slower"
        return f"use one worker: {_flags(single)} ({several})"
    return f"use {best.contexts} workers: {_flags(best)} ({gain:.2f} x of the best single process)"


def _flags(setting: Setting) -> str:
    merged = " with `merge_copy_streams: true`" if setting.merged else ""
    return f"`--contexts-per-gpu {setting.contexts} --mps {'on' if setting.mps else 'off'}`{merged}"


def _best(results: Results, cell: Cell, among: Callable[[Setting], bool]) -> tuple[Setting, float]:
    found = {
        setting: times
        for setting in _measured(results, cell)
        if among(setting) and (times := ratio(results, cell, setting)) is not None
    }
    best = max(found, key=lambda setting: found[setting])
    return best, found[best]


def _judged(results: Results, plan: Plan) -> list[Cell]:
    return [cell for cell in results.pairs if cell.load == plan.loads[-1]]


def _failures(results: Results) -> Iterator[str]:
    if results.failures:
        yield from ("", "## Did not run", "")
        yield from (f"- {failure.splitlines()[0]}" for failure in results.failures)


# -- for scripts, and to look at ------------------------------------------------------------------


def as_json(results: Results, plan: Plan) -> str:
    """Every sample of every round."""
    whole = {
        "title": title(results),
        "simulated": results.gpu.simulated,
        "machine": machine(),
        "gpu": dataclasses.asdict(results.gpu),
        "plan": dataclasses.asdict(plan),
        "cells": [
            {
                **dataclasses.asdict(cell),
                "setting": dataclasses.asdict(setting),
                "attached": results.attached.get((cell.model, setting)),
                "pairs": [dataclasses.asdict(pair) for pair in pairs],
            }
            for cell, row in results.pairs.items()
            for setting, pairs in row.items()
        ],
        "recoveries": [recovery.to_dict() for recovery in results.recoveries],
        "failures": results.failures,
    }
    return json.dumps(whole, indent=1)


def plot(results: Results, plan: Plan, file: Path) -> None:
    """Answers per second by contexts, with and without MPS, streams merged or not; above each bar, what it is of one process."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    cells = _judged(results, plan)
    if not cells:
        return
    figure, axes = plt.subplots(1, len(cells), figsize=(5 * len(cells), 4.2), squeeze=False)
    for axis, cell in zip(axes.flat, cells, strict=True):
        _panel(axis, results, cell)
    axes.flat[0].legend(fontsize=8)
    figure.suptitle(f"{title(results)}\n{label(results)}", fontsize=10)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _panel(axis: Any, results: Results, cell: Cell) -> None:
    measured = _measured(results, cell)
    contexts = sorted({setting.contexts for setting in measured})
    kinds = sorted({(setting.mps, setting.merged) for setting in measured})
    width = 0.8 / len(kinds)
    for number, (mps, merged) in enumerate(kinds):
        mine = [setting for setting in measured if (setting.mps, setting.merged) == (mps, merged)]
        shift = width * (number - (len(kinds) - 1) / 2)
        places = [contexts.index(setting.contexts) + shift for setting in mine]
        rates = [_median(samples(results, cell, one), lambda it: it.served.rate) or 0.0 for one in mine]
        bars = axis.bar(
            places, rates, width, label=f"{'MPS' if mps else 'no MPS'}{', merged streams' if merged else ''}"
        )
        axis.bar_label(bars, [f"{ratio(results, cell, one) or 0.0:.2f}" for one in mine], fontsize=8)
    axis.margins(y=0.1)  # for the labels
    axis.set_xticks(range(len(contexts)), [str(count) for count in contexts])
    axis.set_xlabel("workers")
    axis.set_ylabel("answers per second")
    axis.set_title(f"{cell.model}, batch {cell.batch}, {_in_flight(cell.load)}", fontsize=9)
