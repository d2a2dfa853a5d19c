"""Three services on one GPU, policy by policy: how late each is, and up to which rate all of them are in time.

    python -m bench.gpu.services [--simulate] [--contexts 4] [--seconds 5] [--results bench/results --name NAME]

As in the simulation's `ocr` (bench/sim): short and frequent, medium, long and rare. One pool under MPS; the policy is
changed by `mpspool reload`, and each rate is a run of `mpspool bench` for each service, all three at once.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from bench import environments
from bench.environments import REPOSITORY, BenchError
from bench.gpu import device
from bench.gpu.device import Gpu, NoGpuError
from bench.guard import Run, running
from bench.peers import OURS, Peer, Place, mpspool
from bench.protocols import Tfs
from bench.report import machine
from bench.server import Server
from bench.tables import table

# In time: a service's p95 is within so many times its median alone.
PATIENCE = 8
LEVELS = (0.5, 0.65, 0.8, 0.9, 1.0)
_WAIT_S, _DEADLINE_S, _WARM_S = 110, 2.0, 1.0
# In flight for each worker where a service is to have all that it can do.
_PER_CONTEXT = 4


@dataclass(frozen=True, slots=True)
class Service:
    """One of the three.

    Attributes:
        model: of bench.models.
        rows, simulated_rows: of each request; on a stand-in the CPU computes.
        share: of all that is to be done.
    """

    name: str
    model: str
    rows: int
    simulated_rows: int
    share: float


SERVICES = (
    Service("widedeep", "widedeep", 200, 20, 0.5),
    Service("medium", "tower", 4096, 1, 0.2),
    Service("long", "tower", 16384, 8, 0.3),
)
SETUPS: Mapping[str, Mapping[str, Any]] = {
    "fifo": {},
    "fifo, at most 2": {"scheduling": {"running_per_device": 2}},
    "fifo, at most 1": {"scheduling": {"running_per_device": 1}},
    "sjf": {"scheduling": {"policy": "sjf"}},
    "sjf, slow lane 2": {"scheduling": {"policy": "sjf", "slow_lane": 2}},
    "sjf, slow lane 1": {"scheduling": {"policy": "sjf", "slow_lane": 1}},
}


@dataclass(frozen=True, slots=True)
class Alone:
    """A service that has the pool to itself: its median, and how many a second there can be."""

    p50_ms: float
    rate: float


@dataclass(frozen=True, slots=True)
class Late:
    """One service at one level.

    Attributes:
        p95_ms: infinite where a request was not answered, or not within the deadline.
    """

    rate: float
    p50_ms: float
    p95_ms: float
    failed: int


@dataclass(frozen=True, slots=True)
class Level:
    """All three at once, at so much of what the pool could do if no service cost another anything."""

    load: float
    services: Mapping[str, Late]

    def lateness(self, alone: Mapping[str, Alone]) -> float:
        """The worst service's p95 by what is in time; 1 is just in time."""
        return max(late.p95_ms / (PATIENCE * alone[name].p50_ms) for name, late in self.services.items())


def capacity(levels: Sequence[Level], alone: Mapping[str, Alone]) -> float:
    """The load up to which all are in time, between two levels by the logarithm of the lateness; 0 for none. Pure."""
    before: tuple[float, float] | None = None
    for level in sorted(levels, key=lambda level: level.load):
        lateness = level.lateness(alone)
        if lateness > 1:
            if before is None or math.isinf(lateness):
                return before[0] if before else 0.0
            rise = math.log(lateness / before[1])
            return before[0] + (level.load - before[0]) * -math.log(before[1]) / rise
        before = (level.load, lateness)
    return before[0] if before else 0.0


class _Services(Server):
    """`mpspool start` with the three. A context manager, as every Server."""

    def __init__(self, gpu: Gpu, contexts: int, run: Run) -> None:
        super().__init__(
            Peer("services", "three services", Tfs(), self._start, gpu.environment(), _wait, OURS.stop),
            "widedeep",
            run,
        )
        self._gpu, self._contexts = gpu, contexts
        self._file = run.folder / "pool.yaml"
        self._write({})

    def _write(self, setup: Mapping[str, Any]) -> None:
        models = [
            {
                "name": one.name,
                "base_path": str(self._place.models / one.model),
                "contexts_per_gpu": self._contexts,
            }
            for one in SERVICES
        ]
        self._file.write_text(yaml.safe_dump({"models": models, **setup}))

    def _start(self, place: Place) -> list[str]:
        return mpspool(
            *("start", str(self._file), *self._gpu.flags(), "--mps", "on", "--grpc-port", str(place.port)),
            *("--rest-port", str(place.port + 1), "--run-dir", str(place.folder / "run")),
        )

    def set_up(self, setup: Mapping[str, Any]) -> None:
        """From now on scheduled so. Raises BenchError."""
        self._write(setup)
        done = self._command(mpspool("reload", "--run-dir", str(self._place.folder / "run")), _WAIT_S)
        if done.returncode:
            raise BenchError(f"reload: {done.stdout}{done.stderr}")

    def bench(self, loads: Mapping[Service, Sequence[str]], seconds: float) -> dict[str, dict[str, Any]]:
        """`mpspool bench` of each at once; the first figures of each, by the service's name. Raises BenchError."""
        jobs: dict[str, subprocess.Popen[str]] = {}
        files = {one.name: self._place.folder / f"{one.name}.json" for one in loads}
        for one, load in loads.items():
            rows = one.simulated_rows if self._gpu.simulated else one.rows
            command = mpspool(
                *(
                    "bench",
                    "--run-dir",
                    str(self._place.folder / "run"),
                    "--model",
                    one.name,
                    "--rows",
                    str(rows),
                    *load,
                ),
                *(
                    "--seconds",
                    str(seconds),
                    "--warmup",
                    str(_WARM_S),
                    "--repeat",
                    "1",
                    "--deadline",
                    str(_DEADLINE_S),
                ),
                *("--allow-failures", "--json", str(files[one.name])),
            )
            jobs[one.name] = subprocess.Popen(
                command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        said = {name: job.communicate()[0] for name, job in jobs.items()}
        for name, job in jobs.items():
            if job.returncode:
                raise BenchError(f"mpspool bench of {name}: {said[name]}")
        return {name: json.loads(file.read_text())["levels"][0] for name, file in files.items()}


def _wait(place: Place) -> list[str]:
    return mpspool("wait", "--run-dir", str(place.folder / "run"), "--timeout", str(_WAIT_S))


def _late(level: Mapping[str, Any]) -> Late:
    median, failed = level["median"], sum(level["failed"].values())
    # So few have no percentiles: the mean and the slowest stand for them.
    p95_ms = median["p95"] or median["max_ms"] or math.inf
    return Late(
        median["rate"] or 0.0,
        median["p50"] or median["mean_ms"] or math.inf,
        math.inf if failed else p95_ms,
        failed,
    )


@dataclass(frozen=True, slots=True)
class Results:
    """What one run has found.

    Attributes:
        alone: by service.
        levels: by setup, as far as they were measured.
    """

    gpu: Gpu
    contexts: int
    seconds: float
    alone: dict[str, Alone]
    levels: dict[str, list[Level]]

    def rates(self, load: float) -> dict[str, float]:
        """Requests a second of each service at that load."""
        return {one.name: load * one.share * self.alone[one.name].rate for one in SERVICES}


def measure(gpu: Gpu, contexts: int, seconds: float, loads: Sequence[float], run: Run, done: Results) -> None:
    """Fills `done` as it goes. Raises BenchError."""
    with _Services(gpu, contexts, run) as pool:
        for one in SERVICES:
            alone_s = max(1.0, seconds / 2)
            quiet = pool.bench({one: ["--concurrency", "1"]}, alone_s)[one.name]
            full = pool.bench({one: ["--concurrency", str(_PER_CONTEXT * contexts)]}, alone_s)[one.name]
            done.alone[one.name] = Alone(_late(quiet).p50_ms, _late(full).rate)
            print(f"bench.gpu: {one.name} alone {done.alone[one.name]}", flush=True)
        for title, setup in SETUPS.items():
            pool.set_up(setup)
            for load in loads:
                rates = done.rates(load)
                found = pool.bench({one: ["--rate", f"{rates[one.name]:.3g}"] for one in SERVICES}, seconds)
                levels = done.levels.setdefault(title, [])
                levels.append(Level(load, {name: _late(level) for name, level in found.items()}))
                print(f"bench.gpu: {title}, {load:.0%}: {levels[-1].lateness(done.alone):.2f}", flush=True)


def lines(done: Results) -> Iterator[str]:
    """The report."""
    facts = machine()
    yield f"# Three services on one GPU{': SIMULATED' if done.gpu.simulated else ''}"
    yield ""
    yield f"mpspool {facts['commit']} with TensorFlow {facts['tensorflow']} on {done.gpu.label}, {facts['time']}. Host: {facts['cpus']} CPUs"
    yield f"({facts['cpu']}), Python {facts['python']}. {done.contexts} workers of each service under MPS; {done.seconds:g} s a level, one after"
    yield "the other; Poisson arrivals. 100 % is what there would be if no service cost another anything."
    yield ""
    yield from table(
        ("", "rows", "alone, p50 ms", "alone, at most", "of the load", "at 100 %"),
        [tuple(_service(one, done)) for one in SERVICES],
    )
    base = capacity(done.levels["fifo"], done.alone)
    yield from ("", f"## Up to which load p95 of each is within {PATIENCE} x its median alone", "")
    most = {title: capacity(levels, done.alone) for title, levels in done.levels.items()}
    yield from table(
        ("", "load", "against fifo"),
        [(title, f"{load:.0%}", f"{load / base - 1:+.0%}" if base else "-") for title, load in most.items()],
    )
    loads = [f"{level.load:.0%}" for level in done.levels["fifo"]]
    for one in SERVICES:
        yield from (
            "",
            f"## {one.name}: p50 / p95 ms, and what was not answered within {_DEADLINE_S:g} s",
            "",
        )
        yield from table(
            ("", *loads),
            [
                (title, *(_told(level.services[one.name]) for level in levels))
                for title, levels in done.levels.items()
            ],
        )


def _service(one: Service, done: Results) -> Iterator[str]:
    alone = done.alone[one.name]
    yield f"{one.name} ({one.model})" if one.name != one.model else one.name
    yield str(one.simulated_rows if done.gpu.simulated else one.rows)
    yield f"{alone.p50_ms:.2f}"
    yield f"{alone.rate:.0f}/s"
    yield f"{one.share:.0%}"
    yield f"{done.rates(1.0)[one.name]:.0f}/s"


def _told(late: Late) -> str:
    return (
        f"{late.p50_ms:.1f} / {late.p95_ms:.1f}"
        if not late.failed
        else f"{late.p50_ms:.1f}, {late.failed} not"
    )


def _write(done: Results, folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    report = "\n".join(lines(done)) + "\n"
    (folder / f"{name}.md").write_text(report)
    (folder / f"{name}.json").write_text(json.dumps({"machine": machine(), **asdict(done)}, indent=1) + "\n")
    print(f"\n{report}\nbench.gpu: written to {folder / name}.md, .json", flush=True)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu.services", description=(__doc__ or "").split("\n")[0]
    )
    add = parser.add_argument
    add("--gpu", type=int, default=0, help="its number, as CUDA_VISIBLE_DEVICES leaves them; default: 0")
    add("--contexts", type=int, default=4, help="workers of each service; default: 4")
    add("--seconds", type=float, default=5.0, help="of each level; default: 5")
    add("--levels", default=",".join(map(str, LEVELS)), help="of load; default: %(default)s")
    add(
        "--simulate",
        action="store_true",
        help="on a stand-in, with the models on the CPU: no figure of a GPU",
    )
    add("--name", default="gpu-services", help="of the files; default: gpu-services")
    add(
        "--results",
        type=Path,
        default=REPOSITORY / "bench" / "results",
        help="where they go; default: bench/results",
    )
    add("--cache", type=Path, default=environments.DEFAULT_CACHE, help="for the models")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    try:
        gpu = device.find(options.gpu, simulate=options.simulate)
        done = Results(gpu, options.contexts, options.seconds, {}, {})
        loads = [float(word) for word in options.levels.split(",")]
        with running(options.cache.resolve()) as run:
            try:
                measure(gpu, options.contexts, options.seconds, loads, run, done)
            finally:
                if done.levels:
                    _write(done, options.results, options.name)
    except NoGpuError as error:
        print(f"bench.gpu: {error}", file=sys.stderr)
        return 2
    except BenchError as error:
        print(f"bench.gpu: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
