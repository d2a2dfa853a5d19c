"""The wrapper around the control daemon, as processes, on the stand-in."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mpspool.core import process
from mpspool.core.settings import MpsSettings, save
from mpspool.mps import leftovers
from mpspool.mps.control import Control, ControlError
from mpspool.mps.simulated import control_command
from mpspool.mps.simulated.inventory import simulated

LIMIT_S = 20.0
# Starts a command, writes its pid to a file and waits.
PARENT = """
import pathlib, subprocess, sys
child = subprocess.Popen(sys.argv[2:])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
child.wait()
"""


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


@dataclass
class Place:
    """One pipe folder, the wrappers started on it and what they said."""

    settings: MpsSettings
    file: Path
    output: Path
    wrappers: list[subprocess.Popen[bytes]]

    @property
    def pipe(self) -> Path:
        return Path(self.settings.pipe_dir)

    @property
    def control(self) -> Control:
        return Control.of(self.settings, os.environ)

    def start(self) -> subprocess.Popen[bytes]:
        with self.output.open("ab") as output:
            wrapper = subprocess.Popen(
                [sys.executable, "-P", "-m", "mpspool.mps.daemon", str(self.file)],
                stdout=output,
                stderr=output,
            )
        self.wrappers.append(wrapper)
        return wrapper

    def start_ready(self) -> subprocess.Popen[bytes]:
        """Ready is what the wrapper says and the daemon confirms."""
        before = self.said().count("the control daemon answers")
        wrapper = self.start()
        until(lambda: self.said().count("the control daemon answers") > before, f"ready\n{self.said()}")
        assert self.control.answers()
        return wrapper

    def said(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def attach(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(LIMIT_S)
        connection.connect(str(self.pipe / "clients"))
        return connection

    def attached(self) -> tuple[socket.socket, int]:
        """A client's connection and its server's pid."""
        connection = self.attach()
        words = connection.recv(100).split()
        assert words[0] == b"CONNECTED"
        return connection, int(words[1])

    def mps_pids(self, daemon: bool) -> list[int]:
        return [found.pid for found in leftovers.find(self.pipe) if found.daemon is daemon]

    def nothing_left(self) -> bool:
        return not leftovers.find(self.pipe) and list(self.pipe.iterdir()) == []


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    root = tmp_path / "mps" / "gpu0"
    settings = MpsSettings(
        device="gpu0",
        gpu_uuid=simulated(1)[0].uuid,
        pipe_dir=str(root / "pipe"),
        log_dir=str(root / "log"),
        server_log="",
        control=control_command(),
        simulated=True,
    )
    file = tmp_path / "mps.gpu0.json"
    save(file, settings)
    place = Place(settings, file, tmp_path / "output", [])
    yield place
    for wrapper in place.wrappers:
        if wrapper.poll() is None:
            wrapper.kill()
        wrapper.wait()
    until(lambda: place.mps_pids(daemon=True) == [], "daemons end with their wrapper")
    leftovers.end(place.pipe, place.control)


def test_starts_answers_and_quits(place: Place) -> None:
    """Folders are private, ready means answering, SIGTERM means `quit`, status 0 and nothing left."""
    wrapper = place.start_ready()
    for folder in (place.pipe, Path(place.settings.log_dir)):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert place.control.server_list() == []
    wrapper.send_signal(signal.SIGTERM)
    assert wrapper.wait(LIMIT_S) == 0
    assert place.nothing_left()
    assert not place.control.answers()
    log = [line for line in place.said().splitlines() if line.startswith("[")]
    assert any("Received command 'quit -t 1'" in line for line in log)
    assert all("SIMULATED" in line for line in log)
    assert not list(Path(place.settings.log_dir).glob("*.log")), (
        "in the foreground it prints all it has to say"
    )


def test_clients_are_listed_terminated_and_gone(place: Place) -> None:
    """The first client brings the server; lists follow; terminate_client cuts one process off."""
    place.start_ready()
    first, server = place.attached()
    second, same = place.attached()
    assert same == server
    assert place.control.server_list() == [server]
    assert place.control.server_status(server) == "ACTIVE"
    assert place.control.client_list(server) == [os.getpid()]
    second.close()
    until(lambda: place.control.raw("ps").count(str(os.getpid())) == 1, "a closed connection leaves the list")
    place.control.terminate_client(server, os.getpid())
    assert first.recv(100) == b""
    first.close()
    assert place.control.client_list(server) == []
    with pytest.raises(ControlError, match="Invalid process"):
        place.control.terminate_client(server, os.getpid())
    with pytest.raises(ControlError, match="Server 1 not found"):
        place.control.client_list(1)
    assert place.control.raw("nonsense") == 'Unknown command "nonsense"\n'
    assert f"Client {{PID: {os.getpid()}, Context ID: 0}} terminated" in place.said()


def test_client_limit_is_the_architectures(place: Place) -> None:
    """The 49th context is refused with CUDA's error number, and a freed one can be had again."""
    place.start_ready()
    held = [place.attached()[0] for _ in range(48)]
    refused = place.attach()
    assert refused.recv(100).startswith(b"REFUSED 808 SIMULATED")
    refused.close()
    server = place.control.server_list()[0]
    held.pop().close()
    until(lambda: place.control.raw("ps").count("\n") == 48, "the place is free")
    held.append(place.attached()[0])
    assert place.control.client_list(server) == [os.getpid()]
    for connection in held:
        connection.close()


def test_quits_with_clients_attached(place: Place) -> None:
    """A client that will not leave keeps the daemon and its server alive no longer than a second."""
    wrapper = place.start_ready()
    client, server = place.attached()
    wrapper.send_signal(signal.SIGINT)
    assert wrapper.wait(LIMIT_S) == 0
    assert client.recv(100) == b""
    client.close()
    assert not process.alive(server)
    assert place.nothing_left()


def test_dead_daemon_ends_the_wrapper_and_the_server(place: Place) -> None:
    """SIGKILL of the control daemon: status 1, its server is ended, and the next start is clean."""
    wrapper = place.start_ready()
    client, server = place.attached()
    os.kill(place.mps_pids(daemon=True)[0], signal.SIGKILL)
    assert wrapper.wait(LIMIT_S) == 1
    assert "ended by itself with status -9" in place.said()
    assert client.recv(100) == b""
    client.close()
    assert not process.alive(server)
    assert place.nothing_left()
    place.start_ready()


def test_killed_wrapper_leaves_no_daemon_and_the_next_start_ends_the_server(place: Place) -> None:
    """SIGKILL of the wrapper takes the daemon along; the orphaned server goes at the next start."""
    wrapper = place.start_ready()
    client, server = place.attached()
    wrapper.kill()
    wrapper.wait()
    until(lambda: place.mps_pids(daemon=True) == [], "the daemon ends with its wrapper")
    assert process.alive(server)
    place.start_ready()
    assert not process.alive(server)
    assert "ended what was left of an earlier MPS" in place.said()
    client.close()
    assert place.control.server_list() == []


def test_server_outlives_a_daemon_that_had_not_read_all(place: Place) -> None:
    """A daemon killed with a message of its server's unread: the server keeps its client all the same."""
    wrapper = place.start_ready()
    client, server = place.attached()
    daemon = place.mps_pids(daemon=True)[0]
    os.kill(daemon, signal.SIGSTOP)
    client.sendall(b"BUSY\n")  # of which the server tells its daemon
    client.sendall(b"IDLE\n")
    client.settimeout(0.5)
    with pytest.raises(TimeoutError):
        client.recv(100)
    wrapper.kill()
    wrapper.wait()
    until(lambda: place.mps_pids(daemon=True) == [], "the daemon ends with its wrapper")
    with pytest.raises(TimeoutError):
        client.recv(100)
    assert process.alive(server)
    place.start_ready()
    assert not process.alive(server)
    client.close()


def test_server_that_ignores_its_end_is_killed(place: Place) -> None:
    """A server that SIGTERM does not end, here a stopped one, is not left behind by a dead daemon."""
    wrapper = place.start_ready()
    client, server = place.attached()
    os.kill(server, signal.SIGSTOP)
    os.kill(place.mps_pids(daemon=True)[0], signal.SIGKILL)
    assert wrapper.wait(LIMIT_S) == 1
    assert not process.alive(server)
    assert place.nothing_left()
    client.close()


def test_daemon_left_running_is_ended_by_quit(place: Place) -> None:
    """A daemon that another start put in the background is quit before the pipe folder is used."""
    environ = {
        **os.environ,
        "CUDA_MPS_PIPE_DIRECTORY": place.settings.pipe_dir,
        "CUDA_MPS_LOG_DIRECTORY": place.settings.log_dir,
    }
    subprocess.run([*control_command(), "-d"], env=environ, check=True, timeout=LIMIT_S)
    stale = place.mps_pids(daemon=True)
    client, server = place.attached()
    place.start_ready()
    assert len(stale) == 1
    assert not process.alive(stale[0])
    assert not process.alive(server)
    assert "Received command 'quit -t 1'" in (Path(place.settings.log_dir) / "control.log").read_text()
    client.close()


def test_stopped_daemon_is_still_ended(place: Place) -> None:
    """A daemon that hangs does not answer `quit`; the wrapper ends it by force and leaves nothing."""
    wrapper = place.start_ready()
    daemon = place.mps_pids(daemon=True)[0]
    os.kill(daemon, signal.SIGSTOP)
    wrapper.send_signal(signal.SIGTERM)
    assert wrapper.wait(LIMIT_S) == 0
    assert "does not quit and is killed" in place.said()
    assert not process.alive(daemon)
    assert place.nothing_left()


def test_parents_death_means_quit(place: Place, tmp_path: Path) -> None:
    """When what started the wrapper is killed, the daemon is quit in order, not shot."""
    pid_file = tmp_path / "pid"
    with place.output.open("ab") as output:
        parent = subprocess.Popen(
            [
                sys.executable,
                "-c",
                PARENT,
                str(pid_file),
                *(sys.executable, "-P", "-m", "mpspool.mps.daemon", str(place.file)),
            ],
            stderr=output,
        )
    until(place.control.answers, "ready")
    wrapper = int(pid_file.read_text())
    client, server = place.attached()
    parent.kill()
    parent.wait()
    until(lambda: not process.alive(wrapper), "the wrapper ends")
    assert place.nothing_left()
    assert not process.alive(server)
    assert "Received command 'quit -t 1'" in place.said()
    client.close()


def test_second_wrapper_is_refused(place: Place) -> None:
    """Two wrappers on one pipe folder would end each other's daemon: the second gives up."""
    place.start_ready()
    daemon = place.mps_pids(daemon=True)
    second = place.start()
    assert second.wait(LIMIT_S) == 1
    assert "another mpspool.mps.daemon runs" in place.said()
    assert place.mps_pids(daemon=True) == daemon


def test_what_cannot_start_says_why(place: Place, tmp_path: Path) -> None:
    """A missing program, a failing one and a pipe folder too long for a socket: status 1 and the reason."""
    long = str(tmp_path / ("x" * 100) / "pipe")
    for change, words in (
        ({"control": [str(tmp_path / "none")]}, "does not run"),
        ({"control": ["/bin/false"]}, "ended by itself with status 1"),
        ({"pipe_dir": long}, "bytes too long"),
    ):
        fields = {name: getattr(place.settings, name) for name in place.settings.__struct_fields__}
        save(place.file, MpsSettings(**{**fields, **change}))
        assert place.start().wait(LIMIT_S) == 1
        assert words in place.said()
    assert place.nothing_left()


def test_without_a_daemon_the_command_fails_as_the_real_one(place: Place) -> None:
    """The stand-in's command line says that there is no daemon, and fails."""
    environ = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": place.settings.pipe_dir}
    asked = subprocess.run(
        control_command(),
        input="get_server_list\n",
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert asked.returncode == 1
    assert "SIMULATED: Cannot find MPS control daemon process" in asked.stderr
