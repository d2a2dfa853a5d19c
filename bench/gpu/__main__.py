"""All of it by one command: `python -m bench.gpu --help`."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import environments
from bench.environments import BenchError
from bench.gpu import device, faults, rates, report
from bench.gpu.device import Gpu, NoGpuError
from bench.gpu.rates import Load, Plan, Results
from bench.guard import Run, running

_RESULTS = Path(__file__).resolve().parent.parent / "results"
_MODELS = ("widedeep", "tower", "half_plus_two")
_DEFAULT_MODELS = ("widedeep", "tower")
# Many small kernels, few that fill the GPU by themselves, and next to none: copies. A stand-in computes on the CPU: less of it.
_BATCHES: Mapping[str, Sequence[int]] = {"widedeep": (200, 2000), "tower": (4096,), "half_plus_two": (1,)}
_SIMULATED_BATCHES: Mapping[str, Sequence[int]] = {
    "widedeep": (20, 200),
    "tower": (4,),
    "half_plus_two": (1,),
}
_FAULT_BATCH, _SIMULATED_FAULT_BATCH = 1024, 4
_PER_CONTEXT, _FIXED = Load(0), Load(32)


def _numbers(text: str) -> list[int]:
    try:
        numbers = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers") from None
    if numbers[0] < 1:
        raise argparse.ArgumentTypeError("from 1 on")
    return numbers


def _models(text: str) -> list[str]:
    words = text.split(",")
    if unknown := set(words) - set(_MODELS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not one of {', '.join(_MODELS)}")
    return words


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu",
        description="Measure one process against several workers on one GPU, with MPS and without, and how long a "
        "fault takes. Writes a table, every sample and a plot.",
        epilog="Exit status: 1 when something did not run, however fast it was; 2 without a GPU.",
    )
    add = parser.add_argument
    add("--gpu", type=int, default=0, help="its number, as CUDA_VISIBLE_DEVICES leaves them; default: 0")
    add("--contexts", type=_numbers, help="workers on the GPU; default: 1,2,4,8, with --quick 1,2")
    add(
        "--models",
        type=_models,
        default=list(_DEFAULT_MODELS),
        help=f"of {','.join(_MODELS)}; default: the first two",
    )
    add("--seconds", type=float, help="of each load; default: 3, with --quick 1")
    add("--repeat", type=int, help="rounds; default: 3, with --quick 1")
    add("--merged", action="store_true", help="each setting once more, with merge_copy_streams")
    add("--only", choices=("rates", "faults"), help="one part of it")
    add("--quick", action="store_true", help="one round of little: does everything run?")
    add(
        "--simulate",
        action="store_true",
        help="on a stand-in, with the models on the CPU: no figure of a GPU",
    )
    add("--name", help="of the files; default: gpu- and the time; quick or simulated where it is that")
    add("--results", type=Path, default=_RESULTS, help="where they go; default: bench/results")
    add("--cache", type=Path, default=environments.DEFAULT_CACHE, help="for the models")
    options = parser.parse_args(argv)
    options.contexts = options.contexts or ([1, 2] if options.quick else [1, 2, 4, 8])
    options.seconds = options.seconds or (1.0 if options.quick else 3.0)
    options.repeat = options.repeat or (1 if options.quick else 3)
    unnamed = "quick" if options.quick else time.strftime("gpu-%Y%m%d-%H%M%S")
    options.name = options.name or ("simulated" if options.simulate else unnamed)
    return options


def _plan(options: argparse.Namespace) -> Plan:
    known = _SIMULATED_BATCHES if options.simulate else _BATCHES
    return Plan(
        batches={model: known[model][:1] if options.quick else known[model] for model in options.models},
        contexts=options.contexts,
        loads=[_PER_CONTEXT] if options.quick else [_PER_CONTEXT, _FIXED],
        seconds=options.seconds,
        repeat=options.repeat,
        merged=options.merged,
    )


def _run(options: argparse.Namespace) -> int:
    gpu = device.find(options.gpu, simulate=options.simulate)
    print(f"bench.gpu: on {gpu.label}", flush=True)
    environments.ensure_h2load()
    plan, results = _plan(options), Results(gpu)
    try:
        with running(options.cache.resolve()) as run:
            if options.only in (None, "rates"):
                rates.measure(plan, gpu, run, results)
            if options.only in (None, "faults"):
                _measure_faults(options, gpu, run, results)
    finally:
        if results.pairs or results.recoveries:
            _write(results, plan, options)
    return 1 if results.failures else 0


def _measure_faults(options: argparse.Namespace, gpu: Gpu, run: Run, results: Results) -> None:
    batch = _SIMULATED_FAULT_BATCH if gpu.simulated else _FAULT_BATCH
    try:
        faults.measure(
            gpu, options.contexts[-1], batch, run, quick=options.quick, done=results.recoveries.append
        )
    except rates.FAILURES as error:
        results.note(f"faults: {error}")


def _write(results: Results, plan: Plan, options: argparse.Namespace) -> None:
    folder, name = options.results, options.name
    folder.mkdir(parents=True, exist_ok=True)
    table = report.markdown(results, plan)
    (folder / f"{name}.md").write_text(table)
    (folder / f"{name}.json").write_text(report.as_json(results, plan))
    report.plot(results, plan, folder / f"{name}.png")
    files = ", ".join([".md", ".json", *([".png"] if results.pairs else [])])
    print(f"\n{table}\nbench.gpu: written to {folder / name}{files}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return _run(options)
    except NoGpuError as error:
        print(f"bench.gpu: {error}", file=sys.stderr)
        return 2
    except BenchError as error:
        print(f"bench.gpu: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench.gpu: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
