"""Looks at the machine. What is found is judged elsewhere; nothing is started or changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mpspool.core.errors import Problem, StartError
from mpspool.core.rundir import RunDir
from mpspool.mps import leftovers
from mpspool.mps.control import find_program
from mpspool.supervisor import foreground, lock
from mpspool.supervisor.config.findings import Findings
from mpspool.supervisor.config.schema import ModelConfig, PoolConfig, read_config
from mpspool.supervisor.doctor.ask_tensorflow import ask_tensorflow
from mpspool.supervisor.doctor.facts import Facts, Intent, gpu_uses
from mpspool.supervisor.doctor.read_host import read_host
from mpspool.supervisor.planning import announce, preflight, remotes, tls
from mpspool.supervisor.planning.drafts import Draft, Machine, draft_places
from mpspool.supervisor.planning.plan import Plan, plan, resolve_mps
from mpspool.supervisor.ports import check_fronts

# For a machine without a model to serve: what one would get.
_ANY_MODEL = "any model"


def gather(file: Path | None, flags: Mapping[str, object], environ: Mapping[str, str]) -> Facts:
    """Everything that the checks are made of. Takes the seconds that importing TensorFlow takes.

    What is asked for is read as read_config() reads it; models are not needed.
    """
    config, findings = read_config(file, flags, environ)
    run = RunDir(config.run_dir)
    machine = preflight.read_machine(config, environ)
    planned_for = config if config.models else _with_any_model(config)
    drafts, _ = draft_places(planned_for, machine)
    mps, _ = resolve_mps(planned_for, machine, drafts)
    uses = gpu_uses(drafts, machine)
    pool = lock.holder(run)
    return Facts(
        machine=machine,
        uses=uses,
        intent=_intent(config, planned_for, findings, machine, drafts, mps, pool, environ),
        host=read_host(environ),
        tensorflow=ask_tensorflow(uses, environ, run.mps_pipe("nowhere")),
        run_dir=str(run.root),
        pool=pool,
        mps_processes=leftovers.running(),
        pipes=_pipes(run),
        mps_server=find_program(leftovers.SERVER_PROGRAM, environ) or "",
    )


def _with_any_model(config: PoolConfig) -> PoolConfig:
    return config.model_copy(update={"models": (ModelConfig(name=_ANY_MODEL, base_path="/"),)})


def _intent(
    config: PoolConfig,
    planned_for: PoolConfig,
    findings: Findings,
    machine: Machine,
    drafts: list[Draft],
    mps: str,
    pool: int,
    environ: Mapping[str, str],
) -> Intent:
    config, problems = remotes.from_cache(config)
    versions, missing, unready = preflight.find_versions(config, {})
    problems += missing
    queues, wrong = preflight.read_queues(config, versions)
    problems += wrong
    planned: Plan | None = None
    try:
        anywhere = {model.name: (1, Path("/")) for model in planned_for.models}
        planned = plan(planned_for, machine, anywhere, queues)
    except StartError as error:
        problems += error.problems
    problems += preflight.check_external(planned, environ) if planned else []
    problems += preflight.check_weights_folders(config) + preflight.check_libraries(config)
    problems += foreground.check(RunDir(config.run_dir)) + preflight.check_folder(RunDir(config.run_dir))
    ports = {"grpc_port": config.grpc_port, "rest_port": config.rest_port}
    problems += [] if pool else check_fronts(config.host, ports)
    secured = tls.look(config)
    problems += secured.problems
    without_mps = announce.without_mps(planned_for, drafts, mps)
    slots = [slot for model in planned.models for slot in model.slots] if planned else []
    return Intent(
        gpus_wanted=any(
            draft.model.gpus != "none" and not (draft.model.gpus is None and draft.model.cpu_slots)
            for draft in drafts
        ),
        mps=mps,
        slots=[f"{model.name}: {announce.layout(model)}" for model in planned.models] if planned else (),
        forked=bool(slots) and all(slot.start == "fork" for slot in slots),
        workers=sum(len(draft.places) for draft in drafts),
        on_gpus=sum(bool(slot.gpu_uuid) and not slot.simulated for slot in slots),
        problems=_told(config, findings, problems),
        warnings=[
            *findings.overridden,
            *unready,
            *(text for text in (planned.warnings if planned else ()) if text != without_mps),
        ],
        without_mps=without_mps,
        fronts=", ".join(f"{port} on {config.host}" for port in ports.values() if port),
        tls=secured.fact,
        tls_warnings=secured.warnings,
        backings=preflight.backings(planned_for),
    )


def _pipes(run: RunDir) -> list[str]:
    """The devices in whose pipe folders something lies."""
    try:
        return sorted(pipe.parent.name for pipe in run.mps.glob("*/pipe") if os.listdir(pipe))
    except OSError:  # not ours to look at
        return []


def _told(config: PoolConfig, findings: Findings, found: list[Problem]) -> list[Problem]:
    """What start would refuse, but for having no model at all."""
    none = not config.models and "models" not in findings.left_out
    problems = [problem for problem in findings.problems if not (none and problem.path == "models")]
    return replace(findings, problems=problems).told(found)
