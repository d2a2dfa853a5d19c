"""Following logs: every line once, whatever happens to the files."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpspool.core.rundir import RunDir
from mpspool.supervisor.commands import log_files
from tests.polling import until
from tests.pool import CLI, ROOT

WORKER = "worker.half@1.cpu0.0"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    found = RunDir(tmp_path)
    found.logs.mkdir()
    add(found, "router", "old\n")
    return found


def add(run: RunDir, process: str, text: str) -> None:
    with run.log_file(process).open("a", encoding="utf-8") as file:
        file.write(text)


def rotate(run: RunDir, process: str) -> None:
    """As supervisord does it."""
    path = run.log_file(process)
    path.rename(path.with_name(f"{path.name}.1"))


@contextlib.contextmanager
def tail(run: RunDir, *, from_end: bool = False) -> Iterator[log_files.Tail]:
    """Of the router's log."""
    with contextlib.closing(log_files.Tail(run.log_file("router"), from_end=from_end)) as found:
        yield found


def test_a_tail_gives_each_line_once_it_is_whole(run: RunDir) -> None:
    """Also where it was cut within a character."""
    with tail(run) as found:
        assert found.lines() == ["old"]
        with run.log_file("router").open("ab") as file:
            for part in (b"caf\xc3", b"\xa9 is", b" hot\n\nand"):
                assert found.lines() == []
                file.write(part)
                file.flush()
        assert found.lines() == ["caf\u00e9 is hot", ""]
        add(run, "router", " \u2026\n")
        assert found.lines() == ["and \u2026"]


def test_a_tail_may_begin_at_the_end(run: RunDir) -> None:
    """Then only what is added counts."""
    with tail(run, from_end=True) as found:
        assert found.lines() == []
        add(run, "router", "new\n")
        assert found.lines() == ["new"]


def test_a_tail_loses_nothing_to_rotation(run: RunDir) -> None:
    """What was added just before comes first; a line goes on in the new file; for a moment there may be none."""
    with tail(run) as found:
        assert found.lines() == ["old"]
        add(run, "router", "last words\nhalf ")
        rotate(run, "router")
        assert found.lines() == ["last words"]
        add(run, "router", "a line\nnew\n")
        assert found.lines() == ["half a line", "new"]
        add(run, "router", "more\n")
        rotate(run, "router")
        add(run, "router", "of it\n")
        assert found.lines() == ["more", "of it"]


def test_a_tail_begins_anew_with_its_file(run: RunDir) -> None:
    """One that was emptied is read from its beginning; the rest of a line is gone with it."""
    with tail(run) as found:
        add(run, "router", "cut")
        assert found.lines() == ["old"]
        run.log_file("router").write_text("")
        add(run, "router", "new\n")
        assert found.lines() == ["new"]


def test_one_process_is_followed_from_its_beginning(run: RunDir) -> None:
    """And nobody else is heard."""
    with contextlib.closing(log_files.follow(run, "router")) as found:
        assert next(found) == ("router", "old")
        add(run, "pool", "another\n")
        add(run, "router", "new\n")
        assert next(found) == ("router", "new")


def test_all_are_followed_from_now_on(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever begins to write later is heard from the first line on."""
    pauses = iter([("router", "new\n"), (WORKER, "first\nsecond\n"), ("router", "newer\n")])
    monkeypatch.setattr(log_files, "time", SimpleNamespace(sleep=lambda _seconds: add(run, *next(pauses))))
    with contextlib.closing(log_files.follow(run, None)) as found:
        assert list(itertools.islice(found, 4)) == [
            ("router", "new"),
            (WORKER, "first"),
            (WORKER, "second"),
            ("router", "newer"),
        ]


def at_the_end(pid: int, path: Path) -> bool:
    """Whether the process has read the file to its end, or has gone there."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        if os.path.realpath(descriptor) == str(path):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                position = Path(f"/proc/{pid}/fdinfo/{descriptor.name}").read_text().split()[1]
                return int(position) == path.stat().st_size
    return False


@pytest.mark.parametrize(
    ("process", "printed"),
    [(["half@1.cpu0.0"], "old\nnew\n"), ([], f"{WORKER} | new\n")],
)
def test_logs_f_prints_what_is_added_until_ctrl_c(
    run: RunDir, tmp_path: Path, process: list[str], printed: str
) -> None:
    """At once, of one process or of all with their names; and that is how it is meant to end."""
    add(run, WORKER, "old\n")
    output = tmp_path / "output"
    command = [*CLI, "logs", "--run-dir", str(run.root), "-f", *process]
    with (
        output.open("w") as out,
        subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT) as following,
    ):
        try:
            until(lambda: at_the_end(following.pid, run.log_file(WORKER)))
            add(run, WORKER, "new\n")
            until(lambda: output.read_text() == printed, 10, "what is added")
            following.send_signal(signal.SIGINT)
            assert (following.wait(10), output.read_text()) == (0, printed)
        finally:
            following.kill()
