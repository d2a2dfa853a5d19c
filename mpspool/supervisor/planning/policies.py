"""Where a scheduling policy comes from: one of ours, an entry point, or module:attribute. Nothing of it is imported."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec

from mpspool.core.errors import Problem
from mpspool.supervisor.config.explain import nearest
from mpspool.supervisor.config.scheduling import POLICIES
from mpspool.supervisor.config.schema import PoolConfig

GROUP = "mpspool.policies"

_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_REFERENCE = re.compile(f"({_DOTTED}):({_DOTTED})")


class PolicyError(Exception):
    """A policy that is nowhere to be found; the text says what was looked for, and what there is."""


def find_policies(config: PoolConfig) -> tuple[Mapping[str, str], list[Problem]]:
    """By name as configured, what find_policy() says; a problem for each name that it does not know."""
    asked = {"scheduling.policy": config.scheduling.policy}
    asked |= {f"models.{model.name}.policy": model.policy for model in config.models if model.policy}
    found: dict[str, str] = {}
    problems = []
    for path, name in asked.items():
        try:
            found[name] = find_policy(name)
        except PolicyError as error:
            problems.append(Problem(path, str(error)))
    return found, problems


def find_policy(name: str) -> str:
    """One of ours by its name, any other as "module:attribute".

    Raises:
        PolicyError: there is none of that name, or its module is not there.
    """
    if name in POLICIES:
        return name
    points = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    if name in points:
        point = points[name]
        _check_module(point.module, f"the entry point {name} of {GROUP} is in {point.value}")
        return f"{point.module}:{point.attr}"
    if found := _REFERENCE.fullmatch(name):
        _check_module(
            found[1], f"{name!r} is neither built in ({', '.join(POLICIES)}) nor an entry point of {GROUP}"
        )
        return name
    near = nearest(name, [*POLICIES, *points])
    raise PolicyError(
        f"{name!r} is neither built in ({', '.join(POLICIES)}), nor an entry point of {GROUP}"
        f" ({', '.join(sorted(points)) or 'there is none'}), nor module:attribute; "
        + (f"did you mean {near}?" if near else "use one of them, or install the package that brings it")
    )


def _check_module(module: str, what: str) -> None:
    path: Sequence[str] | None = None
    looked_for = ""
    for part in module.split("."):
        looked_for = f"{looked_for}.{part}".removeprefix(".")
        spec = _spec(looked_for, path)
        if spec is None:
            raise PolicyError(
                f"{what}, and there is no module {looked_for}; install it beside mpspool, or put its folder on PYTHONPATH"
            )
        path = spec.submodule_search_locations or ()


def _spec(module: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """As importlib.util.find_spec, which imports what the module is in."""
    if path is None and not sys.flags.safe_path:
        path = sys.path[1:]  # the router does without the folder that we were started from
    for finder in sys.meta_path:
        if (spec := finder.find_spec(module, path)) is not None:
            return spec
    return None
