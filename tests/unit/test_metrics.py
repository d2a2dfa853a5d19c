"""What is counted, under which labels, and how it is rendered."""

from __future__ import annotations

import asyncio
import os
import re
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from mpspool.core.errors import Code, Lack
from mpspool.core.ids import WorkerId
from mpspool.core.messages import Outcome
from mpspool.core.methods import Method
from mpspool.core.settings import RestartSettings, RouterSettings
from mpspool.core.states import DomainState, SlotState, WorkerState
from mpspool.mps.telemetry import GpuReading, as_message
from mpspool.router.metrics.exposition import SLOT_STATES, Metrics
from mpspool.supervisor.pool import status
from mpspool.supervisor.pool.reconcile import WorkerReport
from mpspool.supervisor.pool.slots import Slot, SlotRecord
from tests.fakes.dataplane import version_told
from tests.pool import ROOT

WORKER = "half@3.cpu0.0"


class Snapshot:
    """A data plane that has only this to say."""

    def __init__(self, **fields: Any) -> None:
        nothing = {
            "draining": False,
            "models": [],
            "workers": [],
            "restarts": {},
            "slots": {},
            "devices": [],
            "tasks": [],
            "held_bytes": 30,
            "held_bytes_limit": 40,
        }
        self._snapshot = {**nothing, **fields}

    def snapshot(self) -> dict[str, Any]:
        return self._snapshot


def metrics(simulated: str = "") -> Metrics:
    return Metrics(RouterSettings(run_dir="", host="", grpc_port=0, rest_port=0, simulated=simulated))


def read(under_test: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample as {(name, sorted labels): value}."""
    text = under_test.exposition("")[0].decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def sample(under_test: Metrics, name: str, **labels: str) -> float | None:
    return read(under_test).get((f"mpspool_{name}", tuple(sorted(labels.items()))))


def test_a_finished_request_is_counted_once_everywhere() -> None:
    """One Predict shows in the requests, its worker's, and in all five histograms, in seconds."""
    under_test = metrics()
    outcome = Outcome(0, "", parse_us=100, run_us=3000, encode_us=200)
    under_test.finished(Method.PREDICT, "half", 3, WORKER, Code.OK, 0.25, 0.125, outcome)
    version = {"model": "half", "version": "3"}
    assert sample(under_test, "requests_total", method="Predict", code="OK", **version) == 1
    labels = {**version, "device": "cpu0", "slot": "0", "code": "OK"}
    assert sample(under_test, "worker_requests_total", **labels) == 1
    del labels["code"]
    assert sample(under_test, "worker_request_seconds_sum", **labels) == 0.25
    assert sample(under_test, "worker_request_seconds_count", **labels) == 1
    assert sample(under_test, "request_seconds_sum", **version) == 0.25
    assert sample(under_test, "queue_seconds_sum", **version) == 0.125
    assert sample(under_test, "worker_parse_seconds_sum", **version) == 100e-6
    assert sample(under_test, "worker_run_seconds_sum", **version) == 3000e-6
    assert sample(under_test, "worker_encode_seconds_sum", **version) == 200e-6
    assert sample(under_test, "request_seconds_bucket", le="0.3", **version) == 1
    assert sample(under_test, "request_seconds_bucket", le="0.2", **version) == 0


def test_a_request_has_its_effective_and_its_waiting_time() -> None:
    """All of its time is one or the other; where its worker's times are not known, there is neither."""
    under_test = metrics()
    outcome = Outcome(0, "", parse_us=100, run_us=3000, encode_us=200)
    under_test.finished(Method.PREDICT, "half", 3, WORKER, Code.OK, 0.25, 0.125, outcome, 0.0625)
    under_test.finished(
        Method.PREDICT, "half", 3, WORKER, Code.OK, 0.001, 0.0, outcome, 0.002
    )  # by two clocks
    under_test.finished(Method.PREDICT, "half", 3, "", Code.DEADLINE_EXCEEDED, 0.5, 0.5, None)
    version = {"model": "half", "version": "3"}
    assert sample(under_test, "effective_seconds_sum", **version) == 0.0625 + 0.002
    assert sample(under_test, "waiting_seconds_sum", **version) == 0.25 - 0.0625
    for name in ("effective", "waiting"):
        assert sample(under_test, f"{name}_seconds_count", **version) == 2
    assert sample(under_test, "effective_seconds_bucket", le="0.05", **version) == 1
    assert sample(under_test, "waiting_seconds_bucket", le="0.0005", **version) == 1
    assert sample(under_test, "waiting_seconds_bucket", le="0.1", **version) == 1


def test_a_batch_has_its_requests_and_its_rows() -> None:
    """In two histograms of their own, with bounds that double, which count no requests."""
    under_test = metrics()
    under_test.batch("half", 3, 4, 100)
    under_test.batch("half", 3, 1, 1)
    version = {"model": "half", "version": "3"}
    for name, total, most in (("requests", 5, "4.0"), ("rows", 101, "128.0")):
        assert sample(under_test, f"batch_{name}_sum", **version) == total
        assert sample(under_test, f"batch_{name}_count", **version) == 2
        assert sample(under_test, f"batch_{name}_bucket", le="1.0", **version) == 1
        assert sample(under_test, f"batch_{name}_bucket", le=most, **version) == 2
    assert not [name for name, _ in read(under_test) if name == "mpspool_requests_total"]


def test_a_device_shows_what_runs_and_how_it_is_shared() -> None:
    """Now, and so far, as the snapshot has it; nothing before a worker was there."""
    under_test = metrics()
    tasks = [
        {"device": "gpu0", "running": 3, "busy_s": 12.5, "effective_s": 7.25},
        {"device": "gpu1", "running": 0, "busy_s": 0.0, "effective_s": 0.0},
    ]
    under_test.observe(Snapshot(tasks=tasks))
    names = ("device_running", "device_busy_seconds_total", "device_effective_seconds_total")
    assert [sample(under_test, name, device="gpu0") for name in names] == [3, 12.5, 7.25]
    assert [sample(under_test, name, device="gpu1") for name in names] == [0, 0, 0]
    silent = metrics()
    silent.observe(Snapshot())
    assert not [name for name, _ in read(silent) if name.startswith("mpspool_device")]


def test_what_was_refused_at_the_door_has_no_latency() -> None:
    """A request that never waited or ran is counted by its code but in no histogram."""
    under_test = metrics()
    under_test.finished(Method.PREDICT, "half", 3, "", Code.UNAVAILABLE, 0.0, 0.0, None)
    version = {"model": "half", "version": "3"}
    assert sample(under_test, "requests_total", method="Predict", code="UNAVAILABLE", **version) == 1
    assert sample(under_test, "request_seconds_count", **version) == 0


def test_unknown_models_make_no_series() -> None:
    """A thousand invented names add one series, not a thousand."""
    under_test = metrics()
    for index in range(1000):
        under_test.finished(Method.PREDICT, f"invented{index}", 1, "", Code.NOT_FOUND, 0.0, 0.0, None)
    labels = {"model": "", "version": "", "method": "Predict", "code": "NOT_FOUND"}
    assert sample(under_test, "requests_total", **labels) == 1000
    assert not [name for name, _ in read(under_test) if "invented" in name]
    assert len(under_test.exposition("")[0]) < 20_000


def test_a_model_may_answer_not_found() -> None:
    """NOT_FOUND from a worker is the model's own answer and keeps the model's labels."""
    under_test = metrics()
    under_test.finished(Method.PREDICT, "half", 3, WORKER, Code.NOT_FOUND, 0.1, 0.0, Outcome(5))
    labels = {"model": "half", "version": "3", "method": "Predict", "code": "NOT_FOUND"}
    assert sample(under_test, "requests_total", **labels) == 1


def test_other_methods_are_counted_by_name() -> None:
    """Calls that the front answers carry their method and no model."""
    under_test = metrics()
    under_test.answered("GetModelStatus", Code.OK)
    under_test.answered("GetModelStatus", Code.OK)
    labels = {"model": "", "version": "", "method": "GetModelStatus", "code": "OK"}
    assert sample(under_test, "requests_total", **labels) == 2


def test_other_methods_carry_the_model_they_were_about() -> None:
    """With its version where it was about one; 0 is one."""
    under_test = metrics()
    under_test.answered("GetModelMetadata", Code.OK, "half", 0)
    under_test.answered("GetModelStatus", Code.OK, "half")
    for method, version in (("GetModelMetadata", "0"), ("GetModelStatus", "")):
        labels = {"model": "half", "version": version, "method": method, "code": "OK"}
        assert sample(under_test, "requests_total", **labels) == 1


def test_no_series_is_told_twice() -> None:
    """What named no model of ours is one number, whoever refused it, and whatever it was refused for."""
    under_test = metrics()
    under_test.finished(Method.PREDICT, "", 0, "", Code.INVALID_ARGUMENT, 0.0, 0.0, None)
    under_test.answered("Predict", Code.INVALID_ARGUMENT)
    under_test.unkept("")
    labels = {"model": "", "version": "", "method": "Predict", "code": "INVALID_ARGUMENT"}
    assert sample(under_test, "requests_total", **labels) == 2
    assert sample(under_test, "refusals_total", model="", version="", reason="answers") == 1
    series = [line.rpartition(" ")[0] for line in under_test.exposition("")[0].decode().splitlines()]
    told = [one for one in series if one.startswith("mpspool_")]
    assert len(told) == len(set(told))


def test_what_requests_are_refused_for_is_counted() -> None:
    """By model version; what has not come yet is 0."""
    under_test = metrics()
    under_test.finished(Method.PREDICT, "half", 3, "", Code.UNAVAILABLE, 0.0, 0.0, None)
    under_test.lacked("half", 3, Lack.BATCHES)
    counts = {
        reason: sample(under_test, "refusals_total", model="half", version="3", reason=reason)
        for reason in ("queue_requests", "queue_batches", "bytes", "late")
    }
    assert counts == {"queue_requests": 0, "queue_batches": 1, "bytes": 0, "late": 0}


def test_answers_that_are_not_kept_are_of_no_version() -> None:
    """They have no other series, and go with their model; what comes when it is gone is of no model."""
    under_test = metrics()
    under_test.finished(Method.PREDICT, "half", 3, WORKER, Code.OK, 0.1, 0.05, None)
    others = len(read(under_test))
    for _ in range(2):
        under_test.unkept("half")
    assert sample(under_test, "refusals_total", model="half", version="", reason="answers") == 2
    assert len(read(under_test)) == others + 1
    under_test.forget("half", 3)
    assert 'model="half"' not in under_test.exposition("")[0].decode()
    for model in ("half", ""):
        under_test.unkept(model)
    assert sample(under_test, "refusals_total", model="", version="", reason="answers") == 2
    assert 'model="half"' not in under_test.exposition("")[0].decode()


def test_the_snapshot_becomes_gauges() -> None:
    """Versions, queues, workers by state, in flight and restarts show as the snapshot has them."""
    under_test = metrics()
    versions: list[dict[str, Any]] = [
        version_told(
            3, "AVAILABLE", queued=7, queued_limit=50, queued_slow=2, policy_failures=5, policy_s=0.5
        ),
        version_told(4, "END", "its weights are cut"),
    ]
    weights = {"shared_bytes": 8, "private_bytes": 4, "excess_bytes": 0}
    under_test.observe(
        Snapshot(
            draining=True,
            models=[{"name": "half", "versions": versions}],
            workers=[
                {"id": WORKER, "state": "FAILED", "in_flight": 2, "busy_s": 2.5, "pid": 0},
                {
                    "id": WORKER,
                    "state": "READY",
                    "in_flight": 1,
                    "busy_s": 0.5,
                    "pid": os.getpid(),
                    "weights": weights,
                },
            ],
            restarts={WORKER: 4},
        )
    )
    version = {"model": "half", "version": "3"}
    slot = {**version, "device": "cpu0", "slot": "0"}
    assert sample(under_test, "draining") == 1
    assert sample(under_test, "model_version_state", **version) == 30
    failed = {"model": "half", "version": "4"}
    assert sample(under_test, "model_version_error", error="its weights are cut", **failed) == 1
    assert sample(under_test, "model_version_error", error="", **version) is None
    assert sample(under_test, "held_bytes") == 30
    assert sample(under_test, "held_bytes_limit") == 40
    assert sample(under_test, "queued_requests", **version) == 7
    assert sample(under_test, "queued_requests_limit", **version) == 50
    assert sample(under_test, "queued_slow_requests", **version) == 2
    assert sample(under_test, "policy_failures_total", **version) == 5
    assert sample(under_test, "policy_seconds_total", **version) == 0.5
    assert sample(under_test, "workers", state="READY", **version) == 1
    assert sample(under_test, "workers", state="LOADING", **version) == 0
    assert sample(under_test, "worker_in_flight_requests", **slot) == 3
    assert sample(under_test, "worker_busy_seconds_total", **slot) == 3
    assert sample(under_test, "worker_restarts_total", **slot) == 4
    assert sample(under_test, "worker_weights_bytes", kind="shared", **slot) == 8
    asyncio.run(under_test.measure())
    assert (sample(under_test, "worker_memory_bytes", kind="private", **slot) or 0) > 1_000_000


def test_every_slot_there_should_be_shows_in_its_state() -> None:
    """Filled or not; a state that no slot is in is 0, and what the pool has not told of is not there."""
    under_test = metrics()
    slots = {
        WORKER: "READY",
        "half@3.cpu0.1": "FATAL",
        "half@3.cpu0.2": "FATAL",
        "half@4.cpu0.0": "BACKOFF",
    }
    under_test.observe(Snapshot(slots=slots))
    found = {
        labels: value
        for (name, pairs), value in read(under_test).items()
        if name == "mpspool_slots" and (labels := tuple(value for _, value in pairs))
    }
    assert len(found) == 2 * len(SLOT_STATES)
    filled = {labels: value for labels, value in found.items() if value}
    assert filled == {
        ("half", "READY", "3"): 1,
        ("half", "FATAL", "3"): 2,
        ("half", "BACKOFF", "4"): 1,
    }
    silent = metrics()
    silent.observe(Snapshot())
    assert not [name for name, _ in read(silent) if name == "mpspool_slots"]


def test_slot_states_are_those_of_the_status() -> None:
    """Whatever word the pool has for a slot is one of the series, and the other way round."""
    worker = WorkerId.parse(WORKER)

    def told(state: SlotState, reported: WorkerState | None) -> str:
        slot = Slot(WORKER, RestartSettings(), SlotRecord(state=state, generation=1))
        reports = {WORKER: WorkerReport(1, 1, reported.value, 0, 0, "")} if reported else {}
        return str(status.for_router([], {worker: slot}, reports)["slots"][WORKER])

    found = {told(state, reported) for state in SlotState for reported in (None, *WorkerState)}
    assert found == set(SLOT_STATES)
    assert len(SLOT_STATES) == len(found)


def device(name: str, **fields: Any) -> dict[str, Any]:
    reading = GpuReading(f"GPU-{name}", **fields)
    return as_message(name, reading, "SERVING" if not reading.lost else "LOST", reading.lost)


def test_what_the_pool_tells_of_its_gpus_shows() -> None:
    """In base units, by device and uuid; what a device does not tell has no sample."""
    under_test = metrics()
    workers = {"half@3.gpu0.1": 77}
    full = GpuReading(
        "GPU-x", "H100", 0.41, 12, 80, 54, 310.5, 700.0, 2, processes={77: 5}, xids={13: 2, 31: 1}
    )
    devices = [
        as_message("gpu0", full, "SERVING", faults=4, workers=workers, simulated=True),
        device("gpu1", lost="Xid 79", xids={79: 1}),
    ]
    under_test.observe(Snapshot(devices=devices))
    labels = {"device": "gpu0", "uuid": "GPU-x"}
    gpu1 = {"device": "gpu1", "uuid": "GPU-gpu1"}
    expected = {
        "utilization_ratio": 0.41,
        "memory_used_bytes": 12,
        "memory_total_bytes": 80,
        "temperature_celsius": 54,
        "power_watts": 310.5,
        "power_limit_watts": 700,
        "ecc_uncorrected_errors": 2,
    }
    assert {name: sample(under_test, f"gpu_{name}", **labels) for name in expected} == expected
    assert {sample(under_test, f"gpu_{name}", **gpu1) for name in expected} == {None}
    exposition = under_test.exposition("")[0].decode()
    assert 'gpu_info{device="gpu0",name="H100",simulated="SIMULATED",uuid="GPU-x"} 1.0' in exposition
    assert 'gpu_info{device="gpu1",name="",simulated="",uuid="GPU-gpu1"} 1.0' in exposition
    assert sample(under_test, "gpu_faults_total", **labels) == 4
    assert sample(under_test, "gpu_faults_total", **gpu1) == 0
    assert sample(under_test, "gpu_xid_errors_total", xid="13", **labels) == 2
    assert sample(under_test, "gpu_xid_errors_total", xid="79", **gpu1) == 1
    slot = {"model": "half", "version": "3", "device": "gpu0", "slot": "1"}
    assert sample(under_test, "gpu_worker_memory_bytes", **slot) == 5
    states = {state.value for state in DomainState}
    found = {state: sample(under_test, "gpu_state", state=state, **gpu1) for state in states}
    assert found == {**dict.fromkeys(states, 0), "LOST": 1}
    assert sample(under_test, "gpu_state", state="SERVING", **labels) == 1


def test_without_a_gpu_there_is_nothing_of_gpus() -> None:
    """Not even the names."""
    under_test = metrics()
    under_test.observe(Snapshot())
    assert b"mpspool_gpu" not in under_test.exposition("")[0]


def test_every_metric_is_documented() -> None:
    """In docs/metrics.md, and nothing that is not there."""
    under_test = metrics()
    full = GpuReading("GPU-x", "H100", 0.4, 1, 2, 5, 3.5, 7.0, 2, processes={77: 5}, xids={13: 2})
    under_test.observe(Snapshot(devices=[as_message("gpu0", full, "SERVING", workers={"half@3.gpu0.1": 77})]))
    text = under_test.exposition("")[0].decode()
    shown = set(re.findall(r"^# TYPE (mpspool_\w+)", text, re.MULTILINE))
    rows = re.findall(r"^\| (`mpspool_.+?) \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == shown


def test_latencies_count_up_to_each_bound() -> None:
    """Per model version, in the order of the bounds, the last one being all; a request that named no model is none."""
    under_test = metrics()
    for total_s in (0.004, 0.004, 0.25, 100.0):
        under_test.finished(Method.PREDICT, "half", 3, WORKER, Code.OK, total_s, 0.001, None)
    under_test.finished(Method.PREDICT, "invented", 1, "", Code.NOT_FOUND, 0.1, 0.0, None)
    found = under_test.latencies()
    assert list(found["models"]) == ["half@3"]
    counts = dict(zip([*found["bounds_s"], "all"], found["models"]["half@3"], strict=True))
    assert [counts[bound] for bound in (0.003, 0.005, 0.2, 0.3, 60.0, "all")] == [0, 2, 2, 3, 3, 4]


def test_the_build_says_what_is_simulated() -> None:
    """SIMULATED shows in build_info exactly when a device is a stand-in."""
    assert b'simulated="SIMULATED gpus"' in metrics("gpus").exposition("")[0]
    assert b'simulated=""' in metrics().exposition("")[0]


def test_openmetrics_on_request() -> None:
    """The Accept header chooses the format."""
    under_test = metrics()
    text, content_type = under_test.exposition("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")
    assert under_test.exposition("*/*")[1].startswith("text/plain")


def test_a_format_that_there_is_none_of() -> None:
    """A version that is no number is as good as no Accept header."""
    under_test = metrics()
    for kind in ("text/plain", "application/openmetrics-text"):
        assert under_test.exposition(f"{kind};version=abc") == under_test.exposition("")
