"""`mpspool clients`: who asks a pool, and what each gets of it."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass
from typing import Any

import click

from mpspool.core.control import ControlError, Message
from mpspool.core.rundir import RunDir
from mpspool.supervisor import report
from mpspool.supervisor.commands import ask
from mpspool.supervisor.commands.errors import CommandError
from mpspool.supervisor.number_words import counted, short

# Of the table; --json has all.
_ROWS = 20
_TITLES = (
    *("client", "model", "asked/s", "answered/s", "refused/s", "failed/s"),
    *("open", "waited ms", "most ms", "share"),
)
_TEXTS = ("client", "model")


@dataclass(frozen=True, slots=True)
class Look:
    """What the router has counted.

    Attributes:
        clients: as --json writes them.
        seconds: for how long.
        by: "none", "peer" or "metadata:KEY".
        simulated: what is a stand-in; "" for nothing.
    """

    clients: list[Message]
    seconds: float
    by: str
    simulated: str


def show(run: RunDir, for_s: float, *, as_json: bool) -> None:
    """Prints it when the time is over, or at Ctrl-C.

    Args:
        run: where the pool runs.
        for_s: for how long.
        as_json: for scripts.

    Raises:
        CommandError: there is no pool, its router went away, or, for people, nobody asked.
    """
    # All that was told so far, and for how long that is.
    told: list[Message] = []
    length: Message | None = None
    problem = ""
    try:
        with contextlib.closing(ask.observed(run, "clients", for_s)) as pieces:
            coming: list[Message] = []
            for piece in pieces:
                if "seconds" not in piece:
                    coming += piece["clients"]
                    continue
                if length is None:
                    click.echo(f"looking for {for_s:g} s; Ctrl-C ends it and shows what there is", err=True)
                told, length, coming = coming, piece, []
    except ControlError as error:
        problem = f"the router went away before the end ({error})"
    except KeyboardInterrupt:
        pass
    if length is None:
        raise CommandError(problem or "the router has not answered yet")
    look = Look(_rows(told), **length)
    if as_json:
        click.echo(json.dumps(for_scripts(look), indent=2))
    elif look.clients:
        _print(look)
    else:
        problem = problem or (
            f"nobody asked for anything in {short(look.seconds)} s; is the pool under load? --for looks for longer"
        )
    if problem:
        raise CommandError(problem)


def for_scripts(look: Look) -> dict[str, Any]:
    """What --json writes: of the clients that were too many one row, whose client and model are null."""
    return {
        "seconds": look.seconds,
        "fair_by": look.by,
        "simulated": look.simulated,
        "clients": look.clients,
    }


def _rows(told: list[Message]) -> list[Message]:
    """From what Clients.told() has: whoever asks most first."""
    total_s = sum(one["effective_s"] for one in told)
    return [
        {
            **{name: one[name] for name in ("client", "model", "asked", "answered", "refused", "failed")},
            "open": one["asked"] - one["answered"] - one["refused"] - one["failed"],
            "mean_wait_s": one["waited_s"] / one["left"] if one["left"] else None,
            "longest_wait_s": one["longest_s"] if one["left"] else None,
            "effective_s": one["effective_s"],
            "share": one["effective_s"] / total_s if total_s else 0.0,
        }
        for one in sorted(told, key=lambda one: -one["asked"])
    ]


def _print(look: Look) -> None:
    names = {one["client"] for one in look.clients}
    requests = counted(sum(one["asked"] for one in look.clients), "request")
    mark = f", SIMULATED {look.simulated}" if look.simulated else ""
    console = report.a_console()
    first = f"{requests} in {short(look.seconds)} s, from {_known(names)}{_by(look.by)}{mark}"
    console.print(first, markup=False)
    numbers = [title for title in _TITLES if title not in _TEXTS]
    console.print(report.table(_table(look), folded=_TEXTS, numbers=numbers))
    if more := look.clients[_ROWS:]:
        asked = sum(one["asked"] for one in more) / look.seconds
        console.print(
            f"and {counted(len(more), 'row')} more, with {short(asked)} requests a second (--json)",
            markup=False,
        )


def _known(names: set[str | None]) -> str:
    known = counted(len(names - {None}), "client")
    return f"{known} and others" if None in names else known


def _by(by: str) -> str:
    if by == "none":
        return ", by address; they do not share (scheduling.fair_by: none)"
    return f", which share by {by}"


def _table(look: Look) -> list[tuple[str, ...]]:
    """Titles, and a row for each client and model."""
    nameless = "(no name)" if look.by.startswith("metadata:") else "(no address)"
    return [_TITLES] + [
        (
            _name(one["client"], nameless, "(others)"),
            _name(one["model"], "(none of ours)", ""),
            *(short(one[what] / look.seconds) for what in ("asked", "answered", "refused", "failed")),
            str(one["open"]),
            *(_ms(one[which]) for which in ("mean_wait_s", "longest_wait_s")),
            f"{one['share']:.0%}",
        )
        for one in look.clients[:_ROWS]
    ]


def _ms(time_s: float | None) -> str:
    return "-" if time_s is None else f"{time_s * 1e3:.1f}"


def _name(name: str | None, empty: str, others: str) -> str:
    """As a terminal may be told it: it is the client's choice. What looks like none, or like a word of ours, is quoted."""
    if not name:
        return others if name is None else empty
    if not name.isprintable() or name != name.strip() or name.startswith("("):
        return ascii(name)
    encoding = sys.stdout.encoding or "utf-8"
    return name.encode(encoding, "backslashreplace").decode(encoding)
