"""Which request is next, and what may wait: as configured, and as routers are told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mpspool.core.errors import StartError
from mpspool.core.settings import QueueSettings, RouterSettings, SchedulingSettings
from mpspool.supervisor.config.schema import PoolConfig, load_config, read_config
from mpspool.supervisor.cpus import Cpu, Topology
from mpspool.supervisor.planning import preflight
from mpspool.supervisor.planning.drafts import Machine
from mpspool.supervisor.planning.plan import Plan, plan, to_settings
from mpspool.supervisor.planning.policies import PolicyError, find_policy

GIB = 2**30


def write(folder: Path, text: str) -> Path:
    path = folder / "pool.yaml"
    path.write_text(text)
    return path


def read(
    tmp_path: Path, text: str = "models: {half: x}", flags: dict[str, object] | None = None, **environ: str
) -> PoolConfig:
    return load_config(write(tmp_path, text), {"run_dir": "/run/pool", **(flags or {})}, environ)


def planned(config: PoolConfig) -> Plan:
    machine = Machine((), Topology(tuple(Cpu(0, cpu, cpu) for cpu in range(4)), None), None)
    versions = {model.name: (1, Path(model.base_path) / "1") for model in config.models}
    queues, problems = preflight.read_queues(config, versions)
    if problems:
        raise StartError(problems)
    return plan(config, machine, versions, queues)


def queues(config: PoolConfig) -> list[QueueSettings]:
    return [model.queue for model in planned(config).models]


def router(config: PoolConfig) -> RouterSettings:
    return to_settings(planned(config), config).router


def refused(tmp_path: Path, text: str, flags: dict[str, object] | None = None, **environ: str) -> list[str]:
    config, findings = read_config(write(tmp_path, text), flags or {}, environ)
    return [str(problem) for problem in findings.told(preflight.read_queues(config, {})[1])]


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the supervisor could import from, with two modules that nobody may import here."""
    folder = tmp_path / "site"
    (folder / "mine/inner").mkdir(parents=True)
    for name in ("mine/__init__.py", "mine/inner/__init__.py", "mine/inner/policy.py", "alone.py"):
        (folder / name).write_text("raise AssertionError('imported')")
    point = folder / "mine-1.0.dist-info"
    point.mkdir()
    (point / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (point / "entry_points.txt").write_text(
        "[mpspool.policies]\nshortest-tenant = mine.inner.policy:Shortest.make\nbroken = gone.away:X\nfifo = alone:X\n"
    )
    monkeypatch.syspath_prepend(folder)
    # Not the folder that we were started from, which the router does without.
    monkeypatch.setattr(sys, "path", ["/nowhere", *sys.path])
    return folder


# -- how it is said ----------------------------------------------------------------------------------


def test_defaults(tmp_path: Path) -> None:
    """First come, first served, to the worker with the least to do."""
    config = read(tmp_path)
    assert router(config).dispatch == "least_loaded"
    assert router(config).scheduling == SchedulingSettings()
    assert (SchedulingSettings().priority_key, SchedulingSettings().fair_by) == ("x-mpspool-priority", "none")
    assert queues(config) == [QueueSettings()]
    assert router(config).max_connections == 10_000


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    """Field by field; what stood by itself before, and what a flag is named by, keep their short variables."""
    text = "models: {half: x}\nscheduling: {policy: sjf, dispatch: round_robin, aging: 3, slow_lane: 1}"
    config = read(
        tmp_path, text, {"policy": "edf"}, MPSPOOL_DISPATCH="least_loaded", MPSPOOL_SCHEDULING_AGING="4"
    )
    found = config.scheduling
    assert (found.policy, found.dispatch, found.aging, found.slow_lane) == ("edf", "least_loaded", 4, 1)
    assert read(tmp_path, text, MPSPOOL_POLICY="fifo").scheduling.policy == "fifo"
    assert read(tmp_path, text, MPSPOOL_SCHEDULING_POLICY="fifo").scheduling.policy == "fifo"


def test_a_model_has_its_own_policy_and_limits(tmp_path: Path) -> None:
    """Where it says nothing, the pool's; of the bytes half, that no model takes all of them."""
    text = """
    models:
      a: {base_path: x, policy: edf, max_queued_requests: 5, max_queued_bytes: 1GiB}
      b: x
    scheduling: {policy: sjf}
    max_queued_requests: 9
    """
    assert queues(read(tmp_path, text)) == [
        QueueSettings(policy="edf", max_queued_requests=5, max_queued_bytes=GIB),
        QueueSettings(policy="sjf", max_queued_requests=9, max_queued_bytes=2 * GIB),
    ]


@pytest.mark.parametrize(
    ("models", "total", "each", "found"),
    [
        (1, "4GiB", "0", 4 * GIB),
        (2, "4GiB", "0", 2 * GIB),
        (3, "1GiB", "0", GIB // 2),
        (3, "4GiB", "3GiB", 3 * GIB),
        (2, "1", "0", 1),
    ],
)
def test_the_bytes_that_a_model_may_have(
    tmp_path: Path, models: int, total: str, each: str, found: int
) -> None:
    """All for one, half for each of several, or what the pool says for each."""
    names = ", ".join(f"m{index}: x" for index in range(models))
    text = f"models: {{{names}}}\nmax_queued_bytes: {total}\nmax_queued_bytes_per_model: {each}"
    assert {queue.max_queued_bytes for queue in queues(read(tmp_path, text))} == {found}


def test_what_is_said_above_holds_for_every_model(tmp_path: Path) -> None:
    """A flag or variable for what a model can say for itself; that of all models' bytes together is none."""
    text = "models: {a: {base_path: x, policy: edf, max_queued_requests: 5, max_queued_bytes: 6}}"
    config = read(
        tmp_path,
        text,
        {"policy": "sjf"},
        MPSPOOL_MAX_QUEUED_REQUESTS="7",
        MPSPOOL_MAX_QUEUED_BYTES="90",
    )
    assert queues(config) == [QueueSettings(policy="sjf", max_queued_requests=7, max_queued_bytes=6)]
    config = read(tmp_path, text, MPSPOOL_MAX_QUEUED_BYTES_PER_MODEL="8")
    assert queues(config) == [QueueSettings(policy="edf", max_queued_requests=5, max_queued_bytes=8)]


def test_the_connections_there_may_be(tmp_path: Path) -> None:
    """For the router, which counts them."""
    assert router(read(tmp_path, MPSPOOL_MAX_CONNECTIONS="12")).max_connections == 12


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("none", "none"),
        ("peer", "peer"),
        ("metadata:x-tenant", "metadata:x-tenant"),
        ("metadata:X-Tenant", "metadata:x-tenant"),
    ],
)
def test_by_what_it_is_fair(tmp_path: Path, written: str, found: str) -> None:
    """Metadata keys are lower case on the wire."""
    text = f'models: {{half: x}}\nscheduling: {{fair_by: "{written}", priority_key: ""}}'
    assert router(read(tmp_path, text)).scheduling == SchedulingSettings(fair_by=found, priority_key="")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            "{fair_by: me}",
            "scheduling.fair_by: 'me' in pool.yaml line 2: must be none, peer, or metadata:KEY such as",
        ),
        (
            "{fair_by: 'metadata:'}",
            "scheduling.fair_by: 'metadata:' in pool.yaml line 2: must be none, peer, or",
        ),
        (
            "{fair_by: 'metadata:a b'}",
            "scheduling.fair_by: 'metadata:a b' in pool.yaml line 2: expected a metadata key",
        ),
        (
            "{priority_key: grpc-rank}",
            "scheduling.priority_key: 'grpc-rank' in pool.yaml line 2: expected a metadata key",
        ),
        (
            "{priority_key: rank-bin}",
            "scheduling.priority_key: 'rank-bin' in pool.yaml line 2: expected a metadata key",
        ),
        (
            "{dispatch: any}",
            "scheduling.dispatch: 'any' in pool.yaml line 2: must be 'least_loaded' or 'round_robin'",
        ),
        (
            "{aging: -1}",
            "scheduling.aging: -1 in pool.yaml line 2: must be greater than or equal to 0 (with sjf,",
        ),
        ("{aging: .inf}", "scheduling.aging: inf in pool.yaml line 2: must be a finite number"),
        (
            "{running_per_device: -1}",
            "scheduling.running_per_device: -1 in pool.yaml line 2: must be greater",
        ),
        ("{slow_lane: many}", "scheduling.slow_lane: 'many' in pool.yaml line 2: must be a valid integer"),
        ("{slow_ms: -1}", "scheduling.slow_ms: -1 in pool.yaml line 2: must be greater than or equal to 0"),
        ("{refuse_late: 3}", "scheduling.refuse_late: 3 in pool.yaml line 2: must be a valid boolean"),
        ("{polcy: sjf}", "scheduling.polcy: unknown key in pool.yaml line 2; did you mean policy?"),
        ("sjf", "scheduling: 'sjf' in pool.yaml line 2: expected fields of its own"),
        ("{policy: ''}", "scheduling.policy: '' in pool.yaml line 2: must have at least 1 character"),
    ],
)
def test_what_is_refused(tmp_path: Path, given: str, told: str) -> None:
    """With key, value, place and remedy."""
    (line,) = refused(tmp_path, f"models: {{half: x}}\nscheduling: {given}")
    assert line.startswith(told)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("{slow_ms: 5}", ["scheduling.slow_ms has no effect: scheduling.slow_lane is 0"]),
        ("{slow_ms: 5, slow_lane: 1}", []),
        (
            "{slow_lane: 2, running_per_device: 2}",
            [
                (
                    "scheduling.slow_lane is 2, and no more than 2 batches run at once"
                    " (scheduling.running_per_device): no place is kept for short ones; give less"
                )
            ],
        ),
        ("{slow_lane: 1, running_per_device: 2}", []),
        (
            "{slow_lane: 9}",
            [
                "scheduling.slow_lane is 9, and no device has more workers than 2: no place is kept for short ones; give less"
            ],
        ),
        ("{aging: 2}", ["scheduling.aging has no effect: it is for the policy sjf"]),
        ("{aging: 2, policy: sjf}", []),
    ],
)
def test_what_has_no_effect_is_said(tmp_path: Path, given: str, told: list[str]) -> None:
    """It starts all the same."""
    assert planned(read(tmp_path, f"models: {{half: x}}\nscheduling: {given}")).warnings == told


# -- policies ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("fifo", "fifo"),
        ("sjf", "sjf"),
        ("edf", "edf"),
        ("alone:Policy", "alone:Policy"),
        ("mine.inner.policy:Policy.make", "mine.inner.policy:Policy.make"),
        ("shortest-tenant", "mine.inner.policy:Shortest.make"),
    ],
)
def test_a_policy_is_found_and_not_imported(name: str, found: str) -> None:
    """Ours by name, before an entry point of that name; another's as the router imports it; its packages untouched."""
    imported = set(sys.modules)
    assert find_policy(name) == found
    assert set(sys.modules) == imported


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "sfj",
            (
                "'sfj' is neither built in (fifo, sjf, edf), nor an entry point of mpspool.policies (broken, fifo,"
                " shortest-tenant), nor module:attribute; did you mean sjf?"
            ),
        ),
        ("shortest_tenant", "nor module:attribute; did you mean shortest-tenant?"),
        ("colour", "nor module:attribute; use one of them, or install the package that brings it"),
        ("alone:", "'alone:' is neither built in"),
        ("alone:1", "'alone:1' is neither built in"),
        ("a/b.py:X", "'a/b.py:X' is neither built in"),
        (
            "mine.outer:Policy",
            (
                "'mine.outer:Policy' is neither built in (fifo, sjf, edf) nor an entry point of mpspool.policies, and there"
                " is no module mine.outer; install it beside mpspool, or put its folder on PYTHONPATH"
            ),
        ),
        ("alone.inner:X", "there is no module alone.inner;"),
        ("nobodys:X", "there is no module nobodys;"),
        (
            "broken",
            (
                "the entry point broken of mpspool.policies is in gone.away:X, and there is no module gone; install it"
                " beside mpspool, or put its folder on PYTHONPATH"
            ),
        ),
    ],
)
def test_a_policy_that_is_not_found(name: str, told: str) -> None:
    """What was looked for, what there is, and the remedy."""
    with pytest.raises(PolicyError) as caught:
        find_policy(name)
    assert told in str(caught.value)


def test_without_any_entry_point_the_start_says_so(tmp_path: Path) -> None:
    """Where the policy was named: by a flag, for the pool, for a model; each once."""
    text = "models:\n  a: {base_path: x, policy: x.y}\n  b: x\nscheduling: {policy: 'q q'}"
    told = refused(tmp_path, text)
    assert [line.partition(" is neither")[0] for line in told] == [
        "models.a.policy: in pool.yaml line 2: 'x.y'",
        "scheduling.policy: in pool.yaml line 4: 'q q'",
    ]
    assert "nor an entry point of mpspool.policies (there is none)" in told[0]
    (line,) = refused(tmp_path, text, {"policy": "lifo"})
    assert line.startswith("scheduling.policy: in --policy: 'lifo' is neither")


@pytest.mark.usefixtures("importable")
def test_the_router_gets_what_it_can_import(tmp_path: Path) -> None:
    """An entry point's name stays here: the router is told module:attribute."""
    text = "models: {a: {base_path: x, policy: shortest-tenant}, b: {base_path: x, policy: 'alone:X'}, c: x}"
    assert [queue.policy for queue in queues(read(tmp_path, text))] == [
        "mine.inner.policy:Shortest.make",
        "alone:X",
        "fifo",
    ]


def test_the_folder_we_were_started_from_does_not_count(
    importable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m mpspool` would find a module there; the router, started with -P, would not."""
    monkeypatch.setattr(
        sys, "path", [str(importable), *[path for path in sys.path if path != str(importable)]]
    )
    if sys.flags.safe_path:
        assert find_policy("alone:X") == "alone:X"
    else:
        with pytest.raises(PolicyError, match="no module alone"):
            find_policy("alone:X")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            "max_queued_bytes: 1MiB\nmax_message_bytes: 2MiB",
            "max_message_bytes is 2097152, and max_queued_bytes 1048576: larger requests than that are never taken; raise it",
        ),
        (
            "max_queued_bytes: 1MiB\nmax_queued_bytes_per_model: 2MiB",
            "max_queued_bytes_per_model is 2097152, and max_queued_bytes, of all models, 1048576: it has no effect",
        ),
    ],
)
def test_bytes_that_do_not_go_together_are_said(tmp_path: Path, given: str, told: str) -> None:
    assert planned(read(tmp_path, f"models: {{half: x}}\n{given}")).warnings == [told]
