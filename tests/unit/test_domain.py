"""A GPU as a fault domain: single stories, and what holds whatever happens in whatever order."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mpspool.core.settings import RestartSettings
from mpspool.core.states import DomainState
from mpspool.supervisor.pool.domain import (
    MAX_DAEMON_RESTARTS,
    PROVEN_S,
    REBUILD_S,
    SILENT_S,
    Domain,
    RestartDaemon,
    Server,
)

RESTART = RestartSettings(backoff_s=1.0, max_backoff_s=4.0)


def domain() -> Domain:
    return Domain("gpu0", RESTART)


def test_a_fault_that_passes() -> None:
    """FAULTED until the last client has gone and the server takes new ones; RECOVERING until all are READY."""
    gpu = domain()
    assert gpu.fault("server in FAULT", 100)
    assert not gpu.fault("the same, seen by somebody else", 100)
    assert gpu.tick(100.1, clients=2, server=Server.FAULT) is None
    assert gpu.tick(100.2, clients=0, server=Server.FAULT) is None
    assert gpu.state is DomainState.FAULTED
    assert gpu.tick(101.3, clients=0, server=Server.USABLE) is None
    assert (gpu.state, gpu.reason) == (DomainState.RECOVERING, "server in FAULT")
    gpu.recovered(103)
    assert (gpu.state, gpu.reason, gpu.faults) == (DomainState.SERVING, "", 1)


def test_clients_that_linger_hold_up_the_recovery() -> None:
    """A server that says ACTIVE with a client of ours still there has not rebuilt yet; one that cannot be ended, ever,
    costs the GPU.
    """
    gpu = domain()
    gpu.fault("fault", 0)
    for now in range(int(SILENT_S)):
        assert gpu.tick(now, clients=1, server=Server.USABLE) is None
    assert gpu.state is DomainState.FAULTED
    now = SILENT_S
    while gpu.state is DomainState.FAULTED:
        gpu.tick(now, clients=1, server=Server.USABLE)
        now += 1
    assert gpu.state is DomainState.LOST
    assert now > SILENT_S * MAX_DAEMON_RESTARTS


def test_a_restart_is_given_its_time() -> None:
    """A server in FAULT is given a few seconds once; after its daemon was restarted, as long as a daemon may take."""
    gpu = domain()
    gpu.fault("fault", 0)
    gpu.tick(0, clients=0, server=Server.FAULT)
    assert gpu.tick(REBUILD_S, clients=0, server=Server.FAULT) == RestartDaemon()
    gpu.tick(REBUILD_S + 0.1, clients=0, server=Server.FAULT)
    assert gpu.tick(2 * REBUILD_S + 0.2, clients=0, server=Server.FAULT) is None
    gpu.tick(2 * REBUILD_S + 0.3, clients=0, server=Server.USABLE)
    assert gpu.state is DomainState.RECOVERING


def test_faults_in_a_row_wait_longer() -> None:
    """The first recovery begins at once, the next ones after 1, 2 and 4 seconds; after a minute of peace, anew."""
    gpu = domain()
    now = 1000.0
    for wait_s in (0, 1, 2, 4, 4):
        gpu.fault("fault", now)
        if wait_s:
            gpu.tick(now + wait_s - 0.1, clients=0, server=Server.USABLE)
            assert gpu.state is DomainState.FAULTED
        gpu.tick(now + wait_s, clients=0, server=Server.USABLE)
        assert gpu.state is DomainState.RECOVERING
        now += wait_s + 1
        gpu.recovered(now)
    now += PROVEN_S
    gpu.fault("fault", now)
    gpu.tick(now, clients=0, server=Server.USABLE)
    assert gpu.state is DomainState.RECOVERING


def test_a_server_that_stays_in_fault() -> None:
    """Its daemon is restarted, at most three times; then the GPU is lost, and the reason says what was tried."""
    gpu = domain()
    gpu.fault("shot while busy", 0)
    now, restarts = 0.0, 0
    while gpu.state is DomainState.FAULTED:
        now += 0.5
        restarts += isinstance(gpu.tick(now, clients=0, server=Server.FAULT), RestartDaemon)
    assert restarts == MAX_DAEMON_RESTARTS
    assert gpu.state is DomainState.LOST
    assert now >= REBUILD_S * (MAX_DAEMON_RESTARTS + 1)
    assert gpu.reason.startswith("shot while busy; 3 restarts of its MPS daemon did not help")
    assert not gpu.fault("again", now)
    assert not gpu.lost("again")


def test_a_daemon_that_is_silent_is_given_longer() -> None:
    """It may be on its way back by itself."""
    gpu = domain()
    gpu.fault("daemon ended", 0)
    gpu.tick(0.1, clients=0, server=Server.SILENT)
    assert gpu.tick(SILENT_S, clients=0, server=Server.SILENT) is None
    assert gpu.tick(SILENT_S + 0.1, clients=0, server=Server.SILENT) == RestartDaemon()


class DomainMachine(RuleBasedStateMachine):
    """Any order of faults, losses, ends of clients, answers and time."""

    def __init__(self) -> None:
        super().__init__()
        self.gpu = domain()
        self.now = 0.0
        self.clients = 4
        self.server = Server.USABLE
        self.lost = False
        self.restarts = 0

    @rule(seconds=st.floats(0, 40))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(server=st.sampled_from(Server))
    def the_daemon_says(self, server: Server) -> None:
        self.server = server

    @rule()
    def fault(self) -> None:
        before = self.gpu.state
        news = self.gpu.fault("fault", self.now)
        assert news == (before in (DomainState.SERVING, DomainState.RECOVERING))
        if news:
            self.restarts = 0

    @rule()
    def lose(self) -> None:
        self.gpu.lost("gone")

    @precondition(lambda self: self.gpu.state in (DomainState.FAULTED, DomainState.LOST) and self.clients)
    @rule()
    def a_client_ends(self) -> None:
        self.clients -= 1

    @precondition(lambda self: self.gpu.state in (DomainState.SERVING, DomainState.RECOVERING))
    @rule()
    def a_client_starts(self) -> None:
        self.clients += 1

    @rule()
    def tick(self) -> None:
        before = self.gpu.state
        done = self.gpu.tick(self.now, self.clients, self.server)
        if self.gpu.state is not before:
            assert before is DomainState.FAULTED
            if self.gpu.state is DomainState.RECOVERING:
                assert self.clients == 0, "nothing comes back before all have gone"
                assert self.server is Server.USABLE
        if done:
            self.restarts += 1
            assert self.restarts <= MAX_DAEMON_RESTARTS

    @rule()
    def all_ready(self) -> None:
        self.gpu.recovered(self.now)

    @invariant()
    def lost_is_for_ever(self) -> None:
        self.lost |= self.gpu.state is DomainState.LOST
        assert self.lost == (self.gpu.state is DomainState.LOST)

    @invariant()
    def a_reason_where_there_is_need_of_one(self) -> None:
        assert bool(self.gpu.reason) == (self.gpu.state is not DomainState.SERVING)


TestDomain = DomainMachine.TestCase
