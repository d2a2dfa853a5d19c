"""Processors of their own for the servers, and others for the load, where a machine has enough of them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

Processors = tuple[int, ...]


def add_option(parser: argparse.ArgumentParser) -> None:
    """--server-cpus, for divide()."""
    parser.add_argument(
        "--server-cpus",
        type=processors,
        metavar="N,N",
        help="processors of the servers and of the in-process limit; the load has the others. Default: all share all",
    )


def processors(text: str) -> Processors:
    """Raises argparse.ArgumentTypeError: not some of those that this process may use, so that one is left."""
    there = os.sched_getaffinity(0)
    try:
        found = {int(word) for word in text.split(",")}
    except ValueError:
        found = set()
    if not found or not found < there:
        usable = ",".join(map(str, sorted(there)))
        raise argparse.ArgumentTypeError(f"{text!r}: not some, but not all, of the processors {usable}")
    return tuple(sorted(found))


def divide(servers: Processors | None) -> Processors:
    """Keeps this thread to the servers' processors, and with it what it starts; returns the load's: none for any."""
    if servers is None:
        return ()
    load = os.sched_getaffinity(0) - set(servers)
    os.sched_setaffinity(0, servers)
    return tuple(sorted(load))


def on(load: Processors, command: Sequence[str]) -> list[str]:
    """A command of the load's, on its processors."""
    return ["taskset", "--cpu-list", ",".join(map(str, load)), *command] if load else list(command)


def sentence(load: Processors) -> str:
    """What a report says of where the load ran."""
    if load:
        return f"The servers have {len(os.sched_getaffinity(0))} CPUs, and the load {len(load)} others."
    return "The load has the servers' CPUs."
