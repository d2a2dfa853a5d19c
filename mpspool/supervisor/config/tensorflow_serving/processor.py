"""The JSON that DeepRec's processor is given, alone or within that of an EAS service.

It is read as YAML, of which JSON is a part: so its trailing commas, and the # comments of DeepRec's own example, are
no errors, and every value has its line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from mpspool.supervisor.config.explain import nearest
from mpspool.supervisor.config.layers import Layer, Location, Source, source_of
from mpspool.supervisor.config.pool_file import read_text
from mpspool.supervisor.config.tensorflow_serving.told import Model, Told, sessions
from mpspool.supervisor.version_folders import is_number

DEFAULT_NAME = "default"
_CONFIG = "model_config"
_NO_EQUIVALENT = "has no equivalent here"
# What has no meaning here, and why.
_NOTES = {
    "checkpoint_dir": "checkpoints are not followed: what savedmodel_dir holds is served, and new versions of it",
    "select_session_policy": "the worker with the least to do takes a request; scheduling.dispatch has round_robin",
    "use_per_session_threads": "each worker is a process with threads of its own",
    "use_multi_stream": "each worker is a process with streams of its own",
    "enable_device_placement_optimization": "TensorFlow places operations by itself",
    "omp_num_threads": "set OMP_NUM_THREADS in the environment for libraries that look at it",
    "kmp_blocktime": "set KMP_BLOCKTIME in the environment for libraries that look at it",
    "init_timeout_minutes": "nothing waits for it in DeepRec either; start_timeout_s bounds a worker's start",
    "warmup_file_name": "requests of the processor's own form; put recorded ones into"
    " assets.extra/tf_serving_warmup_requests of the version, as `mpspool capture` does",
    "model_update_inter_threads": "a new version is loaded by other processes",
    "model_update_intra_threads": "a new version is loaded by other processes",
    "lock_timeout": _NO_EQUIVALENT,
    **dict.fromkeys(
        (
            *("redis_url", "redis_password", "read_thread_num", "update_thread_num"),
            *("shard_embedding", "embedding_names", "shard_instance_count", "id_type"),
            *("ev_storage_type", "ev_storage_path", "ev_storage_size"),
        ),
        f"{_NO_EQUIVALENT}: a model's tables are in its SavedModel",
    ),
    **dict.fromkeys(
        ("timeline_start_step", "timeline_interval_step", "timeline_trace_count", "timeline_path"),
        "no timeline is written",
    ),
    **dict.fromkeys(
        ("oss_endpoint", "oss_access_id", "oss_access_key"),
        "who opens a base path with a scheme takes these from its own environment",
    ),
}
_READ = {
    *(
        "session_num",
        "cpusets",
        "gpu_ids_list",
        "inter_op_parallelism_threads",
        "intra_op_parallelism_threads",
    ),
    *("enable_inline_execute", "signature_name", "savedmodel_dir", "feature_store_type", "model_store_type"),
    "serialize_protocol",
}
# What would be worth a word only with a value.
_EMPTY = (None, "", 0, False)
_SIGNATURE = "serving_default"
_LOCAL_STORES = ("memory", "local", "localredis")
_SURROGATE = re.compile("[\ud800-\udfff]")


def looks_like(text: str) -> bool:
    """Whether it is JSON, rather than a protocol buffer as text."""
    return text.lstrip("\ufeff \t\r\n").startswith("{")


def read_processor(text: str, file: str, told: Told) -> None:
    """Adds the models that the text describes; what is wrong with it is among the problems."""
    if not looks_like(text):
        told.refuse(file, 'is no JSON; it holds {"model_config": {...}}, or an EAS service with models')
        told.left_out.add("models")
        return
    # No string of JSON has a tab in it, and YAML would have none between values.
    layer = read_text(text.lstrip("\ufeff").replace("\t", " "), Path(file))
    told.problems += layer.problems
    if not layer.complete:
        told.left_out.add("models")
        return
    if _SURROGATE.search(json.dumps(layer.values, ensure_ascii=False, default=str)):
        told.refuse(file, "has half a character (\\ud800 to \\udfff); write it whole, without \\u")
        told.left_out.add("models")
        return
    _Reader(layer, file, told).read()


class _Reader:
    def __init__(self, layer: Layer, file: str, told: Told) -> None:
        self._layer = layer
        self._file = file
        self._told = told

    def read(self) -> None:
        values = self._layer.values
        models = values.get("models")
        if isinstance(models, list):
            for index, item in enumerate(models):
                self._service(item, ("models", index))
        elif _CONFIG in values:
            self._service(values, ())
        elif "savedmodel_dir" in values:
            self._model(DEFAULT_NAME, values, ())
        else:
            self._refuse("", "describes no model; give model_config with savedmodel_dir, or models", ())
        if not self._told.models:
            self._told.left_out.add("models")
        others = [key for key in values if key not in ("models", "name", _CONFIG)]
        if others and (_CONFIG in values or models):
            self._told.note(f"{self._file}: {', '.join(others)}: for EAS alone, without a meaning here")

    def _service(self, item: object, at: Location) -> None:
        """One model of an EAS service."""
        if not isinstance(item, dict) or not isinstance(item.get(_CONFIG), dict):
            self._refuse(_path(at), f"expected {{name: ..., {_CONFIG}: {{...}}}}", at)
            return
        name = item.get("name", DEFAULT_NAME)
        if not isinstance(name, str) or not name:
            self._refuse(_path(at), f"{name!r} is no name", (*at, "name"))
            return
        if at:
            others = [key for key in item if key not in ("name", _CONFIG)]
            if others:
                self._told.note(f"{self._file}: {', '.join(others)} of a model: for EAS alone")
        self._model(name, item[_CONFIG], (*at, _CONFIG))

    def _model(self, name: str, config: Mapping[str, Any], at: Location) -> None:
        if name in self._told.models:
            self._refuse(f"models.{name}", "another model has this name already; rename one", at)
            return
        model = Model(name, sources={"": self._source(at)})
        self._told.models[name] = model
        self._base_path(model, config, at)
        self._slots(model, config, at)
        self._threads(model, config, at)
        self._note(config, at)

    def _base_path(self, model: Model, config: Mapping[str, Any], at: Location) -> None:
        folder, here = config.get("savedmodel_dir"), (*at, "savedmodel_dir")
        if not isinstance(folder, str) or not folder:
            self._refuse(f"models.{model.name}.savedmodel_dir", "missing; give the SavedModel's folder", here)
            model.put("base_path", "(none)", self._source(at))
            self._told.left_out.add(f"models.{model.name}.base_path")
            return
        path = folder.rstrip("/") or "/"
        last = PurePosixPath(path).name
        if is_number(last):  # one version of a model, and not the folder that has them
            model.put("version_policy", [int(last)], self._source(here))
            path = path[: -len(last)].rstrip("/") or "/"
        model.put("base_path", path, self._source(here))

    def _slots(self, model: Model, config: Mapping[str, Any], at: Location) -> None:
        count = self._whole(config, "session_num", at, least=1)
        devices, cpusets = config.get("gpu_ids_list"), config.get("cpusets")
        if count:
            model.fill({**sessions(count), "gpus": devices or "auto"}, self._source((*at, "session_num")))
        elif devices:
            model.put("gpus", devices, self._source((*at, "gpu_ids_list")))
        if cpusets:
            model.put("cpusets", cpusets, self._source((*at, "cpusets")))

    def _threads(self, model: Model, config: Mapping[str, Any], at: Location) -> None:
        for kind in ("intra", "inter"):
            key = f"{kind}_op_parallelism_threads"
            if threads := self._whole(config, key, at, least=0):
                model.put(f"{kind}_op_threads", threads, self._source((*at, key)))
        if config.get("enable_inline_execute") is True:
            model.put("inter_op_threads", 1, self._source((*at, "enable_inline_execute")))

    def _whole(self, config: Mapping[str, Any], key: str, at: Location, *, least: int) -> int:
        """The number there; 0 where there is none that can be used."""
        value = config.get(key)
        if value is None:
            return 0
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self._refuse(key, f"{value!r}: give a whole number from {least} on", (*at, key))
            return 0
        return value

    def _note(self, config: Mapping[str, Any], at: Location) -> None:
        for key, value in config.items():
            if key in _NOTES:
                if value not in _EMPTY:
                    self._told.note(f"{self._source((*at, key))}: {key}: {_NOTES[key]}")
            elif key not in _READ:
                near = nearest(key, (*_NOTES, *_READ))
                meant = f"; did you mean {near}?" if near else ""
                self._told.note(f"{self._source((*at, key))}: {key} is not known, and not used{meant}")
        if (signature := config.get("signature_name", _SIGNATURE)) != _SIGNATURE:
            source = self._source((*at, "signature_name"))
            self._told.note(
                f"{source}: signature_name: a client that names none gets {_SIGNATURE}, not {signature}"
            )
        if (store := config.get("feature_store_type", "local")) not in _LOCAL_STORES:
            source = self._source((*at, "feature_store_type"))
            self._told.note(f"{source}: feature_store_type {store}: {_NOTES['redis_url']}")

    def _source(self, at: Location) -> Source:
        return source_of(self._layer.sources, at)

    def _refuse(self, path: str, text: str, at: Location) -> None:
        source = self._source(at)
        where = str(source) if source.name else self._file
        self._told.refuse(path or where, f"in {where}: {text}" if path else text, source.line)


def _path(at: Location) -> str:
    return f"models[{at[1]}]" if len(at) > 1 else ""
