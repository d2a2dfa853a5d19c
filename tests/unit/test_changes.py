"""What another configuration would change, and what of it a pool that runs cannot take."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpspool.core.settings import (
    BatchingSettings,
    ModelSettings,
    MpsSettings,
    PoolSettings,
    QueueSettings,
    RemoteSettings,
    RouterSettings,
    SchedulingSettings,
    Share,
    SlotSettings,
    VersionBatching,
    VersionPolicy,
    WeightsSettings,
    WorkerSettings,
)
from mpspool.supervisor.pool import changes as told_by
from mpspool.supervisor.pool.changes import abandoned, compare, merged, renews

ROUTER = RouterSettings(run_dir="/run/p", host="h", grpc_port=8500, rest_port=8501)


def slot(number: int, device: str = "cpu0", **values: object) -> SlotSettings:
    return msgspec.structs.replace(SlotSettings(device=device, slot=number), **values)


def model(name: str = "m", slots: int = 1, **values: object) -> ModelSettings:
    found = ModelSettings(name=name, version=1, path="/m/1", slots=[slot(number) for number in range(slots)])
    return msgspec.structs.replace(found, **values)


def pool(*models: ModelSettings, **values: object) -> PoolSettings:
    found = PoolSettings(
        run_dir="/run/p",
        mps="off",
        models=list(models),
        mps_daemons=[],
        router=ROUTER,
    )
    return msgspec.structs.replace(found, **values)


def daemon(device: str) -> MpsSettings:
    return MpsSettings(
        device=device, gpu_uuid=device, pipe_dir=f"/p/{device}", log_dir="/l", server_log="", control=["c"]
    )


SLOTS = st.builds(
    SlotSettings,
    device=st.sampled_from(["cpu0", "gpu0", "gpu1"]),
    slot=st.integers(0, 3),
    cpus=st.lists(st.integers(0, 3), max_size=2),
    share=st.builds(Share, active_thread_percentage=st.sampled_from([None, 50])),
)
MODELS = st.builds(
    ModelSettings,
    name=st.sampled_from("abc"),
    version=st.integers(1, 2),
    path=st.just("/m"),
    slots=st.lists(SLOTS, max_size=4, unique_by=lambda one: (one.device, one.slot)),
    intra_op_threads=st.integers(0, 1),
    labels=st.dictionaries(st.just("stable"), st.integers(1, 2)),
    weights=st.builds(WeightsSettings, shared=st.sampled_from(["off", "on"])),
)
POOLS = st.builds(
    lambda models, grace_s, daemons: pool(*models, grace_s=grace_s, mps_daemons=daemons),
    st.lists(MODELS, max_size=3, unique_by=lambda one: one.name),
    st.sampled_from([1.0, 2.0]),
    st.lists(st.sampled_from(["gpu0", "gpu1"]).map(daemon), unique_by=lambda one: one.device, max_size=2),
)


def test_every_setting_is_looked_at() -> None:
    """What is new in the settings has to be told apart: held at once, given to workers, or refused."""
    told = {*told_by._TOLD, *told_by._WORKER, *told_by._PUBLISHED, *told_by._FOUND}
    left = {"name", "version", "path", "slots", "queue", "warmup"}
    # The policy is the model's, too.
    assert {"url", "folder", "poll_s", "policy", "run_dir", "model"} == set(RemoteSettings.__struct_fields__)
    assert told | left == set(ModelSettings.__struct_fields__)
    assert {*told_by._SLOT, "device", "slot", "memory_bytes"} == set(SlotSettings.__struct_fields__)
    pool_fields = {*told_by._FIXED, *told_by._POOL, "models", "mps_daemons", "remotes", "router"}
    assert pool_fields == set(PoolSettings.__struct_fields__)
    router_fields = {*told_by._FIXED_ROUTER, *told_by._ROUTER, "run_dir", "scheduling"}
    assert router_fields == set(RouterSettings.__struct_fields__)


@given(POOLS)
def test_the_same_changes_nothing(config: PoolSettings) -> None:
    """Whatever it holds, and from wherever it was read: it may have gone through a file."""
    again = msgspec.json.decode(msgspec.json.encode(config), type=PoolSettings)
    changes = compare(config, again)
    assert (changes.refused, changes.lines(), merged(config, again)) == ([], [], config)


@given(POOLS, POOLS)
def test_every_difference_is_told(old: PoolSettings, new: PoolSettings) -> None:
    """Models and slots: each comes, goes, or stays, and what stays is said to change only where it does."""
    changes = compare(old, new)
    before, after = ({one.name: one for one in config.models} for config in (old, new))
    assert set(changes.added) == after.keys() - before.keys()
    assert set(changes.removed) == before.keys() - after.keys()
    assert ("grace_s" in changes.pool) == (old.grace_s != new.grace_s)
    for name in before.keys() & after.keys():
        was = {(one.device, one.slot): one for one in before[name].slots}
        is_ = {(one.device, one.slot): one for one in after[name].slots}
        found = changes.models.get(name)
        added, removed, renewed = (
            (set(found.slots_added), set(found.slots_removed), set(found.slots_renewed))
            if found
            else (set(), set(), set())
        )
        assert added == is_.keys() - was.keys()
        assert removed == was.keys() - is_.keys()
        assert renewed == {place for place in was.keys() & is_.keys() if was[place] != is_[place]}
        assert bool(found and found.renewed) == (
            before[name].intra_op_threads != after[name].intra_op_threads
        )
        assert any(f"models.{name}.weights" == one.key for one in changes.refused) == (
            before[name].weights != after[name].weights
        )


@given(POOLS, POOLS)
def test_a_slot_that_is_renewed_is_one_whose_worker_differs(old: PoolSettings, new: PoolSettings) -> None:
    """What is told beforehand is what the next pool process finds when it looks at the workers."""
    changes = compare(old, new)
    for before in old.models:
        for after in new.models:
            if before.name != after.name:
                continue
            found = changes.models.get(before.name)
            for was in before.slots:
                for is_ in after.slots:
                    if (was.device, was.slot) == (is_.device, is_.slot):
                        running = WorkerSettings(
                            run_dir="/run/p", worker="w", generation=1, credits=2, model=before, slot=was
                        )
                        told = found is not None and (
                            bool(found.renewed) or (is_.device, is_.slot) in found.slots_renewed
                        )
                        assert renews(running, after, is_) == told


@given(POOLS, POOLS)
def test_daemons_stay(old: PoolSettings, new: PoolSettings) -> None:
    """The MPS daemon of a GPU that is not used any more runs on: workers that leave are its clients."""
    devices = {one.device for one in merged(old, new).mps_daemons}
    assert devices == {one.device for one in (*old.mps_daemons, *new.mps_daemons)}


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"router": msgspec.structs.replace(ROUTER, grpc_port=1)}, "grpc_port"),
        ({"router": msgspec.structs.replace(ROUTER, host="0.0.0.0")}, "host"),
        ({"run_dir": "/other"}, "run_dir"),
        ({"mps": "on"}, "mps"),
        ({"router": msgspec.structs.replace(ROUTER, simulated="gpus")}, "simulated"),
        (
            {"router": msgspec.structs.replace(ROUTER, scheduling=SchedulingSettings(fair_by="peer"))},
            "scheduling.fair_by",
        ),
    ],
)
def test_what_needs_a_new_start_is_refused(values: dict[str, object], key: str) -> None:
    """By its name, and with what to do instead."""
    (refused,) = compare(pool(model()), pool(model(), **values)).refused
    assert refused.key == key
    assert "mpspool stop" in refused.text


def remote(**values: object) -> RemoteSettings:
    whole = {"run_dir": "/r", "model": "m", "url": "s3://b", "folder": "/cache", "poll_s": 60.0}
    return msgspec.convert(whole | values, RemoteSettings)


@pytest.mark.parametrize(
    ("before", "after", "base_path", "told"),
    [
        ({}, {"url": "s3://other", "folder": "/cache2"}, "/cache2", ["base_path"]),
        ({}, {"url": "s3://b/"}, "/cache", ["base_path"]),
        ({}, {"folder": "/cache2"}, "/cache2", ["cache_dir"]),
        ({}, {"poll_s": 1.0}, "/cache", ["remote_poll_wait_seconds"]),
        (None, {}, "/cache", ["base_path"]),
        ({}, None, "/local", ["base_path"]),
        ({}, None, "/cache", ["base_path"]),
        ({}, {}, "/cache", []),
    ],
)
def test_where_versions_come_from_may_change(
    before: dict[str, object] | None, after: dict[str, object] | None, base_path: str, told: list[str]
) -> None:
    """It is told by the key that somebody wrote; what copied by the former one is given up, and by the same is not."""
    old, new = ([] if one is None else [remote(**one)] for one in (before, after))
    was = model(base_path="/cache" if before is not None else "/local")
    one, other = pool(was, remotes=old), pool(model(base_path=base_path), remotes=new)
    changes = compare(one, other)
    assert not changes.refused
    assert (changes.models["m"].told if told else list(changes.models)) == told
    assert abandoned(one, other) == ([] if old == new else old)


def test_a_model_that_comes_with_its_store_is_added() -> None:
    """And nothing else is told of it, nor where it goes."""
    one, other = pool(), pool(model(), remotes=[remote()])
    assert compare(one, other).lines() == [("m", "is added")]
    assert compare(other, one).lines() == [("m", "is taken out")]
    assert abandoned(other, one) == [remote()]


def test_what_versions_were_found_with_is_refused() -> None:
    """Their own files of batching parameters are read once; a reload would tell of what does not come about."""
    said = VersionBatching(given={"max_batch_size": 8}, without=None)
    for old, new in ((None, said), (said, None)):
        (refused,) = compare(pool(model(version_batching=old)), pool(model(version_batching=new))).refused
        assert refused.key == "models.m.batching, with batching.per_model"
        assert "mpspool stop" in refused.text


@pytest.mark.parametrize("key", ["custom_ops", "saved_model_tags"])
def test_what_weights_are_published_with_is_refused(key: str) -> None:
    """A model can be taken out and put back, which is said."""
    (refused,) = compare(pool(model()), pool(model(**{key: ["other"]}))).refused
    assert refused.key == f"models.m.{key}"
    assert "take m out, reload, put it back" in refused.text


def test_what_holds_at_once_has_the_users_words() -> None:
    """Keys are those of the file, whatever the settings call them."""
    new = pool(
        model(labels={"a": 1}, policy=VersionPolicy(latest=2), queue=QueueSettings(policy="sjf")),
        poll_s=5.0,
        router=msgspec.structs.replace(
            ROUTER, scheduling=SchedulingSettings(dispatch="round_robin", aging=1.0)
        ),
    )
    assert compare(pool(model()), new).lines() == [
        ("pool", "file_system_poll_wait_seconds holds at once"),
        ("pool", "scheduling.dispatch holds at once"),
        ("pool", "scheduling.aging holds at once"),
        ("m", "version_policy holds at once"),
        ("m", "version_labels holds at once"),
        ("m", "scheduling.policy holds at once"),
    ]


def test_one_model_s_bytes_are_told_once() -> None:
    """How many there are, and that nobody has said how many, is one key."""
    new = pool(model(queue=QueueSettings(max_queued_bytes=7, shares_bytes=True)))
    assert compare(pool(model()), new).lines() == [("m", "max_queued_bytes holds at once")]


def test_what_is_done_to_workers_is_told() -> None:
    """Slots that come, go and are renewed, by their names, and keys for which all come anew."""
    old = model(slots=3)
    slots = [slot(0), slot(1, cpus=[1]), slot(0, "gpu0")]
    new = msgspec.structs.replace(old, batching=BatchingSettings(), slots=slots)
    assert compare(pool(old), pool(new)).lines() == [
        ("m", "batching: its workers come anew"),
        ("m", "slots come: gpu0.0"),
        ("m", "slots go: cpu0.2"),
    ]
    waits = BatchingSettings(batch_timeout_us=5, max_enqueued_batches=7, adaptive=True)
    assert compare(pool(model(batching=BatchingSettings())), pool(model(batching=waits))).lines() == [
        ("m", "batching.batch_timeout_micros holds at once"),
        ("m", "batching.max_enqueued_batches holds at once"),
        ("m", "batching.adaptive holds at once"),
    ]
    larger = msgspec.structs.replace(waits, max_batch_size=7)
    assert compare(pool(model(batching=waits)), pool(model(batching=larger))).lines() == [
        ("m", "batching: its workers come anew"),
    ]
    new = msgspec.structs.replace(new, batching=None)
    assert compare(pool(old), pool(new)).lines()[-1] == ("m", "cpus: the workers of cpu0.1 come anew")
