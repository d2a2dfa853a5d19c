"""From file, flags and environment to settings: what `mpspool start` does, and `mpspool reload` again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpspool.core.errors import StartError
from mpspool.core.rundir import RunDir
from mpspool.core.settings import PoolSettings
from mpspool.supervisor import foreground
from mpspool.supervisor.config import schema
from mpspool.supervisor.first_versions import await_first_versions
from mpspool.supervisor.orders import Orders
from mpspool.supervisor.planning import preflight
from mpspool.supervisor.planning.plan import Plan
from mpspool.supervisor.planning.remotes import to_copy
from mpspool.supervisor.remote.place import copying, shown

if TYPE_CHECKING:
    from mpspool.supervisor.config.tensorflow_serving.serve import Serving


def resolve(
    file: Path | None,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    running: bool = False,
    models: schema.Models | None = None,
    serving: Serving | None = None,
    orders: Orders | None = None,
    patient: bool = False,
    say: Callable[[str], None] | None = None,
) -> tuple[PoolSettings, Plan]:
    """Reads, checks and plans the whole.

    Args:
        file: YAML; None for none.
        flags: as schema.read_config() takes them.
        environ: the environment.
        running: it is for a pool that runs.
        models: as schema.read_config() takes them.
        serving: as schema.read_config() takes it.
        orders: end the copying of what is remote, and the waiting.
        patient: a model that has no version yet is waited for.
        say: is told what takes long.

    Raises:
        StartError: with every problem found.
    """
    wanted, findings = schema.read_config(file, flags, environ, models, serving)
    found = foreground.check(RunDir(wanted.run_dir))
    if patient and orders is not None and say is not None and not findings.told(found):
        await_first_versions(wanted, orders, say)
    away = [shown(remote.url) for remote in to_copy(wanted, running=running)]
    if away and say is not None:
        say(copying(away))
    try:
        resolved = preflight.resolve(wanted, environ, orders, running=running, serving=serving is not None)
    except StartError as error:
        found += error.problems
    if problems := findings.told(found):
        raise StartError(problems)
    pool, planned = resolved
    return pool, replace(planned, warnings=[*findings.overridden, *planned.warnings])
