"""The simulations: `python -m bench.sim --help`."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from bench.sim.cell import Cell, Key, Task, run_all
from bench.sim.figures import Figures, NothingArrivedError
from bench.sim.scenario import Options, OptionsError, Scenario, shown
from bench.sim.setup import unfit
from bench.sim.trace import TraceError

# By name, and the module.
SCENARIOS = {
    "ocr": "ocr",
    "fleet": "fleet",
    "flood": "flood",
    "deadlines": "deadlines",
    "batching": "batches",
    "priority": "classes",
}
# What plays a trace; and those in which policies are compared side by side, on devices of any kind.
_TRACE = {"trace": "replay"}
_COMPARING = {"fleet", "trace"}
_RESULTS = Path(__file__).resolve().parents[1] / "results" / "sim"
_OWN_RESULTS = Path("sim-results")
_TELL_EACH_S = 10.0
_INTERRUPTED = 130
_OR_LEAVE = "give one, or leave the option out for its default"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.sim",
        description="Drive the router's scheduler with a simulated clock, devices and clients. "
        "What is simulated, and what is not: bench/sim/README.md.",
    )
    add = parser.add_argument
    add("--scenario", help=f"of {', '.join(SCENARIOS)}, with commas; default: all")
    add("--policy", default="", help="to be judged beside the scenario's own: a name, or module:attribute")
    add(
        "--trace",
        type=Path,
        help="requests to be played (JSON lines, as of `mpspool record`, or .csv) instead of a scenario",
    )
    add(
        "--config",
        type=Path,
        action="append",
        default=[],
        dest="configs",
        metavar="POOL.yaml",
        help="judge what this pool file says on the --trace, beside the policies; may be given several times",
    )
    add("--gpus", type=_whole, default=0, help="devices; default: the scenario's, 8 for a trace")
    add(
        "--slots",
        type=_slots,
        default=0,
        help="workers on a device, where each model has some, of each; for --trace those of each model, too: ranker=2,ocr=2",
    )
    add(
        "--rate",
        type=_above_0,
        default=0.0,
        help="requests a second, for --trace and --scenario fleet; default: their own",
    )
    add("--seconds", type=_above_0, default=0.0, help="of simulated time a cell; default: the scenario's")
    add("--parallel", type=_above_0, default=0.0, help="jobs that a device runs at full speed; default: 4")
    add("--loss", type=_part, help="of a device's speed, for each job that overlaps; default: 0.01")
    add("--seed", type=_whole, default=1)
    add("--processes", type=_whole, default=len(os.sched_getaffinity(0)), help="default: one for each CPU")
    add(
        "--results",
        type=Path,
        help="where files go; default: bench/results/sim, or ./sim-results where anything but --scenario was said",
    )
    options = parser.parse_args(argv)
    if options.trace and options.scenario:
        parser.error("--trace is played instead of a scenario: leave --scenario out")
    options.configs = tuple(dict.fromkeys(options.configs))
    if options.configs and not options.trace:
        parser.error("--config is judged on a --trace: give one, as of `mpspool record`")
    options.scenarios = options.scenario.split(",") if options.scenario else list(SCENARIOS)
    if unknown := set(options.scenarios) - set(SCENARIOS):
        parser.error(f"{', '.join(sorted(unknown))}: none of {', '.join(SCENARIOS)}")
    if options.trace:
        options.scenarios = list(_TRACE)
    options.slots_of = options.slots if isinstance(options.slots, dict) else {}
    if options.slots_of:
        options.slots = 0
        if not options.trace:
            parser.error(
                "--slots with the workers of each model is for --trace: the others have models of their own, and take a number"
            )
    compared = options.rate or options.parallel or options.loss is not None
    if compared and not _COMPARING.issuperset(options.scenarios):
        parser.error(
            "--rate, --parallel and --loss are for --trace and --scenario fleet: the others have their own"
        )
    if options.policy and (why := unfit(options.policy)):
        parser.error(f"--policy {options.policy}: {why}")
    return options


def _whole(text: str) -> int:
    if not _is_whole(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more; {_OR_LEAVE}")
    return int(text)


def _is_whole(text: str) -> bool:
    """And 1 or more."""
    return text.isascii() and text.isdigit() and int(text) > 0


def _slots(text: str) -> int | dict[str, int]:
    """A number, or one for each model."""
    if "=" not in text:
        return _whole(text)
    found: dict[str, int] = {}
    for one in text.split(","):
        name, _, number = one.rpartition("=")
        if not (name and _is_whole(number)):
            raise argparse.ArgumentTypeError(
                f"{one!r} is no model with a whole number of 1 or more; give one for each, as in ranker=2,ocr=2"
            )
        if name in found:
            raise argparse.ArgumentTypeError(f"{name!r} is there twice; give one number for each model")
        found[name] = int(number)
    return found


def _above_0(text: str) -> float:
    if not 0.0 < (value := _number(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0; {_OR_LEAVE}")
    return value


def _part(text: str) -> float:
    if not 0.0 <= (value := _number(text)) <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 1; {_OR_LEAVE}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _scenario(name: str) -> Scenario:
    return cast("Scenario", importlib.import_module(f"bench.sim.scenarios.{(SCENARIOS | _TRACE)[name]}"))


class _ResultsError(Exception):
    """The folder for the files cannot be made or written: which, and why."""


def _make(folder: Path) -> None:
    """Sees to it that files can go there. Raises _ResultsError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _unwritten(folder, error) from error


def _unwritten(folder: Path, error: OSError) -> _ResultsError:
    return _ResultsError(
        f"cannot write to {folder}: {error.strerror or error}; name another folder with --results"
    )


def _write(
    name: str, scenario: Scenario, found: Mapping[Key, Any], options: Options, folder: Path
) -> list[Path]:
    """The report, its figures and its plot, in a folder that is there; and the report on standard output, also where they cannot be written.

    Returns:
        Where they are.

    Raises:
        _ResultsError: not all of them could be written.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    lines = [f"# {scenario.TITLE}", "", *_failures(found, options), *scenario.lines(found, options), ""]
    report = "\n".join(lines)
    written = [folder / f"{name}.{kind}" for kind in ("md", "json", "png")]
    figure = plt.figure()
    scenario.draw(found, options, figure)
    try:
        written[0].write_text(report, encoding="utf-8")
        written[1].write_text(_as_json(found, options), encoding="utf-8")
        figure.savefig(written[2], dpi=100)
    except OSError as error:
        raise _unwritten(folder, error) from error
    finally:
        plt.close(figure)
        print(f"\n{report}", flush=True)
    return written


def _failures(found: Mapping[Key, Any], options: Options) -> list[str]:
    """What policies of a user's own could not say: those rows are not their own."""
    files = {shown(file) for file in options.configs}
    worst: dict[str, Figures] = {}
    for key, one in found.items():
        if isinstance(one, Figures) and one.policy_failures:
            name = next((f"A policy in {part}" for part in key if part in files), options.policy)
            if name not in worst or one.policy_failures > worst[name].policy_failures:
                worst[name] = one
    texts = [
        f"**{name} failed on up to {one.policy_failures} requests of a cell, which went in the order of arrival: "
        f"{one.policy_error}**"
        for name, one in worst.items()
    ]
    return [line for text in texts for line in (text, "")]


def _as_json(found: Mapping[Key, Any], options: Options) -> str:
    """A line for each cell."""
    silent = Options()
    said: dict[str, object] = {
        name: value if isinstance(value, dict) else str(value)
        for name, value in dataclasses.asdict(options).items()
        if value or value != getattr(silent, name)
    }
    if options.configs:
        said["configs"] = [*map(str, options.configs)]
    cells = [
        json.dumps({"cell": list(key), "figures": _plain(one.as_dict() if isinstance(one, Figures) else one)})
        for key, one in found.items()
    ]
    return f'{{"options": {json.dumps(said)}, "cells": [\n' + ",\n".join(cells) + "\n]}\n"


def _plain(value: Any) -> Any:
    """Six digits, and null for what there is none of."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


class _Progress:
    """Says now and then how far it is: where a scenario takes minutes, a line every ten seconds."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count
        self._told_s = time.monotonic()

    def __call__(self, done: int) -> None:
        if (now_s := time.monotonic()) - self._told_s >= _TELL_EACH_S:
            self._told_s = now_s
            print(f"bench.sim: {self._name}: {done} of {self._count} cells", file=sys.stderr, flush=True)


def _too_short(options: Options, tasks: Mapping[Key, Task]) -> str:
    """What to do where nothing arrived; a trace that is played to its end does not last for more --seconds."""
    lasts_s = {task.seconds for task in tasks.values() if isinstance(task, Cell)}
    whole = bool(options.trace) and options.seconds not in lasts_s
    length = f"{options.seconds:g} s" if options.seconds and not whole else "its time"
    if not whole:
        remedy = "give more --seconds"
    elif options.rate:
        remedy = "give a lower --rate"
    else:
        remedy = "give a trace whose times are in seconds"
    return f" in {length} (the first 15 % of it does not count); {remedy}"


def main(argv: Sequence[str] | None = None) -> int:
    said = _arguments(argv)
    options = Options(**{field.name: getattr(said, field.name) for field in dataclasses.fields(Options)})
    folder = said.results or (_RESULTS if options == Options() else _OWN_RESULTS)
    written: list[Path] = []
    for name in said.scenarios:
        start_s = time.monotonic()
        scenario = _scenario(name)
        try:
            tasks = scenario.tasks(options)
            _make(folder)
            found = run_all(tasks, said.processes, _Progress(name, len(tasks)))
            written += _write(name, scenario, found, options, folder)
        except (TraceError, OptionsError, _ResultsError) as error:
            print(f"bench.sim: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print(f"bench.sim: {name} was interrupted", file=sys.stderr)
            return _INTERRUPTED
        except NothingArrivedError as error:
            print(f"bench.sim: {name}: {error}{_too_short(options, tasks)}", file=sys.stderr)
            return 2
        print(f"bench.sim: {name} took {time.monotonic() - start_s:.0f} s", file=sys.stderr, flush=True)
    print(f"written: {', '.join(map(str, written))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
