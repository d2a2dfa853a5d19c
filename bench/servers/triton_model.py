"""Triton's python model: tf_model's call for each request, or one for all where Triton batches."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tf_model  # type: ignore[import-not-found]
import triton_python_backend_utils as triton  # type: ignore[import-not-found]


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:  # noqa: ARG002
        self._call = tf_model.load()
        self._batching = os.environ.get("BENCH_BATCHING") == "1"

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        all_inputs = [
            {name: triton.get_input_tensor_by_name(request, name).as_numpy() for name in tf_model.INPUTS}
            for request in requests
        ]
        all_outputs: Iterable[tf_model.Arrays]
        if self._batching:
            all_outputs = self._batched(all_inputs)
        else:
            all_outputs = [self._call(inputs) for inputs in all_inputs]
        return [
            triton.InferenceResponse([triton.Tensor(name, array) for name, array in outputs.items()])
            for outputs in all_outputs
        ]

    def _batched(self, all_inputs: Sequence[tf_model.Arrays]) -> Iterator[tf_model.Arrays]:
        joined = {
            name: np.concatenate([inputs[name] for inputs in all_inputs]).reshape((-1, *shape))
            for name, (_, shape) in tf_model.INPUTS.items()
        }
        outputs = {name: array.reshape(len(array), -1) for name, array in self._call(joined).items()}
        start = 0
        for inputs in all_inputs:
            end = start + len(next(iter(inputs.values())))
            yield {name: array[start:end] for name, array in outputs.items()}
            start = end
