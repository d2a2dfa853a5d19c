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
_CALLER = re.compile(r"^\{\{function_node __wrapped__\S*\}\} | \[Op:\w+\](?: name: .*)?\s*$")


def status_text(error: tf.errors.OpError) -> str:
    """The C++ status message, without what TensorFlow's Python side adds to it."""
    message, preamble, text = error.message.partition(_PREAMBLE)
    if preamble:
        lines = text.split("\n")
        while lines and (not lines[0] or lines[0].startswith(_ORIGIN)):
            del lines[0]
        message = "\n".join(lines)
    return _CALLER.sub("", message)


def pool_error(error: Exception) -> PoolError:
    """What a failed call means to the caller.

    Args:
        error: an OpError keeps its code and text; whatever else came of converting the inputs to
            tensors, and is their fault.
    """
    if not isinstance(error, tf.errors.OpError):
        return PoolError(Code.INVALID_ARGUMENT, str(error))
    return PoolError(Code(error.error_code), status_text(error))
