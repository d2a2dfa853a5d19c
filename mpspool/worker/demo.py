"""`python -m mpspool.worker.demo DIR`: exports the demo model, DIR/half_plus_two/1, unless it is there.

y = 0.5 x + 2, the model that TensorFlow Serving's own examples use.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

NAME = "half_plus_two"


def export(root: Path) -> Path:
    """Writes the model under root, whole or not at all, and returns its base path."""
    base_path = root / NAME
    if (base_path / "1").is_dir():
        return base_path
    base_path.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".", dir=base_path))
    try:
        _save(unfinished)
        unfinished.chmod(0o755)
        unfinished.rename(base_path / "1")
    except OSError:
        shutil.rmtree(unfinished)
        if not (base_path / "1").is_dir():  # else another export was faster
            raise
    return base_path


def _save(path: Path) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf  # 4 s, and only when there is something to export

    class HalfPlusTwo(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.slope, self.offset = tf.Variable(0.5, name="slope"), tf.Variable(2.0, name="offset")

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])  # type: ignore[untyped-decorator]
        def predict(self, x: Any) -> Any:
            return {"y": self.slope * x + self.offset}

    model = HalfPlusTwo()
    tf.saved_model.save(model, str(path), signatures={"serving_default": model.predict})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m mpspool.worker.demo",
        description="Export the demo model, DIR/half_plus_two/1, unless it is there; prints its base path.",
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="made where it is not there")
    return parser.parse_args()


if __name__ == "__main__":
    print(export(_arguments().dir))
