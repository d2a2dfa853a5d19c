"""A pool file as a way to schedule: what the router of such a pool is told, and the workers of each model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.sim.scenario import OptionsError, shown
from bench.sim.setup import Setup
from bench.sim.trace import Request
from mpspool.core.settings import BatchingSettings, QueueSettings
from mpspool.router.scheduling import policy as policies
from mpspool.supervisor.config.schema import ModelConfig, PoolConfig, read_config
from mpspool.supervisor.planning.queues import batching, check_batching, queue_of


def read(file: Path, trace: Iterable[Request]) -> tuple[Setup, dict[str, int]]:
    """What the file says of the models that are asked for; neither flags nor the environment count.

    Args:
        file: as `mpspool start` reads it.
        trace: what is asked for.

    Returns:
        The setup, called as the file is; and by model its workers on each device, empty where it does not say them of all.

    Raises:
        OptionsError: it is refused, lacks a model, takes no requests as large as some of these, or leaves what it means
            to what is not in it.
    """
    config, findings = read_config(file, {}, {})
    if problems := findings.told(check_batching(config, {})):
        raise OptionsError("; ".join(dict.fromkeys(map(str, problems))))
    largest: dict[str, int] = {}
    for request in trace:
        largest[request.model] = max(request.rows, largest.get(request.model, 0))
    asked = {model.name: model for model in config.models if model.name in largest}
    if missing := largest.keys() - asked.keys():
        raise OptionsError(
            f"{file} has no model {', '.join(sorted(missing))}, which the trace asks for; add it, or leave its requests out of the trace"
        )
    if config.batching.per_model:
        raise OptionsError(
            f"{file}: with batching.per_model the folder of each version says how its requests are joined, which is not "
            "read here; say it in a copy of the file, under models.NAME.batching"
        )
    scheduling = config.scheduling
    _check(file, "scheduling.policy", scheduling.policy)
    queues = {name: _queue(file, config, model, largest[name]) for name, model in asked.items()}
    setup = Setup(
        shown(file),
        policy=scheduling.policy,
        aging=scheduling.aging,
        dispatch=scheduling.dispatch,
        running=scheduling.running_per_device,
        long=scheduling.slow_lane,
        long_us=scheduling.slow_ms * 1000,
        fair=scheduling.fair_by != "none",
        priority_s=1.0 if scheduling.priority_key else 0.0,
        refuse_late=scheduling.refuse_late,
        models=queues,
    )
    return setup, _workers(config, asked)


def _queue(
    file: Path, config: PoolConfig, model: ModelConfig, largest: int
) -> tuple[QueueSettings, BatchingSettings | None]:
    queue = queue_of(config, model, {})
    _check(file, f"models.{model.name}.policy", queue.policy)
    found = batching(config, model, None)
    settings = found.settings() if found else None
    if settings and largest > settings.max_batch_size:
        raise OptionsError(
            f"{file} takes requests of {settings.max_batch_size} rows for {model.name} at most (max_batch_size), and the trace has "
            f"one of {largest}, which is refused: raise it, and have such requests run in parts with "
            "enable_large_batch_splitting and max_execution_batch_size, or leave them out of the trace"
        )
    return queue, settings


def _check(file: Path, where: str, policy: str) -> None:
    """Raises OptionsError: there is no such policy, or it cannot be imported."""
    try:
        policies.find(policy, 1.0)
    except (Exception, SystemExit) as error:
        raise OptionsError(f"{file}: {where} {policy}: {policies.why(error)}") from error


def _workers(config: PoolConfig, asked: Mapping[str, ModelConfig]) -> dict[str, int]:
    """By model, on each device."""
    resolved = {name: config.resolved(model) for name, model in asked.items()}
    found = {name: model.cpu_slots or model.contexts_per_gpu for name, model in resolved.items()}
    said = {name: count for name, count in found.items() if count}
    return said if len(said) == len(asked) else {}
