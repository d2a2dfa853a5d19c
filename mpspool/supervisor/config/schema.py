"""What a user can ask for, as pydantic models, and `load_config`, which merges file, environment and flags.

Flags win over the environment, the environment over the file. A flag or variable for something that
each model can also say for itself (`gpus`, `contexts_per_gpu`, ...) holds for every model, whatever
the file says about one of them.

This is the only module that imports pydantic: import it where it is used, not at the top of the CLI.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from mpspool.core.errors import Problem, StartError
from mpspool.core.ids import escape
from mpspool.core.rundir import default_run_dir
from mpspool.core.settings import MAX_MESSAGE_BYTES
from mpspool.supervisor import shares
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
    override,
    put_named,
    take_entries,
)
from mpspool.supervisor.config.pool_file import read_file
from mpspool.supervisor.cpus import MAX_CPUS, parse_cpusets
from mpspool.supervisor.ports import DEFAULT_GRPC_PORT, DEFAULT_REST_PORT

DEFAULT_CONTEXTS_PER_GPU = 4
# A name, escaped, is part of file names, which end at 255 bytes.
_MAX_NAME_BYTES = 180
_MAX_SIMULATED_GPUS = 64
_PATHS = ("run_dir", "weights.folder", "mps.pipe_directory")


def _read_gpus(value: object) -> object:
    if value in ("all", "none"):
        return value
    items = (
        value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    )
    texts = [str(item).strip() for item in items]
    if not texts or not all(text.isdecimal() for text in texts):
        raise ValueError('expected "all", "none", or ids such as 0,2')
    ids = [int(text) for text in texts]
    if len(set(ids)) < len(ids):
        raise ValueError("names a GPU twice; contexts_per_gpu is how to have more workers on one")
    return tuple(ids)


def _read_cpusets(value: object) -> object:
    if value in ("auto", "split", "none"):
        return value
    if isinstance(value, list | tuple):
        value = ";".join(
            ",".join(map(str, item)) if isinstance(item, list | tuple) else str(item) for item in value
        )
    if isinstance(value, bool) or not isinstance(value, str | int):
        # pydantic takes a ValueError for a validation error, a TypeError for a bug.
        raise ValueError('expected "auto", "split", "none", sets such as "2-4;5-7", or a list')  # noqa: TRY004
    return tuple(tuple(cpus) for cpus in parse_cpusets(str(value)))


def _read_name(value: str) -> str:
    if len(escape(value)) > _MAX_NAME_BYTES:
        raise ValueError(f"too long to be part of file names; keep it within {_MAX_NAME_BYTES} bytes")
    return value


def _on_off(value: object) -> object:
    """YAML reads a bare on or off as a boolean."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _mps_mode(value: object) -> object:
    """`on` is another word for `own`."""
    word = "own" if (word := _on_off(value)) == "on" else word
    if word not in ("auto", "own", "external", "off"):
        raise ValueError("must be auto, own (on says the same), external or off")
    return word


def _as_section(value: object) -> object:
    """`mps: on` says the mode alone."""
    return value if isinstance(value, dict | list | BaseModel) else {"mode": value}


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Gpus = Annotated[
    Literal["all", "none"] | tuple[int, ...],
    PlainValidator(_read_gpus, json_schema_input_type=list[int] | str),
]
Cpusets = Annotated[
    Literal["auto", "split", "none"] | tuple[tuple[int, ...], ...],
    PlainValidator(_read_cpusets, json_schema_input_type=str | list[str | list[int]]),
]
Percentages = Annotated[
    tuple[int, ...], PlainValidator(shares.read_percentages, json_schema_input_type=int | list[int] | str)
]
Sizes = Annotated[
    tuple[int, ...], PlainValidator(shares.read_sizes, json_schema_input_type=int | str | list[int | str])
]
Priorities = Annotated[
    tuple[int, ...], PlainValidator(shares.read_priorities, json_schema_input_type=str | list[str])
]
Threads = Annotated[int, Field(ge=0, le=MAX_CPUS)]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Texts = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_as_list)]
Name = Annotated[str, Field(min_length=1), AfterValidator(_read_name)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Placement(_Section):
    """Where workers run. Said for the pool it holds for every model that does not say otherwise."""

    gpus: Gpus | None = None
    """GPUs to use, by visible id (CUDA_VISIBLE_DEVICES renumbers): "all", "none" or a list such as 0,2.
    Not given: all that are visible, and CPU slots where none is."""
    contexts_per_gpu: Annotated[int, Field(ge=1)] | None = None
    """Worker processes of each model on each of its GPUs; 4 when not given."""
    cpu_slots: Annotated[int, Field(ge=1, le=MAX_CPUS)] | None = None
    """Worker processes of each model where it runs on the CPU; not given, one per 2 cores, shared by
    the models, at least 1 each. Given without gpus, it asks for the CPU even where GPUs are visible."""
    cpusets: Cpusets | None = None
    """CPUs of each slot: "2-4;5-7" or "2,3,4;5,6,7", slot i taking set i; "split" shares out the
    CPUs we may use, evenly and NUMA-aware; "none" pins nothing; "auto", the default, splits too, but a slot
    whose share is one CPU may use all of its NUMA node, for the router needs a CPU as well."""
    intra_op_threads: Threads | None = None
    """Threads within one operation; 0 leaves it to TensorFlow. Not given: a CPU slot's number of CPUs."""
    inter_op_threads: Threads | None = None
    """Operations at once; with 0 or 1 they run one after another in the calling thread, which costs least
    and is the default."""
    merge_copy_streams: bool | None = None
    """On a GPU, copy to and from the device on the stream that computes: DeepRec's MERGE_COMPUTE_COPY_STREAM."""


class GpuMemory(_Section):
    """How much of its GPU's memory a worker takes."""

    growth: bool = True
    """Take memory as it is needed, rather than all of it at the start."""
    fraction: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    """At most this part of the device, per worker; 0 for no limit."""
    limit_bytes: Annotated[ByteSize, Field(ge=0)] = ByteSize(0)
    """At most this much per worker, in bytes or as "2GiB"; 0 for no limit."""
    allocator: Literal["default", "cuda_malloc_async"] = "default"
    """What TensorFlow takes device memory from: its own pool, or CUDA's (TF_GPU_ALLOCATOR)."""

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.fraction and self.limit_bytes:
            raise ValueError("fraction and limit_bytes are two ways to say one thing; give one of them")
        return self


class Shares(_Section):
    """What each worker gets of its GPU under MPS; of several values the worker in slot i of a GPU takes value i."""

    active_thread_percentage: Percentages | None = None
    """At most this part of the GPU's multiprocessors, in percent, 100 for no cap. Not given: no cap up to 2 workers
    on a GPU, else twice an equal part."""
    pinned_memory: Sizes | None = None
    """At most this much device memory, in bytes or as "2GiB"; 0 for no limit."""
    priority: Priorities | None = None
    """normal, or below_normal for work that gives way to other clients' where the GPU can."""


class MpsConfig(Shares):
    """NVIDIA MPS, and what each worker gets under it."""

    mode: Annotated[Literal["auto", "own", "external", "off"], BeforeValidator(_mps_mode)] = "auto"
    """NVIDIA MPS: daemons of our own (on says the same), external for one that somebody else runs, off, or auto: own
    where a GPU is used and nvidia-cuda-mps-control is found."""
    pipe_directory: str = ""
    """For mode: external, the daemon's pipe folder; not given, CUDA_MPS_PIPE_DIRECTORY, else /tmp/nvidia-mps."""


class WeightsConfig(_Section):
    """How a model version's weights are kept in host memory."""

    shared: Annotated[Literal["auto", "on", "off"], BeforeValidator(_on_off)] = "auto"
    """One copy for all workers of a version: auto where the model allows it, on to refuse one that does not."""
    backing: Literal["memfd", "shm", "file"] = "memfd"
    """Where the copy lies: in anonymous memory, in /dev/shm (which containers keep small), or in folder."""
    folder: str = ""
    """For backing: file, an existing folder on a local disk; the file in it has no name and leaves nothing."""

    @model_validator(mode="after")
    def _folder_for_file(self) -> Self:
        if self.folder and self.backing != "file":
            raise ValueError("folder is for backing: file; leave it out, or set backing: file")
        if self.backing == "file" and not self.folder:
            raise ValueError("backing: file needs a folder; give weights.folder")
        return self


class WorkersConfig(_Section):
    """How worker processes come to be."""

    start: Literal["auto", "fork", "exec"] = "auto"
    """fork from a process that has imported TensorFlow already, exec as processes of their own, or auto:
    fork on CPU slots and stand-ins, exec on GPUs."""


class ModelConfig(Placement):
    """One model."""

    name: Name
    """What clients ask for in model_spec.name."""
    base_path: Annotated[str, Field(min_length=1)]
    """The folder that holds the numbered version folders; the latest is served."""
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
    weights: WeightsConfig | None = None
    """What differs for this model from the pool's weights."""


class RestartConfig(_Section):
    """How a slot whose worker ended is filled again."""

    retries: Annotated[int, Field(ge=0)] = 3
    """Restarts in a row without success before the slot is FATAL."""
    backoff_s: Seconds = 1.0
    """The wait before the second restart; it doubles from there. The first is immediate."""
    max_backoff_s: Seconds = 60.0
    """The longest wait between restarts."""


class PoolConfig(Placement):
    """The whole pool."""

    models: tuple[ModelConfig, ...]
    """The models to serve: a list, or a mapping from name to the rest."""
    mps: Annotated[MpsConfig, BeforeValidator(_as_section, json_schema_input_type=MpsConfig | str | bool)] = (
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
    rest_port: Port = DEFAULT_REST_PORT
    """The port for HTTP; 0 turns it off."""
    run_dir: Path = Field(default_factory=default_run_dir)
    """The folder for this pool's sockets, settings and logs; none other may use it."""
    dispatch: Literal["least_loaded", "round_robin"] = "least_loaded"
    """Which worker takes the next request."""
    max_message_bytes: Annotated[ByteSize, Field(ge=1, le=MAX_MESSAGE_BYTES)] = ByteSize(MAX_MESSAGE_BYTES)
    """The largest request, in bytes or as "64MiB"; answers are not bounded."""
    max_queued_requests: Annotated[int, Field(ge=1)] = 10_000
    """Requests waiting per model version; one more is answered UNAVAILABLE."""
    max_queued_bytes: Annotated[ByteSize, Field(ge=1)] = ByteSize(2**32)
    """Bytes waiting or running over all models; more is answered RESOURCE_EXHAUSTED."""
    readiness: Literal["any", "all"] = "any"
    """/readyz answers 200 when any model is AVAILABLE, or only when all are."""
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
    "mps": MpsConfig,
    "restart": RestartConfig,
    "weights": WeightsConfig,
    "workers": WorkersConfig,
}
MODE: Location = ("mps", "mode")
# The keys under which fields of their own stand.
_SECTIONS: dict[str, type[BaseModel]] = {
    "": PoolConfig,
    "models": ModelConfig,
    "gpu_memory": GpuMemory,
    "models.mps": Shares,
    **_POOL_SECTIONS,
}


def pool_fields() -> list[str]:
    """Every pool-level field that one word can set, "restart.retries" for those of a section."""
    sections = [f"{key}.{name}" for key, section in _POOL_SECTIONS.items() for name in section.model_fields]
    return [name for name in PoolConfig.model_fields if name not in _SECTIONS] + sections


def load_config(file: Path | None, flags: Mapping[str, object], environ: Mapping[str, str]) -> PoolConfig:
    """As read_config(). Raises StartError with every problem, where there is one."""
    config, findings = read_config(file, flags, environ)
    if problems := findings.told():
        raise StartError(problems)
    return config


def read_config(
    file: Path | None, flags: Mapping[str, object], environ: Mapping[str, str]
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

    Returns:
        The configuration without what is refused: to be checked further, and to be used where nothing is.
    """
    layer, entries = _merge(file, flags, environ)
    layer.problems += check_names(entries)
    none, config = not entries, None
    while config is None:
        config = _validate(layer, entries)
    if none and "models" not in layer.left_out:
        text = f"there is none; give {FLAG} NAME=BASE_PATH, {MODEL}, or models: in a file"
        layer.problems.append(Problem("models", text))
    layer.left_out |= {f"models.{entry.name}.base_path" for entry in entries if entry.unplaced}
    places = {dotted(key): (dotted(key), source) for key, source in layer.sources.items()}
    if (source := source_of(layer.sources, MODE)).name:
        places["mps"] = ("mps", source)
    for entry in entries:
        places |= entry.places()
    return config, Findings(layer.problems, layer.left_out, places)


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
    file: Path | None, flags: Mapping[str, object], environ: Mapping[str, str]
) -> tuple[Layer, list[Entry]]:
    here = Path.cwd()
    below = Layer() if file is None else read_file(file)
    if "mps" in below.values:
        below.values["mps"] = _as_section(below.values["mps"])
    folder = here if file is None else file.absolute().parent
    entries = take_entries(below, folder)
    below.values = rebase(below.values, _PATHS, folder)
    named = read_environment(environ, pool_fields())
    _keep_mps_on(below, named)
    above = overlay(named, _read_flags(flags))
    above.values = rebase(above.values, _PATHS, here)
    override(entries, [*(set(Placement.model_fields) & set(above.values)), *_section_fields(above)])
    models = flags.get("model") or ()
    assert isinstance(models, list | tuple)
    put_named(above, entries, read_models(environ), MODEL, here)
    put_named(above, entries, models, FLAG, here)
    layer = overlay(overlay(read_affinity(environ), below), above)
    if not layer.complete:
        layer.left_out |= set(PoolConfig.model_fields) - set(layer.values)
    return layer, entries


def _keep_mps_on(file: Layer, environment: Layer) -> None:
    """ENABLE_MPS=1 asks for no less than a file that insists on MPS."""
    ours, theirs = environment.values.get("mps"), file.values.get("mps")
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return
    asked = environment.sources.get(MODE) == Source(ENABLE_MPS) and ours["mode"] == "auto"
    if asked and _mps_mode(theirs.get("mode")) in ("own", "external"):
        del ours["mode"], environment.sources[MODE]


def _section_fields(layer: Layer) -> list[str]:
    """What is said above of what a model can say for itself in a section of its own."""
    return [
        f"{section}.{name}"
        for section, fields in (("weights", WeightsConfig), ("mps", Shares))
        if isinstance(values := layer.values.get(section), dict)
        for name in values
        if name in fields.model_fields
    ]


def _read_flags(flags: Mapping[str, object]) -> Layer:
    layer = Layer()
    for name, value in flags.items():
        if name != "model" and value is not None:
            field = "mps.mode" if name == "mps" else name
            layer.put(field, value, "--" + name.replace("_", "-").replace(".", "-"))
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
