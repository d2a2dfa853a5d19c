"""How things stand, in the words of `status --json` and of what the router is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import msgspec
import pytest

from mpspool.core.ids import WorkerId
from mpspool.core.process import EXIT_NEVER
from mpspool.core.settings import (
    BatchingSettings,
    ModelSettings,
    MpsSettings,
    PoolSettings,
    QueueSettings,
    RestartSettings,
    RouterSettings,
    SchedulingSettings,
    SlotSettings,
    TlsSettings,
)
from mpspool.core.states import VersionPhase
from mpspool.mps.telemetry import GpuReading, as_message
from mpspool.supervisor.pool import status
from mpspool.supervisor.pool.reconcile import Processes, WorkerReport
from mpspool.supervisor.pool.slots import Slot
from mpspool.supervisor.pool.status import Servable
from mpspool.supervisor.supervisord import ProcessInfo, ProcessState


def settings(*models: str) -> PoolSettings:
    """Each with two slots."""
    places = [SlotSettings(device="cpu0", slot=number) for number in range(2)]
    return PoolSettings(
        run_dir="/r",
        mps="off",
        models=[ModelSettings(name=name, version=1, path="/m/1", slots=places) for name in models],
        mps_daemons=[],
        router=RouterSettings(run_dir="/r", host="127.0.0.1", grpc_port=1, rest_port=0),
    )


def servables(config: PoolSettings, **failed: str) -> list[Servable]:
    """Its models, those that failed with their reasons."""
    return [
        Servable(model, VersionPhase.FAILED, failed[model.name])
        if model.name in failed
        else Servable(model, VersionPhase.SERVING)
        for model in config.models
    ]


def slots(config: PoolSettings) -> dict[WorkerId, Slot]:
    return {worker: Slot(str(worker), RestartSettings()) for worker in status.places(config.models)}


def view(
    config: PoolSettings,
    found: dict[WorkerId, Slot],
    *,
    processes: Processes | None = None,
    router: Mapping[str, Any] | None = None,
    **told: Any,
) -> status.View:
    """Of a pool with these slots, and of processes of which nothing else is known."""
    places = status.places(config.models)
    return status.View(config, servables(config), found, places, processes or {}, {}, {}, router, 1, **told)


def test_the_router_is_told_each_version_once() -> None:
    """Failed once no slot is left, proved once any was READY; and how often each worker was started again."""
    config = settings("good", "bad")
    found = slots(config)
    good, _, *bad = found
    found[good].started(7, 1, 0.0)
    found[good].ready(0.0)
    found[good].ended(-1, 1.0)
    found[good].started(8, 2, 0.0)
    found[bad[0]].started(9, 1, 0.0)
    found[bad[0]].ended(EXIT_NEVER, 1.0, "no SavedModel")

    def told(*names: str) -> list[tuple[Any, ...]]:
        found_facts = status.facts(found)
        failed = {
            model.name: fact.reason for model, fact in found_facts.items() if not fact.ready + fact.coming
        }
        models = status.for_router(servables(config, **failed), found, {})["models"]
        return [tuple(model[name] for name in names) for model in models]

    assert told("name", "version", "proved", "failed") == [("good", 1, True, ""), ("bad", 1, False, "")]
    found[bad[1]].started(10, 1, 0.0)
    found[bad[1]].ended(EXIT_NEVER, 1.0, "no SavedModel")
    assert told("name", "failed") == [("good", ""), ("bad", "no SavedModel")]
    assert status.for_router(servables(config), found, {})["restarts"] == {
        "good@1.cpu0.0": 1,
        "good@1.cpu0.1": 0,
        "bad@1.cpu0.0": 0,
        "bad@1.cpu0.1": 0,
    }


def test_while_labelled_versions_are_to_come_the_pool_starts() -> None:
    """The router is told which, and whoever reads the status, who sees that it is not RUNNING though all workers are READY."""
    config = settings("m")
    found = slots(config)
    for pid, slot in enumerate(found.values()):
        slot.started(pid + 1, 1, 0.0)
        slot.ready(0.0)
    reports = {str(worker): WorkerReport(1, slot.pid, "READY", 0, 0, "") for worker, slot in found.items()}
    labelled = msgspec.structs.replace(config.models[0], labels={"stable": 3, "now": 1})
    version = {"version": 1, "state": "AVAILABLE", "error": "", "batch_rows": 0}
    router = {
        "models": [{"name": "m", "versions": [version]}],
        "workers": [{"id": name, **asdict(report)} for name, report in reports.items()],
    }
    seen = []
    for to_come in ([3], []):
        mine = [Servable(labelled, VersionPhase.SERVING, to_come=to_come)]
        (told,) = status.for_router(mine, {}, {})["models"]
        assert told["to_come"] == to_come
        built = status.build(replace(view(config, found, router=router), servables=mine))
        (model,) = built["models"]
        seen.append((model.get("to_come"), built["pool"]["state"]))
    assert seen == [([3], "STARTING"), (None, "RUNNING")]


def test_the_router_is_told_how_each_version_waits() -> None:
    """Its batching, null where it has none, and its queue, as plain values."""
    config = settings("plain", "batched")
    batched = msgspec.structs.replace(
        config.models[1],
        batching=BatchingSettings(max_batch_size=32, allowed_batch_sizes=[8, 32], adaptive=True),
        queue=QueueSettings(policy="edf", max_queued_requests=3, max_queued_bytes=4),
    )
    config = msgspec.structs.replace(config, models=[config.models[0], batched])
    told = status.for_router(servables(config), slots(config), {})["models"]
    assert [item["batching"] for item in told] == [
        None,
        {
            "max_batch_size": 32,
            "batch_timeout_us": 0,
            "max_enqueued_batches": 10,
            "allowed_batch_sizes": [8, 32],
            "pad_variable_length_inputs": False,
            "max_execution_batch_size": 0,
            "adaptive": True,
        },
    ]
    assert [item["queue"] for item in told] == [
        {"policy": "fifo", "max_queued_requests": 10_000, "max_queued_bytes": 2**32, "shares_bytes": False},
        {"policy": "edf", "max_queued_requests": 3, "max_queued_bytes": 4, "shares_bytes": False},
    ]


def test_the_router_is_told_the_state_of_every_slot() -> None:
    """In the words of the status: those of the workers it knows nothing of, and those it told us."""
    config = settings("good", "bad")
    found = slots(config)
    one, two, three, four = found
    found[one].started(7, 2, 0.0)
    found[two].started(8, 1, 0.0)
    found[three].started(9, 1, 0.0)
    found[three].ended(EXIT_NEVER, 1.0, "no SavedModel")
    reports = {
        str(one): WorkerReport(1, 6, "READY", 0, 0, ""),
        str(two): WorkerReport(1, 8, "WARMING", 0, 0, ""),
    }
    told = status.for_router(servables(config), found, reports)["slots"]
    assert told == {str(one): "STARTING", str(two): "WARMING", str(three): "FATAL", str(four): "EMPTY"}
    router = {"workers": [{"id": name, **asdict(report)} for name, report in reports.items()]}
    shown = status.build(view(config, found, router=router))["workers"]
    assert {worker["id"]: worker["state"] for worker in shown} == told


def test_each_version_has_its_policy_and_batches_and_why_a_policy_fails() -> None:
    """Known without the router, which tells of failures and of what a version's own file says of its batches."""
    config = settings("plain", "urgent")
    urgent = msgspec.structs.replace(
        config.models[1],
        queue=QueueSettings(policy="mine:urgent"),
        batching=BatchingSettings(max_batch_size=32),
    )
    config = msgspec.structs.replace(config, models=[config.models[0], urgent])
    version = {"version": 1, "state": "AVAILABLE", "error": ""}
    versions = [
        {**version, "policy_error": "", "policy_slow_ms": 0.0, "batch_rows": 0},
        {**version, "policy_error": "KeyError: 'x'", "policy_slow_ms": 51.0, "batch_rows": 64},
    ]
    names = [model.name for model in config.models]
    router = {
        "workers": [],
        "models": [{"name": name, "versions": [one]} for name, one in zip(names, versions, strict=True)],
    }

    def told(router: dict[str, Any] | None) -> list[tuple[Any, ...]]:
        whole = view(config, slots(config), router=router)
        found = [model["versions"][0] for model in status.build(whole)["models"]]
        names = ("policy", "batch_rows", "policy_error", "policy_slow_ms")
        return [tuple(one.get(name) for name in names) for one in found]

    assert told(None) == [("fifo", 0, None, None), ("mine:urgent", 32, None, None)]
    assert told(router) == [("fifo", 0, None, None), ("mine:urgent", 64, "KeyError: 'x'", 51.0)]


def test_a_process_that_cannot_do_its_work_says_why() -> None:
    """The nursery's and the router's own words stand beside them, and nobody else's."""
    config = settings("good")
    processes = {
        name: ProcessInfo(name, ProcessState.RUNNING, pid)
        for pid, name in enumerate(("nursery", "router", "pool"), 1)
    }
    errors = {"nursery": "tensorflow cannot be imported", "router": "the port is taken"}
    whole = view(config, slots(config), processes=processes, errors=errors)
    found = {process["name"]: process.get("error") for process in status.build(whole)["processes"]}
    assert found == {**errors, "pool": None}


def test_a_process_that_stands_in_for_another_is_marked() -> None:
    """The daemon of a stand-in says so, a real one and all else do not."""
    daemons = [
        MpsSettings(
            device=f"gpu{n}",
            gpu_uuid="",
            pipe_dir="",
            log_dir="",
            server_log="",
            control=[],
            simulated=n == 0,
        )
        for n in (0, 1)
    ]
    config = msgspec.structs.replace(settings("good"), mps_daemons=daemons)
    processes = {
        name: ProcessInfo(name, ProcessState.RUNNING, 1) for name in ("mps.gpu0", "mps.gpu1", "router")
    }
    whole = view(config, slots(config), processes=processes)
    found = {process["name"]: process.get("simulated") for process in status.build(whole)["processes"]}
    assert found == {"mps.gpu0": True, "mps.gpu1": None, "router": None}


def test_the_state_of_the_pool() -> None:
    """STARTING until every slot was READY once or is FATAL, then RUNNING or DEGRADED; STOPPING at the end."""
    config = settings("good", "bad")
    found = slots(config)
    one, two, three, four = found

    def state(*ready: WorkerId, stopping: bool = False) -> str:
        workers = [
            {"id": str(worker), **asdict(WorkerReport(1, found[worker].pid, "READY", 0, 0, ""))}
            for worker in ready
        ]
        whole = view(config, found, router={"workers": workers}, stopping=stopping)
        return str(status.build(whole)["pool"]["state"])

    assert state() == "STARTING"
    for worker in found:
        found[worker].started(7, 1, 0.0)
        found[worker].ready(0.0)
    assert state(one, two, three, four) == "RUNNING"
    assert state(one, two) == "DEGRADED"
    assert state(one, two, three, four, stopping=True) == "STOPPING"
    again = slots(config)
    found = again
    for worker in (one, two, three):
        found[worker].started(7, 1, 0.0)
        found[worker].ready(0.0)
    assert state(one, two, three) == "STARTING"
    found[four].started(7, 1, 0.0)
    found[four].ended(EXIT_NEVER, 1.0, "no SavedModel")
    assert state(one, two, three) == "DEGRADED"


@pytest.mark.parametrize(
    ("tls", "told"),
    [
        (None, "off"),
        (TlsSettings(key="k", cert="c"), "server"),
        (TlsSettings(key="k", cert="c", client_ca="a", verify_client=True), "mutual"),
    ],
)
def test_whether_the_grpc_port_speaks_tls(tls: TlsSettings | None, told: str) -> None:
    """And whether its clients must have a certificate."""
    config = settings("good")
    router = msgspec.structs.replace(config.router, tls=tls)
    config = msgspec.structs.replace(config, router=router)
    whole = view(config, slots(config))
    assert status.build(whole)["pool"]["tls"] == told


def test_devices_are_told_as_they_are() -> None:
    """In the words of the pool's message to the router; none is an empty list."""
    config = settings("good")
    whole = view(config, slots(config))
    assert status.build(whole)["devices"] == []
    device = as_message("gpu0", GpuReading("GPU-x", utilisation=0.5), "SERVING")
    assert status.build(replace(whole, devices=[device]))["devices"] == [device]


def test_what_was_said_by_hand_is_told() -> None:
    """Of a model that was unloaded whole, too, which has no versions any more."""
    config = settings("good")
    orders = {"good": {"loaded": [7]}, "gone": {"off": True}}
    whole = view(config, slots(config), orders=orders)
    good, gone = status.build(whole)["models"]
    assert (good["name"], good["by_hand"]) == ("good", {"loaded": [7]})
    assert gone == {"name": "gone", "versions": [], "by_hand": {"off": True}}


def test_what_the_router_refused_is_told() -> None:
    """As it counts it; nothing while it does not answer, or has none of it to tell."""
    config = settings("good")
    refusals = [{"model": "good", "version": "1", "reason": "late", "count": 3}]

    def told(router: dict[str, Any] | None) -> object:
        return status.build(view(config, slots(config), router=router))["refusals"]

    assert told({"workers": [], "refusals": refusals}) == refusals
    assert told({"workers": []}) == told(None) == []


def test_how_requests_wait_is_told() -> None:
    """What holds for the whole pool."""
    config = settings("good")
    scheduling = SchedulingSettings(slow_lane=2, fair_by="peer")
    config = msgspec.structs.replace(
        config, router=msgspec.structs.replace(config.router, scheduling=scheduling)
    )
    pool = status.build(view(config, slots(config)))["pool"]
    assert (pool["slow_lane"], pool["fair_by"]) == (2, "peer")
