"""How requests for a model wait, and which are joined: the model's own words, its version's, the pool's. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mpspool.core.errors import Problem
from mpspool.core.settings import (
    BatchingSettings,
    ModelSettings,
    QueueSettings,
    SchedulingSettings,
    VersionBatching,
)
from mpspool.supervisor.config.batching import POOL_WIDE, ModelBatching, Parameters, VersionFile
from mpspool.supervisor.config.schema import ModelConfig, PoolConfig

# Where each parameter stands, what is said there, and which of it counts.
_Layer = tuple[Callable[[str], str], Parameters, tuple[str, ...]]
# Nobody means to refuse requests that are smaller.
_FEW_BYTES = 2**20
# Nobody means to have requests wait for longer.
_LONG_WAIT_US = 60_000_000


@dataclass(frozen=True, slots=True)
class Queues:
    """What there is beside the configuration.

    Attributes:
        files: by model, what its version says of batching.
        policies: by name as configured, each policy as the router finds it.
    """

    files: Mapping[str, VersionFile] = field(default_factory=dict)
    policies: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batching:
    """The parameters of one model.

    Attributes:
        values: all of them.
        paths: of those that somebody gave, where.
    """

    values: ModelBatching
    paths: Mapping[str, str]

    def settings(self) -> BatchingSettings:
        values = self.values
        return BatchingSettings(
            max_batch_size=values.max_batch_size,
            batch_timeout_us=values.batch_timeout_micros,
            max_enqueued_batches=values.max_enqueued_batches,
            allowed_batch_sizes=list(values.allowed_batch_sizes),
            pad_variable_length_inputs=values.pad_variable_length_inputs,
            max_execution_batch_size=self.run_rows if values.enable_large_batch_splitting else 0,
            adaptive=values.adaptive,
        )

    @property
    def run_rows(self) -> int:
        """Rows of a batch, at most."""
        split = self.values.max_execution_batch_size if self.values.enable_large_batch_splitting else None
        return split or self.values.max_batch_size


def is_wanted(config: PoolConfig, model: ModelConfig) -> bool:
    """Whether its requests are to be joined, as far as the configuration goes."""
    own = model.batching.enabled if model.batching else None
    return bool(config.batching.enabled if own is None else own)


def batching(config: PoolConfig, model: ModelConfig, file: VersionFile | None) -> Batching | None:
    """What holds for the model: its own words, then those in its version's folder, then the pool's.

    As in TensorFlow Serving, with per_model the pool's parameters count for nobody, and a version without a file is not
    batched; unless the pool file itself says something of the model.
    """
    own = model.batching or ModelBatching()
    if not is_wanted(config, model):
        return None
    if config.batching.per_model and file is None and not own.model_fields_set:
        return None
    names = POOL_WIDE if config.batching.per_model else tuple(ModelBatching.model_fields)
    layers: list[_Layer] = [(_below("batching"), config.batching, names)]
    if file is not None:
        layers.append(_layer(file))
    layers.append((_below(f"models.{model.name}.batching"), own, tuple(ModelBatching.model_fields)))
    return _layered(layers)


def version_batching(config: PoolConfig, model: ModelConfig) -> VersionBatching | None:
    """What each version of the model needs to know, where its folder says how its requests are joined."""
    if not config.batching.per_model or not is_wanted(config, model):
        return None
    own = model.batching or ModelBatching()
    given = {
        name: getattr(config.batching, name)
        for name in config.batching.model_fields_set.intersection(POOL_WIDE)
    }
    given |= {name: getattr(own, name) for name in own.model_fields_set - {"enabled"}}
    without = batching(config, model, None)
    return VersionBatching(given=given, without=without.settings() if without else None)


def batching_of_version(
    model: str, said: VersionBatching, file: VersionFile
) -> tuple[BatchingSettings, list[Problem]]:
    """How requests of a version that has such a file are joined, and what of it does not go together."""
    given = ModelBatching(**said.given)
    own = _below(f"models.{model}.batching")
    found = _layered([_layer(file), (own, given, tuple(ModelBatching.model_fields))])
    return found.settings(), list(_conflicts(found))


def _layer(file: VersionFile) -> _Layer:
    return file.place, file.parameters, tuple(Parameters.model_fields)


def _below(section: str) -> Callable[[str], str]:
    return lambda name: f"{section}.{name}"


def _layered(layers: Sequence[_Layer]) -> Batching:
    """What is said, later layers before earlier ones."""
    values: dict[str, object] = {}
    paths: dict[str, str] = {}
    for place, section, allowed in layers:
        for name in section.model_fields_set.intersection(allowed):
            values[name], paths[name] = getattr(section, name), place(name)
    return Batching(ModelBatching().model_copy(update=values), paths)


def check_batching(
    config: PoolConfig, files: Mapping[str, VersionFile], *, serving: bool = False
) -> list[Problem]:
    """What does not go together, or is not used at all.

    Args:
        config: what was asked for.
        files: by model, what its version says of batching.
        serving: it was asked for by a command line of tensorflow_model_server.
    """
    found = {model.name: batching(config, model, files.get(model.name)) for model in config.models}
    problems = [problem for one in found.values() if one is not None for problem in _conflicts(one)]
    if not config.models or any(is_wanted(config, model) for model in config.models):
        return problems
    return problems + _unused(config, serving=serving)


def _unused(config: PoolConfig, *, serving: bool) -> list[Problem]:
    """TensorFlow Serving refuses a file of parameters without --enable_batching; here other parameters, too."""
    given = config.batching.model_fields_set - {"enabled", "per_model"}
    if config.batching.enabled is False:
        given &= {"parameters_file"}
    if "parameters_file" in given:
        given = {"parameters_file"}
    ways = "--enable-batching, MPSPOOL_ENABLE_BATCHING=1, or batching: on in the pool file"
    why = f"batching is not enabled; add {'--enable_batching or MPSPOOL_ENABLE_BATCHING=1' if serving else ways}"
    if config.batching.enabled:
        why = "every model has batching: off; take that out of one, or add --enable-batching, which holds for all of them"
    return [
        Problem(f"batching.{name}", f"nothing is batched: {why}; or leave this out")
        for name in type(config.batching).model_fields
        if name in given
    ]


def _conflicts(found: Batching) -> Iterable[Problem]:
    values, run_rows = found.values, found.run_rows
    splits, most = values.enable_large_batch_splitting, values.max_batch_size
    default = "" if "max_batch_size" in found.paths else " (the default)"
    if splits and run_rows > most:
        text = (
            f"max_execution_batch_size is {run_rows}, and max_batch_size is {most}{default}: a batch cannot have more"
            f" rows than a request may; give at most {most}, or raise max_batch_size"
        )
        yield _conflict(found, text, "max_execution_batch_size", "max_batch_size")
    if not values.allowed_batch_sizes or (last := values.allowed_batch_sizes[-1]) in {most, run_rows}:
        return
    if splits and run_rows != most:
        sizes = f"max_execution_batch_size is {run_rows}, max_batch_size {most}{default}"
        must = f"the last must be one of them; end it with {run_rows}"
    else:
        sizes = f"max_batch_size is {most}{default}"
        must = f"the last must be the same; end it with {most}, or set max_batch_size to {last}"
    names = ["allowed_batch_sizes", "max_batch_size", "max_execution_batch_size"][: 3 if splits else 2]
    whose = ""
    if _path(found, "allowed_batch_sizes") != _path(found, *names):
        whose = " of the pool"
        must += ", or give the model its own: [] for any size"
    text = f"allowed_batch_sizes{whose} ends with {last}, and {sizes}: {must}"
    yield _conflict(found, text, *names)


def _conflict(found: Batching, text: str, *names: str) -> Problem:
    """That these parameters do not go together."""
    path = _path(found, *names)
    beside = tuple(other for name in names if (other := found.paths.get(name, path)) != path)
    return Problem(path, text, beside=beside)


def _path(found: Batching, *names: str) -> str:
    """Of these parameters, that of the first which is said of this model alone, else of the first."""
    given = [found.paths[name].removesuffix(f": {name}") for name in names if name in found.paths]
    return next((path for path in given if not path.startswith("batching.")), given[0])


def queue_of(config: PoolConfig, model: ModelConfig, policies: Mapping[str, str]) -> QueueSettings:
    """The model's own limits and policy, else the pool's."""
    policy = model.policy or config.scheduling.policy
    given = model.max_queued_bytes or config.max_queued_bytes_per_model
    return QueueSettings(
        policy=policies.get(policy, policy),
        max_queued_requests=model.max_queued_requests or config.max_queued_requests,
        max_queued_bytes=int(given or _share(config)),
        shares_bytes=len(config.models) > 1 and not given,
    )


def scheduling(config: PoolConfig) -> SchedulingSettings:
    """What holds for all queues."""
    names = set(SchedulingSettings.__struct_fields__)
    return SchedulingSettings(**config.scheduling.model_dump(include=names))


def policy_facts(models: Sequence[ModelSettings]) -> list[str]:
    """One line for each model whose requests do not simply go in the order of arrival."""
    return [f"{model.name}: policy {model.queue.policy}" for model in models if model.queue.policy != "fifo"]


def scheduling_facts(config: PoolConfig) -> list[str]:
    """One line for each thing that shares the devices out among batches, or requests among clients."""
    asked = config.scheduling
    lines = []
    if most := asked.running_per_device:
        lines.append(f"batches: at most {most} at once on each device (scheduling.running_per_device)")
    if lane := asked.slow_lane:
        long = f", from {asked.slow_ms:g} ms" if asked.slow_ms else ""
        lines.append(f"long batches{long}: at most {lane} at once on each device (scheduling.slow_lane)")
    if asked.fair_by != "none":
        key = asked.fair_by.removeprefix("metadata:")
        by = "their addresses" if asked.fair_by == "peer" else f"the metadata {key}"
        lines.append(
            f"clients, told apart by {by}, take turns and share max_queued_bytes (scheduling.fair_by)"
        )
    return lines


def batching_facts(config: PoolConfig, models: Sequence[ModelSettings]) -> list[str]:
    """One line for each model that is batched, or is not though batching is on."""
    asked = {model.name: model for model in config.models}
    return [
        _fact(model) if model.batching else _not_batched(model)
        for model in models
        if is_wanted(config, asked[model.name])
    ]


def _fact(model: ModelSettings) -> str:
    found = model.batching
    assert found is not None
    if found.adaptive:
        wait = "growing while every worker runs"
    elif found.batch_timeout_us:
        wait = f"waiting {found.batch_timeout_us} us for more"
    else:
        wait = "of what waits when a worker is free"
    sizes = (
        f", padded to {', '.join(map(str, found.allowed_batch_sizes))}" if found.allowed_batch_sizes else ""
    )
    return f"{model.name}: batches of at most {found.run_rows} rows, {wait}{sizes}"


def _not_batched(model: ModelSettings) -> str:
    return f"{model.name}: no batches, for batching.per_model is on and {model.path} has no batching_params.pbtxt"


def queue_warnings(
    config: PoolConfig, models: Sequence[ModelSettings], files: Mapping[str, VersionFile]
) -> list[str]:
    """One line each: what was said of queues, and means nothing or hardly what was meant."""
    lines = [*_scheduling_warnings(config), *_lane_warnings(config, models), *_bytes_warnings(config)]
    if config.batching.per_model and config.batching.parameters_file:
        lines.append(
            "batching.parameters_file has no effect: with batching.per_model each version has its own"
        )
    if config.batching.per_model and not any(is_wanted(config, model) for model in config.models):
        lines.append("batching.per_model has no effect: batching is not enabled")
    asked = {model.name: model for model in config.models}
    threads: dict[tuple[str, int], int] = {}
    for model in models:
        found = batching(config, asked[model.name], files.get(model.name))
        if found is None:
            continue
        lines += [
            *_batching_warnings(found),
            *_fill_warnings(found, model, asked[model.name]),
            *_fit_warnings(found, model, asked[model.name]),
        ]
        if found.values.num_batch_threads:
            key = (found.paths["num_batch_threads"], found.values.num_batch_threads)
            threads[key] = threads.get(key, 0) + len(model.slots)
    for (path, count), workers in threads.items():
        if count != workers:
            lines.append(
                f"{path} is {count}: as many batches run at once as there are workers, {workers};"
                " contexts_per_gpu and cpu_slots say how many"
            )
    return list(dict.fromkeys(lines))


def _batching_warnings(found: Batching) -> Iterable[str]:
    values, paths = found.values, found.paths
    if values.thread_pool_name:
        yield f"{paths['thread_pool_name']} has no meaning here: batches run on workers, not on threads of a pool"
    if values.max_execution_batch_size and not values.enable_large_batch_splitting:
        yield f"{paths['max_execution_batch_size']} has no effect without enable_large_batch_splitting: true"
    if values.adaptive and values.batch_timeout_micros:
        timeout, adaptive = paths["batch_timeout_micros"], paths["adaptive"]
        same = timeout.removesuffix("batch_timeout_micros") == adaptive.removesuffix("adaptive")
        yield f"{timeout} has no effect with {'adaptive' if same else adaptive}: true"
    elif values.batch_timeout_micros > _LONG_WAIT_US:
        yield (
            f"{paths['batch_timeout_micros']} are {values.batch_timeout_micros / 1e6:.0f} s: so long a request may wait for its"
            " batch to fill"
        )
    sizes, run_rows = values.allowed_batch_sizes, found.run_rows
    if sizes and run_rows not in sizes:
        next_size = next(size for size in sizes if size > run_rows)
        yield (
            f"{paths['allowed_batch_sizes']} has no {run_rows}, though batches have at most"
            f" {run_rows} rows (max_execution_batch_size): a full one is padded to {next_size}; add {run_rows}"
        )


def _fill_warnings(found: Batching, model: ModelSettings, asked: ModelConfig) -> Iterable[str]:
    most, rows = model.queue.max_queued_requests, found.run_rows
    if not found.values.batch_timeout_micros or found.values.adaptive or most >= rows:
        return
    size = "max_batch_size" if rows == found.values.max_batch_size else "max_execution_batch_size"
    yield (
        f"{_queued_requests(asked)} is {most}, and batches have up to {rows} rows ({size}): requests of fewer than"
        f" {-(-rows // most)} never fill one, and wait for batch_timeout_micros each time; raise the one, or lower the other"
    )


def _queued_requests(asked: ModelConfig) -> str:
    """Where it was said."""
    return f"models.{asked.name}.max_queued_requests" if asked.max_queued_requests else "max_queued_requests"


def _fit_warnings(found: Batching, model: ModelSettings, asked: ModelConfig) -> Iterable[str]:
    """Of a request in more parts than batches or requests may wait: it fits while workers are idle that take the others, if at all."""
    values, rows = found.values, found.run_rows
    parts = -(-values.max_batch_size // rows)
    limits = {
        found.paths.get("max_enqueued_batches", "max_enqueued_batches"): values.max_enqueued_batches,
        _queued_requests(asked): model.queue.max_queued_requests,
    }
    for path, most in limits.items():
        if parts <= most:
            continue
        fit = rows * (most + len(model.slots))
        never = f", and of more than {fit} never" if fit < values.max_batch_size else ""
        yield (
            f"{path} is {most}: requests of more than {rows * most} rows are taken only while workers are idle{never} "
            f"(max_batch_size is {values.max_batch_size}, in runs of up to {rows}); give {parts} or more, or a smaller max_batch_size"
        )


def _lane_warnings(config: PoolConfig, models: Sequence[ModelSettings]) -> Iterable[str]:
    asked = config.scheduling
    workers = Counter(slot.device for model in models for slot in model.slots)
    most = max(workers.values(), default=0)
    if 0 < asked.running_per_device <= asked.slow_lane:
        limit = f"no more than {asked.running_per_device} batches run at once (scheduling.running_per_device)"
    elif asked.slow_lane >= most > 0:
        limit = f"no device has more workers than {most}"
    else:
        return
    yield f"scheduling.slow_lane is {asked.slow_lane}, and {limit}: no place is kept for short ones; give less"


def _bytes_warnings(config: PoolConfig) -> Iterable[str]:
    most, few = config.max_queued_bytes, min(_FEW_BYTES, config.max_message_bytes)
    if "max_message_bytes" in config.model_fields_set and config.max_message_bytes > most:
        yield (
            f"max_message_bytes is {config.max_message_bytes}, and max_queued_bytes {most}: larger requests than that are "
            "never taken; raise it"
        )
    elif (share := _share(config)) < few:
        whose = f", of which one model has {share}" if share < most else ""
        yield f"max_queued_bytes is {most}{whose}: larger requests than that are never taken; raise it"
    parts: dict[str, int] = {"max_queued_bytes_per_model": config.max_queued_bytes_per_model}
    parts |= {f"models.{model.name}.max_queued_bytes": model.max_queued_bytes or 0 for model in config.models}
    for path, part in parts.items():
        if part > most:
            yield f"{path} is {part}, and max_queued_bytes, of all models, {most}: it has no effect"
        elif 0 < part < few and (path != "max_queued_bytes_per_model" or _some_unbounded(config)):
            yield f"{path} is {part}: larger requests than that are never taken; raise it"


def _share(config: PoolConfig) -> int:
    """Of max_queued_bytes, what the requests of one model may have that nobody has bounded; all, where there is no such."""
    halved = len(config.models) > 1 and _some_unbounded(config) and not config.max_queued_bytes_per_model
    return max(1, config.max_queued_bytes // (2 if halved else 1))


def _some_unbounded(config: PoolConfig) -> bool:
    return any(not model.max_queued_bytes for model in config.models)


def _scheduling_warnings(config: PoolConfig) -> Iterable[str]:
    asked = config.scheduling
    if asked.slow_ms and not asked.slow_lane:
        yield "scheduling.slow_ms has no effect: scheduling.slow_lane is 0"
    policies = {model.policy or asked.policy for model in config.models}
    if "aging" in asked.model_fields_set and policies and "sjf" not in policies:
        yield "scheduling.aging has no effect: it is for the policy sjf"
