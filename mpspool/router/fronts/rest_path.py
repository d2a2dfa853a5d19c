"""The paths of TensorFlow Serving's REST API (model_servers/http_rest_api_util.cc). Pure."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from mpspool.core.envelope import ModelSpecPeek
from mpspool.core.errors import Code, PoolError
from mpspool.core.methods import Method

_MODEL = r"(?:(?:/versions/([0-9]+))|(?:/labels/([^/:]+)))?"
_POST = re.compile(rf"/v1/models/([^/:]+){_MODEL}:(classify|regress|predict)", re.IGNORECASE)
_GET = re.compile(rf"/v1/models(?:/([^/:]+))?{_MODEL}(?:/(metadata))?", re.IGNORECASE)
# As they are written: to TensorFlow Serving ":PREDICT" has the right form, and is nothing that it does.
_METHODS = {
    "predict": Method.REST_PREDICT,
    "classify": Method.REST_CLASSIFY,
    "regress": Method.REST_REGRESS,
}
_MAX_INT64 = 2**63 - 1


class Wanted(NamedTuple):
    """What a request asks for: to run a model by a method, or what is known of one."""

    model: ModelSpecPeek
    method: Method | None = None
    metadata: bool = False


def wanted(verb: str, path: str) -> Wanted:
    """What a request asks for.

    Args:
        verb: HTTP's method.
        path: as it was sent.

    Raises:
        PoolError: INVALID_ARGUMENT, nothing that there is.
    """
    malformed = PoolError(Code.INVALID_ARGUMENT, f"Malformed request: {verb} {path}")
    form = {"POST": _POST, "GET": _GET}.get(verb)
    found = form.fullmatch(path) if form is not None else None
    if found is None:
        raise malformed
    name, version, label, last = found.groups()
    model = ModelSpecPeek(_decoded(name or ""), _number(version), label and _decoded(label), "")
    if verb == "POST":
        if last not in _METHODS:
            raise malformed
        return Wanted(model, _METHODS[last])
    if not name:
        raise PoolError(Code.INVALID_ARGUMENT, "Missing model name in request.")
    return Wanted(model, metadata=last == "metadata")


def _decoded(text: str) -> str:
    return unquote(text, errors="replace")


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    digits = text.lstrip("0") or "0"
    # No longer than it can be: of many digits Python reads none.
    if len(digits) > len(str(_MAX_INT64)) or int(digits) > _MAX_INT64:
        raise PoolError(Code.INVALID_ARGUMENT, f"Failed to convert version: {text} to numeric.")
    return int(digits)
