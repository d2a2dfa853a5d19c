"""LitServe with JSON. Arguments: PORT WORKERS."""

import sys
from typing import Any

import litserve  # type: ignore[import-not-found]
import numpy as np
import tf_model  # type: ignore[import-not-found]


class Api(litserve.LitAPI):  # type: ignore[misc]
    def setup(self, device: str) -> None:  # noqa: ARG002
        self._call = tf_model.load()

    def decode_request(self, request: dict[str, Any]) -> tf_model.Arrays:
        return {
            name: np.asarray(request["inputs"][name], dtype) for name, (dtype, _) in tf_model.INPUTS.items()
        }

    def predict(self, inputs: tf_model.Arrays) -> tf_model.Arrays:
        return self._call(inputs)

    def encode_response(self, outputs: tf_model.Arrays) -> dict[str, Any]:
        return {"outputs": {name: array.tolist() for name, array in outputs.items()}}


if __name__ == "__main__":
    server = litserve.LitServer(Api(), accelerator="cpu", workers_per_device=int(sys.argv[2]), timeout=60)
    server.run(port=int(sys.argv[1]), host="127.0.0.1", generate_client_file=False, log_level="warning")
