"""`mpspool predict` and `bench`: requests to a pool."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mpspool.cli.common import (
    NOTHING_STARTED,
    SECONDS,
    Seconds,
    examples,
    fail,
    main,
    run_dir_option,
    tls_options,
)
from mpspool.core.rundir import RunDir
from mpspool.loadtest import MOST_S
from mpspool.supervisor.commands.errors import NoPoolError

if TYPE_CHECKING:
    from mpspool.core.client_tls import ClientTls

# What --concurrency and --rate may ask for.
_MAX_LEVEL = 10_000_000
# As ModelSpec has it.
_VERSION = click.IntRange(0, 2**63 - 1)
_PORT = re.compile(r"[0-9]{1,5}")
_INTERRUPTED = 130


def _text(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """What a request can say: the command line may have bytes that are none."""
    try:
        (value or "").encode()
    except UnicodeEncodeError as error:
        raise click.BadParameter(f"{value!r} has bytes that are no UTF-8", context, parameter) from error
    return value


def _pairs(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    found = [value.partition("=") for value in values]
    if bad := [key for key, equals, _ in found if not (key and equals)]:
        raise click.BadParameter(f"{bad[0]!r} is no KEY=VALUE", context, parameter)
    return tuple((key.lower(), value) for key, _, value in found)


_metadata_option = click.option(
    "--metadata",
    multiple=True,
    callback=_pairs,
    metavar="KEY=VALUE",
    help="Sent with each request, as x-mpspool-priority=1; repeat for more.",
)


@main.command(
    short_help="Ask a model once, and print its answer.",
    epilog=examples(
        "mpspool predict half_plus_two --input '{\"x\": [1, 2, 5]}'",
        "mpspool predict half_plus_two --input '[1, 2, 5]' --address 10.0.0.7:8500",
        "mpspool predict ranker --input - --metadata x-tenant=shop < request.json",
    ),
)
@run_dir_option
@click.argument("name", callback=_text)
@click.option(
    "--input", "document", required=True, metavar="JSON", help="{input: value, ...}; - reads it from stdin."
)
@click.option("--signature", callback=_text, default="", metavar="S", help="Default: serving_default.")
@click.option("--version", type=_VERSION, metavar="V", help="Default: the latest.")
@click.option(
    "--address", metavar="HOST[:PORT]", help="Another server's. Default: the pool's, else 127.0.0.1:8500."
)
@click.option(
    "--timeout", type=SECONDS, default=60.0, show_default=True, metavar="S", help="The request's deadline."
)
@_metadata_option
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
    metadata: tuple[tuple[str, str], ...],
    **tls: Any,
) -> None:
    """Ask a model once, over gRPC, and print its outputs as JSON.

    Works with any TensorFlow Serving. Bytes that are no text are written {"b64": "..."}; a model
    with one input takes its value alone.
    """
    import json

    from mpspool import client
    from mpspool.core.metadata import MetadataError, value
    from mpspool.supervisor.ports import with_port
    from mpspool.supervisor.report import elsewhere, program

    try:
        sent = [(key, value(key, text)) for key, text in metadata]
    except MetadataError as error:
        raise click.UsageError(f"--metadata: {error}") from error
    parsed = _parsed("--input", document)
    asked = with_port(address) if address else _address(run)
    port = asked.rpartition(":")[2]
    if not asked.startswith("unix") and (port.isdecimal() or not port):
        _check_port(port, asked)  # grpcio would take another instead
    try:
        outputs = client.predict(
            asked,
            name,
            parsed,
            signature=signature,
            version=version,
            timeout_s=timeout,
            metadata=sent,
            tls=_client_tls(run, asked, **tls),
        )
    except client.NotGrpcError as error:
        fail(f"{error}{_grpc_beside(run, asked)}")
    except client.UnreachableError as error:
        fail(str(error) if address else f"{error} ({program()} status{elsewhere(str(run.root))})")
    except client.CallError as error:
        fail(f"{error}{_hint(run, asked, name, str(error))}")
    click.echo(json.dumps(outputs))


def _check_port(port: str, address: str) -> None:
    if not _PORT.fullmatch(port) or not 1 <= int(port) <= 65535:
        raise click.UsageError(f"--address {address}: the port {port!r} is no number from 1 to 65535")


def _parsed(option: str, document: str) -> Any:
    import json

    text = sys.stdin.read() if document == "-" else document
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
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


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C has the exit status that a shell gives it, where nothing else is made of it."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


@main.command(
    short_help="Load a model and say how fast it is, and why.",
    epilog=examples(
        "mpspool bench --model half_plus_two",
        "mpspool bench --model ranker --concurrency 1,8,32 --rows 64 --plot ranker.png",
        "mpspool bench --model ranker --rate 200,400,800 --request /recorded --deadline 0.1",
        "mpspool bench --model ranker --rate 500 --address 10.0.0.7:8500 --metrics http://10.0.0.7:8501/metrics",
    ),
)
@run_dir_option
@click.option("--model", callback=_text, required=True, metavar="NAME", help="Whom to ask.")
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
    type=Seconds(0, MOST_S, min_open=True),
    default=5.0,
    show_default=True,
    metavar="S",
    help="Of each repeat.",
)
@click.option(
    "--warmup",
    "warmup_s",
    type=Seconds(0, MOST_S),
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
@click.option("--input", "document", metavar="JSON", help="The request, as predict takes it; - for stdin.")
@click.option(
    "--request",
    "request_files",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="A serialised PredictRequest, a file of warm-up requests, or a folder of such; repeat for more. Sent in turn.",
)
@click.option(
    "--signature", callback=_text, metavar="S", help="Default: serving_default, or what a file says."
)
@click.option("--version", type=_VERSION, metavar="V", help="Default: the latest, or what a file says.")
@click.option(
    "--deadline",
    "deadline_s",
    type=Seconds(0, MOST_S, min_open=True),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Of each request.",
)
@_metadata_option
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
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="All figures; - for standard output.",
)
@click.option(
    "--plot",
    "plot_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Latency and throughput over the levels: .png, .svg, .pdf or what else matplotlib writes, which it needs.",
)
@_interruptible()
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
        raise click.UsageError("give either --input or --request")
    if rows and (values["request_files"] or document is not None):
        raise click.UsageError("--rows goes with requests that are made up, without --input and --request")
    for option, given, is_open in (
        ("--arrivals", arrivals, True),
        ("--connections", connections, True),
        ("--streams-per-connection", streams, False),
    ):
        if given is not None and bool(rates) != is_open:
            raise click.UsageError(f"{option} goes with {'--rate' if is_open else '--concurrency'}")
    if metrics and not metrics.lower().startswith(("http://", "https://")):
        raise click.UsageError(f"--metrics {metrics}: give it as http://HOST:PORT/PATH")

    from mpspool.loadtest import command
    from mpspool.loadtest.options import Options
    from mpspool.supervisor.ports import with_port

    asked = with_port(address) if address else _address(run)
    host, _, port = asked.rpartition(":")
    _check_port(port, asked)
    try:
        host = host.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise click.UsageError(f"--address {address}: that is no host's name: {error}") from error
    options = Options(
        host=host.strip("[]"),
        port=int(port),
        concurrency=concurrency or (() if rates else (1, 8, 32)),
        rates=rates,
        poisson=arrivals != "uniform",
        rows=rows or 1,
        streams=streams or 1,
        connections=connections or 16,
        document=None if document is None else _parsed("--input", document),
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
    from mpspool.supervisor.commands import ask

    try:
        given = client_tls.read(ca, cert, key, server_name)
        if not ca and not server_name:
            with contextlib.suppress(NoPoolError):
                if address == ask.grpc_address(run):
                    own = ask.grpc_tls(run)
                    return client_tls.pinned(own, cert, key) if own else (given if tls or cert else None)
    except TlsError as error:
        fail(f"--{error.key}: {error}", NOTHING_STARTED)
    return given if tls or ca or cert or server_name else None


def _metrics_url(run: RunDir) -> str:
    """Of the pool that is asked; "" where it has no HTTP front."""
    from mpspool.supervisor.commands import ask

    with contextlib.suppress(NoPoolError):
        if found := ask.rest_address(run):
            return f"http://{found}/metrics"
    return ""


def _grpc_beside(run: RunDir, address: str) -> str:
    """Where the gRPC front is of the pool whose HTTP front that is."""
    from mpspool.supervisor.commands import ask

    with contextlib.suppress(NoPoolError):
        if address == ask.rest_address(run):
            return f"; the pool's gRPC port is {ask.grpc_address(run).rpartition(':')[2]}"
    return ""


def _hint(run: RunDir, address: str, name: str, error: str) -> str:
    """What the pool at that address knows of a model that its router does not find, or of its own certificate."""
    from mpspool.supervisor.commands import ask
    from mpspool.supervisor.config.explain import nearest

    if "CERTIFICATE_VERIFY_FAILED" in error:
        return _renewed(run, address)
    if not error.startswith("NOT_FOUND"):
        return ""
    with contextlib.suppress(NoPoolError):
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


def _renewed(run: RunDir, address: str) -> str:
    """That the files of the pool at that address have another certificate by now than it has taken up."""
    from mpspool.core import tls
    from mpspool.supervisor import report
    from mpspool.supervisor.commands import ask

    with contextlib.suppress(NoPoolError, tls.TlsError):
        own = ask.grpc_tls(run) if address == ask.grpc_address(run) else None
        if own and tls.read(own).digest != own.digest:
            command = f"{report.program()} reload{report.elsewhere(str(run.root))}"
            return f"; the pool's files have been renewed since it took them up: `{command}`"
    return ""


def _address(run: RunDir) -> str:
    """Of the pool in that folder; in the default one, of whoever has the default port, where there is no pool."""
    from mpspool.supervisor import report
    from mpspool.supervisor.commands import ask
    from mpspool.supervisor.ports import with_port

    try:
        return ask.grpc_address(run)
    except NoPoolError as error:
        if report.elsewhere(str(run.root)):
            fail(str(error))
        return with_port("127.0.0.1")
