"""Becomes the tritonserver of the pytriton wheel, with tf_model behind its python backend.

Arguments: PORT INSTANCES FOLDER STUB_VERSION LIBPYTHON_FOLDER; the model repository and a copy of
the server, whose backend folder has to hold the stub, are made in FOLDER. BENCH_BATCHING=1 turns
the dynamic batcher on, with its defaults (no queue delay); the batch dimension is then implied.
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytriton  # type: ignore[import-not-found]
import tf_model  # type: ignore[import-not-found]

_TYPES = {"float32": "TYPE_FP32", "int64": "TYPE_INT64"}
_HERE = Path(__file__).resolve().parent


def _tensors(kind: str, tensors: Mapping[str, Any], batching: bool) -> str:
    def dims(shape: Sequence[int]) -> list[int]:
        return (list(shape) or [1]) if batching else [-1, *shape]

    return "".join(
        f'{kind} [ {{ name: "{name}" data_type: {_TYPES[dtype.__name__]} dims: {dims(shape)} }} ]\n'
        for name, (dtype, shape) in tensors.items()
    )


def _config(instances: str, batching: bool) -> str:
    return (
        f'backend: "python"\nmax_batch_size: {1024 if batching else 0}\n'
        + ("dynamic_batching {}\n" if batching else "")
        + _tensors("input", tf_model.INPUTS, batching)
        + _tensors("output", tf_model.OUTPUTS, batching)
        + f"instance_group [ {{ count: {instances} kind: KIND_CPU }} ]\n"
    )


def main(port: str, instances: str, folder: str, stub_version: str, libpython: str) -> None:
    package = Path(pytriton.__file__).parent
    server, model = Path(folder, "server"), Path(folder, "repository", tf_model.NAME)
    shutil.copytree(package / "tritonserver", server, ignore=shutil.ignore_patterns("python_backend_stubs"))
    stub = package / "tritonserver" / "python_backend_stubs" / stub_version / "triton_python_backend_stub"
    shutil.copy(stub, server / "backends" / "python")
    (model / "1").mkdir(parents=True)
    shutil.copy(_HERE / "triton_model.py", model / "1" / "model.py")
    # The stub ignores PYTHONPATH; the model's folder is on its path.
    shutil.copy(tf_model.__file__, model / "1")
    (model / "config.pbtxt").write_text(_config(instances, os.environ.get("BENCH_BATCHING") == "1"))
    environment = os.environ | {
        # The stub links to libpython by name and must find the one of this interpreter. It takes its
        # virtual environment from PATH.
        "LD_LIBRARY_PATH": f"{libpython}:{package.parent / 'nvidia_pytriton.libs'}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = [
        "tritonserver",
        f"--model-repository={folder}/repository",
        f"--backend-directory={server}/backends",
        f"--grpc-port={port}",
        "--grpc-address=127.0.0.1",
        "--allow-http=false",
        "--allow-metrics=false",
        "--log-info=false",
    ]
    os.execve(server / "bin" / "tritonserver", command, environment)


if __name__ == "__main__":
    main(*sys.argv[1:])
