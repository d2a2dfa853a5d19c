"""What the commands have in common: the group that they are in, options of several, and how they fail."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from mpspool import __version__
from mpspool.core.rundir import RunDir, default_run_dir
from mpspool.supervisor import durations

if TYPE_CHECKING:
    from mpspool.core.errors import StartError

F = TypeVar("F", bound=Callable[..., Any])

NOTHING_STARTED = 2


class Seconds(click.FloatRange):
    """A length of time, within a range; a number alone is seconds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        parsed = durations.parse(value) if isinstance(value, str) else None
        try:
            number = float(value) if parsed is None else parsed
        except ValueError:
            number = math.nan
        if math.isnan(number):
            self.fail(f"{value!r} is no time; {durations.FORM}", param, ctx)
        return min(super().convert(number, param, ctx), durations.MOST_S)


# How long to wait, of --timeout.
SECONDS = Seconds(min=0, min_open=True)


def as_run_dir(_context: click.Context, _parameter: click.Parameter, value: Path) -> RunDir:
    return RunDir(Path(os.path.abspath(value.expanduser())))


def run_dir_option(command: F) -> F:
    """--run-dir, for the commands that look for a pool."""
    return click.option(
        "--run-dir",
        "run",
        type=click.Path(path_type=Path),
        callback=as_run_dir,
        envvar="MPSPOOL_RUN_DIR",
        default=lambda: str(default_run_dir()),
        metavar="DIR",
        help="The pool's run folder, as given to start. Default: MPSPOOL_RUN_DIR, else one per user.",
    )(command)


def tls_options(command: F) -> F:
    """How a client of ours speaks TLS; the pool of this machine needs none of it, but where it verifies clients."""
    options = (
        click.option("--tls", is_flag=True, help="Speak TLS; the pool here is known by its own certificate."),
        click.option(
            "--ca", default="", metavar="FILE", help="TLS: whom to trust. Default: as this machine does."
        ),
        click.option("--cert", default="", metavar="FILE", help="TLS: the client's own certificate."),
        click.option("--key", default="", metavar="FILE", help="TLS: its key."),
        click.option(
            "--server-name",
            default="",
            metavar="NAME",
            help="TLS: whose certificate it must be. Default: HOST.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def fail(text: str, status: int = 1) -> NoReturn:
    """An error for a person, and the exit status for a script."""
    click.echo(text, err=True)
    sys.exit(status)


def examples(*lines: str) -> str:
    """Below the help of a command, one a line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


class Commands(click.Group):
    """Says where an option goes that stands before the command and is the command's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            option = error.option_name
            typed = {word for word in words if word in self.commands}
            of = [path for path in _with(option, self) if not typed or path[0] in typed]
            if not of:
                raise
            path = next((path for path in of if set(path) <= set(words)), of[0])
            raise click.UsageError(
                f"{option} goes behind the command: mpspool {' '.join(path)} {option}", ctx
            ) from error


def _with(option: str, group: click.Group, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The commands that have it, each with the groups that it is in."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _with(option, command, (*before, name))
        elif any(option in parameter.opts for parameter in command.params):
            yield (*before, name)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "mpspool start --model half_plus_two=/models/half_plus_two     # stays in the foreground",
        "mpspool wait && mpspool status                                # in another terminal",
        "mpspool predict half_plus_two --input '{\"x\": [1, 2, 5]}'",
    ),
)
@click.version_option(__version__, prog_name="mpspool")
def main() -> None:
    """Serve TensorFlow models from a pool of worker processes.

    On GPUs several workers share each device under NVIDIA MPS; without a GPU the same pool runs on
    the CPU. Clients of TensorFlow Serving work unchanged.
    """


def refuse(
    error: StartError, outcome: str = "nothing was started", status: int = NOTHING_STARTED
) -> NoReturn:
    for problem in error.problems:
        click.echo(f"error: {problem}", err=True)
    fail(outcome, status)
