"""Finding the control program, asking it, and telling its daemons from other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpspool.core.settings import MpsSettings
from mpspool.mps import leftovers
from mpspool.mps.control import Control, ControlError, NotAnsweringError, control_command, daemon_environment
from tests.polling import until


def program(folder: Path, body: str) -> Path:
    """An executable called nvidia-cuda-mps-control that runs this Python."""
    path = folder / "nvidia-cuda-mps-control"
    path.write_text(f"#!{sys.executable} -P\nimport sys, os, time\n{body}\n")
    path.chmod(0o755)
    return path


def control(folder: Path, body: str) -> Control:
    return Control([str(program(folder, body))], {"CUDA_MPS_PIPE_DIRECTORY": "/p"})


def test_program_is_found_in_path(tmp_path: Path) -> None:
    """PATH is searched, and a file that cannot be run does not count."""
    path = program(tmp_path, "")
    assert control_command({"PATH": f"/nowhere:{tmp_path}"}) == [str(path)]
    path.chmod(0o644)
    assert control_command({"PATH": str(tmp_path)}) != [str(path)]


def test_lists_are_numbers(tmp_path: Path) -> None:
    """The command goes to stdin, and the answer's lines come back as pids."""
    echo = control(
        tmp_path, "line = sys.stdin.readline(); print('11\\n12' if line == 'get_client_list 5\\n' else '')"
    )
    assert echo.client_list(5) == [11, 12]
    assert echo.server_list() == []


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        (
            "print('Cannot find MPS control daemon process'); sys.exit(1)",
            NotAnsweringError,
            "no control daemon on /p",
        ),
        ("print('no such server', file=sys.stderr); sys.exit(1)", ControlError, "no such server"),
        ("print('what?')", ControlError, "what?"),
    ],
)
def test_failures_are_told_apart(tmp_path: Path, body: str, error: type[ControlError], words: str) -> None:
    """No daemon, a refusal and an unreadable answer are different errors with their text."""
    with pytest.raises(ControlError, match=words.replace("?", r"\?")) as caught:
        control(tmp_path, body).server_list()
    assert type(caught.value) is error


def test_a_daemon_that_is_busy_is_asked_again(tmp_path: Path) -> None:
    """It takes one connection at a time; what is refused for another reason is not sent again."""
    busy = "print('Cannot send command to MPS control daemon process', file=sys.stderr); sys.exit(1)"
    times = f"file = open({str(tmp_path / 'asked')!r}, 'a'); file.write('x'); file.close()"
    body = f"{times}\nif os.path.getsize({str(tmp_path / 'asked')!r}) < 3: {busy}\nprint('0')"
    control(tmp_path, body).terminate_client(1, 2)
    assert (tmp_path / "asked").read_text() == "xxx"
    with pytest.raises(NotAnsweringError, match="no answer to 'ps'"):
        control(tmp_path, busy).raw("ps", timeout_s=0.5)
    with pytest.raises(ControlError, match="failed with status 1: what"):
        control(tmp_path, "print('what'); sys.exit(1)").raw("ps")


def test_a_daemon_that_quits_does_not_wait_for_its_clients(tmp_path: Path) -> None:
    control(tmp_path, f"open({str(tmp_path / 'told')!r}, 'w').write(sys.stdin.read())").quit()
    assert (tmp_path / "told").read_text() == "quit -t 1\n"


def test_missing_program_and_hanging_daemon_do_not_answer(tmp_path: Path) -> None:
    """Neither raises anything a caller would not expect, nor waits for ever."""
    with pytest.raises(NotAnsweringError, match="does not run"):
        Control([str(tmp_path / "none")], {}).quit()
    with pytest.raises(NotAnsweringError, match="no answer to 'ps'"):
        control(tmp_path, "time.sleep(60)").raw("ps", timeout_s=0.2)
    assert not Control([str(tmp_path / "none")], {}).answers()


def test_daemon_gets_its_device_and_folders_over_the_callers(tmp_path: Path) -> None:
    """The caller's environment is inherited, except for what names another GPU or daemon."""
    settings = MpsSettings(
        device="gpu1", gpu_uuid="GPU-1", pipe_dir="/r/pipe", log_dir="/r/logs", server_log="", control=["x"]
    )
    environ = daemon_environment(
        settings, {"HOME": "/h", "CUDA_VISIBLE_DEVICES": "0", "CUDA_MPS_PIPE_DIRECTORY": "/q"}
    )
    assert environ == {
        "HOME": "/h",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "CUDA_MPS_PIPE_DIRECTORY": "/r/pipe",
        "CUDA_MPS_LOG_DIRECTORY": "/r/logs",
    }


def test_only_daemons_and_servers_of_the_folder_are_leftovers(tmp_path: Path) -> None:
    """Found by program and pipe folder: not another folder's, not a command being asked, not a worker."""
    sleep = "import time; time.sleep(60)"
    ours = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    theirs = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "other")}
    python = sys.executable
    cases = [
        (["/usr/bin/nvidia-cuda-mps-control", "-c", sleep, "-d"], ours, True),
        (["nvidia-cuda-mps-server", "-c", sleep], ours, False),
        ([python, "-c", sleep, "mpspool.mps.simulated.nvidia_cuda_mps_control", "-f"], ours, True),
        ([python, "-c", sleep, "mpspool.mps.simulated.server"], ours, False),
        (["nvidia-cuda-mps-control", "-c", sleep], ours, None),
        ([python, "-c", sleep, "mpspool.mps.simulated.nvidia_cuda_mps_control"], ours, None),
        (["nvidia-cuda-mps-server", "-c", sleep], theirs, None),
        ([python, "-c", sleep], ours, None),
    ]
    processes = [subprocess.Popen(arguments, executable=python, env=env) for arguments, env, _ in cases]
    try:
        for process in processes:  # the kernel tells nothing of one that has only just begun
            until(Path(f"/proc/{process.pid}/environ").read_bytes)
        found = {leftover.pid: leftover.daemon for leftover in leftovers.find(tmp_path)}
        expected = [daemon for _, _, daemon in cases]
        assert [found.get(process.pid) for process in processes] == expected
        assert leftovers.find(tmp_path / "none") == []
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_folder_of_others_is_refused(tmp_path: Path) -> None:
    """A link in the pipe folder's place is not followed, a file is no folder; an open folder is closed to others."""
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(leftovers.LeftoverError, match="not a folder of user"):
        leftovers.prepare_folder(tmp_path / "link")
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    (tmp_path / "file").touch()
    for other in ("nowhere", "file"):
        with pytest.raises(leftovers.LeftoverError, match="remove it or choose another run folder"):
            leftovers.prepare_folder(tmp_path / other)
    (tmp_path / "open").mkdir(mode=0o755)
    leftovers.prepare_folder(tmp_path / "open")
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o700


def test_clearing_removes_only_a_daemons_files(tmp_path: Path) -> None:
    """Sockets, pipes and the pid file go; what is not a daemon's stays."""
    os.mkfifo(tmp_path / "log")
    (tmp_path / "nvidia-cuda-mps-control.pid").write_text("1")
    (tmp_path / "notes.txt").write_text("mine")
    leftovers.clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
