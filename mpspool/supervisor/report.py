"""The status in words: a table for a person, and one line for each thing that changed."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mpspool.core.rundir import default_run_dir
from mpspool.core.settings import PoolSettings
from mpspool.core.states import PoolState, SlotState, WorkerState
from mpspool.supervisor.cpus import format_cpus
from mpspool.supervisor.ports import client_address

Status = Mapping[str, Any]

_PLAIN_COLUMNS = 160
_NUMBERS = ("pid", "gen", "restarts", "in flight", "served")

_COLOURS = {
    "READY": "green",
    "RUNNING": "green",
    "AVAILABLE": "green",
    "FATAL": "bold red",
    "END": "bold red",
    "DEGRADED": "yellow",
    "BACKOFF": "yellow",
}


def print_status(status: Status) -> None:
    """The plain form of `mpspool status`."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_COLUMNS
    pool = status["pool"]
    console.print(f"[bold]{_coloured(pool['state'])}[/]  pid {pool['pid']}  {escape(_fronts(pool))}")
    console.print(f"run folder {escape(pool['run_dir'])}  MPS {pool['mps']}{_mark(pool)}")
    for rows in (_models(status), _workers(status), _processes(status)):
        console.print(_table(rows))
    for name, error in _errors(status):
        console.print(f"[yellow]{escape(name)}[/]: {escape(error)}")


def _errors(status: Status) -> list[tuple[str, str]]:
    """Whatever could not start, or ended: its name and why."""
    named = [(worker["id"], worker) for worker in status["workers"]]
    named += [(process["name"], process) for process in status["processes"]]
    return [(name, what["error"]) for name, what in named if what.get("error")]


def _table(rows: list[tuple[str, ...]]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in rows[0]:
        table.add_column(title, justify="right" if title in _NUMBERS else "left", no_wrap=title != "error")
    for row in rows[1:]:
        table.add_row(*(_coloured(cell) for cell in row))
    return table


def _coloured(cell: str) -> str:
    from rich.markup import escape

    colour = _COLOURS.get(cell)
    return f"[{colour}]{cell}[/]" if colour else escape(cell)


def _models(status: Status) -> list[tuple[str, ...]]:
    return [("model", "version", "state", "error")] + [
        (model["name"], str(version["version"]), version["state"], version["error"])
        for model in status["models"]
        for version in model["versions"]
    ]


def _workers(status: Status) -> list[tuple[str, ...]]:
    return [("worker", "state", "pid", "gen", "restarts", "in flight", "served", "cpus")] + [
        (
            worker["id"] + _mark(worker),
            worker["state"],
            _pid(worker["pid"]),
            str(worker["generation"]),
            str(worker["restarts"]),
            str(worker["in_flight"]),
            str(worker["served"]),
            format_cpus(worker["cpus"]) or "any",
        )
        for worker in status["workers"]
    ]


def _processes(status: Status) -> list[tuple[str, ...]]:
    return [("process", "state", "pid")] + [
        (process["name"], process["state"], _pid(process["pid"])) for process in status["processes"]
    ]


def _pid(pid: int) -> str:
    return str(pid) if pid else "-"


def _mark(what: Status) -> str:
    return " SIMULATED" if what.get("simulated") else ""


def _fronts(pool: Status) -> str:
    ports = (("gRPC", pool["grpc_port"]), ("HTTP", pool["rest_port"]))
    return ", ".join(f"{name} on port {port}" for name, port in ports if port) or "both fronts off"


def unready(status: Status) -> str:
    """Who is not READY yet, and why where that is known."""
    waiting = [
        f"{process['name']}: {process['error']}" for process in status["processes"] if process.get("error")
    ]
    waiting += [
        describe(worker) for worker in status["workers"] if worker["state"] != WorkerState.READY.value
    ]
    return "; ".join(waiting) or f"the pool is {status['pool']['state']}"


def describe(worker: Status) -> str:
    """One worker's state, with the last error where there was one."""
    error = f" ({worker['error']})" if worker.get("error") else ""
    return f"{worker['id']} is {worker['state']}{error}"


def fatal(status: Status) -> list[str]:
    """Every slot that was given up, with its reason."""
    return [describe(worker) for worker in status["workers"] if worker["state"] == SlotState.FATAL.value]


def changes(before: Status | None, after: Status) -> Iterator[str]:
    """What happened between two statuses, a line each; from the start on where `before` is None."""
    known = {worker["id"]: worker for worker in before["workers"]} if before else {}
    ending = after["pool"]["state"] == PoolState.STOPPING.value
    for worker in after["workers"] if not ending else ():
        yield from _worker_changes(known.get(worker["id"]), worker)
    pids = {process["name"]: process["pid"] for process in before["processes"]} if before else {}
    errors = {process["name"]: process.get("error") for process in before["processes"]} if before else {}
    for process in after["processes"]:
        if process.get("error"):
            if process["error"] != errors.get(process["name"]):
                yield f"{process['name']} cannot start: {process['error']}; it is tried again each second"
        elif process["pid"] and pids.get(process["name"], process["pid"]) not in (0, process["pid"]):
            yield f"{process['name']} ended and was started again (pid {process['pid']})"
    state = after["pool"]["state"]
    if state != (before["pool"]["state"] if before else None):
        yield from _pool_changes(after, PoolState(state))


def _worker_changes(before: Status | None, after: Status) -> Iterator[str]:
    state = after["state"]
    started = before["generation"] if before else after["generation"]
    if started < after["generation"] and started:
        yield f"{after['id']} ended: {after.get('error', 'no reason given')}; started again (pid {after['pid']})"
    if before is not None and state == before["state"] and started == after["generation"]:
        return
    if state == WorkerState.READY.value:
        cpus = f", CPUs {format_cpus(after['cpus'])}" if after["cpus"] else ""
        yield f"{after['id']} READY (pid {after['pid']}{cpus}){_mark(after)}"
    elif state == SlotState.BACKOFF.value:
        yield f"{after['id']} ended: {after.get('error', 'no reason given')}; it is started again later"
    elif state == SlotState.FATAL.value:
        yield f"{after['id']} FATAL, given up: {after.get('error', 'no reason given')}"
        yield f"  its log: mpspool logs {after['id']}"


def _pool_changes(after: Status, state: PoolState) -> Iterator[str]:
    workers = after["workers"]
    ready = sum(worker["state"] == WorkerState.READY.value for worker in workers)
    if state is PoolState.RUNNING:
        yield f"ready: {ready} of {len(workers)} workers READY, {_fronts(after['pool'])}{_mark(after['pool'])}"
    elif state is PoolState.DEGRADED:
        yield f"degraded: {ready} of {len(workers)} workers READY"


def how_to_try(settings: PoolSettings) -> str:
    """A command that asks the first model; "" with gRPC off."""
    if not settings.grpc_port:
        return ""
    model = settings.models[0].name
    document = '{"x": [1, 2, 5]}' if model == "half_plus_two" else '{"INPUT": [...]}'
    address = client_address(settings.host, settings.grpc_port)
    # `predict` finds the pool of the default run folder by itself.
    where = "" if settings.run_dir == str(default_run_dir()) else f" --address {shlex.quote(address)}"
    return f"{program()} predict {shlex.quote(model)} --input '{document}'{where}"


def program() -> str:
    """What to type for the `mpspool` that runs here: its path, where the name alone is not it."""
    own = Path(sys.argv[0])
    if own.name == "__main__.py":
        own = Path(sys.executable).with_name("mpspool")
        if not own.exists():
            return f"{_short(Path(sys.executable))} -m mpspool"
    found = shutil.which("mpspool")
    return "mpspool" if found and os.path.realpath(found) == os.path.realpath(own) else _short(own)


def _short(path: Path) -> str:
    whole, relative = os.path.abspath(path), os.path.relpath(path)
    inside = relative if os.sep in relative else f".{os.sep}{relative}"
    return shlex.quote(min(whole, inside, key=len))
