"""The configuration of a pool that is edited while it runs, and who asks for it to be taken up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from mpspool.core import tfs
from tests.pool import Pool, cli


class File:
    """The pool's configuration, as somebody edits it."""

    def __init__(self, path: Path, base: Path) -> None:
        self.path = path
        self.base = base

    def write(self, models: dict[str, dict[str, Any]], **pool: Any) -> None:
        """JSON is YAML."""
        given = {name: {**self.model(), **values} for name, values in models.items()}
        whole = {"models": given, "file_system_poll_wait_seconds": 0.2, **pool}
        self.path.write_text(json.dumps(whole))

    def model(self) -> dict[str, Any]:
        """Pinned down, so that one model's share of the machine is none of the other's business."""
        return {
            "base_path": str(self.base),
            "cpu_slots": 2,
            "cpusets": "none",
            "intra_op_threads": 1,
            "inter_op_threads": 1,
        }


def reload(pool: Pool, *args: object) -> str:
    """What it says. Waits until it holds everywhere."""
    done = cli("reload", "--run-dir", pool.run_dir, "--timeout", 90, *args, timeout=120)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{pool.logs()}"
    return done.stdout


def refused(pool: Pool, *args: object) -> str:
    """The error of a reload that changes nothing."""
    before = pool.workers()
    done = cli("reload", "--run-dir", pool.run_dir, *args)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "nothing was changed" in done.stderr
    assert alike(before, pool.workers()) == before.keys()
    return done.stderr


def alike(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> set[str]:
    """The workers that were not touched."""
    keys = ("pid", "generation", "restarts")
    return {
        worker
        for worker in before.keys() & after.keys()
        if all(before[worker][key] == after[worker][key] for key in keys)
    }


def predict(pool: Pool, model: str) -> Any:
    done = cli("predict", model, "--run-dir", pool.run_dir, "--input", '{"x": [1, 2]}')
    return json.loads(done.stdout)["y"] if done.returncode == 0 else done.stderr


def ask(
    pool: Pool,
    served: Mapping[str, str],
    *,
    specific: Sequence[int] = (),
    labels: Mapping[str, int] | None = None,
    timeout_s: float = 60,
) -> Any:
    """HandleReloadConfigRequest with these models and their base paths. Raises grpc.RpcError.

    Args:
        pool: whom to ask.
        served: base paths by model.
        specific: the versions of each, in place of the latest.
        labels: of each.
        timeout_s: to wait for the answer.
    """
    request = tfs.ReloadConfigRequest()
    listed = request.config.model_config_list
    listed.SetInParent()
    for name, base_path in served.items():
        config = listed.config.add(name=name, base_path=base_path, model_platform="tensorflow")
        config.version_labels.update(labels or {})
        if specific:
            config.model_version_policy.specific.versions.extend(specific)
    return _call(pool, "HandleReloadConfigRequest", request, tfs.ReloadConfigResponse, timeout_s)


def status_of(pool: Pool, model: str) -> Any:
    """What GetModelStatus says of each version. Raises grpc.RpcError."""
    request = tfs.GetModelStatusRequest()
    request.model_spec.name = model
    return _call(pool, "GetModelStatus", request, tfs.GetModelStatusResponse, 10).model_version_status


def _call(pool: Pool, method: str, request: Any, answer: Any, timeout_s: float) -> Any:
    with grpc.insecure_channel(pool.address) as channel:
        call = channel.unary_unary(
            f"/{tfs.MODEL_SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return call(request, timeout=timeout_s)


def answered_by(pool: Pool, label: str) -> int:
    """The version that answers a request with this label. Raises grpc.RpcError."""
    request = tfs.PredictRequest()
    request.model_spec.name, request.model_spec.version_label = "half_plus_two", label
    request.inputs["x"].dtype = 1
    request.inputs["x"].tensor_shape.dim.add(size=1)
    request.inputs["x"].float_val.append(2.0)
    with grpc.insecure_channel(pool.address) as channel:
        call = channel.unary_unary(
            f"/{tfs.PREDICTION_SERVICE}/Predict",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=tfs.PredictResponse.FromString,
        )
        return int(call(request, timeout=30).model_spec.version.value)
