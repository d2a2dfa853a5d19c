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


# Driver 580.159 on an H200: 1313 wrote to an address that is not mapped, 1299 was idle.
SEEN = """\
[2026-11-27 00:08:06.777 Server  1301] Client {PID: 1313, Context: 1} encountered a fatal GPU error.
[2026-11-27 00:08:06.777 Server  1301] Server is handling a fatal GPU error.
[2026-11-27 00:08:06.778 Server  1301] Client {PID: 1299, Context ID: 1} on device 0 to be torn down
[2026-11-27 00:08:06.778 Server  1301] Client {PID: 1313, Context ID: 1} on device 0 to be torn down
[2026-11-27 00:08:06.778 Server  1301] All clients belonging to error trigging process 1299 will be torn down
[2026-11-27 00:08:06.778 Server  1301] Client {PID: 1299, Context ID: 1} on the error-trigging process 1299 to be torn down
[2026-11-27 00:08:06.778 Server  1301] All clients belonging to error trigging process 1313 will be torn down
[2026-11-27 00:08:06.778 Server  1301] Client {PID: 1313, Context ID: 1} on the error-trigging process 1313 to be torn down
[2026-11-27 00:08:06.778 Server  1301] The following devices will be reset:
[2026-11-27 00:08:06.778 Server  1301] 0
[2026-11-27 00:08:06.778 Server  1301] The following client process have a sticky error set:
[2026-11-27 00:08:06.778 Server  1301] 1299
[2026-11-27 00:08:06.778 Server  1301] 1313
[2026-11-27 00:08:06.799 Server  1301] Server failed to recevie command with status 806, assuming client {PID: 1313, Context ID: 1} exit
[2026-11-27 00:08:06.799 Server  1301] Client {PID: 1313, Context ID: 1} exiting. Number of active client contexts is 1.
[2026-11-27 00:08:06.803 Server  1301] Destroy server context on device 0 (NVIDIA H200)
[2026-11-27 00:08:06.903 Server  1301] Client process 1313 disconnected
""".splitlines()


def test_what_a_real_one_wrote() -> None:
    assert culprits(SEEN) == [1313]
    assert culprits([line for line in SEEN if "encountered" not in line]) == []


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
    file.write_text("Fatal fault caused by client PID: 1\nServer is handling a fatal GPU error.\n")
    log = ServerLog(file)
    assert (log.culprits(), log.faulted()) == ([], False)
    with file.open("a") as more:
        more.write("Fatal fault caused by client PID: 2\nServer is handling a fatal GPU error.\n")
    assert (log.culprits(), log.faulted()) == ([2], True)
    log.forget()
    assert (log.culprits(), log.faulted()) == ([], False)
    file.write_text("Fatal fault caused by client PID: 3\n")
    assert (log.culprits(), log.faulted()) == ([3], False)
