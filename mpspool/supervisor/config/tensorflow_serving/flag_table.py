"""Every flag of tensorflow_model_server, TensorFlow Serving's and DeepRec's, and what it does here.

docs/tensorflow-serving.md has the same table; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["bool", "int32", "int64", "float", "string"]
Value = bool | int | float | str
# What a flag does: as it says, something else that comes to the same, nothing, or nothing because it is refused.
Does = Literal["same", "maps", "nothing", "refused"]


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    Attributes:
        name: without the dashes.
        kind: as TensorFlow's parser has it.
        default: TensorFlow Serving's; None where it follows from the machine.
        does: whether it means here what it says.
        here: what it does here, or why nothing; said at the start where it `does` not do the same.
        key: of the pool, where the value can be taken as it is.
    """

    name: str
    kind: Kind
    default: Value | None
    does: Does
    here: str
    key: str = ""


_ANY = "the front is one event loop, and workers are processes"
_LOADS = "a version is loaded by processes of its own, so that no request waits for it"
_TFLITE = "TensorFlow Lite is not served; saved_model.pb is, as where there is no model.tflite"
_XLA = "workers leave XLA as the model and TF_XLA_FLAGS have it"
_OWN_THREADS = "each worker is a process with threads of its own"
_OWN_STREAMS = "each worker is a process with streams of its own"
_NO_TIMELINE = "no timeline is written; `mpspool density` shows what runs when"
_OSS = "who opens a base path with a scheme takes these from its own environment"

SERVING = (
    Flag("port", "int32", 8500, "same", "The gRPC port; 0 only together with grpc_socket_path.", "grpc_port"),
    Flag(
        "grpc_socket_path",
        "string",
        "",
        "same",
        "A UNIX socket for gRPC, beside port or, with port 0, in its place.",
        "grpc_socket_path",
    ),
    Flag(
        "rest_api_port", "int32", 0, "same", "The REST port; 0 turns it off. The same as port: off, as there."
    ),
    Flag("rest_api_num_threads", "int32", None, "nothing", _ANY),
    Flag("rest_api_timeout_in_ms", "int32", 30000, "same", "The deadline of REST calls.", "rest_timeout_ms"),
    Flag("rest_api_enable_cors_support", "bool", False, "same", "CORS headers in REST answers.", "rest_cors"),
    Flag("enable_batching", "bool", False, "same", "Requests are joined to batches.", "batching.enabled"),
    Flag(
        "allow_version_labels_for_unavailable_models",
        "bool",
        False,
        "same",
        "HandleReloadConfigRequest may give a label that nobody uses to a version that is not AVAILABLE yet. Files may"
        " in any case.",
        "allow_labels_for_unavailable",
    ),
    Flag("batching_parameters_file", "string", "", "same", "Of all models; needs enable_batching."),
    Flag(
        "enable_per_model_batching_parameters",
        "bool",
        False,
        "same",
        "Each version's own, from batching_params.pbtxt in its folder.",
        "batching.per_model",
    ),
    Flag(
        "model_config_file",
        "string",
        "",
        "same",
        "The models; it goes before model_name and model_base_path.",
    ),
    Flag(
        "model_config_file_poll_wait_seconds",
        "int32",
        0,
        "same",
        "How often model_config_file is looked at; a change is taken up as `mpspool reload` does.",
    ),
    Flag("model_name", "string", "default", "same", "Of the one model."),
    Flag("model_base_path", "string", "", "same", "Of the one model: absolute, or with a scheme."),
    Flag("num_load_threads", "int32", 0, "nothing", _LOADS),
    Flag("num_unload_threads", "int32", 0, "nothing", _LOADS),
    Flag(
        "max_num_load_retries", "int32", 5, "same", "Tries after the first to load.", "max_num_load_retries"
    ),
    Flag(
        "load_retry_interval_micros",
        "int64",
        60_000_000,
        "same",
        "Between two tries to load; below 0 is 0.",
        "load_retry_interval_micros",
    ),
    Flag(
        "file_system_poll_wait_seconds",
        "int32",
        1,
        "same",
        "How often base paths are looked at; 0 for once.",
        "file_system_poll_wait_seconds",
    ),
    Flag(
        "flush_filesystem_caches",
        "bool",
        True,
        "nothing",
        "the kernel keeps and drops pages of files as it sees fit",
    ),
    Flag("tensorflow_session_parallelism", "int64", 0, "same", "Threads of each worker, of both kinds."),
    Flag(
        "tensorflow_session_config_file",
        "string",
        "",
        "same",
        "ConfigProto: threads, gpu_options and device_count of each worker; what else it says is named at the start. Flags"
        " go before it.",
    ),
    Flag(
        "tensorflow_intra_op_parallelism", "int64", 0, "same", "Threads within one operation, of each worker."
    ),
    Flag("tensorflow_inter_op_parallelism", "int64", 0, "same", "Operations at once, of each worker."),
    Flag("use_alts_credentials", "bool", False, "refused", "ALTS is Google's own; use --ssl_config_file"),
    Flag(
        "ssl_config_file", "string", "", "same", "TLS on the gRPC port, with client certificates or without."
    ),
    Flag(
        "platform_config_file",
        "string",
        "",
        "same",
        "What it says of the platform tensorflow; enable_batching and the flags of sessions do not count then.",
    ),
    Flag(
        "per_process_gpu_memory_fraction",
        "float",
        0.0,
        "maps",
        "the part of each GPU's memory that all workers on it have together; each has an equal share",
    ),
    Flag("saved_model_tags", "string", "serve", "same", "Of the graph to serve, with commas between."),
    Flag(
        "grpc_channel_arguments",
        "string",
        "",
        "maps",
        "of these, grpc.max_receive_message_length is max_message_bytes; others have no meaning here",
    ),
    Flag("grpc_max_threads", "int32", None, "nothing", _ANY),
    Flag("enable_model_warmup", "bool", True, "same", "Recorded requests are sent before a worker is READY."),
    Flag("num_request_iterations_for_warmup", "int32", 0, "same", "How often each of them is; 0 for once."),
    Flag("version", "bool", False, "same", "Prints the versions and ends."),
    Flag(
        "monitoring_config_file", "string", "", "same", "Where Prometheus finds TensorFlow Serving's metrics."
    ),
    Flag("remove_unused_fields_from_bundle_metagraph", "bool", True, "nothing", "no such copy is kept"),
    Flag("prefer_tflite_model", "bool", False, "nothing", _TFLITE),
    Flag("num_tflite_pools", "int32", None, "nothing", _TFLITE),
    Flag("num_tflite_interpreters_per_pool", "int32", 1, "nothing", _TFLITE),
    Flag(
        "enable_signature_method_name_check",
        "bool",
        False,
        "same",
        "A signature is served by the methods alone that its method_name allows.",
        "check_method_names",
    ),
    Flag("xla_cpu_compilation_enabled", "bool", False, "nothing", _XLA),
    Flag("xla_gpu_compilation_enabled", "bool", False, "nothing", _XLA),
    Flag(
        "enable_profiler",
        "bool",
        True,
        "nothing",
        "there is no profiler service; see `mpspool top` and `mpspool density`",
    ),
    Flag("thread_pool_factory_config_file", "string", "", "nothing", _OWN_THREADS),
    Flag(
        "mixed_precision",
        "string",
        "",
        "nothing",
        "operations run in the precision that the model was saved with",
    ),
    Flag("skip_initialize_tpu", "bool", False, "nothing", "there are no TPUs here"),
    Flag(
        "enable_grpc_healthcheck_service",
        "bool",
        False,
        "nothing",
        "health checks (grpc.health.v1.Health) are answered in any case",
    ),
    Flag(
        "enable_serialization_as_tensor_content",
        "bool",
        False,
        "same",
        "Answers of Predict have their values in tensor_content.",
        "tensor_content",
    ),
)

DEEPREC = (
    Flag("use_session_group", "bool", False, "nothing", "a model always has several workers"),
    Flag(
        "session_num_per_group",
        "int32",
        0,
        "same",
        "Workers of each model on each of its GPUs, or on the CPU; 0 for as many as nobody says.",
    ),
    Flag("use_per_session_threads", "bool", False, "nothing", _OWN_THREADS),
    Flag("use_per_session_stream", "bool", False, "nothing", _OWN_STREAMS),
    Flag("use_multi_stream", "bool", False, "nothing", _OWN_STREAMS),
    Flag("gpu_ids_list", "string", "", "same", "GPUs, as CUDA_VISIBLE_DEVICES numbers them.", "gpus"),
    Flag(
        "allow_gpu_mem_growth",
        "bool",
        False,
        "maps",
        "GPU memory is taken as it is needed: false only counts with per_process_gpu_memory_fraction",
    ),
    Flag(
        "enable_device_placement_optimization",
        "bool",
        False,
        "nothing",
        "TensorFlow places operations by itself",
    ),
    Flag("use_tflite_model", "bool", False, "nothing", "TensorFlow Lite is not served; saved_model.pb is"),
    Flag("timeline_start_step", "int64", -1, "nothing", _NO_TIMELINE),
    Flag("timeline_interval_step", "int64", -1, "nothing", _NO_TIMELINE),
    Flag("timeline_trace_count", "int64", -1, "nothing", _NO_TIMELINE),
    Flag("timeline_path", "string", "", "nothing", _NO_TIMELINE),
    Flag("oss_endpoint", "string", "", "nothing", _OSS),
    Flag("oss_access_id", "string", "", "nothing", _OSS),
    Flag("oss_access_key", "string", "", "nothing", _OSS),
)

OURS = (
    Flag("check", "bool", False, "same", "Validates everything, prints the plan, starts nothing."),
    Flag("detach", "bool", False, "same", "Returns when the pool is on its way."),
    Flag(
        "processor_config_file",
        "string",
        "",
        "same",
        "The models, from the JSON of DeepRec's processor or of EAS.",
    ),
)

# Not to be shown, or kept.
SECRET = ("oss_access_id", "oss_access_key")
# Of sessions: a platform_config_file says these, and they do not count beside it.
SESSION = (
    "enable_batching",
    "batching_parameters_file",
    "enable_per_model_batching_parameters",
    "tensorflow_session_config_file",
    "tensorflow_session_parallelism",
    "tensorflow_intra_op_parallelism",
    "tensorflow_inter_op_parallelism",
    "per_process_gpu_memory_fraction",
    "saved_model_tags",
    "enable_model_warmup",
    "num_request_iterations_for_warmup",
    "session_num_per_group",
    "gpu_ids_list",
    "allow_gpu_mem_growth",
)
