"""`mpspool simulate`: what befalls stand-in GPUs."""

from __future__ import annotations

import click

from mpspool.cli.common import Seconds, examples, fail, main, run_dir_option
from mpspool.core.rundir import RunDir
from mpspool.mps.simulated import FAULTS
from mpspool.supervisor.commands.errors import CommandError


@main.group(
    short_help="Have stand-ins fail, to see what the pool does.",
    epilog=examples(
        "mpspool simulate fault gpu0",
    ),
)
def simulate() -> None:
    """Have stand-ins fail, to see what the pool makes of it."""


@simulate.command(
    "fault",
    epilog=examples(
        "mpspool start --model half_plus_two=/models/half_plus_two --simulate-gpus 2 --detach",
        "mpspool simulate fault gpu0",
        "mpspool simulate fault gpu0 --kind client-wedge --worker half_plus_two@1.gpu0.1",
        "mpspool simulate fault gpu0 --kind daemon-hang --for 10",
        "mpspool simulate fault gpu1 --kind gpu-lost && mpspool status",
    ),
)
@run_dir_option
@click.argument("device")
@click.option(
    "--kind",
    type=click.Choice(list(FAULTS)),
    default="server-fault",
    show_default=True,
    help="A fatal fault that hits all clients of the MPS server; work of one client that never returns; an error of"
    " the GPU's memory that cannot be corrected; an MPS daemon that answers nobody; the end of the MPS daemon or its"
    " server; a GPU that is gone until the pool is started again.",
)
@click.option("--worker", metavar="ID", help="Whose fault, work or memory it is; one of DEVICE.")
@click.option(
    "--for",
    "seconds",
    metavar="SECONDS",
    type=Seconds(0, 1e9, min_open=True),
    help="How long it hangs.",
)
def simulate_fault(run: RunDir, device: str, kind: str, worker: str | None, seconds: float | None) -> None:
    """Have the stand-in of a GPU fail.

    DEVICE is one of a pool that was started with --simulate-gpus, as `mpspool status` shows it. A real GPU cannot
    be told to fail.
    """
    from mpspool.supervisor.commands import simulate as simulation

    for option, given, word in (("--worker", worker, "PID"), ("--for", seconds, "SECONDS")):
        if given is not None and FAULTS[kind] != word:
            kinds = ", ".join(name for name, takes in FAULTS.items() if takes == word)
            raise click.UsageError(f"{option} goes with --kind {kinds}")
    try:
        click.echo(simulation.fault(run, device, kind, worker=worker, seconds=seconds))
    except CommandError as error:
        fail(str(error), error.status)
