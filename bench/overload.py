"""What is answered in time where more comes than can be answered. `python -m bench.overload`

The pool is asked by `mpspool bench`: first one request after the other on each connection, which says what it can; then in open loop at
parts and multiples of that, each request with a deadline from when it is sent. Round after round; the generator has the same CPUs, so that
the pool has the less the more is sent, and where it sends late, latencies, which count from when a request was due, may exceed the deadline.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import environments, measure, report, tables
from bench.environments import BenchError
from bench.guard import Run, running
from bench.models import MODELS
from bench.peers import OURS
from bench.server import Server

_RESULTS = Path(__file__).resolve().parent / "results"
_CONNECTIONS = 32
# Of a request that is to be answered however long it takes.
_PATIENCE_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """One load.

    Attributes:
        sent: requests a second.
        in_time: answers a second, right and before their deadlines.
        p50_ms, p99_ms: of these, from when each was due; None where there are too few.
        late_ms: how late the generator sent, p99.
    """

    sent: float
    in_time: float
    p50_ms: float | None
    p99_ms: float | None
    late_ms: float | None


def _ask(server: Server, folder: Path, options: argparse.Namespace, deadline_s: float, *load: str) -> Turn:
    """Raises BenchError: nothing could be asked."""
    told = folder / "told.json"
    told.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "mpspool",
        "bench",
        "--address",
        server.address,
        "--model",
        options.model,
    ]
    command += ["--repeat", "1", "--seconds", f"{options.seconds:g}", "--deadline", f"{deadline_s:g}"]
    command += ["--allow-failures", "--json", str(told), *load]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not told.exists():
        raise BenchError(f"mpspool bench ended with status {done.returncode}: {done.stderr or done.stdout}")
    (level,) = json.loads(told.read_text())["levels"]
    figures: Mapping[str, Any] = level["median"]
    late_ms = level["runs"][0]["late_ms"]
    return Turn(level["sent"] / options.seconds, figures["rate"], figures["p50"], figures["p99"], late_ms)


def _measure(options: argparse.Namespace, run: Run) -> tuple[list[float], list[list[Turn]]]:
    """What it can, by round, and turns by round, in the order of options.times."""
    with Server(OURS, options.model, run) as server:
        able, rounds = [], []
        for _ in range(options.repeat):
            measure.wait_until_quiet()
            can = _ask(server, run.folder, options, _PATIENCE_S, "--concurrency", str(_CONNECTIONS)).in_time
            if not can:
                raise BenchError(f"nothing was answered within {options.seconds:g} s")
            turns = [
                _ask(
                    server,
                    run.folder,
                    options,
                    options.deadline_ms / 1000,
                    *("--rate", f"{times * can:.0f}", "--connections", str(_CONNECTIONS)),
                )
                for times in options.times
            ]
            print(f"bench: {can:.0f}: " + ", ".join(f"{turn.in_time:.0f}" for turn in turns), flush=True)
            able.append(can)
            rounds.append(turns)
        return able, rounds


def _lines(
    able: Sequence[float], rounds: Sequence[Sequence[Turn]], options: argparse.Namespace
) -> Iterator[str]:
    facts = report.machine()
    yield f"# {options.model}: what is answered in time where more comes than can be answered"
    yield ""
    yield f"{facts['cpus']} CPUs ({facts['cpu']}), {facts['system']}, Python {facts['python']}, mpspool {facts['commit']},"
    yield f"{facts['time']}. {len(rounds)} rounds of {options.seconds:g} s a load; medians. Deadlines of {options.deadline_ms:g} ms, {_CONNECTIONS} connections; the"
    yield f"generator has the same CPUs. With one request after the other on each connection {statistics.median(able):.0f} a second are answered."
    yield ""
    rows = []
    for times, turns in zip(options.times, zip(*rounds, strict=True), strict=True):
        parts = [turn.in_time / can for turn, can in zip(turns, able, strict=True)]
        rows.append(
            [
                f"{times:g}",
                f"{statistics.median(turn.sent for turn in turns):.0f}",
                f"{statistics.median(turn.in_time for turn in turns):.0f}",
                f"{statistics.median(parts):.2f} ({min(parts):.2f})",
                f"{_median(turn.p50_ms for turn in turns)} / {_median(turn.p99_ms for turn in turns)}",
                _median(turn.late_ms for turn in turns),
            ]
        )
    yield from tables.table(
        [
            "sent, of what it can",
            "sent/s",
            "answered in time/s",
            "of what it can (least)",
            "p50 / p99 ms",
            "sent late, p99 ms",
        ],
        rows,
    )


def _median(values: Iterator[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.1f}" if known else "-"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.overload", description=__doc__)
    add = parser.add_argument
    add("--model", choices=list(MODELS), default="half_plus_two", help="default: half_plus_two")
    times = "0.5,1,1.5,2,3"
    add("--times", type=_numbers, default=_numbers(times), help=f"of what it can; default: {times}")
    add("--deadline-ms", type=float, default=100.0, help="of each request; default: 100")
    add("--seconds", type=float, default=4.0, help="of each load; default: 4")
    add("--repeat", type=int, default=3, help="rounds; default: 3")
    add("--name", default=time.strftime("%Y%m%d-%H%M%S-overload"), help="of the files; default: the time")
    add("--results", type=Path, default=_RESULTS, help="where they go; default: bench/results")
    add("--cache", type=Path, default=environments.DEFAULT_CACHE, help="for the models")
    return parser.parse_args(argv)


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    try:
        with running(options.cache.resolve()) as run:
            able, rounds = _measure(options, run)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    text = "\n".join([*_lines(able, rounds, options), ""])
    turns = [[dataclasses.asdict(turn) for turn in turns] for turns in rounds]
    figures = {"machine": report.machine(), "model": options.model, "times": options.times}
    report.write(options.results, options.name, text, {**figures, "able": able, "rounds": turns})
    return 0


if __name__ == "__main__":
    sys.exit(main())
