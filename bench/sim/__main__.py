"""The simulations: `python -m bench.sim --help`."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from bench.sim.cell import Key, run_all
from bench.sim.figures import Figures
from bench.sim.scenario import Options, Scenario
from bench.sim.trace import TraceError
from mpspool.router import policy

# By name, and the module.
SCENARIOS = {
    "ocr": "ocr",
    "fleet": "fleet",
    "flood": "flood",
    "deadlines": "deadlines",
    "batching": "batches",
    "priority": "classes",
}
_RESULTS = Path(__file__).resolve().parents[1] / "results" / "sim"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.sim",
        description="Drive the router's scheduler with a simulated clock, devices and clients. "
        "What is simulated, and what is not: bench/sim/README.md.",
    )
    add = parser.add_argument
    add("--scenario", help=f"of {', '.join(SCENARIOS)}, with commas; default: all, or fleet for a trace")
    add("--policy", default="", help="to be judged beside the scenario's own: a name, or module:attribute")
    add(
        "--trace",
        type=Path,
        help="requests to be played (JSON lines, as of `mpspool record`, or .csv) by the scenario fleet",
    )
    add("--gpus", type=int, default=0, help="devices; default: the scenario's")
    add("--slots", type=int, default=0, help="workers on a device; where each model has some, of each")
    add("--rate", type=float, default=0.0, help="requests a second; default: the scenario's")
    add("--seconds", type=float, default=0.0, help="of simulated time a cell; default: the scenario's")
    add("--seed", type=int, default=1)
    add("--processes", type=int, default=len(os.sched_getaffinity(0)), help="default: one for each CPU")
    add("--results", type=Path, default=_RESULTS, help="where files go; default: bench/results/sim")
    options = parser.parse_args(argv)
    options.scenario = options.scenario or ("fleet" if options.trace else ",".join(SCENARIOS))
    if unknown := set(options.scenario.split(",")) - set(SCENARIOS):
        parser.error(f"{', '.join(sorted(unknown))}: none of {', '.join(SCENARIOS)}")
    if options.trace and options.scenario != "fleet":
        parser.error("--trace is played by the scenario fleet alone: leave --scenario out")
    if options.policy:
        try:
            policy.find(options.policy, 1.0)
        except (LookupError, ImportError, AttributeError, TypeError) as error:
            parser.error(str(error))
    return options


def _scenario(name: str) -> Scenario:
    return cast("Scenario", importlib.import_module(f"bench.sim.scenarios.{SCENARIOS[name]}"))


def _write(name: str, scenario: Scenario, found: Mapping[Key, Any], options: Options, folder: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    report = "\n".join([f"# {scenario.TITLE}", "", *scenario.lines(found, options), ""])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(report)
    (folder / f"{name}.json").write_text(_as_json(found, options))
    figure = plt.figure()
    scenario.draw(found, options, figure)
    figure.savefig(folder / f"{name}.png", dpi=100)
    plt.close(figure)
    print(f"\n{report}", flush=True)


def _as_json(found: Mapping[Key, Any], options: Options) -> str:
    """A line for each cell."""
    said = {name: str(value) for name, value in dataclasses.asdict(options).items() if value}
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


def main(argv: Sequence[str] | None = None) -> int:
    said = _arguments(argv)
    options = Options(said.policy, said.trace, said.gpus, said.slots, said.rate, said.seconds, said.seed)
    for name in said.scenario.split(","):
        start_s = time.monotonic()
        scenario = _scenario(name)
        try:
            tasks = scenario.tasks(options)
        except TraceError as error:
            print(f"bench.sim: {error}", file=sys.stderr)
            return 2
        found = run_all(tasks, said.processes)
        _write(name, scenario, found, options, said.results)
        print(f"bench.sim: {name} took {time.monotonic() - start_s:.0f} s", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
