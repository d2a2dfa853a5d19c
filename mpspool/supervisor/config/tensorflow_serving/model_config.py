"""The model_config_file: ModelServerConfig as text."""

from __future__ import annotations

import os
from typing import Any

from mpspool.core import tfs
from mpspool.supervisor.config.layers import Source
from mpspool.supervisor.config.tensorflow_serving.proto_text import TextError, line_of, parse
from mpspool.supervisor.config.tensorflow_serving.told import Model, Told, Values
from mpspool.supervisor.remote.place import is_remote

PLATFORM = "tensorflow"


def read_models(text: str, file: str, told: Told) -> None:
    """Adds the models that the text lists; what is wrong with it is among the problems.

    Args:
        text: of the file.
        file: its name, for those who read the messages.
        told: what has been read so far.
    """
    config = tfs.ModelServerConfig()
    try:
        parse(text, config)
    except TextError as error:
        said = (
            f"Error parsing text-format {config.DESCRIPTOR.full_name}: {error}"  # as protobuf says it there
        )
        told.refuse(file, f"{said}; it holds model_config_list {{ config {{ name: ... base_path: ... }} }}")
        told.left_out.add("models")
        return
    kind = config.WhichOneof("config")
    if kind == "custom_model_config":
        told.refuse(
            file, "custom_model_config is for servers of one's own; list the models in model_config_list"
        )
        told.left_out.add("models")
    elif not config.model_config_list.config:
        told.lists_none = file
    for listed in config.model_config_list.config:
        _read_model(listed, Source(file, line_of(text, listed.name)), told)


def _read_model(listed: Any, source: Source, told: Told) -> None:
    if not listed.name:
        told.refuse(str(source), "a model has no name; give name")
        told.left_out.add("models")
        return
    if listed.name in told.models:
        told.refuse(
            f"models.{listed.name}",
            f"in {source}: Illegal to list model {listed.name} multiple times in config list; keep one",
            source.line,
        )
        return
    model = Model(listed.name, sources={"": source}, model_id=listed.model_id)
    told.models[listed.name] = model
    if text := _platform(listed):
        told.refuse(f"models.{listed.name}.model_platform", f"in {source}: {text}", source.line)
    put_base_path(model, listed.base_path, source, told)
    policy = _policy(listed.model_version_policy)
    if policy == []:
        text = "specific names no version; give specific { versions: 1 }, or leave model_version_policy out for the latest"
        told.refuse(f"models.{listed.name}.version_policy", f"in {source}: {text}", source.line)
    elif policy is not None:
        model.put("version_policy", policy, source)
    if listed.version_labels:
        model.put("version_labels", dict(listed.version_labels), source)
    if listed.HasField("logging_config"):
        told.note(f"{source}: logging_config of {listed.name} is ignored: requests are not logged")


def put_base_path(model: Model, base_path: str, source: Source, told: Told) -> None:
    """Sets it, where TensorFlow Serving would take it: absolute, or with a scheme."""
    model.put("base_path", base_path, source)
    if not os.path.isabs(base_path) and not is_remote(base_path):
        remedy = f"; write {os.path.abspath(base_path)}" if base_path else ""
        told.refuse(
            f"models.{model.name}.base_path",
            f"in {source}: Expected model {model.name} to have an absolute path or URI; got"
            f" base_path()={base_path}{remedy}",
            source.line,
        )
        told.left_out.add(f"models.{model.name}.base_path")


def _platform(listed: Any) -> str:
    """Why the model's platform cannot be served; "" where it can."""
    old = tfs.ModelType.Name(listed.model_type) if listed.model_type in tfs.ModelType.values() else "?"
    if listed.model_type and listed.model_platform:
        return "model_type (deprecated) and model_platform are two ways to say one thing; keep model_platform"
    platform = listed.model_platform or ({"TENSORFLOW": PLATFORM}.get(old, old) if listed.model_type else "")
    if not platform:
        return f'neither model_platform nor model_type is given; write model_platform: "{PLATFORM}"'
    return "" if platform == PLATFORM else f"{platform!r} is not served here; only {PLATFORM!r} is"


def _policy(policy: Any) -> Values | str | list[int] | None:
    """As version_policy has it; None where it is not given."""
    match policy.WhichOneof("policy_choice"):
        case "all":
            return "all"
        case "specific":
            return list(policy.specific.versions)
        case "latest":
            return {"latest": policy.latest.num_versions or 1}
    return None
