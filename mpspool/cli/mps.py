"""`mpspool mps`: what workers have of their GPUs."""

from __future__ import annotations

import click

from mpspool.cli.common import examples, fail, main, run_dir_option
from mpspool.core.rundir import RunDir
from mpspool.supervisor.commands.errors import CommandError


@main.group(
    short_help="Show and change each worker's share of its GPU.",
    epilog=examples(
        "mpspool mps show",
        "mpspool mps set --active-thread-percentage 50 --restart",
    ),
)
def mps() -> None:
    """Show and change what each worker gets of its GPU under NVIDIA MPS."""


@mps.command(
    "show",
    epilog=examples(
        "mpspool mps show",
        "mpspool mps show --json | jq '.workers[] | select(.running != .next)'",
    ),
)
@run_dir_option
@click.option("--json", "as_json", is_flag=True, help="For scripts: names and values stay as they are.")
def mps_show(run: RunDir, *, as_json: bool) -> None:
    """Show what each worker runs with, and what its next generation gets."""
    import json

    from mpspool.supervisor.commands import mps as mps_command

    try:
        found = mps_command.show(run)
    except CommandError as error:
        fail(str(error), error.status)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        mps_command.print_shares(found)


@mps.command(
    "set",
    epilog=examples(
        "mpspool mps set --active-thread-percentage 50",
        "mpspool mps set --model ranker --pinned-memory 8GiB --restart",
        "mpspool mps set --worker ranker@3.gpu0.1 --priority below_normal --restart",
    ),
)
@run_dir_option
@click.option("--model", "name", metavar="NAME", help="Its workers alone. Default: those of all models.")
@click.option("--worker", metavar="ID", help="This one alone, as `mpspool mps show` names it.")
@click.option(
    "--active-thread-percentage", metavar="P", help="Of the GPU's multiprocessors, at most; 100 for no cap."
)
@click.option("--pinned-memory", metavar="SIZE", help="Of device memory, at most, as 2GiB; 0 for no limit.")
@click.option("--priority", metavar="normal|below_normal", help="Against other clients of the GPU.")
@click.option(
    "--restart",
    is_flag=True,
    help="Renew the workers now, one after another; none other is touched meanwhile.",
)
def mps_set(
    *, run: RunDir, name: str | None, worker: str | None, restart: bool, **values: str | None
) -> None:
    """Give workers other shares of their GPUs.

    MPS changes nothing for a process that is its client already: the values hold for the next generation of the
    workers chosen. With --restart each of them finishes what it has, leaves and comes back, before the next one does;
    one that runs with them already is left alone, and after one that does not come back all others. They hold until the pool is stopped; the pool
    file says what holds from its next start on.
    """
    from mpspool.supervisor.commands import mps as mps_command

    if name is not None and worker is not None:
        raise click.UsageError("give either --model or --worker: a worker belongs to one model")
    if not restart and not any(values.values()):
        raise click.UsageError(
            "nothing to set: give --active-thread-percentage, --pinned-memory, --priority, or --restart"
        )
    try:
        wanted = mps_command.read(values)
        for answer in mps_command.change(run, wanted, model=name, worker=worker, restart=restart):
            for one in answer.get("set", ()):
                click.echo(f"next generation of {mps_command.describe(one, 'next')}")
            for warning in answer.get("warnings", ()):
                click.echo(f"warning: {warning}", err=True)
            for done in ("renewed", "unchanged"):
                if one := answer.get(done):
                    click.echo(f"{done} {mps_command.describe(one, 'running')}")
    except CommandError as error:
        fail(str(error), error.status)
