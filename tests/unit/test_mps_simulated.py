"""The stand-in daemon's state and commands, without a process or a socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mpspool.mps.simulated.busy_time import BusyTime, later
from mpspool.mps.simulated.commands import (
    FOR_GOOD_S,
    Answer,
    Fail,
    Quit,
    StartServer,
    TellClients,
    TerminateClient,
    answer,
)
from mpspool.mps.simulated.daemon_state import MpsState, RefusedError
from mpspool.mps.simulated.shares import Share, Wish, of_environment, wish
from mpspool.mps.simulated.state import ServerStatus

UUID = "GPU-00000001-0000-0000-0000-51301a7ed000"
PS_HEADER = "PID       ID        SERVER         DEVICE                    NAMESPACE      COMMAND        \n"
_PS_REST = "100            GPU-00000001-0000-0000    4026531836     worker         \n"
PS_7 = "".join(f"7         {number}         {_PS_REST}" for number in (0, 1))
PS_8 = f"8         2         {_PS_REST}"
GIB = 2**30


@pytest.fixture
def state() -> MpsState:
    """One ready server (100) with process 7 in two contexts and process 8 in one."""
    state = MpsState(UUID, max_clients=3)
    start(state, 100)
    for pid in (7, 7, 8):
        state.admit(100, pid, "worker", 4026531836)
    return state


def start(state: MpsState, pid: int, uid: int = 1000) -> None:
    state.server_started(pid, uid)
    state.server_moved(pid, ServerStatus.ACTIVE)


def said(state: MpsState, line: str) -> str:
    reply = answer(state, line)
    assert not reply.failed, reply.text
    return reply.text


def test_server_belongs_to_its_user() -> None:
    """A user without a server needs one, and a second client of that user does not."""
    state = MpsState(UUID, 48)
    assert state.server_for(1000) is None
    assert state.in_the_way(1000) == []
    state.server_started(100, 1000)
    server = state.server_for(1000)
    assert server is not None
    assert server.pid == 100
    assert state.server_for(0) is None


def test_one_user_at_a_time(state: MpsState) -> None:
    """Another's server is in the way until it has ended, and is ended once nobody uses it; its own user's is not."""
    (other,) = state.in_the_way(0)
    assert not other.unused
    assert state.in_the_way(1000) == []
    assert answer(state, "start_server -uid 0").text.startswith("SIMULATED: start_server: server 100")
    for number in (0, 1, 2):
        state.left(100, number)
    other.expected = 1
    assert not other.unused, "a client waits for it to be ready"
    other.expected = 0
    assert other.unused
    assert answer(state, "start_server -uid 0").order == StartServer(0)
    other.retiring = True
    assert state.server_for(1000) is None, "who comes now needs a new one"
    assert state.in_the_way(1000) == [other]


def test_client_limit_counts_contexts_and_frees_them(state: MpsState) -> None:
    """One more than the limit is CUDA error 808; a context that leaves makes room."""
    with pytest.raises(RefusedError) as refusal:
        state.admit(100, 9, "worker", 0)
    assert refusal.value.cuda_error == 808
    assert state.left(100, 0) is not None
    assert state.left(100, 0) is None
    state.admit(100, 9, "worker", 0)
    assert said(state, "get_client_list 100") == "7\n8\n9\n"


def test_ended_server_takes_its_clients_and_refuses_more(state: MpsState) -> None:
    """The clients of a dead server are named once, and it admits nobody: CUDA error 805."""
    assert [client.pid for client in state.server_ended(100)] == [7, 7, 8]
    assert state.server_ended(100) == []
    assert state.left(100, 0) is None
    with pytest.raises(RefusedError) as refusal:
        state.admit(100, 9, "worker", 0)
    assert refusal.value.cuda_error == 805


@pytest.mark.parametrize("status", [ServerStatus.FAULT, ServerStatus.INITIALIZING])
def test_server_that_is_not_active_refuses(state: MpsState, status: ServerStatus) -> None:
    """CUDA error 807, also where there would be room."""
    state.left(100, 0)
    state.server_moved(100, status)
    assert said(state, "get_server_status 100") == f"{status.value}\n"
    with pytest.raises(RefusedError) as refusal:
        state.admit(100, 9, "worker", 0)
    assert refusal.value.cuda_error == 807


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("", ""),
        ("get_server_list", "100\n"),
        ("get_server_status 100", "ACTIVE\n"),
        ("  get_client_list   100 ", "7\n8\n"),
        ("get_device_client_list", "[0] 00:00.0, SIMULATED GPU\n7.0\n7.1\n8.2\n"),
        ("get_device_client_list 100", "[0] 00:00.0, SIMULATED GPU\n7.0\n7.1\n8.2\n"),
        ("get_default_active_thread_percentage", "100.0\n"),
        ("get_active_thread_percentage 100", "100.0\n"),
        ("get_default_device_pinned_mem_limit 0", ""),
        ("get_device_pinned_mem_limit 100 0", ""),
        ("get_default_client_priority", "0\n"),
        ("ps", PS_HEADER + PS_7 + PS_8),
        ("ps -p 100", PS_HEADER + PS_7 + PS_8),
    ],
)
def test_lists_have_the_real_ones_form(state: MpsState, line: str, text: str) -> None:
    """What a script that reads the real daemon gets here too."""
    assert answer(state, line) == Answer(text)


@pytest.mark.parametrize(
    ("line", "text", "order"),
    [
        ("start_server -uid 1000", "", StartServer(1000)),
        ("terminate_client 100 7", "0\n", TerminateClient(100, 7)),
        ("quit", "", Quit(None)),
        ("quit -t 1", "", Quit(1)),
        ("simulate_clients", "", TellClients()),
        ("simulate_fault server-fault", "SIMULATED: server-fault\n", Fail("server-fault", 100)),
        ("simulate_fault server-fault 8", "SIMULATED: server-fault\n", Fail("server-fault", 100, 8)),
        ("simulate_fault client-wedge", "SIMULATED: client-wedge\n", Fail("client-wedge", 100, 7)),
        ("simulate_fault client-wedge 8", "SIMULATED: client-wedge\n", Fail("client-wedge", 100, 8)),
        ("simulate_fault server-death", "SIMULATED: server-death\n", Fail("server-death", 100)),
        ("simulate_fault daemon-death", "SIMULATED: daemon-death\n", Fail("daemon-death")),
        ("simulate_fault gpu-lost", "SIMULATED: gpu-lost\n", Fail("gpu-lost")),
        ("simulate_fault ecc", "SIMULATED: ecc\n", Fail("ecc", 100)),
        ("simulate_fault ecc 8", "SIMULATED: ecc\n", Fail("ecc", 100, 8)),
        ("simulate_fault daemon-hang", "SIMULATED: daemon-hang\n", Fail("daemon-hang", seconds=FOR_GOOD_S)),
        ("simulate_fault daemon-hang 2.5", "SIMULATED: daemon-hang\n", Fail("daemon-hang", seconds=2.5)),
    ],
)
def test_what_is_to_be_done_is_an_order(state: MpsState, line: str, text: str, order: Any) -> None:
    """Commands that act on processes change nothing themselves."""
    assert answer(state, line) == Answer(text, order=order)
    assert said(state, "get_client_list 100") == "7\n8\n"


@pytest.mark.parametrize(
    "line",
    [
        "get_server_status",
        "get_client_list x",
        "start_server",
        "start_server -uid x",
        "terminate_client 100",
        "ps 7",
        "quit 1",
        "quit -t",
        "quit -t soon",
        "set_default_active_thread_percentage",
        "set_default_active_thread_percentage 0",
        "set_default_active_thread_percentage 100.1",
        "set_default_active_thread_percentage nan",
        "set_active_thread_percentage 50",
        "set_active_thread_percentage 100 -1",
        "set_default_device_pinned_mem_limit 0",
        "set_default_device_pinned_mem_limit 0 2",
        "set_default_device_pinned_mem_limit 0 1.5G",
        "set_device_pinned_mem_limit 100 0",
        "set_device_pinned_mem_limit 100 0 2K",
        "set_default_client_priority 2",
        "set_default_client_priority",
        "simulate_fault",
        "simulate_fault fire",
        "simulate_fault server-fault 9",
        "simulate_fault server-fault 7 8",
        "simulate_fault gpu-lost 7",
        "simulate_fault ecc 9",
        "simulate_fault daemon-hang 0",
        "simulate_fault daemon-hang nan",
        "simulate_fault daemon-hang soon",
        "simulate_fault daemon-hang 1 2",
    ],
)
def test_wrong_arguments_are_refused_in_words_of_our_own(state: MpsState, line: str) -> None:
    """Nothing is changed."""
    refusal = answer(state, line)
    assert refusal.failed
    assert refusal.text.startswith("SIMULATED: ")
    assert refusal.order is None
    assert state.share(100) == Share()
    assert state.defaults.share(UUID) == Share()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("get_servers", 'Unknown command "get_servers"'),
        ("get_server_status 5", "Server 5 not found"),
        ("get_client_list 5", "Server 5 not found"),
        ("ps -p 7", "Server 7 not found"),
        ("set_active_thread_percentage 5 50", "Server 5 not found"),
        ("set_device_pinned_mem_limit 5 0 2G", "Server 5 not found"),
        ("terminate_client 5 7", "Server 5 not found\nServer 5 not found!\n1"),
        ("terminate_client 100 9", "Invalid process 9!\n1"),
    ],
)
def test_refusals_are_answers_in_the_real_ones_words(state: MpsState, line: str, text: str) -> None:
    assert answer(state, line) == Answer(f"{text}\n")


def test_nobody_is_listed_before_there_is_a_server() -> None:
    state = MpsState(UUID, 48)
    assert answer(state, "ps") == Answer("Server not found\n")
    assert answer(state, "get_device_client_list") == Answer("")


@pytest.mark.parametrize("what", ["server-fault", "client-wedge", "ecc", "server-death"])
def test_what_is_not_there_cannot_fail(what: str) -> None:
    """A server, or a client of one, must have come first."""
    state = MpsState(UUID, 48)
    assert answer(state, f"simulate_fault {what}").text == "SIMULATED: simulate_fault: there is no server\n"


def test_defaults_are_for_servers_to_come(state: MpsState) -> None:
    """They are told back at once; the server that runs keeps what it has."""
    assert said(state, "set_default_active_thread_percentage 12.5") == "12.5\n"
    assert said(state, "set_default_device_pinned_mem_limit 0 2G") == ""
    assert said(state, "get_default_active_thread_percentage") == "12.5\n"
    assert said(state, "get_default_device_pinned_mem_limit 0") == "2G\n"
    assert state.share(100) == Share()
    start(state, 101)
    assert state.share(101) == Share(12.5, 2 * GIB)
    assert said(state, "get_active_thread_percentage 101") == "12.5\n"
    assert said(state, "get_device_pinned_mem_limit 101 0") == "2G\n"


def test_a_servers_own_values_are_for_its_clients_to_come(state: MpsState) -> None:
    """They may be above the default, and other servers have their own."""
    said(state, "set_default_active_thread_percentage 10")
    start(state, 101)
    assert said(state, "set_active_thread_percentage 101 60") == "60.0\n"
    assert said(state, f"set_device_pinned_mem_limit 101 {UUID} 1536M") == ""
    assert said(state, "get_device_pinned_mem_limit 101 0") == "1536M\n"
    assert state.share(101) == Share(60.0, 3 * GIB // 2)
    assert state.share(100) == Share()
    assert said(state, "get_default_active_thread_percentage") == "10.0\n"


def test_priority_is_for_clients_to_come_on_every_server(state: MpsState) -> None:
    """Unlike the other defaults."""
    assert said(state, "set_default_client_priority 1") == ""
    assert said(state, "get_default_client_priority") == "1\n"
    assert state.share(100) == Share(priority=1)


def test_a_devices_name_is_not_checked_and_the_last_one_counts() -> None:
    """As NVIDIA's: a name that is no device's is dropped when a server starts; index and UUID mean the same."""
    state = MpsState(UUID, 48)
    for device, limit in (("0", "1G"), (UUID, "2G"), ("7", "3G")):
        said(state, f"set_default_device_pinned_mem_limit {device} {limit}")
    start(state, 100)
    assert state.share(100).pinned_mem_bytes == 2 * GIB
    assert said(state, "get_default_device_pinned_mem_limit 7") == "3G\n"
    said(state, "set_default_device_pinned_mem_limit 0 512M")
    start(state, 101)
    assert state.share(101).pinned_mem_bytes == GIB // 2


def test_the_environment_sets_what_the_daemon_begins_with() -> None:
    """As the commands do; what cannot be understood keeps it from starting."""
    variables = {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "1=9G, 0=512MB",
        "CUDA_MPS_CLIENT_PRIORITY": "1",
    }
    assert of_environment(variables).share(UUID) == Share(25.0, GIB // 2, 1)
    assert of_environment({}).share(UUID) == Share()
    for name in variables:
        with pytest.raises(ValueError, match="must be"):
            of_environment({name: "much"})


def test_a_client_only_lowers_its_limits_and_chooses_its_priority() -> None:
    """Whatever it asks for, it has no more than the daemon gives."""
    given = Share(50.0, 2 * GIB, 0)
    assert given.lowered(Wish()) == given
    assert given.lowered(wish(["thread_percentage=80", "pinned_mem=4G"])) == given
    assert given.lowered(wish(["thread_percentage=20", "pinned_mem=0=1G", "priority=1"])) == Share(
        20.0, GIB, 1
    )
    assert Share(priority=1).lowered(wish(["priority=0", "pinned_mem=1G"])) == Share(100.0, GIB, 0)
    for words in (["size=1"], ["priority"], ["thread_percentage=0"]):
        with pytest.raises(ValueError, match=r"nothing a client can want|must be"):
            wish(words)


def test_busy_time_is_that_of_the_last_second() -> None:
    """Measured between any two moments, and told on to a later one while nothing changes."""
    busy = BusyTime(100.0)
    busy.set(True, 100.0)
    busy.set(False, 100.25)
    assert busy.share(100.5) == pytest.approx(0.25)
    assert busy.share(101.125) == pytest.approx(0.125)
    assert busy.share(102.0) == 0
    for step in range(1000):
        busy.set(step % 2 == 0, 110 + step / 500)
    assert busy.share(112.0) == pytest.approx(0.5, abs=0.01)
    busy.set(True, 112.0)
    assert busy.share(113.5) == 1
    assert later(0.25, True, 0.5) == pytest.approx(0.625)
    assert later(0.25, False, 0.5) == pytest.approx(0.125)
    assert later(0.25, True, 60) == 1


def test_asking_is_light() -> None:
    """A daemon is asked once a second and GPU: the asker imports nothing that only the daemon needs."""
    source = Path(__file__).parents[2] / "mpspool" / "mps" / "simulated" / "nvidia_cuda_mps_control.py"
    top = [line for line in source.read_text().splitlines() if line.startswith(("import ", "from "))]
    assert not [line for line in top if "asyncio" in line or "subprocess" in line or "control_daemon" in line]
