"""What a user can ask for, as pydantic models, and `read_config`, which merges file, environment and flags.

Flags win over the environment, the environment over the file. A flag or variable for something that
each model can also say for itself (`gpus`, `contexts_per_gpu`, ...) holds for every model, whatever
the file says about one of them; but for parameters of batching where each version has its own.

These modules alone import pydantic: import them where they are used, not at the top of the CLI.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ByteSize, Field, ValidationError
from pydantic_core import ErrorDetails

from mpspool.core.errors import Problem
from mpspool.core.rundir import default_run_dir
from mpspool.core.settings import MAX_MESSAGE_BYTES, MONITORING_PATH, VersionPolicy
from mpspool.supervisor.config.batching import (
    POOL_WIDE,
    BatchingConfig,
    ModelBatching,
    as_asked_for,
    as_batching,
)
from mpspool.supervisor.config.batching_file import BatchingFileError, read_batching_file
from mpspool.supervisor.config.environment import (
    ENABLE_MPS,
    MODEL,
    read_affinity,
    read_environment,
    read_models,
)
from mpspool.supervisor.config.explain import explain, nearest
from mpspool.supervisor.config.findings import Findings
from mpspool.supervisor.config.layers import (
    Layer,
    Location,
    Source,
    dotted,
    leave_out,
    overlay,
    rebase,
    source_of,
)
from mpspool.supervisor.config.model_entries import (
    FLAG,
    Entry,
    check_names,
    only,
    override,
    put_named,
    take_entries,
)
from mpspool.supervisor.config.pool_file import read_file
from mpspool.supervisor.config.scheduling import Policy, SchedulingConfig
from mpspool.supervisor.config.sections import (
    GpuMemory,
    MpsConfig,
    RestartConfig,
    Shares,
    TlsConfig,
    WeightsConfig,
    WorkersConfig,
    as_mode,
)
from mpspool.supervisor.config.values import (
    Cpusets,
    Gpus,
    MonitoringPath,
    Name,
    Port,
    Seconds,
    Section,
    Texts,
    Threads,
    Versions,
    on_off,
    why_no_text,
)
from mpspool.supervisor.cpus import MAX_CPUS
from mpspool.supervisor.ports import DEFAULT_GRPC_PORT, DEFAULT_REST_PORT
from mpspool.supervisor.remote.place import default_cache_dir
from mpspool.supervisor.version_folders import MAX_VERSION

if TYPE_CHECKING:  # who has none needs no protocol buffers
    from mpspool.supervisor.config.tensorflow_serving.serve import Serving

# Each takes hundreds of MiB of its GPU, and MPS has 60 at most.
MAX_CONTEXTS_PER_GPU = 1024
_MAX_SIMULATED_GPUS = 64
_PATHS = (
    "run_dir",
    "cache_dir",
    "grpc_socket_path",
    "weights.folder",
    "mps.pipe_directory",
    "batching.parameters_file",
    "tls.key",
    "tls.cert",
    "tls.client_ca",
    "tls.file",
)


class Placement(Section):
    """Where workers run. Said for the pool it holds for every model that does not say otherwise."""

    gpus: Gpus | None = None
    """GPUs to use, by visible id (CUDA_VISIBLE_DEVICES renumbers): "all", "none" or a list such as 0,2.
    Not given, or "auto": all that are visible, and CPU slots where none is."""
    contexts_per_gpu: Annotated[int, Field(ge=1, le=MAX_CONTEXTS_PER_GPU)] | None = None
    """Worker processes of each model on each of its GPUs; 4 when not given."""
    cpu_slots: Annotated[int, Field(ge=1, le=MAX_CPUS)] | None = None
    """Worker processes of each model where it runs on the CPU; not given, one per 2 cores, shared by
    the models, at least 1 each. Given without gpus ("auto" is given), it asks for the CPU even where GPUs are visible."""
    cpusets: Cpusets | None = None
    """CPUs of each slot: "2-4;5-7" or "2,3,4;5,6,7", slot i taking set i; "split" shares out the
    CPUs we may use, evenly and NUMA-aware; "none" pins nothing; "auto", the default, splits too, but a slot
    whose share is one CPU may use all of its NUMA node, for the router needs a CPU as well."""
    intra_op_threads: Threads | None = None
    """Threads within one operation; 0 leaves it to TensorFlow. Not given: a CPU slot's number of CPUs."""
    inter_op_threads: Threads | None = None
    """Operations at once; with 0 or 1 they run one after another in the calling thread, which costs least
    and is the default."""
    swap: Literal["surge", "rolling", "stop_first"] | None = None
    """How a new version takes the place of another: surge starts all its workers beside the other's, rolling goes slot by
    slot, stop_first ends the old ones before the new ones start. Not given: surge, or rolling where MPS would not take twice
    the workers of a GPU, or its memory not hold what they take at their start."""
    merge_copy_streams: bool | None = None
    """On a GPU, copy to and from the device on the stream that computes: DeepRec's MERGE_COMPUTE_COPY_STREAM."""


class ModelConfig(Placement):
    """One model."""

    name: Name
    """What clients ask for in model_spec.name."""
    base_path: Annotated[str, Field(min_length=1)]
    """The folder that holds the numbered version folders; with a scheme, such as s3://, it is copied from there."""
    version_policy: Versions = VersionPolicy()
    """Which versions are served: latest, {latest: N} for the newest N, all, or a number or list of them."""
    remote_poll_wait_seconds: Seconds | None = None
    """How often a remote base path is looked at for new versions, in seconds; not given, the pool's."""
    version_labels: dict[Annotated[str, Field(min_length=1)], Annotated[int, Field(ge=0, le=MAX_VERSION)]] = (
        Field(default_factory=dict)
    )
    """Names for versions, by which clients may ask for them: stable: 7."""
    allow_signature_changes: bool = False
    """A new version may lack signatures, inputs or outputs of the one it replaces, or have other inputs; not given, such
    a version is not served."""
    custom_ops: Texts = ()
    """Shared libraries with operators of your own, loaded before the model."""
    quorum: Annotated[int, Field(ge=1)] = 1
    """READY workers that make the version AVAILABLE."""
    gpu_memory: GpuMemory = GpuMemory()
    """The limits of each worker on a GPU: growth, fraction or limit_bytes, and allocator."""
    mps: Shares = Shares()
    """What differs for this model from the pool's mps: active_thread_percentage, pinned_memory and priority."""
    hang_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 30.0
    """The least seconds after which a running request counts as hung."""
    start_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 600.0
    """The seconds after which a worker that is not READY yet counts as hung."""
    engine: Literal["auto", "session", "tf2"] = "auto"
    """How the model is run; auto takes the Session and falls back to the TF2 loader."""
    saved_model_tags: Texts = ("serve",)
    """Which of the SavedModel's graphs to serve."""
    enable_model_warmup: bool = True
    """A worker is READY only once it has answered the version's recorded requests, or one that is made up."""
    num_request_iterations_for_warmup: Annotated[int, Field(ge=1, le=1000)] = 1
    """How often each recorded request is sent then."""
    batching: Annotated[
        ModelBatching | None,
        BeforeValidator(as_batching, json_schema_input_type=ModelBatching | str | bool | None),
    ] = None
    """What differs for this model from the pool's batching: on, off, or parameters."""
    policy: Policy | None = None
    """Which of this model's requests is next; not given, the pool's scheduling.policy."""
    max_queued_requests: Annotated[int, Field(ge=1)] | None = None
    """Requests waiting for a version of this model; not given, the pool's."""
    max_queued_bytes: Annotated[ByteSize, Field(ge=1)] | None = None
    """Bytes of requests for this model, whatever the version; not given, the pool's max_queued_bytes_per_model."""
    weights: WeightsConfig | None = None
    """What differs for this model from the pool's weights."""


class PoolConfig(Placement):
    """The whole pool."""

    models: tuple[ModelConfig, ...]
    """The models to serve: a list, or a mapping from name to the rest."""
    mps: Annotated[MpsConfig, BeforeValidator(as_mode, json_schema_input_type=MpsConfig | str | bool)] = (
        MpsConfig()
    )
    """NVIDIA MPS: mode (which can stand here alone), pipe_directory, and each worker's share of its GPU."""
    simulate_gpus: Annotated[int, Field(ge=0, le=_MAX_SIMULATED_GPUS)] = 0
    """Run on this many stand-in GPUs, with engines on the CPU: to try a layout, never to serve."""
    simulate_cpus: Annotated[int, Field(ge=0, le=MAX_CPUS)] = 0
    """Plan for this many stand-in CPUs, and pin to none of them."""
    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """The address both fronts listen on; 0.0.0.0 for every network of this machine."""
    grpc_port: Port = DEFAULT_GRPC_PORT
    """The port for gRPC; 0 turns it off."""
    grpc_socket_path: str = ""
    """A UNIX socket for gRPC, beside grpc_port; not given, none."""
    rest_port: Port = DEFAULT_REST_PORT
    """The port for HTTP; 0 turns it off."""
    tls: TlsConfig = TlsConfig()
    """TLS on the gRPC port: key, cert, client_ca and verify_client, or file."""
    run_dir: Path = Field(default_factory=default_run_dir)
    """The folder for this pool's sockets, settings and logs; none other may use it."""
    max_connections: Annotated[int, Field(ge=1)] = 10_000
    """Connections of clients at once, of gRPC and of HTTP each; for one more another makes way, or it is closed."""
    max_message_bytes: Annotated[ByteSize, Field(ge=1, le=MAX_MESSAGE_BYTES)] = ByteSize(MAX_MESSAGE_BYTES)
    """The largest request, in bytes or as "64MiB"; answers are not bounded."""
    max_queued_requests: Annotated[int, Field(ge=1)] = 10_000
    """Requests waiting per model version; one more is answered UNAVAILABLE."""
    max_queued_bytes: Annotated[ByteSize, Field(ge=1)] = ByteSize(2**32)
    """Bytes of requests that are read, wait or run, and of answers that wait for their clients; more is answered RESOURCE_EXHAUSTED."""
    max_queued_bytes_per_model: Annotated[ByteSize, Field(ge=0)] = ByteSize(0)
    """Of max_queued_bytes, what the requests of one model may have; 0 for half of them where several models are served, who share, else for all."""
    scheduling: SchedulingConfig = SchedulingConfig()
    """Which request is next, which worker takes it, and what may run at once."""
    batching: Annotated[
        BatchingConfig, BeforeValidator(as_batching, json_schema_input_type=BatchingConfig | str | bool)
    ] = BatchingConfig()
    """Requests are joined to batches, as TensorFlow Serving does: on, off, or parameters, which say on."""
    file_system_poll_wait_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """How often base paths are looked at for new versions, in seconds; 0 for never after the start."""
    remote_poll_wait_seconds: Seconds = 60.0
    """How often remote base paths are looked at for new versions, in seconds; 0 for never after the start."""
    cache_dir: Path = Field(default_factory=default_cache_dir)
    """The folder for copies of what lies at remote base paths."""
    max_num_load_retries: Annotated[int, Field(ge=0)] = 5
    """How often a version that could not be loaded is tried again."""
    load_retry_interval_micros: Annotated[int, Field(ge=0)] = 60_000_000
    """The time between two tries to load a version, in microseconds; a version whose files have changed is tried at once."""
    allow_reload: bool | None = None
    """Clients may say which models are served: HandleReloadConfigRequest on the gRPC port, as with TensorFlow Serving. Not given, only
    where `host` is this machine's own: whoever may do that has any model loaded that the pool can read."""
    grpc_timeout_ms: Annotated[int, Field(ge=0)] = 0
    """Milliseconds from the beginning of a gRPC call that runs a model, where it brings no deadline, to an answer, which else is
    DEADLINE_EXCEEDED; 0 for no end."""
    rest_timeout_ms: Annotated[int, Field(ge=0)] = 30_000
    """Milliseconds from a REST request's last byte to an answer, which else is 504; 0 for no end. A request may ask for less."""
    rest_cors: bool = False
    """REST answers have the headers by which browsers let pages of other hosts read them."""
    allow_labels_for_unavailable: bool = False
    """HandleReloadConfigRequest may give a label that no other version has to one that is not AVAILABLE yet, as with TensorFlow
    Serving's allow_version_labels_for_unavailable_models."""
    tensor_content: bool = False
    """Answers of Predict have their values in tensor_content, which costs less for integers than the lists that TensorFlow Serving's
    have by default."""
    check_method_names: bool = False
    """A signature is served by the methods alone that its method_name allows, as before TensorFlow 2; native TensorFlow 2 models have
    "tensorflow/serving/predict" in all of theirs."""
    readiness: Literal["any", "all"] = "any"
    """/readyz answers 200 when any model is AVAILABLE, or only when all are."""
    monitoring_path: MonitoringPath = MONITORING_PATH
    """Where TensorFlow Serving's metrics, by its names, are shown on the port for HTTP, ours after them; "" for nowhere."""
    grace_s: Seconds = 30.0
    """Seconds a drain may take before what is left is ended."""
    weights: WeightsConfig = WeightsConfig()
    """One copy of a model version's weights for all its workers: shared, backing and folder."""
    workers: WorkersConfig = WorkersConfig()
    """How worker processes come to be: start."""
    restart: RestartConfig = RestartConfig()
    """How a slot whose worker ended is filled again: retries, backoff_s, max_backoff_s."""

    def resolved(self, model: ModelConfig) -> ModelConfig:
        """The model with the pool's placement where it has none of its own."""
        own = {name: value for name in Placement.model_fields if (value := getattr(model, name)) is not None}
        pool = {name: getattr(self, name) for name in Placement.model_fields}
        return model.model_copy(update=pool | own)


_POOL_SECTIONS: dict[str, type[BaseModel]] = {
    "batching": BatchingConfig,
    "mps": MpsConfig,
    "restart": RestartConfig,
    "scheduling": SchedulingConfig,
    "tls": TlsConfig,
    "weights": WeightsConfig,
    "workers": WorkersConfig,
}
MODE: Location = ("mps", "mode")
# By what is said for the pool, what a model can say for itself under another name.
_MODEL_FIELDS = {
    **{name: name for name in (*Placement.model_fields, "max_queued_requests", "remote_poll_wait_seconds")},
    "scheduling.policy": "policy",
    "max_queued_bytes_per_model": "max_queued_bytes",
    **{
        f"{section}.{name}": f"{section}.{name}"
        for section, fields in (("weights", WeightsConfig), ("mps", Shares), ("batching", ModelBatching))
        for name in fields.model_fields
    },
}
# Of these, what the pool's own says of nothing where versions have theirs.
_OF_VERSIONS = {f"batching.{name}" for name in ModelBatching.model_fields.keys() - {"enabled", *POOL_WIDE}}
# Flags that are named otherwise than the field they set.
FLAG_FIELDS = {
    "mps": "mps.mode",
    "policy": "scheduling.policy",
    "enable_batching": "batching.enabled",
    "batching_parameters_file": "batching.parameters_file",
    "enable_per_model_batching_parameters": "batching.per_model",
    "ssl_config_file": "tls.file",
}
# The keys under which fields of their own stand.
_SECTIONS: dict[str, type[BaseModel]] = {
    "": PoolConfig,
    "models": ModelConfig,
    "gpu_memory": GpuMemory,
    "models.batching": ModelBatching,
    "models.mps": Shares,
    **_POOL_SECTIONS,
}


def pool_fields() -> list[str]:
    """Every pool-level field that one word can set, "restart.retries" for those of a section."""
    sections = [f"{key}.{name}" for key, section in _POOL_SECTIONS.items() for name in section.model_fields]
    return [name for name in PoolConfig.model_fields if name not in _SECTIONS] + sections


# What is said of each of several models, by field name, its "name" among them.
Models = Sequence[Mapping[str, object]]


def read_config(
    file: Path | None,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    models: Models | None = None,
    serving: Serving | None = None,
) -> tuple[PoolConfig, Findings]:
    """Merges file, environment and flags, and validates the whole.

    Paths in the file (base_path, custom_ops, run_dir) are taken from the file's folder, those on the
    command line and in the environment from the working folder.

    Args:
        file: YAML; None for none.
        flags: by pool-level field name ("restart.retries" for one of a section), None where not given;
            and "model", a sequence of NAME=BASE_PATH: such a model is added, or, where the file or the
            environment has one of that name, is given that base_path.
        environ: the environment; supervisor/config/environment.py says what is read.
        models: where given, these are served and no others, which may be none; what else is said of one of them holds for it.
        serving: a command line of tensorflow_model_server, in place of a file.

    Returns:
        The configuration without what is refused: to be checked further, and to be used where nothing is.
    """
    layer, entries, overridden = _merge(file, flags, environ, serving)
    if models is not None:
        entries = only(entries, models, {} if serving is None else serving.every_model)
    layer.problems += check_names(entries)
    none, config = not entries, None
    while config is None:
        config = _validate(layer, entries)
    may_be_none = models is not None or (serving is not None and serving.lists_none)
    if none and not may_be_none and "models" not in layer.left_out:
        text = f"there is none; give {FLAG} NAME=BASE_PATH, {MODEL}, or models: in a file"
        layer.problems.append(Problem("models", text))
    layer.left_out |= {f"models.{entry.name}.base_path" for entry in entries if entry.unplaced}
    places = {dotted(key): (dotted(key), source) for key, source in layer.sources.items()}
    if (source := source_of(layer.sources, MODE)).name:
        places["mps"] = ("mps", source)
    for entry in entries:
        places |= entry.places()
    # What stands in a command line's files of a model is for all of them, too.
    told = (
        [line for entry in entries for line in overridden.get(str(entry.name), ())] if serving is None else []
    )
    return config, Findings(layer.problems, layer.left_out, places, told)


def overruled(file: Path, flags: Mapping[str, object], environ: Mapping[str, str]) -> list[str]:
    """The pool's fields that stand in the file in vain, for a flag or a variable says them, too; arguments as read_config()."""
    values = read_file(file).values
    _spread(values, as_batching)
    sources = read_environment(environ, pool_fields()).sources | _read_flags(flags).sources
    # ENABLE_MPS asks for no less than the file does.
    told = {dotted(location) for location, source in sources.items() if source.name != ENABLE_MPS}
    return [name for name in pool_fields() if name in told and _stands(values, name)]


def _value(values: object, location: Location) -> object:
    """What stands there; None for nothing."""
    for name in location:
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _stands(values: object, name: str) -> bool:
    """Whether the field, "section.field" of a section, is said there."""
    key, _, rest = name.partition(".")
    return isinstance(values, dict) and key in values and (not rest or _stands(values[key], rest))


def _validate(layer: Layer, entries: list[Entry]) -> PoolConfig | None:
    """None, and what is wrong among the layer's problems and no longer among its values."""
    try:
        return PoolConfig.model_validate({**layer.values, "models": [entry.values for entry in entries]})
    except ValidationError as error:
        found = error.errors()
    layer.problems += _explain(found, layer, entries)
    layer.left_out |= {_field(item["loc"]) for item in found}
    locations = [item["loc"] for item in found if item["type"] != "missing"]
    for location in dict.fromkeys(reversed(locations)):  # of a list, the last first
        match location:
            case ("models", int(index)):
                del entries[index]
            case ("models", int(index), *rest):
                leave_out(entries[index].values, tuple(rest))
            case _:
                leave_out(layer.values, location)
    for entry in entries:
        entry.fill()
    return None


def _field(location: Location) -> str:
    """The field of the pool or of a model, for an unknown key the one that was probably meant."""
    match location:
        case ("models", int(), str(key), *_):
            return nearest(key, ModelConfig.model_fields) or key
    return nearest(str(location[0]), PoolConfig.model_fields) or str(location[0])


def _merge(
    file: Path | None, flags: Mapping[str, object], environ: Mapping[str, str], serving: Serving | None
) -> tuple[Layer, list[Entry], dict[str, list[str]]]:
    here = Path.cwd()
    below = Layer() if file is None else read_file(file)
    if serving is not None:
        below, environ = serving.below, serving.environ
    _spread(below.values, as_asked_for)
    folder = here if file is None else file.absolute().parent
    entries = take_entries(below, folder)
    for entry in entries:
        if isinstance(entry.values, dict) and "batching" in entry.values:
            entry.values["batching"] = as_asked_for(entry.values["batching"])
    named, flagged = read_environment(environ, pool_fields()), _read_flags(flags)
    if serving is not None:
        flagged = overlay(serving.above, flagged)
    _keep_mps_on(below, named)
    for layer, start in ((below, folder), (named, here), (flagged, here)):
        layer.values = rebase(layer.values, _PATHS, start)
    below, named, flagged = _with_parameters(below, named, flagged)
    above = overlay(named, flagged)
    models = flags.get("model") or ()
    assert isinstance(models, list | tuple)
    put_named(above, entries, read_models(environ), MODEL, here)
    put_named(above, entries, models, FLAG, here)
    layer = overlay(overlay(read_affinity(environ), below), above)
    not_said = _OF_VERSIONS if _is_per_model(layer) else set()
    said = {
        field: (_value(above.values, location), above.sources[location])
        for name, field in _MODEL_FIELDS.items()
        if (location := tuple(name.split("."))) in above.sources and name not in not_said
    }
    overridden = override(entries, said)
    if not layer.complete:
        layer.left_out |= set(PoolConfig.model_fields) - set(layer.values)
    return layer, entries, overridden


def _spread(values: dict[str, object], batching: Callable[[object], object]) -> None:
    """Has sections stand as such that a file says in a word; that of batching by this function."""
    for section, spread in (("mps", as_mode), ("batching", batching)):
        if section in values:
            values[section] = spread(values[section])


def _is_per_model(layer: Layer) -> bool:
    """Whether the parameters of batching are each version's own; not where that is refused."""
    section = layer.values.get("batching")
    said = section.get("per_model", False) if isinstance(section, dict) else False
    with contextlib.suppress(ValidationError):
        return BatchingConfig.model_validate({"per_model": said}).per_model
    return False


def _keep_mps_on(file: Layer, environment: Layer) -> None:
    """ENABLE_MPS=1 asks for no less than a file that insists on MPS."""
    ours, theirs = environment.values.get("mps"), file.values.get("mps")
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return
    asked = environment.sources.get(MODE) == Source(ENABLE_MPS) and ours["mode"] == "auto"
    if asked and on_off(theirs.get("mode")) in ("on", "own", "external"):
        del ours["mode"], environment.sources[MODE]


def _with_parameters(*layers: Layer) -> list[Layer]:
    """The layers, lowest first; what a batching_parameters_file says stands in the one that names it, below its own words.

    Of several only the highest one's is read.
    """
    told = list(layers)
    for index in reversed(range(len(told))):
        section = told[index].values.get("batching")
        if isinstance(section, dict) and (named := section.get("parameters_file")):
            if not why_no_text(str(named)):  # refused with the other values
                source = source_of(told[index].sources, ("batching", "parameters_file"))
                told[index] = _below(told[index], _read_parameters(str(named), source))
            break
    return told


def _below(layer: Layer, parameters: Layer) -> Layer:
    """Both; where they differ, the layer, whose section is not where the parameters stand."""
    both = overlay(parameters, layer)
    both.sources = parameters.sources | layer.sources
    return both


def _read_parameters(file: str, source: Source) -> Layer:
    layer = Layer()
    try:
        values, lines = read_batching_file(Path(file))
    except BatchingFileError as error:
        layer.problems.append(Problem(file, f"{error} (batching.parameters_file in {source})"))
        layer.left_out.add("batching")
        return layer
    for name, value in values.items():
        layer.put(f"batching.{name}", value, str(Source(file, lines[name])))
    return layer


def _read_flags(flags: Mapping[str, object]) -> Layer:
    layer = Layer()
    for name, value in flags.items():
        if name != "model" and value is not None:
            layer.put(FLAG_FIELDS.get(name, name), value, "--" + name.replace("_", "-").replace(".", "-"))
    return layer


def _explain(errors: Iterable[ErrorDetails], layer: Layer, entries: list[Entry]) -> list[Problem]:
    sections = {
        key: {name: field.description or "" for name, field in section.model_fields.items()}
        for key, section in _SECTIONS.items()
    }

    sources = {key: source for key, source in layer.sources.items() if key[:1] != ("models",)}
    for index, entry in enumerate(entries):
        sources |= {("models", index, *location): source for location, source in entry.sources.items()}

    def shown(location: Location) -> Location:
        match location:
            case ("models", int(index), *rest):
                return (*entries[index].location, *rest)
        return location

    return explain(errors, sections, sources, shown)
