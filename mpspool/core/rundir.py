"""The run folder: every socket, settings file and log of one pool, and nothing of another."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

# sockaddr_un.sun_path holds 108 bytes, the last of them a zero.
MAX_SOCKET_PATH_BYTES = 107

_TEMP = "/tmp"  # noqa: S108 - where it would be, not used


def default_run_dir() -> Path:
    """One folder per user: under XDG_RUNTIME_DIR, else under the temp folder, or where that would be if it could be written."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "mpspool"
    try:
        temp = tempfile.gettempdir()
    except FileNotFoundError:
        temp = _TEMP
    return Path(temp) / f"mpspool-{os.getuid()}"


def write_file(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all, readable by its owner only. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


@dataclass(frozen=True, slots=True)
class RunDir:
    """Where each thing lies. `root` is absolute; it is created with mode 0700."""

    root: Path

    @property
    def lock(self) -> Path:
        """flock()ed by the foreground process, whose pid it holds."""
        return self.root / "lock"

    @property
    def supervisord_conf(self) -> Path:
        return self.root / "supervisord.conf"

    @property
    def programs(self) -> Path:
        """Supervisord's include folder: one file per worker."""
        return self.root / "programs"

    @property
    def supervisord_socket(self) -> Path:
        return self.root / "supervisord.sock"

    @property
    def router_socket(self) -> Path:
        """ZeroMQ: workers connect here."""
        return self.root / "router.sock"

    @property
    def router_control(self) -> Path:
        return self.root / "router-control.sock"

    @property
    def pool_control(self) -> Path:
        return self.root / "pool-control.sock"

    @property
    def weights_socket(self) -> Path:
        """The pool process's: publishers bring segments, workers fetch them (core/weights.py)."""
        return self.root / "weights.sock"

    @property
    def nursery_socket(self) -> Path:
        """Launchers ask here for a forked worker."""
        return self.root / "nursery.sock"

    @property
    def settings(self) -> Path:
        return self.root / "settings"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def logs_before(self) -> Path:
        """Of the pool that ran here before."""
        return self.logs / "before"

    @property
    def progress(self) -> Path:
        return self.root / "progress"

    @property
    def mps(self) -> Path:
        return self.root / "mps"

    def settings_file(self, program: str) -> Path:
        return self.settings / f"{program}.json"

    @property
    def router_models(self) -> Path:
        """What the pool process tells the router: one that is new begins with it, whether the pool process is there or not."""
        return self.settings_file("router.models")

    def log_file(self, program: str) -> Path:
        return self.logs / f"{program}.log"

    def progress_file(self, program: str, generation: int) -> Path:
        return self.progress / f"{program}.{generation}"

    def error_file(self, program: str) -> Path:
        """Where a program's last words are."""
        return self.progress / f"{program}.error"

    def last_words(self, program: str) -> str:
        """Why its process ended or could not start, as it said itself, or who ended it; "" where nobody did."""
        try:
            return self.error_file(program).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def set_last_words(self, program: str, words: str) -> None:
        """Leaves them, on one line; "" takes back those of an earlier process.

        Where the file system takes none, as a full one, they are lost: what is to happen next happens all the same.
        """
        with contextlib.suppress(OSError):
            if words:
                self.error_file(program).write_text("; ".join(words.splitlines()) + "\n", encoding="utf-8")
            else:
                self.error_file(program).unlink(missing_ok=True)

    def lock_file(self, program: str) -> Path:
        """Held by the process that fills a slot, for life (core/slot_lock.py)."""
        return self.progress / f"{program}.lock"

    def mps_pipe(self, device: str) -> Path:
        return self.mps / device / "pipe"

    def mps_log(self, device: str) -> Path:
        return self.mps / device / "log"

    def sockets(self) -> list[Path]:
        return [
            self.supervisord_socket,
            self.router_socket,
            self.router_control,
            self.pool_control,
            self.weights_socket,
            self.nursery_socket,
        ]

    def folders(self) -> list[Path]:
        return [self.root, self.programs, self.settings, self.logs, self.progress, self.mps]

    def longest_socket_bytes(self) -> int:
        """Supervisord binds its socket under a longer temporary name (".<pid>") first."""
        return max(len(os.fsencode(path)) for path in self.sockets()) + len(".4194304")
