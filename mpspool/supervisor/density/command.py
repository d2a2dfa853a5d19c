"""`mpspool density`: asks, sums up, tells and draws."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from mpspool.core import output_file
from mpspool.core.rundir import RunDir
from mpspool.supervisor.commands.errors import CommandError
from mpspool.supervisor.density import draw, figures, read, summary
from mpspool.supervisor.density.figures import DeviceFigures
from mpspool.supervisor.density.read import Record
from mpspool.supervisor.density.window import Window

_STDOUT = "-"


def show(run: RunDir, last_s: float, output: Path, devices: str | None, as_json: str | None) -> None:
    """Writes the picture and says what is in it.

    Args:
        run: where the pool runs.
        last_s: how long a window.
        output: the picture.
        devices: these alone, with commas between them; None for all.
        as_json: the file for scripts, "-" for standard output, which then gets nothing else; None for none.

    Raises:
        CommandError: what is asked for cannot be had.
    """
    draw.check_format(output)
    _check_files(output, as_json)
    record = read.ask_router(run, last_s)
    ago = timedelta(seconds=(time.monotonic_ns() - record.now_ns) / 1e9)  # that took to be told
    looked_at = Window.of(record, last_s, datetime.now().astimezone() - ago)
    found = figures.of_devices(record, _chosen(record, devices), looked_at.begin_ns, looked_at.end_ns)
    if as_json is not None:
        _write_json(as_json, summary.for_scripts(found, looked_at, record.simulated))
    quiet = as_json == _STDOUT
    if looked_at.shortened and not quiet:
        click.echo(_shortened(record, looked_at))
    if not any(device.models for device in found):
        names = f" on {', '.join(device.name for device in found)}" if found else ""
        click.echo(f"Nothing ran{names} from {looked_at}: there is nothing to draw.", err=quiet)
        return
    if not quiet:
        click.echo(f"{looked_at}{_mark(record)}\n")
        summary.print_table(found)
    _draw(found, looked_at, record, output)
    if not quiet:
        click.echo(f"drawn: {output}")


def _check_files(output: Path, as_json: str | None) -> None:
    """Before anything is asked. What goes to standard output is had without a picture, too."""
    if as_json == _STDOUT:
        return
    why = output_file.why_not(output, "--output")
    if as_json is not None:
        why = why or output_file.why_not(Path(as_json), "--json")
        if Path(as_json).resolve() == output.resolve():
            why = f"--json and --output both name {as_json!r}; give each its own file"
    if why:
        raise CommandError(why, status=2)


def _draw(found: Sequence[DeviceFigures], looked_at: Window, record: Record, output: Path) -> None:
    title = f"Task density, {looked_at}{_mark(record)}"
    note = _shortened(record, looked_at) if looked_at.shortened else ""
    try:
        drawn = draw.picture(found, looked_at, title, note)
    except ImportError as error:
        raise CommandError(
            f"no picture without matplotlib ({error}): `pip install matplotlib`; --json does without",
            status=2,
        ) from error
    draw.save(drawn, output)


def _shortened(record: Record, looked_at: Window) -> str:
    why = (
        f"the router keeps its last {record.keeps:,} dispatches"
        if record.keeps
        else "the router was started then"
    )
    asked = (
        f"{looked_at.asked_s:g} s were asked for, the record begins {round(looked_at.length_s, 2):g} s ago"
    )
    return f"{asked}: {why}."


def _mark(record: Record) -> str:
    return f", SIMULATED {record.simulated}" if record.simulated else ""


def _write_json(file: str, found: dict[str, Any]) -> None:
    text = json.dumps(found, indent=2) + "\n"
    if file == _STDOUT:
        click.echo(text, nl=False)
        return
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(
            f"cannot write {file!r}: {error.strerror or error}; name another file with --json"
        ) from error


def _natural(name: str) -> tuple[str, int]:
    """gpu2 before gpu10."""
    kind = name.rstrip("0123456789")
    return kind, int(name[len(kind) :] or 0)


def _chosen(record: Record, devices: str | None) -> list[str]:
    """Raises CommandError for one that the pool does not have."""
    known = sorted(record.devices, key=_natural)
    if devices is None:
        return known
    wanted = [name.strip() for name in devices.split(",")]
    for name in wanted:
        if name not in known:
            have = f"it has: {', '.join(known)}" if known else "none of its workers has been READY yet"
            raise CommandError(f"--device names {name!r}, which the pool does not have; {have}")
    return list(dict.fromkeys(wanted))
