"""TensorFlow's exceptions as the pool's errors, with the text that TensorFlow Serving would send."""

from __future__ import annotations

import re

import tensorflow as tf

from mpspool.core.errors import Code, PoolError

# At load these may pass by themselves (the device is full, or not there yet); all others lie in the model.
PASSING = frozenset(
    {
        Code.CANCELLED,
        Code.DEADLINE_EXCEEDED,
        Code.RESOURCE_EXHAUSTED,
        Code.ABORTED,
        Code.INTERNAL,
        Code.UNAVAILABLE,
    }
)
# What Python puts around the C++ status: where the op was created (before), what called it (after).
_PREAMBLE = "Graph execution error:"
_ORIGIN = ("Detected at node", "Node: ", "<stack traces unavailable>", "  ")
_WRAPPED = re.compile(r"\{\{function_node __wrapped__\S*\}\} ")
_OP = " [Op:"
_CALLER = re.compile(r" \[Op:\w+\](?: name: .*)?\s*")


def status_text(error: tf.errors.OpError) -> str:
    """The C++ status message, without what TensorFlow's Python side adds to it. What a client has sent may be in it, as long as it likes."""
    message: str = error.message
    _, preamble, text = message.partition(_PREAMBLE)
    if preamble:
        lines = text.split("\n")
        told = (at for at, line in enumerate(lines) if line and not line.startswith(_ORIGIN))
        message = "\n".join(lines[next(told, len(lines)) :])
    if wrapped := _WRAPPED.match(message):
        message = message[wrapped.end() :]
    at = message.rfind(_OP)
    return message[:at] if at >= 0 and _CALLER.fullmatch(message, at) else message


def pool_error(error: Exception) -> PoolError:
    """What a failed call means to the caller.

    Args:
        error: an OpError keeps its code and text; whatever else came of converting the inputs to
            tensors, and is their fault.
    """
    if not isinstance(error, tf.errors.OpError):
        return PoolError(Code.INVALID_ARGUMENT, str(error))
    return PoolError(Code(error.error_code), status_text(error))
