"""Where a scheduling policy comes from: one of ours, an entry point, or module:attribute. A child imports it, never we."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from mpspool.core.errors import Problem
from mpspool.core.ids import ModelVersion
from mpspool.supervisor.children import ending
from mpspool.supervisor.config.explain import nearest
from mpspool.supervisor.config.scheduling import POLICIES, Dispatch
from mpspool.supervisor.config.schema import PoolConfig

GROUP = "mpspool.policies"
# Part of the router, which is not imported here: it is only named. -P as the router is started.
PROBE = ("-P", "-m", "mpspool.router.scheduling.probe")
LIMIT_S = 60.0

_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_REFERENCE = re.compile(f"({_DOTTED}):({_DOTTED})")


class PolicyError(Exception):
    """A policy that cannot be had; the text says what was looked for, and what there is."""


def find_policies(
    config: PoolConfig, versions: Mapping[str, tuple[int, Path]]
) -> tuple[Mapping[str, str], list[Problem]]:
    """By name as configured, what find_policy() says; a problem for each that is not known or fails on what it is for."""
    asked = {"scheduling.policy": config.scheduling.policy}
    asked |= {f"models.{model.name}.policy": model.policy for model in config.models if model.policy}
    found: dict[str, str] = {}
    problems = []
    for path, name in asked.items():
        models = [
            str(ModelVersion(model.name, versions[model.name][0]))
            for model in config.models
            if name == (model.policy or config.scheduling.policy) and model.name in versions
        ]
        try:
            found[name] = find_policy(name)
            if found[name] not in POLICIES:
                try_policy(found[name], models)
        except PolicyError as error:
            known = found.get(name, name)
            what = "" if known == name else f"the entry point {name} of {GROUP} is {known}: "
            problems.append(Problem(path, f"{what}{error}"))
    return found, problems


def find_policy(name: str) -> str:
    """One of ours by its name, any other as "module:attribute".

    Raises:
        PolicyError: there is none of that name.
    """
    if name in POLICIES:
        return name
    points = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    if name in points:
        return f"{points[name].module}:{points[name].attr}"
    if _REFERENCE.fullmatch(name):
        return name
    if name in get_args(Dispatch):
        raise PolicyError(
            f"{name!r} is no order in which requests go, but how workers are chosen for them: `scheduling: {{dispatch: {name}}}`"
        )
    near = nearest(name, [*POLICIES, *points])
    raise PolicyError(
        f"{name!r} is neither built in ({', '.join(POLICIES)}), nor an entry point of {GROUP}"
        f" ({', '.join(sorted(points)) or 'there is none'}), nor module:attribute; "
        + (f"did you mean {near}?" if near else "use one of them, or install the package that brings it")
    )


def try_policy(reference: str, models: Sequence[str], *, limit_s: float = LIMIT_S) -> None:
    """Has a child import "module:attribute" as the router will, and ask it of a request for each of the models.

    Raises:
        PolicyError: that fails, or takes longer than the limit.
    """
    try:
        done = subprocess.run(
            [sys.executable, *PROBE, reference, *models],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PolicyError(f"{reference} was not imported and asked within {limit_s:g} s; mend it") from None
    try:
        error = json.loads(done.stdout)["error"]
    except ValueError:
        why = ending("the process that tried", done.returncode, done.stderr)
        error = f"{reference} cannot be tried: {why}"
    if error:
        raise PolicyError(error)
