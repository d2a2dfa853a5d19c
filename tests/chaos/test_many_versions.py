"""Forty versions in a row, under load: none costs a request, and none leaves anything behind."""

from __future__ import annotations

import os
import re
import shutil
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from mpspool.core import tfs
from tests.conftest import PoolStarter, short_dir
from tests.polling import until
from tests.pool import Load, Pool, processes_of

MODEL = "half_plus_two_wide"
VERSIONS = 40
AVAILABLE = 30
# Of programs that have gone, those whose logs are kept; of versions that have gone, those whose figures are.
KEPT_LOGS, KEPT_FIGURES = 50, 5
# Descriptors that are open for a moment only.
SLACK = 4


@dataclass(frozen=True)
class Held:
    """What a pool has, of each sort.

    Attributes:
        segments: of weights, by name, in bytes, whoever holds them.
        processes: how many.
        files: in the run folder, by path without generation; logs apart.
        logs: how many.
        descriptors: of the pool process and the router.
        pids: of the same.
        figures: the versions that have any in /metrics.
    """

    segments: dict[str, int]
    processes: int
    files: set[str]
    logs: int
    descriptors: dict[str, int]
    pids: dict[str, int]
    figures: set[int]


def held(pool: Pool) -> Held:
    """Now, by what the system says."""
    pids = {name: pool.process_pid(name) for name in ("pool", "router")}
    files = [str(path.relative_to(pool.run_dir)) for path in pool.run_dir.rglob("*") if not path.is_dir()]
    with urllib.request.urlopen(f"http://127.0.0.1:{pool.rest_port}/metrics", timeout=10) as answer:
        figures = re.findall(rf'model="{MODEL}",version="([0-9]+)"', answer.read().decode())
    return Held(
        segments(pool),
        len(processes_of(pool.run_dir)),
        {re.sub(r"(@[0-9]+.*)\.[0-9]+$", r"\1", name) for name in files if not name.startswith("logs/")},
        sum(name.startswith("logs/") for name in files),
        {name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in pids.items()},
        pids,
        set(map(int, figures)),
    )


def segments(pool: Pool) -> dict[str, int]:
    """Of weights, as the descriptors and mappings of all its processes say."""
    found: dict[str, int] = {}
    for pid in processes_of(pool.run_dir):
        for kind in ("fd", "map_files"):
            for link in Path(f"/proc/{pid}/{kind}").iterdir():
                try:
                    name = os.readlink(link)
                    if name.startswith(f"/memfd:mpspool.{MODEL}@"):
                        found[name] = link.stat().st_size
                except OSError:
                    continue  # it has just gone
    return found


def publish(base: Path, number: int) -> None:
    """A copy of the version before, which then goes: as whoever keeps one copy on disk does."""
    shutil.copytree(base / str(number - 1), base / f"incoming.{number}")
    (base / f"incoming.{number}").rename(base / str(number))
    if number > 2:
        shutil.rmtree(base / str(number - 2))


def serves(channel: grpc.Channel, number: int) -> None:
    """Waits until a version takes requests."""
    request = tfs.GetModelStatusRequest()
    request.model_spec.name = MODEL
    call = channel.unary_unary(
        f"/{tfs.MODEL_SERVICE}/GetModelStatus",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=tfs.GetModelStatusResponse.FromString,
    )

    def available() -> bool:
        return any(
            (found.version, found.state) == (number, AVAILABLE)
            for found in call(request, timeout=10).model_version_status
        )

    until(available, 60, f"version {number} serves")


def test_forty_versions_in_a_row(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], load: Callable[..., Load]
) -> None:
    """Each comes as soon as the one before serves: none is left out, and no request fails. At the end memory, processes,
    files, descriptors and figures are one version's.
    """
    with short_dir() as base:
        shutil.copytree(model_dir(MODEL) / "1", base / "1")
        often = ("--file-system-poll-wait-seconds", 0.1)
        threads = ("--intra-op-threads", 1, "--inter-op-threads", 1)
        pool = start_pool("--model", f"{MODEL}={base}", "--cpu-slots", 1, *threads, *often).wait()
        running = load(pool, MODEL)
        with grpc.insecure_channel(pool.address) as channel:
            for number in range(2, VERSIONS + 1):
                publish(base, number)
                serves(channel, number)
                if number == 3:
                    until(lambda: alone(pool, 3), 30, "version 3 serves alone")
                    before = held(pool)
        until(lambda: alone(pool, VERSIONS), 30, "the last one serves alone")
        running.end_clean()
        after = held(pool)
        assert len(after.segments) == 1
        assert sum(after.segments.values()) == sum(before.segments.values()) >= 2**21
        assert after.pids == before.pids
        assert after.processes <= before.processes
        assert {name.replace(f"@{VERSIONS}", "@3") for name in after.files} <= before.files
        assert after.logs <= before.logs + KEPT_LOGS
        for name, count in before.descriptors.items():
            assert after.descriptors[name] <= count + SLACK, name
        assert after.figures <= set(range(VERSIONS - KEPT_FIGURES, VERSIONS + 1)), after.figures


def alone(pool: Pool, number: int) -> bool:
    """Whether it is the only version, with nothing else of the model left."""
    status = pool.status()
    (model,) = status["models"]
    there = [version["version"] for version in model["versions"]]
    publishing = [item for item in status["processes"] if item["name"].startswith("publish.")]
    return there == [number] and not publishing and pool.all_ready() and len(segments(pool)) == 1
