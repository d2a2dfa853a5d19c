"""Where the pool's time goes: CPU by process, and py-spy on the router and on one worker under load.

    python -m bench.where --model widedeep --batch 512

py-spy is put into an environment of its own under the benchmark's cache. The stacks are kept under
bench/results in collapsed form, one "frame;frame;... samples" a line, which speedscope.app opens.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bench import environments, measure
from bench.environments import BenchError
from bench.guard import run_folder
from bench.models import MODELS, ensure_exported, sample
from bench.peers import OURS
from bench.server import Server

_RESULTS = Path(__file__).resolve().parent / "results"
_RATE_HZ = 250


def profile(server: Server, body: Path, concurrency: int, seconds: int, spy: Sequence[str]) -> dict[str, str]:
    """Role -> collapsed stacks of the router and the busiest worker, taken while the server is driven.

    Raises:
        BenchError: py-spy could not attach; its own words are in the text.
    """
    found: dict[str, int] = {}
    for pid, _ in sorted(measure.cpu_by_pid(server.pids()).items(), key=lambda item: -item[1]):
        found.setdefault(measure.role(pid), pid)
    targets = {role: found[role] for role in ("router", "worker") if role in found}
    files = {role: body.with_name(f"{role}.stacks") for role in targets}
    spies = []
    try:
        for role, pid in targets.items():
            command = [*spy, "--pid", str(pid), "--duration", str(seconds), "--output", str(files[role])]
            spies.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        server.load(body, concurrency, seconds + 2.0)
        for one in spies:
            said = one.communicate(timeout=60)[1]
            if one.returncode:
                raise BenchError(f"py-spy ended with status {one.returncode}: {said.strip()}")
    finally:
        for one in spies:
            if one.poll() is None:
                one.kill()
                one.wait()
    return {role: file.read_text() for role, file in files.items()}


def top(stacks: str, count: int) -> Iterator[str]:
    """The functions with the most samples of their own, and with the most including what they call."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for line in stacks.splitlines():
        frames, samples = line.rsplit(" ", 1)
        functions = [_function(frame) for frame in frames.split(";")]
        own[functions[-1]] += int(samples)
        for function in set(functions):
            total[function] += int(samples)
    everything = max(1, own.total())
    for title, counter in (("of its own", own), ("with what it calls", total)):
        yield f"  {title}:"
        yield from _shares(counter.most_common(count), everything)


def _function(frame: str) -> str:
    """Without the line number: "run (mpspool/worker/predict.py)"."""
    name, bracket, place = frame.partition(" (")
    return name + bracket + place.rsplit(":", 1)[0] + ")" * (":" in place)


def _shares(counted: Iterable[tuple[str, int]], everything: int) -> Iterator[str]:
    for function, samples in counted:
        yield f"    {100 * samples / everything:5.1f} %  {function}"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.where", description="Show where the pool's time goes under load."
    )
    parser.add_argument("--model", choices=list(MODELS), default="widedeep")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--seconds", type=int, default=8, help="of sampling")
    parser.add_argument("--top", type=int, default=15, help="functions to print")
    parser.add_argument("--native", action="store_true", help="C and C++ frames too (slows the target)")
    parser.add_argument("--cache", type=Path, default=environments.DEFAULT_CACHE)
    return parser.parse_args(argv)


def _run(options: argparse.Namespace) -> None:
    environments.ensure_h2load()
    cache = options.cache.resolve()
    spy = [str(environments.ensure("tools", cache) / "bin" / "py-spy"), "record", "--format", "raw"]
    spy += ["--rate", str(_RATE_HZ), *(["--native"] if options.native else [])]
    model, exported = MODELS[options.model], ensure_exported(cache)
    with run_folder() as (mark, folder), Server(OURS, model.name, mark, folder, exported, cache) as server:
        body = folder / "body"
        protocol = OURS.protocol
        body.write_bytes(protocol.frame(protocol.encode(model, sample(model, options.batch))))
        one = server.measure(options.batch, options.concurrency, 3.0)
        print(f"{model.name}, batch {options.batch}, concurrency {options.concurrency}: {one.rate:.0f} answers/s,")
        print(f"p50 {one.p50_ms:.2f} ms, p99 {one.p99_ms:.2f} ms; CPU, milliseconds per request:")
        whole = sum(one.cpu_by_role.values()) or 1.0
        for role, cpu in sorted(one.cpu_by_role.items(), key=lambda item: -item[1]):
            print(f"  {role:12} {one.cpu_s_per_1000 * cpu / whole:8.3f}  ({100 * cpu / whole:.0f} %)")
        stacks = profile(server, body, options.concurrency, options.seconds, spy)
    _RESULTS.mkdir(exist_ok=True)
    for role, text in stacks.items():
        file = _RESULTS / f"where-{model.name}-b{options.batch}-c{options.concurrency}.{role}.stacks"
        file.write_text(text)
        print(f"\n{role}, {_RATE_HZ} samples/s while it was busy, kept in {file}")
        print("\n".join(top(text, options.top)))


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        _run(options)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
