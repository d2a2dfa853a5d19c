"""`mpspool clients`: who asks a pool, and what each gets of it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

import click

from mpspool.core.control import ControlError, Message
from mpspool.core.rundir import RunDir
from mpspool.supervisor import ask, report
from mpspool.supervisor.counted import counted

# Of the table; --json has all.
_ROWS = 20
_TITLES = (
    *("client", "model", "asked/s", "answered/s", "refused/s", "failed/s"),
    *("open", "waited ms", "most ms", "share"),
)
_TEXTS = ("client", "model")


class ClientsError(Exception):
    """Why nothing is shown."""


@dataclass(slots=True)
class Look:
    """What the router has counted.

    Attributes:
        clients: a client, a model and its counts each, as Clients.told(); whoever asks most first.
        seconds: for how long.
        by: "none", "peer" or "metadata:KEY".
        simulated: what is a stand-in; "" for nothing.
    """

    clients: list[Message] = field(default_factory=list)
    seconds: float = 0.0
    by: str = ""
    simulated: str = ""


def show(run: RunDir, for_s: float, *, as_json: bool) -> None:
    """Prints it when the time is over, or at Ctrl-C.

    Args:
        run: where the pool runs.
        for_s: for how long.
        as_json: for scripts.

    Raises:
        ClientsError: there is no pool, its router went away, or nobody asked.
    """
    look = _look(run, for_s)
    if as_json:
        click.echo(json.dumps(for_scripts(look), indent=2))
    elif not look.clients:
        raise ClientsError(f"nobody asked for anything in {look.seconds:.1f} s")
    else:
        _print(look)


def _look(run: RunDir, for_s: float) -> Look:
    """Raises ClientsError."""
    look, coming = Look(), list[Message]()
    try:
        with contextlib.closing(ask.seen(run, "clients", for_s)) as pieces:
            for piece in pieces:
                if "seconds" not in piece:
                    coming += piece["clients"]
                    continue
                if not look.by:
                    click.echo(f"looking for {for_s:g} s; Ctrl-C ends it and shows what there is", err=True)
                look = Look(_sorted(coming), piece["seconds"], piece["by"], piece["simulated"])
                coming = []
    except ask.NoPoolError as error:
        raise ClientsError(str(error)) from error
    except ControlError as error:
        raise ClientsError(f"the router went away before the end ({error})") from error
    except KeyboardInterrupt:
        pass
    return look


def _sorted(clients: list[Message]) -> list[Message]:
    return sorted(clients, key=lambda one: (one["client"] is None, -one["asked"]))


def for_scripts(look: Look) -> dict[str, Any]:
    """What --json writes: of the clients that were too many a row whose client and model are null."""
    return {
        "seconds": look.seconds,
        "fair_by": look.by,
        "simulated": look.simulated,
        "clients": [
            {**one, "open": _open(one), "share": share}
            for one, share in zip(look.clients, _shares(look), strict=True)
        ],
    }


def _open(one: Message) -> int:
    """Of those that came, how many are not over."""
    return int(one["asked"] - one["answered"] - one["refused"] - one["failed"])


def _shares(look: Look) -> list[float]:
    """Of the effective time of all."""
    total_s = sum(one["effective_s"] for one in look.clients)
    return [one["effective_s"] / total_s if total_s else 0.0 for one in look.clients]


def _print(look: Look) -> None:
    names = {one["client"] for one in look.clients}
    requests = counted(sum(one["asked"] for one in look.clients), "request")
    mark = f", SIMULATED {look.simulated}" if look.simulated else ""
    console = report.a_console()
    console.print(
        f"{requests} in {look.seconds:.3g} s, from {_known(names)}{_by(look.by)}{mark}", markup=False
    )
    numbers = [title for title in _TITLES if title not in _TEXTS]
    console.print(report.table(_table(look), folded=_TEXTS, numbers=numbers))
    if more := look.clients[_ROWS:]:
        asked = sum(one["asked"] for one in more) / look.seconds
        console.print(f"and {len(more)} more, with {_rate(asked)} requests a second (--json)", markup=False)


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
            *(_rate(one[what] / look.seconds) for what in ("asked", "answered", "refused", "failed")),
            str(_open(one)),
            f"{one['waited_s'] / one['waited'] * 1e3:.1f}" if one["waited"] else "-",
            f"{one['longest_s'] * 1e3:.1f}" if one["waited"] else "-",
            f"{share:.0%}",
        )
        for one, share in zip(look.clients[:_ROWS], _shares(look), strict=False)
    ]


def _name(name: str | None, empty: str, others: str) -> str:
    """As a terminal may be told it: it is the client's choice."""
    if name is None:
        return others
    return (name if name.isprintable() else ascii(name)[1:-1]) or empty


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 or not per_s else f"{per_s:.3g}"
