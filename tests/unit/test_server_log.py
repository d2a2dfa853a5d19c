"""Who caused a fault, from an MPS server's log."""

from __future__ import annotations

from pathlib import Path

from mpspool.mps.server_log import ServerLog, culprits

# NVIDIA's documentation of MPS, "Volta MPS error containment": two clients hit, none named as the cause.
DOCUMENTED = """\
[2022-04-28 15:56:07.410 Other 11570] Volta MPS: status of client {11661, 1} is ACTIVE
[2022-04-28 15:56:08.906 Other 11570] Volta MPS: Server is handling a fatal GPU error.
[2022-04-28 15:56:08.906 Other 11570] Volta MPS: status of client {11641, 1} is INACTIVE
[2022-04-28 15:56:08.906 Other 11570] Volta MPS: The following devices
[2022-04-28 15:56:08.906 Other 11570] 0
[2022-04-28 15:56:08.906 Other 11570] Volta MPS: The following clients have a sticky error set:
[2022-04-28 15:56:08.906 Other 11570] 11641
[2022-04-28 15:56:08.906 Other 11570] 11643
[2022-04-28 15:56:09.200 Other 11570] Client {11641, 1} exit
""".splitlines()


def test_those_that_were_hit_are_not_the_cause() -> None:
    assert culprits(DOCUMENTED) == []


def test_the_only_one_that_was_hit_is() -> None:
    assert culprits([line for line in DOCUMENTED if "11643" not in line]) == [11641]


def test_one_that_is_named() -> None:
    line = "[2026-01-02 03:04:05.006 Server 99] Fatal GPU memory fault triggered by client PID: 11643"
    assert culprits([*DOCUMENTED, line]) == [11643]


def test_an_ordinary_end_is_no_fault() -> None:
    """Newer servers word it like a failure."""
    line = "Server failed to recevie command with status 806, assuming client {PID: 814, Context ID: 0} exit"
    assert culprits([line]) == []


def test_only_what_was_added_counts(tmp_path: Path) -> None:
    """Also where the file was replaced by a shorter one, and where there is none yet."""
    file = tmp_path / "server.log"
    assert ServerLog(file).culprits() == []
    file.write_text("Fatal fault caused by client PID: 1\n")
    log = ServerLog(file)
    assert log.culprits() == []
    with file.open("a") as more:
        more.write("Fatal fault caused by client PID: 2\n")
    assert log.culprits() == [2]
    assert log.culprits() == []
    file.write_text("Fatal fault caused by client PID: 3\n")
    assert log.culprits() == [3]
