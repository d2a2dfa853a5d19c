"""The environment as a configuration layer."""

from __future__ import annotations

import pytest

from mpspool.supervisor.config.environment import (
    asks_for_mps,
    read_affinity,
    read_environment,
    read_models,
)

FIELDS = ["gpus", "cpusets", "contexts_per_gpu", "mps.mode", "grpc_port", "rest_port", "restart.backoff_s"]


def test_deeprec_names_keep_their_meaning() -> None:
    """What a DeepRec user has in the environment arrives at our fields, with its own name as the source."""
    layer = read_environment(
        {"CONTEXTS_COUNT_PER_GPU": "3", "ENABLE_MPS": "1", "SESSION_GROUP_CPUSET": "2-4;5-7", "PATH": "/bin"},
        FIELDS,
    )
    assert layer.values == {"contexts_per_gpu": "3", "mps": {"mode": "auto"}, "cpusets": "2-4;5-7"}
    assert str(layer.sources[("mps", "mode")]) == "ENABLE_MPS"
    assert layer.problems == []


@pytest.mark.parametrize(
    ("value", "mps"), [("0", "off"), ("false", "off"), ("True", "auto"), (" 1 ", "auto")]
)
def test_enable_mps_is_a_switch(value: str, mps: str) -> None:
    """As TensorFlow reads its switches: 0, 1, true, false. It asks for MPS where there can be any."""
    assert read_environment({"ENABLE_MPS": value}, FIELDS).values == {"mps": {"mode": mps}}
    assert asks_for_mps({"ENABLE_MPS": value}) == (mps == "auto")


def test_a_switch_that_is_neither_is_a_problem() -> None:
    """Anything else is refused by name, and sets nothing."""
    layer = read_environment({"ENABLE_MPS": "yes"}, FIELDS)
    assert layer.values == {}
    assert not asks_for_mps({"ENABLE_MPS": "yes"})
    assert [str(problem) for problem in layer.problems] == ["mps: 'yes' in ENABLE_MPS: expected 1 or 0"]


def test_every_field_has_a_variable_of_ours() -> None:
    """MPSPOOL_<FIELD>, and MPSPOOL_<SECTION>_<FIELD> inside a section."""
    layer = read_environment({"MPSPOOL_GRPC_PORT": "9000", "MPSPOOL_RESTART_BACKOFF_S": "2"}, FIELDS)
    assert layer.values == {"grpc_port": "9000", "restart": {"backoff_s": "2"}}
    assert str(layer.sources[("restart", "backoff_s")]) == "MPSPOOL_RESTART_BACKOFF_S"


def test_our_name_wins_over_deeprecs() -> None:
    """Where both are set, the name that is ours was meant for us."""
    layer = read_environment({"CONTEXTS_COUNT_PER_GPU": "3", "MPSPOOL_CONTEXTS_PER_GPU": "5"}, FIELDS)
    assert layer.values == {"contexts_per_gpu": "5"}
    assert str(layer.sources[("contexts_per_gpu",)]) == "MPSPOOL_CONTEXTS_PER_GPU"


@pytest.mark.parametrize(
    ("short", "full"), [("MPSPOOL_POLICY", "MPSPOOL_SCHEDULING_POLICY"), ("MPSPOOL_MPS", "MPSPOOL_MPS_MODE")]
)
def test_two_names_of_ours_that_say_different_things(short: str, full: str) -> None:
    fields = [*FIELDS, "scheduling.policy"]
    layer = read_environment({short: "a", full: "b"}, fields)
    names = sorted([f"'a' in {short}", f"'b' in {full}"], key=lambda text: text.partition(" in ")[2])
    (problem,) = layer.problems
    assert str(problem).endswith(f": {' and '.join(names)}: keep one")
    for same in (("a", "a"), ("on", "On"), ("1", "true"), ("off", "0")):
        assert read_environment(dict(zip((short, full), same, strict=True)), fields).problems == []


def test_a_variable_without_its_section() -> None:
    (problem,) = read_environment({"MPSPOOL_BACKOFF_S": "2"}, FIELDS).problems
    assert str(problem) == "MPSPOOL_BACKOFF_S: unknown variable; did you mean MPSPOOL_RESTART_BACKOFF_S?"


def test_empty_is_not_set() -> None:
    """A variable that a template left empty changes nothing."""
    empty = {"CONTEXTS_COUNT_PER_GPU": "", "ENABLE_MPS": " ", "MPSPOOL_GPUS": ""}
    assert read_environment(empty, FIELDS).values == {}
    assert read_environment({"MPSPOOL_BACKOFF_S": " "}, FIELDS).problems == []
    assert read_affinity({"SET_SESSION_THREAD_POOL_AFFINITY": ""}).values == {}


@pytest.mark.parametrize(
    ("given", "meant"),
    [("MPSPOOL_GRPCPORT", "MPSPOOL_GRPC_PORT"), ("MPSPOOL_MODELS", "MPSPOOL_MODEL")],
)
def test_a_misspelt_variable_is_a_problem(given: str, meant: str) -> None:
    """A slip in one of our names does not pass in silence."""
    problems = read_environment({given: "9000"}, FIELDS).problems
    assert [str(problem) for problem in problems] == [f"{given}: unknown variable; did you mean {meant}?"]


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("", []),
        (" ", []),
        ("a=/a", ["a=/a"]),
        ("a=/a, b=s3://b:1/x;y", ["a=/a", "b=s3://b:1/x;y"]),
        ("a=/a,", ["a=/a", ""]),
    ],
)
def test_models_are_parted_by_commas(value: str, texts: list[str]) -> None:
    """MPSPOOL_MODEL holds what several --model say; it is no field of the pool."""
    assert read_models({"MPSPOOL_MODEL": value}) == texts
    layer = read_environment({"MPSPOOL_MODEL": value}, FIELDS)
    assert (layer.values, layer.problems) == ({}, [])


def test_kubernetes_service_variables_are_not_ours() -> None:
    """A Service named mpspool, or mpspool-grpc, sets variables in every pod beside it."""
    layer = read_environment(
        {
            "MPSPOOL_PORT": "tcp://10.0.0.1:8500",
            "MPSPOOL_SERVICE_HOST": "10.0.0.1",
            "MPSPOOL_SERVICE_PORT": "8500",
            "MPSPOOL_SERVICE_PORT_GRPC": "8500",
            "MPSPOOL_PORT_8500_TCP_ADDR": "10.0.0.1",
            "MPSPOOL_GRPC_PORT": "tcp://10.0.0.1:8500",
            "MPSPOOL_GRPC_PORT_8500_TCP": "tcp://10.0.0.1:8500",
            "MPSPOOL_GRPC_SERVICE_PORT": "8500",
        },
        FIELDS,
    )
    assert layer.values == {}
    assert layer.problems == []


@pytest.mark.parametrize(("value", "cpusets"), [("1", "split"), ("0", "none")])
def test_affinity_says_what_happens_without_cpusets(value: str, cpusets: str) -> None:
    """SET_SESSION_THREAD_POOL_AFFINITY: 1 shares the CPUs out, 0 pins nothing."""
    assert read_affinity({"SET_SESSION_THREAD_POOL_AFFINITY": value}).values == {"cpusets": cpusets}


def test_a_malformed_affinity_is_a_problem() -> None:
    """It is a switch like the others."""
    assert str(read_affinity({"SET_SESSION_THREAD_POOL_AFFINITY": "2"}).problems[0]) == (
        "cpusets: '2' in SET_SESSION_THREAD_POOL_AFFINITY: expected 1 or 0"
    )
