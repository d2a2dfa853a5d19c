"""`mpspool start`, `wait`, `stop` and `doctor`."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mpspool.cli.common import SECONDS, examples, fail, main, refuse, run_dir_option
from mpspool.core.ids import ModelVersion
from mpspool.core.rundir import RunDir
from mpspool.supervisor.commands.errors import NoPoolError

if TYPE_CHECKING:
    from mpspool.core.settings import PoolSettings
    from mpspool.supervisor.orders import Orders
    from mpspool.supervisor.origin import Origin
    from mpspool.supervisor.planning.plan import Plan

# The options of start that the doctor, who starts nothing, does not take.
_STARTS_SOMETHING = {"detach", "check"}


class _PoolCommand(click.Command):
    """Its options are some of the pool file's keys; of another key's name it is said where that is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = [*args]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            where = _of_key(error.option_name, words, {option.name for option in self.params})
            if not where:
                raise
            message = f"{error.message.rstrip('.')}; {where}"
            raise click.NoSuchOption(error.option_name, message, ctx=ctx) from None


def _of_key(option: str, words: list[str], options: set[str | None]) -> str:
    """Where the key that is named so is given, with the value that was, or whose flag it is; "" where there is none, or it has an option."""
    from mpspool.supervisor.config.environment import variable_of
    from mpspool.supervisor.config.schema import FLAG_FIELDS, pool_fields
    from mpspool.supervisor.config.tensorflow_serving.flag_table import DEEPREC, SERVING

    name = option.lstrip("-").replace("-", "_")
    named = (key for key in pool_fields() if name in (key.replace(".", "_"), key.rpartition(".")[2]))
    key = next((key for key in named if key not in {*options, *FLAG_FIELDS.values()}), None)
    flags = (flag for flag, of in FLAG_FIELDS.items() if flag in options and name == of.replace(".", "_"))
    if given := next(flags, None):
        return f"write it as --{given.replace('_', '-')}"
    if key is None:
        theirs = {flag.name for flag in (*SERVING, *DEEPREC)} - {"version", *options}
        return "`mpspool tensorflow_model_server` takes TensorFlow Serving's flags" if name in theirs else ""
    values = [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
    values += [after for word, after in pairwise(words) if word == option and not _is_no_value(after)]
    value = shlex.quote(values[0]) if any(values) else "..."
    return f"{key} is a key of POOL.yaml, or {variable_of(key)}={value} in the environment"


def _is_no_value(word: str) -> bool:
    """Another option, or the pool file."""
    return word.startswith("--") or word.endswith((".yaml", ".yml")) or os.path.exists(word)


@main.command(
    short_help="Start a pool, and stay until it is told to end.",
    cls=_PoolCommand,
    epilog=examples(
        "mpspool start --model half_plus_two=/models/half_plus_two",
        "mpspool start --model wide=/models/wide --model ocr=/models/ocr --gpus 0,1 --contexts-per-gpu 6",
        'mpspool start --model wide=/models/wide --gpus none --cpusets "0-3;4-7"',
        "mpspool start pool.yaml --host 0.0.0.0 --detach",
        "mpspool start pool.yaml --check",
    ),
)
@click.argument(
    "file", required=False, metavar="[POOL.yaml]", type=click.Path(path_type=Path, dir_okay=False)
)
@click.option(
    "--model",
    multiple=True,
    metavar="NAME=BASE_PATH",
    help="A model and the folder with its numeric version folders; repeat for more.",
)
@click.option(
    "--gpus", metavar="0,2|all|none", help="GPUs, as CUDA_VISIBLE_DEVICES numbers them. Default: all."
)
@click.option("--contexts-per-gpu", metavar="N", help="Workers per model and GPU.  [default: 4]")
@click.option("--cpu-slots", metavar="N", help="Workers per model on the CPU. Default: one per 2 cores.")
@click.option("--cpusets", metavar="SETS", help='CPUs of each worker, as "2-4;5-7".')
@click.option("--intra-op-threads", metavar="N", help="Threads within one operation, per worker.")
@click.option("--inter-op-threads", metavar="N", help="Operations at once, per worker.")
@click.option(
    "--mps", metavar="auto|own|on|external|off", help="NVIDIA MPS on the GPUs; on says own.  [default: auto]"
)
@click.option("--simulate-gpus", metavar="N", help="Stand-ins for GPUs; models run on the CPU.")
@click.option("--simulate-cpus", metavar="N", help="Stand-ins for CPUs; nothing is pinned.")
@click.option(
    "--enable-batching",
    is_flag=True,
    default=None,
    help="Join requests to batches, as TensorFlow Serving does.",
)
@click.option(
    "--batching-parameters-file",
    metavar="FILE",
    help="With --enable-batching: BatchingParameters as text, as for TensorFlow Serving.",
)
@click.option(
    "--enable-per-model-batching-parameters",
    is_flag=True,
    default=None,
    help="With --enable-batching: each version's own, from batching_params.pbtxt in its folder.",
)
@click.option(
    "--file-system-poll-wait-seconds",
    metavar="S",
    help="How often base paths are looked at for new versions; 0 for never.  [default: 1]",
)
@click.option(
    "--policy",
    metavar="fifo|sjf|edf|NAME",
    help="Which request is next, or module:attribute.  [default: fifo]",
)
@click.option("--grpc-port", metavar="PORT", help="0 turns gRPC off.  [default: 8500]")
@click.option("--rest-port", metavar="PORT", help="0 turns HTTP off.  [default: 8501]")
@click.option(
    "--monitoring-path",
    metavar="PATH",
    help='TensorFlow Serving\'s metrics by HTTP; "" for none.  [default: /monitoring/prometheus/metrics]',
)
@click.option("--host", metavar="ADDR", help="0.0.0.0 opens the ports to the network.  [default: 127.0.0.1]")
@click.option(
    "--ssl-config-file",
    metavar="FILE",
    help="TLS on the gRPC port: SSLConfig as text, as for TensorFlow Serving.",
)
@click.option("--run-dir", metavar="DIR", help="Sockets, settings and logs. Default: one per user.")
@click.option(
    "--detach", is_flag=True, help="Return when the pool is on its way; it runs on in the background."
)
@click.option(
    "--check", is_flag=True, help="Validate everything, read the models, print the plan, start nothing."
)
def start(file: Path | None, detach: bool, check: bool, **flags: Any) -> None:
    """Start a pool and stay until Ctrl-C or SIGTERM, which drain it first.

    The same can be said in POOL.yaml, in the environment (MPSPOOL_GRPC_PORT=..., and DeepRec's
    CONTEXTS_COUNT_PER_GPU and the like) and here; what is said here wins.
    """
    from mpspool.supervisor.orders import Orders

    # Before anything that takes time. Ctrl-C breaks off, as anywhere, until there is a pool to end.
    orders = Orders()
    if not check:
        orders.note(signal.SIGTERM, signal.SIGHUP)

    from mpspool.core.errors import StartError
    from mpspool.supervisor import origin
    from mpspool.supervisor.planning.resolve import resolve

    try:
        settings, planned = resolve(file, flags, os.environ, orders=orders, say=click.echo)
        begin(settings, planned, origin.here(file, flags, os.environ), orders, check=check, detach=detach)
    except StartError as error:
        if orders.given:
            return
        refuse(error)


def begin(
    settings: PoolSettings, planned: Plan, begun: Origin, orders: Orders, *, check: bool, detach: bool
) -> None:
    """From a plan to a pool that runs, or to the word that it could. Raises StartError."""
    from mpspool.supervisor import foreground

    _print_plan(settings, planned)
    if check:
        warnings = [*planned.warnings, *_check_models(settings)]
        verdict = "It can start, with the warnings above" if warnings else "All is well"
        click.echo(
            f"{verdict}; nothing was started. (The weights' checksums are verified as they are published.)"
        )
        return
    if detach:
        announce = _announce_detached(settings)
        sys.exit(foreground.detach(settings, begun, orders=orders, announce=announce))
    sys.exit(foreground.run(settings, begun, orders=orders, say=foreground.say_with_time))


@main.command(
    short_help="Say whether this machine can serve.",
    cls=_PoolCommand,
    params=[option for option in start.params if option.name not in _STARTS_SOMETHING],
    epilog=examples(
        "mpspool doctor",
        "mpspool doctor pool.yaml --json | jq '.checks[] | select(.status != \"ok\")'",
        "mpspool doctor --gpus 0 --contexts-per-gpu 8 --mps on",
    ),
)
@click.option("--json", "as_json", is_flag=True, help="For scripts: names and values stay as they are.")
def doctor(file: Path | None, as_json: bool, **flags: Any) -> None:
    """Say whether this machine can serve, and what to do where it cannot.

    Looks at the driver, the GPUs, MPS, TensorFlow, limits and the container; with POOL.yaml or flags, for what is to
    be served. Starts and changes nothing. Exit status 1 where something is an error. It takes a few seconds.
    """
    import json

    from mpspool.supervisor import report
    from mpspool.supervisor.doctor import examine, gather, table

    with report.busy("TensorFlow is looked at"):
        facts = gather.gather(file, flags, os.environ)
    findings = examine.examine(facts)
    if as_json:
        click.echo(json.dumps(examine.for_scripts(facts, findings), indent=2))
    else:
        table.print_findings(facts, findings)
    sys.exit(0 if examine.passed(findings) else 1)


def _check_models(settings: PoolSettings) -> list[str]:
    """Reads every model, as `mpspool model` does: its graph, operations and checkpoint. Raises StartError.

    Returns:
        What it has warned of.
    """
    from mpspool.core.errors import StartError
    from mpspool.supervisor import report
    from mpspool.supervisor.commands import describe

    with report.busy("TensorFlow reads the models"):
        problems, warnings = describe.check(settings.models)
    for line in warnings:
        click.echo(f"warning: {line}", err=True)
    if problems:
        raise StartError(problems)
    return warnings


def _print_plan(settings: PoolSettings, planned: Plan) -> None:
    for line in planned.facts:
        click.echo(line)
    ports = (("gRPC", settings.router.grpc_port), ("HTTP", settings.router.rest_port))
    fronts = (
        ", ".join(
            [f"{name} on {settings.router.host}:{port}" for name, port in ports if port]
            + [f"gRPC on unix:{path}" for path in (settings.router.grpc_socket_path,) if path]
        )
        or "both fronts off"
    )
    click.echo(f"{fronts}; run folder {settings.run_dir}")
    for line in planned.warnings:
        click.echo(f"warning: {line}", err=True)


def _announce_detached(settings: PoolSettings) -> Callable[[str], None]:
    from mpspool.supervisor.report import elsewhere, program

    where = elsewhere(settings.run_dir)

    def announce(text: str) -> None:
        click.echo(f"started: {text}")
        click.echo(f"until it is ready: {program()} wait{where}\nto end it:         {program()} stop{where}")

    return announce


def _versions(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[ModelVersion, ...]:
    from mpspool.supervisor.commands.versions import parse

    found = [(value, *parse(value)) for value in values]
    if bad := [value for value, _, number in found if number is None]:
        raise click.BadParameter(f"{bad[0]!r} names no version; write NAME@VERSION, such as ranker@8")
    return tuple(ModelVersion(name, number) for _, name, number in found if number is not None)


@main.command(
    short_help="Wait until every model is served.",
    epilog=examples(
        "mpspool start pool.yaml --detach && mpspool wait --timeout 60",
        "mv /models/ranker/.8 /models/ranker/8 && mpspool wait ranker@8    # until it is served, or why not",
    ),
)
@click.argument("versions", nargs=-1, metavar="[NAME@VERSION]...", callback=_versions)
@run_dir_option
@click.option(
    "--timeout", type=SECONDS, default=300.0, show_default=True, metavar="S", help="How long to wait."
)
def wait(run: RunDir, versions: tuple[ModelVersion, ...], timeout: float) -> None:
    """Wait until every model, or each of these versions, is served by all its workers.

    Of several versions of a model that are there the newest is waited for, the first time those that its labels
    stand for, too; the others are loaded after it. One that has just been published is not there until the pool
    has looked: name it. It waits for a pool that is not there yet, too. Exit status 0 when all is ready; 1, with
    the reason, when the time is over, when the pool has failed, when a worker was given up or the version is
    refused.
    """
    from mpspool.supervisor.commands import ask

    if reason := ask.why_not_ready(run, versions, timeout, lambda text: click.echo(text, err=True)):
        fail(reason)


@main.command(
    short_help="Drain the pool, and end it.",
    epilog=examples(
        "mpspool stop --timeout 60",
    ),
)
@run_dir_option
@click.option(
    "--timeout", type=SECONDS, metavar="S", help="How long to wait. Default: the pool's grace time and some."
)
def stop(run: RunDir, timeout: float | None) -> None:
    """Drain the pool, end it, and wait until nothing of it is left.

    Exit status 0 when nothing is left, also when nothing was there.
    """
    from mpspool.supervisor.commands import ask

    try:
        left = ask.stop(run, _stop_timeout_s(run) if timeout is None else timeout)
    except NoPoolError as none:
        click.echo(str(none))
        return
    if left:
        fail(left)
    click.echo("stopped")


def _stop_timeout_s(run: RunDir) -> float:
    import msgspec

    from mpspool.core import settings
    from mpspool.supervisor.commands import ask

    try:
        found = settings.load(run.settings_file("pool"), settings.PoolSettings)
    except (OSError, msgspec.DecodeError):
        return ask.STOP_MARGIN_S
    return found.grace_s + ask.STOP_MARGIN_S
