"""A pool's figures as lines of a terminal. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from mpspool.supervisor.report import colour, xids
from mpspool.supervisor.top.figures import DeviceFigures, Figures, ModelFigures, WorkerFigures

MIN_WIDTH = 40
_TITLES = "reverse"
_BAR, _MAX_BAR = 12, 30
_WIDE = 80
_NARROWEST = 12
_MAX_PROBLEMS = 3
# Workers that are to be seen before anything is spaced out.
_FEW = 4
_LEGEND = " q quit  ↑↓ PgUp PgDn scroll  BUSY: share of time that ran requests, per slot"


@dataclass(frozen=True, slots=True)
class Frame:
    """`lines`, each as wide as asked for at most; of the workers those from `first` on, `shown` of them."""

    lines: list[Text]
    first: int
    shown: int


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a table.

    Attributes:
        rank: of several that do not fit, the highest goes first; 0 stays.
        least: how wide it is at least, so that it stays where it is when numbers grow.
        elastic: it is cut where nothing can go.
    """

    title: str
    cells: Sequence[Text]
    right: bool = False
    rank: int = 0
    least: int = 0
    elastic: bool = False

    @property
    def width(self) -> int:
        return max([self.least, cell_len(self.title), *(cell.cell_len for cell in self.cells)])


def frame(
    figures: Figures, width: int, height: int | None = None, *, first: int = 0, clock: str = ""
) -> Frame:
    """Draws the figures.

    Args:
        figures: what there is to show.
        width: of the terminal; below MIN_WIDTH the lines are cut.
        height: of the terminal; None for as many lines as there are, without a legend.
        first: which worker to begin with, where they are more than fit; as near to it as can be.
        clock: the time of day, to the right of the first line.
    """
    drawn_width = max(width, MIN_WIDTH)
    lines = [*_header(figures, drawn_width, clock), *_problems(figures, drawn_width)]
    shown = 0
    if figures.pool is not None:
        lines += [Text(), *_table(_device_columns(figures.devices, drawn_width), drawn_width)]
        lines += [Text(), *_table(_model_columns(figures.models), drawn_width), Text()]
        if height is not None and height - len(lines) - 2 < min(_FEW, len(figures.workers)):
            lines = [line for line in lines if line]
        room = len(figures.workers) if height is None else max(1, height - len(lines) - 2)
        first = max(0, min(first, len(figures.workers) - room))
        workers = figures.workers[first : first + room]
        shown = len(workers)
        place = (
            "" if shown == len(figures.workers) else f" {first + 1}-{first + shown} of {len(figures.workers)}"
        )
        lines += _table(_worker_columns(workers, place), drawn_width)
    if height is not None:
        del lines[height - 1 :]
        lines += [Text() for _ in range(height - 1 - len(lines))]
        lines.append(Text(_LEGEND, style="dim"))
    for line in lines:
        if height is None:
            line.rstrip()
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return Frame(lines, first, shown)


# -- above the tables -----------------------------------------------------------------------------


def _header(figures: Figures, width: int, clock: str) -> list[Text]:
    pool, total = figures.pool, figures.total
    if pool is None:
        return [_spread(Text("mpspool", style="bold"), Text(clock), width)]
    title = Text.assemble(
        ("mpspool ", "bold"),
        (pool["state"], colour(pool["state"]) or "bold"),
        f"  {total.ready} of {total.slots} READY",
        f"  MPS {pool['mps']}",
    )
    if pool.get("simulated"):
        title.append(f"  SIMULATED {pool['simulated']}", style="bold yellow")
    sums = [
        Text(f"{_number(total.rate)} req/s", "bold"),
        Text(f"queued {total.queued}", "yellow" if total.queued else ""),
        *([Text(f"refused {_number(total.refused)}/s", "red")] if total.refused else ()),
        Text(f"p50 {_time(total.p50_s)}"),
        Text(f"p99 {_time(total.p99_s)}"),
        Text(f"in flight {figures.in_flight}"),
        Text(f"running {_number(total.running)}"),
    ]
    while len(line := Text("   ").join(sums)) > width:
        sums.pop()
    return [_spread(title, Text(clock), width), line]


def _spread(left: Text, right: Text, width: int) -> Text:
    gap = width - left.cell_len - right.cell_len
    return Text.assemble(left, " " * gap, right) if gap > 1 else left


def _problems(figures: Figures, width: int) -> list[Text]:
    lines = [
        line
        for problem in figures.problems[:_MAX_PROBLEMS]
        for line in textwrap.wrap(problem, width, max_lines=2, placeholder=" …")
    ]
    if (left := len(figures.problems) - _MAX_PROBLEMS) > 0:
        lines.append(f"and {left} more; see `mpspool status`")
    return [Text(line, style="yellow") for line in lines]


# -- tables ---------------------------------------------------------------------------------------


def _device_columns(devices: Sequence[DeviceFigures], width: int) -> list[_Column]:
    gpus = [device for device in devices if device.state]
    bar = min(_MAX_BAR, _BAR + max(0, width - _WIDE) // 4)
    columns = [
        _Column("DEVICE", [Text(device.name) for device in devices]),
        _Column("STATE", [_state(device.state) for device in devices], rank=6, least=10),
        _Column("SLOTS", [Text(str(device.slots)) for device in devices], right=True, rank=7),
        _Column("BUSY", [_bar(device.density, bar) for device in devices], least=bar),
        _Column("USE", [_bar(device.use, bar) for device in devices], rank=1, least=bar),
        _Column("MEMORY", [_memory_bar(device, bar + 2) for device in devices], rank=2),
    ]
    if gpus:
        columns += [
            _Column("TEMP", [_degrees(device) for device in devices], right=True, rank=3),
            _Column("POWER", [_power(device) for device in devices], right=True, rank=5, least=8),
            _Column("XIDS", [Text(xids({"xids": device.xids}), "yellow") for device in devices], rank=4),
            _Column("NAME", [Text(device.product) for device in devices], rank=8),
        ]
    return [column for column in columns if column.title != "XIDS" or any(map(bool, column.cells))]


def _model_columns(models: Sequence[ModelFigures]) -> list[_Column]:
    columns = [
        _Column("MODEL", [Text(model.name) for model in models], elastic=True),
        _Column("STATE", [_state(model.state) for model in models], least=9),
        _Column("READY", [Text(f"{model.ready}/{model.slots}") for model in models], right=True, rank=4),
        _Column("REQ/S", [Text(_number(model.rate)) for model in models], right=True, least=6),
        _Column("P50", [Text(_time(model.p50_s)) for model in models], right=True, rank=2, least=7),
        _Column("P99", [Text(_time(model.p99_s)) for model in models], right=True, rank=1, least=7),
        _Column("RUNNING", [Text(_number(model.running)) for model in models], right=True, rank=3),
        _Column("QUEUED", [_count(model.queued) for model in models], right=True),
    ]
    if any(model.refused for model in models):
        cells = [_refused(model.refused) for model in models]
        columns.append(_Column("REFUSED/S", cells, right=True, rank=1))
    return columns


def _worker_columns(workers: Sequence[WorkerFigures], place: str) -> list[_Column]:
    columns = [
        _Column(f"WORKER{place}", [Text(worker.id) for worker in workers], elastic=True),
        _Column("STATE", [_state(worker.state) for worker in workers], least=8),
        _Column("PID", [Text(str(worker.pid or "-")) for worker in workers], right=True, rank=9),
        _Column("GEN", [Text(str(worker.generation)) for worker in workers], right=True, rank=6),
        _Column("RST", [_count(worker.restarts) for worker in workers], right=True, rank=7),
        _Column("SERVED", [Text(str(worker.served)) for worker in workers], right=True, rank=8),
        _Column("REQ/S", [Text(_number(worker.rate)) for worker in workers], right=True, least=6),
        _Column("BUSY", [_bar(worker.busy, _BAR - 2) for worker in workers], rank=1, least=_BAR - 2),
        _Column("INFL", [Text(str(worker.in_flight)) for worker in workers], right=True, rank=4),
        _Column("CPU", [Text(_percent(worker.cpu)) for worker in workers], right=True, rank=2, least=4),
        _Column("PSS", [Text(_bytes(worker.pss_bytes)) for worker in workers], right=True, rank=3, least=5),
    ]
    if any(worker.gpu_bytes is not None for worker in workers):
        cells = [Text(_bytes(worker.gpu_bytes)) for worker in workers]
        columns.append(_Column("GPU", cells, right=True, rank=5))
    return columns


def _table(columns: Sequence[_Column], width: int) -> list[Text]:
    """A row of titles and those below, no wider than `width`; empty for no rows."""
    if not columns[0].cells:
        return []
    fitting = _fit(list(columns), width)
    spare = width - _taken(fitting)
    widths = [
        max(_NARROWEST, column.width + spare) if column.elastic and spare < 0 else column.width
        for column in fitting
    ]
    titles = [Text(column.title) for column in fitting]
    rows = [titles, *([column.cells[row] for column in fitting] for row in range(len(columns[0].cells)))]
    lines = [_row(row, fitting, widths) for row in rows]
    lines[0].pad_right(max(0, width - lines[0].cell_len))
    lines[0].stylize(_TITLES)
    return lines


def _fit(columns: list[_Column], width: int) -> list[_Column]:
    """Leaves out what does not fit, once what is elastic is as narrow as it can be."""
    while _taken(columns) - sum(max(0, one.width - _NARROWEST * 2) for one in columns if one.elastic) > width:
        last = max(columns, key=lambda column: column.rank)
        if not last.rank:
            break
        columns.remove(last)
    return columns


def _taken(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + len(columns) - 1


def _row(cells: Sequence[Text], columns: Sequence[_Column], widths: Sequence[int]) -> Text:
    parts = []
    for cell, column, width in zip(cells, columns, widths, strict=True):
        part = cell.copy()
        part.truncate(width, overflow="ellipsis")
        gap = " " * (width - part.cell_len)
        parts.append(Text.assemble(gap, part) if column.right else Text.assemble(part, gap))
    return Text(" ").join(parts)


# -- cells ----------------------------------------------------------------------------------------


def _state(state: str) -> Text:
    return Text(state or "-", style=colour(state))


def _count(count: int) -> Text:
    return Text(str(count), style="yellow" if count else "")


def _refused(rate: float | None) -> Text:
    return Text(_number(rate) if rate else "0", style="red" if rate else "")


def _bar(share: float | None, width: int) -> Text:
    return Text("-") if share is None else _filled(share, _percent(share), width)


def _memory_bar(device: DeviceFigures, width: int) -> Text:
    if device.used_bytes is None or not device.total_bytes:
        return Text("-")
    share = device.used_bytes / device.total_bytes
    return _filled(share, f"{_bytes(device.used_bytes)}/{_bytes(device.total_bytes)}", width)


def _filled(share: float, label: str, width: int) -> Text:
    """A bar with its label at the right end."""
    inner = width - 2
    full = round(max(0.0, min(1.0, share)) * inner)
    text = set_cell_size("|" * full, inner - cell_len(label)) + label
    style = "red" if share > 0.95 else "yellow" if share > 0.8 else "green"
    return Text.assemble("[", (text[:full], style), text[full:], "]")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _degrees(device: DeviceFigures) -> Text:
    return Text("-" if device.temperature_c is None else f"{device.temperature_c:.0f}C")


def _power(device: DeviceFigures) -> Text:
    if device.power_w is None:
        return Text("-")
    limit = "" if device.power_limit_w is None else f"/{device.power_limit_w:.0f}"
    return Text(f"{device.power_w:.0f}{limit}W")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.1f}ms" if seconds < 1 else f"{seconds:.1f}s"


def _bytes(count: int | None) -> str:
    """Short: "980M", "12.3G"."""
    if count is None:
        return "-"
    return f"{count / 1e6:.0f}M" if count < 999.5e6 else f"{count / 1e9:.1f}G"
