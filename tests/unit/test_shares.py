"""What each worker gets of its GPU: from the file to the environment, and what does not fit."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mpspool.core import settings
from mpspool.core.control import ControlServer, Message
from mpspool.core.errors import StartError
from mpspool.core.rundir import RunDir
from mpspool.core.settings import (
    ModelSettings,
    MpsSettings,
    RestartSettings,
    Share,
    SlotSettings,
    WorkerSettings,
)
from mpspool.core.states import DomainState
from mpspool.mps import external
from mpspool.mps.control import Control
from mpspool.mps.devices import GpuDevice
from mpspool.mps.environment import Inherited, inherited, share_environment
from mpspool.mps.external import Folders, Peer
from mpspool.supervisor import leftovers, programs, shares
from mpspool.supervisor.commands import mps as mps_command
from mpspool.supervisor.commands.errors import CommandError
from mpspool.supervisor.config.schema import PoolConfig
from mpspool.supervisor.cpus import Topology
from mpspool.supervisor.planning.drafts import Machine
from mpspool.supervisor.planning.plan import Plan, plan
from mpspool.supervisor.pool.domain import AwaitDaemon, Domain, Server
from mpspool.supervisor.shares import CONTEXT_BYTES, Override
from mpspool.worker import device
from tests.configuration import load_config
from tests.conftest import short_dir

GIB = 2**30
FOLDERS = Folders("/node/pipe", "/node/log")


def configure(
    tmp_path: Path, text: str, environ: Mapping[str, str] | None = None, **flags: object
) -> PoolConfig:
    file = tmp_path / "pool.yaml"
    file.write_text(text)
    return load_config(file, {"run_dir": "/run/pool", **flags}, environ or {})


def make(config: PoolConfig, gpus: int = 1, control: list[str] | None = None) -> Plan:
    devices = [GpuDevice(index, f"GPU-{index}", "Test GPU", (9, 0), 80 * GIB, None) for index in range(gpus)]
    external_at = FOLDERS if config.mps.mode == "external" else None
    machine = Machine(devices, Topology.simulate(8), control or ["mps"], external=external_at)
    versions = {model.name: (1, Path(f"/models/{model.name}/1")) for model in config.models}
    return plan(config, machine, versions)


def refused(tmp_path: Path, text: str, **kwargs: Mapping[str, str]) -> list[str]:
    with pytest.raises(StartError) as error:
        make(configure(tmp_path, text, **kwargs))
    return [str(problem) for problem in error.value.problems]


def slots(planned: Plan, model: int = 0) -> list[tuple[int | None, int | None, int | None]]:
    shares_given = [slot.share for slot in planned.models[model].slots]
    return [(share.active_thread_percentage, share.pinned_bytes, share.priority) for share in shares_given]


def slot_with(mps_pipe: str = "/p", memory_bytes: int = 0, **share: Any) -> SlotSettings:
    return SlotSettings(
        device="gpu0",
        slot=0,
        gpu_uuid="GPU-0",
        mps_pipe=mps_pipe,
        memory_bytes=memory_bytes,
        share=Share(**share),
    )


HALF = "models: [{name: half, base_path: /m}]\n"


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("", "auto"),
        ("mps: on", "own"),
        ("mps: 'off'", "off"),
        ("mps: external", "external"),
        ("mps: {mode: on}", "own"),
        ("mps: {mode: off}", "off"),
        ("mps: {priority: normal}", "auto"),
    ],
)
def test_one_word_or_a_mapping(tmp_path: Path, text: str, mode: str) -> None:
    """The mode may stand alone; `on` is another word for `own`."""
    assert configure(tmp_path, HALF + text).mps.mode == mode


def test_the_flag_is_the_mode_alone(tmp_path: Path) -> None:
    """What else the file says of MPS stands, and a path in it starts from its folder."""
    config = configure(tmp_path, HALF + "mps: {mode: own, pipe_directory: pipe}", mps="external")
    assert (config.mps.mode, config.mps.pipe_directory) == ("external", str(tmp_path / "pipe"))


def test_a_value_for_the_pool_a_model_or_a_slot(tmp_path: Path) -> None:
    """The model's, else the pool's; of several the slot takes its own in turn, on each of its GPUs."""
    config = configure(
        tmp_path,
        """
mps: {active_thread_percentage: 40, pinned_memory: 4GiB, priority: below_normal}
contexts_per_gpu: 3
models:
  a: {base_path: /a, mps: {active_thread_percentage: [100, 30], pinned_memory: 0}}
  b: /b
""",
    )
    planned = make(config, gpus=2)
    assert slots(planned) == [(100, 0, 1), (30, 0, 1), (100, 0, 1)] * 2
    assert slots(planned, 1) == [(40, 4 * GIB, 1)] * 6
    assert (
        "b: each worker gets at most 40% of the multiprocessors, 4GiB of its memory, priority below_normal"
        in (planned.facts)
    )


def test_what_is_said_above_holds_for_every_model(tmp_path: Path) -> None:
    """A variable wins over what the file says about one model."""
    text = (
        "models: {a: {base_path: /a, mps: {active_thread_percentage: 20, priority: below_normal}}}\ngpus: [0]"
    )
    config = configure(tmp_path, text, {"MPSPOOL_MPS_ACTIVE_THREAD_PERCENTAGE": "50,60"})
    assert slots(make(config)) == [(50, None, 1), (60, None, 1), (50, None, 1), (60, None, 1)]


@pytest.mark.parametrize(
    ("workers", "percentage"), [(1, None), (2, None), (3, 67), (4, 50), (5, 40), (48, 5), (60, 4)]
)
def test_the_default_lets_two_fill_the_gpu(workers: int, percentage: int | None) -> None:
    """No cap for one or two workers, else twice an equal part."""
    assert shares.default_percentage(workers) == percentage


def test_the_default_counts_all_models_of_a_gpu(tmp_path: Path) -> None:
    """And only under MPS."""
    text = "models: {a: {base_path: /a, contexts_per_gpu: 1}, b: {base_path: /b, contexts_per_gpu: 2}}\n"
    assert {share for model in (0, 1) for share in slots(make(configure(tmp_path, text)), model)} == {
        (67, None, None)
    }
    assert slots(make(configure(tmp_path, text + "mps: off"))) == [(None, None, None)]
    given = "mps: {active_thread_percentage: 100, pinned_memory: 0, priority: normal}"
    assert slots(make(configure(tmp_path, text + given))) == [(100, 0, 0)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "active_thread_percentage: 0",
            "mps.active_thread_percentage: 0 in pool.yaml line 2: expected a whole perc",
        ),
        (
            "active_thread_percentage: [50, 101]",
            "mps.active_thread_percentage: [50, 101] in pool.yaml line 2: expec",
        ),
        (
            "active_thread_percentage: true",
            "mps.active_thread_percentage: True in pool.yaml line 2: expected",
        ),
        (
            "pinned_memory: 2GX",
            "mps.pinned_memory: '2GX' in pool.yaml line 2: expected bytes, or text such as",
        ),
        ("pinned_memory: 5", "mps.pinned_memory: 5 in pool.yaml line 2: expected bytes"),
        ("pinned_memory: []", "mps.pinned_memory: [] in pool.yaml line 2: expected bytes"),
        ("priority: high", "mps.priority: 'high' in pool.yaml line 2: expected normal or below_normal"),
        ("mod: own", "mps.mod: unknown key in pool.yaml line 2; did you mean mode?"),
    ],
)
def test_a_value_that_is_none(tmp_path: Path, text: str, told: str) -> None:
    """Key, value, place and what is expected."""
    (problem,) = refused(tmp_path, f"{HALF}mps: {{{text}}}")
    assert problem.startswith(told)


def test_a_model_has_no_mode(tmp_path: Path) -> None:
    """MPS is the pool's; what a model can say of it is named."""
    (problem,) = refused(tmp_path, "models: {a: {base_path: /a, mps: {mode: off}}}")
    assert problem.endswith("known are active_thread_percentage, pinned_memory, priority")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 * GIB),
        ("1.5 gib", 3 * GIB // 2),
        (2 * GIB, 2 * GIB),
        ("2GB", 2 * 10**9 // 2**20 * 2**20),
        (0, 0),
    ],
)
def test_sizes_are_whole_mebibytes(text: object, size: int) -> None:
    """As MPS counts, rounded down."""
    assert shares.read_sizes(text) == (size,)


@pytest.mark.parametrize("text", ["9" * 330, f"{2**63}", "99999999999GiB"])
def test_sizes_that_no_device_has(text: str) -> None:
    """They are refused as what is no size: nothing counts so far."""
    with pytest.raises(ValueError, match=r"expected bytes, or text such as \"2GiB\""):
        shares.read_sizes(text)


def test_tensorflow_fits_the_pinned_limit(tmp_path: Path) -> None:
    """Its limit is what the context leaves, unless the model has one; every other worker keeps the model's."""
    slot = slot_with(pinned_bytes=4 * GIB)
    model = ModelSettings(name="a", version=1, path="/a", slots=[slot])
    assert shares.settings_for(model, slot).gpu_memory_limit_bytes == 4 * GIB - CONTEXT_BYTES
    assert shares.settings_for(model, SlotSettings(device="gpu0", slot=1)).gpu_memory_limit_bytes == 0
    config = configure(tmp_path, "mps: {pinned_memory: 4GiB}\nmodels: [{name: a, base_path: /a, "
                       "gpu_memory: {limit_bytes: 3GiB, allocator: cuda_malloc_async}}]")  # fmt: skip
    made = make(config).models[0]
    assert shares.settings_for(made, made.slots[0]).gpu_memory_limit_bytes == 3 * GIB
    assert made.gpu_allocator == "cuda_malloc_async"


@pytest.mark.parametrize(
    ("pool", "model", "path", "told"),
    [
        (
            "2GiB",
            "{limit_bytes: 3GiB}",
            "mps.pinned_memory",
            "2GiB is less than a's gpu_memory.limit_bytes, 3GiB",
        ),
        (
            "3GiB",
            "{limit_bytes: 3GiB}",
            "mps.pinned_memory",
            "3GiB is less than a's gpu_memory.limit_bytes, 3GiB, and about 768MiB for its CUDA context",
        ),
        ("2GiB", "{fraction: 0.5}", "mps.pinned_memory", "2GiB is less than a's gpu_memory.fraction, 40GiB"),
        ("768MiB", "{}", "mps.pinned_memory", "leaves a nothing: a CUDA context takes about 768MiB"),
    ],
)
def test_what_cannot_fit_is_refused(tmp_path: Path, pool: str, model: str, path: str, told: str) -> None:
    """Both values are named."""
    text = f"mps: {{pinned_memory: {pool}}}\nmodels: [{{name: a, base_path: /a, gpu_memory: {model}}}]"
    (problem,) = refused(tmp_path, text)
    assert problem.startswith(f"{path}: ")
    assert told in problem
    own = f"models: [{{name: a, base_path: /a, mps: {{pinned_memory: {pool}}}, gpu_memory: {model}}}]"
    assert refused(tmp_path, own)[0].startswith(f"models.a.{path}: ")


def test_the_context_has_room_beside_tensorflow(tmp_path: Path) -> None:
    """The limit that is just enough is taken, in the file and live."""
    text = (
        "mps: {pinned_memory: 3840MiB}\nmodels: [{name: a, base_path: /a, gpu_memory: {limit_bytes: 3GiB}}]"
    )
    model = make(configure(tmp_path, text)).models[0]
    assert shares.misfit(model, model.slots[0]) == ""
    less = Override(pinned_bytes=3 * GIB).over(model.slots[0])
    assert "about 768MiB for its CUDA context" in shares.misfit(model, less)


def test_shares_that_differ_between_gpus_are_told_by_gpu(tmp_path: Path) -> None:
    """More workers on one have less each; values that take turns on each GPU are told once."""
    config = configure(
        tmp_path,
        "mps: {pinned_memory: '2GiB,4GiB'}\nmodels:\n"
        "  a: {base_path: /a, gpus: [0], contexts_per_gpu: 2}\n  b: {base_path: /b, contexts_per_gpu: 2}\n",
    )
    told = make(config, gpus=2).facts[-2:]
    assert told == [
        "a: each worker gets at most 50% of the multiprocessors, 2GiB | 4GiB of its memory",
        "b: each worker gets at most 50% on gpu0, 100% on gpu1 of the multiprocessors, 2GiB | 4GiB of its memory",
    ]


def test_warnings(tmp_path: Path) -> None:
    """Limits that add up to more than the GPU has; values that mean nothing without MPS."""
    (warning,) = make(configure(tmp_path, HALF + "mps: {pinned_memory: 30GiB}")).warnings
    assert warning.startswith("gpu0: pinned_memory gives its 4 workers 150% of its memory in all")
    one = make(configure(tmp_path, HALF + "mps: {pinned_memory: 120GiB}\ncontexts_per_gpu: 1"))
    assert one.warnings[0].startswith("gpu0: pinned_memory gives its worker 150% of its memory in all")
    off = make(configure(tmp_path, HALF + "mps: {mode: off, priority: normal}"))
    assert off.warnings[-1].startswith("mps.priority bounds what a worker gets under MPS, which is off")
    own = make(configure(tmp_path, HALF + "mps: {mode: own, pipe_directory: /p}\ncontexts_per_gpu: 1"))
    assert own.warnings == ["mps.pipe_directory is for mode: external, and mode is own: it is not used"]


def test_the_environment_that_cuda_reads() -> None:
    """A worker's one device is number 0; what is given is said, no bound too; what is not leaves the variables alone."""
    given = slot_with(active_thread_percentage=50, pinned_bytes=2 * GIB, priority=1)
    assert share_environment(given) == {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M",
        "CUDA_MPS_CLIENT_PRIORITY": "1",
    }
    unbound = slot_with(active_thread_percentage=100, pinned_bytes=0, priority=0)
    assert share_environment(unbound) == {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "",
        "CUDA_MPS_CLIENT_PRIORITY": "0",
    }
    all_of_it = slot_with(memory_bytes=80 * GIB + 1, pinned_bytes=0)
    assert share_environment(all_of_it) == {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=81921M"}
    assert share_environment(slot_with()) == {}


INHERITED = {
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "12.5",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "1=9G, 0=512MB",
    "CUDA_MPS_CLIENT_PRIORITY": "1",
}


def test_what_a_worker_inherits() -> None:
    """As CUDA reads it for the one device; what says nothing counts for nothing."""
    assert inherited(INHERITED, "GPU-0") == Inherited(12.5, 512 * 2**20, 1)
    by_uuid = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "GPU-1=1G,GPU-0=2G"}
    assert inherited(by_uuid, "GPU-0") == Inherited(None, 2 * GIB, None)
    senseless = dict.fromkeys(INHERITED, "much")
    assert inherited({}, "GPU-0") == inherited(senseless, "GPU-0") == Inherited()


@pytest.mark.parametrize(
    ("share", "own_daemon", "runs_with"),
    [
        ({}, True, (12.5, GIB // 2, "below_normal", "all")),
        ({}, False, (12.5, GIB // 2, "below_normal", "all")),
        ({"priority": 0}, True, (12.5, GIB // 2, "normal", "bounds")),
        (
            {"active_thread_percentage": 100, "pinned_bytes": 0, "priority": 0},
            False,
            (100, 0, "normal", "none"),
        ),
        (
            {"active_thread_percentage": 100, "pinned_bytes": 0, "priority": 0},
            True,
            (12.5, GIB // 2, "normal", "bounds"),
        ),
        (
            {"active_thread_percentage": 10, "pinned_bytes": GIB // 4, "priority": 1},
            True,
            (10, GIB // 4, "below_normal", "none"),
        ),
    ],
)
def test_what_a_worker_runs_with(
    share: dict[str, int], own_daemon: bool, runs_with: tuple[float, int, str, str]
) -> None:
    """What was given, or inherited and not given; a daemon of ours inherits too, and what it has is never exceeded."""
    found = shares.as_message(slot_with(**share), inherited(INHERITED, "GPU-0"), own_daemon=own_daemon)
    bounds = ["active_thread_percentage", "pinned_memory_bytes"]
    names = {"all": [*bounds, "priority"], "bounds": bounds, "none": []}[runs_with[3]]
    assert found["inherited"] == names
    assert (found["active_thread_percentage"], found["pinned_memory_bytes"], found["priority"]) == runs_with[
        :3
    ]


def test_with_nothing_in_the_environment_nothing_is_bound() -> None:
    """Nor called inherited."""
    assert shares.as_message(slot_with(), Inherited(), own_daemon=True) == {
        "active_thread_percentage": 100,
        "pinned_memory_bytes": 0,
        "priority": "normal",
        "inherited": [],
    }


def test_a_worker_has_it_from_its_first_instruction(tmp_path: Path) -> None:
    """Supervisord gives it to the worker, or to the launcher that passes it on."""
    slot = slot_with(active_thread_percentage=25, priority=0)
    worker = programs.WorkerId("a", 1, "gpu0", 0)
    text = programs.worker_conf(RunDir(tmp_path), worker, slot, allocator="cuda_malloc_async")
    assert 'CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25"' in text
    assert 'CUDA_MPS_CLIENT_PRIORITY="0"' in text
    assert 'TF_GPU_ALLOCATOR="cuda_malloc_async"' in text
    without = slot_with(mps_pipe="", active_thread_percentage=25)
    assert "CUDA_MPS" not in programs.worker_conf(RunDir(tmp_path), worker, without)


def test_overrides_add_up() -> None:
    """A later one leaves alone what it does not name."""
    both = Override(priority=1).upon(Override(active_thread_percentage=50, priority=0))
    slot = both.over(slot_with(pinned_bytes=GIB))
    assert slot.share == Share(active_thread_percentage=50, pinned_bytes=GIB, priority=1)
    assert Override(active_thread_percentage=100, pinned_bytes=0).over(slot).share == Share(
        active_thread_percentage=100, pinned_bytes=0, priority=1
    )


def test_every_wrong_option_is_named() -> None:
    """Before the pool is asked."""
    with pytest.raises(CommandError) as wrong:
        mps_command.read({"active_thread_percentage": "0", "pinned_memory": "x", "priority": None})
    first, second = str(wrong.value).splitlines()
    assert first.startswith("--active-thread-percentage: '0': expected a whole percentage from 1 to 100")
    assert second.startswith("--pinned-memory: 'x': expected bytes")
    assert mps_command.read({"priority": "below_normal", "pinned_memory": "1GiB"}) == {
        "priority": [1],
        "pinned_bytes": [GIB],
    }


# -- a daemon that somebody else runs ------------------------------------------------------------


def test_one_external_daemon_for_all_gpus(tmp_path: Path) -> None:
    """Each GPU's entry names it; it has no program, and none of its folders is ours."""
    planned = make(configure(tmp_path, HALF + "mps: {mode: external}"), gpus=2)
    assert [(daemon.device, daemon.pipe_dir, daemon.external) for daemon in planned.mps_daemons] == [
        ("gpu0", "/node/pipe", True),
        ("gpu1", "/node/pipe", True),
    ]
    assert {slot.mps_pipe for slot in planned.models[0].slots} == {"/node/pipe"}
    assert [slot.gpu_uuid for slot in planned.models[0].slots] == ["GPU-0"] * 4 + ["GPU-1"] * 4
    assert "MPS on: the control daemon on /node/pipe, which is not ours, for gpu0, gpu1" in planned.facts


def test_external_insists(tmp_path: Path) -> None:
    """Who says external gets it, or a reason."""
    with pytest.raises(StartError, match="mps: external, but no GPU is used"):
        make(configure(tmp_path, HALF + "mps: external"), gpus=0)


def test_where_it_is(tmp_path: Path) -> None:
    """As configured, else where CUDA itself would look."""
    (tmp_path / "log").mkdir()
    pipe = str(tmp_path / "pipe")
    assert external.folders(pipe, {}) == Folders(pipe, str(tmp_path / "log"))
    environ = {"CUDA_MPS_PIPE_DIRECTORY": "/e/pipe", "CUDA_MPS_LOG_DIRECTORY": "/e/logs"}
    assert external.folders("", environ) == Folders("/e/pipe", "/e/logs")
    assert external.folders("", {}) == Folders("/tmp/nvidia-mps", "/var/log/nvidia-mps")


@pytest.fixture
def pipe() -> Iterator[Path]:
    """A pipe folder on which somebody listens."""
    with short_dir() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "control"))
        listener.listen()
        yield folder


def answering(pipe: Path, status: int = 0) -> Control:
    return Control(["sh", "-c", f"exit {status}"], {"CUDA_MPS_PIPE_DIRECTORY": str(pipe)})


def test_what_keeps_it_from_being_joined(pipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reason names the folder and what to do; a daemon that answers is fine."""
    uid = os.geteuid()
    assert external.check(str(pipe), answering(pipe), uid) == ""
    assert "there is no folder" in external.check(str(tmp_path / "none"), answering(pipe), uid)
    assert "there is no control socket in" in external.check(str(tmp_path), answering(pipe), uid)
    (tmp_path / "control").touch()
    assert "is no socket" in external.check(str(tmp_path), answering(pipe), uid)
    told = external.check(str(pipe), answering(pipe, 1), uid)
    assert f"the MPS daemon on {pipe} does not answer" in told
    assert "mps.pipe_directory" in told
    monkeypatch.setattr(external, "peer", lambda _: Peer(os.getpid(), 4711))
    assert "belongs to user 4711" in external.check(str(pipe), answering(pipe), 1000)
    monkeypatch.setattr(external, "peer", lambda _: Peer(0, 0))
    assert "hostPID: true" in external.check(str(pipe), answering(pipe), uid)


def test_who_listens_is_the_kernels_word(pipe: Path, tmp_path: Path) -> None:
    """Pid and user, whatever kind of socket it is; nobody where nobody listens."""
    assert external.peer(str(pipe)) == Peer(os.getpid(), os.geteuid())
    assert external.peer(str(tmp_path)) is None
    assert external.elsewhere(str(pipe)) == ""
    assert struct.calcsize("3i") == 12


def test_who_runs_it_is_told(pipe: Path, tmp_path: Path) -> None:
    """Where anybody does."""
    owner = f"process {os.getpid()} of user {os.geteuid()}"
    assert external.look(Folders(str(pipe), "/l")).owner == owner
    assert external.look(Folders(str(tmp_path), "/l")).owner == ""


def test_what_is_left_of_a_killed_pool_is_not_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ended with a pool of its own alone."""
    run = RunDir(tmp_path)
    run.settings.mkdir()
    ended = []
    monkeypatch.setattr(leftovers.mps_leftovers, "end", lambda pipe, _control: ended.append(str(pipe)))
    for name, theirs in (("gpu0", True), ("gpu1", False)):
        daemon = MpsSettings(
            device=name,
            gpu_uuid="GPU",
            pipe_dir=f"/{name}",
            log_dir="/l",
            server_log="",
            control=["mps"],
            external=theirs,
        )
        settings.save(run.settings_file(programs.mps_program(name)), daemon)
    leftovers.end(run)
    assert ended == ["/gpu1"]


def test_an_external_daemon_is_waited_for() -> None:
    """However long it takes: it is said once, and the GPU is not lost for that."""
    gpu = Domain("gpu0", RestartSettings(), own_daemon=False)
    gpu.fault("its MPS server has ended", 0)
    told = [gpu.tick(now, 0, Server.SILENT) for now in range(3600)]
    assert [what for what in told if what] == [AwaitDaemon()]
    assert gpu.state is DomainState.FAULTED
    gpu.tick(3600, 0, Server.USABLE)
    assert gpu.state is DomainState.RECOVERING


async def _answer(path: Path, answer: dict[str, object], worker: WorkerSettings) -> str:
    """What a worker says that the pool answers so."""

    async def attached(_request: Message) -> Message:
        return answer

    server = ControlServer(path, {"attached": attached})
    await server.start()
    try:
        await asyncio.to_thread(device.require_mps, worker)
    except device.NotAttachedError as error:
        return str(error)
    finally:
        await server.close()
    return ""


def test_a_worker_that_its_daemon_can_never_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends at once with the pool's reason; one that is only not listed yet, after a while with where to look."""
    monkeypatch.setattr(device, "_LISTED_S", 0.2)
    slot = SlotSettings(device="gpu0", slot=0, mps_pipe="/node/pipe")
    model = ModelSettings(name="a", version=1, path="/a", slots=[])
    with short_dir() as root:
        worker = WorkerSettings(
            run_dir=str(root), worker="a@1.gpu0.0", generation=1, credits=1, model=model, slot=slot
        )
        path = RunDir(root).pool_control
        assert asyncio.run(_answer(path, {"attached": True, "never": "", "see": ""}, worker)) == ""
        never = {"attached": False, "never": "in another pid namespace; hostPID: true", "see": ""}
        assert asyncio.run(_answer(path, never, worker)) == "gpu0: in another pid namespace; hostPID: true"
        told = asyncio.run(_answer(path, {"attached": False, "never": "", "see": "its server.log"}, worker))
        assert told.startswith("it is no client of the MPS daemon of gpu0 (/node/pipe)")
        assert "see its server.log" in told


def test_copies_on_the_stream_that_computes(tmp_path: Path) -> None:
    """All three kinds, where the model, the pool or DeepRec's variable says so; otherwise TensorFlow's own streams."""
    text = "merge_copy_streams: true\nmodels: {a: /a, b: {base_path: /b, merge_copy_streams: false}}"
    merged, separate = make(configure(tmp_path, text)).models
    assert (merged.merge_copy_streams, separate.merge_copy_streams) == (True, False)
    named = make(configure(tmp_path, HALF, {"MERGE_COMPUTE_COPY_STREAM": "1"})).models[0]
    assert named.merge_copy_streams
    slot = SlotSettings(device="cpu0", slot=0)
    for model, expected in ((merged, True), (separate, False)):
        worker = WorkerSettings(run_dir="/r", worker="a", generation=1, credits=1, model=model, slot=slot)
        options = device.session_config(worker).gpu_options.experimental.stream_merge_options
        assert options.merge_host_to_device_stream is expected
        assert options.merge_device_to_host_stream is expected
        assert options.merge_device_to_device_stream is expected


def test_what_was_set_by_hand_is_told_from_what_is_configured() -> None:
    """A worker that was given a priority by hand still comes anew for another percentage; not for that priority."""
    running = SlotSettings(device="gpu0", slot=0, share=Share(active_thread_percentage=50, priority=0))
    by_hand = Override(priority=1)
    same, other = (
        by_hand.over(
            SlotSettings(device="gpu0", slot=0, share=Share(active_thread_percentage=percentage, priority=0))
        )
        for percentage in (50, 25)
    )
    assert by_hand.but_for(same, running) == running
    assert by_hand.but_for(other, running).share == Share(active_thread_percentage=25, priority=0)
