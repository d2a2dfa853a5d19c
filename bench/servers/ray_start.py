"""Ray Serve behind its gRPC proxy, which speaks TensorFlow Serving's service.

Arguments: PORT REPLICAS FOLDER (for its session files).
"""

import signal
import sys
from typing import Any

import ray  # type: ignore[import-not-found]
from ray import serve
from ray.serve.config import HTTPOptions, gRPCOptions  # type: ignore[import-not-found]

_SERVICER = "tensorflow_serving.apis.prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server"


@serve.deployment(max_ongoing_requests=100, ray_actor_options={"num_cpus": 0})
class Model:
    def __init__(self) -> None:
        import tf_model  # type: ignore[import-not-found]
        from tensorflow.core.framework import types_pb2
        from tensorflow_serving.apis import predict_pb2  # type: ignore[import-untyped]

        self._response, self._float = predict_pb2.PredictResponse, types_pb2.DT_FLOAT
        self._inputs, self._call = tf_model.INPUTS, tf_model.load()

    async def Predict(self, request: Any) -> Any:  # noqa: N802  gRPC's name
        import numpy as np

        response = self._response(model_spec=request.model_spec)
        inputs = {
            name: np.frombuffer(request.inputs[name].tensor_content, dtype).reshape(-1, *shape)
            for name, (dtype, shape) in self._inputs.items()
        }
        for name, array in self._call(inputs).items():
            tensor = response.outputs[name]
            tensor.dtype = self._float
            for size in array.shape:
                tensor.tensor_shape.dim.add().size = size
            tensor.tensor_content = array.tobytes()
        return response


def main(port: str, replicas: str, folder: str) -> None:
    cpus = max(2, int(replicas) + 1)
    ray.init(
        num_cpus=cpus,
        include_dashboard=False,
        logging_level="warning",
        object_store_memory=300_000_000,
        _temp_dir=folder,
    )
    serve.start(
        http_options=HTTPOptions(host="127.0.0.1", port=int(port) + 1),
        grpc_options=gRPCOptions(port=int(port), grpc_servicer_functions=[_SERVICER]),
    )
    deployment: Any = Model
    serve.run(deployment.options(num_replicas=int(replicas)).bind(), name="default", route_prefix="/")
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
