"""Pools that are started by TensorFlow Serving's command line, and by DeepRec's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from mpspool.core import tfs
from tests.certificates import Authority, ssl_config
from tests.conftest import PoolStarter, short_dir
from tests.light import LIGHT, write_model
from tests.polling import until
from tests.pool import CLI, ROOT, ModelServer, Pool, cli, processes_of
from tests.reloading import ask, refused, reload
from tests.serving_files import MODEL_CONFIG, PLATFORM_CONFIG, eas_service

# Of the page on session groups.
ENVIRONMENT = {
    "ENABLE_MPS": "1",
    "CONTEXTS_COUNT_PER_GPU": "4",
    "MERGE_COMPUTE_COPY_STREAM": "1",
    "PER_SESSION_HOSTALLOC": "1",
}
STAND_INS = ("--simulate_gpus=4", "--simulate_cpus=32")


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A folder with the two models and the two files of that page."""
    for name in ("pb1", "pb2"):
        write_model(tmp_path / name)
    (tmp_path / "model_config_file").write_text(MODEL_CONFIG.format(root=tmp_path))
    (tmp_path / "platform_config_file").write_text(PLATFORM_CONFIG)
    return tmp_path


def serve(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """A start that ends by itself."""
    return cli("tensorflow_model_server", *arguments, env={**os.environ, **environ})


def slots(pool: Pool) -> dict[str, list[str]]:
    """By model, the devices of its workers."""
    found: dict[str, list[str]] = {}
    for worker in sorted(pool.workers()):
        model, _, place = worker.partition("@")
        found.setdefault(model, []).append(place.split(".")[1])
    return found


def test_one_model_on_both_ports(start_pool: PoolStarter, model_dir: Callable[[str], Path]) -> None:
    """As it is started with TensorFlow Serving: gRPC and REST answer under the name given."""
    base = model_dir("half_plus_two")
    pool = start_pool(
        "--model_name=half",
        f"--model_base_path={base}",
        "--cpu_slots=1",
        "--enable_profiler",
        "--enable_serialization_as_tensor_content",
        "--enable_signature_method_name_check",
        kind=ModelServer,
    ).wait()
    request = tfs.PredictRequest()
    request.model_spec.name = "half"
    request.inputs["x"].CopyFrom(tfs.TensorProto(dtype=1, tensor_shape={"dim": [{"size": 1}]}, float_val=[1]))
    with grpc.insecure_channel(pool.address) as channel:
        service = f"/{tfs.PREDICTION_SERVICE}"
        answer = channel.unary_unary(f"{service}/Predict")(request.SerializeToString(), timeout=30)
        assert tfs.PredictResponse.FromString(answer).outputs["y"].tensor_content == struct.pack("<f", 2.5)
        examples = tfs.ClassificationRequest(input={"example_list": {"examples": [{}]}})
        examples.model_spec.name = "half"
        with pytest.raises(grpc.RpcError, match="method_name to be tensorflow/serving/classify"):
            channel.unary_unary(f"{service}/Classify")(examples.SerializeToString(), timeout=30)
    url = f"http://127.0.0.1:{pool.rest_port}/v1/models/half:predict"
    request = urllib.request.Request(url, json.dumps({"instances": [1, 2]}).encode())
    with urllib.request.urlopen(request, timeout=30) as response:
        assert json.load(response) == {"predictions": [2.5, 3.0]}
    assert "note: --enable_profiler=true: there is no profiler service" in pool.output.read_text()
    assert pool.stop() == 0


def test_a_unix_socket_in_place_of_the_port(tmp_path: Path, start_pool: PoolStarter) -> None:
    """Clients reach gRPC there alone; a socket that was left there is no obstacle, one that is in use is."""
    base, path = write_model(tmp_path / "m"), tmp_path / "s"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    pool = start_pool(
        f"--model_base_path={base}",
        f"--grpc_socket_path={path}",
        "--cpu_slots=1",
        kind=SocketServer,
        env=LIGHT,
    ).wait()
    request = tfs.PredictRequest()
    request.model_spec.name = "default"
    request.inputs["x"].dtype = 1
    request.inputs["x"].tensor_shape.dim.add(size=1)
    request.inputs["x"].float_val.append(2.0)
    with grpc.insecure_channel(f"unix:{path}") as channel:
        answer = channel.unary_unary(f"/{tfs.PREDICTION_SERVICE}/Predict")(
            request.SerializeToString(), timeout=30
        )
    assert tfs.PredictResponse.FromString(answer).outputs["y"].tensor_shape.dim[0].size == 1
    taken = serve(
        "--port=0", f"--grpc_socket_path={path}", f"--model_base_path={base}", f"--run_dir={tmp_path}/run"
    )
    assert f"grpc_socket_path: another server listens on {path}" in taken.stderr
    assert pool.stop() == 0
    assert not path.exists()


def test_an_ssl_config_file_secures_the_port(tmp_path: Path, start_pool: PoolStarter) -> None:
    """Named as it is there, from the working folder: a client with a certificate is answered, in clear text nobody is."""
    ca = Authority(tmp_path)
    pair = ca.issue("server")
    file = tmp_path / "ssl.cfg"
    file.write_text(ssl_config(pair, ca.pem(), verify=True))
    base = write_model(tmp_path / "m")
    pool = start_pool(
        f"--model_base_path={base}",
        f"--ssl_config_file={os.path.relpath(file, ROOT)}",
        "--cpu_slots=1",
        kind=ModelServer,
        env=LIGHT,
    ).wait()
    request = tfs.GetModelStatusRequest()
    request.model_spec.name = "default"
    method = f"/{tfs.MODEL_SERVICE}/GetModelStatus"
    key, cert = ca.issue("client").pem()
    with grpc.secure_channel(pool.address, grpc.ssl_channel_credentials(ca.pem(), key, cert)) as channel:
        answer = channel.unary_unary(method)(request.SerializeToString(), timeout=30)
    (version,) = tfs.GetModelStatusResponse.FromString(answer).model_version_status
    assert version.state == 30
    with grpc.insecure_channel(pool.address) as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary(method)(request.SerializeToString(), timeout=5)


class SocketServer(ModelServer):
    """One whose gRPC port is off."""

    def _command(self) -> list[str]:
        return [*super()._command(), "--port=0"]


def test_several_models_of_the_page(start_pool: PoolStarter, pages: Path) -> None:
    """Its first start command, on stand-ins: each model has its GPUs, its sessions on each of them, and its cpusets."""
    pool = start_pool(
        "--use_session_group=true",
        f"--model_config_file={pages}/model_config_file",
        f"--platform_config_file={pages}/platform_config_file",
        *STAND_INS,
        kind=ModelServer,
        env={**LIGHT, **ENVIRONMENT},
    ).wait()
    assert slots(pool) == {
        "pb1": ["gpu0", "gpu0", "gpu1", "gpu1"],
        "pb2": ["gpu2", "gpu2", "gpu3", "gpu3"],
    }
    said = pool.output.read_text()
    assert "pb1@1: 2 slots on gpu0, 2 slots on gpu1, CPUs 1-2 | 5-6" in said
    assert "pb2@1: 2 slots on gpu2, 2 slots on gpu3, CPUs 20-21 | 23-24 | 26-27 | 29-30" in said
    assert "warning: models.pb1.cpusets: 2 sets for 4 slots of pb1: shared in turn" in said
    assert "MPS simulated: a control daemon each for gpu0, gpu1, gpu2, gpu3" in said


def test_two_gpus_for_files_that_name_four(pages: Path) -> None:
    """The page's second start command: what is not visible is an error."""
    done = serve(
        "--use_session_group=true",
        f"--model_config_file={pages}/model_config_file",
        f"--platform_config_file={pages}/platform_config_file",
        f"--run_dir={pages}/run",
        *STAND_INS,
        CUDA_VISIBLE_DEVICES="1,3",
        ENABLE_MPS="1",
    )
    assert done.returncode == 2
    assert (
        f"models.pb2.gpus: in {pages}/platform_config_file line 22: GPU 2,3 is not visible; visible are 0"
        in done.stderr
    )
    assert "nothing was started" in done.stderr


@pytest.mark.parametrize(
    ("flags", "environ", "there"),
    [
        (["--simulate_cpus=16"], {}, ["cpu0"] * 4),
        (["--simulate_cpus=16"], {"SESSION_GROUP_CPUSET": "2-4;5-7;8-10;11-13"}, ["cpu0"] * 4),
        (["--simulate_gpus=2", "--simulate_cpus=16"], ENVIRONMENT, ["gpu0"] * 4 + ["gpu1"] * 4),
        (
            ["--simulate_gpus=3", "--gpu_ids_list=0,2", "--simulate_cpus=16"],
            ENVIRONMENT,
            ["gpu0"] * 4 + ["gpu2"] * 4,
        ),
    ],
)
def test_one_model_of_the_page(
    start_pool: PoolStarter, tmp_path: Path, flags: list[str], environ: dict[str, str], there: list[str]
) -> None:
    """Four sessions: on the CPU, or on each of the GPUs that are there, or named."""
    base = write_model(tmp_path / "pb")
    pool = start_pool(
        "--tensorflow_intra_op_parallelism=8",
        "--tensorflow_inter_op_parallelism=8",
        "--use_per_session_threads=true",
        "--session_num_per_group=4",
        "--allow_gpu_mem_growth=true",
        f"--model_base_path={base}",
        *flags,
        kind=ModelServer,
        env={**LIGHT, **environ},
    ).wait()
    assert slots(pool) == {"default": there}
    if "SESSION_GROUP_CPUSET" in environ:
        assert "CPUs 2-4 | 5-7 | 8-10 | 11-13" in pool.output.read_text()


def test_an_eas_service_is_converted_and_started(start_pool: PoolStarter, pages: Path) -> None:
    """The page's last file: its sessions and cpusets, on the CPU."""
    (pages / "service.json").write_text(eas_service(pages))
    done = cli("convert", pages / "service.json")
    assert done.returncode == 0, done.stderr
    assert "checkpoint_dir: checkpoints are not followed" in done.stderr
    (pages / "pool.yaml").write_text(done.stdout)
    pool = start_pool(pages / "pool.yaml", "--simulate-cpus", 32, env=LIGHT).wait()
    assert slots(pool) == {"model1": ["cpu0"] * 2, "model2": ["cpu0"] * 4}
    assert "CPUs 7-9 | 10-12 | 13-15 | 16-18" in pool.output.read_text()


def test_what_convert_prints_can_start(tmp_path: Path, model_dir: Callable[[str], Path]) -> None:
    """All of a team's files, as `mpspool start --check` has it, models read."""
    for name in ("pb1", "pb2"):
        (tmp_path / name).symlink_to(model_dir("half_plus_two"))
    texts = {
        "models": MODEL_CONFIG.format(root=tmp_path),
        "platform": PLATFORM_CONFIG,
        "batching": "max_batch_size { value: 32 }",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    done = cli("convert", *(tmp_path / name for name in texts))
    assert done.returncode == 0, done.stderr
    (tmp_path / "pool.yaml").write_text(done.stdout)
    stand_ins = ("--simulate-gpus", 4, "--simulate-cpus", 32)
    with short_dir() as folder:
        checked = cli("start", tmp_path / "pool.yaml", "--check", "--run-dir", folder / "run", *stand_ins)
    assert checked.returncode == 0, checked.stderr
    assert "nothing was started" in checked.stdout


class Listed:
    """A model_config_file that somebody edits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "models.config"

    def write(self, *names: str, more: str = "") -> None:
        for name in names:
            if not (self.folder / name).exists():
                write_model(self.folder / name)
        models = [
            f'config {{ name: "{name}" base_path: "{self.folder / name}" model_platform: "tensorflow" {more} }}'
            for name in names
        ]
        self.path.write_text(f"model_config_list {{ {' '.join(models)} }}")

    def start(self, start_pool: PoolStarter, *flags: str) -> Pool:
        ours = ("--cpu_slots=1", "--cpusets=none", "--tensorflow_session_parallelism=1")
        return start_pool(
            f"--model_config_file={self.path}", *ours, *flags, kind=ModelServer, env=LIGHT
        ).wait()


def models(pool: Pool) -> list[str]:
    """That have workers which are READY."""
    return [model for model in slots(pool) if pool.all_ready()]


def test_a_model_config_file_is_looked_at(start_pool: PoolStarter, tmp_path: Path) -> None:
    """What it has more is loaded, what it has no more goes; what is wrong with it is logged, and changes nothing."""
    listed = Listed(tmp_path)
    listed.write("a", "b")
    pool = listed.start(start_pool, "--model_config_file_poll_wait_seconds=1")
    before = pool.workers()
    assert models(pool) == ["a", "b"]
    listed.write("a", "c")
    until(lambda: models(pool) == ["a", "c"], 60, "c has come and b has gone")
    assert pool.workers()["a@1.cpu0.0"]["pid"] == before["a@1.cpu0.0"]["pid"]
    assert f"reload: {listed.path} has changed" in pool.output.read_text()
    listed.path.write_text("model_config_list { config { nam: 'x' } }")
    until(lambda: "reload: refused" in pool.output.read_text(), 60, "it is refused")
    assert "unknown field nam of ModelConfig; did you mean name?" in pool.output.read_text()
    assert models(pool) == ["a", "c"]
    listed.write("c")
    until(lambda: models(pool) == ["c"], 60, "a has gone")


def test_a_change_whose_reload_is_killed_is_taken_up_later(start_pool: PoolStarter, tmp_path: Path) -> None:
    """Kill -9 of the process that reads the file again: nobody has to edit it once more."""
    listed = Listed(tmp_path)
    listed.write("a")
    pool = listed.start(start_pool, "--model_config_file_poll_wait_seconds=1")
    listed.write("a", "b")
    os.kill(until(lambda: reloading(pool), 20, "it is read again"), signal.SIGKILL)
    until(lambda: "reload: failed" in pool.output.read_text(), 20, "it has failed")
    assert models(pool) == ["a"]
    until(lambda: models(pool) == ["a", "b"], 60, "b has come")
    assert f"reload: {listed.path} is tried again" in pool.output.read_text()


def reloading(pool: Pool) -> int:
    """What the pool runs to read its configuration again; 0 for nothing."""
    commands = processes_of(pool.run_dir)
    return next((pid for pid, command in commands.items() if " -m mpspool reload " in command), 0)


class Waiting(ModelServer):
    """One that is there as soon as it waits for a version."""

    def _answers(self) -> bool:
        return "waiting for a version of " in self.output.read_text()


def test_first_versions_are_waited_for(start_pool: PoolStarter, tmp_path: Path) -> None:
    """As there, before it listens: of a base path that is not there, of one without a version that may be served, and of one
    whose version is on its way.
    """
    listed = Listed(tmp_path)
    listed.write("a", "b", "c", more="model_version_policy { specific { versions: 1 } }")
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "b" / "1").rename(tmp_path / "b" / "2")
    (tmp_path / "c" / "1" / "saved_model.pb").rename(tmp_path / "saved_model.pb")
    pool = start_pool(f"--model_config_file={listed.path}", "--cpu_slots=1", kind=Waiting, env=LIGHT)
    until(lambda: "waiting for a version of c:" in pool.output.read_text())
    output = pool.output.read_text()
    assert f"waiting for a version of a: no such path: {tmp_path}/a" in output
    assert f"{tmp_path}/b has no version 1" in output
    assert f"{tmp_path}/c/1 is not a SavedModel" in output
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", pool.grpc_port))
    (tmp_path / "b" / "2").rename(tmp_path / "b" / "1")
    (tmp_path / "saved_model.pb").rename(tmp_path / "c" / "1" / "saved_model.pb")
    write_model(tmp_path / "a")
    pool.wait()
    assert models(pool) == ["a", "b", "c"]
    assert pool.stop() == 0


def test_a_server_that_waits_can_be_ended(start_pool: PoolStarter, tmp_path: Path) -> None:
    """By SIGTERM, as one that serves; where base paths are looked at once alone it does not wait."""
    base = f"--model_base_path={tmp_path}/m"
    pool = start_pool(base, kind=Waiting)
    assert pool.stop() == 0
    once = serve(base, "--file_system_poll_wait_seconds=0", f"--run_dir={tmp_path}/run")
    assert once.returncode == 2
    assert f"no such path: {tmp_path}/m" in once.stderr


def test_a_file_that_lists_no_model(start_pool: PoolStarter, tmp_path: Path) -> None:
    """Nothing is served until it lists one, or a client says which. One that is empty may be half written, and takes nothing out."""
    listed = Listed(tmp_path)
    listed.path.touch()
    pool = listed.start(start_pool)
    assert "lists no model: none is served until it does" in pool.output.read_text()
    assert models(pool) == []
    write_model(tmp_path / "b")
    ask(pool, {"b": str(tmp_path / "b")})
    assert models(pool) == ["b"]
    listed.write("a")
    assert "a  is added" in reload(pool)
    assert models(pool) == ["a"]
    listed.path.write_text("")
    assert "is empty, as a file is while it is written" in refused(pool)
    assert models(pool) == ["a"]
    listed.write()
    assert "a  is taken out" in reload(pool)
    assert models(pool) == []
    assert pool.stop() == 0


def test_reload_reads_the_same_files_again(start_pool: PoolStarter, tmp_path: Path) -> None:
    """By the command and by SIGHUP, with the flags of then; a file that is wrong is refused."""
    listed = Listed(tmp_path)
    listed.write("a")
    pool = listed.start(start_pool)
    listed.write("a", "b")
    assert "b  is added" in reload(pool)
    assert models(pool) == ["a", "b"]
    listed.write("b")
    os.kill(pool.pid, signal.SIGHUP)
    until(lambda: models(pool) == ["b"], 60, "a has gone")
    listed.path.unlink()
    assert f"--model_config_file: {listed.path} cannot be read: No such file or directory" in refused(pool)


def test_a_client_may_say_which_models_are_served(start_pool: PoolStarter, tmp_path: Path) -> None:
    """HandleReloadConfigRequest, as ever. A label that nobody uses may go to a version that is not there only by the flag."""
    listed = Listed(tmp_path)
    listed.write("a")
    write_model(tmp_path / "b")
    pool = listed.start(start_pool, "--allow_version_labels_for_unavailable_models")
    ask(pool, {"b": str(tmp_path / "b")}, labels={"stable": 1})
    assert models(pool) == ["b"]
    with pytest.raises(grpc.RpcError, match="Request to assign label to version 2 of model b"):
        ask(pool, {"b": str(tmp_path / "b")}, labels={"stable": 2})


def test_a_label_needs_its_version_without_the_flag(start_pool: PoolStarter, tmp_path: Path) -> None:
    """FAILED_PRECONDITION, as there."""
    listed = Listed(tmp_path)
    listed.write("a")
    write_model(tmp_path / "b")
    pool = listed.start(start_pool)
    with pytest.raises(grpc.RpcError, match="Request to assign label to version 1 of model b"):
        ask(pool, {"b": str(tmp_path / "b")}, labels={"stable": 1})


def test_every_problem_is_said_and_nothing_starts(tmp_path: Path) -> None:
    """Of flags at once, else of files, models and the machine."""
    flags = serve("--prot=1", "--noenable_batching")
    assert flags.returncode == 2
    assert "error: --prot: unknown flag; did you mean --port=1?" in flags.stderr
    assert "error: --noenable_batching: unknown flag; write --enable_batching=false" in flags.stderr
    (tmp_path / "models").write_text('model_config_list { config { name: "a" base_path: "/gone" } }')
    files = serve(
        f"--model_config_file={tmp_path}/models",
        "--monitoring_config_file=/gone",
        f"--run_dir={tmp_path}/run",
    )
    assert files.returncode == 2
    assert "error: --monitoring_config_file: /gone cannot be read" in files.stderr
    assert "neither model_platform nor model_type is given" in files.stderr
    assert "models.a.base_path: in " in files.stderr


def test_the_command_is_installed() -> None:
    """Under TensorFlow Serving's name, where it says its versions, and TensorFlow's."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["tensorflow_model_server"].partition(":")
    code = f"import {module}; {module}.{function}()"
    for command in ([sys.executable, "-c", code], [*CLI, "tensorflow_model_server"]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, cwd=ROOT, check=True)
        assert done.stdout.startswith("TensorFlow ModelServer: mpspool ")
        assert "\nTensorFlow Library: 2." in done.stdout
        done = subprocess.run([*command, "--help"], capture_output=True, text=True, cwd=ROOT, check=True)
        assert "--model_base_path=" in done.stdout


def test_its_messages_are_in_tensorflow_servings_packages() -> None:
    """So that the types which files name are found."""
    assert tfs.SavedModelBundleV2SourceAdapterConfig.DESCRIPTOR.full_name.startswith("tensorflow.serving.")
