"""The stand-in's MPS server as a state machine: whatever happens, in whatever order, its laws hold."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from mpspool.mps.simulated.shares import Share
from mpspool.mps.simulated.state import (
    SERVER_MOVES,
    Cut,
    Log,
    Order,
    Rebuild,
    Say,
    ServerState,
    ServerStatus,
    Xid,
)

ACTIVE, FAULT, INITIALIZING = ServerStatus.ACTIVE, ServerStatus.FAULT, ServerStatus.INITIALIZING
SERVER = 100


def ready() -> ServerState:
    state = ServerState(SERVER)
    state.ready()
    return state


def with_clients(*pids: int) -> ServerState:
    """A ready server; the clients' numbers are 0, 1, 2."""
    state = ready()
    for number, pid in enumerate(pids):
        state.attach(pid, number, Share())
    return state


def said(orders: Iterable[Order]) -> dict[int, str]:
    return {order.number: order.line for order in orders if isinstance(order, Say)}


def logged(orders: Iterable[Order]) -> str:
    return "\n".join(order.message for order in orders if isinstance(order, Log))


def test_client_is_connected_and_leaves() -> None:
    """It is told its server's pid; its end is no fault."""
    state = ready()
    assert said(state.attach(7, 0, Share())) == {0: "CONNECTED 100\n"}
    state.hear(0, "BUSY")
    assert state.busy
    state.hear(0, "IDLE")
    assert not state.busy
    orders = state.left(0)
    assert said(orders) == {}
    assert "assuming client {PID: 7, Context ID: 0} exit" in logged(orders)
    assert state.status is ACTIVE


def test_fault_hits_all_and_names_its_culprit() -> None:
    """All get the error of a bad access; all contexts of the culprit are named; new ones get 807."""
    state = with_clients(7, 8, 7)
    orders = state.hear(0, "FAULT 700")
    assert {number: line.split()[:2] for number, line in said(orders).items()} == {
        0: ["FAULT", "700"],
        1: ["FAULT", "700"],
        2: ["FAULT", "700"],
    }
    assert all("SIMULATED" in line for line in said(orders).values())
    assert Xid(31) in orders
    assert "Client {PID: 7, Context ID: 0} triggered a fatal GPU memory fault" in logged(orders)
    assert logged(orders).count("triggered") == 2, "of each context of that process"
    assert "The following client process have a sticky error set:\n7\n8" in logged(orders)
    assert state.status is FAULT
    refused = state.attach(9, 3, Share())
    assert said(refused)[3].startswith("REFUSED 807 SIMULATED ")
    assert Cut(3) in refused
    assert state.hear(1, "FAULT 700") == [], "there is nothing left to hit"


def test_server_rebuilds_once_all_it_hit_have_left() -> None:
    """Not before the last one has, who may have been busy, or terminated."""
    state = with_clients(7, 8)
    state.hear(1, "BUSY")
    state.fault()
    assert Rebuild() not in state.left(0)
    orders = state.terminate(8)
    assert orders[-1] == Rebuild()
    assert said(orders) == {}, "it has been told why"
    assert state.status is INITIALIZING
    assert said(state.attach(9, 2, Share()))[2].startswith("REFUSED 807")
    state.ready()
    assert state.status is ACTIVE


def test_fault_without_a_culprit_names_nobody() -> None:
    """As where the hardware does not say."""
    orders = with_clients(7, 8).fault()
    assert {line.split()[1] for line in said(orders).values()} == {"719"}
    assert "triggered" not in logged(orders)
    assert Xid(13) in orders


def test_memory_error_hits_all_and_is_nobodys_doing() -> None:
    """Whose memory it was gets its own error, by default the first client; the event is that of a contained one."""
    for pid, errors in ((None, {0: "214", 1: "719"}), (8, {0: "719", 1: "214"})):
        orders = with_clients(7, 8).ecc_error(pid)
        assert {number: line.split()[1] for number, line in said(orders).items()} == errors
        assert [order for order in orders if isinstance(order, Xid)] == [Xid(94)]
        assert "triggered" not in logged(orders)
    assert ready().ecc_error()[-1] == Rebuild(), "nobody was there"


def test_fault_of_nobody_rebuilds_at_once() -> None:
    """Nobody has to leave."""
    state = ready()
    assert state.fault()[-1] == Rebuild()
    assert state.status is INITIALIZING


def test_shot_while_busy_breaks_the_server_for_good() -> None:
    """All others are hit, and when they have left nothing is rebuilt."""
    state = with_clients(7, 8)
    for line in ("BUSY", "BUSY", "IDLE"):
        state.hear(0, line)
    orders = state.left(0)
    assert said(orders)[1].startswith("FAULT 719 SIMULATED")
    assert state.broken == "client 7 ended while its work ran"
    assert Rebuild() not in [*orders, *state.left(1)]
    assert state.status is FAULT
    assert state.fault() == []


def test_terminated_while_busy_hurts_nobody() -> None:
    """It alone is told, and cut off; an idle one is only cut off."""
    state = with_clients(7, 8)
    state.hear(0, "BUSY")
    orders = state.terminate(7)
    assert said(orders) == {0: "FAULT 810 SIMULATED client terminated\n"}
    assert orders[-1] == Cut(0)
    assert said(state.terminate(8)) == {}
    assert state.status is ACTIVE


def test_wedged_client_is_as_busy_as_it_was() -> None:
    """Shot while idle it does no harm; a client that was hit by a fault is not wedged as well."""
    state = with_clients(7, 8)
    assert said(state.wedge(7)) == {0: "WEDGED\n"}
    assert state.left(0)
    assert state.status is ACTIVE
    state.fault()
    assert state.wedge(8) == []


def test_lost_gpu_never_comes_back() -> None:
    """In whatever state it was lost."""
    for state in (with_clients(7), ServerState(SERVER), ready()):
        clients = list(state.clients)
        orders = state.lose_gpu()
        assert Xid(79) in orders
        assert [line.split()[1] for line in said(orders).values()] == ["719"] * len(clients)
        for number in clients:
            assert Rebuild() not in state.left(number)
        assert state.status is FAULT


def test_wishes_count_only_in_the_first_line() -> None:
    """They only lower what was given; nonsense is logged and changes nothing."""
    state = ready()
    state.attach(7, 0, Share(50.0, 2**30))
    state.hear(0, "WANTS thread_percentage=25 pinned_mem=4G priority=1")
    assert state.clients[0].share == Share(25.0, 2**30, 1)
    for line in ("WANTS thread_percentage=5", "IDLE", "FAULT x", "nonsense", ""):
        assert "means nothing now" in logged(state.hear(0, line))
    state.attach(8, 1, Share())
    assert "wants what cannot be had" in logged(state.hear(1, "WANTS priority=7"))
    assert (state.clients[0].share, state.clients[1].share) == (Share(25.0, 2**30, 1), Share())


def test_every_way_of_the_table_is_used() -> None:
    """And ready() is none that may be called twice."""
    assert {move for moves in SERVER_MOVES.values() for move in moves} == set(ServerStatus)
    with pytest.raises(Exception, match="cannot become ACTIVE"):
        ready().ready()


class AnyOrder(RuleBasedStateMachine):
    """Everything that can befall a server, at any time; what it must be is kept beside it."""

    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.state = ServerState(SERVER)
        self.number = 0
        self.status = INITIALIZING
        self.broken = False
        # By number: pid, pieces of work, whether it was hit.
        self.known: dict[int, tuple[int, int, bool]] = {}

    def take(self, orders: list[Order]) -> None:
        """Only clients that are there are spoken to, nobody twice, and cut ones are gone."""
        spoken = [order.number for order in orders if isinstance(order, Say)]
        assert len(spoken) == len(set(spoken))
        rebuilds = orders.count(Rebuild())
        assert rebuilds == (self.status is FAULT and not self.known and not self.broken)
        if rebuilds:
            self.status = INITIALIZING

    def hit(self, orders: list[Order], culprits: dict[int, int]) -> None:
        """Every client that was not hit is: all by 700 where that is what it was, else by its own error or 719."""
        others = 700 if 700 in culprits.values() else 719
        expected = {
            number: culprits.get(pid, others)
            for number, (pid, _, was_hit) in self.known.items()
            if not was_hit
        }
        assert {number: int(line.split()[1]) for number, line in said(orders).items()} == expected
        self.known = {number: (pid, work, True) for number, (pid, work, _) in self.known.items()}
        self.status = FAULT

    @rule()
    def become_ready(self) -> None:
        if self.status is INITIALIZING:
            self.state.ready()
            self.status = ACTIVE

    @rule(target=clients, pid=st.integers(1, 3))
    def attach(self, pid: int) -> object:
        number, self.number = self.number, self.number + 1
        orders = self.state.attach(pid, number, Share())
        (line,) = said(orders).values()
        if self.status is not ACTIVE:
            assert line.startswith("REFUSED 807")
            assert orders[-1] == Cut(number)
            return multiple()
        assert line == "CONNECTED 100\n"
        self.known[number] = (pid, 0, False)
        return number

    @rule(number=clients, line=st.sampled_from(["BUSY", "IDLE", "nonsense"]))
    def work(self, number: int, line: str) -> None:
        if number not in self.known:
            return
        pid, running, was_hit = self.known[number]
        assert said(self.state.hear(number, line)) == {}
        change = {"BUSY": 1, "IDLE": -1 if running else 0}.get(line, 0)
        self.known[number] = (pid, running + change, was_hit)

    @rule(number=clients, error=st.sampled_from([700, 719]))
    def own_fault(self, number: int, error: int) -> None:
        if number not in self.known:
            return
        pid, _, was_hit = self.known[number]
        orders = self.state.hear(number, f"FAULT {error}")
        if was_hit:
            assert orders == []
        else:
            self.hit(orders, {pid: error})

    @rule(culprit=st.none() | st.integers(1, 3))
    def injected_fault(self, culprit: int | None) -> None:
        orders = self.state.fault(culprit)
        if self.status is FAULT:
            assert orders == []
            return
        self.hit(orders, {} if culprit is None else {culprit: 700})
        self.take(orders)

    @rule(number=consumes(clients))
    def leave(self, number: int) -> None:
        """The connection ends, by whatever cause."""
        if number not in self.known:
            return
        _, running, was_hit = self.known.pop(number)
        orders = self.state.left(number)
        if running and not was_hit:
            self.broken = True
            self.hit(orders, {})
        else:
            assert said(orders) == {}
        self.take(orders)

    @rule(pid=st.integers(1, 3))
    def terminate(self, pid: int) -> None:
        mine = {number: client for number, client in self.known.items() if client[0] == pid}
        orders = self.state.terminate(pid)
        busy = {number for number, (_, running, was_hit) in mine.items() if running and not was_hit}
        assert set(said(orders)) == busy
        assert all(line.startswith("FAULT 810") for line in said(orders).values())
        assert [order.number for order in orders if isinstance(order, Cut)] == list(mine)
        for number in mine:
            del self.known[number]
        if mine:
            self.take(orders)

    @rule(pid=st.integers(1, 3))
    def wedge(self, pid: int) -> None:
        unhit = {number for number, (one, _, was_hit) in self.known.items() if one == pid and not was_hit}
        assert said(self.state.wedge(pid)) == dict.fromkeys(unhit, "WEDGED\n")

    @rule()
    def lose(self) -> None:
        orders = self.state.lose_gpu()
        self.broken = True
        self.hit(orders, {})
        self.take(orders)

    @invariant()
    def is_as_it_must_be(self) -> None:
        assert self.state.status is self.status
        assert bool(self.state.broken) == self.broken
        assert {
            number: (client.pid, client.running, client.hit) for number, client in self.state.clients.items()
        } == self.known

    @invariant()
    def laws_hold(self) -> None:
        """Nobody is hit while the server takes clients; whoever stays in a FAULT was hit; broken is for good."""
        hit = [client.hit for client in self.state.clients.values()]
        assert not (self.status is ACTIVE and any(hit))
        assert not (self.status is FAULT and not all(hit))
        assert not (self.status is INITIALIZING and hit)
        assert not (self.broken and self.status is not FAULT)


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestAnyOrder = AnyOrder.TestCase
