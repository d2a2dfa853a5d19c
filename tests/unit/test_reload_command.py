"""What `mpspool reload` makes of a pool's answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mpspool.core.control import ControlServer, Message
from mpspool.core.rundir import RunDir
from mpspool.supervisor.commands import reload as reload_command
from mpspool.supervisor.commands.errors import CommandError
from mpspool.supervisor.config.schema import overruled, read_config
from tests.conftest import short_dir


def warnings_of(
    answer: Message, *, failing: Sequence[str] = (), models: Sequence[Message] = (), **found: Any
) -> list[str]:
    """What it warns of where a pool that gave this answer to a reload says `found` from then on. Raises CommandError."""
    told: list[str] = []

    async def reloaded(_request: Message) -> Message:
        return {"waits": [], "served": [], **found}

    async def status(_request: Message) -> Message:
        return {"models": models}

    async def story(run: RunDir) -> None:
        control = ControlServer(run.pool_control, {"reloaded": reloaded, "status": status})
        await control.start()
        try:
            await asyncio.to_thread(reload_command._wait, run, answer, 60.0, told.append, failing)
        finally:
            await control.close()

    with short_dir() as root:
        run = RunDir(Path(root))
        for folder in run.folders():
            folder.mkdir(exist_ok=True)
        asyncio.run(story(run))
    return told


def test_one_that_another_takes_the_place_of_says_so() -> None:
    """At once, and not that it is late: what it waits for will never be."""
    answer = {"settings": "mine", "failed": [], "changed": []}
    with pytest.raises(CommandError, match="another configuration has been taken up meanwhile"):
        warnings_of(answer, settings="later", waits=["m@1 is LOADING"], failed=[])


def test_what_failed_before_is_a_warning() -> None:
    """It was not touched; what fails by this one is an error."""
    before, now = ("m", "m@2: corrupt"), ("n", "n@1: corrupt")
    answer = {"settings": "mine", "failed": [before], "changed": ["n"]}
    assert warnings_of(answer, settings="mine", failed=[before]) == ["warning: as before: m@2: corrupt"]
    with pytest.raises(CommandError, match=r"^n@1: corrupt$"):
        warnings_of(answer, settings="mine", failed=[before, now])


def test_a_policy_that_has_come_to_fail_is_an_error() -> None:
    """One that failed before, of whatever model, is a warning."""
    answer = {"settings": "mine", "failed": [], "changed": []}
    text = "a@b@1: the policy mine:late fails, and requests go in the order of arrival: KeyError (the router asks it, with the environment of the start)"
    failing = {"version": 1, "policy": "mine:late", "policy_error": "KeyError"}
    told = {"settings": "mine", "failed": [], "models": [{"name": "a@b", "versions": [failing]}]}
    with pytest.raises(CommandError, match=f"^{re.escape(text)}$"):
        warnings_of(answer, **told)
    assert warnings_of(answer, failing=[text], **told) == [f"warning: as before: {text}"]


def test_what_a_model_says_in_vain(tmp_path: Path) -> None:
    """A flag, a variable, or a file of parameters says something else for all models; what is the same is not told."""
    file, parameters = tmp_path / "pool.yaml", tmp_path / "parameters"
    file.write_text(
        "models:\n  m:\n    base_path: /m\n    batching: {batch_timeout_micros: 7, max_batch_size: 64}\n    cpu_slots: 2\n"
        "    max_queued_requests: 5\n    policy: edf\n"
    )
    parameters.write_text("max_batch_size { value: 64 }\nbatch_timeout_micros { value: 5 }\n")
    flags = {"enable_batching": True, "batching_parameters_file": str(parameters), "cpu_slots": 1}
    config, findings = read_config(file, flags, {"MPSPOOL_POLICY": "sjf", "MPSPOOL_CPU_SLOTS": "3"})
    assert sorted(findings.overridden) == [
        f"models.m.batching.batch_timeout_micros in pool.yaml line 4 has no say: {parameters} line 2 is for all models",
        "models.m.cpu_slots in pool.yaml line 5 has no say: --cpu-slots is for all models",
        "models.m.policy in pool.yaml line 7 has no say: MPSPOOL_POLICY is for all models",
    ]
    assert config.models[0].max_queued_requests == 5
    _, findings = read_config(file, flags, {}, models=[{"name": "n", "base_path": "/n"}])
    assert findings.overridden == []


def test_a_model_whose_name_is_none_is_refused_all_the_same(tmp_path: Path) -> None:
    """Not that something it says has no say."""
    file = tmp_path / "pool.yaml"
    file.write_text("models: [{name: [a], base_path: /m, cpu_slots: 2, batching: off}]\n")
    _, findings = read_config(file, {"cpu_slots": 1}, {})
    assert [problem.path for problem in findings.problems] == ["models[0].name"]
    assert findings.overridden == []


@pytest.mark.parametrize(
    ("text", "flags", "environ"),
    [
        ("cpu_slots: 1", {}, {"MPSPOOL_CPU_SLOTS": "1"}),
        ("gpus: [0, 1]", {}, {"MPSPOOL_GPUS": "0,1"}),
        ("weights: {shared: off}", {}, {"MPSPOOL_WEIGHTS_SHARED": "off"}),
        ("batching: true", {}, {"MPSPOOL_BATCHING": "1"}),
        ("batching: on", {"enable_batching": True}, {}),
    ],
)
def test_what_a_model_says_alike_is_not_told(
    tmp_path: Path, text: str, flags: dict[str, Any], environ: dict[str, str]
) -> None:
    """YAML has values of its own, and a variable is text."""
    file = tmp_path / "pool.yaml"
    file.write_text(f"models: {{m: {{base_path: /m, {text}}}}}\n")
    assert read_config(file, flags, environ)[1].overridden == []


@pytest.mark.parametrize(
    ("text", "flags", "environ", "names"),
    [
        ("cpu_slots: 2", {"cpu_slots": 4, "grpc_port": 1, "model": ["n=/n"]}, {}, ["cpu_slots"]),
        ("cpu_slots: 2", {"grpc_port": 1}, {"MPSPOOL_LOG_LEVEL": "info", "PATH": "/bin"}, []),
        ("batching: {max_batch_size: 8}", {"enable_batching": True}, {}, []),
        ("batching: on", {"enable_batching": True}, {}, ["batching.enabled"]),
        ("batching: {enabled: off}", {}, {"MPSPOOL_BATCHING": "on"}, ["batching.enabled"]),
        ("scheduling: {policy: edf, aging: 1}", {"policy": "sjf"}, {}, ["scheduling.policy"]),
        ("mps: {active_thread_percentage: 50}", {"mps": "own"}, {}, []),
        ("mps: off", {"mps": "own"}, {}, ["mps.mode"]),
        ("mps: own", {}, {"ENABLE_MPS": "1"}, []),
    ],
)
def test_what_stands_in_the_file_in_vain(
    tmp_path: Path, text: str, flags: dict[str, Any], environ: dict[str, str], names: list[str]
) -> None:
    """A setting that a flag or a variable of the start gives, too; not those that only one of them has."""
    file = tmp_path / "pool.yaml"
    file.write_text(f"models: {{m: /m}}\n{text}\n")
    assert overruled(file, flags, environ) == names
