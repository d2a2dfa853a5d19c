"""pydantic's errors in a user's words: where, which value, from which source, what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mpspool.core.errors import Problem
from mpspool.supervisor.config.layers import Location, Source, dotted, source_of
from mpspool.supervisor.config.scheduling import SchedulingConfig

# A section's fields and what each is for.
Fields = Mapping[str, str]


def explain(
    errors: Iterable[Mapping[str, Any]],
    sections: Mapping[str, Fields],
    sources: Mapping[Location, Source],
    shown: Callable[[Location], Location],
) -> list[Problem]:
    """Turns validation errors into problems.

    Args:
        errors: what ValidationError.errors() gives.
        sections: by the key a section stands under ("" for the top), its fields and their descriptions;
            "models.mps" for one that has others in a model.
        sources: where each value stands.
        shown: a location as the user wrote it.
    """
    return [_problem(error, sections, sources, shown) for error in errors]


def _problem(
    error: Mapping[str, Any],
    sections: Mapping[str, Fields],
    sources: Mapping[Location, Source],
    shown: Callable[[Location], Location],
) -> Problem:
    location: Location = error["loc"]
    words = [part for part in location if isinstance(part, str)]
    key = words[-1] if words else ""
    prefix = "models." if words[:1] == ["models"] else ""
    section = next((word for word in reversed(words[:-1]) if word in sections), "")
    fields = sections.get(prefix + section, sections[section])
    source = source_of(sources, location)
    where = f" in {source}" if source.name else ""
    if error["type"] == "value_error" and key in sections:  # its fields do not go together
        message = f"{where.lstrip()}: {error['ctx']['error']}".removeprefix(": ")
    else:
        message = _message(error, prefix + section, key, fields, where, sections)
    return Problem(dotted(shown(location)), message, source.line)


def _message(
    error: Mapping[str, Any],
    section: str,
    key: str,
    fields: Fields,
    where: str,
    sections: Mapping[str, Fields],
) -> str:
    match error["type"]:
        case "extra_forbidden":
            return f"unknown key{where}; {_suggest(section, key, fields, sections)}"
        case "missing":
            return f"missing{where}{_remark(fields.get(key, ''))}"
        case "value_error":
            text = str(error["ctx"]["error"])
        case "model_type":
            text = "expected fields of its own"
            if key in _EXAMPLES:
                text += f", such as {key}: {_EXAMPLES[key]}"
            if error["input"] is None:
                return f"nothing{where}: {text}"
        case "bool_parsing" | "bool_type":
            text = f"must be true or false{_remark(fields.get(key, ''))}"
        case "tuple_type":
            text = f"must be a list{_remark(fields.get(key, ''))}"
        case "byte_size" | "byte_size_unit":
            text = f"must be a positive number of bytes, or text such as 512MiB or 1GiB{_remark(fields.get(key, ''))}"
        case _:
            must = re.sub(r"^(?:Input|String|Tuple|Value) should ", "must ", str(error["msg"]))
            must = must.partition(", unable to parse")[0]
            text = f"{must}{_remark(fields.get(key, ''))}"
    return f"{_value(error['input'])}{where}: {text}"


# How sections are written.
_EXAMPLES = {
    "gpu_memory": "{limit_bytes: 2GiB}",
    "mps": "{active_thread_percentage: 50}",
    "restart": "{retries: 3}",
    "scheduling": "{policy: sjf}",
    "tls": "{key: server.key, cert: server.pem}",
    "weights": "{shared: off}",
    "workers": "{start: exec}",
}


_SAVED_MODEL = "said by the SavedModel itself"
# What people know from Triton's config.pbtxt, and what says it here: as in docs/triton.md, in fewer words.
_TRITON = {
    "allow_timeout_override": "always so: a call's own deadline counts, by REST the header x-mpspool-timeout-ms",
    "backend": _SAVED_MODEL,
    "default_model_filename": _SAVED_MODEL,
    "default_priority_level": "0, of requests without the metadata x-mpspool-priority",
    "default_queue_policy": "max_queued_requests, max_enqueued_batches, grpc_timeout_ms and rest_timeout_ms",
    "default_timeout_microseconds": "grpc_timeout_ms and rest_timeout_ms, of the pool",
    "dynamic_batching": "batching",
    "ensemble_scheduling": "nothing: clients ask one model after another, or one SavedModel has both",
    "host_policy": "cpusets",
    "input": _SAVED_MODEL,
    "instance_group": "contexts_per_gpu, or cpu_slots",
    "max_batch_size": "batching.max_batch_size",
    "max_queue_delay_microseconds": "batch_timeout_micros, or adaptive",
    "max_queue_size": "max_queued_requests, and where requests are batched max_enqueued_batches",
    "model_transaction_policy": "nothing: each request has one answer",
    "model_warmup": "assets.extra/tf_serving_warmup_requests in a version's folder, which mpspool capture writes",
    "optimization": "nothing: the graph runs as it was saved, with TensorFlow's own optimizers",
    "output": _SAVED_MODEL,
    "parameters": "intra_op_threads, inter_op_threads and saved_model_tags",
    "passive": "nothing",
    "platform": _SAVED_MODEL,
    "preferred_batch_size": "nothing: a batch takes what waits, up to max_batch_size",
    "preserve_ordering": "nothing: each answer goes as soon as it is there",
    "priority_levels": "the metadata x-mpspool-priority of each request, and the larger goes first",
    "priority_queue_policy": "nothing: all priorities are in one queue, and in a full one the lowest makes way",
    "profile": "nothing",
    "rate_limiter": "scheduling.running_per_device",
    "response_cache": "nothing: each request is run",
    "secondary_devices": "nothing",
    "sequence_batching": "nothing: any worker may run a request",
    "timeout_action": "always REJECT: who cannot be answered by its deadline is told DEADLINE_EXCEEDED",
}


# What the pool says for all models, where a model says it.
_OF_POOL = {
    "parameters_file": "batching.parameters_file is for all models; a version's own parameters stand in"
    " batching_params.pbtxt in its folder, with batching: {per_model: true}, a model's own here",
    "per_model": "batching.per_model is for all models",
}
_OF_MODEL = "models."
_MODEL = f"{_OF_MODEL}models"
# What a request says, where a model says it.
_DEADLINE = (
    "a request has its own deadline, and else grpc_timeout_ms or rest_timeout_ms, which are for all models"
)
_OF_REQUEST = {
    **dict.fromkeys(
        ("deadline", "deadline_ms", "timeout", "timeout_ms", "timeout_micros", "timeout_s"), _DEADLINE
    ),
    "priority": "a request says it by itself, in the metadata x-mpspool-priority, and the larger goes first",
}


def _suggest(section: str, key: str, fields: Fields, sections: Mapping[str, Fields]) -> str:
    pool, of_model = sections[""], section.startswith(_OF_MODEL)
    if key in SchedulingConfig.model_fields:
        if not of_model:
            return f"write it as scheduling: {{{key}: ...}}"
        beside = "a model has it beside its base_path"
        return beside if key == "policy" else f"scheduling.{key} is for all models"
    if key == "scheduling" and section == _MODEL:
        return "a model has policy: sjf beside its base_path; the rest of scheduling is for all models"
    if key in _OF_POOL:
        return _OF_POOL[key]
    if key in _OF_REQUEST and section in ("", _MODEL):
        return _OF_REQUEST[key]
    if (
        section not in ("", _MODEL)
        and key != "models"
        and key in (sections.get("models", ()) if of_model else pool)
    ):
        return f"write it beside {section.removeprefix(_OF_MODEL)}, not in it"
    if of_model and key != "models" and key in pool:
        return f"{key} is for all models"
    if key in _TRITON:
        return f"what it is to Triton is here {_TRITON[key]}"
    if key in sections.get("batching", ()) and key != "enabled":
        return f"write it as batching: {{{key}: ...}}"
    near = nearest(key, fields)
    return f"did you mean {near}?" if near else f"known are {', '.join(fields)}"


def nearest(key: str, fields: Iterable[str]) -> str:
    """The field that was probably meant, in capitals or not; "" where none looks like it."""
    known = {field.lower(): field for field in fields}
    return known[near[0]] if (near := difflib.get_close_matches(key.lower(), known, n=1)) else ""


def _remark(description: str) -> str:
    """What the field is for, in its first words."""
    words = re.split(r"[.;:] ", " ".join(description.split()))[0].rstrip(".")
    capitals = words[:2].isupper() and words[1:2] != " "  # NVIDIA stays as it is
    first = words[:1] if capitals else words[:1].lower()
    return f" ({first}{words[1:]})" if words else ""


def _value(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."
