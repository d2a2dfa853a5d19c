"""Which request is next, and what may wait: as configured, and as routers are told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpspool.core.errors import StartError
from mpspool.core.settings import QueueSettings, RouterSettings, SchedulingSettings
from mpspool.supervisor.config.schema import PoolConfig, read_config
from mpspool.supervisor.cpus import Cpu, Topology
from mpspool.supervisor.planning import preflight
from mpspool.supervisor.planning.drafts import Machine
from mpspool.supervisor.planning.plan import Plan, plan, to_settings
from mpspool.supervisor.planning.policies import PolicyError, find_policy, try_policy
from tests.configuration import load_config

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
    versions = {model.name: (3, Path(model.base_path) / "3") for model in config.models}
    return [str(problem) for problem in findings.told(preflight.read_queues(config, versions)[1])]


POLICY = """
import functools
import sys
import time

text = "no policy"

class Shortest:
    def make(waiting):
        print("asked")  # not among what the child answers
        return waiting.size

def by_model(waiting):
    return {"a": 1, "b": 2}[waiting.model.name]

def with_time(policy):
    return functools.wraps(policy)(lambda waiting: policy(waiting, 0.0))

@with_time
def told_the_time(waiting, now_s):
    return now_s - waiting.arrived_s

def two(waiting, now_s):
    return now_s

def soon(waiting):
    return "soon"

def none(waiting):
    return float("nan")

def nothing(waiting):
    pass

def typo(waiting):
    return waiting.row

def cheap(waiting):
    return waiting.cost_s + 1

async def later(waiting):
    return 1.0

def slow(waiting):
    time.sleep(0.05)
    return 1.0

def endless(waiting):
    while True:
        pass
"""


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with policies and what is none, and entry points that name them."""
    folder = tmp_path / "site"
    (folder / "mine/inner").mkdir(parents=True)
    (folder / "mine/__init__.py").touch()
    (folder / "mine/inner/__init__.py").touch()
    (folder / "mine/inner/policy.py").write_text(POLICY)
    (folder / "torn.py").write_text("raise OSError(2, 'no\\nlicence')")
    (folder / "needy.py").write_text("import nobodys.own")
    (folder / "leaves.py").write_text("import sys; sys.exit(3)")
    (folder / "dies.py").write_text("import os; os.abort()")
    (folder / "quits.py").write_text("import os; os._exit(7)")
    (folder / "hangs.py").write_text("import time; time.sleep(60)")
    point = folder / "mine-1.0.dist-info"
    point.mkdir()
    (point / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (point / "entry_points.txt").write_text(
        "[mpspool.policies]\nshortest-tenant = mine.inner.policy:Shortest.make\nbroken = gone.away:X\nfifo = torn:X\n"
    )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    return folder


# -- how it is said ----------------------------------------------------------------------------------


def test_defaults(tmp_path: Path) -> None:
    """First come, first served, to the worker with the least to do."""
    config = read(tmp_path)
    assert router(config).scheduling.dispatch == "least_loaded"
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
        QueueSettings(policy="sjf", max_queued_requests=9, max_queued_bytes=2 * GIB, shares_bytes=True),
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
    """All for one, half for each of several, which share, or what the pool says for each."""
    names = ", ".join(f"m{index}: x" for index in range(models))
    text = f"models: {{{names}}}\nmax_queued_bytes: {total}\nmax_queued_bytes_per_model: {each}"
    asked = queues(read(tmp_path, text))
    assert {queue.max_queued_bytes for queue in asked} == {found}
    assert {queue.shares_bytes for queue in asked} == {models > 1 and each == "0"}


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
        (
            "{slow_lane: -1}",
            (
                "scheduling.slow_lane: -1 in pool.yaml line 2: must be greater than or equal to 0 (long batches that run"
                " at once on one device, over all models)"
            ),
        ),
        (
            "{slow_lane: on}",
            "scheduling.slow_lane: True in pool.yaml line 2: expected a number, and YAML takes on,",
        ),
        ("{aging: yes}", "scheduling.aging: True in pool.yaml line 2: expected a number, and YAML takes on,"),
        ("{slow_lane: many}", "scheduling.slow_lane: 'many' in pool.yaml line 2: must be a valid integer"),
        ("{slow_ms: -1}", "scheduling.slow_ms: -1 in pool.yaml line 2: must be greater than or equal to 0"),
        (
            "{refuse_late: 3}",
            (
                "scheduling.refuse_late: 3 in pool.yaml line 2: must be true or false (a request that cannot meet its"
                " deadline is refused at once)"
            ),
        ),
        (
            "{refuse_late: maybe}",
            "scheduling.refuse_late: 'maybe' in pool.yaml line 2: must be true or false (",
        ),
        ("{polcy: sjf}", "scheduling.polcy: unknown key in pool.yaml line 2; did you mean policy?"),
        (
            "sjf",
            (
                "scheduling: 'sjf' in pool.yaml line 2: expected fields of its own, such as"
                " scheduling: {policy: sjf}"
            ),
        ),
        ("{policy: ''}", "scheduling.policy: '' in pool.yaml line 2: must have at least 1 character"),
    ],
)
def test_what_is_refused(tmp_path: Path, given: str, told: str) -> None:
    """With key, value, place and remedy."""
    (line,) = refused(tmp_path, f"models: {{half: x}}\nscheduling: {given}")
    assert line.startswith(told)


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (
            "timeout_ms",
            "a request has its own deadline, and else grpc_timeout_ms or rest_timeout_ms, which are for all models",
        ),
        (
            "priority",
            "a request says it by itself, in the metadata x-mpspool-priority, and the larger goes first",
        ),
        ("grpc_timeout_ms", "grpc_timeout_ms is for all models"),
    ],
)
def test_what_a_request_or_the_pool_says_no_model_does(tmp_path: Path, key: str, told: str) -> None:
    """It is not taken for what is nearly named so: hang_timeout_s ends workers."""
    (line,) = refused(tmp_path, f"models: {{half: {{base_path: x, {key}: 3}}}}")
    assert line == f"models.half.{key}: unknown key in pool.yaml line 1; {told}"


@pytest.mark.parametrize("key", ["slow_lane", "fair_by", "dispatch"])
def test_a_model_is_told_what_is_the_pools(tmp_path: Path, key: str) -> None:
    """Of scheduling, and of what stands in it; it has a policy of its own."""
    (line,) = refused(tmp_path, f"models: {{half: {{base_path: x, {key}: 1}}}}")
    assert line == f"models.half.{key}: unknown key in pool.yaml line 1; scheduling.{key} is for all models"
    (line,) = refused(tmp_path, f"models: {{half: {{base_path: x, scheduling: {{policy: sjf, {key}: 1}}}}}}")
    assert line == (
        "models.half.scheduling: unknown key in pool.yaml line 1; a model has policy: sjf beside its base_path; the rest"
        " of scheduling is for all models"
    )
    (line,) = refused(tmp_path, f"models: {{half: x}}\n{key}: 1")
    assert line == f"{key}: unknown key in pool.yaml line 2; write it as scheduling: {{{key}: ...}}"
    (line,) = refused(tmp_path, f"models: {{half: {{base_path: x, batching: {{{key}: 1}}}}}}")
    assert line.endswith(f"unknown key in pool.yaml line 1; scheduling.{key} is for all models")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("batch_timeout_micros: 5", "write it as batching: {batch_timeout_micros: ...}"),
        ("max_enqueued_batches: 5", "write it as batching: {max_enqueued_batches: ...}"),
        ("adaptive: true", "write it as batching: {adaptive: ...}"),
        ("scheduling: {adaptive: true}", "write it as batching: {adaptive: ...}"),
        ("scheduling: {max_queued_requests: 3}", "write it beside scheduling, not in it"),
        ("batching: {policy: sjf}", "write it as scheduling: {policy: ...}"),
        ("batching: {max_queued_bytes: 3}", "write it beside batching, not in it"),
    ],
)
def test_where_a_key_belongs_is_told(tmp_path: Path, text: str, told: str) -> None:
    (line,) = refused(tmp_path, f"models: {{half: x}}\n{text}")
    assert line.endswith(f"in pool.yaml line 2; {told}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_enqueued_batches: 5", "write it as batching: {max_enqueued_batches: ...}"),
        ("batching: {policy: sjf}", "a model has it beside its base_path"),
        ("batching: {max_queued_bytes: 3}", "write it beside batching, not in it"),
        ("mps: {cpu_slots: 3}", "write it beside mps, not in it"),
        ("mps: {grpc_port: 3}", "grpc_port is for all models"),
    ],
)
def test_where_a_key_of_a_model_belongs_is_told(tmp_path: Path, text: str, told: str) -> None:
    (line,) = refused(tmp_path, f"models: {{half: {{base_path: x, {text}}}}}")
    assert line.endswith(f"in pool.yaml line 1; {told}")


@pytest.mark.parametrize(
    "text",
    ["fair_by: 'metadata:x-mpspool-priority'", "{fair_by: 'metadata:X-Tenant', priority_key: x-tenant}"],
)
def test_a_priority_is_no_client(tmp_path: Path, text: str) -> None:
    key = "x-tenant" if "tenant" in text else "x-mpspool-priority"
    (line,) = refused(tmp_path, f"models: {{half: x}}\nscheduling: {{{text.strip('{}')}}}")
    assert (
        "in pool.yaml line 2: the priority_key, too: whoever asks with another priority would be another"
        in line
    )
    assert line.startswith("scheduling.fair_by: 'metadata:")
    assert key in line.lower()
    (line,) = refused(tmp_path, "models: {half: x}", MPSPOOL_SCHEDULING_FAIR_BY="metadata:x-mpspool-priority")
    assert "in MPSPOOL_SCHEDULING_FAIR_BY: the priority_key, too" in line


def test_a_section_with_nothing_in_it(tmp_path: Path) -> None:
    """As where all that stood in it was commented out."""
    assert refused(tmp_path, "models: {half: x}\nscheduling:\n") == [
        "scheduling: nothing in pool.yaml line 2: expected fields of its own, such as scheduling: {policy: sjf}"
    ]


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


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("{}", []),
        ("{fair_by: none, slow_lane: 0}", []),
        (
            "{running_per_device: 2, slow_lane: 1}",
            [
                "batches: at most 2 at once on each device (scheduling.running_per_device)",
                "long batches: at most 1 at once on each device (scheduling.slow_lane)",
            ],
        ),
        (
            "{slow_lane: 1, slow_ms: 4.5}",
            ["long batches, from 4.5 ms: at most 1 at once on each device (scheduling.slow_lane)"],
        ),
        (
            "{fair_by: peer}",
            [
                "clients, told apart by their addresses, take turns and share max_queued_bytes (scheduling.fair_by)"
            ],
        ),
        (
            "{fair_by: 'metadata:X-Tenant'}",
            [
                "clients, told apart by the metadata x-tenant, take turns and share max_queued_bytes (scheduling.fair_by)"
            ],
        ),
    ],
)
def test_the_start_says_how_it_shares_out(tmp_path: Path, given: str, told: list[str]) -> None:
    """Devices among batches, and turns among clients; nothing where nobody asked for it."""
    without = planned(read(tmp_path, "models: {half: x}")).facts
    facts = planned(read(tmp_path, f"models: {{half: x}}\nscheduling: {given}")).facts
    assert facts == without + told


# -- policies ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("fifo", "fifo"),
        ("sjf", "sjf"),
        ("edf", "edf"),
        ("torn:X", "torn:X"),
        ("mine.inner.policy:Shortest.make", "mine.inner.policy:Shortest.make"),
        ("shortest-tenant", "mine.inner.policy:Shortest.make"),
        ("mine.inner.policy:told_the_time", "mine.inner.policy:told_the_time"),
    ],
)
def test_a_policy_is_named(name: str, found: str) -> None:
    """Ours by name, before an entry point of that name; another's as the router imports it."""
    assert find_policy(name) == found


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
        ("SJF", "did you mean sjf?"),
        ("shortest_tenant", "nor module:attribute; did you mean shortest-tenant?"),
        ("colour", "nor module:attribute; use one of them, or install the package that brings it"),
        ("torn:", "'torn:' is neither built in"),
        ("round_robin", "but how workers are chosen for them: `scheduling: {dispatch: round_robin}`"),
        ("torn:1", "'torn:1' is neither built in"),
        ("a/b.py:X", "'a/b.py:X' is neither built in"),
    ],
)
def test_a_policy_that_has_no_such_name(name: str, told: str) -> None:
    """What was looked for, what there is, and the remedy."""
    with pytest.raises(PolicyError) as caught:
        find_policy(name)
    assert told in str(caught.value)


_WANTED = "name a function that takes a waiting request and returns a number"
_INSTALL = "install it beside mpspool, or put its folder on PYTHONPATH"


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("mine.outer:Policy", f"there is no module mine.outer; {_INSTALL}"),
        (
            "torn.inner:X",
            "module torn.inner cannot be imported: FileNotFoundError: [Errno 2] no licence; mend it",
        ),
        ("nobodys:X", f"there is no module nobodys; {_INSTALL}"),
        ("needy:X", f"module needy cannot be imported: there is no module nobodys; {_INSTALL}"),
        (
            "broken",
            (
                "the entry point broken of mpspool.policies is gone.away:X: there is no module gone;"
                f" {_INSTALL}"
            ),
        ),
        ("os:nope", f"module os has no attribute nope; {_WANTED}"),
        (
            "mine.inner.policy:text",
            f"the policy 'mine.inner.policy:text' is 'no policy', which cannot be called; {_WANTED}",
        ),
        (
            "mine.inner.policy:two",
            (
                "the policy 'mine.inner.policy:two' cannot be called with a waiting request alone:"
                f" missing a required argument: 'now_s'; {_WANTED}"
            ),
        ),
        ("torn:X", "module torn cannot be imported: FileNotFoundError: [Errno 2] no licence; mend it"),
        ("leaves:X", "module leaves cannot be imported: SystemExit: 3; mend it"),
        ("dies:X", "dies:X cannot be tried: the process that tried was ended by SIGABRT"),
        ("quits:X", "quits:X cannot be tried: the process that tried ended with status 7: it said nothing"),
        (
            "mine.inner.policy:soon",
            (
                "mine.inner.policy:soon fails on a request for half@3: it returned 'soon', which is no finite number; mend it:"
                " it has to return a number, and the least is next"
            ),
        ),
        ("mine.inner.policy:none", "fails on a request for half@3: it returned nan, which"),
        ("mine.inner.policy:by_model", "fails on a request for half@3: KeyError: 'half';"),
        ("mine.inner.policy:cheap", "fails on a request for half@3: TypeError: unsupported operand type(s)"),
        (
            "mine.inner.policy:slow",
            "ms for a request for half@3, and all requests wait for it meanwhile; mend it:",
        ),
        ("mine.inner.policy:later", "fails on a request for half@3: it returned <coroutine object later"),
        (
            "mine.inner.policy:nothing",
            "it returned None, which is no finite number; mend it: it has to return a number",
        ),
        (
            "mine.inner.policy:typo",
            "has no attribute 'row'; mend it: what waits has model, signature, rows, size, arrived_s,",
        ),
        (
            "mine.inner.policy:Shortest",
            f"cannot be called with a waiting request alone: too many positional arguments; {_WANTED}",
        ),
    ],
)
def test_a_policy_that_cannot_be_had_or_asked(tmp_path: Path, name: str, told: str) -> None:
    """It is imported and asked as the router will, in a child; nothing starts where that fails."""
    imported = set(sys.modules)
    (line,) = refused(tmp_path, "models: {half: x}", {"policy": name})
    assert line.startswith("scheduling.policy: in --policy: ")
    assert told in line
    assert "\n" not in line
    assert set(sys.modules) == imported


@pytest.mark.usefixtures("importable")
def test_a_policy_is_asked_about_the_models_that_it_is_for(tmp_path: Path) -> None:
    """And about no other."""
    text = """
    models: {a: x, b: x, half: {base_path: x, policy: fifo}}
    scheduling: {policy: "mine.inner.policy:by_model"}
    """
    assert refused(tmp_path, text) == []
    (line,) = refused(tmp_path, text.replace("half:", "b:").replace("b: x, ", "c: x, "))
    assert "fails on a request for c@3: KeyError: 'c'" in line


@pytest.mark.usefixtures("importable")
def test_a_policy_that_never_returns_is_not_waited_for() -> None:
    """That is told sooner than that of an import, which may take long."""
    code = "import sys; from mpspool.router.scheduling import probe; probe._LIMIT_S = 0.2; sys.exit(probe.main(*sys.argv[1:]))"
    asked = [sys.executable, "-P", "-c", code, "mine.inner.policy:endless", "half@3"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["error"] == (
        "mine.inner.policy:endless has not returned after 0.2 s for a request for half@3; mend it: it is asked of each, and has to"
        " compute, not wait"
    )


@pytest.mark.usefixtures("importable")
def test_a_policy_that_takes_for_ever_is_not_waited_for() -> None:
    """Nor would requests have been served while the router imports it."""
    with pytest.raises(PolicyError, match=r"hangs:X was not imported and asked within 0\.5 s"):
        try_policy("hangs:X", [], limit_s=0.5)


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
    text = (
        "models: {a: {base_path: x, policy: shortest-tenant}, b: {base_path: x, policy: 'math:isnan'}, c: x}"
    )
    found = "mine.inner.policy:Shortest.make"
    with pytest.raises(StartError, match="math:isnan fails on a request for b@1"):
        planned(read(tmp_path, text))
    plan_ = planned(read(tmp_path, text.replace("math:isnan", found)))
    assert [model.queue.policy for model in plan_.models] == [found, found, "fifo"]
    assert plan_.facts[-2:] == [f"a: policy {found}", f"b: policy {found}"]


def test_the_folder_we_were_started_from_does_not_count(
    importable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m mpspool` would find a module there; the router, started with -P, would not."""
    monkeypatch.setenv("PYTHONPATH", os.environ["PYTHONPATH"].partition(os.pathsep)[2])
    monkeypatch.chdir(importable)
    with pytest.raises(PolicyError, match="there is no module mine;"):
        try_policy("mine.inner.policy:Shortest.make", [])


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


@pytest.mark.parametrize(
    ("models", "given", "told"),
    [
        (
            "{a: x, b: x}",
            "max_queued_bytes: 1KiB",
            [
                "max_queued_bytes is 1024, of which one model has 512: larger requests than that are never taken; raise it"
            ],
        ),
        (
            "{a: x}",
            "max_queued_bytes: 1KiB",
            ["max_queued_bytes is 1024: larger requests than that are never taken; raise it"],
        ),
        (
            "{a: x, b: x}",
            "max_queued_bytes_per_model: 1KiB",
            ["max_queued_bytes_per_model is 1024: larger requests than that are never taken; raise it"],
        ),
        (
            "{a: {base_path: x, max_queued_bytes: 1KiB}, b: x}",
            "",
            ["models.a.max_queued_bytes is 1024: larger requests than that are never taken; raise it"],
        ),
        ("{a: x, b: x}", "max_queued_bytes: 2MiB", []),
        ("{a: {base_path: x, max_queued_bytes: 1GiB}}", "max_queued_bytes_per_model: 1KiB", []),
        ("{a: x, b: x}", "max_queued_bytes: 2KiB\nmax_message_bytes: 1KiB", []),
    ],
)
def test_bytes_that_are_too_few_are_said(tmp_path: Path, models: str, given: str, told: list[str]) -> None:
    """Where requests of less than 1 MiB are never taken, unless the largest is to be that small."""
    assert planned(read(tmp_path, f"models: {models}\n{given}")).warnings == told


def test_a_models_bound_beyond_that_of_all_is_said(tmp_path: Path) -> None:
    """As the one for every model is."""
    text = "models: {{half: {{base_path: x, max_queued_bytes: {}}}}}\nmax_queued_bytes: 1MiB"
    told = "models.half.max_queued_bytes is 2097152, and max_queued_bytes, of all models, 1048576: it has no effect"
    assert planned(read(tmp_path, text.format("2MiB"))).warnings == [told]
    assert planned(read(tmp_path, text.format("1MiB"))).warnings == []
