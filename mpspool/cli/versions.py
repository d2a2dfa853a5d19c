"""`mpspool model`, `load`, `unload`, `rollback`, `route` and `capture`: models and their versions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from mpspool.cli.common import SECONDS, examples, fail, main, run_dir_option
from mpspool.core.rundir import RunDir
from mpspool.supervisor.commands.errors import CommandError

F = TypeVar("F", bound=Callable[..., Any])


@main.command(
    short_help="Show a model: signatures, variables, operations.",
    epilog=examples(
        "mpspool model half_plus_two",
        "mpspool model half_plus_two --json | jq .weights",
        "mpspool model --path /models/ranker --custom-op /models/ops/hash.so    # no pool is needed",
    ),
)
@run_dir_option
@click.argument("name", required=False)
@click.option("--version", type=int, metavar="V", help="Default: the latest.")
@click.option(
    "--path",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Instead of NAME: a version folder, or one that holds version folders.",
)
@click.option(
    "--custom-op",
    "custom_ops",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="LIB",
    help="With --path: a library with operations of your own; repeat for more.",
)
@click.option(
    "--saved-model-tag",
    "tags",
    multiple=True,
    metavar="TAG",
    help="With --path: of the graph; repeat for more.  [default: serve]",
)
@click.option("--json", "as_json", is_flag=True, help="For scripts: names and values stay as they are.")
def model(
    *,
    run: RunDir,
    name: str | None,
    version: int | None,
    path: Path | None,
    custom_ops: tuple[Path, ...],
    tags: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show a model: signatures, variables, what its workers share, what a GPU cannot run.

    NAME is a model of the pool that runs; --path looks at a SavedModel before it is served. What a GPU cannot
    run is known from TensorFlow's own list of kernels, on any machine. It takes a few seconds.
    """
    import json

    from mpspool.supervisor import report
    from mpspool.supervisor.commands import ask, describe, model_report

    if (name is None) == (path is None):
        raise click.UsageError("give either NAME, a model of the pool, or --path, a SavedModel")
    if name is not None and (custom_ops or tags):
        raise click.UsageError("--custom-op and --saved-model-tag go with --path: the pool knows its models'")
    try:
        with report.busy("TensorFlow reads the model"):
            if path is not None:
                found = describe.saved_model(describe.at_path(path, version, custom_ops, tags))
            else:
                found = describe.of_pool(ask.status(run), ask.model(run, str(name), version))
    except CommandError as error:
        fail(str(error), error.status)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        model_report.print_model(found)


@main.command(
    short_help="Keep a model's next requests, to warm it up with.",
    epilog=examples(
        "mpspool capture ranker --count 200                 # for its present version, and those after it",
        "mpspool capture ranker --count 1000 --timeout 600 -o warmup.tfrecord",
    ),
)
@click.argument("name")
@click.option(
    "--count", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many requests."
)
@click.option(
    "--version",
    type=int,
    metavar="N",
    help="Whose requests, and whose file it is.  [default: the one that answers what names none]",
)
@click.option(
    "--timeout",
    type=SECONDS,
    default=60.0,
    show_default=True,
    metavar="S",
    help="Keep what has come by then.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Instead of the version's own assets.extra/tf_serving_warmup_requests.",
)
@run_dir_option
def capture(
    run: RunDir, name: str, count: int, version: int | None, timeout: float, output: Path | None
) -> None:
    """Keep the next requests that a model answers as its warm-up requests.

    By gRPC, or Predict by REST. A worker answers them before it is READY, and a version that cannot is not served. A new version that has none of
    its own is warmed with those of the version before it. The file has clients' data in it.
    """
    from mpspool.supervisor import report
    from mpspool.supervisor.commands import capture

    try:
        with report.busy(f"requests for {name} are waited for"):
            click.echo(capture.capture(run, name, version, count, timeout, output))
    except CommandError as error:
        fail(str(error), error.status)


def _so_long_option(command: F) -> F:
    return click.option(
        "--timeout",
        type=SECONDS,
        default=600.0,
        show_default=True,
        metavar="S",
        help="How long to wait until it is so.",
    )(command)


@main.command(
    short_help="Have a version served, whatever the policy says.",
    epilog=examples(
        "mpspool load ranker@7                              # beside what the policy means",
        "mpspool load ranker                                # what the policy means again",
    ),
)
@click.argument("model", metavar="NAME[@VERSION]")
@_so_long_option
@run_dir_option
def load(run: RunDir, model: str, timeout: float) -> None:
    """Have a version served whatever version_policy says, and wait until it is AVAILABLE.

    Without a version: all that was unloaded by hand counts no more.
    """
    from mpspool.supervisor.commands import versions

    name, number = versions.parse(model)
    _say_version(lambda: versions.load(run, name, number, timeout))
    if number is not None:
        _say_till_when()


@main.command(
    short_help="Have a version not served, whatever the policy.",
    epilog=examples(
        "mpspool unload ranker@7",
        "mpspool unload ranker                              # in every version, until it is loaded again",
    ),
)
@click.argument("model", metavar="NAME[@VERSION]")
@_so_long_option
@run_dir_option
def unload(run: RunDir, model: str, timeout: float) -> None:
    """Have a version no longer served whatever version_policy says, and wait until its workers have gone.

    Where the policy means another version in its place, that one is loaded first.
    """
    from mpspool.supervisor.commands import versions

    _say_version(lambda: versions.unload(run, *versions.parse(model), timeout))
    _say_till_when()


@main.command(
    short_help="Go back to the version before.",
    epilog=examples(
        "mpspool rollback ranker",
        "mpspool load ranker                                # forward again",
    ),
)
@click.argument("name")
@_so_long_option
@run_dir_option
def rollback(run: RunDir, name: str, timeout: float) -> None:
    """Go back to the version before: it is loaded, takes over, and the present one goes.

    The version that was left stays out until `mpspool load`; a newer one is served as soon as it is there.
    """
    from mpspool.supervisor.commands import versions

    _say_version(lambda: versions.rollback(run, name, timeout))
    _say_till_when()


@main.command(
    short_help="Share requests out among versions.",
    epilog=examples(
        "mpspool route ranker 7=90,8=10                     # of requests that name no version, every tenth",
        "mpspool route ranker 8=1                           # all of them",
        "mpspool route ranker latest                        # what version_policy means, again",
        "mpspool route ranker --label canary=8 --metadata x-canary=yes:8",
    ),
)
@click.argument("name")
@click.argument("weights", required=False, metavar="[VERSION=WEIGHT,...|latest]")
@click.option(
    "--label", "labels", multiple=True, metavar="LABEL=VERSION", help="A version label; repeat for more."
)
@click.option(
    "--metadata",
    multiple=True,
    metavar="KEY=VALUE:VERSION",
    help="Requests with this metadata that name no version; repeat for more.",
)
@run_dir_option
def route(
    run: RunDir, name: str, weights: str | None, labels: tuple[str, ...], metadata: tuple[str, ...]
) -> None:
    """Share out the requests that name no version, from now on; without more, show how they are.

    Every version named must be served: by version_policy, or by `mpspool load`. A share holds until one of its
    versions goes.
    """
    from mpspool.supervisor.commands import versions

    _say_version(lambda: versions.route(run, name, weights, labels, metadata))


def _say_till_when() -> None:
    click.echo("this holds until the pool ends; then what version_policy says holds again", err=True)


def _say_version(order: Callable[[], str]) -> None:

    try:
        click.echo(order())
    except CommandError as error:
        fail(str(error), error.status)
