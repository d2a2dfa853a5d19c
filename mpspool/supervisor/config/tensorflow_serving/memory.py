"""The part of a GPU's memory that the server is given, shared out among the workers that are on one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mpspool.supervisor.config.layers import Source
from mpspool.supervisor.config.tensorflow_serving.told import Model, Told
from mpspool.supervisor.config.values import DEFAULT_CONTEXTS_PER_GPU


def share_memory(
    models: Sequence[Model],
    fractions: Mapping[str, float],
    source: Source,
    told: Told,
    *,
    contexts: str = "",
) -> None:
    """Gives each worker its part.

    Args:
        models: all that are served.
        fractions: of each GPU, what the server has there, by the model that says so; 0 for no limit.
        source: where that stands.
        told: takes a note of it.
        contexts: workers of each model on each GPU, where something goes before what the models say.
    """
    for model in models:
        if not fractions.get(model.name):
            continue
        beside = sum(_contexts(other, contexts) for other in models if _meet(model, other))
        part = round(fractions[model.name] / beside, 4)
        model.put("gpu_memory.fraction", part, source)
        told.note(
            f"{source}: {fractions[model.name]:g} of a GPU's memory for {beside} workers on it: {part:g} for each of {model.name}"
        )


def _contexts(model: Model, given: str) -> int:
    asked = (
        given if given.isdecimal() else str(model.values.get("contexts_per_gpu", DEFAULT_CONTEXTS_PER_GPU))
    )
    return max(1, int(asked)) if asked.isdecimal() else DEFAULT_CONTEXTS_PER_GPU


def _meet(one: Model, other: Model) -> bool:
    """Whether both may be on one GPU."""
    mine, theirs = (model.values.get("gpus") for model in (one, other))
    if "none" in (mine, theirs):
        return one is other
    if not isinstance(mine, list) or not isinstance(theirs, list):
        return True
    return not set(mine).isdisjoint(theirs)
