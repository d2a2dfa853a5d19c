"""Judges what is to be served: what start would refuse or warn of, and where the workers are planned."""

from __future__ import annotations

from collections.abc import Iterator

from mpspool.core.errors import Problem
from mpspool.supervisor.doctor.facts import Facts
from mpspool.supervisor.doctor.finding import Finding, Status, of_problem, of_warning

# The check that a field's problem belongs to; configuration for all others.
_CHECKS = {
    "gpus": "gpu",
    "mps": "mps_programs",
    "contexts_per_gpu": "clients",
    "run_dir": "run_dir",
    "host": "ports",
    "grpc_port": "ports",
    "rest_port": "ports",
    "tls": "tls",
}


def refused(facts: Facts) -> list[Finding]:
    """What start would refuse, by the check that it belongs to."""
    return [of_problem(_check(problem), problem) for problem in facts.intent.problems]


def _check(problem: Problem) -> str:
    parts = problem.path.split(".")
    if parts[0] == "models":  # and what it is called
        del parts[1:2]
    return next((_CHECKS[part] for part in reversed(parts) if part in _CHECKS), "configuration")


def run_dir(facts: Facts) -> Finding:
    """Where sockets, pipes and logs would lie."""
    if facts.pool:
        text = f"a pool runs in {facts.run_dir} (pid {facts.pool}); its ports are not tried"
        return Finding("run_dir", Status.OK, text)
    return Finding("run_dir", Status.OK, f"{facts.run_dir} can be used, with the MPS pipe folders in it")


def ports(facts: Facts) -> list[Finding]:
    """Whether the fronts can listen."""
    if facts.pool or not facts.intent.fronts:
        return []
    return [Finding("ports", Status.OK, f"free: {facts.intent.fronts}")]


def tls(facts: Facts) -> Iterator[Finding]:
    """The gRPC port's certificate, and for how long it is good."""
    for text in facts.intent.tls_warnings:
        yield of_warning("tls", text.removeprefix("tls: "))
    if facts.intent.tls and not facts.intent.tls_warnings:
        yield Finding("tls", Status.OK, facts.intent.tls)


def slots(facts: Facts) -> Iterator[Finding]:
    """Where workers would run, and what start would warn of."""
    if facts.intent.slots:
        simulated = bool(facts.machine.simulated)
        yield Finding("slots", Status.OK, "; ".join(facts.intent.slots), simulated=simulated)
    for text in facts.intent.warnings:
        yield of_warning("configuration", text)
