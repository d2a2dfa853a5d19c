"""What TensorFlow Serving shows on its Prometheus page, as its sources define it, and what a public dashboard asks of it.

Its own metrics: servables/tensorflow/util.cc, servables/tensorflow/saved_model_warmup_util.cc, batching/batching_session.cc,
batching/batching_util.h. TensorFlow's: cc/saved_model/loader.cc, core/framework/metrics.cc, core/common_runtime/direct_session.cc.
"""

from __future__ import annotations

# Name, kind, and the labels in their order.
SERVED: dict[str, tuple[str, tuple[str, ...]]] = {
    ":tensorflow:serving:request_count": ("counter", ("model_name", "status")),
    ":tensorflow:serving:request_latency": ("histogram", ("model_name", "API", "entrypoint")),
    ":tensorflow:serving:runtime_latency": ("histogram", ("model_name", "API", "runtime")),
    ":tensorflow:serving:request_example_counts": ("histogram", ("model",)),
    ":tensorflow:serving:request_example_count_total": ("counter", ("model",)),
    ":tensorflow:serving:model_warmup_latency": ("histogram", ("model_path", "status")),
    ":tensorflow:serving:model_warmup_records_read": ("counter", ("model_path", "status")),
    ":tensorflow:serving:batching_session:queuing_latency": ("histogram", ("thread_pool_name",)),
    ":tensorflow:serving:batching_session:wrapped_run_count": ("counter", ()),
    ":tensorflow:serving:batching_session:padding_size": ("histogram", ("execution_batch_size",)),
    ":tensorflow:serving:batching_session:input_batch_size": ("histogram", ()),
    ":tensorflow:serving:batching_session:processed_batch_size": ("histogram", ()),
    ":tensorflow:cc:saved_model:load_attempt_count": ("counter", ("model_path", "status")),
    ":tensorflow:cc:saved_model:load_latency": ("counter", ("model_path",)),
    ":tensorflow:core:direct_session_runs": ("counter", ()),
    ":tensorflow:core:graph_build_calls": ("counter", ()),
    ":tensorflow:core:graph_build_time_usecs": ("counter", ()),
    ":tensorflow:core:graph_run_time_usecs": ("counter", ()),
    ":tensorflow:core:graph_run_time_usecs_histogram": ("histogram", ()),
    ":tensorflow:core:graph_runs": ("counter", ()),
}
# Of TensorFlow Serving's own, those that have no meaning here: docs/metrics.md says why.
LEFT_OUT = (
    ":tensorflow:serving:request_log_count",
    ":tensorflow:serving:mlmd_map",
    ":tensorflow:serving:saved_model_with_batching:queuing_latency",
)
# The first bound, how many times the one before each is, and how many there are.
BOUNDS = {
    ":tensorflow:serving:request_latency": (10, 1.8, 33),
    ":tensorflow:serving:runtime_latency": (10, 1.8, 33),
    ":tensorflow:serving:request_example_counts": (1, 2, 15),
    ":tensorflow:serving:model_warmup_latency": (10, 1.8, 33),
    ":tensorflow:serving:batching_session:queuing_latency": (100, 1.2, 52),
    ":tensorflow:serving:batching_session:padding_size": (1, 2, 14),
    ":tensorflow:serving:batching_session:input_batch_size": (1, 2, 14),
    ":tensorflow:serving:batching_session:processed_batch_size": (1, 2, 14),
    ":tensorflow:core:graph_run_time_usecs_histogram": (1000, 2, 20),
}
# All that the panels and the alerts of the "TensorFlow Serving" mixin ask for (grafana/jsonnet-libs, tensorflow-mixin), with the
# labels that they choose or group by.
DASHBOARD: dict[str, tuple[str, ...]] = {
    ":tensorflow:serving:request_count": ("model_name", "status"),
    ":tensorflow:serving:request_latency_sum": ("model_name",),
    ":tensorflow:serving:request_latency_count": ("model_name",),
    ":tensorflow:serving:runtime_latency_sum": ("model_name",),
    ":tensorflow:serving:runtime_latency_count": ("model_name",),
    ":tensorflow:serving:batching_session:queuing_latency_sum": (),
    ":tensorflow:serving:batching_session:queuing_latency_count": (),
    ":tensorflow:core:graph_build_calls": (),
    ":tensorflow:core:graph_build_time_usecs": (),
    ":tensorflow:core:graph_runs": (),
    ":tensorflow:core:graph_run_time_usecs": (),
}
