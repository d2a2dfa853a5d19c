"""The platform_config_file: PlatformConfigMap as text, with DeepRec's session groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mpspool.core import tfs
from mpspool.supervisor.config.batching_file import parameters
from mpspool.supervisor.config.layers import Source
from mpspool.supervisor.config.tensorflow_serving.model_config import PLATFORM
from mpspool.supervisor.config.tensorflow_serving.proto_text import TextError, lines_of, parse
from mpspool.supervisor.config.tensorflow_serving.session_config import Session, read_session
from mpspool.supervisor.config.tensorflow_serving.told import Model, Told, Values, sessions

_GROUP = "model_session_config"
_ADAPTERS = (tfs.SavedModelBundleSourceAdapterConfig, tfs.SavedModelBundleV2SourceAdapterConfig)
_READ = (
    "session_config",
    "batching_parameters",
    "saved_model_tags",
    "enable_per_model_batching_params",
    "enable_model_warmup",
    "model_warmup_options",
    _GROUP,
)
# What is so here in any case, or makes no difference to what is answered.
_ANYWAY = {
    "remove_unused_fields_from_bundle_metagraph": "no such copy is kept",
    "enable_session_metadata": "a worker's log names its model and version",
    "prefer_tflite_model": "saved_model.pb is served, as where there is no model.tflite",
    "use_tflite_model": "saved_model.pb is served; TensorFlow Lite is not",
}


@dataclass(slots=True)
class Platform:
    """What the file says of every model, and of single ones.

    Attributes:
        session: of every model; None where each has its own.
        groups: DeepRec's, by model_id.
        values: keys of every model beside those.
        source: where it stands.
    """

    source: Source
    session: Session | None = None
    groups: dict[int, Group] = field(default_factory=dict)
    values: Values = field(default_factory=dict)


@dataclass(slots=True)
class Group:
    """DeepRec's session group of one model."""

    session: Session
    values: Values
    source: Source


def read_platform(text: str, file: str, told: Told) -> Platform:
    """What the text says; what is wrong with it is among the problems."""
    platform = Platform(Source(file))
    try:
        config = parse(text, tfs.PlatformConfigMap())
    except TextError as error:
        told.refuse(file, f'{error}; it holds platform_configs {{ key: "{PLATFORM}" value {{ ... }} }}')
        return platform
    for name in config.platform_configs:
        if name != PLATFORM:
            told.note(f"{file}: platform {name!r} is not served here, and nothing of it is read")
    if PLATFORM not in config.platform_configs:
        told.refuse(file, f"PlatformConfigMap has no entry for platform {PLATFORM}")
        return platform
    bundle = _bundle(config.platform_configs[PLATFORM].source_adapter_config, file, told)
    if bundle is not None:
        _read_bundle(bundle, text, platform, told)
    return platform


def apply(platform: Platform, models: Iterable[Model], told: Told) -> None:
    """Gives each model what the file says of it."""
    for model in models:
        if platform.session is not None:
            model.fill(platform.session.values, platform.source)
        if platform.groups:
            group = platform.groups.get(model.model_id)
            if group is None and not model.name:
                continue
            if group is None:
                _lacking(model, platform, told)
                continue
            model.fill(group.values, group.source)
        model.fill(platform.values, platform.source)


def fraction(platform: Platform, model: Model) -> float:
    """Of each GPU's memory, what the model's workers have there together; 0 for no limit."""
    group = platform.groups.get(model.model_id)
    session = group.session if group else platform.session
    return session.fraction if session else 0.0


def _lacking(model: Model, platform: Platform, told: Told) -> None:
    count = len(platform.groups)
    told.refuse(
        f"models.{model.name}.model_id",
        f"{model.model_id} in {model.sources.get('', Source('?'))}: {platform.source} has {count} {_GROUP}, numbered"
        f" from 0; give one for this model, or another model_id",
    )


def _bundle(adapter: Any, file: str, told: Told) -> Any:
    """The legacy_config of whichever adapter it is; None where it cannot be read."""
    from google.protobuf.message import DecodeError

    for kind in _ADAPTERS:
        if not adapter.Is(kind.DESCRIPTOR):
            continue
        message = kind()
        try:
            message.ParseFromString(adapter.value)
        except DecodeError:
            break
        return message.legacy_config
    names = " or ".join(f"[type.googleapis.com/{kind.DESCRIPTOR.full_name}]" for kind in _ADAPTERS)
    told.refuse(
        file, f"source_adapter_config of platform {PLATFORM} is none that is served here; give {names}"
    )
    return None


def _read_bundle(bundle: Any, text: str, platform: Platform, told: Told) -> None:
    file = platform.source.name
    if bundle.HasField("batching_parameters"):
        for key, value in {"enabled": True, **parameters(bundle.batching_parameters)}.items():
            told.put(f"batching.{key}", value, Source(file))
    per_model = getattr(bundle, "enable_per_model_batching_params", False)
    if per_model:
        told.put("batching.per_model", True, Source(file))
    if bundle.saved_model_tags:
        platform.values["saved_model_tags"] = list(bundle.saved_model_tags)
    warmup = bundle.model_warmup_options
    if count := warmup.num_request_iterations.value:
        platform.values["num_request_iterations_for_warmup"] = count
    if warmup.num_model_warmup_threads.value > 1:
        what = "each worker sends the recorded requests one after another"
        told.note(f"{file}: model_warmup_options.num_model_warmup_threads: {what}")
    if warmup.enable_all_batch_sizes_warmup:
        what = "recorded requests are sent with the rows that they have; record one of each size"
        told.note(f"{file}: model_warmup_options.enable_all_batch_sizes_warmup: {what}")
    for described, _ in bundle.ListFields():
        if described.name not in _READ:
            told.note(f"{file}: {described.name}: {_ANYWAY.get(described.name, 'has no equivalent here')}")
    if bundle.DESCRIPTOR.fields_by_name.get(_GROUP):
        lines = list(lines_of(text, _GROUP))
        for index, group in enumerate(bundle.model_session_config):
            source = Source(file, lines[index] if index < len(lines) else 0)
            platform.groups[index] = _group(group, index, source, told)
    else:
        platform.session = read_session(bundle.session_config)
        for text_ in platform.session.notes:
            told.note(f"{file}: session_config.{text_}")


def _group(group: Any, index: int, source: Source, told: Told) -> Group:
    session = read_session(group.session_config)
    for text in session.notes:
        told.note(f"{source}: session_config.{text}")
    values = dict(session.values)
    if group.session_num < 0:
        told.refuse(str(source), f"session_num {group.session_num} of model_id {index}: give 1 or more")
    values |= sessions(max(1, group.session_num))
    values.setdefault("gpus", list(group.gpu_ids) or "auto")
    if group.gpu_ids:
        values["gpus"] = list(group.gpu_ids)
    if group.cpusets:
        values["cpusets"] = group.cpusets
    return Group(session, values, source)
