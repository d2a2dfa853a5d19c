"""Becomes MLServer with mlserver_runtime.Runtime. Arguments: PORT WORKERS FOLDER (for its settings)."""

import json
import os
import sys
from pathlib import Path


def main(port: str, workers: str, folder: str) -> None:
    here = Path(__file__).resolve().parent
    # Its REST and metrics servers cannot be turned off: they listen next to the gRPC one.
    settings = {
        "host": "127.0.0.1",
        "grpc_port": int(port),
        "http_port": int(port) + 1,
        "metrics_port": int(port) + 2,
        "metrics_endpoint": None,
        "parallel_workers": int(workers),
        "debug": False,
        "access_log": False,
        "grpc_max_message_length": 64 * 2**20,
    }
    model = {"name": os.environ["BENCH_MODEL"], "implementation": "mlserver_runtime.Runtime"}
    Path(folder, "settings.json").write_text(json.dumps(settings))
    Path(folder, "model-settings.json").write_text(json.dumps(model))
    command = Path(sys.executable).parent / "mlserver"
    os.execve(command, ["mlserver", "start", folder], os.environ | {"PYTHONPATH": str(here)})


if __name__ == "__main__":
    main(*sys.argv[1:])
