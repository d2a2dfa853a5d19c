"""`mpspool status`, `top`, `clients`, `density`, `record` and `logs`: what a pool does."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from mpspool.cli.common import Seconds, examples, fail, main, run_dir_option
from mpspool.core.rundir import RunDir
from mpspool.supervisor import durations
from mpspool.supervisor.commands.errors import CommandError

# How long a stretch of time is looked at.
_STRETCH = Seconds(min=durations.LEAST_S)


@main.command(
    epilog=examples(
        "mpspool status",
        "mpspool status --json | jq '.workers[] | select(.state != \"READY\")'",
    ),
)
@run_dir_option
@click.option("--json", "as_json", is_flag=True, help="For scripts: names and values stay as they are.")
def status(run: RunDir, as_json: bool) -> None:
    """Show models, workers and processes.

    PSS is a worker's memory with its part of what it shares: these add up. Own is what no other process has.
    """
    import json

    from mpspool.supervisor import report
    from mpspool.supervisor.commands import ask

    try:
        found = ask.status(run)
    except CommandError as error:
        fail(str(error), error.status)
    if as_json:
        click.echo(json.dumps(report.for_scripts(found), indent=2))
    else:
        report.print_status(found)


@main.command(
    short_help="Watch devices, models and workers live.",
    epilog=examples(
        "mpspool top",
        "mpspool top --interval 5",
        "mpspool top > frame.txt                                       # one frame, and no end to wait for",
    ),
)
@run_dir_option
@click.option(
    "--interval",
    "interval_s",
    type=Seconds(min=0.1),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds from one look to the next.",
)
def top(run: RunDir, interval_s: float) -> None:
    """Watch devices, models and workers live, until q or Ctrl-C.

    BUSY is the share of the last interval in which a slot ran a request, from what the router counts; of a device the
    mean over its slots, its task density. RUNNING is how many requests ran at the same time, on average. USE is the
    driver's word on a GPU (any kernel ran), and of CPU slots the share of their CPUs in use. P50 and P99 are of the
    last 10 s, from arrival to answer. INFL is what was sent to a worker, RST how often its slot was filled again, PSS
    its memory with its part of what it shares, measured every 5 s, GPU its process' part of the device's memory.

    It waits for a pool that is not there, or that goes away. Where the output is no terminal it prints one frame.
    """
    from mpspool.supervisor.top import screen

    try:
        screen.show(run, interval_s)
    except CommandError as error:
        fail(str(error), error.status)


@main.command(
    short_help="Show who asks, and who gets what.",
    epilog=examples(
        "mpspool clients",
        "mpspool clients --for 30s --json | jq '.clients[] | select(.refused > 0)'",
    ),
)
@run_dir_option
@click.option(
    "--for",
    "for_s",
    type=_STRETCH,
    default="5s",
    show_default=True,
    metavar="TIME",
    help="As 500ms, 30s or 2m.",
)
@click.option("--json", "as_json", is_flag=True, help="For scripts: all of them, counts instead of rates.")
def clients(run: RunDir, for_s: float, as_json: bool) -> None:
    """Show who asks, and who gets what: for some seconds, whoever asks most first.

    A client is what scheduling.fair_by says, else an address. Of the requests that came meanwhile: REFUSED for want of room, or
    because they could not have met their deadline; FAILED: expired, wrong or given up; OPEN: not over by the end. WAITED is how
    long those that are over were in the queue, on average, MOST the longest; SHARE is of the devices' effective time that all
    of them took.

    It ends after --for, or with Ctrl-C. Nothing is counted while nobody looks. Of clients that are more than 1,024, each with a
    model, the rest is one row.
    """
    from mpspool.supervisor.commands import clients as command

    try:
        command.show(run, for_s, as_json=as_json)
    except CommandError as error:
        fail(str(error), error.status)


@main.command(
    short_help="Draw what ran on each device of late.",
    epilog=examples(
        "mpspool density",
        "mpspool density --last 2m --output gpus.svg --device gpu0,gpu1",
        "mpspool density --last 500ms --json - | jq '.devices[] | {device, waiting_share}'",
    ),
)
@run_dir_option
@click.option(
    "--last",
    "last_s",
    type=_STRETCH,
    default="30s",
    show_default=True,
    metavar="TIME",
    help="As 500ms, 30s or 2m.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default="density.png",
    show_default=True,
    metavar="FILE",
    help="The picture: .png, .svg or .pdf.",
)
@click.option("--device", "devices", metavar="gpu0,...", help="These alone. Default: all of the pool.")
@click.option("--json", "as_json", metavar="FILE", help="The table for scripts; - for standard output.")
def density(run: RunDir, last_s: float, output: Path, devices: str | None, as_json: str | None) -> None:
    """Draw what ran on each device of late: how much at once, of which model, over time.

    A dispatch is what a worker is sent at once: a request, some short ones, or a batch. Where n of them run at once,
    each counts as having the n-th part of the device: that is its EFFECTIVE time, and the rest of its BUSY time it was
    WAITING for the others. The effective times of a device add up to the time in which anything ran on it.

    The router keeps the last 131,072 dispatches. A pool on which nothing ran has no picture.
    """
    from mpspool.supervisor.density import command

    try:
        command.show(run, last_s, output, devices, as_json)
    except CommandError as error:
        fail(str(error), error.status)


@main.command(
    short_help="Record what arrives, to play it elsewhere.",
    epilog=examples(
        "mpspool record",
        "mpspool record --for 10m -o monday.jsonl && python -m bench.sim --trace monday.jsonl --gpus 1",
    ),
)
@run_dir_option
@click.option(
    "--for",
    "for_s",
    type=_STRETCH,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="As 500ms, 30s or 2m.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default="trace.jsonl",
    show_default=True,
    metavar="FILE",
    help="The trace, JSON lines; what is there is replaced.",
)
def record(run: RunDir, for_s: float, output: Path) -> None:
    """Record what arrives at the pool, to play it under other policies: `python -m bench.sim --trace`, in a clone of mpspool.

    A line for each request, of whatever method: when it came, for which model, version and signature, its rows and bytes, priority and
    what was left of its deadline, and how long its worker took for it. No values; of its client a number, by
    scheduling.fair_by or, where clients do not share, by their address.

    It ends after --for, or with Ctrl-C, which leaves out what is under way then. The router keeps up to 32,768 requests that
    are under way or still to be written, and nothing while nobody records.
    """
    from mpspool.supervisor.commands import record as recorder

    try:
        recorder.record(run, for_s, output)
    except CommandError as error:
        fail(str(error), error.status)


@main.command(
    epilog=examples(
        "mpspool logs router",
        "mpspool logs half_plus_two@1.cpu0.0 -f",
    ),
)
@run_dir_option
@click.argument("process", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is added, until Ctrl-C.")
def logs(run: RunDir, process: str | None, follow: bool) -> None:
    """Print the log of one process, or of all.

    PROCESS is a worker's id or a process' name, as `mpspool status` shows them; "supervisord" and, with
    --detach, "mpspool" have logs too. Those of the pool before lie in logs/before of the run folder.
    """
    from mpspool.supervisor.commands import log_files

    known = log_files.names(run)
    if not known:
        fail(f"there are no logs in {run.logs}")
    path = log_files.find(run, process) if process else None
    if process and path is None:
        fail(f"there is no log of {process!r}; there are: {', '.join(known)}")
    name = path.name.removesuffix(".log") if path else None
    if not follow:
        for each in [name] if name else known:
            _print_log(run, each, titled=name is None)
        return
    with contextlib.suppress(KeyboardInterrupt):
        for each, line in log_files.follow(run, name):
            click.echo(line if name else f"{each} | {line}")


def _print_log(run: RunDir, name: str, *, titled: bool) -> None:
    if titled:
        click.secho(f"==> {name} <==", bold=True)
    with run.log_file(name).open(encoding="utf-8", errors="replace") as file:
        for line in file:
            click.echo(line, nl=False)
