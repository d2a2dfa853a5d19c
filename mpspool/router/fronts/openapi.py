"""The OpenAPI document of the REST API, served at /openapi.json."""

from __future__ import annotations

from typing import Any

from mpspool import __version__
from mpspool.router.fronts.rest_api import TIMEOUT

PATH = "/openapi.json"

_JSON = "application/json"
_ERRORS = {
    "400": "The request is wrong: its path, its JSON, its tensors, or the model's kernels refuse them.",
    "403": "Not allowed here.",
    "404": "There is no such model, version or label.",
    "409": "It was broken off; ask again.",
    "429": "Too large, or there is no room for it now.",
    "500": "It failed inside the server.",
    "501": "The model has a type that JSON cannot carry.",
    "503": "No worker is ready, too many requests wait, or the server is shutting down: ask again, or elsewhere.",
    "504": "It was not answered in time.",
}
_ANY: dict[str, Any] = {}
_FEATURE = {"description": 'Of one type: numbers, text, {"b64": ...}, or a list of them.'}
_EXAMPLE = {"type": "object", "additionalProperties": _FEATURE}
_SIGNATURE = {"type": "string", "description": "A signature's key; serving_default where none is named."}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties}


_SCHEMAS = {
    "Error": _object(["error"], error={"type": "string"}),
    "Rows": {
        **_object(["instances"], signature_name=_SIGNATURE, instances={"type": "array", "minItems": 1}),
        "description": "One value for each row, or an object with one for each input.",
    },
    "Columns": {
        **_object(["inputs"], signature_name=_SIGNATURE, inputs=_ANY),
        "description": "A whole tensor, or an object with one for each input.",
    },
    "Predictions": _object(["predictions"], predictions={"type": "array"}),
    "Outputs": _object(["outputs"], outputs=_ANY),
    "Examples": _object(
        ["examples"],
        signature_name=_SIGNATURE,
        context=_EXAMPLE,
        examples={"type": "array", "minItems": 1, "items": _EXAMPLE},
    ),
    "Classified": _object(
        ["results"],
        results={
            "type": "array",
            "description": "For each example its classes, each with label and score.",
            "items": {"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2}},
        },
    ),
    "Regressed": _object(["results"], results={"type": "array"}),
    "Status": _object(
        ["model_version_status"],
        model_version_status={
            "type": "array",
            "items": _object(
                ["version", "state", "status"],
                version={"type": "string"},
                state={"enum": ["UNKNOWN", "START", "LOADING", "AVAILABLE", "UNLOADING", "END"]},
                status=_object(
                    ["error_code", "error_message"],
                    error_code={"type": "string"},
                    error_message={"type": "string"},
                ),
            ),
        },
    ),
    "Metadata": _object(
        ["model_spec", "metadata"], model_spec={"type": "object"}, metadata={"type": "object"}
    ),
}
_NAME = {"type": "string", "minLength": 1, "pattern": "^[A-Za-z0-9_.-]+$"}
_PARAMETERS = {
    "model": {"name": "model", "in": "path", "required": True, "schema": _NAME},
    "version": {
        "name": "version",
        "in": "path",
        "required": True,
        "schema": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
    },
    "label": {"name": "label", "in": "path", "required": True, "schema": _NAME},
}
_TIMEOUT: dict[str, Any] = {
    "name": TIMEOUT,
    "in": "header",
    "description": "Milliseconds that an answer may take; never more than the server lets others take.",
    "schema": {"type": "integer", "minimum": 1, "maximum": 999_999_999},
}
# What a path may say of the version, and which parameters that has.
_CHOICES = {"": [], "/versions/{version}": ["version"], "/labels/{label}": ["label"]}


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {_JSON: {"schema": schema}}


def _operation(summary: str, answer: dict[str, Any], body: dict[str, Any] | None = None) -> dict[str, Any]:
    errors = {
        code: {"description": text, "content": _content(_ref("Error"))} for code, text in _ERRORS.items()
    }
    answers = {"200": {"description": "The answer.", "content": _content(answer)}, **errors}
    operation: dict[str, Any] = {"summary": summary, "responses": answers}
    if body:
        operation |= {
            "parameters": [_TIMEOUT],
            "requestBody": {"required": True, "content": _content(body)},
        }
    return operation


def document() -> dict[str, Any]:
    """The whole of it."""
    either = {"oneOf": [_ref("Rows"), _ref("Columns")]}
    answers = {"oneOf": [_ref("Predictions"), _ref("Outputs")]}
    operations = {
        ":predict": {"post": _operation("Runs a signature", answers, either)},
        ":classify": {"post": _operation("Classifies examples", _ref("Classified"), _ref("Examples"))},
        ":regress": {"post": _operation("A number for each example", _ref("Regressed"), _ref("Examples"))},
        "": {"get": _operation("The state of a model's versions", _ref("Status"))},
        "/metadata": {"get": _operation("Signatures", _ref("Metadata"))},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "TensorFlow Serving's REST API, by mpspool", "version": __version__},
        "paths": {
            f"/v1/models/{{model}}{choice}{end}": {
                "parameters": [_PARAMETERS[name] for name in ("model", *parameters)],
                **operation,
            }
            for choice, parameters in _CHOICES.items()
            for end, operation in operations.items()
        },
        "components": {"schemas": _SCHEMAS},
    }
