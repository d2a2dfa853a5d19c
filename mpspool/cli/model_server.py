"""`mpspool tensorflow_model_server`, which is installed as tensorflow_model_server too, and `mpspool convert`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from mpspool import __version__
from mpspool.cli.common import examples, main, refuse
from mpspool.cli.start import begin

if TYPE_CHECKING:
    from mpspool.supervisor.config.tensorflow_serving.serve import Serving
    from mpspool.supervisor.origin import Origin

# What people ask it for help by.
_HELP = {"--help", "-h", "-help", "--helpfull"}


@main.command(
    "tensorflow_model_server",
    short_help="Start a pool by TensorFlow Serving's flags.",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="--FLAG=VALUE...")
def tensorflow_model_server(arguments: tuple[str, ...]) -> None:
    """Start a pool by a command line of TensorFlow Serving, or of DeepRec's; --help lists its flags."""
    serve(arguments)


@main.command(
    short_help="Print the pool.yaml of another server's files.",
    epilog=examples(
        "mpspool convert models.config batching.txt > pool.yaml",
        "mpspool convert model_config_file platform_config_file > pool.yaml && mpspool start pool.yaml --check",
        "mpspool convert service.json > pool.yaml",
    ),
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def convert(files: tuple[str, ...]) -> None:
    """Print the pool.yaml that says the same as files of TensorFlow Serving, DeepRec or EAS.

    Each is known by what stands in it: model_config_file, platform_config_file, batching_parameters_file,
    monitoring_config_file, ssl_config_file, tensorflow_session_config_file, or the JSON of DeepRec's processor. What has no
    equivalent is listed on standard error. Exit status 1 for what cannot be read.
    """
    _convert(files)


def run() -> None:
    """The command that TensorFlow Serving's is replaced by; Ctrl-C and a closed pipe end it without a traceback."""
    tensorflow_model_server(sys.argv[1:], prog_name="tensorflow_model_server")


def serve(arguments: Sequence[str]) -> None:
    """Starts a pool, and stays until Ctrl-C or SIGTERM, which drain it first."""
    from mpspool.supervisor.orders import Orders

    # Before anything that takes time, as in `mpspool start`.
    orders = Orders()
    orders.note(signal.SIGTERM, signal.SIGHUP)

    from mpspool.core.errors import StartError
    from mpspool.supervisor.config.read_serving import read_serving
    from mpspool.supervisor.config.tensorflow_serving import usage
    from mpspool.supervisor.planning.resolve import resolve

    if not _HELP.isdisjoint(arguments):
        click.echo(usage.help_text())
        return
    if usage.asks_for_version(arguments):
        click.echo(
            f"TensorFlow ModelServer: mpspool {__version__}\nTensorFlow Library: {usage.library_version()}"
        )
        return
    try:
        serving = read_serving(arguments, os.environ)
        for line in serving.notes:
            click.echo(f"note: {line}", err=True)
        settings, planned = resolve(
            None, {}, os.environ, serving=serving, orders=orders, patient=not serving.check, say=click.echo
        )
        begun = _origin(arguments, serving)
        begin(settings, planned, begun, orders, check=serving.check, detach=serving.detach)
    except StartError as error:
        if orders.given:
            return
        refuse(error)


def _origin(arguments: Sequence[str], serving: Serving) -> Origin:
    import msgspec

    from mpspool.supervisor import origin
    from mpspool.supervisor.config.tensorflow_serving.flags import without_secrets
    from mpspool.supervisor.model_file_watch import digest

    return msgspec.structs.replace(
        origin.here(None, {}, os.environ),
        arguments=without_secrets(arguments),
        watched=os.path.abspath(serving.watched) if serving.watched else "",
        poll_s=serving.poll_s,
        digest=digest(serving.watched_text),
    )


def _convert(files: Sequence[str]) -> None:
    import yaml

    from mpspool.core.errors import StartError
    from mpspool.supervisor.config.read_serving import read_text
    from mpspool.supervisor.config.tensorflow_serving.convert import convert_files

    try:
        told = convert_files(files, read_text)
    except StartError as error:
        refuse(error, "nothing was converted", 1)
    for line in told.notes:
        click.echo(f"note: {line}", err=True)
    click.echo(yaml.safe_dump(told.document(), sort_keys=False, allow_unicode=True), nl=False)
