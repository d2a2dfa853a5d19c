"""Who caused a fault, from an MPS server's log."""

from __future__ import annotations

from pathlib import Path

from mpspool.mps.server_log import Fault, ServerLog, fault

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


# Driver 580.159 on an H200: 2843 wrote to an address that is not mapped, 2396 and 2751 were busy.
SEEN = """\
[2026-11-27 00:10:29.370 Server  2417] Client {PID: 2396, Context: 1} encountered a fatal GPU error.
[2026-11-27 00:10:29.370 Server  2417] Server is handling a fatal GPU error.
[2026-11-27 00:10:29.370 Server  2417] Client {PID: 2396, Context ID: 1} on device 0 to be torn down
[2026-11-27 00:10:29.370 Server  2417] Client {PID: 2843, Context ID: 1} on device 0 to be torn down
[2026-11-27 00:10:29.370 Server  2417] Client {PID: 2751, Context ID: 1} on device 0 to be torn down
[2026-11-27 00:10:29.370 Server  2417] All clients belonging to error trigging process 2396 will be torn down
[2026-11-27 00:10:29.370 Server  2417] Client {PID: 2396, Context ID: 1} on the error-trigging process 2396 to be torn down
[2026-11-27 00:10:29.370 Server  2417] All clients belonging to error trigging process 2843 will be torn down
[2026-11-27 00:10:29.370 Server  2417] Client {PID: 2843, Context ID: 1} on the error-trigging process 2843 to be torn down
[2026-11-27 00:10:29.370 Server  2417] All clients belonging to error trigging process 2751 will be torn down
[2026-11-27 00:10:29.370 Server  2417] Client {PID: 2751, Context ID: 1} on the error-trigging process 2751 to be torn down
[2026-11-27 00:10:29.370 Server  2417] The following devices will be reset:
[2026-11-27 00:10:29.370 Server  2417] 0
[2026-11-27 00:10:29.370 Server  2417] The following client process have a sticky error set:
[2026-11-27 00:10:29.370 Server  2417] 2396
[2026-11-27 00:10:29.370 Server  2417] 2843
[2026-11-27 00:10:29.370 Server  2417] 2751
[2026-11-27 00:10:29.395 Server  2417] Server failed to recevie command with status 806, assuming client {PID: 2843, Context ID: 1} exit
[2026-11-27 00:10:29.395 Server  2417] Client {PID: 2843, Context ID: 1} exiting. Number of active client contexts is 2.
[2026-11-27 00:10:29.411 Server  2417] Client process 2843 disconnected
[2026-11-27 00:10:29.434 Server  2417] Destroy server context on device 0 (NVIDIA H200)
""".splitlines()


def test_what_a_real_one_wrote() -> None:
    """Of who caused it nothing: the client that "encountered" it was a bystander."""
    assert fault(SEEN) == Fault(hit=[2396, 2843, 2751], culprits=[])


def test_those_that_were_hit_are_not_the_cause() -> None:
    assert fault(DOCUMENTED).culprits == []


def test_the_only_one_that_was_hit_is() -> None:
    assert fault([line for line in DOCUMENTED if "11643" not in line]).culprits == [11641]


def test_one_that_is_named() -> None:
    line = "[2026-01-02 03:04:05.006 Server 99] Fatal GPU memory fault triggered by client PID: 11643"
    assert fault([*DOCUMENTED, line]).culprits == [11643]


def test_an_ordinary_end_is_no_fault() -> None:
    """Newer servers word it like a failure."""
    line = "Server failed to recevie command with status 806, assuming client {PID: 814, Context ID: 0} exit"
    assert fault([line]).culprits == []


def test_only_what_was_added_counts(tmp_path: Path) -> None:
    """Also where the file was replaced by a shorter one, and where there is none yet."""
    file = tmp_path / "server.log"
    hit = "The following clients have a sticky error set:\n7\n8\n"
    nothing = Fault([], [])
    assert ServerLog(file).fault() == nothing
    file.write_text(f"Fatal fault caused by client PID: 1\n{hit}")
    log = ServerLog(file)
    assert log.fault() == nothing
    with file.open("a") as more:
        more.write(f"Fatal fault caused by client PID: 2\n{hit}")
    assert log.fault() == Fault([7, 8], [2])
    log.forget()
    assert log.fault() == nothing
    file.write_text("Fatal fault caused by client PID: 3\n")
    assert log.fault() == Fault([], [3])
