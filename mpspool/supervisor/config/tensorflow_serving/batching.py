"""BatchingParameters within another message."""

from __future__ import annotations

from typing import Any

from mpspool.supervisor.config.tensorflow_serving.told import Values


def parameters(message: Any) -> Values:
    """What is given, by TensorFlow Serving's names."""
    values = {field.name: getattr(value, "value", value) for field, value in message.ListFields()}
    if sizes := values.get("allowed_batch_sizes"):
        values["allowed_batch_sizes"] = list(sizes)
    return values
