"""A Predict request that came by REST, as the message that asks the same. Pure."""

from __future__ import annotations

import json
from typing import Any

from mpspool.core import json_tensors
from mpspool.core.errors import PoolError


def message(model: str, body: bytes, signatures: Any) -> bytes | None:
    """A serialised PredictRequest.

    Args:
        model: the model's name.
        body: the JSON document, by rows ("instances") or by inputs, to which there was an answer.
        signatures: the version's tfs.SignatureDefMap.

    Returns:
        None for what only REST can say, such as "NaN" without quotation marks for a number.
    """
    try:
        asked = json.loads(body)
        document = asked["inputs"] if "inputs" in asked else _by_input(asked["instances"])
        return json_tensors.request(model, document, signatures, signature=asked.get("signature_name", ""))
    except (PoolError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _by_input(rows: list[Any]) -> Any:
    """What rows say, input by input; the rows themselves where they name none."""
    first = rows[0]
    if not isinstance(first, dict) or set(first) == {"b64"}:
        return rows
    return {alias: [row[alias] for row in rows] for alias in first}
