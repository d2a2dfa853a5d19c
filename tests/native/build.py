"""Compiles the test ops against the TensorFlow that is installed."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("testing_ops.cc")
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "testing_ops"
_FLAGS = """
import json, sys, tensorflow as tf
json.dump([tf.sysconfig.get_compile_flags(), tf.sysconfig.get_link_flags()], sys.stdout)
"""


def build(out_dir: Path) -> Path:
    """The shared library, in out_dir. Compiles it (about 10 s) unless this source was for this TensorFlow."""
    version = importlib.metadata.version("tensorflow")
    key = hashlib.sha256(SOURCE.read_bytes() + version.encode()).hexdigest()[:16]
    cached = CACHE / f"testing_ops-{key}.so"
    library = out_dir / cached.name
    for folder in (CACHE, out_dir):
        folder.mkdir(parents=True, exist_ok=True)
    with open(CACHE / ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not cached.exists():
            _compile(cached)
        if not library.exists():  # writing over one that a process has loaded would kill it
            shutil.copy(cached, library)
    return library


def _compile(library: Path) -> None:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    flags = subprocess.run(
        [sys.executable, "-c", _FLAGS], check=True, env=environment, capture_output=True, timeout=60
    )
    compile_flags, link_flags = json.loads(flags.stdout)
    unfinished = library.with_suffix(".unfinished")
    subprocess.run(
        [
            "g++",
            "-O1",
            "-w",
            "-shared",
            "-fPIC",
            *compile_flags,
            str(SOURCE),
            "-o",
            str(unfinished),
            *link_flags,
        ],
        check=True,
        timeout=300,
    )
    unfinished.rename(library)
