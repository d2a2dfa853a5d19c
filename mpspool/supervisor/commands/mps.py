"""`mpspool mps`: what the workers of a pool get of their GPUs, as it is asked for, changed and shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from mpspool.core import control
from mpspool.core.control import ControlError, Message
from mpspool.core.errors import Problem
from mpspool.core.rundir import RunDir
from mpspool.supervisor import lock, shares
from mpspool.supervisor.commands import ask
from mpspool.supervisor.commands.errors import CommandError, NoPoolError
from mpspool.supervisor.report import a_console, mark, table

# By option, the field of shares.Override and what reads it.
_READERS: Mapping[str, tuple[str, Callable[[object], tuple[int, ...]]]] = {
    "active_thread_percentage": ("active_thread_percentage", shares.read_percentages),
    "pinned_memory": ("pinned_bytes", shares.read_sizes),
    "priority": ("priority", shares.read_priorities),
}
_ANSWER_S = 10.0
# The pool itself gives up on a worker that does not come back; until then it is silent.
_RENEWAL_S = 3600.0


def read(options: Mapping[str, str | None]) -> dict[str, list[int]]:
    """What was asked for, by the fields of shares.Override. Raises CommandError with all that is wrong."""
    found, problems = {}, []
    for option, text in options.items():
        field, reader = _READERS[option]
        if text is None:
            continue
        try:
            found[field] = list(reader(text))
        except ValueError as error:
            problems.append(Problem(f"--{option.replace('_', '-')}", f"{text!r}: {error}"))
    if problems:
        raise CommandError("\n".join(map(str, problems)))
    return found


def show(run: RunDir) -> Message:
    """What each worker under MPS runs with, and what its next generation gets. Raises NoPoolError."""
    try:
        return control.call(run.pool_control, "mps_show", timeout_s=_ANSWER_S)
    except (ControlError, ValueError) as error:
        raise NoPoolError(_why(run, error)) from error


def change(
    run: RunDir, values: Mapping[str, list[int]], *, model: str | None, worker: str | None, restart: bool
) -> Iterator[Message]:
    """Has the pool do it; {"set": [WORKER, ...], "warnings": [TEXT, ...]} and then, with `restart`, for each either
    {"renewed": WORKER} or, where it runs with these values already, {"unchanged": WORKER}.

    Raises:
        NoPoolError: there is no pool.
        CommandError: the pool refuses, or a worker did not come back.
    """
    arguments = {"model": model, "worker": worker, "restart": restart, **values}
    try:
        yield from control.stream(run.pool_control, "mps_set", timeout_s=_RENEWAL_S, **arguments)
    except (ControlError, ValueError) as error:
        if not lock.holder(run):
            raise NoPoolError(ask.no_pool(run)) from error
        raise CommandError(str(error)) from error


def _why(run: RunDir, error: Exception) -> str:
    return f"the pool does not answer: {error}" if lock.holder(run) else ask.no_pool(run)


def print_shares(found: Message) -> None:
    """For people."""
    console = a_console()
    if not found["workers"]:
        console.print(f"no worker of this pool runs under MPS (MPS {found['mps']})", markup=False)
        return
    for daemon in found["daemons"]:
        whose = ", not ours" if daemon["external"] else ""
        text = f"{daemon['device']}: MPS daemon on {daemon['pipe_dir']}{whose}{mark(daemon)}"
        console.print(text, markup=False)
    console.print()
    titles = ("worker", "gen", "threads", "memory", "priority", "next generation")
    console.print(table([titles, *map(_row, found["workers"])]))


def _row(worker: Message) -> tuple[str, ...]:
    running, following = worker["running"], worker["next"]
    words = _words(running) if running else ("-", "-", "-")
    return (
        worker["worker"],
        str(worker["generation"]),
        *words,
        "the same" if running == following else " / ".join(_words(following)),
    )


def _words(share: Message) -> tuple[str, str, str]:
    pinned = share["pinned_memory_bytes"]
    words = {
        "active_thread_percentage": f"{share['active_thread_percentage']}%",
        "pinned_memory_bytes": shares.size_text(pinned) if pinned else "no limit",
        "priority": share["priority"],
    }
    threads, memory, priority = (
        f"{word} (inherited)" if name in share["inherited"] else word for name, word in words.items()
    )
    return threads, memory, priority


def describe(worker: Message, share: str) -> str:
    """One worker and what it runs with, or its next generation gets, for people; `share` is "running" or "next"."""
    threads, memory, priority = _words(worker[share])
    return f"{worker['worker']}: threads {threads}, memory {memory}, priority {priority}"
