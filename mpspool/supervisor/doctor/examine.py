"""All checks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mpspool.core.control import Message
from mpspool.supervisor.doctor import gpus, host, mps, pool, tensorflow
from mpspool.supervisor.doctor.facts import Facts
from mpspool.supervisor.doctor.finding import Finding, Status

MARK = "SIMULATED: "


CHECKS = (
    "gpu",
    "driver",
    "architecture",
    "kernels",
    "compute_mode",
    "mig",
    "ecc",
    "persistence",
    "mps_programs",
    "clients",
    "mps_environment",
    "mps_leftovers",
    "mps_elsewhere",
    "user",
    "tensorflow",
    "tensorflow_gpu",
    "compiled",
    "cpus",
    "memory",
    "shared_memory",
    "locked_memory",
    "open_files",
    "container",
    "driver_capabilities",
    "run_dir",
    "ports",
    "tls",
    "slots",
    "configuration",
)
"""Their names, which stay, in the order in which they are shown."""

_TOLD_BY_AN_IMPORT = {"tensorflow", "tensorflow_gpu"}


def examine(facts: Facts) -> list[Finding]:
    """Every check that this machine is asked for. What start would refuse takes the place of an ok or a warning."""
    refused = pool.refused(facts)
    wrong = {found.check for found in refused} - {"configuration"}
    findings = [found for found in _checks(facts) if found.status is Status.ERROR or found.check not in wrong]
    return sorted([*refused, *findings], key=lambda found: CHECKS.index(found.check))


def refusals(facts: Facts) -> list[Finding]:
    """The errors that start refuses for: all, but those that only an import of TensorFlow tells.

    `facts` may do without MPS processes and a pool, and with what TensorFlow's files say of it.
    """
    return [
        found
        for found in _checks(facts)
        if found.status is Status.ERROR and found.check not in _TOLD_BY_AN_IMPORT
    ]


def _checks(facts: Facts) -> Iterator[Finding]:
    machine, uses, around, tf = facts.machine, facts.uses, facts.host, facts.tensorflow
    yield gpus.visible(machine, uses, around)
    if facts.intent.gpus_wanted:
        yield from gpus.mig(machine.survey, uses)
    if uses:
        yield from _gpu_checks(facts)
    yield tensorflow.installed(tf)
    yield from tensorflow.sees_gpus(uses, tf)
    yield host.compiled(around)
    yield host.cpus(machine.topology)
    yield host.memory(facts.intent, around, tf)
    yield host.shared_memory(facts.intent, around)
    if uses:
        yield host.locked_memory(around)
    yield host.open_files(facts.intent, around)
    yield host.container(facts)
    yield from host.driver_capabilities(around, any(not use.device.simulated for use in uses))
    yield pool.run_dir(facts)
    yield from pool.ports(facts)
    yield from pool.tls(facts)
    yield from pool.slots(facts)


def _gpu_checks(facts: Facts) -> Iterator[Finding]:
    uses, tf = facts.uses, facts.tensorflow
    yield gpus.driver(facts.machine, tf)
    yield from gpus.architecture(uses, facts.intent.mps)
    yield from gpus.kernels(uses, tf, facts.machine.survey.cuda)
    yield from gpus.compute_mode(uses, facts.intent.mps)
    yield from gpus.ecc(uses)
    yield from gpus.persistence(uses)
    yield mps.programs(facts)
    if facts.intent.mps != "off":
        yield from mps.clients(uses, facts.host)
    yield mps.environment(facts)
    yield mps.own(facts)
    yield from mps.others(facts)


def passed(findings: Sequence[Finding]) -> bool:
    """Nothing keeps this machine from serving."""
    return all(found.status is not Status.ERROR for found in findings)


def for_scripts(facts: Facts, findings: Sequence[Finding]) -> Message:
    """The content of --json. A check's name can come several times: once for each of its outcomes."""
    return {
        "ok": passed(findings),
        "simulated": facts.machine.simulated,
        "checks": [
            {
                "name": found.check,
                "status": found.status.value,
                "evidence": evidence(found),
                "remedy": found.remedy,
            }
            for found in findings
        ],
    }


def evidence(found: Finding) -> str:
    """With its mark where a stand-in was looked at."""
    return MARK + found.evidence if found.simulated else found.evidence
