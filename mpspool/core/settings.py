"""The resolved settings: what a child process reads, and nothing else.

The supervisor resolves file, flags and environment once and writes one JSON file per process.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mpspool.core.errors import Code, PoolError
from mpspool.core.ids import FETCH_PREFIX, escape
from mpspool.core.rundir import write_file

MAX_MESSAGE_BYTES = 2**31 - 1
# TensorFlow Serving's.
MONITORING_PATH = "/monitoring/prometheus/metrics"


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is given of its GPU under MPS; None for what it inherits, as CUDA's variables or the daemon have it.

    Attributes:
        active_thread_percentage: of the GPU's multiprocessors, at most; 100 for no cap.
        pinned_bytes: of device memory, at most, whole MiB; 0 for no limit.
        priority: 0 for normal, 1 for below normal.
    """

    active_thread_percentage: int | None = None
    pinned_bytes: int | None = None
    priority: int | None = None


class SlotSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One place for a worker.

    Attributes:
        device: "cpu0", or "gpu<index>" by visible index.
        slot: the place on that device, from 0, per model.
        cpus: the logical CPUs to pin to; empty for no pinning.
        gpu_uuid: the device, for CUDA_VISIBLE_DEVICES; empty on a CPU slot.
        memory_bytes: the device's; 0 where it is not known.
        mps_pipe: its daemon's pipe folder; empty without MPS.
        simulated: the device is a stand-in, or the CPUs are: never pinned, run on the CPU.
        start: "fork" from the nursery, or "exec" as a Python process of its own.
        share: what its worker is given of the device under MPS.
    """

    device: str
    slot: int
    cpus: list[int] = []
    gpu_uuid: str = ""
    memory_bytes: int = 0
    mps_pipe: str = ""
    simulated: bool = False
    start: str = "exec"
    share: Share = Share()

    @property
    def pinned_bytes(self) -> int:
        """The limit that was given; 0 for none."""
        return self.share.pinned_bytes or 0


class WeightsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a model version's weights are kept in host memory.

    Attributes:
        shared: "auto", "on" (a model that cannot share is refused) or "off".
        backing: "memfd", "shm" or "file".
        folder: where "file" puts it.
    """

    shared: str = "off"
    backing: str = "memfd"
    folder: str = ""


class BatchingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How requests of a model version are joined; TensorFlow Serving's parameters, sizes in rows (dimension 0).

    Attributes:
        max_batch_size: of a request and, without splitting, of a batch.
        batch_timeout_us: how long a batch that is not full waits for more.
        max_enqueued_batches: batches of a signature that may wait; what would begin one more is refused.
        allowed_batch_sizes: a batch is padded to the next of these; ascending, empty for any size.
        pad_variable_length_inputs: inputs that differ in other dimensions are padded to the largest.
        max_execution_batch_size: rows of one run, where larger requests are split; 0 for no splitting.
        adaptive: a batch waits only while every worker is busy, whatever batch_timeout_us says.
    """

    max_batch_size: int = 1000
    batch_timeout_us: int = 0
    max_enqueued_batches: int = 10
    allowed_batch_sizes: list[int] = []
    pad_variable_length_inputs: bool = False
    max_execution_batch_size: int = 0
    adaptive: bool = False

    @property
    def run_rows(self) -> int:
        """Rows of one run of the model, at most."""
        return self.max_execution_batch_size or self.max_batch_size

    def padding(self, rows: int) -> int:
        """How many rows a run of so many lacks to the next size allowed; 0 where it is larger than all."""
        place = bisect_left(self.allowed_batch_sizes, rows)
        return self.allowed_batch_sizes[place] - rows if place < len(self.allowed_batch_sizes) else 0

    def check_size(self, rows: int) -> None:
        """Raises PoolError: a request of so many rows is larger than one may be."""
        if rows > self.max_batch_size:
            raise PoolError(
                Code.INVALID_ARGUMENT,
                f"Task size {rows} is larger than maximum input batch size {self.max_batch_size}",
            )


class VersionBatching(msgspec.Struct, frozen=True, kw_only=True):
    """Where each version says in its folder how its requests are joined.

    Attributes:
        given: what goes before that, by TensorFlow Serving's names and ours.
        without: for a version that says nothing; None for none.
    """

    given: dict[str, Any] = {}
    without: BatchingSettings | None = None


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How requests of a model version wait.

    Attributes:
        policy: which of them is next: "fifo", "sjf", "edf", or "module:attribute" of one that is not ours.
        max_queued_requests: one more is answered UNAVAILABLE.
        max_queued_bytes: of the requests of all versions of its model; more is RESOURCE_EXHAUSTED.
        shares_bytes: nobody has said how many; those that it has leave as many free for others.
    """

    policy: str = "fifo"
    max_queued_requests: int = 10_000
    max_queued_bytes: int = 2**32
    shares_bytes: bool = False


@dataclass(frozen=True, kw_only=True)
class VersionPolicy:
    """Which of a model's versions are served; TensorFlow Serving's model_version_policy.

    Attributes:
        latest: the newest so many.
        all: every one.
        specific: these; empty where the others count.
    """

    latest: int = 1
    all: bool = False
    specific: tuple[int, ...] = ()


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One model version and where it runs.

    Attributes:
        version, path: its number, and its folder with the saved_model.pb.
        base_path: the folder that holds the version folders.
        policy: which of them are served.
        labels: version labels: the number each stands for.
        swap: how one version takes the place of another: "surge" beside it, "rolling" slot by slot, "stop_first".
        warmup: another version's recorded requests, for one that has none of its own; "" for none.
        warmup_iterations: how often each recorded request is sent; 0 for no warm-up.
        allow_signature_changes: a version may lack signatures, inputs or outputs that the one it replaces has.
        quorum: READY workers that make the version AVAILABLE.
        intra_op_threads: 0 leaves the choice to TensorFlow.
        inter_op_threads: with 0 or 1 operations run one after another in the calling thread.
        gpu_memory_growth: TensorFlow grows its pool instead of taking all memory at once.
        gpu_memory_fraction: of the device, 0 for no limit.
        gpu_memory_limit_bytes: 0 for no limit.
        gpu_allocator: for TF_GPU_ALLOCATOR; empty for TensorFlow's own choice.
        merge_copy_streams: copies to and from the GPU go on the stream that computes.
        tensor_content: answers of Predict have their values in tensor_content.
        check_method_names: only the methods that a signature's method_name allows are answered.
        hang_timeout_s: the least time after which a running request counts as hung.
        start_timeout_s: the time after which a worker that is not READY counts as hung.
        engine: "auto", "session" or "tf2".
        batching: None where requests run one by one.
        version_batching: None where every version's requests are joined as this one's.
        queue: how requests wait at the router.
    """

    name: str
    version: int
    path: str
    slots: list[SlotSettings]
    base_path: str = ""
    policy: VersionPolicy = VersionPolicy()
    labels: dict[str, int] = {}
    swap: str = "surge"
    warmup: str = ""
    warmup_iterations: int = 1
    allow_signature_changes: bool = False
    quorum: int = 1
    intra_op_threads: int = 0
    inter_op_threads: int = 0
    custom_ops: list[str] = []
    gpu_memory_growth: bool = True
    gpu_memory_fraction: float = 0.0
    gpu_memory_limit_bytes: int = 0
    gpu_allocator: str = ""
    merge_copy_streams: bool = False
    saved_model_tags: list[str] = msgspec.field(default_factory=lambda: ["serve"])
    tensor_content: bool = False
    check_method_names: bool = False
    hang_timeout_s: float = 30.0
    start_timeout_s: float = 600.0
    engine: str = "auto"
    batching: BatchingSettings | None = None
    version_batching: VersionBatching | None = None
    queue: QueueSettings = QueueSettings()
    weights: WeightsSettings = WeightsSettings()


class RemoteSettings(msgspec.Struct, frozen=True, kw_only=True):
    """For `python -m mpspool.supervisor.remote`: a model whose base path is copied from a store.

    Attributes:
        model: its name.
        url: the remote base path.
        folder: the local one, in the cache.
        policy: which of its versions are served.
        poll_s: how often the store is looked at; 0 for never after the start.
    """

    run_dir: str
    model: str
    url: str
    folder: str
    policy: VersionPolicy = VersionPolicy()
    poll_s: float = 60.0

    @property
    def program(self) -> str:
        """Supervisord's name for the process that copies."""
        return FETCH_PREFIX + escape(self.model)


class PublishSettings(msgspec.Struct, frozen=True, kw_only=True):
    """For `python -m mpspool.worker.weights`. `model.slots` is left empty."""

    run_dir: str
    model: ModelSettings


class NurserySettings(msgspec.Struct, frozen=True, kw_only=True):
    """For `python -m mpspool.worker.nursery`."""

    run_dir: str


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """For `python -m mpspool.worker`.

    Attributes:
        model: its `slots` are left empty.
        slot: this worker's own.
        gives_way: whether it leaves the processors to those that serve until it is READY: nobody misses it.
    """

    run_dir: str
    worker: str
    generation: int
    credits: int
    model: ModelSettings
    slot: SlotSettings
    gives_way: bool = False


class SchedulingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the router serves the queues of all model versions.

    Attributes:
        dispatch: which worker is sent the next dispatch: "least_loaded" or "round_robin".
        aging: with "sjf", how many seconds of waiting a second of cost stands for.
        running_per_device: dispatches that run at once on one device, over all models; 0 for no limit.
        slow_lane: of those, or of a device's workers, so many at most run long ones; 0 for no limit.
        slow_ms: cost from which on, for sure, a dispatch is long; 0 to have it found out.
        priority_key: the metadata key with a request's priority; empty for none.
        fair_by: whose requests take turns: "none", "peer" or "metadata:KEY".
        refuse_late: what cannot meet its deadline is refused at once.
    """

    dispatch: str = "least_loaded"
    aging: float = 3.0
    running_per_device: int = 0
    slow_lane: int = 0
    slow_ms: float = 0.0
    priority_key: str = "x-mpspool-priority"
    fair_by: str = "none"
    refuse_late: bool = True


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """TLS of the gRPC port, by files with PEM texts; none of their contents is here.

    Attributes:
        key, cert: the server's key, and its certificate with those between it and its CA.
        client_ca: the CAs of clients; empty for none.
        verify_client: clients must have a certificate of one of them.
        file: instead of the paths, TensorFlow Serving's ssl_config_file; verify_client is what it says.
        digest: of what they held when they were checked last: they have changed where it has.
    """

    key: str = ""
    cert: str = ""
    client_ca: str = ""
    verify_client: bool = False
    file: str = ""
    digest: str = ""


class RouterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """For `python -m mpspool.router`. Port 0 turns a front off.

    Attributes:
        grpc_socket_path: a UNIX socket for gRPC beside the port; "" for none.
        max_connections: of clients at once, by each front; for one more another makes way, or it is closed.
        max_queued_bytes: of requests read, waiting or running, and of answers not sent; more is RESOURCE_EXHAUSTED.
        allow_reload: HandleReloadConfigRequest is answered.
        grpc_timeout_ms: from the head of a gRPC call that runs a model, where it brings no deadline, to its answer; 0 for no end.
        rest_timeout_ms: from the last byte of a request that comes by REST to its answer; 0 for no end.
        rest_cors: REST answers let any page of a browser read them.
        allow_labels_for_unavailable: it may give a label that nobody has to a version that is not AVAILABLE.
        readiness: "any" model AVAILABLE makes /readyz answer 200, or "all" must be.
        monitoring_path: where TensorFlow Serving's metrics are shown on the port for HTTP; "" for nowhere.
        simulated: what is a stand-in ("gpus", "cpus"), for the metrics; empty for nothing.
        tls: of the gRPC port; None for clear text.
    """

    run_dir: str
    host: str
    grpc_port: int
    rest_port: int
    grpc_socket_path: str = ""
    max_message_bytes: int = MAX_MESSAGE_BYTES
    max_connections: int = 10_000
    max_queued_bytes: int = 2**32
    scheduling: SchedulingSettings = SchedulingSettings()
    allow_reload: bool = True
    grpc_timeout_ms: int = 0
    rest_timeout_ms: int = 30_000
    rest_cors: bool = False
    allow_labels_for_unavailable: bool = False
    readiness: str = "any"
    monitoring_path: str = MONITORING_PATH
    simulated: str = ""
    tls: TlsSettings | None = None


class MpsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """For `python -m mpspool.mps.daemon`: one control daemon for one GPU.

    Attributes:
        control: the command that asks it.
        external: somebody else's, perhaps for other GPUs, too: asked, and neither started nor ended.
        server_log: the file that its servers' lines end up in: a daemon in the background has them in server.log, one in
            the foreground, as ours are, prints them.
        max_clients: of the GPU's, at once; 0 where nobody knows.
    """

    device: str
    gpu_uuid: str
    pipe_dir: str
    log_dir: str
    server_log: str
    control: list[str]
    simulated: bool = False
    external: bool = False
    max_clients: int = 0


class RestartSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a slot is filled again.

    The first restart is immediate, the nth after backoff_s * 2**(n-2), at most max_backoff_s.
    After `retries` restarts in a row without the worker having been READY, the slot is FATAL.
    """

    retries: int = 3
    backoff_s: float = 1.0
    max_backoff_s: float = 60.0


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """For `python -m mpspool.supervisor`: the whole resolved plan.

    Attributes:
        mps: "on", "off" or "simulated".
        models: each with the version that is served first.
        remotes: where the base paths of some of them are copied from.
        poll_s: how often base paths are looked at for other versions; 0 for never.
        load_retries: how often a version whose workers could not be started is tried again.
        load_retry_s: the time from one to the next.
        grace_s: how long a drain may take before what is left is ended.
    """

    run_dir: str
    mps: str
    models: list[ModelSettings]
    mps_daemons: list[MpsSettings]
    router: RouterSettings
    remotes: list[RemoteSettings] = []
    restart: RestartSettings = RestartSettings()
    poll_s: float = 1.0
    load_retries: int = 5
    load_retry_s: float = 60.0
    grace_s: float = 30.0

    def own_daemons(self) -> list[MpsSettings]:
        """Those that are ours to run and to end."""
        return [daemon for daemon in self.mps_daemons if not daemon.external]


T = TypeVar("T", bound=msgspec.Struct)


def load(path: Path, kind: type[T]) -> T:
    """Reads a settings file. Raises OSError, or msgspec.ValidationError naming the field."""
    return decode(path.read_bytes(), kind)


def decode(content: bytes, kind: type[T]) -> T:
    """Raises msgspec.ValidationError naming the field."""
    return msgspec.json.decode(content, type=kind)


def encode(settings: msgspec.Struct) -> bytes:
    return msgspec.json.encode(settings)


def save(path: Path, settings: msgspec.Struct) -> None:
    """Writes a settings file whole or not at all, readable by its owner only."""
    write_file(path, readable(settings))


def readable(settings: msgspec.Struct) -> bytes:
    """What save() writes."""
    return msgspec.json.format(encode(settings), indent=1)
