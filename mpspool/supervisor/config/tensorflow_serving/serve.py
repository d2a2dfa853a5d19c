"""A command line of tensorflow_model_server and the files it names, as layers of the configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mpspool.core import tfs
from mpspool.core.errors import Problem, StartError
from mpspool.supervisor.config.layers import Layer, Source
from mpspool.supervisor.config.tensorflow_serving import flags as command_line
from mpspool.supervisor.config.tensorflow_serving import platform_config
from mpspool.supervisor.config.tensorflow_serving.flag_table import SECRET, SESSION
from mpspool.supervisor.config.tensorflow_serving.flags import KNOWN, Given
from mpspool.supervisor.config.tensorflow_serving.memory import share_memory
from mpspool.supervisor.config.tensorflow_serving.model_config import put_base_path, read_models
from mpspool.supervisor.config.tensorflow_serving.processor import read_processor
from mpspool.supervisor.config.tensorflow_serving.proto_text import TextError, parse
from mpspool.supervisor.config.tensorflow_serving.session_config import Session, read_session
from mpspool.supervisor.config.tensorflow_serving.small_files import read_monitoring
from mpspool.supervisor.config.tensorflow_serving.told import Model, Told, sessions

# A file's text. Raises OSError, or UnicodeDecodeError.
ReadText = Callable[[str], str]

_MODEL_FILE = "model_config_file"
_DEFAULTS = Source("tensorflow_model_server")
# TensorFlow Serving listens on every network, has REST off, and anyone may say which models are served.
_DEFAULT_KEYS = {"host": "0.0.0.0", "rest_port": 0, "allow_reload": True}  # noqa: S104  as it does
# DeepRec's variables say it for models of which no file says anything; by variable, the key.
_BELOW = {"CONTEXTS_COUNT_PER_GPU": "contexts_per_gpu", "SESSION_GROUP_CPUSET": "cpusets"}
_RECEIVE = "grpc.max_receive_message_length"
_MAX_SHOWN = 200
# What they come to is said where it is found out.
_TOLD_THERE = ("grpc_channel_arguments", "per_process_gpu_memory_fraction")


@dataclass(frozen=True, slots=True)
class Serving:
    """What a command line comes to.

    Attributes:
        below: what files and defaults say, as the pool file would.
        above: what flags say.
        environ: the environment, without what stands in `below`.
        lists_none: the model_config_file lists no model: there is to be none until it does, or a client says which.
        every_model: what is said of a model that is not listed, and that a client has served.
        notes: what has another meaning here or none, a line each.
        watched: the model_config_file; "" for none.
        poll_s: how often that is looked at; 0 for never.
        watched_text: what stood in it.
        check: nothing is to be started.
        detach: the pool is to run on in the background.
    """

    below: Layer
    above: Layer
    environ: Mapping[str, str]
    lists_none: bool = False
    every_model: Mapping[str, object] = field(default_factory=dict)
    notes: Sequence[str] = ()
    watched: str = ""
    poll_s: int = 0
    watched_text: str = ""
    check: bool = False
    detach: bool = False


@dataclass(slots=True)
class _Reading:
    """While it is read."""

    given: Given
    read: ReadText
    files: Told = field(default_factory=Told)
    flags: Told = field(default_factory=Told)
    watched: str = ""

    def text(self, flag: str) -> str | None:
        """What stands in the file that the flag names; None, and a problem, where it cannot be read."""
        file = self.given.text(flag)
        try:
            return self.read(file)
        except OSError as error:
            self.files.refuse(f"--{flag}", f"{file} cannot be read: {error.strerror or error}")
        except ValueError as error:
            why = (
                f"{error.reason} at byte {error.start}"
                if isinstance(error, UnicodeDecodeError)
                else str(error)
            )
            self.files.refuse(f"--{flag}", f"{file[:_MAX_SHOWN]!r} is not a text file: {why}")
        return None


def read_serving(
    arguments: Sequence[str], environ: Mapping[str, str], read: ReadText, fields: Iterable[str]
) -> Serving:
    """Reads the command line and the files that it names.

    Args:
        arguments: without the program's name.
        environ: the environment.
        read: reads a file.
        fields: the pool's keys that one word can set.

    Raises:
        StartError: a flag is unknown, or has no value that can be read. What is wrong in files, and what does not go
            together, is among the problems of `below`.
    """
    given = command_line.parse(arguments, fields)
    if given.problems:
        raise StartError(given.problems)
    if unusable := _refusals(given):
        raise StartError(unusable)
    reading = _Reading(given, read)
    models, other = _read_all_models(reading), Model("")
    _read_sessions(reading, models, other)
    _read_others(reading)
    _read_flags(reading)
    _note(reading)
    below, left = _with_environment(reading.files.layer(), environ)
    above = reading.flags.layer()
    for key, text in given.pool.items():
        above.put(key, text, f"--{key.replace('.', '_')}")
    return Serving(
        below=below,
        above=above,
        environ=left,
        lists_none=bool(reading.files.lists_none),
        every_model=other.values,
        notes=[*reading.flags.notes, *reading.files.notes],
        watched=given.text(_MODEL_FILE),
        poll_s=given.number("model_config_file_poll_wait_seconds") if given.text(_MODEL_FILE) else 0,
        watched_text=reading.watched,
        check=bool(given.get("check")),
        detach=bool(given.get("detach")),
    )


def _refusals(given: Given) -> list[Problem]:
    """What TensorFlow Serving does not start with either, and what cannot be had here."""
    found = []
    if given.get("port") == 0 and not given.text("grpc_socket_path"):
        text = "At least one of server_options.grpc_port or server_options.grpc_socket_path must be set."
        found.append(Problem("--port", text))
    if given.get("use_alts_credentials"):
        found.append(Problem("--use_alts_credentials", KNOWN["use_alts_credentials"].here))
    if not any(given.text(flag) for flag in ("model_base_path", _MODEL_FILE, "processor_config_file")):
        text = "Both server_options.model_base_path and server_options.model_config_file are empty!"
        found.append(Problem("--model_base_path", f"{text} Give one of them"))
    if not given.text("platform_config_file"):
        found += _batching_refusals(given) + _thread_refusals(given)
    found += [
        Problem(f"--{name}", f"{given.get(name)}: {why}")
        for name, least, most, why in (
            ("model_config_file_poll_wait_seconds", 0, None, "must be 0 or more; below 0 is for tests alone"),
            ("file_system_poll_wait_seconds", 0, None, "must be 0 or more; below 0 is for tests alone"),
            ("max_num_load_retries", 0, None, "must be 0 or more"),
            ("session_num_per_group", 0, None, "must be 0 or more"),
            ("per_process_gpu_memory_fraction", 0, 1, "must be from 0 to 1; workers have no unified memory"),
        )
        if given.get(name) < least or (most is not None and given.get(name) > most)  # type: ignore[operator]
    ]
    return found


def _batching_refusals(given: Given) -> list[Problem]:
    if given.get("enable_batching") or not given.text("batching_parameters_file"):
        return []
    text = "server_options.batching_parameters_file is set without setting server_options.enable_batching to true."
    return [Problem("--batching_parameters_file", f"{text} Give --enable_batching, or leave it out")]


def _thread_refusals(given: Given) -> list[Problem]:
    names = [f"tensorflow_{kind}_parallelism" for kind in ("session", "intra_op", "inter_op")]
    if not all(given.number(name) > 0 for name in names):
        return []
    text = (
        "Either configure server_options.tensorflow_session_parallelism or"
        " (server_options.tensorflow_intra_op_parallelism, server_options.tensorflow_inter_op_parallelism) separately."
        " You cannot configure all."
    )
    return [Problem(f"--{names[0]}", text)]


# -- models -------------------------------------------------------------------------------------------------------


def _read_all_models(reading: _Reading) -> list[Model]:
    given, told = reading.given, reading.files
    if given.text(_MODEL_FILE):
        if (text := reading.text(_MODEL_FILE)) is None:
            told.left_out.add("models")
        else:
            reading.watched = text
            read_models(text, given.text(_MODEL_FILE), told)
            if told.lists_none:
                told.note(
                    f"{told.lists_none} lists no model: none is served until it does, or a client says which"
                )
        _ignored(reading, ("model_name", "model_base_path", "processor_config_file"), f"--{_MODEL_FILE}")
    elif given.text("processor_config_file"):
        if (text := reading.text("processor_config_file")) is None:
            told.left_out.add("models")
        else:
            read_processor(text, given.text("processor_config_file"), told)
        _ignored(reading, ("model_name", "model_base_path"), "--processor_config_file")
    else:
        source = Source("--model_base_path")
        model = Model(given.text("model_name"), sources={"": source})
        told.models[model.name] = model
        put_base_path(model, given.text("model_base_path"), source, told)
    return list(told.models.values())


def _ignored(reading: _Reading, names: Iterable[str], beside: str) -> None:
    for name in names:
        if name in reading.given.values:
            reading.flags.note(f"--{name} is ignored beside {beside}")


# -- sessions ------------------------------------------------------------------------------------------------------


def _read_sessions(reading: _Reading, models: Sequence[Model], other: Model) -> None:
    """What a platform_config_file says of the models, and of any other, or the flags."""
    given, told = reading.given, reading.files
    if given.text("platform_config_file"):
        _ignored(reading, SESSION, "--platform_config_file")
        if (text := reading.text("platform_config_file")) is not None:
            platform = platform_config.read_platform(text, given.text("platform_config_file"), told)
            platform_config.apply(platform, (*models, other), told)
            memory = {model.name: platform_config.fraction(platform, model) for model in models}
            share_memory(models, memory, platform.source, told)
        return
    session, source = _session(reading)
    for model in (*models, other):
        model.fill(session.values, source)
        tags = [tag for tag in given.text("saved_model_tags").split(",") if tag]
        if "saved_model_tags" in given.values and tags:
            model.put("saved_model_tags", tags, Source("--saved_model_tags"))
        _put_warmup(given, model)
    _put_threads(reading)
    _put_slots(reading)
    fraction = float(given.get("per_process_gpu_memory_fraction")) or session.fraction
    if given.values.get("allow_gpu_mem_growth") is False and fraction:
        for model in models:
            model.put("gpu_memory.growth", False, Source("--allow_gpu_mem_growth"))
    flag = "per_process_gpu_memory_fraction"
    where = Source(f"--{flag}") if given.get(flag) else source
    contexts = given.pool.get("contexts_per_gpu") or str(given.number("session_num_per_group") or "")
    share_memory(models, {model.name: fraction for model in models}, where, told, contexts=contexts)


def _put_warmup(given: Given, model: Model) -> None:
    if (name := "enable_model_warmup") in given.values:
        model.put(name, given.get(name), Source(f"--{name}"))
    if (count := given.number(name := "num_request_iterations_for_warmup")) > 0:
        model.put(name, count, Source(f"--{name}"))


def _session(reading: _Reading) -> tuple[Session, Source]:
    """What the tensorflow_session_config_file says."""
    file = reading.given.text("tensorflow_session_config_file")
    source = Source(file)
    if not file or (text := reading.text("tensorflow_session_config_file")) is None:
        return Session(), source
    try:
        session = read_session(parse(text, tfs.ConfigProto()))
    except TextError as error:
        reading.files.refuse(file, f"{error}; it holds lines such as intra_op_parallelism_threads: 8")
        return Session(), source
    for note in session.notes:
        reading.files.note(f"{file}: {note}")
    return session, source


def _put_threads(reading: _Reading) -> None:
    given = reading.given
    both = given.number("tensorflow_session_parallelism")
    own = [given.number(f"tensorflow_{kind}_op_parallelism") for kind in ("intra", "inter")]
    for kind, threads in zip(("intra", "inter"), own, strict=True):
        flag = (
            f"tensorflow_{kind}_op_parallelism"
            if any(number > 0 for number in own)
            else "tensorflow_session_parallelism"
        )
        count = threads if any(number > 0 for number in own) else both
        if count > 0:
            reading.flags.put(f"{kind}_op_threads", count, Source(f"--{flag}"))


def _put_slots(reading: _Reading) -> None:
    given = reading.given
    source = Source("--session_num_per_group")
    if count := given.number("session_num_per_group"):
        for key, value in sessions(count).items():
            reading.flags.put(key, value, source)
        # Whatever there is: cpu_slots alone would ask for the CPU.
        reading.files.put("gpus", "auto", source)


# -- the rest -------------------------------------------------------------------------------------------------------


def _read_others(reading: _Reading) -> None:
    given, told = reading.given, reading.files
    for key, value in _DEFAULT_KEYS.items():
        told.put(key, value, _DEFAULTS)
    if given.text("monitoring_config_file"):
        if (text := reading.text("monitoring_config_file")) is not None:
            read_monitoring(text, given.text("monitoring_config_file"), told)
        if not given.get("rest_api_port"):
            reading.flags.note("--monitoring_config_file has no effect without --rest_api_port")
    if given.text("ssl_config_file"):  # it is read where certificates are looked at
        told.put("tls.file", given.text("ssl_config_file"), Source("--ssl_config_file"))


def _read_flags(reading: _Reading) -> None:
    """What is taken as it is."""
    given, told = reading.given, reading.flags
    platform = bool(given.text("platform_config_file"))
    for name, value in given.values.items():
        flag, source = KNOWN[name], Source(f"--{name}")
        if not flag.key or (platform and name in SESSION) or value == "":
            continue
        told.put(flag.key, value, source)
    if (name := "load_retry_interval_micros") in given.values:
        told.put(name, max(0, given.number(name)), Source(f"--{name}"))
    if given.text("batching_parameters_file") and not platform:
        source = Source("--batching_parameters_file")
        told.put("batching.parameters_file", given.text("batching_parameters_file"), source)
    if "rest_api_port" in given.values:
        port = given.number("rest_api_port")
        if port and port == given.get("port"):
            told.note(
                f"--rest_api_port={port} is the gRPC port: HTTP/REST is not served, as with TensorFlow Serving"
            )
            port = 0
        told.put("rest_port", port, Source("--rest_api_port"))
    _read_channel(given.text("grpc_channel_arguments"), told)


def _read_channel(text: str, told: Told) -> None:
    for argument in filter(None, text.split(",")):
        key, _, value = argument.partition("=")
        source = Source("--grpc_channel_arguments")
        if key == _RECEIVE and value.isdecimal() and int(value):
            told.put("max_message_bytes", int(value), source)
        elif key == _RECEIVE and value in ("-1", "0"):
            continue  # no limit, which is the default
        else:
            told.note(f"{source}: {key[:_MAX_SHOWN]} has no meaning here: the gRPC front is our own")


def _note(reading: _Reading) -> None:
    """Of each flag that does not do what it says: what it does."""
    ignored = SESSION if reading.given.text("platform_config_file") else ()
    for name, value in reading.given.values.items():
        flag = KNOWN[name]
        if flag.does in ("same", "refused") or name in ignored or name in _TOLD_THERE:
            continue
        if value == flag.default and flag.does == "maps":
            continue
        shown = "" if name in SECRET else f"={_word(value)}"
        reading.flags.note(f"--{name}{shown}: {flag.here}")


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)[:_MAX_SHOWN]


def _with_environment(layer: Layer, environ: Mapping[str, str]) -> tuple[Layer, dict[str, str]]:
    """DeepRec's variables below what files say of each model; and the environment without them."""
    left = dict(environ)
    for variable, key in _BELOW.items():
        value = left.pop(variable, "").strip()
        if value and (key,) not in layer.sources:
            layer.put(key, value, variable)
    return layer, left
