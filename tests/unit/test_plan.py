"""The plan: from a configuration and a machine to slots, threads, CPUs and MPS."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mpspool.core.errors import StartError
from mpspool.core.settings import (
    ModelSettings,
    MpsSettings,
    QueueSettings,
    RouterSettings,
    SchedulingSettings,
)
from mpspool.mps.devices import GpuDevice
from mpspool.supervisor.config.schema import PoolConfig
from mpspool.supervisor.cpus import Cpu, Topology
from mpspool.supervisor.planning.announce import is_local
from mpspool.supervisor.planning.drafts import Machine
from mpspool.supervisor.planning.plan import Plan, plan, to_settings
from tests.configuration import load_config

CONTROL = ["/usr/bin/nvidia-cuda-mps-control"]
RUN_DIR = "/run/pool"


def gpu(
    index: int, numa_node: int | None = None, *, simulated: bool = False, volta: bool = True
) -> GpuDevice:
    return GpuDevice(
        index, f"GPU-{index}", "Test GPU", (9, 0) if volta else (6, 0), 80 * 2**30, numa_node, simulated
    )


def topology(cpus: int, nodes: int = 1, quota: float | None = None) -> Topology:
    return Topology(tuple(Cpu(cpu * nodes // cpus, cpu, cpu) for cpu in range(cpus)), quota)


def machine(
    *gpus: GpuDevice, cpus: Topology | None = None, control: list[str] | None = CONTROL, driver: str = ""
) -> Machine:
    return Machine(gpus, cpus or topology(8), control, driver, "" if gpus else "no driver")


def configure(models: list[str] | None = None, **fields: object) -> PoolConfig:
    return load_config(
        None,
        {"model": [f"{name}=/models/{name}" for name in models or ["half"]], "run_dir": RUN_DIR, **fields},
        {},
    )


def from_file(tmp_path: Path, text: str) -> PoolConfig:
    file = tmp_path / "pool.yaml"
    file.write_text(text)
    return load_config(file, {"run_dir": RUN_DIR}, {})


def versions(config: PoolConfig) -> Mapping[str, tuple[int, Path]]:
    return {model.name: (3, Path(f"/models/{model.name}/3")) for model in config.models}


def make(config: PoolConfig, on: Machine) -> Plan:
    return plan(config, on, versions(config))


def refused(config: PoolConfig, on: Machine) -> list[str]:
    with pytest.raises(StartError) as caught:
        make(config, on)
    return [str(problem) for problem in caught.value.problems]


def layout(model: ModelSettings) -> list[tuple[str, int, list[int]]]:
    return [(slot.device, slot.slot, slot.cpus) for slot in model.slots]


def test_without_a_gpu_there_is_a_slot_for_two_cores() -> None:
    """The default on a CPU machine, with its reason in one line."""
    made = make(configure(), machine(cpus=topology(8)))
    assert layout(made.models[0]) == [
        ("cpu0", 0, [0, 1]),
        ("cpu0", 1, [2, 3]),
        ("cpu0", 2, [4, 5]),
        ("cpu0", 3, [6, 7]),
    ]
    assert made.facts == [
        "no GPU visible (no driver): 1 CPU slot per 2 cores, 4 slots",
        "half@3: 4 slots on cpu0, CPUs 0-1 | 2-3 | 4-5 | 6-7",
    ]
    assert (made.mps, made.mps_daemons, made.simulated, made.warnings) == ("off", [], "", [])


@pytest.mark.parametrize(("cpus", "quota", "slots"), [(1, None, 1), (3, None, 1), (64, 3.5, 2), (64, 0.5, 1)])
def test_the_default_number_of_cpu_slots(cpus: int, quota: float | None, slots: int) -> None:
    """At least one; a container's quota counts, not the host's cores."""
    made = make(configure(), machine(cpus=topology(cpus, quota=quota)))
    assert len(made.models[0].slots) == slots


def test_several_models_share_the_default() -> None:
    """One slot per 2 cores in all, at least one per model, on CPUs of their own."""
    made = make(configure(["a", "b"]), machine(cpus=topology(8)))
    assert [layout(model) for model in made.models] == [
        [("cpu0", 0, [0, 1]), ("cpu0", 1, [2, 3])],
        [("cpu0", 0, [4, 5]), ("cpu0", 1, [6, 7])],
    ]
    assert made.facts[0].endswith(": 1 CPU slot per 2 cores, 2 slots per model")
    crowd = make(configure([f"m{index}" for index in range(6)]), machine(cpus=topology(8)))
    assert [len(model.slots) for model in crowd.models] == [1] * 6


def test_the_default_is_told_of_those_that_have_it(tmp_path: Path) -> None:
    """A model with cpu_slots of its own is no part of it."""
    two = "models:\n  a: {base_path: /m/a, cpu_slots: 2}\n  b: /m/b\n"
    made = make(from_file(tmp_path, two), machine(cpus=topology(2)))
    assert [len(model.slots) for model in made.models] == [2, 1]
    assert made.facts[0].endswith(": 1 CPU slot per 2 cores, 1 slot for b")
    made = make(from_file(tmp_path, f"{two}  c: /m/c\n"), machine())
    assert made.facts[0].endswith(": 1 CPU slot per 2 cores, 1 slot each for b, c")


def test_all_visible_gpus_times_contexts() -> None:
    """Slots = contexts_per_gpu x GPUs, 4 on each when nobody says; one daemon per GPU."""
    made = make(configure(), machine(gpu(0), gpu(1)))
    assert [(slot.device, slot.slot, slot.gpu_uuid) for slot in made.models[0].slots] == [
        (f"gpu{index}", slot, f"GPU-{index}") for index in (0, 1) for slot in range(4)
    ]
    assert made.mps == "on"
    assert made.mps_daemons[1] == MpsSettings(
        device="gpu1",
        gpu_uuid="GPU-1",
        pipe_dir="/run/pool/mps/gpu1/pipe",
        log_dir="/run/pool/mps/gpu1/log",
        server_log="/run/pool/logs/mps.gpu1.log",
        control=CONTROL,
        max_clients=48,
    )
    assert {slot.mps_pipe for slot in made.models[0].slots} == {
        "/run/pool/mps/gpu0/pipe",
        "/run/pool/mps/gpu1/pipe",
    }
    assert "MPS on: a control daemon each for gpu0, gpu1" in made.facts


def test_each_model_has_its_own_placement(tmp_path: Path) -> None:
    """Models differ in GPUs, contexts, threads, CPUs; a daemon only where a GPU is used."""
    config = from_file(
        tmp_path,
        """
        models:
          a: {base_path: a, gpus: [2], contexts_per_gpu: 2, custom_ops: x.so, quorum: 2, engine: tf2}
          b: {base_path: b, gpus: none, cpu_slots: 1, intra_op_threads: 3, inter_op_threads: 0}
        """,
    )
    made = make(config, machine(gpu(0), gpu(1), gpu(2)))
    a, b = made.models
    assert [slot.device for slot in a.slots] == ["gpu2", "gpu2"]
    assert (a.version, a.path, a.quorum, a.engine) == (3, "/models/a/3", 2, "tf2")
    assert a.custom_ops == [str(tmp_path / "x.so")]
    assert [(slot.device, slot.gpu_uuid, slot.mps_pipe) for slot in b.slots] == [("cpu0", "", "")]
    assert (b.intra_op_threads, b.inter_op_threads) == (3, 0)
    assert [daemon.device for daemon in made.mps_daemons] == ["gpu2"]


def test_gpus_none_is_the_cpu() -> None:
    """Visible GPUs are left alone when nobody wants them."""
    made = make(configure(gpus="none", cpu_slots=2), machine(gpu(0)))
    assert {slot.device for slot in made.models[0].slots} == {"cpu0"}
    assert (made.mps, made.warnings) == ("off", [])


def test_contexts_per_gpu_without_a_gpu_is_told() -> None:
    """It has no meaning there; not where another model has a GPU."""
    made = make(configure(contexts_per_gpu=6), machine())
    assert made.warnings == [
        "contexts_per_gpu is for GPUs: on the CPU cpu_slots says how many workers there are"
    ]
    assert make(configure(contexts_per_gpu=6), machine(gpu(0))).warnings == []
    assert make(configure(gpus="none", contexts_per_gpu=2, cpu_slots=2), machine()).warnings == []


def test_a_gpu_that_is_lost_is_told() -> None:
    """Where others are used: the models run on those."""
    here = replace(machine(gpu(0), gpu(2)), broken={1: "GPU is lost"})
    made = make(configure(contexts_per_gpu=1), here)
    assert [slot.device for slot in made.models[0].slots] == ["gpu0", "gpu2"]
    assert made.warnings == [
        "gpu1 is left out, of which NVML says: GPU is lost; reset it (nvidia-smi --gpu-reset), or restart the machine"
    ]
    assert make(configure(gpus="none"), here).warnings == []


def test_cpu_slots_alone_ask_for_the_cpu() -> None:
    """cpu_slots without gpus means the CPU, and says which GPUs lie idle for it."""
    made = make(configure(cpu_slots=2), machine(gpu(0), gpu(1)))
    assert len(made.models[0].slots) == 2
    assert made.warnings == [
        (
            "cpu_slots asks for the CPU: gpu0, gpu1 not used by half; "
            "give gpus to use them, or gpus: none to silence this"
        )
    ]


def test_a_gpu_that_is_not_visible_lists_those_that_are() -> None:
    """The error says what there is."""
    assert refused(configure(gpus="0,2,5"), machine(gpu(0), gpu(1))) == [
        "gpus: GPU 2,5 is not visible; visible are 0 (Test GPU), 1 (Test GPU)"
    ]


@pytest.mark.parametrize("gpus", ["all", "0"])
def test_gpus_asked_for_where_there_are_none(gpus: str) -> None:
    """Who asks for GPUs by name does not get CPU slots in silence."""
    assert refused(configure(gpus=gpus), machine()) == [
        f"gpus: {gpus}: no GPU is visible (no driver); leave gpus out for CPU slots"
    ]


def test_cpusets_go_to_slots_in_order() -> None:
    """Slot i takes set i, over GPUs as well."""
    made = make(configure(cpusets="0-1;2-3;4;5", contexts_per_gpu=2), machine(gpu(0), gpu(1)))
    assert layout(made.models[0]) == [
        ("gpu0", 0, [0, 1]),
        ("gpu0", 1, [2, 3]),
        ("gpu1", 0, [4]),
        ("gpu1", 1, [5]),
    ]
    assert made.warnings == []


def test_too_few_cpusets_are_shared_in_turn() -> None:
    """It works, and is said."""
    made = make(configure(cpusets="0;1", cpu_slots=3), machine())
    assert [slot.cpus for slot in made.models[0].slots] == [[0], [1], [0]]
    assert made.warnings == ["cpusets: 2 sets for 3 slots of half: shared in turn"]


def test_too_many_cpusets_are_said() -> None:
    """A set that no slot takes is hardly what was meant."""
    made = make(configure(cpusets="0;1;2", cpu_slots=2), machine())
    assert made.warnings == ["cpusets: 3 sets for 2 slots of half: the last are not used"]


def test_cpus_that_are_not_there_are_named() -> None:
    """Only the missing ones, and what there is."""
    assert refused(configure(cpusets="0-1;6-9;12", cpu_slots=3), machine(cpus=topology(8))) == [
        "cpusets: no CPU 8-9,12 here; there are 0-7"
    ]


def test_cpus_beyond_this_machine_can_be_simulated() -> None:
    """Stand-in CPUs are planned for, marked, and never pinned to."""
    on = machine(cpus=Topology.simulate(16))
    made = make(configure(cpusets="12-15", cpu_slots=1), on)
    assert made.simulated == "cpus"
    assert made.models[0].slots[0].simulated
    assert made.facts[0] == "SIMULATED: 16 CPUs (nothing is pinned)"
    assert refused(configure(cpusets="16", cpu_slots=1), on) == ["cpusets: no CPU 16 here; there are 0-15"]


def test_named_cpus_are_kept_from_the_others(tmp_path: Path) -> None:
    """What is shared out are the CPUs that nobody was given by name."""
    text = "cpu_slots: 1\nmodels:\n  a: {base_path: a, cpusets: 0-1}\n  b: b\n  c: {base_path: c, cpusets: none}\n"
    made = make(from_file(tmp_path, text), machine(cpus=topology(4)))
    assert [model.slots[0].cpus for model in made.models] == [[0, 1], [2, 3], []]
    assert made.facts[-1] == "c@3: 1 slot on cpu0, not pinned"


def test_gpu_slots_stay_near_their_gpu() -> None:
    """A worker's CPUs are on its GPU's NUMA node."""
    made = make(configure(contexts_per_gpu=2), machine(gpu(0, 1), gpu(1, 0), cpus=topology(8, nodes=2)))
    assert [slot.cpus for slot in made.models[0].slots] == [[4, 5], [6, 7], [0, 1], [2, 3]]


def test_more_slots_than_cpus_is_said() -> None:
    """Shared CPUs work, and are said."""
    made = make(configure(cpu_slots=3, cpusets="split"), machine(cpus=topology(2)))
    assert [slot.cpus for slot in made.models[0].slots] == [[0], [1], [0]]
    assert made.warnings == ["3 slots on 2 CPUs: they have to share; ask for fewer (cpu_slots)"]
    made = make(configure(contexts_per_gpu=3), machine(gpu(0), cpus=topology(2)))
    assert made.warnings[0] == "3 slots on 2 CPUs: they have to share; ask for fewer (contexts_per_gpu)"
    made = make(configure(["a", "b", "c"], cpu_slots=1), machine(cpus=topology(2)))
    assert made.warnings == ["3 slots on 2 CPUs: they have to share"]  # none can have fewer


def test_a_share_of_one_cpu_is_widened_to_its_node() -> None:
    """Two slots on two CPUs may use both, with one thread each; "split" pins each to its own."""
    for cpusets, cpus in ((None, [[0, 1], [0, 1]]), ("split", [[0], [1]])):
        made = make(configure(cpu_slots=2, cpusets=cpusets), machine(cpus=topology(2)))
        assert [slot.cpus for slot in made.models[0].slots] == cpus
        assert made.models[0].intra_op_threads == 1


@pytest.mark.parametrize(
    ("on", "fields", "threads"),
    [
        (machine(cpus=topology(8)), {"cpu_slots": 2}, 4),
        (machine(cpus=topology(8)), {"cpu_slots": 3}, 2),
        (machine(cpus=topology(8)), {"cpu_slots": 2, "cpusets": "none"}, 4),
        (machine(cpus=topology(64, quota=3.5)), {"cpu_slots": 2}, 2),
        (machine(cpus=topology(2)), {"cpu_slots": 3}, 1),
        (machine(gpu(0)), {}, 0),
        (machine(gpu(0, simulated=True)), {}, 2),
    ],
)
def test_default_threads(on: Machine, fields: dict[str, object], threads: int) -> None:
    """A CPU slot's CPUs (the smallest slot's), or its share of the quota; TensorFlow's choice on a GPU."""
    model = make(configure(**fields), on).models[0]
    assert (model.intra_op_threads, model.inter_op_threads) == (threads, min(threads, 1))


@pytest.mark.parametrize(
    ("mps", "control", "on", "resolved"),
    [
        ("auto", CONTROL, [gpu(0)], "on"),
        ("auto", None, [gpu(0)], "off"),
        ("auto", CONTROL, [], "off"),
        ("on", CONTROL, [gpu(0)], "on"),
        ("off", CONTROL, [gpu(0)], "off"),
        ("off", None, [], "off"),
        ("auto", CONTROL, [gpu(0, simulated=True)], "simulated"),
        ("on", CONTROL, [gpu(0, simulated=True)], "simulated"),
        ("off", CONTROL, [gpu(0, simulated=True)], "off"),
    ],
)
def test_mps_resolved(mps: str, control: list[str] | None, on: list[GpuDevice], resolved: str) -> None:
    """Auto is on where a GPU is used and the daemon is there; stand-ins are never said to be on."""
    made = make(configure(mps=mps), machine(*on, control=control))
    assert made.mps == resolved
    assert bool(made.mps_daemons) == (resolved != "off")
    assert all(bool(slot.mps_pipe) == (resolved != "off") for slot in made.models[0].slots)


def test_mps_on_needs_its_binary_and_a_gpu() -> None:
    """Who says on does not get off in silence."""
    (text,) = refused(configure(mps="on"), machine(gpu(0), control=None))
    assert text.startswith("mps: on, but nvidia-cuda-mps-control is not found")
    (text,) = refused(configure(mps="on"), machine())
    assert text.startswith("mps: on, but no GPU is used")


def test_several_workers_without_mps_is_said() -> None:
    """They take turns then; one worker alone has nothing to share."""
    assert "take turns" in make(configure(), machine(gpu(0), control=None)).warnings[0]
    assert make(configure(mps="off", contexts_per_gpu=1), machine(gpu(0))).warnings == []


def test_simulated_gpus_are_marked() -> None:
    """SIMULATED shows wherever it matters."""
    made = make(configure(), machine(gpu(0, simulated=True)))
    assert made.simulated == "gpus"
    assert all(slot.simulated for slot in made.models[0].slots)
    assert made.mps_daemons[0].simulated
    assert made.facts[0] == "SIMULATED: 1 GPU (models run on the CPU)"


@pytest.mark.parametrize(
    ("on", "contexts", "limit"),
    [
        (machine(gpu(0)), 49, 48),
        (machine(gpu(0), driver="590.44.01"), 61, 60),
        (machine(gpu(0, volta=False)), 17, 16),
        (machine(gpu(0, simulated=True)), 100, 48),
    ],
)
def test_contexts_above_the_client_limit(on: Machine, contexts: int, limit: int) -> None:
    """MPS's limit depends on device and driver; just below it is fine."""
    assert refused(configure(contexts_per_gpu=contexts), on) == [
        f"contexts_per_gpu: {contexts} workers on gpu0 (half {contexts}), where MPS takes {limit} clients; ask for fewer"
    ]
    assert len(make(configure(contexts_per_gpu=limit), on).models[0].slots) == limit


@pytest.mark.parametrize(
    ("memory", "contexts", "swap"),
    [
        ({}, 4, "surge"),
        ({"fraction": 0.25}, 4, "surge"),
        ({"growth": False, "fraction": 0.25}, 2, "surge"),
        ({"growth": False, "fraction": 0.25}, 3, "rolling"),
        ({"growth": False, "limit_bytes": 2**34}, 3, "rolling"),
        ({"growth": False}, 1, "rolling"),
    ],
)
def test_a_swap_without_memory_for_two_goes_slot_by_slot(
    tmp_path: Path, memory: dict[str, object], contexts: int, swap: str
) -> None:
    """Where workers take their memory at their start; memory that grows may do for both. Said otherwise, it is refused."""
    models = {"m": {"base_path": "m", "gpu_memory": memory}}
    given = {"contexts_per_gpu": contexts, "models": models}
    config = from_file(tmp_path, json.dumps(given))
    assert make(config, machine(gpu(0))).models[0].swap == swap
    if swap == "rolling":
        (why,) = refused(from_file(tmp_path, json.dumps({**given, "swap": "surge"})), machine(gpu(0)))
        assert why.startswith("swap: surge, but the workers on gpu0 take ")
        assert "use rolling or stop_first" in why
    of_no_size = machine(replace(gpu(0), memory_bytes=0))
    assert make(config, of_no_size).models[0].swap == "surge"


def test_the_limit_counts_all_models(tmp_path: Path) -> None:
    """Models that share a GPU share its clients; one that is elsewhere does not count."""
    config = from_file(
        tmp_path,
        """
        contexts_per_gpu: 30
        models:
          a: {base_path: a, gpus: [0]}
          b: {base_path: b, gpus: [0, 1]}
          c: {base_path: c, gpus: [2], contexts_per_gpu: 99}
        """,
    )
    assert refused(config, machine(gpu(0), gpu(1), gpu(2))) == [
        "contexts_per_gpu: 60 workers on gpu0 (a 30, b 30), where MPS takes 48 clients; ask for fewer",
        "models.c.contexts_per_gpu: 99 workers on gpu2 (c 99), where MPS takes 48 clients; ask for fewer",
    ]


def test_a_quorum_beyond_the_slots(tmp_path: Path) -> None:
    """A version that could never be AVAILABLE is refused."""
    config = from_file(tmp_path, "cpu_slots: 2\nmodels: {a: {base_path: a, quorum: 3}}")
    assert refused(config, machine()) == ["models.a.quorum: 3 of 2 slots can never be READY; at most 2"]


def test_all_that_does_not_fit_is_told_at_once(tmp_path: Path) -> None:
    """Problems of different kinds and models come together, each once."""
    config = from_file(
        tmp_path,
        "gpus: [7]\ncpusets: 99\nmps: on\nmodels:\n  a: a\n  b: b\n  c: {base_path: c, gpus: none, quorum: 50}\n",
    )
    told = refused(config, machine(gpu(0)))
    assert [text.partition(":")[0] for text in told] == ["gpus", "models.c.quorum", "cpusets"]


def test_a_model_without_a_version_is_left_out() -> None:
    """Its own problem is told elsewhere; the rest is planned and checked all the same."""
    config = configure(["a", "b"])
    made = plan(config, machine(), {"b": (1, Path("/b/1"))})
    assert [model.name for model in made.models] == ["b"]


def test_memory_that_cannot_suffice_is_said(tmp_path: Path) -> None:
    """Fractions over 1 and limits beyond the device, over all workers of a GPU."""
    text = "contexts_per_gpu: 3\nmodels: {a: {base_path: a, gpu_memory: {%s}}}"
    made = make(from_file(tmp_path, text % "fraction: 0.5"), machine(gpu(0)))
    assert made.warnings == [
        "gpu0: its workers may take 150% of its memory; lower gpu_memory.fraction or limit_bytes"
    ]
    assert make(from_file(tmp_path, text % "limit_bytes: 20GiB"), machine(gpu(0))).warnings == []
    assert make(from_file(tmp_path, text % "limit_bytes: 30GiB"), machine(gpu(0))).warnings != []


@pytest.mark.parametrize(
    ("host", "said"),
    [("127.0.0.1", 0), ("::1", 0), ("localhost", 0), ("0.0.0.0", 1), ("::", 1), ("10.0.0.5", 1)],
)
def test_an_open_host_is_said_aloud(host: str, said: int) -> None:
    """Anything but loopback reaches further than this machine."""
    made = make(configure(host=host), machine())
    assert sum(host in line for line in made.warnings) == said


@pytest.mark.parametrize(
    ("rest_port", "allow_reload", "told"),
    [
        (0, False, ""),
        (1, False, "whoever reaches this machine reaches the models by HTTP, without TLS or a password"),
        (
            0,
            True,
            "by allow_reload every client of the gRPC port says which models are served, and from which",
        ),
    ],
)
def test_what_tls_leaves_open_is_said(tmp_path: Path, rest_port: int, allow_reload: bool, told: str) -> None:
    """HTTP is in clear, and who is let in may say what is served."""
    tls = "tls: {key: k, cert: c}\nhost: '::'"
    text = f"models: {{m: m}}\n{tls}\nrest_port: {rest_port}\nallow_reload: {allow_reload}"
    found = make(from_file(tmp_path, text), machine()).warnings
    assert [line.startswith(f"host ::: {told}") for line in found] == [True] * bool(told)


def test_a_pool_without_fronts_is_said() -> None:
    """Both ports 0 is allowed, and hardly meant."""
    assert "nobody can reach" in make(configure(grpc_port=0, rest_port=0), machine()).warnings[0]


def test_settings_carry_the_whole_plan(tmp_path: Path) -> None:
    """Every field of the configuration arrives where a child reads it."""
    config = from_file(
        tmp_path,
        """
        host: 0.0.0.0
        grpc_port: 1234
        rest_port: 0
        scheduling:
          {policy: sjf, dispatch: round_robin, aging: 2, running_per_device: 3, slow_lane: 1, slow_ms: 4.5,
           priority_key: X-Rank, fair_by: "metadata:X-Tenant", refuse_late: false}
        max_connections: 11
        max_message_bytes: 1MiB
        max_queued_requests: 7
        max_queued_bytes: 2MiB
        readiness: all
        grace_s: 5
        restart: {retries: 1, backoff_s: 2, max_backoff_s: 3}
        models:
          a: {base_path: a, hang_timeout_s: 9, gpu_memory: {growth: false, fraction: 0.25}, saved_model_tags: [x, y],
              start_timeout_s: 8}
        """,
    )
    made = make(config, machine(gpu(0, simulated=True)))
    settings = to_settings(made, config)
    assert settings.router == RouterSettings(
        run_dir=RUN_DIR,
        host="0.0.0.0",
        grpc_port=1234,
        rest_port=0,
        max_connections=11,
        max_message_bytes=2**20,
        max_queued_bytes=2**21,
        scheduling=SchedulingSettings(
            dispatch="round_robin",
            aging=2,
            running_per_device=3,
            slow_lane=1,
            slow_ms=4.5,
            priority_key="x-rank",
            fair_by="metadata:x-tenant",
            refuse_late=False,
        ),
        allow_reload=False,
        readiness="all",
        simulated="gpus",
    )
    assert (settings.restart.retries, settings.restart.backoff_s, settings.restart.max_backoff_s) == (1, 2, 3)
    assert (settings.run_dir, settings.mps, settings.router.simulated, settings.grace_s) == (
        RUN_DIR,
        "simulated",
        "gpus",
        5,
    )
    assert settings.mps_daemons == made.mps_daemons
    (model,) = settings.models
    assert (model.hang_timeout_s, model.gpu_memory_growth, model.gpu_memory_fraction) == (9, False, 0.25)
    assert (model.start_timeout_s, model.saved_model_tags) == (8, ["x", "y"])
    assert model.queue == QueueSettings(policy="sjf", max_queued_requests=7, max_queued_bytes=2**21)


@pytest.mark.parametrize(
    ("host", "given", "answered"),
    [
        ("127.0.0.1", {}, True),
        ("localhost", {}, True),
        ("::1", {}, True),
        ("0.0.0.0", {}, False),
        ("0.0.0.0", {"allow_reload": True}, True),
        ("127.0.0.1", {"allow_reload": False}, False),
    ],
)
def test_clients_of_other_machines_reload_only_where_that_is_said(
    host: str, given: dict[str, bool], answered: bool
) -> None:
    """Whoever may do that has any model loaded that the pool can read."""
    config = configure(["a"], host=host, cpu_slots=1, **given)
    planned = plan(config, machine(), versions(config))
    assert is_local(host) == (host != "0.0.0.0")
    assert to_settings(planned, config).router.allow_reload is answered


def test_gpus_auto_takes_what_there_is() -> None:
    """GPUs where there are some, whatever cpu_slots says, and else so many CPU slots: both are meant."""
    config = configure(["m=/m"], gpus="auto", contexts_per_gpu=3, cpu_slots=2)
    (model,) = make(config, machine(gpu(0), gpu(1))).models
    assert [slot.device for slot in model.slots] == ["gpu0"] * 3 + ["gpu1"] * 3
    planned = make(config, machine())
    assert [slot.device for slot in planned.models[0].slots] == ["cpu0"] * 2
    assert not [line for line in planned.warnings if "contexts_per_gpu" in line]
