"""The status in words: a table for a person, and one line for each thing that changed."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from mpspool.core.ids import FETCH_PREFIX, PUBLISH_PREFIX, ModelVersion
from mpspool.core.rundir import default_run_dir
from mpspool.core.settings import PoolSettings
from mpspool.core.states import (
    NO_SLOT,
    NOT_SERVED,
    DomainState,
    ModelVersionState,
    PoolState,
    SlotState,
    WorkerState,
)
from mpspool.core.weights import COPIED
from mpspool.supervisor.cpus import format_cpus
from mpspool.supervisor.ports import client_address

Status = Mapping[str, Any]

_PLAIN_COLUMNS = 160
# What all that is shown of a worker takes. Scripts read --json.
_WORKER_COLUMNS = 100
_LEFT_OUT_WHERE_NARROW = ("gen", "cpus")
_NUMBERS = (
    *("pid", "gen", "restarts", "in flight", "served", "PSS MB", "own MB", "size", "nodes"),
    *("use", "GB", "of", "temp", "W", "ECC"),
)

# Of the gRPC port.
_TLS = {"off": "", "server": " (TLS)", "mutual": " (TLS, clients need a certificate)"}

# Of a version that is on its way out.
GOING = frozenset({ModelVersionState.UNLOADING.name, ModelVersionState.END.name})

# Of a slot whose worker has ended.
_ENDED = {SlotState.EMPTY.value, SlotState.BACKOFF.value, SlotState.FATAL.value}

_COLOURS = {
    "READY": "green",
    "RUNNING": "green",
    "AVAILABLE": "green",
    "FATAL": "bold red",
    "END": "bold red",
    "SERVING": "green",
    "FAULTED": "bold red",
    "LOST": "bold red",
    "RECOVERING": "yellow",
    "DEGRADED": "yellow",
    "BACKOFF": "yellow",
}


def print_status(status: Status) -> None:
    """The plain form of `mpspool status`."""
    from rich.markup import escape

    console = a_console()
    pool = status["pool"]
    console.print(f"[bold]{coloured(pool['state'])}[/]  pid {pool['pid']}  {escape(_fronts(pool))}")
    console.print(f"run folder {escape(pool['run_dir'])}  {_stand_ins(pool)}{escape(_scheduling(pool))}")
    narrow = console.width < _WORKER_COLUMNS
    blocks = [_models(status), _workers(status, narrow=narrow), _processes(status)]
    if devices := status.get("devices"):
        blocks.insert(0, _devices(devices))
    for rows in blocks:
        console.print()
        console.print(table(rows))
    parts = (_excesses, failing_policies, _slow_policies, _refusals, _orders, _stray, _errors)
    if told := [line for part in parts for line in part(status)]:
        console.print()
    for name, text in told:
        console.print(f"[yellow]{escape(name)}[/]: {escape(text)}")


def _stand_ins(pool: Status) -> str:
    """Its MPS, and that the pool runs on stand-ins where it does."""
    if pool["mps"] == "simulated":
        return "MPS SIMULATED"
    return f"MPS {pool['mps']}{mark(pool)}"


def _scheduling(pool: Status) -> str:
    """What holds for all models, where it is not as usual."""
    lane, fair_by = pool.get("slow_lane", 0), pool.get("fair_by", "none")
    told = f"  slow lane {lane}" if lane else ""
    return told + (f"  clients share by {fair_by}" if fair_by != "none" else "")


def _refusals(status: Status) -> list[tuple[str, str]]:
    """How many of each model version, and for want of what."""
    found: dict[str, list[str]] = {}
    for one in status.get("refusals", ()):
        whose = "@".join(filter(None, (one["model"], one["version"]))) or "of what is not served"
        found.setdefault(whose, []).append(f"{one['count']} x {one['reason']}")
    return [(whose, f"refused so far: {', '.join(of)}") for whose, of in found.items()]


def _errors(status: Status) -> list[tuple[str, str]]:
    """Whatever could not start, or ended: its name and why. What a worker says, its model need not say again."""
    named = [(device["device"], device) for device in status.get("devices", ())]
    named += [(worker["id"], worker) for worker in status["workers"]]
    named += [(process["name"], process) for process in status["processes"]]
    said = [what["error"] for _, what in named if what.get("error")]
    models = [
        (str(one), version)
        for one, version in by_version(status).items()
        if not any(words in version["error"] for words in said)
    ]
    return [(name, what["error"]) for name, what in [*models, *named] if what.get("error")]


def a_console() -> Any:
    """Rich's; wide where nobody looks at it."""
    from rich.console import Console

    console = Console(highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _PLAIN_COLUMNS
    return console


def busy(what: str) -> AbstractContextManager[Any]:
    """Says on a terminal's standard error what is waited for, while it is."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.status(what) if console.is_terminal else nullcontext()


def table(
    rows: list[tuple[str, ...]],
    *,
    folded: Collection[str] = ("model", "weights", "worker"),
    numbers: Collection[str] = _NUMBERS,
) -> Any:
    """Rich's, from a row of titles and those below; `folded` may take several lines a row, `numbers` stand right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for title in rows[0]:
        table.add_column(
            title,
            justify="right" if title in numbers else "left",
            no_wrap=title not in folded,
            overflow="fold",
        )
    for row in rows[1:]:
        table.add_row(*(coloured(cell) for cell in row))
    return table


def coloured(cell: str) -> str:
    from rich.markup import escape

    found = colour(cell)
    return f"[{found}]{cell}[/]" if found else escape(cell)


def colour(word: str) -> str:
    """Rich's name of the colour in which a state stands out; "" for none."""
    return _COLOURS.get(word, "")


def _devices(devices: Iterable[Status]) -> list[tuple[str, ...]]:
    """ECC: uncorrected errors since the driver was loaded. Xids: each with how often it came, where more than once."""
    return [("device", "state", "use", "GB", "of", "temp", "W", "ECC", "Xids")] + [
        (
            device["device"] + mark(device),
            device["state"],
            _or_dash(device["utilisation"], "{:.0%}"),
            _or_dash(device["memory_used_bytes"], "{:.1f}", per=1e9),
            _or_dash(device["memory_total_bytes"], "{:.1f}", per=1e9),
            _or_dash(device["temperature_c"], "{:.0f} C"),
            _or_dash(device["power_w"], "{:.0f}"),
            _or_dash(device["ecc_uncorrected"], "{}"),
            xids(device) or "-",
        )
        for device in devices
    ]


def _or_dash(value: float | None, form: str, *, per: float = 1) -> str:
    return "-" if value is None else form.format(value if per == 1 else value / per)


def xids(device: Status) -> str:
    """The Xids of a device, short: "13 x 2, 79"; "" for none."""
    return ", ".join(xid if count == 1 else f"{xid} x {count}" for xid, count in device["xids"].items())


def _models(status: Status) -> list[tuple[str, ...]]:
    """Their policies where any is not fifo, and the rows of their batches where any is batched."""
    titles = ("model", "version", "state", "weights", "policy", "batches")
    rows = [
        (
            model["name"],
            str(version["version"]),
            version["state"],
            _shares(version.get("weights", {})),
            version["policy"],
            f"to {version['batch_rows']} rows" if version["batch_rows"] else "-",
        )
        for model in status["models"]
        for version in model["versions"]
    ]
    usual = {"policy": "fifo", "batches": "-"}
    shown = [
        column
        for column, title in enumerate(titles)
        if title not in usual or any(row[column] != usual[title] for row in rows)
    ]
    return [tuple(row[column] for column in shown) for row in (titles, *rows)]


def _shares(weights: Status) -> str:
    """How much of a version's weights is shared, and how much each worker has of its own."""
    if not weights:
        return "-"
    kinds = [kind for kind in ("shared", "private") if weights[f"{kind}_variables"]]
    return ", ".join(f"{size(weights[f'{kind}_bytes'])} {kind}" for kind in kinds) or "none"


def _excesses(status: Status) -> list[tuple[str, str]]:
    return [
        (str(one), told)
        for one, version in by_version(status).items()
        if (told := excess(version.get("weights", {})))
    ]


def failing_policies(status: Status) -> list[tuple[str, str]]:
    """Of which version, and what is said of a policy that fails."""
    return [
        (
            str(one),
            f"the policy {version['policy']} fails, and requests go in the order of arrival: {version['policy_error']}",
        )
        for one, version in by_version(status).items()
        if "policy_error" in version
    ]


def _slow_policies(status: Status) -> list[tuple[str, str]]:
    return [
        (
            str(one),
            f"the policy {version['policy']} takes {version['policy_slow_ms']:.0f} ms for a request, and nothing else is done meanwhile",
        )
        for one, version in by_version(status).items()
        if "policy_slow_ms" in version
    ]


def _orders(status: Status) -> list[tuple[str, str]]:
    """What was said by hand of versions, and how it is taken back."""
    told = []
    for model in status["models"]:
        name, said = model["name"], model.get("by_hand", {})
        if said.get("off"):
            told.append((name, f"unloaded by hand; `mpspool load {name}` has it back"))
        for number in said.get("unloaded", ()):
            one = str(ModelVersion(name, number))
            told.append(
                (one, f"left out by hand; after `mpspool load {name}` what version_policy means counts again")
            )
        told += [(str(ModelVersion(name, number)), "loaded by hand") for number in said.get("loaded", ())]
    return told


def _stray(status: Status) -> list[tuple[str, str]]:
    """Labels that stand for a version which is not there any more, by model, and what comes of it."""
    return [
        (
            model["name"],
            f"version_label {label} stands for version {number}, which is not served: requests with it are refused",
        )
        for model in status.get("models", ())
        for label, number in model.get("labels", {}).items()
        if number not in {version["version"] for version in model["versions"]}
    ]


def excess(weights: Status) -> str:
    """What there is to say of memory that a worker should not need; "" for nothing."""
    if not weights.get("excess_bytes"):
        return ""
    text = f"a worker has {size(weights['excess_bytes'])} of private memory beyond what was expected"
    if copied := weights["why"].get(COPIED):
        return f"{text}: weights were copied that should be shared, such as {', '.join(copied)}"
    return f"{text}: perhaps weights were copied that should be shared"


def _workers(status: Status, *, narrow: bool) -> list[tuple[str, ...]]:
    titles = ("worker", "state", "pid", "gen", "restarts", "in flight", "served", "PSS MB", "own MB", "cpus")
    rows = [
        (
            worker["id"] + mark(worker),
            worker["state"],
            _pid(worker["pid"]),
            str(worker["generation"]),
            str(worker["restarts"]),
            str(worker["in_flight"]),
            str(worker["served"]),
            _megabytes(worker, "pss_bytes"),
            _megabytes(worker, "private_bytes"),
            format_cpus(worker["cpus"]) or "any",
        )
        for worker in status["workers"]
    ]
    shown = [index for index, title in enumerate(titles) if not (narrow and title in _LEFT_OUT_WHERE_NARROW)]
    return [tuple(row[index] for index in shown) for row in (titles, *rows)]


def _megabytes(worker: Status, kind: str) -> str:
    return f"{worker['memory'][kind] / 1e6:,.0f}" if worker.get("memory") else "-"


def size(count: int) -> str:
    """A number of bytes, short: "56 B", "36.8 MB"."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if round(value, 1) < 1000:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"


def _processes(status: Status) -> list[tuple[str, ...]]:
    return [("process", "state", "pid")] + [
        (process["name"] + mark(process), process["state"], _pid(process["pid"]))
        for process in status["processes"]
    ]


def _pid(pid: int) -> str:
    return str(pid) if pid else "-"


def mark(what: Status) -> str:
    return " SIMULATED" if what.get("simulated") else ""


def _fronts(pool: Status) -> str:
    tls = _TLS[pool.get("tls", "off")]
    fronts = [f"gRPC on port {pool['grpc_port']}{tls}"] if pool["grpc_port"] else []
    fronts += [f"gRPC on unix:{path}" for path in (pool.get("grpc_socket_path"),) if path]
    fronts += [f"HTTP on port {pool['rest_port']}"] if pool["rest_port"] else []
    return ", ".join(fronts) or "both fronts off"


def for_scripts(status: Status) -> Status:
    """The status with null for the pid of what does not run: `kill 0` would be for the asker's own group."""
    nothing = {"pid": None}
    return {
        **status,
        **{
            kind: [one if one["pid"] else {**one, **nothing} for one in status[kind]]
            for kind in ("workers", "processes")
        },
    }


def changes(before: Status | None, after: Status) -> Iterator[str]:
    """What happened between two statuses, a line each; from the start on where `before` is None."""
    known = {worker["id"]: worker for worker in before["workers"]} if before else {}
    processes = {process["name"]: process for process in before["processes"]} if before else {}
    devices = {device["device"]: device for device in before.get("devices", [])} if before else {}
    if after["pool"]["state"] != PoolState.STOPPING.value:
        where = elsewhere(after["pool"]["run_dir"])
        for device in after.get("devices", []):
            yield from _device_changes(devices.get(device["device"], {}), device)
        lost = {
            device["device"]
            for device in after.get("devices", [])
            if device["state"] == DomainState.LOST.value
        }
        leaving = {one for one, version in by_version(after).items() if version["state"] in GOING}
        for worker in after["workers"]:
            version = worker.get("model"), worker.get("version")
            comes_back = (
                worker.get("device") not in lost
                and version not in leaving
                and worker.get("error") not in (NO_SLOT, NOT_SERVED)
            )
            yield from _worker_changes(known.get(worker["id"]), worker, where, comes_back=comes_back)
        for process in after["processes"]:
            yield from _process_changes(processes.get(process["name"], {}), process)
        if before is not None:
            yield from _version_changes(by_version(before), by_version(after))
            said = _stray(before)
            yield from (f"{name}: {text}" for name, text in _stray(after) if (name, text) not in said)
    if before is None or _standing(before) != _standing(after):
        yield from _pool_changes(after)


def by_version(status: Status) -> dict[ModelVersion, Status]:
    return {
        ModelVersion(model["name"], version["version"]): version
        for model in status.get("models", ())
        for version in model["versions"]
    }


def refusal(one: ModelVersion, version: Status) -> str:
    """That a version is not served, or not to requests that name none, and why; "" where it is."""
    if not (error := version.get("error", "")):
        return ""
    what = "not served to all" if version["state"] == ModelVersionState.AVAILABLE.name else "not served"
    return f"{one} is {what}: {error}"


def _version_changes(
    before: Mapping[ModelVersion, Status], after: Mapping[ModelVersion, Status]
) -> Iterator[str]:
    """What comes beside a version that there was, what fails, and what goes."""
    models = {one.name for one in before}
    loading = (ModelVersionState.START.name, ModelVersionState.LOADING.name)
    for one, version in after.items():
        was, state = before.get(one, {}), version["state"]
        if not was and one.name in models and state in loading:
            yield f"{one} has come, and is loaded"
        if state == ModelVersionState.AVAILABLE.name != was.get("state") and (was or one.name in models):
            yield f"{one} AVAILABLE"
        if version.get("error", "") != was.get("error", "") and (told := refusal(one, version)):
            yield told
    for one in before.keys() - after.keys():
        yield f"{one} has gone"


def _process_changes(before: Status, after: Status) -> Iterator[str]:
    if error := after.get("error"):
        if error != before.get("error"):
            what = "" if after["name"].startswith(FETCH_PREFIX) else "cannot start: "
            yield f"{after['name']} {what}{error}; it is tried again"
    elif after["name"].startswith(PUBLISH_PREFIX):
        return  # it ends when its work is done
    elif (pid := before.get("pid")) and pid != after["pid"]:
        again = f"was started again (pid {after['pid']})" if after["pid"] else "is started again"
        yield f"{after['name']} ended (pid {pid}) and {again}"


def _device_changes(before: Status, after: Status) -> Iterator[str]:
    state, was = DomainState(after["state"]), before.get("state", DomainState.SERVING.value)
    if state.value == was:
        return
    name = f"{after['device']}{mark(after)}"
    match state:
        case DomainState.FAULTED:
            yield f"{name} FAULTED: {after['error']}; all its workers are ended and started again"
        case DomainState.RECOVERING:
            yield f"{name} can be used again: its workers come back one by one"
        case DomainState.SERVING:
            yield f"{name} has recovered"
        case DomainState.LOST:
            yield f"{name} LOST: {after['error']}; nothing is started on it any more"


def _worker_changes(before: Status | None, after: Status, where: str, *, comes_back: bool) -> Iterator[str]:
    state, generation = after["state"], after["generation"]
    was, started = (before["state"], before["generation"]) if before else ("", generation)
    if (was, started) == (state, generation):
        return
    if 0 < started < generation and state not in _ENDED:
        if was == SlotState.BACKOFF.value:
            yield f"{after['id']} is started again"
        elif was != SlotState.EMPTY.value:  # else that was told with its end
            yield f"{after['id']} {_end(after)}; it is started again"
    if state == WorkerState.READY.value and after["pid"]:  # else it is about to go
        cpus = f", CPUs {format_cpus(after['cpus'])}" if after["cpus"] else ""
        yield f"{after['id']} READY (pid {after['pid']}{cpus}){mark(after)}"
    elif state == SlotState.BACKOFF.value or (state == SlotState.EMPTY.value and generation):
        later = " later" if state == SlotState.BACKOFF.value else ""
        yield f"{after['id']} {_end(after)}" + (f"; it is started again{later}" if comes_back else "")
    elif state == SlotState.FATAL.value:
        yield f"{after['id']} FATAL, given up: {after.get('error', 'no reason given')}"
        yield f"  its log: {program()} logs {shlex.quote(after['id'])}{where}"


def _end(worker: Status) -> str:
    """That it ended and why, which may say so itself."""
    why = str(worker.get("error", "no reason given"))
    return why if why.startswith("ended") else f"ended: {why}"


def _standing(status: Status) -> tuple[PoolState, int]:
    """The pool's state; while it is DEGRADED, with how many workers are READY."""
    state = PoolState(status["pool"]["state"])
    return state, _ready(status) if state is PoolState.DEGRADED else 0


def _ready(status: Status) -> int:
    return sum(worker["state"] == WorkerState.READY.value for worker in status["workers"])


def _pool_changes(after: Status) -> Iterator[str]:
    state, workers, ready = PoolState(after["pool"]["state"]), after["workers"], _ready(after)
    if state is PoolState.RUNNING:
        yield f"ready: {ready} of {len(workers)} workers READY, {_fronts(after['pool'])}{mark(after['pool'])}"
    elif state is PoolState.DEGRADED:
        yield f"degraded: {ready} of {len(workers)} workers READY"


def how_to_try(settings: PoolSettings, document: str) -> str:
    """A command that asks the first model with that JSON; "" with gRPC off."""
    if not settings.router.grpc_port:
        return ""
    model = settings.models[0].name
    address = client_address(settings.router.host, settings.router.grpc_port)
    # `predict` finds the pool of the default run folder by itself.
    where = f" --address {shlex.quote(address)}" if elsewhere(settings.run_dir) else ""
    if settings.router.tls is not None:  # by its run folder it is known by its certificate, too
        where = elsewhere(settings.run_dir)
        if settings.router.tls.verify_client:
            where += " --cert FILE --key FILE"
    return f"{program()} predict {shlex.quote(model)} --input {shlex.quote(document)}{where}"


def elsewhere(run_dir: str) -> str:
    """What a command needs to find the pool of this folder; "" for the default one."""
    return "" if run_dir == str(default_run_dir()) else f" --run-dir {shlex.quote(run_dir)}"


def program() -> str:
    """What to type for the `mpspool` that runs here: its path, where the name alone is not it."""
    own = Path(sys.argv[0])
    if own.name == "tensorflow_model_server":  # which has no commands
        own = own.with_name("mpspool")
    elif own.name == "__main__.py":
        own = Path(sys.executable).with_name("mpspool")
    if own.name == "mpspool" and not own.exists():
        return f"{_short(Path(sys.executable))} -m mpspool"
    found = shutil.which("mpspool")
    return "mpspool" if found and os.path.realpath(found) == os.path.realpath(own) else _short(own)


def _short(path: Path) -> str:
    whole, relative = os.path.abspath(path), os.path.relpath(path)
    inside = relative if os.sep in relative else f".{os.sep}{relative}"
    return shlex.quote(min(whole, inside, key=len))
