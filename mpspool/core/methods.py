"""The methods by which a model is run, whatever they come through."""

from __future__ import annotations

import enum


class Method(enum.IntEnum):
    """What a request's bytes are, and what its answer is to be.

    The bytes of gRPC are a message of TensorFlow Serving's, those of REST a JSON document.
    """

    PREDICT = 0
    CLASSIFY = 1
    REGRESS = 2
    MULTI_INFERENCE = 3
    REST_PREDICT = 4
    REST_CLASSIFY = 5
    REST_REGRESS = 6

    @property
    def api(self) -> str:
        """What TensorFlow Serving calls it, whatever it came through: "Predict"."""
        return _APIS[self]

    @property
    def is_rest(self) -> bool:
        return self >= Method.REST_PREDICT

    @property
    def message(self) -> str:
        """The full name of a gRPC method's request."""
        return f"tensorflow.serving.{_MESSAGES[self]}"


_APIS = ("Predict", "Classify", "Regress", "MultiInference", "Predict", "Classify", "Regress")
_MESSAGES = ("PredictRequest", "ClassificationRequest", "RegressionRequest", "MultiInferenceRequest")
