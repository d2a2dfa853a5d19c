"""What TLS costs the gRPC front: requests a second and its CPU, with it and without. `python -m bench.tls`

The front over a data plane that answers with what it is asked, one request at a time on each connection; both servers are up
at the same time and take turns. The driver, which speaks TLS as well, has the same CPUs.

    python -m bench.tls --rsa            with an RSA certificate; how often clients connect anew is not measured
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import environments, measure
from bench.drive import drive
from bench.echo import EchoDataplane
from bench.environments import REPOSITORY, BenchError
from bench.server import free_ports, listens
from mpspool.core.settings import RouterSettings, TlsSettings
from mpspool.router.memory import Admission
from mpspool.router.pending import Head

_PATH = "/tensorflow.serving.PredictionService/Predict"
_HEADERS = ("content-type: application/grpc", "te: trailers")
_START_S = 20.0


class _Mirror(EchoDataplane):
    async def call(
        self,
        _asked: object,
        body: bytes,
        deadline_ns: int,  # noqa: ARG002
        admission: Admission,
        head: Head,  # noqa: ARG002
    ) -> bytes:
        admission.release()
        return body


@dataclass(frozen=True, slots=True)
class Cell:
    """What one load came to: medians of its rounds.

    Attributes:
        size, connections: bytes of a message, and how many ask at once.
        clear, secure: requests a second, and microseconds of the server's CPU for each.
    """

    size: int
    connections: int
    clear: tuple[float, float]
    secure: tuple[float, float]

    @property
    def line(self) -> str:
        rate, cost = (secure / clear for clear, secure in zip(self.clear, self.secure, strict=True))
        return (
            f"| {self.size} | {self.connections} | {self.clear[0]:.0f} | {self.secure[0]:.0f} | {rate:.2f} | "
            f"{self.clear[1]:.0f} | {self.secure[1]:.0f} | {cost:.2f} |"
        )


def _load(
    folder: Path, port: int, pid: int, size: int, connections: int, seconds: float, *, secure: bool
) -> tuple[float, float]:
    body = folder / f"{size}.body"
    body.write_bytes(b"\0" + size.to_bytes(4, "big") + bytes(size))
    url = f"http{'s' if secure else ''}://127.0.0.1:{port}{_PATH}"
    before = measure.cpu_by_pid([pid])[pid]
    found = drive(url, _HEADERS, body, connections, seconds, log=folder / "log", http1=False)
    used_s = measure.cpu_by_pid([pid])[pid] - before
    if found.ok < found.done or found.data_bytes < found.ok * size or not found.ok:
        raise BenchError(f"{found.done - found.ok} of {found.done} answers were wrong")
    return found.ok / seconds, used_s / found.ok * 1e6


@contextmanager
def _server(folder: Path, *files: Path) -> Iterator[tuple[int, int]]:
    """Port and pid."""
    port = free_ports(1)
    command = [sys.executable, "-P", "-m", "bench.tls", "--serve", str(port), *map(str, files)]
    with (folder / f"{port}.log").open("w") as log:
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log)
    try:
        end = time.monotonic() + _START_S
        while not listens(port):
            if process.poll() is not None or time.monotonic() > end:
                raise BenchError(f"the server did not start: {(folder / f'{port}.log').read_text()}")
            time.sleep(0.05)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


def _certificate(folder: Path, *, rsa: bool) -> tuple[Path, Path]:
    key, cert = folder / "key.pem", folder / "cert.pem"
    kind = ["rsa:2048"] if rsa else ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command = ["openssl", "req", "-x509", "-newkey", *kind, "-nodes", "-keyout", str(key), "-out", str(cert)]
    done = subprocess.run(
        [*command, "-subj", "/CN=localhost", "-days", "2"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BenchError(f"openssl ended with status {done.returncode}: {done.stderr}")
    return key, cert


def _measure(options: argparse.Namespace) -> Iterator[Cell]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mpb-")))
        files = _certificate(folder, rsa=options.rsa)
        clear = stack.enter_context(_server(folder))
        secure = stack.enter_context(_server(folder, *files))
        for size in options.sizes:
            for connections in options.connections:
                found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
                for turn in range(options.repeat):
                    measure.wait_until_quiet()
                    for is_secure in (False, True) if turn % 2 else (True, False):
                        port, pid = secure if is_secure else clear
                        load = _load(folder, port, pid, size, connections, options.seconds, secure=is_secure)
                        found[is_secure].append(load)
                yield Cell(size, connections, _median(found[False]), _median(found[True]))


def _median(found: Sequence[tuple[float, float]]) -> tuple[float, float]:
    rates, costs = zip(*found, strict=True)
    return statistics.median(rates), statistics.median(costs)


async def _serve(port: int, files: Sequence[str]) -> None:
    from mpspool.router.fronts.tfs_grpc import GrpcFront
    from mpspool.router.metrics.exposition import Metrics

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    tls = TlsSettings(key=files[0], cert=files[1]) if files else None
    config = RouterSettings(run_dir="", host="127.0.0.1", grpc_port=port, rest_port=0, tls=tls)
    front = GrpcFront(_Mirror({}), config, Metrics(config))
    await front.start()
    await stop.wait()
    await front.close()


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.tls", description=__doc__)
    add = parser.add_argument
    add(
        "--sizes",
        type=_numbers,
        default=[43, 133_000, 4_194_304],
        help="of a message; default: 43,133000,4194304",
    )
    add("--connections", type=_numbers, default=[1, 32], help="default: 1,32")
    add("--seconds", type=float, default=2.0, help="of load each; default: 2")
    add("--repeat", type=int, default=3, help="rounds; default: 3")
    add("--rsa", action="store_true", help="an RSA certificate; default: P-256")
    add("--serve", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.serve:
        import uvloop

        from mpspool.core.allocator import keep_bodies

        keep_bodies()
        uvloop.run(_serve(int(options.serve[0]), options.serve[1:]))
        return 0
    try:
        environments.ensure_h2load()
        print("| bytes | connections | req/s clear | TLS | ratio | us of CPU clear | TLS | ratio |")
        print("|---|---|---|---|---|---|---|---|", flush=True)
        for cell in _measure(options):
            print(cell.line, flush=True)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
