"""A load test in words: tables for a person, JSON for a script."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mpspool import __version__
from mpspool.core import json_tensors, tfs
from mpspool.core.errors import PoolError
from mpspool.loadtest.figures import BUSY, FIGURES, Level
from mpspool.loadtest.options import Options, Trial

_PLAIN_COLUMNS = 160
# Narrower terminals get fewer percentiles.
_ALL_COLUMNS = 100
_LEFT_OUT_WHERE_NARROW = ("mean", "p95", "right")
_SHOWN_BODY_BYTES = 4096
_SHOWN_CHARS = 80
_TEXTS = 5
# An answer before the load that took so long has waited.
_LONG_S = 1.0
# Metadata whose values are nobody's but the server's.
_SECRET = ("authorization", "cookie")
_TITLES = {"rate": "req/s", "mean_ms": "mean", "max_ms": "max"}
_PARTS = ("queue", "parse", "compute", "beside", "serialise", "rest", "outside")
# The server's count and ours may differ by what is on its way when it is asked.
_COUNTED_PART = 0.02


def count(value: float | None) -> str:
    """A number of requests."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def ms(value: float | None) -> str:
    """Milliseconds with three digits, or as many as there are."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def outputs(found: Mapping[str, Any], body: bytes) -> str:
    """An answer in one line: its values where they are few, else its shapes."""
    if len(body) <= _SHOWN_BODY_BYTES:
        try:
            text = json.dumps(json_tensors.response(body))
        except PoolError:
            text = ""
        if text and len(text) <= _SHOWN_CHARS:
            return text
    tensors = []
    for alias in sorted(found):
        sizes = [dimension.size for dimension in found[alias].tensor_shape.dim]
        tensors.append(f"{alias} {tfs.type_text(found[alias].dtype)} {sizes}")
    return ", ".join(tensors)


def print_head(options: Options, lengths: Sequence[int], answer: str, took_s: float) -> None:
    """Before the load: what is sent, and what comes back; after how long, where that is worth a word, as behind somebody else's load."""
    console = _console(options)
    console.print(f"{options.model} at {options.address}: {_what(options, lengths)}", markup=False)
    after = f", after {took_s:.1f} s" if took_s >= _LONG_S else ""
    console.print(f"an answer{after}: {answer}", markup=False)


def _what(options: Options, lengths: Sequence[int]) -> str:
    arrivals = "Poisson arrivals" if options.poisson else "even arrivals"
    how = f"open loop, {arrivals}" if options.is_open else "closed loop"
    sizes = f"{min(lengths):,}" if len(set(lengths)) == 1 else f"{min(lengths):,} to {max(lengths):,}"
    what = "one request" if len(lengths) == 1 else f"{len(lengths):,} requests in turn"
    return f"{how}, {what} of {sizes} bytes, {options.repeat} x {options.seconds:g} s"


def print_levels(options: Options, levels: Sequence[Level], notes: Iterable[str]) -> None:
    """The tables, and what there is to say about them."""
    console = _console(options)
    console.print()
    console.print(_table(_rows(options, levels, narrow=console.width < _ALL_COLUMNS)), crop=False)
    console.print(
        "[dim]latency in ms, of right answers"
        f"{', from when each was due' if options.is_open else ''}; medians of the repeats, below them how far these"
        " are apart[/]"
    )
    if any(level.server for level in levels):
        console.print("\n[bold]the server's own times[/], ms of a request on average")
        console.print(_table(_server_rows(levels)), crop=False)
        console.print(
            "[dim]beside: of parse, compute and serialise, for others on the device; rest: of the server; outside: transport and client;"
            f"{' rows: of a batch;' if any('rows' in level.server for level in levels) else ''} busy: slots[/]"
        )
    for line in _remarks(options, levels):
        console.print(line)
    for note in notes:
        console.print(f"[yellow]note[/]: {_escape(note)}")


def _rows(options: Options, levels: Sequence[Level], *, narrow: bool) -> list[tuple[str, ...]]:
    titles = [_TITLES.get(name, name) for name in FIGURES]
    rows = [("rate" if options.is_open else "in flight", "sent", "right", "failed", *titles)]
    for level in levels:
        found = [level.figure(name) for name in FIGURES]
        cells = [count(found[0].median), *(ms(each.median) for each in found[1:])]
        spreads = [f"{each.spread:.0%}" if each.spread is not None else "" for each in found]
        failed = level.sum(lambda run: sum(run.failed.values()))
        numbers = (
            f"{level.name}{' [yellow]![/]' if level.limits() else ''}",
            count(level.sum(lambda run: run.sent)),
            count(level.sum(lambda run: run.right)),
            f"[red]{count(failed)}[/]" if failed else "0",
        )
        rows.append(
            (
                *numbers,
                *(f"{one}\n[dim]{two}[/]" if two else one for one, two in zip(cells, spreads, strict=True)),
            )
        )
    if not narrow:
        return rows
    kept = [number for number, title in enumerate(rows[0]) if title not in _LEFT_OUT_WHERE_NARROW]
    return [tuple(row[number] for number in kept) for row in rows]


def _server_rows(levels: Sequence[Level]) -> list[tuple[str, ...]]:
    batches = any("rows" in level.server for level in levels)
    titles = [
        "rate" if levels[0].is_open else "in flight",
        *_PARTS,
        *(["rows"] if batches else []),
        "busy",
    ]
    rows = [tuple(titles)]
    for level in levels:
        told = level.server
        if not told:
            continue
        cells = [level.name, *(ms(told.get(part)) for part in _PARTS)]
        if batches:
            cells.append(f"{told['rows']:.3g}" if "rows" in told else "-")
        cells.append(f"{told['slots_busy']:.0%}" if "slots_busy" in told else "-")
        rows.append(tuple(cells))
    return rows


def _remarks(options: Options, levels: Sequence[Level]) -> Iterator[str]:
    for level in levels:
        failures = level.failures[:_TEXTS]
        for number, failure in enumerate(failures):
            text = f"{failure.count:,} x {failure.code}: {failure.text}"
            yield f"{'[red]failed[/]' if not number else '      '} at {level.name}: {_escape(text)}"
        if more := len(level.failures) - len(failures):
            yield f"       at {level.name}: and {more} more ways"
    busy = [level.of(lambda run: run.busy).median or 0.0 for level in levels]
    limited = [(level, told) for level in levels if (told := level.limits())]
    for level, told in limited:
        yield f"[yellow]![/] at {level.name} {'; '.join(told)}"
    if limited:
        yield f"  its figures are worse than the server's: {_remedy(options, max(busy))}"
    yield from _silent_repeats(levels)
    yield from _strangers(levels)
    yield from _other_workers(levels)
    yield from _stream_waits(levels)
    cpu_us = [level.of(lambda run: run.cpu_us).median or 0.0 for level in levels]
    span = (
        f"{min(cpu_us):.0f}"
        if round(min(cpu_us)) == round(max(cpu_us))
        else f"{min(cpu_us):.0f} to {max(cpu_us):.0f}"
    )
    yield f"[dim]generator: {span} us of CPU a request, busy {max(busy):.0%} at most[/]"


def _remedy(options: Options, busy: float) -> str:
    """More processes help where one has much to do and there is a CPU for another."""
    most = options.connections if options.is_open else max(options.concurrency)
    useful = busy > BUSY / 2 and options.processes < min(most, len(os.sched_getaffinity(0)))
    more = f"more --processes (now {options.processes}), or " if useful else ""
    return f"{more}another machine to send from"


def _silent_repeats(levels: Sequence[Level]) -> Iterator[str]:
    """Whether latencies are of fewer repeats than the rate is."""
    for level in levels:
        told, all_of_them = level.sum(lambda run: bool(run.right)), len(level.runs)
        if 0 < told < all_of_them:
            yield (
                f"[yellow]note[/]: at {level.name} latencies are of {told} of {all_of_them} repeats:"
                " the rest had no right answer"
            )


def _strangers(levels: Sequence[Level]) -> Iterator[str]:
    """Whether the server's figures are not ours alone."""
    for level in levels:
        counted, sent = level.server.get("counted", 0), level.sum(lambda run: run.sent)
        if counted > sent * (1 + _COUNTED_PART) + 1:
            yield (
                f"[yellow]note[/]: at {level.name} the server counted {counted:,.0f} requests, and {sent:,} were ours:"
                " its own times are those of all of them"
            )


def _other_workers(levels: Sequence[Level]) -> Iterator[str]:
    """Whether there is no saying how busy the slots were."""
    for level in levels:
        if level.server and "slots_busy" not in level.server:
            yield (
                f"[yellow]note[/]: at {level.name} the model's workers came, went or were replaced:"
                " how busy its slots were is not known"
            )


def _stream_waits(levels: Sequence[Level]) -> Iterator[str]:
    """Whether fewer were in flight than it says."""
    for level in levels:
        if waits := level.sum(lambda run: run.stream_waits):
            remedy = "more --connections" if level.is_open else "fewer --streams-per-connection"
            yield (
                f"[yellow]note[/]: at {level.name} calls waited for a stream: {waits:,} of"
                f" {level.sum(lambda run: run.sent):,}, for the server allows no more on a connection; give {remedy}"
            )


def _console(options: Options) -> Any:
    from rich.console import Console

    console = Console(highlight=False, stderr=options.json_to_stdout)
    if not console.is_terminal:
        console.width = _PLAIN_COLUMNS
    return console


def _table(rows: Sequence[tuple[str, ...]]) -> Any:
    """As wide as its cells: half a number says nothing. To be printed without cropping."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for cells in zip(*rows, strict=True):
        width = max(len(line) for cell in cells for line in Text.from_markup(cell).plain.splitlines())
        table.add_column(cells[0], justify="right", no_wrap=True, min_width=width)
    for row in rows[1:]:
        table.add_row(*row)
    return table


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def for_scripts(
    options: Options, trial: Trial, levels: Sequence[Level], *, interrupted: bool, error: str
) -> str:
    """Everything as JSON."""
    found = {
        "mpspool": __version__,
        "began": trial.began.isoformat(timespec="seconds"),
        "model": options.model,
        "version": trial.version,
        "signature": trial.signature,
        "address": options.address,
        "loop": "open" if options.is_open else "closed",
        "arrivals": ("poisson" if options.poisson else "uniform") if options.is_open else None,
        "streams_per_connection": None if options.is_open else options.streams,
        "connections": options.connections if options.is_open else None,
        "processes": options.processes,
        "cpus": len(os.sched_getaffinity(0)),
        "repeat": options.repeat,
        "seconds": options.seconds,
        "warmup_s": options.warmup_s,
        "deadline_s": options.deadline_s,
        "rows": options.rows if options.made_up else None,
        "request_files": list(map(str, options.request_files)),
        "request_bytes": list(trial.lengths),
        "metadata": [(key, None if key in _SECRET else value) for key, value in options.metadata],
        "interrupted": interrupted,
        "error": error,
        "levels": [_level(level) for level in levels],
    }
    return json.dumps(found, indent=2) + "\n"


def _level(level: Level) -> dict[str, Any]:
    found = {name: level.figure(name) for name in FIGURES}
    return {
        "rate" if level.is_open else "in_flight": level.wanted,
        "sent": level.sum(lambda run: run.sent),
        "unsent": level.sum(lambda run: run.unsent),
        "right": level.sum(lambda run: run.right),
        "failed": level.failed,
        "median": {name: figure.median for name, figure in found.items()},
        "spread": {name: figure.spread for name, figure in found.items()},
        "server_ms": {name: value for name, value in level.server.items() if name in _PARTS},
        "server": {name: value for name, value in level.server.items() if name not in _PARTS},
        "generator_limits": level.limits(),
        "failures": [{"code": one.code, "text": one.text, "count": one.count} for one in level.failures],
        "runs": [asdict(run) for run in level.runs],
    }
