"""What one check came to."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mpspool.core.errors import Problem
from mpspool.supervisor.doctor.facts import GpuUse


class Status(enum.Enum):
    """How serious it is: with a warning a pool runs, though perhaps not as it was meant."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        check: the name for scripts; it stays as it is.
        evidence: what was seen.
        remedy: what to do about it; empty where there is nothing to do.
        simulated: what was looked at is a stand-in.
    """

    check: str
    status: Status
    evidence: str
    remedy: str = ""
    simulated: bool = False


# Status, evidence and remedy, of one GPU among several.
Verdict = tuple[Status, str, str]


def ok(evidence: str) -> Verdict:
    return Status.OK, evidence, ""


def per_gpu(check: str, uses: Iterable[GpuUse], judge: Callable[[GpuUse], Verdict]) -> list[Finding]:
    """One finding for all GPUs of which the same is true."""
    groups: dict[tuple[Verdict, bool], list[str]] = {}
    for use in uses:
        groups.setdefault((judge(use), use.device.simulated), []).append(use.name)
    return [
        Finding(check, status, f"{', '.join(names)}: {evidence}", remedy, simulated)
        for ((status, evidence, remedy), simulated), names in groups.items()
    ]


def of_problem(check: str, problem: Problem) -> Finding:
    """What start would refuse. A problem's text is what is wrong, and after a semicolon what to do."""
    evidence, _, remedy = str(problem).partition("; ")
    return Finding(check, Status.ERROR, evidence, remedy)


def of_warning(check: str, text: str) -> Finding:
    """What start would warn of, in the same form."""
    evidence, _, remedy = text.partition("; ")
    return Finding(check, Status.WARNING, evidence, remedy)
