"""A pool file as a way to schedule: what the router of such a pool is told, and where the workers of each model are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.sim.scenario import OptionsError, shown
from bench.sim.setup import Setup, unfit
from bench.sim.trace import Request
from mpspool.core.settings import BatchingSettings, QueueSettings
from mpspool.supervisor.config.schema import ModelConfig, PoolConfig, read_config
from mpspool.supervisor.config.values import DEFAULT_CONTEXTS_PER_GPU
from mpspool.supervisor.planning.queues import batching, check_batching, queue_of


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the models run, as far as a pool file says it, and not the machine.

    Attributes:
        devices: how many; the CPU is one. 0: it does not say.
        workers: by model, on each device. Empty: it does not say them of all.
    """

    devices: int = 0
    workers: Mapping[str, int] = field(default_factory=dict)


def read(file: Path, trace: Iterable[Request]) -> tuple[Setup, Placement]:
    """What the file says of the models that are asked for; neither flags nor the environment count.

    Args:
        file: as `mpspool start` reads it.
        trace: what is asked for.

    Returns:
        The setup, called as the file is; and where the models run.

    Raises:
        OptionsError: it is refused, lacks a model, takes no requests as large as some of these, has models on different
            devices, or leaves what it means to what is not in it.
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
    return setup, _placement(file, [config.resolved(model) for model in asked.values()])


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
    if why := unfit(policy):
        raise OptionsError(f"{file}: {where} {policy}: {why}")


def _placement(file: Path, models: list[ModelConfig]) -> Placement:
    """Raises OptionsError: not all of them run on the same devices."""
    said = {gpus: model.name for model in models if (gpus := _gpus(model)) != "auto"}
    if len(said) > 1:
        (some, one), (others, other) = [*said.items()][:2]
        raise OptionsError(
            f"{file} has {one} on {_told(some)} and {other} on {_told(others)}, and here each device has workers of every "
            "model: give them the same gpus in a copy of the file"
        )
    gpus = next(iter(said), "auto")
    devices = 1 if gpus == "none" else len(gpus) if isinstance(gpus, tuple) else 0
    workers = {model.name: count for model in models if (count := _workers(model, gpus))}
    return Placement(devices, workers if len(workers) == len(models) else {})


def _gpus(model: ModelConfig) -> tuple[int, ...] | str:
    """Which; "none" for the CPU, "auto" for what the machine has."""
    if model.gpus is None:
        return "none" if model.cpu_slots else "auto"
    return model.gpus


def _told(gpus: tuple[int, ...] | str) -> str:
    if isinstance(gpus, tuple):
        return f"gpus {','.join(map(str, gpus))}"
    return "the CPU" if gpus == "none" else "all GPUs"


def _workers(model: ModelConfig, gpus: tuple[int, ...] | str) -> int:
    """On each device; 0 where that is the machine's to say."""
    if gpus == "none":
        return model.cpu_slots or 0
    if gpus == "auto":
        return model.contexts_per_gpu or model.cpu_slots or 0
    return model.contexts_per_gpu or DEFAULT_CONTEXTS_PER_GPU
