"""Stand-in of nvidia-cuda-mps-control, with its options and its three uses.

    python -P -m mpspool.mps.simulated.nvidia_cuda_mps_control -f     the daemon, in the foreground
    python -P -m mpspool.mps.simulated.nvidia_cuda_mps_control -d     the daemon, in the background
    python -P -m mpspool.mps.simulated.nvidia_cuda_mps_control        commands from stdin to the daemon

Which daemon is meant, and where it logs, is said by CUDA_MPS_PIPE_DIRECTORY and CUDA_MPS_LOG_DIRECTORY.
"""

from __future__ import annotations

# A daemon is asked about once a second: what only the daemon needs is imported there.
import os
import socket
import sys
from collections.abc import Iterable

from mpspool.mps.simulated import CONTROL, DEFAULT_PIPE_DIR, control_command

_ANSWER_LIMIT_S = 30.0
_START_LIMIT_S = 10.0
_USAGE = "usage: nvidia-cuda-mps-control [-d | -f]"


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    match arguments:
        case []:
            return _commands(sys.stdin)
        case ["-f"]:
            return _foreground()
        case ["-f", "--log-files"]:  # what -d starts
            return _foreground(log_files=True)
        case ["-d"]:
            return _background()
    _complain(_USAGE)
    return 1


def _complain(message: str) -> None:
    print(f"SIMULATED: {message}", file=sys.stderr)


def _commands(lines: Iterable[str]) -> int:
    status = 0
    for line in lines:
        try:
            failed, text = _ask(line.strip())
        except OSError:
            _complain("Cannot find MPS control daemon process")
            return 1
        print(text, end="", flush=True)
        status = status or failed
    return status


def _ask(line: str) -> tuple[int, str]:
    """The exit status and the answer's text. Raises OSError where no daemon answers."""
    path = os.path.join(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", DEFAULT_PIPE_DIR), CONTROL)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_ANSWER_LIMIT_S)
        connection.connect(path)
        connection.sendall(line.encode() + b"\n")
        with connection.makefile("r", encoding="utf-8") as answer:
            status = answer.readline().strip()
            if not status:
                raise ConnectionResetError("the daemon went away")
            return int(status), answer.read()


def _foreground(*, log_files: bool = False) -> int:
    """Where nothing else is said, the daemon and its servers write what they have to say to stderr, and no log files."""
    import asyncio

    from mpspool.mps.simulated.control_daemon import AlreadyRunningError, ControlDaemon
    from mpspool.mps.simulated.paths import Paths

    paths = Paths.of(os.environ)

    async def serve() -> None:
        await ControlDaemon(paths, os.environ, log_files=log_files).run()

    try:
        for folder in (paths.pipe, paths.log):
            folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(serve())
    except (AlreadyRunningError, OSError, ValueError) as error:
        _complain(str(error))
        return 1
    return 0


def _background() -> int:
    """Returns once the daemon answers, or has ended."""
    import subprocess
    import time

    from mpspool.mps.simulated.paths import Paths

    paths = Paths.of(os.environ)
    paths.log.mkdir(parents=True, exist_ok=True)
    with paths.control_log.open("a") as log:
        daemon = subprocess.Popen(
            [*control_command(), "-f", "--log-files"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_LIMIT_S
    while daemon.poll() is None and time.monotonic() < deadline:
        try:
            _ask("get_server_list")
        except OSError:
            time.sleep(0.02)
        else:
            if paths.pid.read_text() == str(daemon.pid):
                return 0
    _complain(f"the daemon does not start; see {paths.control_log}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
