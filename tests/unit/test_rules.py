"""From settings and metadata to what the scheduler goes by."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from mpspool.core.errors import Code, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.settings import BatchingSettings, QueueSettings, RouterSettings, SchedulingSettings
from mpspool.router.scheduling import rules
from mpspool.router.scheduling.entry import Entry
from mpspool.router.scheduling.load import Limits
from mpspool.router.scheduling.policy import Own, edf


def settings(**scheduling: object) -> RouterSettings:
    chosen = SchedulingSettings(**scheduling)  # type: ignore[arg-type]
    return RouterSettings(run_dir="", host="", grpc_port=0, rest_port=0, scheduling=chosen)


def test_settings_become_rules() -> None:
    """Each of them."""
    chosen = settings(running_per_device=3, slow_lane=2, slow_ms=1.5, fair_by="peer", refuse_late=False)
    pool = rules.pool_rules(chosen)
    assert (pool.dispatch, pool.limits, pool.long_us) == ("least_loaded", Limits(3, 2), 1500)
    batching = BatchingSettings(max_batch_size=7)
    queue = rules.queue_rules(chosen, QueueSettings(policy="edf", max_queued_requests=5), batching)
    assert (queue.policy, queue.max_requests, queue.batching) == (edf, 5, batching)
    assert (queue.fair, queue.refuse_late) == (True, False)


def test_a_policy_that_cannot_be_had_does_not_stop_the_router() -> None:
    """Requests go in the order of arrival; the log says why, and so do the router's figures."""
    with capture_logs() as logs:
        queue = rules.queue_rules(settings(), QueueSettings(policy="nosuch:policy"), None)
    assert isinstance(queue.policy, Own)
    assert "nosuch" in queue.policy.error
    entry = Entry(ModelVersion("a", 1), "", b"", 0)
    entry.arrived_s = 3.5
    assert (queue.policy(entry), queue.policy.failures) == (3.5, 1)
    assert [line["policy"] for line in logs] == ["nosuch:policy"]


def test_a_policy_whose_import_ends_the_process_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a script does that lacks its guard: each router after it would end as well."""
    (tmp_path / "ends_at_once.py").write_text("import sys\nsys.exit('no arguments')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with capture_logs():
        queue = rules.queue_rules(settings(), QueueSettings(policy="ends_at_once:main"), None)
    assert isinstance(queue.policy, Own)
    assert queue.policy.error == "SystemExit: no arguments"


def test_what_the_pool_tells_is_read() -> None:
    """And a pool that tells nothing means the defaults."""
    assert rules.told({}) == (QueueSettings(), None)
    item = {"queue": {"policy": "sjf"}, "batching": {"max_batch_size": 3}}
    assert rules.told(item) == (QueueSettings(policy="sjf"), BatchingSettings(max_batch_size=3))


@pytest.mark.parametrize(
    ("said", "priority"), [({}, 0), ({"p": "7"}, 7), ({"p": "-12"}, -12), ({"q": "7"}, 0)]
)
def test_priority_is_said_in_the_metadata(said: dict[str, str], priority: int) -> None:
    """Under the key that is configured."""
    assert rules.Callers("P", "none").priority(said) == priority


@pytest.mark.parametrize("text", ["", "high", "1.5", "1000", "٣"])
def test_what_is_no_priority_is_the_clients_error(text: str) -> None:
    """It names the key, what was said and what may be."""
    with pytest.raises(PoolError, match=r"^p is .* from -999 to 999") as refused:
        rules.Callers("p", "none").priority({"p": text})
    assert refused.value.code is Code.INVALID_ARGUMENT
    assert rules.Callers("", "none").priority({"p": text}) == 0


@pytest.mark.parametrize(
    ("fair_by", "client"),
    [("none", ""), ("peer", "10.0.0.1"), ("metadata:Tenant", "acme"), ("metadata:x", "")],
)
def test_whose_share_it_is(fair_by: str, client: str) -> None:
    """Nobody's, the peer's, or that of what the metadata names."""
    callers = rules.Callers("p", fair_by)
    assert callers.client({"tenant": "acme"}, "10.0.0.1:4711") == client
    assert callers.name({"tenant": "acme"}, "10.0.0.1:4711") == (client if fair_by != "none" else "10.0.0.1")
