"""The stand-in's daemon and server, as processes, told to fail through nvidia-cuda-mps-control's stand-in."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mpspool.core import process
from mpspool.core.settings import MpsSettings
from mpspool.mps.control import Control, ControlError, NotAnsweringError, daemon_environment
from mpspool.mps.simulated import control_command, state_file
from mpspool.mps.simulated.inventory import simulated
from mpspool.mps.simulated.nvml import Nvml
from tests.polling import until

LIMIT_S = 20.0
# Connects as a user, says what it is told to on stdin, and writes down each line that it is sent.
CLIENT = """
import os, socket, sys, threading
os.chdir(sys.argv[1])
os.setuid(int(sys.argv[2]))
connection = socket.socket(socket.AF_UNIX)
connection.connect("clients")
def talk():
    for line in sys.stdin:
        connection.sendall(line.encode())
threading.Thread(target=talk, daemon=True).start()
for line in connection.makefile():
    print(line, end="", flush=True)
print("END", flush=True)
threading.Event().wait()
"""


class Client:
    """A client that is a process of its own, so that it can be shot."""

    def __init__(self, path: Path, *first: str, user: int | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(path.parent), str(os.getuid() if user is None else user)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        for line in first:
            self.say(line)

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """The next line, or END."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def connected(self) -> int:
        """The server's pid."""
        word, server = self.hear().split()
        assert word == "CONNECTED"
        return int(server)

    def kill(self) -> None:
        self.process.kill()
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()


@dataclass
class Gpu:
    """A daemon without a wrapper."""

    settings: MpsSettings
    daemon: subprocess.Popen[bytes]
    clients: list[Client] = field(default_factory=list)

    @property
    def control(self) -> Control:
        return Control.of(self.settings, os.environ)

    @property
    def door(self) -> Path:
        return Path(self.settings.pipe_dir) / "clients"

    @property
    def nvml(self) -> Nvml:
        return Nvml(1, lambda _: Path(self.settings.log_dir) / state_file.NAME)

    def client(self, *first: str, user: int | None = None) -> Client:
        client = Client(self.door, *first, user=user)
        self.clients.append(client)
        return client

    def fail(self, what: str) -> None:
        assert self.control.raw(f"simulate_fault {what}") == f"SIMULATED: {what.split(maxsplit=1)[0]}\n"

    def look(self) -> dict[int, dict[str, Any]]:
        """What `simulate_clients` says, by pid."""
        lines = self.control.raw("simulate_clients").splitlines()
        found = [json.loads(line) for line in lines]
        assert all(client["simulated"] for client in found)
        return {client["pid"]: client for client in found}

    def is_busy(self, client: Client) -> bool:
        return bool(self.look()[client.pid]["state"] == "BUSY")

    def refused(self) -> str:
        """Why a client that comes now is."""
        client = self.client()
        word, error, mark, *_ = client.hear().split()
        assert (word, mark) == ("REFUSED", "SIMULATED")
        assert client.hear() == "END"
        client.kill()
        return error

    def log(self) -> str:
        """What the daemon and its servers have printed."""
        return printed(self.settings).read_text()


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[Gpu]:
    settings = MpsSettings(
        device="gpu0",
        gpu_uuid=simulated(1)[0].uuid,
        pipe_dir=str(tmp_path / "pipe"),
        log_dir=str(tmp_path / "log"),
        server_log="",
        control=control_command(),
        simulated=True,
    )
    gpu = Gpu(settings, start(settings))
    yield gpu
    servers = process.children(gpu.daemon.pid)
    for client in gpu.clients:
        client.kill()
    gpu.daemon.kill()
    gpu.daemon.wait()
    for server in servers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)


def printed(settings: MpsSettings) -> Path:
    return Path(settings.log_dir).with_name("printed")


def start(settings: MpsSettings) -> subprocess.Popen[bytes]:
    with printed(settings).open("ab") as file:
        daemon = subprocess.Popen(
            [*control_command(), "-f"],
            env=daemon_environment(settings, os.environ),
            stdin=subprocess.DEVNULL,
            stderr=file,
        )
    until(Control.of(settings, os.environ).answers, LIMIT_S)
    return daemon


def test_a_clients_fault_hits_all_and_the_server_comes_back(gpu: Gpu) -> None:
    """Each is told, new ones are refused until both have left, and the same server takes clients again."""
    culprit, other = gpu.client("BUSY"), gpu.client()
    server = culprit.connected()
    assert other.connected() == server
    culprit.say("FAULT 700")
    assert culprit.hear().startswith("FAULT 700 SIMULATED")
    assert other.hear().startswith("FAULT 700 SIMULATED")
    assert gpu.control.server_status(server) == "FAULT"
    assert gpu.refused() == "807"
    culprit.kill()
    until(lambda: gpu.control.client_list(server) == [other.pid], LIMIT_S)
    assert gpu.refused() == "807"
    other.kill()
    until(lambda: gpu.control.server_status(server) == "ACTIVE", LIMIT_S)
    assert gpu.client().connected() == server
    log = gpu.log()
    (named,) = re.findall(r"Client {PID: (\d+), Context ID: \d} triggered a fatal GPU memory fault", log)
    assert int(named) == culprit.pid
    assert "Creating server context on device 0" in log.split("Destroy server context on device 0")[1]
    assert [line for line in log.splitlines() if "SIMULATED" not in line] == []


def test_a_client_that_comes_while_the_server_rebuilds_waits(gpu: Gpu) -> None:
    """It is not refused: it is connected once the server is ACTIVE."""
    first = gpu.client()
    server = first.connected()
    first.kill()
    until(lambda: gpu.control.client_list(server) == [], LIMIT_S)
    gpu.fail("server-fault")
    assert gpu.client().connected() == server
    assert "triggered" not in gpu.log()


def test_shot_while_busy_is_for_good_until_quit(gpu: Gpu) -> None:
    """All others are hit; when they have left nothing gets better; a new daemon does."""
    shot, other = gpu.client("BUSY"), gpu.client()
    server = shot.connected()
    other.connected()
    until(lambda: gpu.is_busy(shot), LIMIT_S)
    shot.kill()
    assert other.hear().startswith("FAULT 719 SIMULATED")
    other.kill()
    until(lambda: gpu.control.client_list(server) == [], LIMIT_S)
    assert gpu.refused() == "807"
    assert gpu.control.server_status(server) == "FAULT"
    gpu.control.quit()
    assert gpu.daemon.wait(LIMIT_S) == 0
    gpu.daemon = start(gpu.settings)
    gpu.client().connected()


def test_a_busy_client_can_be_terminated_and_then_shot(gpu: Gpu) -> None:
    """It is told, and is no client any more; the others go on."""
    busy, other = gpu.client("BUSY"), gpu.client()
    server = busy.connected()
    other.connected()
    until(lambda: gpu.is_busy(busy), LIMIT_S)
    gpu.control.terminate_client(server, busy.pid)
    assert busy.hear() == "FAULT 810 SIMULATED client terminated"
    assert busy.hear() == "END"
    busy.kill()
    assert gpu.control.client_list(server) == [other.pid]
    assert gpu.control.server_status(server) == "ACTIVE"
    other.say("BUSY")
    until(lambda: gpu.is_busy(other), LIMIT_S)


def test_wedged_client_is_told_alone(gpu: Gpu) -> None:
    """Nobody else is, and the server stays ACTIVE."""
    first, second = gpu.client(), gpu.client()
    server = first.connected()
    second.connected()
    gpu.fail(f"client-wedge {second.pid}")
    assert second.hear() == "WEDGED"
    wedged = {pid: client["wedged"] for pid, client in gpu.look().items()}
    assert wedged == {first.pid: False, second.pid: True}
    assert gpu.control.server_status(server) == "ACTIVE"
    with pytest.raises(ControlError, match="there is no client 1"):
        gpu.control.raw("simulate_fault client-wedge 1")


def test_injected_fault_may_have_a_culprit(gpu: Gpu) -> None:
    """It gets the error of a kernel's bad access, the log names it, and the driver reports the event."""
    nvml = gpu.nvml
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(
        nvml.nvmlDeviceGetHandleByIndex(0), nvml.nvmlEventTypeXidCriticalError, events
    )
    first, second = gpu.client(), gpu.client()
    first.connected()
    second.connected()
    gpu.fail(f"server-fault {second.pid}")
    assert first.hear().startswith("FAULT 700")
    assert second.hear().startswith("FAULT 700")
    assert re.findall(r"PID: (\d+), Context ID: \d} triggered", gpu.log()) == [str(second.pid)]
    assert nvml.nvmlEventSetWait_v2(events, 5000).eventData == 31


def test_memory_error_is_counted_and_reported(gpu: Gpu) -> None:
    """Whose memory it is gets CUDA's 214, all others are hit as by any fault, and NVML tells of it."""
    nvml = gpu.nvml
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
    first, second = gpu.client(), gpu.client()
    server = first.connected()
    second.connected()
    gpu.fail(f"ecc {second.pid}")
    assert first.hear().startswith("FAULT 719")
    assert second.hear() == "FAULT 214 SIMULATED uncorrectable ECC error encountered"
    assert gpu.control.server_status(server) == "FAULT"
    assert nvml.nvmlEventSetWait_v2(events, 5000).eventData == 94
    uncorrected = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    assert nvml.nvmlDeviceGetTotalEccErrors(handle, *uncorrected) == 1
    for client in (first, second):
        client.kill()
    until(lambda: gpu.control.server_status(server) == "ACTIVE", LIMIT_S)


def test_daemon_hangs_for_a_while(gpu: Gpu) -> None:
    """It answers nobody and takes nobody, while those it has are served; then all is as before."""
    client = gpu.client()
    server = client.connected()
    gpu.fail("daemon-hang 5")
    with pytest.raises(NotAnsweringError):
        gpu.control.raw("get_server_list", timeout_s=0.5)
    late = gpu.client()
    client.say("FAULT 719")
    assert client.hear().startswith("FAULT 719 SIMULATED")
    client.kill()
    until(gpu.control.answers, LIMIT_S)
    assert late.hear().split()[0] in ("CONNECTED", "REFUSED")
    assert gpu.control.server_list() == [server]


def test_daemon_that_hangs_for_good_is_ended_by_force(gpu: Gpu) -> None:
    """No other signal ends it; a new one on the same folder answers."""
    gpu.fail("daemon-hang")
    gpu.daemon.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        gpu.daemon.wait(0.5)
    gpu.daemon.kill()
    gpu.daemon.wait(LIMIT_S)
    gpu.daemon = start(gpu.settings)
    gpu.client().connected()


def test_dead_daemon_leaves_its_server(gpu: Gpu) -> None:
    """It answers no more, and its clients stay clients, who can still be hit."""
    client = gpu.client()
    server = client.connected()
    gpu.fail("daemon-death")
    assert gpu.daemon.wait(LIMIT_S) == -signal.SIGKILL
    with pytest.raises(NotAnsweringError):
        gpu.control.server_list()
    assert process.alive(server)
    client.say("FAULT 719")
    assert client.hear().startswith("FAULT 719 SIMULATED")
    os.kill(server, signal.SIGTERM)
    assert client.hear() == "END"


def test_dead_server_is_followed_by_another(gpu: Gpu) -> None:
    """Its clients lose it; the daemon starts a new one for the next client."""
    client = gpu.client()
    server = client.connected()
    gpu.fail("server-death")
    assert client.hear() == "END"
    assert gpu.control.server_list() == []
    assert gpu.client().connected() != server
    assert f"Server {server} exited with status -9; 1 clients lost" in gpu.log()


def test_lost_gpu(gpu: Gpu) -> None:
    """Every client is hit, nobody is taken, NVML knows, and its event is reported."""
    nvml = gpu.nvml
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
    client = gpu.client()
    server = client.connected()
    until(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle), LIMIT_S)
    gpu.fail("gpu-lost")
    assert client.hear().startswith("FAULT 719 SIMULATED")
    with pytest.raises(nvml.NVMLError_GpuIsLost):
        nvml.nvmlDeviceGetUtilizationRates(handle)
    assert nvml.nvmlEventSetWait_v2(events, 5000).eventData == 79
    client.kill()
    until(lambda: gpu.control.client_list(server) == [], LIMIT_S)
    assert gpu.refused() == "807"
    assert gpu.control.server_status(server) == "FAULT"
    with pytest.raises(ControlError, match="the GPU is lost"):
        gpu.control.raw("start_server -uid 0")


def test_use_is_seen_by_nvml(gpu: Gpu) -> None:
    """A busy client makes the GPU busy; an idle one only takes memory."""
    nvml = gpu.nvml
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    client = gpu.client()
    client.connected()

    def utilisation() -> int:
        return nvml.nvmlDeviceGetUtilizationRates(handle).gpu

    until(
        lambda: [one.pid for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)] == [client.pid],
        LIMIT_S,
    )
    assert utilisation() == 0
    client.say("BUSY")
    until(lambda: utilisation() == 100, LIMIT_S)
    client.say("IDLE")
    until(lambda: utilisation() == 0, LIMIT_S)


def test_clients_get_what_the_daemon_gives_then(gpu: Gpu) -> None:
    """Per-server values are for clients to come, a client's own wishes lower them, living ones keep what they had."""
    control = gpu.control
    control.raw("set_default_active_thread_percentage 80")
    old = gpu.client()
    server = old.connected()
    control.raw("set_default_active_thread_percentage 10")
    control.raw(f"set_active_thread_percentage {server} 40")
    control.raw(f"set_device_pinned_mem_limit {server} 0 2G")
    control.raw("set_default_client_priority 1")
    new = gpu.client()
    modest = gpu.client("WANTS thread_percentage=20 pinned_mem=512M priority=0")
    for client in (new, modest):
        client.connected()

    def shares() -> dict[int, tuple[float, int | None, int]]:
        return {
            pid: (one["thread_percentage"], one["pinned_mem_bytes"], one["priority"])
            for pid, one in gpu.look().items()
        }

    until(lambda: shares()[modest.pid][0] == 20, LIMIT_S)
    assert shares() == {
        old.pid: (80.0, None, 0),
        new.pid: (40.0, 2 * 2**30, 1),
        modest.pid: (20.0, 2**29, 0),
    }


def test_server_of_another_user_makes_room_when_it_is_unused(gpu: Gpu) -> None:
    """One user at a time: it is ended for who comes, and stays while it has clients."""
    gpu.control.raw("start_server -uid 4321")
    (theirs,) = gpu.control.server_list()
    client = gpu.client()
    ours = client.connected()
    assert ours != theirs
    assert gpu.control.server_list() == [ours]
    with pytest.raises(ControlError, match=f"server {ours} of user {os.getuid()} has clients"):
        gpu.control.raw("start_server -uid 4321")


@pytest.mark.skipif(os.getuid() != 0, reason="only root has processes of other users")
def test_client_of_another_user_waits_and_stops_nobody(gpu: Gpu) -> None:
    """Until the last client of the present user has left, who go on coming meanwhile."""
    gpu.door.chmod(0o777)
    first = gpu.client()
    server = first.connected()
    stranger = gpu.client(user=65534)
    until(lambda: "from user 65534" in gpu.log(), LIMIT_S)
    second = gpu.client()
    assert second.connected() == server
    for client in (first, second):
        client.kill()
    theirs = stranger.connected()
    assert theirs != server
    assert gpu.control.server_list() == [theirs]


def test_daemon_does_not_start_with_limits_that_make_no_sense(tmp_path: Path) -> None:
    """It says what is wrong with them."""
    environ = {
        **os.environ,
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(tmp_path / "log"),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2T",
    }
    done = subprocess.run(
        [*control_command(), "-f"], env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, "SIMULATED: '2T' is no memory limit" in done.stderr) == (1, True)


def test_a_stopped_daemon_does_not_hold_up_its_server(gpu: Gpu) -> None:
    """Clients are served, and hit, while nobody reads what the server has to say."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(LIMIT_S)
    connection.connect(str(gpu.door))
    assert connection.recv(100).startswith(b"CONNECTED")
    gpu.daemon.send_signal(signal.SIGSTOP)
    end = time.monotonic() + 1
    while time.monotonic() < end:
        connection.sendall(b"BUSY\nIDLE\n" * 100)
    connection.sendall(b"FAULT 719\n")
    assert connection.recv(100).startswith(b"FAULT 719")
    connection.close()
    gpu.daemon.send_signal(signal.SIGCONT)
