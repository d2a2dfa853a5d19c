"""TensorFlow is imported without Keras, which whoever wants it finds all the same."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys
from mpspool.worker.without_keras import without_keras
with without_keras():
    import tensorflow as tf
assert "keras" not in sys.modules
print(tf.keras.Sequential.__name__)
with without_keras():
    import keras
print(keras.Sequential.__name__)
"""


def test_it_is_there_afterwards() -> None:
    """Not imported with TensorFlow, found when it is wanted, and left alone where it is there."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["Sequential", "Sequential"]), done.stderr
