"""Where the pool's time goes: CPU by process, and py-spy on the router and on one worker under load.

    python -m bench.where --model widedeep --batch 512

py-spy sees Python alone: so the pool runs as it is written, not as it is compiled. It is put into an environment of its
own under the benchmark's cache. The stacks are kept under bench/results/where/raw in collapsed form, one
"frame;frame;... samples" a line, which speedscope.app opens.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench import environments, measure
from bench.environments import BenchError
from bench.guard import running
from bench.models import MODELS
from bench.peers import OURS
from bench.server import Server

_STACKS = Path(__file__).resolve().parent / "results" / "where" / "raw"
_RATE_HZ = 250
# Threads with less of the process's CPU are not shown.
_WORTH_SHOWING = 0.02
# Functions that are in more of the stacks than this are the way into the program.
_SAYS_NOTHING = 0.99
_WAITING = frozenset(
    (
        "clock_nanosleep",
        "epoll_pwait",
        "epoll_wait",
        "poll",
        "ppoll",
        "pthread_cond_timedwait",
        "pthread_cond_wait",
    )
)


@dataclass(frozen=True, slots=True)
class Profile:
    """One process under load.

    Attributes:
        stacks: py-spy's, collapsed; each begins with "thread (TID): NAME".
        cpu_ms: thread id -> milliseconds of CPU for each answer, as the kernel counts.
        names: thread id -> the kernel's name of it.
    """

    stacks: str
    cpu_ms: Mapping[int, float]
    names: Mapping[int, str]


def profile(
    server: Server, batch: int, concurrency: int, spy: Sequence[str], *, seconds: int, native: bool
) -> dict[str, Profile]:
    """Profiles the router and the busiest worker while the server is driven.

    The CPU by thread is taken first, without py-spy, which slows what it looks at.

    Args:
        server: our pool, running.
        batch: of each request.
        concurrency: connections.
        spy: py-spy's command line so far.
        seconds: of sampling.
        native: C frames of the router too. Unwinding TensorFlow takes so long that a worker yields nothing.

    Raises:
        BenchError: py-spy could not attach; its own words are in the text.
    """
    targets, body = _targets(server), server.write_body(batch)
    before = {role: measure.cpu_by_thread(pid) for role, pid in targets.items()}
    answers = server.load(body, concurrency, 3.0).rate * 3.0
    after = {role: measure.cpu_by_thread(pid) for role, pid in targets.items()}
    files = {role: body.with_name(f"{role}.stacks") for role in targets}
    with ExitStack() as stack:
        spies = []
        for role, pid in targets.items():
            command = [*spy, "--pid", str(pid), "--duration", str(seconds), "--output", str(files[role])]
            command += ["--native"] if native and role == "router" else []
            spies.append(stack.enter_context(_ended(command)))
        server.load(body, concurrency, seconds + 2.0)
        for one in spies:
            said = one.communicate(timeout=120)[1]
            if one.returncode:
                raise BenchError(f"py-spy ended with status {one.returncode}: {said.strip()}")
    return {
        role: Profile(
            files[role].read_text(),
            {
                thread: 1000 * (cpu - before[role].get(thread, 0.0)) / max(1.0, answers)
                for thread, cpu in after[role].items()
            },
            {thread: measure.thread_name(pid, thread) for thread in after[role]},
        )
        for role, pid in targets.items()
    }


def _targets(server: Server) -> dict[str, int]:
    """The router and the busiest worker: role -> pid."""
    found: dict[str, int] = {}
    for pid, _ in sorted(measure.cpu_by_pid(server.pids()).items(), key=lambda item: -item[1]):
        found.setdefault(measure.role(pid), pid)
    return {role: found[role] for role in ("router", "worker") if role in found}


@contextmanager
def _ended(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that is gone when the block is left."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def top(profile: Profile, count: int) -> Iterator[str]:
    """For each thread that counts: its functions by samples of their own, and including what they call.

    py-spy cannot always tell that a thread only waits. What is known to wait is left out, and a
    thread's share of the process is the kernel's figure, not the number of samples.
    """
    worth_ms = _WORTH_SHOWING * sum(profile.cpu_ms.values())
    cpu_ms = dict(profile.cpu_ms)
    for thread, name, own, total in _threads(profile.stacks):
        spent_ms = cpu_ms.pop(thread, 0.0)
        if spent_ms < worth_ms:
            continue
        yield f"  thread {name}: {spent_ms:.3f} ms; its samples"
        for title, counter in (("of its own", own), ("with what it calls", total)):
            telling = [one for one in counter.most_common() if one[1] < _SAYS_NOTHING * own.total()]
            if telling:
                yield f"    {title}:"
            for function, samples in telling[:count]:
                yield f"      {100 * samples / own.total():5.1f} %  {function}"
    for thread, spent_ms in cpu_ms.items():
        if spent_ms >= worth_ms:
            yield f"  thread without Python, {profile.names[thread]}: {spent_ms:.3f} ms"


def _threads(stacks: str) -> Iterator[tuple[int, str, Counter[str], Counter[str]]]:
    """Thread id, name, and samples by function: on top of the stack, and anywhere in it."""
    counters: dict[str, tuple[Counter[str], Counter[str]]] = {}
    for line in stacks.splitlines():
        frames, samples = line.rsplit(" ", 1)
        thread, *functions = [_function(frame) for frame in frames.split(";")]
        if not functions or functions[-1].split(" ")[0] in _WAITING:
            continue
        own, total = counters.setdefault(thread, (Counter(), Counter()))
        own[functions[-1]] += int(samples)
        for function in set(functions):
            total[function] += int(samples)
    for thread, (own, total) in counters.items():
        number, _, name = thread.removeprefix("thread (").partition("): ")
        yield int(number.rstrip(")")), name or number, own, total


def _function(frame: str) -> str:
    """Without the line number: "run (mpspool/worker/predict.py)"."""
    if frame.startswith("thread ("):
        return frame
    name, bracket, place = frame.partition(" (")
    return name + bracket + place.rsplit(":", 1)[0] + ")" * (":" in place)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.where", description="Show where the pool's time goes under load."
    )
    parser.add_argument("--model", choices=list(MODELS), default="widedeep")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--seconds", type=int, default=8, help="of sampling")
    parser.add_argument("--top", type=int, default=15, help="functions to print")
    parser.add_argument("--native", action="store_true", help="the router's C frames too")
    parser.add_argument("--cache", type=Path, default=environments.DEFAULT_CACHE)
    return parser.parse_args(argv)


def _run(options: argparse.Namespace) -> None:
    environments.ensure_h2load()
    cache = options.cache.resolve()
    spy = [
        str(environments.ensure("tools", cache) / "bin" / "py-spy"),
        "record",
        "--threads",
        "--format",
        "raw",
    ]
    spy += ["--rate", str(_RATE_HZ)]
    ours = replace(OURS, environment={**OURS.environment, "MPSPOOL_COMPILED": "0"})
    with running(cache) as run, Server(ours, options.model, run) as server:
        one = server.measure(options.batch, options.concurrency, 3.0)
        print(
            f"{options.model}, batch {options.batch}, concurrency {options.concurrency}: {one.rate:.0f} answers/s,"
        )
        print(f"p50 {one.p50_ms:.2f} ms, p99 {one.p99_ms:.2f} ms; CPU, milliseconds per request:")
        whole = sum(one.cpu_by_role.values()) or 1.0
        for role, cpu in sorted(one.cpu_by_role.items(), key=lambda item: -item[1]):
            print(f"  {role:12} {one.cpu_s_per_1000 * cpu / whole:8.3f}  ({100 * cpu / whole:.0f} %)")
        profiles = profile(
            server,
            options.batch,
            options.concurrency,
            spy,
            seconds=options.seconds,
            native=options.native,
        )
    _STACKS.mkdir(parents=True, exist_ok=True)
    for role, profiled in profiles.items():
        file = _STACKS / f"{options.model}-b{options.batch}-c{options.concurrency}.{role}.stacks"
        file.write_text(profiled.stacks)
        print(f"\none {role}, CPU per answer of the whole pool; stacks kept in {file}")
        print("\n".join(top(profiled, options.top)))


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
