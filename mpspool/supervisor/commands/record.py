"""`mpspool record`: writes what arrives at a pool to a file that `python -m bench.sim --trace` plays."""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from io import FileIO
from pathlib import Path

import click

from mpspool.core import control, output_file
from mpspool.core.control import ControlError, Message
from mpspool.core.rundir import RunDir
from mpspool.supervisor import cpus
from mpspool.supervisor.commands import ask
from mpspool.supervisor.commands.errors import CommandError
from mpspool.supervisor.number_words import counted, short


def record(run: RunDir, for_s: float, output: Path) -> None:
    """Writes a line for each request that arrives, until the time is over, or Ctrl-C.

    Args:
        run: where the pool runs.
        for_s: for how long.
        output: the trace. It is made, or replaced, when the first request is over.

    Raises:
        CommandError: nothing was recorded, or less than was asked for.
    """
    _check(output)
    trace = _Trace(output)
    problem = ""
    with contextlib.closing(trace), contextlib.closing(ask.observed(run, "arrivals", for_s)) as pieces:
        try:
            for piece in pieces:
                if not trace.began_s:
                    click.echo(
                        f"recording to {output} for {for_s:g} s; Ctrl-C ends it and keeps what is there"
                    )
                trace.add(piece)
            trace.length_s = max(trace.length_s, for_s)  # the router's clock began before ours
        except KeyboardInterrupt:
            pass
        except ControlError as error:
            problem = f"the router went away before the end ({error})"
        except OSError as error:
            problem = f"cannot write {str(output)!r}: {error.strerror or error}"
    if not trace.count:
        why = problem or f"nothing arrived in {short(trace.length_s)} s; is the pool under load?"
        raise CommandError(f"no trace was written: {why}")
    click.echo(trace.told(_devices(run, trace.models)))
    if problem:
        raise CommandError(f"{problem}: the trace ends there")


def _check(output: Path) -> None:
    """Before the time is spent. Raises CommandError."""
    if output.suffix == ".csv":
        raise CommandError(f"{str(output)!r}: a trace is recorded as JSON lines; name it .jsonl", status=2)
    if why := output_file.why_not(output, "--output"):
        raise CommandError(why, status=2)


def _devices(run: RunDir, models: Counter[str]) -> str:
    """Options of bench.sim: as many devices as these models have in the pool, workers on each, and CPUs; "" where it has gone.

    The workers are those of each model where all devices have the same; otherwise as many as any device has. Of several versions
    of a model one is counted: another may be about to take its place.
    """
    devices: dict[str, Counter[str]] = {}
    counts: Counter[tuple[str, str, int]] = Counter()
    workers: list[Message] = []
    with contextlib.suppress(ControlError, ValueError):
        there = control.call(run.pool_control, "status")["workers"]
        workers = [worker for worker in there if worker["model"] in models]
        counts.update((worker["device"], worker["model"], worker["version"]) for worker in workers)
    for (device, model, _), count in counts.items():
        mine = devices.setdefault(device, Counter())
        mine[model] = max(mine[model], count)
    if not devices:
        return ""
    parallel = _parallel(workers)
    slots, *others = devices.values()
    # A comma in a name would part it.
    alike = all(other == slots for other in others) and slots.keys() == models.keys()
    if alike and not any("," in name for name in slots):
        each = ",".join(f"{name}={count}" for name, count in slots.items())
        return f" --gpus {len(devices)} --slots {shlex.quote(each)}{parallel}"
    return f" --gpus {len(devices)} --slots {max(each.total() for each in devices.values())}{parallel}"


def _parallel(workers: Sequence[Message]) -> str:
    """On CPU slots, how many CPUs a device has: those that its workers are pinned to, else the machine's cores; "" where a GPU runs some."""
    sets: dict[str, list[Sequence[int]]] = {}
    for worker in workers:
        sets.setdefault(worker["device"], []).append(worker["cpus"])
    if not all(device.startswith("cpu") for device in sets):
        return ""
    pinned = [cpus.pinned(mine) for mine in sets.values()]
    return f" --parallel {max(pinned) if all(pinned) else cpus.read_topology().cores}"


class _Trace:
    """The file, and what is in it.

    Attributes:
        count: requests.
        models: of these, by name.
        began_s: CLOCK_MONOTONIC; 0 before the first piece.
        length_s: from there to the latest.
    """

    def __init__(self, output: Path) -> None:
        self.count = 0
        self.models: Counter[str] = Counter()
        self.began_s = self.length_s = 0.0
        self._output = output
        self._file: FileIO | None = None
        self._dropped = 0
        self._simulated = ""

    def add(self, piece: Message) -> None:
        """A piece of the router's. Raises OSError."""
        now_s = time.monotonic()
        self.began_s = self.began_s or now_s
        self.length_s = now_s - self.began_s
        self._dropped, self._simulated = piece["dropped"], piece["simulated"]
        if requests := piece["requests"]:
            if self._file is None:
                self._file = self._output.open("wb", buffering=0)
            self._write(self._file, requests)

    def _write(self, file: FileIO, requests: list[Message]) -> None:
        """A line is there as a whole, or not at all, also where the disk has room for a part. Raises OSError."""
        text = "".join(json.dumps(request) + "\n" for request in requests).encode()
        done = 0
        try:
            while done < len(text):
                done += file.write(text[done:])
        finally:
            if part := done - (text.rfind(b"\n", 0, done) + 1):
                with contextlib.suppress(OSError):
                    file.truncate(file.tell() - part)
            written = requests[: text.count(b"\n", 0, done)]
            self.count += len(written)
            self.models.update(request["model"] for request in written)

    def told(self, devices: str) -> str:
        """What was recorded, and how to play it: on devices as these options say."""
        models = ", ".join(f"{name} {count:,}" for name, count in self.models.most_common())
        mark = f", SIMULATED {self._simulated}" if self._simulated else ""
        rate = self.count / self.length_s if self.length_s else 0.0
        lines = [
            f"{counted(self.count, 'request')} in {short(self.length_s)} s, {short(rate)} a second: {models}{mark}"
        ]
        if self._dropped:
            lines.append(
                f"{self._dropped:,} more came faster than they could be kept, and are not in the trace"
            )
        if self.count > 1:  # one tells no rate
            command = f"python -m bench.sim --trace {shlex.quote(str(self._output.absolute()))}{devices}"
            lines.append(f"play it, in a clone of mpspool: {command}")
        return "\n".join(lines)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
