"""deploy/: the manifests against Kubernetes' schemas and against the product, the entry point as a pod's PID 1."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import kubernetes_validate
import pytest
import yaml

from mpspool.core import process
from mpspool.core.errors import StartError
from mpspool.core.rundir import MAX_SOCKET_PATH_BYTES, RunDir
from mpspool.mps import simulated
from mpspool.mps.control import Control
from mpspool.supervisor import foreground, grace
from mpspool.supervisor.config import schema
from mpspool.supervisor.planning import preflight
from tests.configuration import load_config
from tests.conftest import short_dir
from tests.polling import until
from tests.pool import ROOT, START_TIMEOUT_S, cli, free_port

DEPLOY = ROOT / "deploy"
MANIFESTS = ["pod.yaml", "host-mps.yaml"]
# The oldest and the newest that are checked.
KUBERNETES = ["1.32", "1.37"]
ENDPOINTS = {"/healthz", "/readyz"}

Object = dict[str, Any]


# -- what the files say -----------------------------------------------------------------------------------


def objects(manifest: str) -> list[Object]:
    return list(yaml.safe_load_all((DEPLOY / manifest).read_text(encoding="utf-8")))


def of_kind(manifest: str, kind: str) -> Object:
    (found,) = [item for item in objects(manifest) if item["kind"] == kind]
    return found


def pod_specs(manifest: str) -> list[Object]:
    return [
        item["spec"]["template"]["spec"] for item in objects(manifest) if "template" in item.get("spec", {})
    ]


def pod_spec(manifest: str) -> Object:
    """Of the pods that serve."""
    spec: Object = of_kind(manifest, "Deployment")["spec"]["template"]["spec"]
    return spec


def container(manifest: str) -> Object:
    (found,) = pod_spec(manifest)["containers"]
    return dict(found)


def pool_file(manifest: str) -> str:
    return str(of_kind(manifest, "ConfigMap")["data"]["pool.yaml"])


def asked(manifest: str) -> Object:
    return dict(yaml.safe_load(pool_file(manifest)))


def mounts(manifest: str) -> dict[str, Object]:
    """By mount path, the volume that is there."""
    volumes = {volume["name"]: volume for volume in pod_spec(manifest)["volumes"]}
    return {mount["mountPath"]: volumes[mount["name"]] for mount in container(manifest)["volumeMounts"]}


def dockerfile() -> list[tuple[str, str]]:
    """Its instructions and what follows them, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


def final_stage() -> list[tuple[str, str]]:
    instructions = dockerfile()
    start = max(number for number, (name, _) in enumerate(instructions) if name == "FROM")
    return instructions[start:]


def said(instruction: str) -> str:
    """The one such instruction of the final stage."""
    (found,) = [rest for name, rest in final_stage() if name == instruction]
    return found


def image_environment() -> dict[str, str]:
    words = [word for name, rest in final_stage() if name == "ENV" for word in shlex.split(rest)]
    return dict(word.split("=", 1) for word in words)


# -- the files against schemas, and against each other ----------------------------------------------------


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("manifest", MANIFESTS)
def test_manifests_are_what_kubernetes_takes(manifest: str, version: str) -> None:
    """Every object has the fields of its kind, and no others, in the oldest and the newest Kubernetes looked at."""
    for item in objects(manifest):
        assert kubernetes_validate.validate(item, version, strict=True) == version


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    """What checks the manifests does check them."""
    item = of_kind("pod.yaml", "Deployment")
    item["spec"]["template"]["spec"]["terminationGracePeriod"] = 60
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(item, KUBERNETES[-1], strict=True)


def test_dockerfile_passes_hadolint() -> None:
    """hadolint, which looks into the shell lines as well, finds nothing, and nothing is waved through."""
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [hadolint, DEPLOY / "Dockerfile"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    assert "hadolint ignore" not in (DEPLOY / "Dockerfile").read_text(encoding="utf-8")


def test_the_image_starts_the_pool_itself() -> None:
    """No shell is PID 1; the file that it reads is the ConfigMap's; the final stage installs no packages."""
    assert json.loads(said("ENTRYPOINT")) == ["mpspool", "start"]
    (file,) = json.loads(said("CMD"))
    for manifest in MANIFESTS:
        assert container(manifest)["args"] == [file]
        assert (
            mounts(manifest)[str(Path(file).parent)]["configMap"]["name"]
            == (of_kind(manifest, "ConfigMap")["metadata"]["name"])
        )
    assert not [rest for name, rest in final_stage() if name == "RUN" and re.search(r"\b(apt|pip)\b", rest)]


def test_the_build_gets_the_files_it_copies() -> None:
    """.dockerignore lets through what the Dockerfile copies, which is there."""
    let_through = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        source
        for name, rest in dockerfile()
        if name == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert copied == let_through
    assert all((ROOT / name).exists() for name in copied)


def test_everything_runs_as_one_user() -> None:
    """Image and pods name the same user, by number; only what makes the host's folders is root."""
    user, _, group = said("USER").partition(":")
    created = " ".join(rest for name, rest in final_stage() if name == "RUN")
    assert f"--uid {user} --gid {group}" in created
    for manifest in MANIFESTS:
        for spec in pod_specs(manifest):
            context = spec["securityContext"]
            assert (context["runAsUser"], context["runAsGroup"]) == (int(user), int(group))
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            for item in [*spec.get("initContainers", []), *spec["containers"]]:
                own = item["securityContext"]
                assert own["allowPrivilegeEscalation"] is False
                assert own["readOnlyRootFilesystem"] is True
                assert own["capabilities"]["drop"] == ["ALL"]
                assert own.get("runAsNonRoot", context.get("runAsNonRoot")) or own["runAsUser"] == 0
    made = pod_specs("host-mps.yaml")[0]["initContainers"][0]["command"]
    assert {f"--owner={user}", f"--group={group}"} <= set(made)


def test_a_pod_of_its_own_shares_no_namespace() -> None:
    """pod.yaml keeps to itself; in host-mps.yaml daemon and clients share what they have to."""
    (own,) = pod_specs("pod.yaml")
    assert not {"hostIPC", "hostPID", "hostNetwork"} & set(own)
    assert not [volume for volume in own["volumes"] if "hostPath" in volume]
    assert mounts("pod.yaml")["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    for spec in pod_specs("host-mps.yaml"):
        assert (spec["hostIPC"], spec["hostPID"]) == (True, True)


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_one_set_of_ports(manifest: str) -> None:
    """pool.yaml, container, probes, Service, annotation and image mean the same ports."""
    wanted = {"grpc": asked(manifest)["grpc_port"], "http": asked(manifest)["rest_port"]}
    assert {port["name"]: port["containerPort"] for port in container(manifest)["ports"]} == wanted
    service = of_kind(manifest, "Service")["spec"]
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == wanted
    deployment = of_kind(manifest, "Deployment")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert service["selector"] == deployment["selector"]["matchLabels"] == labels
    annotations = deployment["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(wanted["http"])
    assert said("EXPOSE").split() == [str(port) for port in wanted.values()]
    for name, path in {"startup": "/readyz", "liveness": "/healthz", "readiness": "/readyz"}.items():
        assert container(manifest)[f"{name}Probe"]["httpGet"] == {"path": path, "port": "http"}
    assert asked(manifest)["host"] == "0.0.0.0"


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_time_to_end_and_to_start(manifest: str) -> None:
    """SIGKILL comes after the slowest orderly end, and no probe ends a pod that is still loading."""
    spec, item = pod_spec(manifest), container(manifest)
    command, seconds = item["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    # The bounds of an ending that has used up its grace time.
    overtime_s = foreground._MPS_SHUTDOWN_S[0] + foreground._MPS_LEFT_S[0] + foreground._KILLED_S
    grace_s = asked(manifest)["grace_s"]
    assert spec["terminationGracePeriodSeconds"] > int(seconds) + grace_s + overtime_s
    assert grace.drain_s(grace.pool_s(grace_s, mps=True)) >= grace_s / 2, (
        "most of it is for what is in flight"
    )

    probe = item["startupProbe"]
    patience_s = probe["periodSeconds"] * probe["failureThreshold"]
    assert patience_s >= 2 * schema.ModelConfig.model_fields["start_timeout_s"].default
    assert of_kind(manifest, "Deployment")["spec"]["progressDeadlineSeconds"] > patience_s


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_run_folder_is_ours_inside_a_volume_in_memory(manifest: str) -> None:
    """An emptyDir is root's and open to all, so the run folder is one in it, with room for its sockets' names."""
    run = Path(image_environment()["MPSPOOL_RUN_DIR"])
    assert mounts(manifest)[str(run.parent)]["emptyDir"]["medium"] == "Memory"
    assert RunDir(run).longest_socket_bytes() <= MAX_SOCKET_PATH_BYTES
    assert "emptyDir" in mounts(manifest)[image_environment()["HOME"]]


def test_daemon_and_pods_meet_in_one_folder() -> None:
    """What the pods of host-mps.yaml join is where its daemon listens, on the node and in both containers."""
    pipe = asked("host-mps.yaml")["mps"]["pipe_directory"]
    daemon = pod_specs("host-mps.yaml")[0]
    (item,) = daemon["containers"]
    environment = {variable["name"]: variable["value"] for variable in item["env"]}
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] == pipe
    assert {pipe, environment["CUDA_MPS_LOG_DIRECTORY"]} <= set(daemon["initContainers"][0]["command"])
    (host,) = [volume["hostPath"]["path"] for volume in daemon["volumes"] if "hostPath" in volume]
    assert mounts("host-mps.yaml")[str(Path(pipe).parent)]["hostPath"]["path"] == host


@contextlib.contextmanager
def nodes_daemon() -> Iterator[Path]:
    """A stand-in for a daemon that is not the pool's, and its pipe folder."""
    with short_dir() as folder:
        pipe = folder / "pipe"
        environ = {
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
        }
        daemon = subprocess.Popen([*simulated.control_command(), "-f"], env=environ, stdin=subprocess.DEVNULL)
        try:
            control = Control(simulated.control_command(), environ)
            until((pipe / "control").is_socket, 20, "the daemon listens")
            assert control.server_list() == []
            yield pipe
        finally:
            daemon.kill()
            daemon.wait(20)


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_the_pool_file_is_one(manifest: str, tmp_path: Path, model_dir: Callable[[str], Path]) -> None:
    """The ConfigMap's pool.yaml is read and planned on stand-ins for what the pod asks for, with the one known warning."""
    limits = container(manifest)["resources"]["limits"]
    file = tmp_path / "pool.yaml"
    file.write_text(pool_file(manifest))
    environ = {
        "MPSPOOL_SIMULATE_GPUS": str(limits["nvidia.com/gpu"]),
        "MPSPOOL_SIMULATE_CPUS": limits["cpu"],
        "MPSPOOL_MODEL": f"half_plus_two={model_dir('half_plus_two')}",
        "MPSPOOL_GRPC_PORT": str(free_port()),
        "MPSPOOL_REST_PORT": str(free_port()),
    }
    try:
        with nodes_daemon() as pipe, short_dir() as folder:
            environ["MPSPOOL_RUN_DIR"] = str(folder / "run")
            if manifest == "host-mps.yaml":
                environ["MPSPOOL_MPS_PIPE_DIRECTORY"] = str(pipe)
            config = load_config(file, {}, environ)
            settings, planned = preflight.resolve(config, environ)
    except StartError as error:
        pytest.fail(f"{error}: {[str(problem) for problem in error.problems]}")
    assert [text for text in planned.warnings if "0.0.0.0" not in text] == []
    (model,) = settings.models
    assert len(model.slots) == asked(manifest)["contexts_per_gpu"]
    assert all(slot.mps_pipe for slot in model.slots)
    assert config.grace_s == asked(manifest)["grace_s"]


# In an IPC namespace of its own, with a /dev/shm of its own: a pod of host-mps.yaml that lacks hostIPC.
_WITHOUT_HOST_IPC = [
    "unshare",
    "--ipc",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs none /dev/shm && exec "$@"',
    "sh",
]


def test_a_pod_without_hostipc_is_told_so(model_dir: Callable[[str], Path]) -> None:
    """Its workers could never be clients of the node's daemon: start refuses, and the doctor says what a pod needs."""
    if subprocess.run([*_WITHOUT_HOST_IPC, "true"], check=False).returncode:
        pytest.skip("no IPC namespace of our own")
    with nodes_daemon() as pipe, short_dir() as folder:
        environ = {
            **os.environ,
            "MPSPOOL_SIMULATE_GPUS": "1",
            "MPSPOOL_MODEL": f"half_plus_two={model_dir('half_plus_two')}",
            "MPSPOOL_GRPC_PORT": "0",
            "MPSPOOL_REST_PORT": "0",
            "MPSPOOL_MPS_MODE": "external",
            "MPSPOOL_MPS_PIPE_DIRECTORY": str(pipe),
            "MPSPOOL_RUN_DIR": str(folder / "run"),
            "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        }

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            command = [*_WITHOUT_HOST_IPC, sys.executable, "-P", "-m", "mpspool", *words]
            return subprocess.run(
                command, env=environ, capture_output=True, text=True, timeout=120, check=False
            )

        refused, looked_at = run("start", "--check"), run("doctor", "--json")
    assert (refused.returncode, "hostIPC: true" in refused.stderr) == (2, True), refused.stderr
    found = {check["name"]: check for check in json.loads(looked_at.stdout)["checks"]}
    assert "in another IPC namespace" in found["mps_programs"]["evidence"]
    assert (found["container"]["status"], found["mps_environment"]["status"]) == ("warning", "warning")
    assert "hostIPC: true and hostPID: true" in found["container"]["remedy"]
    assert "not joined" in found["mps_environment"]["evidence"]


def test_models_lie_in_their_volume() -> None:
    """Each model's base_path is below a mount that nobody can write to."""
    for manifest in MANIFESTS:
        read_only = {
            mount["mountPath"] for mount in container(manifest)["volumeMounts"] if mount.get("readOnly")
        }
        for model in asked(manifest)["models"]:
            assert {str(parent) for parent in Path(model["base_path"]).parents} & read_only


# -- the entry point in a pod's surroundings --------------------------------------------------------------

# Builds a container's root in the folder $1, and keeps it until its input ends. Read-only are this machine's programs,
# the folders in $READ_ONLY (Python's, the repository) and what the pod mounts so; writable are its emptyDirs (a path
# and a size each), which as in Kubernetes belong to root, are open to all, and outlive a container.
_BUILD = """
set -eu
root=$1
shift
mount -t tmpfs -o mode=0755 none "$root"
cd "$root"
bind() { mkdir -p ".$1"; mount --rbind "$1" ".$1"; mount -o remount,bind,ro ".$1"; }
# Before what is bound: the sources may lie below one of them, in /tmp.
while [ $# -gt 0 ]; do mkdir -p ".$1"; mount -t tmpfs -o "mode=0777,size=$2" none ".$1"; shift 2; done
for name in bin sbin lib lib32 lib64 libx32; do
    if [ -L "/$name" ]; then cp -P "/$name" .; elif [ -d "/$name" ]; then bind "/$name"; fi
done
for folder in /usr /etc /sys $READ_ONLY; do bind "$folder"; done
mkdir -p proc dev
for name in null zero full random urandom; do touch "dev/$name"; mount --bind "/dev/$name" "dev/$name"; done
ln -s /proc/self/fd dev/fd
mkdir -p ".$CONFIG/..data" models
cp "$POOL_FILE" ".$CONFIG/..data/pool.yaml"
ln -s ..data/pool.yaml ".$CONFIG/pool.yaml"
cp -r "$MODEL" models/half_plus_two
chmod -R a+rX ".$CONFIG" models
mount -o remount,ro none "$root"
echo built
exec cat
"""
# As PID 1: becomes the words after the root.
_START = """
set -eu
root=$1
shift
mount -t proc none "$root/proc"
cd /
exec chroot "$root" "$@"
"""
_AS_ROOT = os.geteuid() == 0
_OWN_PIDS = ["unshare", "--pid", "--mount", "--fork", "--kill-child"]


@dataclass
class Container:
    """`mpspool start` as PID 1.

    Attributes:
        process: outside, of the same exit status.
        init: the pid of PID 1 outside.
    """

    process: subprocess.Popen[bytes]
    init: int
    output: Path

    def says(self, field: str) -> str:
        """A line of PID 1's /proc/PID/status."""
        lines = Path(f"/proc/{self.init}/status").read_text().splitlines()
        return next(line for line in lines if line.startswith(f"{field}:")).partition(":")[2].strip()

    def end(self) -> int:
        """SIGTERM to PID 1, then the exit status."""
        os.kill(self.init, signal.SIGTERM)
        return self.process.wait(60)


class Pod:
    """A pod like the one in pod.yaml, but for ports of its own, stand-ins for its GPU, and seccomp.

    Use it as a context manager.
    """

    def __init__(self, model: Path, folder: Path) -> None:
        self._model = model
        self._folder = folder
        self._root = folder / "root"
        self._user = pod_spec("pod.yaml")["securityContext"]["runAsUser"]
        self._started: list[Container] = []
        self.grpc_port, self.rest_port = free_port(), free_port()
        self.environment = {
            **image_environment(),
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "MPSPOOL_SIMULATE_GPUS": "1",
            "MPSPOOL_GRPC_PORT": str(self.grpc_port),
            "MPSPOOL_REST_PORT": str(self.rest_port),
            **{name: value for name, value in os.environ.items() if name == "MPSPOOL_WORKERS_START"},
        }

    def __enter__(self) -> Self:
        self._root.mkdir()
        (self._folder / "pool.yaml").write_text(pool_file("pod.yaml"))
        empty = {
            path: volume["emptyDir"] for path, volume in mounts("pod.yaml").items() if "emptyDir" in volume
        }
        sizes = [(path, volume["sizeLimit"].removesuffix("i").lower()) for path, volume in empty.items()]
        environment = {
            **os.environ,
            "READ_ONLY": " ".join(dict.fromkeys([sys.base_prefix, sys.prefix, str(ROOT)])),
            "CONFIG": str(Path(container("pod.yaml")["args"][0]).parent),
            "POOL_FILE": str(self._folder / "pool.yaml"),
            "MODEL": str(self._model),
        }
        words = ["sh", "-c", _BUILD, "sh", str(self._root), *(word for pair in sizes for word in pair)]
        self._keeper = subprocess.Popen(
            ["unshare", *([] if _AS_ROOT else ["-Ur"]), "--mount", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        assert self._keeper.stdout is not None
        if (line := self._keeper.stdout.readline()) != b"built\n":
            self._keeper.communicate(timeout=20)
            raise AssertionError(line)
        return self

    def __exit__(self, *_: object) -> None:
        for started in self._started:
            started.process.kill()  # and so PID 1, and all with it
            started.process.wait(20)
        self._keeper.communicate(timeout=20)

    def volume(self, path: str) -> Path:
        """What is at that path in the pod, as it is to be seen from here."""
        return Path(f"/proc/{self._keeper.pid}/root{self._root}{path}")

    def start(self) -> Container:
        """A container; a further one finds the volumes as the one before left them."""
        output = self._folder / f"output{len(self._started)}"
        words = [*json.loads(said("ENTRYPOINT")), *container("pod.yaml")["args"]]
        command = [*_OWN_PIDS, "sh", "-c", _START, "sh", str(self._root), *self._as_the_pod(), *words]
        with output.open("wb") as out:
            unshare = subprocess.Popen(
                [*self._enter(self._keeper.pid), *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        (init,) = until(lambda: process.children(unshare.pid), 10, "PID 1 is started")
        self._started.append(Container(unshare, init, output))
        return self._started[-1]

    def start_and_wait(self) -> Container:
        started = self.start()
        ended = started.process.poll
        until(lambda: ended() is not None or self.get("/readyz") == 200, START_TIMEOUT_S, "ready")
        assert ended() is None, started.output.read_text()
        return started

    def exec(self, init: int, *words: str) -> subprocess.CompletedProcess[str]:
        """As `kubectl exec` does it: a process in a container's namespaces whose parent is outside."""
        enter = [*self._enter(init), "--pid", "--root", "--wd"]
        return subprocess.run(
            [*enter, *self._as_the_pod(), *words], capture_output=True, text=True, timeout=60, check=False
        )

    def _enter(self, pid: int) -> list[str]:
        own_user = [] if _AS_ROOT else ["--user", "--preserve-credentials"]
        return ["nsenter", "--target", str(pid), *own_user, "--mount"]

    def _as_the_pod(self) -> list[str]:
        """Its user, environment and lack of privileges; who is not root here has only one user to be."""
        limits = ["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        if _AS_ROOT:
            limits += [f"--reuid={self._user}", f"--regid={self._user}", "--clear-groups"]
        return [*limits, "env", "-i", *(f"{name}={value}" for name, value in self.environment.items())]

    def get(self, path: str) -> int:
        """The status of a GET; 0 while nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.rest_port}{path}", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except OSError:
            return 0

    def assert_serves(self) -> None:
        address = f"127.0.0.1:{self.grpc_port}"
        done = cli("predict", "half_plus_two", "--input", '{"x": [1, 2, 5]}', "--address", address)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"y": [2.5, 3.0, 4.5]}

    def assert_nothing_left(self) -> None:
        run = self.volume(image_environment()["MPSPOOL_RUN_DIR"])
        assert [path for path in run.rglob("*") if path.is_socket()] == []
        assert list((run / "progress").iterdir()) == []
        assert list(self.volume("/dev/shm").iterdir()) == []


@pytest.fixture
def pod(model_dir: Callable[[str], Path], tmp_path: Path) -> Iterator[Pod]:
    """Skips where no namespaces can be made."""
    try:
        probe = [*_OWN_PIDS, *([] if _AS_ROOT else ["-Ur"]), "--mount-proc", "true"]
        done = subprocess.run(probe, capture_output=True, text=True, timeout=20, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if done.returncode:
        pytest.skip(f"no namespaces of our own: {done.stderr.strip()}")
    with Pod(model_dir("half_plus_two"), tmp_path) as made:
        yield made


def test_pid_1_of_a_pod(pod: Pod) -> None:
    """Serves, reaps what others leave, ends in order: the ConfigMap's own file, the pod's mounts, user and limits."""
    started = pod.start_and_wait()
    assert started.says("NSpid").split()[-1] == "1"
    assert (started.says("CapEff"), started.says("NoNewPrivs")) == ("0" * 16, "1")
    assert all(os.statvfs(pod.volume(path)).f_flag & os.ST_RDONLY for path in ("", "/usr", str(ROOT)))
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert pod.get(container("pod.yaml")[name]["httpGet"]["path"]) == 200
    assert pod.get("/metrics") == 200
    pod.assert_serves()
    status = pod.exec(started.init, "mpspool", "status", "--json")
    assert json.loads(status.stdout)["pool"]["mps"] == "simulated", status.stderr

    leave = "sleep 2 </dev/null >/dev/null 2>&1 &"
    assert pod.exec(started.init, "sh", "-c", leave).returncode == 0
    found = process.children(started.init)
    (orphan,) = [pid for pid in found if process.strings(pid, "cmdline")[0] == b"sleep"]
    until(lambda: process.stat(orphan) is None, 20, "the orphan is reaped")

    asked_at = time.monotonic()
    assert started.end() == 0, started.output.read_text()
    assert time.monotonic() - asked_at < asked("pod.yaml")["grace_s"]
    said_last = started.output.read_text().partition("stopping: ")[2]
    assert said_last.splitlines()[-1].endswith("stopped")
    assert "still there" not in said_last
    assert "did not end" not in said_last
    pod.assert_nothing_left()
    assert pod.get("/healthz") == 0


def test_a_killed_container_starts_again(pod: Pod) -> None:
    """The kubelet's new container has the old one's volumes, and processes of its own by the pids in the files there."""
    first = pod.start_and_wait()
    os.kill(first.init, signal.SIGKILL)
    assert first.process.wait(20) != 0
    second = pod.start_and_wait()
    pod.assert_serves()
    assert second.end() == 0, second.output.read_text()
    pod.assert_nothing_left()
