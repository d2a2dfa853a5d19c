"""Files of TensorFlow Serving, DeepRec or EAS as one pool.yaml. What each is, its contents say."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mpspool.core import tfs
from mpspool.core.errors import Problem, StartError
from mpspool.supervisor.config.layers import Source
from mpspool.supervisor.config.tensorflow_serving import platform_config
from mpspool.supervisor.config.tensorflow_serving.memory import share_memory
from mpspool.supervisor.config.tensorflow_serving.model_config import read_models
from mpspool.supervisor.config.tensorflow_serving.processor import looks_like, read_processor
from mpspool.supervisor.config.tensorflow_serving.proto_text import TextError, first_field, parse
from mpspool.supervisor.config.tensorflow_serving.serve import ReadText
from mpspool.supervisor.config.tensorflow_serving.session_config import Session, read_session
from mpspool.supervisor.config.tensorflow_serving.small_files import check_tls, read_batching, read_monitoring
from mpspool.supervisor.config.tensorflow_serving.told import Told

# By the flag that names such a file, the message that stands in it.
KINDS: Mapping[str, Any] = {
    "model_config_file": tfs.ModelServerConfig,
    "platform_config_file": tfs.PlatformConfigMap,
    "batching_parameters_file": tfs.BatchingParameters,
    "monitoring_config_file": tfs.MonitoringConfig,
    "ssl_config_file": tfs.SSLConfig,
    "tensorflow_session_config_file": tfs.ConfigProto,
}
_PROCESSOR = "processor_config_file"


@dataclass(slots=True)
class _Converted:
    told: Told = field(default_factory=Told)
    platform: platform_config.Platform | None = None
    session: tuple[Session, Source] | None = None


def convert_files(files: Sequence[str], read: ReadText) -> Told:
    """What the files say together.

    Args:
        files: by name.
        read: reads one.

    Raises:
        StartError: one of them cannot be read, is none of these, or has something in it that cannot be served.
    """
    made = _Converted()
    seen: dict[str, str] = {}
    for file in files:
        text = _text(file, read, made.told)
        if text is None:
            continue
        kind = kind_of(text)
        if not kind:
            made.told.refuse(file, f"is none that is known here: {', '.join((*KINDS, _PROCESSOR))}")
        elif kind in seen:
            made.told.refuse(
                file, f"is a {kind}, and {seen[kind]} is one already; convert them one at a time"
            )
        else:
            seen[kind] = file
            _READERS[kind](text, file, made)
    _put_together(made)
    if made.told.problems:
        raise StartError(made.told.problems)
    return made.told


def kind_of(text: str) -> str:
    """The flag that names such a file; "" for none."""
    if looks_like(text):
        return _PROCESSOR
    name = first_field(text)
    return next((kind for kind, message in KINDS.items() if name in message.DESCRIPTOR.fields_by_name), "")


def _text(file: str, read: ReadText, told: Told) -> str | None:
    try:
        return read(file)
    except OSError as error:
        told.refuse(file, f"cannot be read: {error.strerror or error}")
    except ValueError as error:
        told.problems.append(Problem(file, f"is not a text file: {error}"))
    return None


def _put_together(made: _Converted) -> None:
    told, models = made.told, list(made.told.models.values())
    alone = "models are in a model_config_file: convert it together with this one"
    if made.session is not None:
        session, source = made.session
        for model in models:
            model.fill(session.values, source)
        if not models:
            told.note(f"{source}: nothing is made of it alone; {alone}")
        fractions = {model.name: session.fraction for model in models}
        share_memory(models, fractions, source, told)
    if made.platform is not None:
        platform_config.apply(made.platform, models, told)
        if not models:
            told.note(f"{made.platform.source}: nothing is made of its sessions alone; {alone}")
        fractions = {model.name: platform_config.fraction(made.platform, model) for model in models}
        share_memory(models, fractions, made.platform.source, told)


def _models(text: str, file: str, made: _Converted) -> None:
    read_models(text, file, made.told)
    if made.told.lists_none:
        made.told.refuse(
            file, "lists no model; give model_config_list { config { name: ... base_path: ... } }"
        )


def _platform(text: str, file: str, made: _Converted) -> None:
    made.platform = platform_config.read_platform(text, file, made.told)


def _batching(text: str, file: str, made: _Converted) -> None:
    read_batching(text, file, made.told)


def _monitoring(text: str, file: str, made: _Converted) -> None:
    read_monitoring(text, file, made.told)


def _tls(text: str, file: str, made: _Converted) -> None:
    check_tls(text, file, made.told)
    made.told.put("tls.file", os.path.abspath(file), Source(file))


def _session(text: str, file: str, made: _Converted) -> None:
    try:
        session = read_session(parse(text, tfs.ConfigProto()))
    except TextError as error:
        made.told.refuse(file, str(error))
        return
    made.session = session, Source(file)
    for note in session.notes:
        made.told.note(f"{file}: {note}")


def _processor(text: str, file: str, made: _Converted) -> None:
    read_processor(text, file, made.told)


_READERS: Mapping[str, Callable[[str, str, _Converted], None]] = {
    "model_config_file": _models,
    "platform_config_file": _platform,
    "batching_parameters_file": _batching,
    "monitoring_config_file": _monitoring,
    "ssl_config_file": _tls,
    "tensorflow_session_config_file": _session,
    _PROCESSOR: _processor,
}
