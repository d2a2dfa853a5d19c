"""Preflight: what can be known to fail is found, all at once, before anything starts."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mpspool.core import settings
from mpspool.core.errors import StartError
from mpspool.core.rundir import RunDir
from mpspool.core.settings import PoolSettings, RemoteSettings
from mpspool.core.states import VersionPhase
from mpspool.supervisor import lock
from mpspool.supervisor.config.schema import PoolConfig, read_config
from mpspool.supervisor.planning.preflight import (
    absent_versions,
    check_all,
    check_library,
    check_run_dir,
    check_weights_folders,
    resolve,
    stray_labels,
)
from mpspool.supervisor.planning.remotes import remotes_of
from mpspool.supervisor.pool.changes import Changes, compare
from mpspool.supervisor.pool.versions import RECORDS, ModelRecord, Records, VersionRecord
from mpspool.supervisor.ports import check_fronts, explain_failure, find_listener
from mpspool.supervisor.programs import POOL
from mpspool.supervisor.report import program
from mpspool.supervisor.saved_model import check_saved_model
from mpspool.supervisor.version_folders import BATCHING_FILE
from tests.configuration import load_config
from tests.conftest import short_dir
from tests.pool import free_port

GRAPH = b"\x08\x01\x12\x04\x0a\x02ab\x12\x00"
INDEX = b"entries" + struct.pack("<Q", 0xDB4775248B80FB57)


@pytest.fixture
def root() -> Iterator[Path]:
    with short_dir() as path:
        yield path


@pytest.fixture
def taken() -> Iterator[int]:
    """A port somebody listens on: this process."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def saved_model(folder: Path) -> Path:
    """A folder that looks like a whole SavedModel with two shards."""
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(GRAPH)
    (folder / "variables/variables.index").write_bytes(INDEX)
    for index in range(2):
        (folder / f"variables/variables.data-{index:05}-of-00002").write_bytes(b"weights")
    return folder


def fronts(host: str = "127.0.0.1", grpc_port: int = 0, rest_port: int = 0) -> list[str]:
    return [str(found) for found in check_fronts(host, {"grpc_port": grpc_port, "rest_port": rest_port})]


def run_dir(root: Path) -> list[str]:
    return [str(problem) for problem in check_run_dir(RunDir(root))]


def test_free_ports_are_no_problem() -> None:
    """Two free ports pass, and are free again afterwards; 0 is not tried."""
    one, other = free_port(), free_port()
    assert fronts(grpc_port=one, rest_port=other) == []
    assert fronts(grpc_port=one, rest_port=other) == []
    assert fronts() == []


def test_a_taken_port_is_named_with_its_holder(taken: int) -> None:
    """The error says who has it: here this test."""
    (text,) = fronts(rest_port=taken)
    name = Path("/proc/self/comm").read_text().strip()
    assert text == (
        f"rest_port: port {taken} on 127.0.0.1 is taken by {name} (pid {os.getpid()}); "
        "stop that, or choose another (0 turns it off)"
    )


def test_a_router_is_named_by_its_pool(tmp_path: Path) -> None:
    """Not as the interpreter that runs it."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text(
        "sl local_address rem_address st\n"
        "0: 0100007F:2134 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 99\n"
    )
    (tmp_path / "7/fd").mkdir(parents=True)
    (tmp_path / "7/fd/3").symlink_to("socket:[99]")
    (tmp_path / "7/comm").write_text("python\n")
    assert find_listener(0x2134, tmp_path) == "python (pid 7)"
    words = ("python", "-P", "-m", "mpspool.router", "/run/pool/settings/router.json", "")
    (tmp_path / "7/cmdline").write_text("\0".join(words))
    assert find_listener(0x2134, tmp_path) == "the pool in /run/pool (pid 7)"


def test_a_port_taken_on_one_address_is_taken_on_all(taken: int) -> None:
    """0.0.0.0 includes the address that is taken."""
    assert f"port {taken} on 0.0.0.0 is taken" in fronts("0.0.0.0", grpc_port=taken)[0]


def test_a_listener_that_would_share_its_port_counts_as_taken() -> None:
    """GRPC servers set SO_REUSEPORT: two could listen and each get half of the clients."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert "is taken" in fronts(grpc_port=listener.getsockname()[1])[0]


def test_connections_that_are_closing_are_not_in_the_way() -> None:
    """A pool can start again at once where one with clients has just ended (TIME_WAIT)."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = listener.accept()
        accepted.close()
        client.close()
    assert fronts(grpc_port=port) == []


def test_both_fronts_on_one_port() -> None:
    """One port cannot be both; said once."""
    port = free_port()
    assert fronts(grpc_port=port, rest_port=port) == [
        f"rest_port: {port} is grpc_port as well; give each front its own"
    ]


def test_both_fronts_on_one_taken_port(taken: int) -> None:
    """Two mistakes in one are both told."""
    assert [text.partition(":")[0] for text in fronts(grpc_port=taken, rest_port=taken)] == [
        "rest_port",
        "grpc_port",
    ]


def test_a_host_that_cannot_be_resolved() -> None:
    """A name that nobody knows is the host's problem, not the port's."""
    (text,) = fronts("no-such-host.invalid", grpc_port=1)
    assert text.startswith("host: 'no-such-host.invalid' cannot be resolved")


def test_a_host_that_is_not_ours() -> None:
    """Another machine's address cannot be listened on; said once for both ports."""
    (text,) = fronts("192.0.2.1", grpc_port=free_port(), rest_port=free_port())
    assert text.startswith("host: 192.0.2.1 is no address of this machine")


def test_a_privileged_port() -> None:
    """What only root may use says from where on it is free; the refusal is given, as tests may run as root."""
    problem = explain_failure(
        PermissionError(errno.EACCES, "Permission denied"), "grpc_port", 80, "127.0.0.1"
    )
    assert str(problem).startswith("grpc_port: port 80 needs privileges we lack; choose one from ")


def test_a_run_folder_that_is_not_there_yet(root: Path) -> None:
    """It will be made, however deep; the check itself makes nothing."""
    assert run_dir(root / "a" / "b") == []
    assert os.listdir(root) == []


def test_a_run_folder_of_an_earlier_pool(root: Path) -> None:
    """Private and left over is fine; so is an empty one that was just made for us."""
    with lock.held(RunDir(root)):
        pass
    assert run_dir(root) == []
    (root / "new").mkdir(mode=0o755)
    assert run_dir(root / "new") == []


def test_a_run_folder_open_to_others(root: Path) -> None:
    """Where others can write, or read what is there already, the pool's sockets do not belong."""
    shared = root / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert run_dir(shared) == [
        f"run_dir: {shared} is open to other users (mode 0777); chmod 700 {shared}, or choose another --run-dir"
    ]
    shared.chmod(0o755)
    (shared / "file").write_text("")
    assert "mode 0755" in run_dir(shared)[0]


def test_a_run_folder_of_somebody_else(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that another user put there in advance is not used."""
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert run_dir(root) == [
        f"run_dir: {root} belongs to user {os.getuid()}, and we are 12345; choose another --run-dir"
    ]


def test_a_run_folder_that_is_a_file(root: Path) -> None:
    """A file, and a file in the place of a parent."""
    (root / "file").write_text("")
    assert run_dir(root / "file") == [f"run_dir: {root / 'file'} is not a folder; choose another --run-dir"]
    assert (
        "is not a folder" in run_dir(root / "file" / "run")[0]
        or "cannot be used" in run_dir(root / "file" / "run")[0]
    )


def test_a_run_folder_that_is_a_link(root: Path) -> None:
    """Our own link to our own folder is followed; one to nowhere is not."""
    (root / "real").mkdir(mode=0o700)
    (root / "link").symlink_to(root / "real")
    (root / "dangling").symlink_to(root / "gone")
    assert run_dir(root / "link") == []
    assert "is a link to nowhere" in run_dir(root / "dangling")[0]


def test_a_run_folder_that_is_not_writable() -> None:
    """Neither it, nor where it would be made: folders of /proc, which refuse root as well."""
    private = Path("/proc/self/map_files")
    assert run_dir(private) == [f"run_dir: {private} is not writable; choose another --run-dir"]
    assert run_dir(Path("/proc/new/run")) == [
        "run_dir: /proc/new/run cannot be created: /proc is not writable; choose another --run-dir"
    ]


def test_a_run_folder_too_long_for_sockets(root: Path) -> None:
    """UNIX socket paths end at 107 bytes; the excess is told."""
    (text,) = run_dir(root / ("x" * 100))
    assert "bytes too long for the UNIX sockets in it; choose a shorter --run-dir" in text


def test_a_run_folder_in_use(root: Path) -> None:
    """A second start is refused with the first one's pid and how to stop it; the ports are not told on top of it."""
    code = (
        "import sys; from pathlib import Path; from mpspool.core.rundir import RunDir;"
        "from mpspool.supervisor import lock\n"
        "with lock.held(RunDir(Path(sys.argv[1]))): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        (told,) = run_dir(root)
        assert told == (
            f"run_dir: a pool runs in {root} (pid {holder.pid}); "
            f"stop it with `{program()} stop --run-dir {root}`, choose another --run-dir, or have it take up what has changed:"
            f" `{program()} reload --run-dir {root}`, with `--check` to see what that would be"
        )
        with socket.create_server(("127.0.0.1", 0)) as its_front:
            config = load_config(None, {"model": ["m=/m"], "run_dir": root}, {})
            config = config.model_copy(update={"grpc_port": its_front.getsockname()[1], "rest_port": 0})
            assert [problem.path for problem in check_all(config)] == ["run_dir"]
        holder.communicate()
    assert run_dir(root) == []


def test_no_folder_for_temporary_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said beforehand, where all is read-only; a pool that runs has found one."""

    def nowhere() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    config = load_config(None, {"model": ["m=/m"], "run_dir": root, "grpc_port": 0, "rest_port": 0}, {})
    assert check_all(config) == []
    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    (problem,) = check_all(config)
    assert str(problem).startswith("no folder for temporary files can be written")
    assert check_all(config, running=True) == []


def test_a_whole_saved_model(tmp_path: Path) -> None:
    """Nothing to say; nor about one without variables, or in text form."""
    assert check_saved_model(saved_model(tmp_path / "1")) == []
    (tmp_path / "2/variables").mkdir(parents=True)
    (tmp_path / "2/saved_model.pb").write_bytes(GRAPH)
    assert check_saved_model(tmp_path / "2") == []
    (tmp_path / "3").mkdir()
    (tmp_path / "3/saved_model.pbtxt").write_text("saved_model_schema_version: 1")
    assert check_saved_model(tmp_path / "3") == []


@pytest.mark.parametrize(
    "content",
    [
        GRAPH[:5],
        GRAPH[:-1],
        b"not a graph at all",
        b"\x08\x01",
        b"\x08",
        b"\x12\xff\xff\xff\xff\x0f",
        b"\x00" * 9,
    ],
)
def test_a_graph_cut_short(tmp_path: Path, content: bytes) -> None:
    """A partial copy, and a file that is something else, are seen without TensorFlow."""
    folder = saved_model(tmp_path / "1")
    (folder / "saved_model.pb").write_bytes(content)
    (text,) = check_saved_model(folder)
    assert text.startswith(f"{folder / 'saved_model.pb'} is cut short, or no SavedModel; ")
    assert "copy or export it again" in text


@pytest.mark.parametrize("name", ["saved_model.pb", "saved_model.pbtxt"])
def test_an_empty_graph(tmp_path: Path, name: str) -> None:
    """An empty file is told as such."""
    (tmp_path / name).write_bytes(b"")
    assert f"{tmp_path / name} is empty" in check_saved_model(tmp_path)[0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("variables.index", None, "has weights but no variables.index"),
        ("variables.index", INDEX[:-3], "variables.index is damaged"),
        ("variables.index", b"", "variables.index is damaged"),
        ("variables.data-00001-of-00002", None, "variables.data-00001-of-00002 is missing"),
        ("variables.data-00000-of-00002", None, "variables.data-00000-of-00002 is missing"),
        ("variables.data-00000-of-00002", b"", "variables.data-00000-of-00002 is empty"),
    ],
)
def test_a_broken_checkpoint(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    """Each missing, empty or damaged file of the checkpoint is named."""
    path = saved_model(tmp_path) / "variables" / name
    path.unlink() if content is None else path.write_bytes(content)
    (text,) = check_saved_model(tmp_path)
    assert message in text


def test_an_index_without_any_shard(tmp_path: Path) -> None:
    """The weights themselves were not copied."""
    folder = saved_model(tmp_path)
    for shard in (folder / "variables").glob("*.data-*"):
        shard.unlink()
    assert "variables.data-00000-of-00001 is missing" in check_saved_model(folder)[0]


def test_operator_libraries(tmp_path: Path) -> None:
    """Missing, a folder, not compiled; a real library passes."""
    (tmp_path / "ops.py").write_text("import tensorflow")
    assert "cannot be read: No such file" in check_library(tmp_path / "ops.so")[0]
    assert "cannot be read: Is a directory" in check_library(tmp_path)[0]
    assert "is not a shared library" in check_library(tmp_path / "ops.py")[0]
    assert check_library(Path(sys.executable)) == []


def test_folders_for_weights(root: Path) -> None:
    """Missing, no folder, not writable: told with the place that names it, once, and only where it is used."""
    (root / "file").touch()
    (root / "good").mkdir()
    (root / "pool.yaml").write_text(
        """
        weights: {backing: file, folder: file}
        models:
          one: one
          two: {base_path: two, weights: {shared: "on"}}
          missing: {base_path: missing, weights: {backing: file, folder: gone}}
          closed: {base_path: closed, weights: {backing: file, folder: /proc/self/map_files}}
          good: {base_path: good, weights: {backing: file, folder: good}}
          memory: {base_path: memory, weights: {backing: memfd}}
          unused: {base_path: unused, weights: {shared: "off", backing: file, folder: gone}}
        """
    )
    config, findings = read_config(root / "pool.yaml", {}, {})
    remedy = "name a folder that we may write to, or set backing: memfd"
    assert [str(problem) for problem in findings.told(check_weights_folders(config))] == [
        f"weights.folder: in pool.yaml line 2: {root}/file is not a folder; {remedy}",
        f"models.missing.weights.folder: in pool.yaml line 6: {root}/gone does not exist; {remedy}",
        f"models.closed.weights.folder: in pool.yaml line 7: /proc/self/map_files is not writable; {remedy}",
    ]
    assert not list((root / "good").iterdir())


def test_a_sound_configuration_resolves(root: Path) -> None:
    """File system, ports and machine together give settings, and nothing is made on the way."""
    saved_model(root / "half/7")
    flags = {"model": [f"half={root / 'half'}"], "run_dir": str(root / "run"), "gpus": "none"}
    config = load_config(None, {**flags, "grpc_port": free_port(), "rest_port": 0}, {})
    settings, planned = resolve(config, os.environ)
    assert [(model.name, model.version, model.path) for model in settings.models] == [
        ("half", 7, str(root / "half/7"))
    ]
    assert settings.models == planned.models
    assert not (root / "run").exists()


@pytest.mark.parametrize(
    ("interval", "words"),
    [("1", "Version 7 is served until a newer one is whole"), ("0", "Version 7 is served")],
)
def test_a_newer_version_that_is_not_whole_is_said(root: Path, interval: str, words: str) -> None:
    """It may be on its way still; where nobody looks again, the one before it is what there is."""
    saved_model(root / "half/7")
    (root / "half/8").mkdir()
    flags = {"model": [f"half={root / 'half'}"], "run_dir": str(root / "run"), "gpus": "none"}
    environ = {"MPSPOOL_FILE_SYSTEM_POLL_WAIT_SECONDS": interval}
    config = load_config(None, {**flags, "grpc_port": free_port(), "rest_port": 0}, environ)
    found, planned = resolve(config, os.environ)
    assert found.models[0].version == 7
    (text,) = planned.warnings
    assert text.startswith(f"half: {root}/half/8 is not a SavedModel: ")
    assert text.endswith(f". {words}")


def running(config: PoolConfig, remotes: list[RemoteSettings] | None = None) -> PoolSettings:
    """The settings of a pool that serves version 7 of each model, as they are in its run folder."""
    found = msgspec.structs.replace(resolve(config, os.environ)[0], remotes=remotes or [])
    run = RunDir(config.run_dir)
    for folder in run.folders():
        folder.mkdir()
    records = {
        model.name: ModelRecord(
            versions=[VersionRecord(number=7, path=model.path, phase=VersionPhase.SERVING)]
        )
        for model in found.models
    }
    settings.save(run.settings_file(POOL), found)
    settings.save(run.settings_file(RECORDS), Records(records))
    return found


def test_folders_of_what_is_served_refuse_no_reload(root: Path) -> None:
    """Not those with a file of parameters that is of no use, nor where all have gone, or none is of the policy; of a model that
    comes they do.
    """
    folder = saved_model(root / "half/7")
    (folder / BATCHING_FILE).write_text("max_batch_size { value: 8 }")
    flags = {"model": [f"half={root / 'half'}"], "run_dir": str(root / "run"), "gpus": "none"}
    ports = {"grpc_port": free_port(), "rest_port": 0}
    batched = {"MPSPOOL_ENABLE_BATCHING": "1", "MPSPOOL_ENABLE_PER_MODEL_BATCHING_PARAMETERS": "1"}
    config = load_config(None, {**flags, **ports}, batched)
    before = running(config)
    (saved_model(root / "half/8") / BATCHING_FILE).write_text("nonsense")
    after, planned = resolve(config, os.environ, running=True)
    assert (compare(before, after), planned.warnings) == (Changes(), [])
    two = load_config(None, {**flags, **ports, "model": [*flags["model"], f"more={root / 'half'}"]}, batched)
    with pytest.raises(StartError, match=r"half/8/batching_params\.pbtxt"):
        resolve(two, os.environ, running=True)
    shutil.rmtree(root / "half")
    after, planned = resolve(config, os.environ, running=True)
    assert (compare(before, after), after.models[0].path) == (Changes(), str(folder))
    assert [text.startswith("half: no such path: ") for text in planned.warnings] == [True]
    with pytest.raises(StartError, match=r"models\.more\.base_path") as refused:
        resolve(two, os.environ, running=True)
    assert len(refused.value.problems) == 1


def test_a_cache_that_was_emptied_refuses_no_reload(root: Path) -> None:
    """What the pool copies is left to it; it serves what it has."""
    flags = {"run_dir": str(root / "run"), "cache_dir": str(root / "cache"), "gpus": "none", "rest_port": 0}
    config = load_config(None, {**flags, "model": ["m=s3://bucket/m"], "grpc_port": free_port()}, {})
    (remote,) = remotes_of(config)
    folder = saved_model(Path(remote.folder) / "7")
    local = load_config(None, {**flags, "model": [f"m={remote.folder}"], "grpc_port": config.grpc_port}, {})
    before = running(local, [remote])
    shutil.rmtree(remote.folder)
    with lock.held(RunDir(config.run_dir)):
        after, _ = resolve(config, os.environ, running=True)
    assert (compare(before, after), after.models[0].path) == (Changes(), str(folder))


def test_simulated_devices_take_the_place_of_real_ones(root: Path) -> None:
    """--simulate-gpus and --simulate-cpus bring their own machine and their own MPS control."""
    saved_model(root / "half/1")
    flags = {"model": [f"half={root / 'half'}"], "run_dir": str(root / "run"), "grpc_port": 0, "rest_port": 0}
    config = load_config(None, {**flags, "simulate_gpus": 2, "simulate_cpus": 16}, {})
    settings, _ = resolve(config, {})
    assert (settings.mps, settings.router.simulated) == ("simulated", "gpus,cpus")
    assert [daemon.device for daemon in settings.mps_daemons] == ["gpu0", "gpu1"]
    assert sorted(cpu for slot in settings.models[0].slots for cpu in slot.cpus) == list(range(16))


@pytest.mark.parametrize(
    ("flags", "environ", "said"),
    [
        ({"gpus": "none"}, {"ENABLE_MPS": "1"}, True),
        ({"gpus": "none"}, {"ENABLE_MPS": "0"}, False),
        ({"gpus": "none"}, {}, False),
        ({"gpus": "none", "mps": "off"}, {"ENABLE_MPS": "1"}, False),
        ({"simulate_gpus": 1}, {"ENABLE_MPS": "1"}, False),
    ],
)
def test_enable_mps_without_a_gpu_is_said(
    root: Path, flags: dict[str, object], environ: dict[str, str], said: bool
) -> None:
    """An inherited ENABLE_MPS=1 starts on CPU slots as well, with a line that says it has no effect."""
    saved_model(root / "half/1")
    usual = {"model": [f"half={root / 'half'}"], "run_dir": str(root / "run"), "grpc_port": 0}
    config = load_config(None, {**usual, "rest_port": free_port(), **flags}, environ)
    _, planned = resolve(config, environ)
    line = "ENABLE_MPS is 1, but no GPU is used: there is nothing for MPS to share"
    assert (line in planned.warnings) == said


def test_every_problem_is_told_at_once(root: Path, taken: int) -> None:
    """Paths, machine, ports, run folder and libraries are all looked at before the answer."""
    broken = saved_model(root / "broken/1")
    (broken / "variables/variables.index").unlink()
    (root / "pool.yaml").write_text(
        f"""
        grpc_port: {taken}
        run_dir: pool.yaml
        weights: {{backing: file, folder: nowhere}}
        models:
          gone: nowhere
          broken: {{base_path: broken, custom_ops: ops.so, quorum: 99}}
        """
    )
    config = load_config(root / "pool.yaml", {"rest_port": 0, "gpus": "none", "cpusets": "8000"}, {})
    with pytest.raises(StartError) as caught:
        resolve(config, os.environ)
    assert sorted(problem.path for problem in caught.value.problems) == [
        "cpusets",
        "grpc_port",
        "models.broken.base_path",
        "models.broken.custom_ops",
        "models.broken.quorum",
        "models.gone.base_path",
        "run_dir",
        "weights.folder",
    ]


def test_the_private_mode_is_kept(root: Path) -> None:
    """The check leaves the folder's mode alone."""
    (root / "run").mkdir(mode=0o755)
    before = stat.S_IMODE((root / "run").stat().st_mode)
    run_dir(root / "run")
    assert stat.S_IMODE((root / "run").stat().st_mode) == before


@pytest.mark.parametrize(
    ("policy", "label", "said"),
    [
        ("latest", 1, ["a: version_labels has it stand for version 1, which goes when newer ones come"]),
        ([1], 1, []),
        ("all", 1, []),
        ("all", 2, ["a: version_labels has it stand for version 2, which is not in "]),
    ],
)
def test_a_label_for_a_version_that_goes_is_warned_of(
    policy: object, label: int, said: list[str], tmp_path: Path
) -> None:
    """Before a newer one comes, whose clients would be the first to know."""
    saved_model(tmp_path / "a" / "1")
    file = tmp_path / "pool.yaml"
    model = {"name": "a", "base_path": str(tmp_path / "a"), "version_policy": policy}
    file.write_bytes(msgspec.yaml.encode({"models": [{**model, "version_labels": {"it": label}}]}))
    told = stray_labels(load_config(file, {}, {}))
    assert [line[: len(text)] for line, text in zip(told, said, strict=True)] == said


@pytest.mark.parametrize(
    ("policy", "wait_s", "said"),
    [
        (
            [1, 7, 9],
            1,
            [f"version {number}, which is not in {{}}: it is served once it is there" for number in (7, 9)],
        ),
        ([1, 9], 0, ["version 9, which is not in {}"]),
        ([1], 1, []),
        ([9], 1, []),  # which is an error
        ("all", 1, []),
        ({"latest": 2}, 1, []),
    ],
)
def test_a_named_version_that_is_not_there_is_warned_of(
    policy: object, wait_s: int, said: list[str], tmp_path: Path
) -> None:
    """Beside one that is: clients that ask for it would be the first to know."""
    saved_model(tmp_path / "a" / "1")
    file = tmp_path / "pool.yaml"
    model = {"name": "a", "base_path": str(tmp_path / "a"), "version_policy": policy}
    file.write_bytes(msgspec.yaml.encode({"models": [model], "file_system_poll_wait_seconds": wait_s}))
    told = absent_versions(load_config(file, {}, {}))
    assert told == [f"a: version_policy names {text.format(tmp_path / 'a')}" for text in said]


def test_a_start_warns_of_a_named_version_that_is_not_there(root: Path) -> None:
    """In the plan, as of all that is to be known before."""
    saved_model(root / "a" / "1")
    (root / "pool.yaml").write_text("models: {a: {base_path: a, version_policy: [1, 9]}}")
    flags = {"grpc_port": 0, "rest_port": 0, "gpus": "none", "run_dir": root / "run"}
    _, planned = resolve(load_config(root / "pool.yaml", flags, {}), os.environ)
    assert [text for text in planned.warnings if "version_policy names version 9" in text]


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("latest", []),
        (3, []),
        ([2, 3], ["a: version 2 comes after it, with as many slots"]),
        ("all", ["a: versions 1, 2 come after it, each with as many slots"]),
    ],
)
def test_the_plan_has_every_version_that_is_meant(policy: object, said: list[str], root: Path) -> None:
    """Its slots are those of the newest: the others have as many, which is told."""
    for number in "123":
        saved_model(root / "a" / number)
    model = {"name": "a", "base_path": str(root / "a"), "version_policy": policy}
    (root / "pool.yaml").write_bytes(msgspec.yaml.encode({"models": [model]}))
    flags = {"grpc_port": 0, "rest_port": 0, "gpus": "none", "run_dir": root / "run"}
    _, planned = resolve(load_config(root / "pool.yaml", flags, {}), os.environ)
    assert [fact for fact in planned.facts if "after it" in fact] == said
