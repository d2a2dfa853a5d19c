"""The report for a person: a line a check, its remedy below it, within 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from mpspool.supervisor.doctor.examine import evidence
from mpspool.supervisor.doctor.facts import Facts
from mpspool.supervisor.doctor.finding import Finding, Status
from mpspool.supervisor.number_words import counted
from mpspool.supervisor.planning import announce
from mpspool.supervisor.report import a_console

_COLUMNS = 100
_COLOURS = {Status.OK: "green", Status.WARNING: "yellow", Status.ERROR: "bold red"}
_STATUS_COLUMNS = len(Status.WARNING.value) + 2


def print_findings(facts: Facts, findings: Sequence[Finding]) -> None:
    """The plain form of `mpspool doctor`."""
    from rich.markup import escape

    console = a_console()
    width = min(console.width, _COLUMNS)
    if facts.machine.simulated:
        console.print(f"[bold]{escape(announce.simulated(facts.machine))}[/]\n", soft_wrap=True)
    names = max(len(found.check) for found in findings) + 2
    for found in findings:
        first, *others = _lines(found, names, width)
        colour = _COLOURS[found.status]
        status = f"{found.status.value:<{_STATUS_COLUMNS}}"
        console.print(f"[{colour}]{status}[/]{escape(first)}", soft_wrap=True)
        for line in others:
            console.print(escape(line), soft_wrap=True)
    console.print(f"\n{_sum(findings)}", soft_wrap=True)


def _lines(found: Finding, names: int, width: int) -> Iterator[str]:
    """The first without its status."""
    indent = " " * (_STATUS_COLUMNS + names)
    first, *others = textwrap.wrap(evidence(found), width - len(indent), break_on_hyphens=False) or [""]
    yield f"{found.check:<{names}}{first}"
    yield from (indent + line for line in others)
    if found.remedy:
        yield from textwrap.wrap(
            found.remedy,
            width,
            initial_indent=f"{indent}-> ",
            subsequent_indent=f"{indent}   ",
            break_on_hyphens=False,
        )


def _sum(findings: Sequence[Finding]) -> str:
    counts = {status: sum(found.status is status for found in findings) for status in Status}
    if errors := counts[Status.ERROR]:
        return (
            f"{counted(errors, 'error')}, {counted(counts[Status.WARNING], 'warning')}: this would not serve"
        )
    return f"no error, {counted(counts[Status.WARNING], 'warning')}"
