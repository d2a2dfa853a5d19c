"""What the tests of this folder share."""

from __future__ import annotations

import warnings
from typing import Any

import pytest


@pytest.fixture(scope="session")
def apis() -> Any:
    """The stock client's modules."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorflow_serving.apis import (
            get_model_metadata_pb2,
            get_model_status_pb2,
            model_service_pb2_grpc,
            predict_pb2,
            prediction_service_pb2_grpc,
        )

    class Apis:
        metadata = get_model_metadata_pb2
        status = get_model_status_pb2
        model_service = model_service_pb2_grpc
        predict = predict_pb2
        service = prediction_service_pb2_grpc

    return Apis
