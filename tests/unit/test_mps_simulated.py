"""The stand-in's state and commands, without a process or a socket."""

from __future__ import annotations

from typing import Any

import pytest

from mpspool.mps.simulated.commands import Answer, Quit, StartServer, TerminateClient, answer
from mpspool.mps.simulated.state import MpsState, RefusedError

UUID = "GPU-00000001-0000-0000-0000-51301a7ed000"
PS_HEADER = "PID ID SERVER DEVICE NAMESPACE COMMAND\n"
PS_7 = "".join(f"7 {number} 100 GPU-00000001-0000-0000 4026531836 worker\n" for number in (0, 1))
PS_8 = "8 2 100 GPU-00000001-0000-0000 4026531836 worker\n"


@pytest.fixture
def state() -> MpsState:
    """One ready server (100) with process 7 in two contexts and process 8 in one."""
    state = MpsState(UUID, max_clients=3)
    state.server_started(100, uid=1000)
    state.server_ready(100)
    for pid in (7, 7, 8):
        state.admit(100, pid, "worker", 4026531836)
    return state


def test_server_belongs_to_its_user() -> None:
    """A user without a server needs one, and a second client of that user does not."""
    state = MpsState(UUID, 48)
    assert state.server_for(1000) is None
    state.server_started(100, 1000)
    server = state.server_for(1000)
    assert server is not None
    assert server.pid == 100
    assert state.server_for(0) is None


def test_client_limit_counts_contexts_and_frees_them(state: MpsState) -> None:
    """One more than the limit is CUDA error 808; a context that leaves makes room."""
    with pytest.raises(RefusedError) as refusal:
        state.admit(100, 9, "worker", 0)
    assert refusal.value.cuda_error == 808
    assert state.left(100, 0) is not None
    assert state.left(100, 0) is None
    state.admit(100, 9, "worker", 0)
    assert answer(state, "get_client_list 100").text == "7\n8\n9\n"


def test_ended_server_takes_its_clients_and_refuses_more(state: MpsState) -> None:
    """The clients of a dead server are named once, and it admits nobody: CUDA error 805."""
    assert [client.pid for client in state.server_ended(100)] == [7, 7, 8]
    assert state.server_ended(100) == []
    assert state.left(100, 0) is None
    with pytest.raises(RefusedError) as refusal:
        state.admit(100, 9, "worker", 0)
    assert refusal.value.cuda_error == 805


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("", ""),
        ("get_server_list", "100\n"),
        ("get_server_status 100", "ACTIVE\n"),
        ("  get_client_list   100 ", "7\n8\n"),
        ("get_device_client_list", f"Device {UUID}\n7\n8\n"),
        ("get_device_client_list 100", f"Device {UUID}\n7\n8\n"),
        ("get_default_active_thread_percentage", "100.0\n"),
        ("ps", PS_HEADER + PS_7 + PS_8),
        ("ps -p 8", PS_HEADER + PS_8),
    ],
)
def test_lists_have_the_documented_form(state: MpsState, line: str, text: str) -> None:
    """What a script that reads the real daemon gets here too."""
    assert answer(state, line) == Answer(text)


@pytest.mark.parametrize(
    ("line", "order"),
    [
        ("start_server -uid 1000", StartServer(1000)),
        ("terminate_client 100 7", TerminateClient(100, 7)),
        ("quit", Quit()),
    ],
)
def test_what_is_to_be_done_is_an_order(state: MpsState, line: str, order: Any) -> None:
    """Commands that act change nothing themselves."""
    assert answer(state, line) == Answer(order=order)
    assert answer(state, "get_client_list 100").text == "7\n8\n"


@pytest.mark.parametrize(
    "line",
    [
        "get_servers",
        "get_server_status",
        "get_server_status 5",
        "get_client_list x",
        "get_client_list 5",
        "start_server",
        "start_server -uid x",
        "terminate_client 100",
        "terminate_client 5 7",
        "terminate_client 100 9",
        "ps 7",
    ],
)
def test_refusals_fail_and_say_who_refuses(state: MpsState, line: str) -> None:
    """An unknown command, a wrong argument or an unknown pid is refused with a reason."""
    refusal = answer(state, line)
    assert refusal.failed
    assert refusal.text.startswith("SIMULATED: ")
    assert refusal.order is None


def test_server_is_initializing_until_it_is_ready() -> None:
    """A started server is listed, but not ACTIVE, before it says so."""
    state = MpsState(UUID, 48)
    state.server_started(100, 0)
    assert answer(state, "get_server_status 100").text == "INITIALIZING\n"
    state.server_ready(100)
    assert answer(state, "get_server_status 100").text == "ACTIVE\n"
