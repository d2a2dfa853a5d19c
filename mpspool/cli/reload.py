"""`mpspool reload`."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

import click

from mpspool.cli.common import SECONDS, examples, fail, main, refuse, run_dir_option
from mpspool.core.rundir import RunDir
from mpspool.supervisor.commands.errors import CommandError


@main.command(
    "reload",
    short_help="Take up what was changed in the configuration.",
    epilog=examples(
        "mpspool reload                                     # the pool file was edited",
        "mpspool reload --config pool.yaml                  # this one from now on",
        "mpspool reload --check                             # what would change, and whether it is right",
        "mpspool reload --no-wait",
    ),
)
@click.option(
    "--config",
    "file",
    metavar="POOL.yaml",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Read this file instead, now and at later reloads. Default: the one that the pool was started with.",
)
@click.option(
    "--timeout", type=SECONDS, default=300.0, show_default=True, metavar="S", help="How long to wait."
)
@click.option("--no-wait", is_flag=True, help="Return when the pool has taken it.")
@click.option("--check", is_flag=True, help="Say what would change; nothing does.")
@click.option("--models-from", type=click.File("r"), hidden=True)
@run_dir_option
def reload_config(
    run: RunDir, file: Path | None, timeout: float, *, no_wait: bool, check: bool, models_from: TextIO | None
) -> None:
    """Have the pool take up its configuration as it reads now; what does not change is not touched.

    It is read and checked as `start` did, with the flags and the environment of then; where anything is wrong,
    nothing changes. Workers whose settings change are renewed one after another, and no request fails. Ports, the run
    folder and what else docs/reload.md lists need a new start.

    Exit status 0 when it holds everywhere, but for what has failed before and is not touched, which is a warning; 1, with what
    is missing, when it does not in time; 2 when it is refused.
    """
    import json

    from mpspool.core.errors import StartError
    from mpspool.supervisor.commands import reload as reload_command

    models = None if models_from is None else json.load(models_from)
    try:
        reload_command.reload(
            run,
            file,
            None if no_wait else timeout,
            check=check,
            say=click.echo,
            warn=lambda text: click.echo(text, err=True),
            models=models,
        )
    except StartError as error:
        refuse(error, "nothing was changed")
    except CommandError as error:
        fail(str(error), error.status)
