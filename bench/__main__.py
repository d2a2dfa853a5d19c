"""The whole benchmark: `python -m bench --help`."""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench import environments, processors, report, sharing, sharing_report, swap, swap_report
from bench.environments import BenchError
from bench.front import LAYERS
from bench.guard import running
from bench.models import MODELS
from bench.peers import GROUPS, OURS, OURS_BATCHING
from bench.suite import Plan, Results, run_part

_RESULTS = Path(__file__).resolve().parent / "results"


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def _choice(known: Sequence[str], text: str) -> list[str]:
    words = [word for word in text.split(",") if word]
    if unknown := sorted(set(words) - set(known)):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(known)}")
    return words


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    batches = sorted({batch for model in MODELS.values() for batch in model.batches})
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure mpspool beside its peers on this machine. The first run makes the peers' "
        "environments (several GB, several minutes).",
        epilog="Exit status: 1 when something did not run; how fast it was does not matter.",
    )
    add = parser.add_argument
    add(
        "--peers",
        type=lambda text: _choice(list(GROUPS), text),
        default=["triton", "mlserver", "litserve"],
        help=f"of {', '.join(GROUPS)}; default: all but ray; '' for none: no environment is made",
    )
    add("--models", type=lambda text: _choice(list(MODELS), text), default=list(MODELS))
    add("--batches", type=_numbers, default=batches, help=f"default: {','.join(map(str, batches))}")
    add("--concurrency", type=_numbers, help="connections, one request at a time on each; default: 1,8,32")
    add("--seconds", type=float, help="of load in each cell and round; default: 3")
    add("--repeat", type=int, help="rounds; default: 3")
    add("--only", choices=("front", "pool", "inprocess", "sharing", "swap"), help="one part of it")
    processors.add_option(parser)
    add("--quick", action="store_true", help="concurrency 32, one round of 1 s: does everything run?")
    add("--name", help="of the files; default: the time, or quick")
    add("--results", type=Path, default=_RESULTS, help="where they go; default: bench/results")
    add("--cache", type=Path, default=environments.DEFAULT_CACHE, help="for environments and models")
    options = parser.parse_args(argv)
    options.concurrency = options.concurrency or ([32] if options.quick else [1, 8, 32])
    options.seconds = options.seconds or (1.0 if options.quick else 3.0)
    options.repeat = options.repeat or (1 if options.quick else 3)
    options.name = options.name or ("quick" if options.quick else time.strftime("%Y%m%d-%H%M%S"))
    return options


def _run(options: argparse.Namespace) -> int:
    environments.ensure_h2load()
    plan = Plan(
        models=options.models,
        batches=options.batches,
        concurrency=sorted(options.concurrency),
        seconds=options.seconds,
        repeat=options.repeat,
        load_cpus=options.load_cpus,
    )
    results = Results()
    try:
        _run_parts(options, plan, results)
    finally:
        if results.samples or results.sharing or results.swaps:
            _write(results, plan, options.results, options.name)
    return 1 if results.failures else 0


def _run_parts(options: argparse.Namespace, plan: Plan, results: Results) -> None:
    highest = dataclasses.replace(plan, concurrency=plan.concurrency[-1:])
    peers = [OURS, OURS_BATCHING, *(peer for group in options.peers for peer in GROUPS[group])]
    with running(options.cache.resolve(), options.load_cpus) as run:
        if options.only in (None, "front"):
            run_part("front", LAYERS, highest, results, run, limit=False)
        if options.only in (None, "pool"):
            run_part("pool", peers, plan, results, run, limit=True)
        if options.only in (None, "sharing"):
            results.sharing = sharing.measure_sharing(run, quick=options.quick)
        if options.only == "inprocess":
            run_part("pool", [], highest, results, run, limit=True)
        if options.only in (None, "swap"):
            results.swaps = swap.measure_swaps(run, swap.QUICK if options.quick else swap.Plan())


def _write(results: Results, plan: Plan, folder: Path, name: str) -> None:
    # Both first: a file that is written anew makes the clone differ from its commit.
    samples, table = report.as_json(results, plan), report.markdown(results, plan)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(samples)
    (folder / f"{name}.md").write_text(table)
    report.plot(results, folder / f"{name}.png")
    if results.sharing is not None:
        sharing_report.plot(results.sharing, folder / f"{name}.sharing.png")
    if results.swaps:
        swap_report.plot(results.swaps, folder / f"{name}.swap.png")
    print(f"\n{table}\nbench: written to {folder / name}.md, .json, .png", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.load_cpus = processors.divide(options.server_cpus)
    try:
        return _run(options)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
