"""The command line. Only click is imported up front: `status` must not wait for anything else."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeVar

import click

from mpspool import __version__
from mpspool.core.rundir import RunDir, default_run_dir
from mpspool.mps.simulated import FAULTS

if TYPE_CHECKING:
    from mpspool.core.client_tls import ClientTls
    from mpspool.core.errors import StartError
    from mpspool.core.settings import PoolSettings
    from mpspool.supervisor.orders import Orders
    from mpspool.supervisor.origin import Origin
    from mpspool.supervisor.planning.plan import Plan

F = TypeVar("F", bound=Callable[..., Any])

_NOTHING_STARTED = 2
# What --concurrency and --rate may ask for.
_MAX_LEVEL = 10_000_000
# The options of start that the doctor, who starts nothing, does not take.
_STARTS_SOMETHING = {"detach", "check"}


def _as_run_dir(_context: click.Context, _parameter: click.Parameter, value: Path) -> RunDir:
    return RunDir(Path(os.path.abspath(value.expanduser())))


def run_dir_option(command: F) -> F:
    """--run-dir, for the commands that look for a pool."""
    return click.option(
        "--run-dir",
        "run",
        type=click.Path(path_type=Path),
        callback=_as_run_dir,
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


def _examples(*lines: str) -> str:
    """Below the help of a command, one a line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_examples(
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


@main.command(
    epilog=_examples(
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
        _check_models(settings)
        verdict = "It can start, with the warnings above" if planned.warnings else "All is well"
        click.echo(
            f"{verdict}; nothing was started. (The weights' checksums are verified as they are published.)"
        )
        return
    if detach:
        announce = _announce_detached(settings)
        sys.exit(foreground.detach(settings, begun, orders=orders, announce=announce))
    sys.exit(foreground.run(settings, begun, orders=orders, say=foreground.say_with_time))


@main.command(
    "tensorflow_model_server",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="--FLAG=VALUE...")
def tensorflow_model_server(arguments: tuple[str, ...]) -> None:
    """Start a pool by a command line of TensorFlow Serving, or of DeepRec's; --help lists its flags."""
    from mpspool import model_server_cli

    model_server_cli.serve(arguments)


@main.command(
    epilog=_examples(
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
    from mpspool import model_server_cli

    model_server_cli.convert(files)


@main.command(
    params=[option for option in start.params if option.name not in _STARTS_SOMETHING],
    epilog=_examples(
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


def _check_models(settings: PoolSettings) -> None:
    """Reads every model, as `mpspool model` does: its graph, operations and checkpoint. Raises StartError."""
    from mpspool.core.errors import StartError
    from mpspool.supervisor import describe, report

    with report.busy("TensorFlow reads the models"):
        problems = describe.check(settings.models)
    if problems:
        raise StartError(problems)


def _print_plan(settings: PoolSettings, planned: Plan) -> None:
    for line in planned.facts:
        click.echo(line)
    ports = (("gRPC", settings.grpc_port), ("HTTP", settings.rest_port))
    fronts = (
        ", ".join(
            [f"{name} on {settings.host}:{port}" for name, port in ports if port]
            + [f"gRPC on unix:{path}" for path in (settings.grpc_socket_path,) if path]
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


def refuse(error: StartError) -> NoReturn:
    for problem in error.problems:
        click.echo(f"error: {problem}", err=True)
    fail("nothing was started", _NOTHING_STARTED)


@main.command(
    epilog=_examples(
        "mpspool start pool.yaml --detach && mpspool wait --timeout 60",
    ),
)
@run_dir_option
@click.option(
    "--timeout", type=float, default=300.0, show_default=True, metavar="S", help="How long to wait."
)
def wait(run: RunDir, timeout: float) -> None:
    """Wait until every worker is READY.

    It waits for a pool that is not there yet, too. Exit status 0 when all is ready; 1, with the reason,
    when the time is over, when the pool has failed or when a worker was given up.
    """
    from mpspool.supervisor import ask

    if reason := ask.why_not_ready(run, timeout, lambda text: click.echo(text, err=True)):
        fail(reason)


@main.command(
    "reload",
    epilog=_examples(
        "mpspool reload                                     # the pool file was edited",
        "mpspool reload --config pool.yaml                  # this one from now on",
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
    "--timeout", type=float, default=300.0, show_default=True, metavar="S", help="How long to wait."
)
@click.option("--no-wait", is_flag=True, help="Return when the pool has taken it.")
@click.option("--models-from", type=click.File("r"), hidden=True)
@run_dir_option
def reload_config(
    run: RunDir, file: Path | None, timeout: float, *, no_wait: bool, models_from: TextIO | None
) -> None:
    """Have the pool take up its configuration as it reads now; what does not change is not touched.

    It is read and checked as `start` did, with the flags and the environment of then; where anything is wrong,
    nothing changes. Workers whose settings change are renewed one after another, and no request fails. Ports, the run
    folder and what else docs/reload.md lists need a new start.

    Exit status 0 when it holds everywhere; 1, with what is missing, when it does not in time; 2 when it is refused.
    """
    import json

    from mpspool.core.errors import StartError
    from mpspool.supervisor import ask, reload_command

    models = None if models_from is None else json.load(models_from)
    try:
        reload_command.reload(
            run,
            file,
            None if no_wait else timeout,
            say=click.echo,
            warn=lambda text: click.echo(text, err=True),
            models=models,
        )
    except StartError as error:
        for problem in error.problems:
            click.echo(f"error: {problem}", err=True)
        fail("nothing was changed", _NOTHING_STARTED)
    except (ask.NoPoolError, reload_command.ReloadError) as error:
        fail(str(error))


@main.command(
    epilog=_examples(
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

    from mpspool.supervisor import ask, report

    try:
        found = ask.status(run)
    except ask.NoPoolError as error:
        fail(str(error))
    if as_json:
        click.echo(json.dumps(report.for_scripts(found), indent=2))
    else:
        report.print_status(found)


@main.command(
    epilog=_examples(
        "mpspool top",
        "mpspool top --interval 5",
        "mpspool top > frame.txt                                       # one frame, and no end to wait for",
    ),
)
@run_dir_option
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.1),
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
    from mpspool.supervisor import ask
    from mpspool.supervisor.top import screen

    try:
        screen.show(run, interval_s)
    except ask.NoPoolError as error:
        fail(str(error))


@main.command(
    epilog=_examples(
        "mpspool density",
        "mpspool density --last 2m --output gpus.svg --device gpu0,gpu1",
        "mpspool density --last 500ms --json - | jq '.devices[] | {device, waiting_share}'",
    ),
)
@run_dir_option
@click.option("--last", default="30s", show_default=True, metavar="TIME", help="As 500ms, 30s or 2m.")
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
def density(run: RunDir, last: str, output: Path, devices: str | None, as_json: str | None) -> None:
    """Draw what ran on each device of late: how much at once, of which model, over time.

    A dispatch is what a worker is sent at once: a request, some short ones, or a batch. Where n of them run at once,
    each counts as having the n-th part of the device: that is its EFFECTIVE time, and the rest of its BUSY time it was
    WAITING for the others. The effective times of a device add up to the time in which anything ran on it.

    The router keeps the last 131,072 dispatches. A pool on which nothing ran has no picture.
    """
    from mpspool.supervisor.density import command, errors

    try:
        command.show(run, last, output, devices, as_json)
    except errors.DensityError as error:
        fail(str(error), error.status)


@main.command(
    epilog=_examples(
        "mpspool record",
        "mpspool record --for 10m -o monday.jsonl && python -m bench.sim --trace monday.jsonl --gpus 1",
    ),
)
@run_dir_option
@click.option(
    "--for", "length", default="60s", show_default=True, metavar="TIME", help="As 500ms, 30s or 2m."
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
def record(run: RunDir, length: str, output: Path) -> None:
    """Record what arrives at the pool, to play it under other policies: `python -m bench.sim --trace`, in a clone of mpspool.

    A line for each Predict request: when it came, for which model, version and signature, its rows and bytes, priority and
    what was left of its deadline, and how long its worker took for it. No values; of its client a number, by
    scheduling.fair_by or, where clients do not share, by their address.

    It ends after --for, or with Ctrl-C, which leaves out what is under way then. The router keeps up to 32,768 requests that
    are under way or still to be written, and nothing while nobody records.
    """
    from mpspool.supervisor import record as recorder

    try:
        recorder.record(run, length, output)
    except recorder.RecordError as error:
        fail(str(error), error.status)


@main.command(
    epilog=_examples(
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

    from mpspool.supervisor import ask, describe, model_report, report

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
    except (ask.NoPoolError, ask.NoModelError, describe.DescribeError) as error:
        fail(str(error))
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        model_report.print_model(found)


@main.command(
    epilog=_examples(
        "mpspool capture ranker --count 200                 # for its present version, and those after it",
        "mpspool capture ranker --count 1000 --timeout 600 -o warmup.tfrecord",
    ),
)
@click.argument("name")
@click.option(
    "--count", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many requests."
)
@click.option("--version", type=int, metavar="N", help="Whose file it is.  [default: the latest]")
@click.option(
    "--timeout", type=float, default=60.0, show_default=True, metavar="S", help="Keep what has come by then."
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

    A worker answers them before it is READY, and a version that cannot is not served. A new version that has none of
    its own is warmed with those of the version before it. The file has clients' data in it.
    """
    from mpspool.supervisor import ask, capture, report

    try:
        with report.busy(f"requests for {name} are waited for"):
            click.echo(capture.capture(run, name, version, count, timeout, output))
    except (ask.NoPoolError, ask.NoModelError, capture.CaptureError) as error:
        fail(str(error))


def _so_long_option(command: F) -> F:
    return click.option(
        "--timeout",
        type=float,
        default=600.0,
        show_default=True,
        metavar="S",
        help="How long to wait until it is so.",
    )(command)


@main.command(
    epilog=_examples(
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
    from mpspool.supervisor import versions_command as versions

    _say_version(lambda: versions.load(run, *versions.parse(model), timeout))


@main.command(
    epilog=_examples(
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
    from mpspool.supervisor import versions_command as versions

    _say_version(lambda: versions.unload(run, *versions.parse(model), timeout))


@main.command(
    epilog=_examples(
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
    from mpspool.supervisor import versions_command as versions

    _say_version(lambda: versions.rollback(run, name, timeout))


@main.command(
    epilog=_examples(
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
    from mpspool.supervisor import versions_command as versions

    _say_version(lambda: versions.route(run, name, weights, labels, metadata))


def _say_version(order: Callable[[], str]) -> None:
    from mpspool.supervisor import ask, versions_command

    try:
        click.echo(order())
    except (ask.NoPoolError, versions_command.VersionError) as error:
        fail(str(error))


@main.command(
    epilog=_examples(
        "mpspool stop --timeout 60",
    ),
)
@run_dir_option
@click.option(
    "--timeout", type=float, metavar="S", help="How long to wait. Default: the pool's grace time and some."
)
def stop(run: RunDir, timeout: float | None) -> None:
    """Drain the pool, end it, and wait until nothing of it is left.

    Exit status 0 when nothing is left, also when nothing was there.
    """
    from mpspool.supervisor import ask

    try:
        left = ask.stop(run, _stop_timeout_s(run) if timeout is None else timeout)
    except ask.NoPoolError as none:
        click.echo(str(none))
        return
    if left:
        fail(left)
    click.echo("stopped")


def _stop_timeout_s(run: RunDir) -> float:
    import msgspec

    from mpspool.core import settings
    from mpspool.supervisor import ask

    try:
        found = settings.load(run.settings_file("pool"), settings.PoolSettings)
    except (OSError, msgspec.DecodeError):
        return ask.STOP_MARGIN_S
    return found.grace_s + ask.STOP_MARGIN_S


@main.command(
    epilog=_examples(
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
    from mpspool.supervisor import log_files

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


@main.command(
    epilog=_examples(
        "mpspool predict half_plus_two --input '{\"x\": [1, 2, 5]}'",
        "mpspool predict half_plus_two --input '[1, 2, 5]' --address 10.0.0.7:8500",
    ),
)
@run_dir_option
@click.argument("name")
@click.option(
    "--input", "document", required=True, metavar="JSON", help="{input: value, ...}; - reads it from stdin."
)
@click.option("--signature", default="", metavar="S", help="Default: serving_default.")
@click.option("--version", type=int, metavar="V", help="Default: the latest.")
@click.option(
    "--address", metavar="HOST[:PORT]", help="Another server's. Default: the pool's, else 127.0.0.1:8500."
)
@click.option(
    "--timeout", type=float, default=60.0, show_default=True, metavar="S", help="The request's deadline."
)
@tls_options
def predict(
    *,
    run: RunDir,
    name: str,
    document: str,
    signature: str,
    version: int | None,
    address: str | None,
    timeout: float,
    **tls: Any,
) -> None:
    """Ask a model once, over gRPC, and print its outputs as JSON.

    Works with any TensorFlow Serving. Bytes that are no text are written {"b64": "..."}; a model
    with one input takes its value alone.
    """
    import json

    from mpspool import client
    from mpspool.supervisor.ports import with_port
    from mpspool.supervisor.report import elsewhere, program

    parsed = _parsed("--input", document)
    asked = with_port(address) if address else _address(run)
    try:
        outputs = client.predict(
            asked,
            name,
            parsed,
            signature=signature,
            version=version,
            timeout_s=timeout,
            tls=_client_tls(run, asked, **tls),
        )
    except client.NotGrpcError as error:
        fail(f"{error}{_grpc_beside(run, asked)}")
    except client.UnreachableError as error:
        fail(str(error) if address else f"{error} ({program()} status{elsewhere(str(run.root))})")
    except client.CallError as error:
        fail(f"{error}{_hint(run, asked, name, str(error))}")
    click.echo(json.dumps(outputs))


def _parsed(option: str, document: str) -> Any:
    import json

    text = sys.stdin.read() if document == "-" else document
    try:
        return json.loads(text)
    except ValueError as error:
        fail(f"{option} is no JSON ({error}); an example: {option} '{{\"x\": [1, 2, 5]}}'")


def _levels(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[float, ...]:
    """Of --concurrency and --rate: numbers with commas between them."""
    if value is None:
        return ()
    whole = parameter.name == "concurrency"
    try:
        found = tuple(int(part) if whole else float(part) for part in value.split(","))
    except ValueError:
        found = (0,)
    if not all(0 < level <= _MAX_LEVEL for level in found):
        what = "a whole number of requests in flight" if whole else "a number of requests a second"
        example = "1,8,32" if whole else "100,200"
        raise click.BadParameter(
            f"{value!r} must be {what}, above 0 and at most {_MAX_LEVEL}, or several with commas, such as {example}",
            context,
            parameter,
        )
    return tuple(dict.fromkeys(found))


def _pairs(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    found = [value.partition("=") for value in values]
    if bad := [key for key, equals, _ in found if not (key and equals)]:
        raise click.BadParameter(f"{bad[0]!r} is no KEY=VALUE", context, parameter)
    return tuple((key.lower(), value) for key, _, value in found)


@main.command(
    epilog=_examples(
        "mpspool bench --model half_plus_two",
        "mpspool bench --model ranker --concurrency 1,8,32 --rows 64 --plot ranker.png",
        "mpspool bench --model ranker --rate 200,400,800 --request /recorded --deadline 0.1",
        "mpspool bench --model ranker --rate 500 --address 10.0.0.7:8500 --metrics http://10.0.0.7:8501/metrics",
    ),
)
@run_dir_option
@click.option("--model", required=True, metavar="NAME", help="Whom to ask.")
@click.option(
    "--concurrency",
    callback=_levels,
    metavar="1,8,32",
    help="Closed loop: so many requests in flight, one level after another.  [default: 1,8,32]",
)
@click.option(
    "--rate",
    "rates",
    callback=_levels,
    metavar="100,200",
    help="Open loop: so many requests a second, whether or not earlier ones have been answered.",
)
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "uniform"]),
    help="With --rate: at random, or at even times.  [default: poisson]",
)
@click.option(
    "--repeat", type=click.IntRange(1, 1000), default=5, show_default=True, metavar="N", help="Of each level."
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, 1e6, min_open=True),
    default=5.0,
    show_default=True,
    metavar="S",
    help="Of each repeat.",
)
@click.option(
    "--warmup",
    "warmup_s",
    type=click.FloatRange(0, 1e6),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Load before each level that is not counted.",
)
@click.option(
    "--rows",
    type=click.IntRange(1, 2**31 - 1),
    metavar="N",
    help="Of a request that is made up from the signature.  [default: 1]",
)
@click.option("--inputs", "document", metavar="JSON", help="The request, as predict takes it; - for stdin.")
@click.option(
    "--request",
    "request_files",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="A serialised PredictRequest, a file of warm-up requests, or a folder of such; repeat for more. Sent in turn.",
)
@click.option("--signature", metavar="S", help="Default: serving_default, or what a file says.")
@click.option("--version", type=int, metavar="V", help="Default: the latest, or what a file says.")
@click.option(
    "--deadline",
    "deadline_s",
    type=click.FloatRange(0, 1e6, min_open=True),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Of each request.",
)
@click.option(
    "--metadata",
    multiple=True,
    callback=_pairs,
    metavar="KEY=VALUE",
    help="Sent with each request, as x-mpspool-priority=1; repeat for more.",
)
@click.option(
    "--streams-per-connection",
    "streams",
    type=click.IntRange(1, 2**31 - 1),
    metavar="N",
    help="Closed loop: requests in flight on one connection.  [default: 1]",
)
@click.option(
    "--connections",
    type=click.IntRange(1, 10000),
    metavar="N",
    help="Open loop: what requests are spread over.  [default: 16]",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    metavar="N",
    help="That send; it says where more are needed.",
)
@click.option(
    "--address", metavar="HOST[:PORT]", help="Another server's. Default: the pool's, else 127.0.0.1:8500."
)
@click.option(
    "--metrics",
    metavar="URL",
    help="Of that server, for its own times. Default: the pool's, where it is asked.",
)
@tls_options
@click.option("--any-answer", is_flag=True, help="Answers to one request may differ in their length.")
@click.option("--allow-failures", is_flag=True, help="Exit with 0 although requests have failed.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="All figures.",
)
@click.option(
    "--plot",
    "plot_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Latency and throughput over the levels: .png, .svg, .pdf or what else matplotlib writes, which it needs.",
)
def bench(
    *,
    run: RunDir,
    document: str | None,
    address: str | None,
    metrics: str | None,
    arrivals: str | None,
    rows: int | None,
    streams: int | None,
    connections: int | None,
    concurrency: tuple[int, ...],
    rates: tuple[float, ...],
    tls: bool,
    ca: str,
    cert: str,
    key: str,
    server_name: str,
    **values: Any,
) -> None:
    """Load a model and say how fast it is, and where the time goes.

    Level after level, each some times over: a table of right answers, failures, requests a second and percentiles of
    latency, and below it what the server says of its own time. It says so where the generator itself was the limit.
    Works with any TensorFlow Serving; docs/load-testing.md has what the figures mean.

    Ctrl-C ends with what there is. Exit status 1 when a request failed, 2 for options that do not go, 130 after Ctrl-C.
    """
    if concurrency and rates:
        raise click.UsageError("give either --concurrency or --rate")
    if values["request_files"] and document is not None:
        raise click.UsageError("give either --inputs or --request")
    if rows and (values["request_files"] or document is not None):
        raise click.UsageError("--rows goes with requests that are made up, without --inputs and --request")
    for option, given, is_open in (
        ("--arrivals", arrivals, True),
        ("--connections", connections, True),
        ("--streams-per-connection", streams, False),
    ):
        if given is not None and bool(rates) != is_open:
            raise click.UsageError(f"{option} goes with {'--rate' if is_open else '--concurrency'}")

    from mpspool.loadtest import command
    from mpspool.loadtest.options import Options
    from mpspool.supervisor.ports import with_port

    asked = with_port(address) if address else _address(run)
    host, _, port = asked.rpartition(":")
    if not port.isdecimal():
        raise click.UsageError(f"--address {address}: the port is no number")
    options = Options(
        host=host.strip("[]"),
        port=int(port),
        concurrency=concurrency or (() if rates else (1, 8, 32)),
        rates=rates,
        poisson=arrivals != "uniform",
        rows=rows or 1,
        streams=streams or 1,
        connections=connections or 16,
        document=None if document is None else _parsed("--inputs", document),
        metrics_url=metrics or ("" if address else _metrics_url(run)),
        metrics_asked=metrics is not None,
        tls=_client_tls(run, asked, tls=tls, ca=ca, cert=cert, key=key, server_name=server_name),
        **values,
    )
    try:
        sys.exit(command.run(options))
    except command.UsageError as error:
        raise click.UsageError(str(error)) from error
    except command.BenchError as error:
        fail(f"{error}{_hint(run, asked, options.model, str(error))}")


def _client_tls(
    run: RunDir, address: str, *, tls: bool, ca: str, cert: str, key: str, server_name: str
) -> ClientTls | None:
    """As the options say; the pool in that folder, where it is asked, is known by its certificate."""
    from mpspool.core import client_tls
    from mpspool.core.tls import TlsError
    from mpspool.supervisor import ask

    try:
        given = client_tls.read(ca, cert, key, server_name)
        if not ca and not server_name:
            with contextlib.suppress(ask.NoPoolError):
                if address == ask.grpc_address(run):
                    own = ask.grpc_tls(run)
                    return client_tls.pinned(own, cert, key) if own else (given if tls or cert else None)
    except TlsError as error:
        fail(f"--{error.key}: {error}", _NOTHING_STARTED)
    return given if tls or ca or cert or server_name else None


def _metrics_url(run: RunDir) -> str:
    """Of the pool that is asked; "" where it has no HTTP front."""
    from mpspool.supervisor import ask

    with contextlib.suppress(ask.NoPoolError):
        if found := ask.rest_address(run):
            return f"http://{found}/metrics"
    return ""


def _grpc_beside(run: RunDir, address: str) -> str:
    """Where the gRPC front is of the pool whose HTTP front that is."""
    from mpspool.supervisor import ask

    with contextlib.suppress(ask.NoPoolError):
        if address == ask.rest_address(run):
            return f"; the pool's gRPC port is {ask.grpc_address(run).rpartition(':')[2]}"
    return ""


def _hint(run: RunDir, address: str, name: str, error: str) -> str:
    """What the pool at that address knows of a model that its router does not find."""
    from mpspool.supervisor import ask
    from mpspool.supervisor.config.explain import nearest

    if not error.startswith("NOT_FOUND"):
        return ""
    with contextlib.suppress(ask.NoPoolError):
        if address != ask.grpc_address(run):
            return ""
        models = {model["name"]: model["versions"] for model in ask.status(run)["models"]}
        if name not in models:
            near = nearest(name, models)
            return f"; did you mean {near}?" if near else f"; the pool has: {', '.join(models)}"
        return "".join(
            f"; version {one['version']} is {one['state']}{': ' * bool(one['error'])}{one['error']}"
            for one in models[name]
        )
    return ""


def _address(run: RunDir) -> str:
    """Of the pool in that folder; in the default one, of whoever has the default port, where there is no pool."""
    from mpspool.supervisor import ask, report
    from mpspool.supervisor.ports import with_port

    try:
        return ask.grpc_address(run)
    except ask.NoPoolError as error:
        if report.elsewhere(str(run.root)):
            fail(str(error))
        return with_port("127.0.0.1")


@main.group(
    epilog=_examples(
        "mpspool mps show",
        "mpspool mps set --active-thread-percentage 50 --restart",
    ),
)
def mps() -> None:
    """Show and change what each worker gets of its GPU under NVIDIA MPS."""


@mps.command(
    "show",
    epilog=_examples(
        "mpspool mps show",
        "mpspool mps show --json | jq '.workers[] | select(.running != .next)'",
    ),
)
@run_dir_option
@click.option("--json", "as_json", is_flag=True, help="For scripts: names and values stay as they are.")
def mps_show(run: RunDir, *, as_json: bool) -> None:
    """Show what each worker runs with, and what its next generation gets."""
    import json

    from mpspool.supervisor import ask, mps_command

    try:
        found = mps_command.show(run)
    except ask.NoPoolError as error:
        fail(str(error))
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        mps_command.print_shares(found)


@mps.command(
    "set",
    epilog=_examples(
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
    from mpspool.supervisor import ask, mps_command

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
    except (ask.NoPoolError, mps_command.MpsError) as error:
        fail(str(error))


@main.group(
    epilog=_examples(
        "mpspool simulate fault gpu0",
    ),
)
def simulate() -> None:
    """Have stand-ins fail, to see what the pool makes of it."""


@simulate.command(
    "fault",
    epilog=_examples(
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
    type=click.FloatRange(0, 1e9, min_open=True),
    help="How long it hangs.",
)
def simulate_fault(run: RunDir, device: str, kind: str, worker: str | None, seconds: float | None) -> None:
    """Have the stand-in of a GPU fail.

    DEVICE is one of a pool that was started with --simulate-gpus, as `mpspool status` shows it. A real GPU cannot
    be told to fail.
    """
    from mpspool.supervisor import simulate as simulation

    for option, given, word in (("--worker", worker, "PID"), ("--for", seconds, "SECONDS")):
        if given is not None and FAULTS[kind] != word:
            kinds = ", ".join(name for name, takes in FAULTS.items() if takes == word)
            raise click.UsageError(f"{option} goes with --kind {kinds}")
    try:
        click.echo(simulation.fault(run, device, kind, worker=worker, seconds=seconds))
    except simulation.SimulateError as error:
        fail(str(error))


if __name__ == "__main__":
    main()
