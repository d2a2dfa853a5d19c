"""h2load, in C: a closed loop, one request at a time on each of so many connections, or a steady rate."""

from __future__ import annotations

import re
import resource
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.environments import BenchError
from bench.processors import Processors, on


@dataclass(frozen=True, slots=True)
class Driven:
    """What h2load counted.

    Attributes:
        done: responses that ended, of whatever HTTP status.
        ok: those with HTTP status 200; a gRPC error has it too.
        data_bytes: of the response bodies.
        latencies_ms: of the 200s.
        client_cpu_s: h2load's own CPU.
    """

    done: int
    ok: int
    data_bytes: int
    latencies_ms: np.ndarray[tuple[int], np.dtype[np.float64]]
    client_cpu_s: float


def drive(
    url: str,
    headers: Sequence[str],
    body: Path,
    concurrency: int,
    seconds: float,
    *,
    log: Path,
    http1: bool,
    rate: float = 0.0,
    cpus: Processors = (),
) -> Driven:
    """Drives the URL for some seconds, without a warm-up of its own: what it counts is all it sent.

    Args:
        url: what to POST to.
        headers: "name: value" each.
        body: a file with each request's body.
        concurrency: connections, one request at a time on each; with a rate, as many as it takes.
        seconds: for how long.
        log: where h2load may write its record of each request; removed afterwards.
        http1: speak HTTP/1.1, not HTTP/2.
        rate: requests a second over all connections, at even times; 0: the next one when one is answered.
        cpus: processors of its own; none: any.

    Raises:
        BenchError: h2load did not run, or its output was not understood.
    """
    pace = ["-m100", f"--rps={rate / concurrency:.3f}"] if rate else ["-m1"]
    command = ["h2load", "-t1", f"-c{concurrency}", *pace, f"--duration={round(seconds * 1000)}ms"]
    command += [f"--data={body}", f"--log-file={log}", *(["--h1"] if http1 else [])]
    for header in headers:
        command += ["-H", header]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        limit_s = seconds + 60
        done = subprocess.run(
            on(cpus, [*command, url]), capture_output=True, text=True, timeout=limit_s, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise BenchError(f"h2load ended with status {done.returncode}: {done.stderr or done.stdout}")
        latencies = _latencies_ms(log)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"h2load did not end within {limit_s:.0f} s against {url}") from error
    finally:
        log.unlink(missing_ok=True)
    return Driven(
        done=_number(r"(\d+) done", done.stdout),
        ok=_number(r"(\d+) succeeded", done.stdout),
        data_bytes=_number(r"\((\d+)\) data", done.stdout),
        latencies_ms=latencies,
        client_cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    )


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise BenchError(f"h2load's output was not understood:\n{text}")
    return int(found[1])


def _latencies_ms(log: Path) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Lines of start time, HTTP status and duration, the times in microseconds."""
    rows = (line.split("\t") for line in log.read_text().splitlines())
    return np.array([int(row[2]) for row in rows if row[1] == "200"], np.float64) / 1000
