"""The model as every peer calls it: numpy in, numpy out. Runs in the peers' environments.

BENCH_MODELS is the folder of base paths, BENCH_MODEL the model's name, BENCH_THREADS TensorFlow's
intra-op and inter-op threads, BENCH_CALL "signature" (what anyone would write) or "session" (the
call our own engine makes).
"""

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]
Tensors = dict[str, tuple[type[np.generic], tuple[int, ...]]]

NAME = os.environ["BENCH_MODEL"]
_THREADS = int(os.environ.get("BENCH_THREADS", "1"))
_PATH = os.path.join(os.environ["BENCH_MODELS"], NAME, "1")
_MODELS: dict[str, tuple[Tensors, Tensors]] = {
    "half_plus_two": ({"x": (np.float32, ())}, {"y": (np.float32, ())}),
    "widedeep": ({"cat": (np.int64, (26,)), "dense": (np.float32, (13,))}, {"score": (np.float32, (1,))}),
}

# name -> (element type, shape after the batch dimension)
INPUTS, OUTPUTS = _MODELS[NAME]


def load() -> Callable[[Arrays], Arrays]:
    """A function from a dict of numpy inputs to a dict of numpy outputs, called a few times already."""
    call = _session() if os.environ.get("BENCH_CALL") == "session" else _signature()
    for batch in (1, 1, 32):
        call({name: np.zeros((batch, *shape), dtype) for name, (dtype, shape) in INPUTS.items()})
    return call


def _signature() -> Callable[[Arrays], Arrays]:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(_THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(_THREADS)
    model = tf.saved_model.load(_PATH)

    def call(inputs: Arrays) -> Arrays:
        outputs = model.signatures["serving_default"](
            **{name: tf.constant(array) for name, array in inputs.items()}
        )
        return {name: tensor.numpy() for name, tensor in outputs.items()}

    return call


def _session() -> Callable[[Arrays], Arrays]:
    import tensorflow as tf
    from tensorflow.core.protobuf import config_pb2

    v1 = tf.compat.v1
    config = v1.ConfigProto(intra_op_parallelism_threads=_THREADS, inter_op_parallelism_threads=_THREADS)
    graph = tf.Graph()
    session = v1.Session(graph=graph, config=config)
    with graph.as_default():
        signature = v1.saved_model.load(session, ["serve"], _PATH).signature_def["serving_default"]
    options = config_pb2.CallableOptions()
    # Runs in the calling thread, as TensorFlow Serving does on request.
    options.run_options.inter_op_thread_pool = -1
    feeds, fetches = sorted(signature.inputs), sorted(signature.outputs)
    options.feed.extend(signature.inputs[name].name for name in feeds)
    options.fetch.extend(signature.outputs[name].name for name in fetches)
    function = session._make_callable_from_options(options)  # noqa: SLF001  what our engine does

    def call(inputs: Arrays) -> Arrays:
        return dict(zip(fetches, function(*[inputs[name] for name in feeds]), strict=True))

    return call
