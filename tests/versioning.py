"""Versions of half_plus_two that come and go in a base path, and which of them answers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import grpc

from mpspool.core import tfs
from tests.polling import until
from tests.pool import Pool

MODEL = "half_plus_two"


def folders(base: Path) -> list[int]:
    return [int(folder.name) for folder in base.iterdir() if folder.name.isdigit()]


def newest(base: Path) -> int:
    return max(folders(base))


def versions(pool: Pool) -> dict[int, dict[str, Any]]:
    (model,) = pool.status()["models"]
    return {version["version"]: version for version in model["versions"]}


def states(pool: Pool) -> dict[int, str]:
    return {number: version["state"] for number, version in versions(pool).items()}


def publish(base: Path, source: Path, number: int) -> Path:
    """Copies a version into the base path under a name that is none, and renames it."""
    shutil.copytree(source, base / f"incoming.{number}")
    return (base / f"incoming.{number}").rename(base / str(number))


def remove(base: Path, *numbers: int) -> None:
    for number in numbers:
        shutil.rmtree(base / str(number))


def serves(pool: Pool, number: int) -> None:
    until(lambda: states(pool) == {number: "AVAILABLE"}, 60, f"version {number} serves alone")
    assert {worker["version"] for worker in pool.workers().values()} == {number}


def error(pool: Pool, number: int) -> str:
    """Why a version is not served, once that is known."""
    found = until(lambda: versions(pool).get(number, {}).get("error"), 60, f"version {number} fails")
    return str(found)


def one_row(model: str = MODEL, x: float = 2.0) -> Any:
    """A request."""
    request = tfs.PredictRequest()
    request.model_spec.name = model
    request.inputs["x"].dtype = 1
    request.inputs["x"].tensor_shape.dim.add(size=1)
    request.inputs["x"].float_val.append(x)
    return request


def answering(
    channel: grpc.Channel, count: int, label: str = "", metadata: tuple[tuple[str, str], ...] = ()
) -> dict[int, int]:
    """How many of so many requests, one after another, each version has answered."""
    request = one_row()
    if label:
        request.model_spec.version_label = label
    call = channel.unary_unary(
        f"/{tfs.PREDICTION_SERVICE}/Predict",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=tfs.PredictResponse.FromString,
    )
    found: dict[int, int] = {}
    for _ in range(count):
        number = call(request, timeout=30, wait_for_ready=True, metadata=metadata).model_spec.version.value
        found[number] = found.get(number, 0) + 1
    return found
