"""The same in words: a table for a person, and an object for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpspool.supervisor import report
from mpspool.supervisor.density.figures import DeviceFigures, Totals
from mpspool.supervisor.density.window import Window

_TITLES = (
    *("device", "model", "dispatches", "requests", "busy s", "effective s", "waiting"),
    *("mean running", "max running"),
)
_TEXTS = ("device", "model")
# What all of it takes, with names of some length. Scripts read --json.
_ALL_COLUMNS = 100
_LEFT_OUT_WHERE_NARROW = ("dispatches", "max running")


def print_table(devices: Sequence[DeviceFigures]) -> None:
    """A row for each device, and one for each model version on it."""
    rows: list[tuple[str, ...]] = [_TITLES]
    for device in devices:
        rows.append(_row(device.name, "all", device.total))
        rows += [_row("", model, totals) for model, totals in device.models.items()]
    console = report.a_console()
    if console.width < _ALL_COLUMNS:
        kept = [number for number, title in enumerate(_TITLES) if title not in _LEFT_OUT_WHERE_NARROW]
        rows = [tuple(row[number] for number in kept) for row in rows]
    numbers = [title for title in _TITLES if title not in _TEXTS]
    console.print(report.table(rows, folded=("model",), numbers=numbers))


def _row(device: str, model: str, totals: Totals) -> tuple[str, ...]:
    return (
        device,
        model,
        str(totals.dispatches),
        str(totals.requests),
        f"{totals.busy_s:.3f}",
        f"{totals.effective_s:.3f}",
        f"{totals.waiting_share:.0%}",
        f"{totals.mean_running:.2f}",
        str(totals.max_running),
    )


def for_scripts(devices: Sequence[DeviceFigures], window: Window, simulated: str) -> dict[str, Any]:
    """What --json writes."""
    return {
        "from": window.began.isoformat(),
        "to": window.ended.isoformat(),
        "seconds": window.length_s,
        "asked_seconds": window.asked_s,
        "simulated": simulated,
        "devices": [
            {
                "device": device.name,
                **_values(device.total, window),
                "models": [
                    {"model": model, **_values(totals, window)} for model, totals in device.models.items()
                ],
            }
            for device in devices
        ],
    }


def _values(totals: Totals, window: Window) -> dict[str, float]:
    return {
        "dispatches": totals.dispatches,
        "requests": totals.requests,
        "requests_per_s": totals.requests / window.length_s,
        "busy_s": totals.busy_s,
        "effective_s": totals.effective_s,
        "waiting_s": totals.waiting_s,
        "waiting_share": totals.waiting_share,
        "running_share": totals.running_share,
        "mean_running": totals.mean_running,
        "max_running": totals.max_running,
    }
