"""The configuration: three layers, one meaning, every mistake at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from mpspool.cli.start import start
from mpspool.core.errors import Problem, StartError
from mpspool.core.rundir import default_run_dir
from mpspool.core.settings import VersionPolicy
from mpspool.supervisor.config.batching import BatchingConfig
from mpspool.supervisor.config.scheduling import SchedulingConfig
from mpspool.supervisor.config.schema import (
    FLAG_FIELDS,
    ModelConfig,
    Placement,
    PoolConfig,
    pool_fields,
    read_config,
)
from mpspool.supervisor.config.sections import TlsConfig
from tests.configuration import load_config
from tests.pool import ROOT

HALF = {"model": ["half=/models/half"]}


def write(folder: Path, text: str) -> Path:
    path = folder / "pool.yaml"
    path.write_text(text)
    return path


def problems(
    file: Path | None = None, flags: dict[str, object] | None = None, environ: dict[str, str] | None = None
) -> list[str]:
    """What load_config refuses, in lines."""
    with pytest.raises(StartError) as caught:
        load_config(file, flags or {}, environ or {})
    return [str(problem) for problem in caught.value.problems]


def test_one_flag_is_enough() -> None:
    """A model and nothing else: the documented defaults."""
    config = load_config(None, HALF, {})
    assert [(model.name, model.base_path) for model in config.models] == [("half", "/models/half")]
    assert (config.grpc_port, config.rest_port, config.host) == (8500, 8501, "127.0.0.1")
    assert (config.mps.mode, config.scheduling.dispatch, config.readiness, config.grace_s) == (
        "auto",
        "least_loaded",
        "any",
        30.0,
    )
    assert config.max_message_bytes == 2**31 - 1
    assert config.run_dir == default_run_dir()
    assert config.gpus is None
    assert config.models[0].saved_model_tags == ("serve",)


def test_a_file_says_it_all(tmp_path: Path) -> None:
    """Every kind of value, in the file's own types; paths start from the file."""
    config = load_config(
        write(
            tmp_path,
            """
            gpus: [0, 2]
            mps: on
            max_message_bytes: 64MiB
            run_dir: run
            restart: {retries: 5, backoff_s: 0.5}
            models:
              - name: half
                base_path: models/half
                cpusets: 0-1;2-3
                custom_ops: [ops/a.so, /abs/b.so]
                gpu_memory: {limit_bytes: 2GiB}
              - name: wide
                base_path: ~/wide
                gpus: none
                cpusets: [[0, 1], "2-3"]
                saved_model_tags: serve
            """,
        ),
        {},
        {},
    )
    half, wide = config.models
    assert (config.gpus, config.mps.mode, int(config.max_message_bytes)) == ((0, 2), "own", 64 * 2**20)
    assert (config.run_dir, config.restart.retries) == (tmp_path / "run", 5)
    assert half.base_path == str(tmp_path / "models/half")
    assert half.custom_ops == (str(tmp_path / "ops/a.so"), "/abs/b.so")
    assert half.cpusets == wide.cpusets == ((0, 1), (2, 3))
    assert int(half.gpu_memory.limit_bytes) == 2 * 2**30
    assert wide.base_path == str(Path.home() / "wide")
    assert wide.saved_model_tags == ("serve",)
    assert (config.resolved(half).gpus, config.resolved(wide).gpus) == ((0, 2), "none")


def test_models_may_be_a_mapping(tmp_path: Path) -> None:
    """By name, with fields or just a base_path; a name of digits stays a name."""
    file = write(tmp_path, "models:\n  half: {base_path: a, quorum: 2}\n  2024: b\n")
    assert [
        (model.name, Path(model.base_path).name, model.quorum) for model in load_config(file, {}, {}).models
    ] == [
        ("half", "a", 2),
        ("2024", "b", 1),
    ]


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    """Each layer shows where no layer above it speaks."""
    file = write(tmp_path, "models: {half: a}\ngrpc_port: 1\nrest_port: 1\nhost: file\ngrace_s: 1\n")
    environ = {"MPSPOOL_GRPC_PORT": "2", "MPSPOOL_REST_PORT": "2", "MPSPOOL_RESTART_RETRIES": "7"}
    config = load_config(file, {"grpc_port": 3, "host": None}, environ)
    assert (config.grpc_port, config.rest_port, config.host) == (3, 2, "file")
    assert (config.restart.retries, config.restart.backoff_s) == (7, 1.0)


def test_what_is_said_above_holds_for_every_model(tmp_path: Path) -> None:
    """A flag or variable wins over the file for one model as well as for the pool."""
    file = write(
        tmp_path,
        "contexts_per_gpu: 2\nmodels:\n  a: {base_path: a, contexts_per_gpu: 6, gpus: none}\n  b: b\n",
    )
    config = load_config(file, {"gpus": "1"}, {"CONTEXTS_COUNT_PER_GPU": "3"})
    assert [config.resolved(model).contexts_per_gpu for model in config.models] == [3, 3]
    assert [config.resolved(model).gpus for model in config.models] == [(1,), (1,)]
    config = load_config(file, {}, {})
    assert [config.resolved(model).contexts_per_gpu for model in config.models] == [6, 2]


@pytest.mark.parametrize("text", ["2-4;5-7", "2,3,4;5,6,7"])
def test_deeprec_environment(text: str) -> None:
    """CONTEXTS_COUNT_PER_GPU, ENABLE_MPS and both forms of SESSION_GROUP_CPUSET."""
    environ = {"CONTEXTS_COUNT_PER_GPU": "8", "ENABLE_MPS": "1", "SESSION_GROUP_CPUSET": text}
    config = load_config(None, HALF, environ)
    assert (config.contexts_per_gpu, config.mps.mode, config.cpusets) == (8, "auto", ((2, 3, 4), (5, 6, 7)))


@pytest.mark.parametrize(
    ("file", "environ", "mps"),
    [
        ("mps: off", {"ENABLE_MPS": "1"}, "auto"),
        ("mps: on", {"ENABLE_MPS": "1"}, "own"),
        ("mps: 'on'", {"ENABLE_MPS": "true"}, "own"),
        ("mps: {mode: external}", {"ENABLE_MPS": "1"}, "external"),
        ("mps: {mode: external}", {"MPSPOOL_MPS_MODE": "own"}, "own"),
        ("mps: on", {"ENABLE_MPS": "0"}, "off"),
        ("mps: on", {"ENABLE_MPS": "1", "MPSPOOL_MPS": "auto"}, "auto"),
        ("", {"ENABLE_MPS": "1", "MPSPOOL_MPS": "on"}, "own"),
    ],
)
def test_enable_mps_asks_and_does_not_insist(
    tmp_path: Path, file: str, environ: dict[str, str], mps: str
) -> None:
    """Set to 1 it turns MPS on where there can be any, and takes nothing from a file that insists on it."""
    assert load_config(write(tmp_path, file), HALF, environ).mps.mode == mps


@pytest.mark.parametrize(
    ("file", "environ", "cpusets"),
    [
        ("", {"SET_SESSION_THREAD_POOL_AFFINITY": "1"}, "split"),
        ("", {"SET_SESSION_THREAD_POOL_AFFINITY": "0"}, "none"),
        ("", {"SET_SESSION_THREAD_POOL_AFFINITY": "0", "SESSION_GROUP_CPUSET": "1"}, ((1,),)),
        ("cpusets: 2;3", {"SET_SESSION_THREAD_POOL_AFFINITY": "1"}, ((2,), (3,))),
        ("", {}, None),
    ],
)
def test_affinity_is_what_holds_without_cpusets(
    tmp_path: Path, file: str, environ: dict[str, str], cpusets: object
) -> None:
    """SET_SESSION_THREAD_POOL_AFFINITY never overrides cpusets that somebody gave, as in DeepRec."""
    assert load_config(write(tmp_path, file), HALF, environ).cpusets == cpusets


def test_model_flags_add_and_replace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--model adds a model, or gives the file's model of that name another place; paths start from here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    file = write(tmp_path / "conf", "models: {half: {base_path: a, quorum: 2}, wide: b}")
    config = load_config(file, {"model": ("half=new", "extra=/x=y")}, {})
    assert [(model.name, model.base_path, model.quorum) for model in config.models] == [
        ("half", str(tmp_path / "new"), 2),
        ("wide", str(tmp_path / "conf/b"), 1),
        ("extra", "/x=y", 1),
    ]


@pytest.mark.parametrize("value", ["0,2", " 0, 2", [0, 2], (0, 2), ["0", 2]])
def test_gpus_in_every_form(value: object) -> None:
    """Text from a flag, a list from a file."""
    assert load_config(None, {**HALF, "gpus": value}, {}).gpus == (0, 2)


@pytest.mark.parametrize("value", ["", "0;2", "-1", "two", "0,", [], [True], [None], {"0": 1}, 1.5])
def test_malformed_gpus(value: object) -> None:
    """What is no list of ids is refused with the forms there are."""
    (text,) = problems(flags={**HALF, "gpus": value})
    assert text == f'gpus: {value!r} in --gpus: expected "all", "none", "auto", or ids such as 0,2'


def test_a_gpu_twice() -> None:
    """Naming a GPU twice was meant as contexts_per_gpu."""
    assert "twice; contexts_per_gpu" in problems(flags={**HALF, "gpus": "1,1"})[0]


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    """Four sources, one answer: each problem with its path, value, place and remedy."""
    file = write(
        tmp_path,
        "grpc_prt: 1\n"
        "readiness: most\n"
        "models:\n"
        "- name: half\n"
        "  base_path: a\n"
        "  contexts_per_gpu: 0\n"
        "- name: half\n"
        "  base_pat: a\n"
        '  cpusets: "2-4;x"\n'
        "- 7\n",
    )
    told = problems(
        file,
        {"rest_port": 70000, "model": ["nonsense"]},
        {"ENABLE_MPS": "2", "MPSPOOL_RESTART_RETRIES": "-1"},
    )
    assert told == (
        [
            "grpc_prt: unknown key in pool.yaml line 1; did you mean grpc_port?",
            (
                "readiness: 'most' in pool.yaml line 2: must be 'any' or 'all' "
                "(/readyz answers 200 when any model is AVAILABLE, or only when all are)"
            ),
            (
                "models[0].contexts_per_gpu: 0 in pool.yaml line 6: must be greater than or equal to 1 "
                "(worker processes of each model on each of its GPUs)"
            ),
            "models[1].name: 'half' in pool.yaml line 7: models[0] has this name already; rename one",
            "models[1].base_path: missing in pool.yaml line 7 (the folder that holds the numbered version folders)",
            "models[1].base_pat: unknown key in pool.yaml line 8; did you mean base_path?",
            (
                "models[1].cpusets: '2-4;x' in pool.yaml line 9: cpuset 2 of '2-4;x': "
                "'x' is neither a CPU nor a range such as 2-4; auto, split and none stand alone"
            ),
            "models[2]: 7 in pool.yaml line 10: expected fields of its own",
            "mps: '2' in ENABLE_MPS: expected 1 or 0",
            "--model: 'nonsense': expected NAME=BASE_PATH",
            "rest_port: 70000 in --rest-port: must be less than or equal to 65535 (the port for HTTP)",
            (
                "restart.retries: '-1' in MPSPOOL_RESTART_RETRIES: must be greater than or equal to 0 "
                "(restarts in a row without success before the slot is FATAL)"
            ),
        ]
    )


def test_a_remark_keeps_capitals(tmp_path: Path) -> None:
    """What a key is for stands in the middle of a line; a name of capitals stays one."""
    (told,) = problems(write(tmp_path, "models: {a: {base_path: x, quorum: 0}}"))
    assert told.endswith("(READY workers that make the version AVAILABLE)")


def test_what_is_no_list(tmp_path: Path) -> None:
    """Where a list has to be, or one word of it."""
    (told,) = problems(write(tmp_path, "models: {a: {base_path: x, saved_model_tags: {serve: 1}}}"))
    assert told.startswith("models.a.saved_model_tags: {'serve': 1} in pool.yaml line 1: must be a list (")


def test_an_unknown_mode_is_answered_with_all_there_are(tmp_path: Path) -> None:
    """In a file as by the flag: those that its help lists."""
    modes = "must be auto, own (on says the same), external or off"
    with pytest.raises(StartError) as refused:
        load_config(None, {"model": ["m=/m"], "mps": "maybe"}, {})
    assert str(refused.value) == f"mps.mode: 'maybe' in --mps: {modes}"
    for value in ("3", "[3]"):
        file = write(tmp_path, f"models: {{a: x}}\nmps: {value}")
        (told,) = problems(file)
        assert told == f"mps.mode: {value} in pool.yaml line 2: {modes}"
        assert load_config(file, {}, {"ENABLE_MPS": "1"}).mps.mode == "auto"
    (option,) = [option for option in start.params if option.name == "mps"]
    assert set(str(option.make_metavar(click.Context(start))).split("|")) == {
        "auto",
        "own",
        "on",
        "external",
        "off",
    }


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        (
            "models: [}",
            "{file}",
            "line 1, column 10: a value is missing here, or has to be in quotes: models: [}",
        ),
        ("models:\n\t- a", "{file}", "line 2, column 1: a tab; indent with spaces: - a"),
        (
            "models:\n  a: {b: c\n- d",
            "{file}",
            "a { is not closed, or a comma is missing (it begins in line 2)",
        ),
        (
            "scheduling: {fair_by: metadata:}",
            "{file}",
            "line 1, column 31: a { is not closed, a comma is missing, or a value with `:` has to be in quotes: ",
        ),
        ("models: [a, b\nc: d", "{file}", "line 2, column 2: a [ is not closed, or a comma is missing"),
        ("models:\n- a: - b", "{file}", "line 2, column 6: a list cannot begin within a line"),
        ("models:\n  a: b: c", "{file}", "line 2, column 7: a second `: ` in one line"),
        (
            '# old\nmodel_config_list {\n config { name: "a" }}',
            "{file}",
            "is TensorFlow Serving's model_config_file; `mpspool convert ",
        ),
        ("models:\n  a: b\n - c", "{file}", "the indentation is not that of the lines it belongs to"),
        ("models:\n  a: b\n  c\n", "{file}", "a key has no `: ` (it begins in line 3)"),
        (
            "host: @x",
            "{file}",
            "line 1, column 7: a value cannot begin with this; put it in quotes: host: @x",
        ),
        ("models: 'a\nb: c", "{file}", "a quote is not closed (it begins in line 1)"),
        ("a: b\n---\nc: d", "{file}", "line 2, column 1: a second document"),
        ("a: *b", "{file}", "line 1, column 4: found undefined alias 'b': a: *b"),
        (
            "models: {a: x}\nweights: {backing: file}",
            "weights",
            "weights: in pool.yaml line 2: backing: file needs a folder; give weights.folder",
        ),
        ("grpc_port: !!python/name:os.system x", "{file}", "line 1"),
        ("- a\n- b", "{file}", "expected fields such as `models:`"),
        ("a: &a [*a]", "{file}", "refers to itself"),
        ("? [a, b]\n: c", "{file}", "a key must be one word"),
        ("grace_s: 2024-13-45", "{file}", "put it in quotes"),
        ("models: half", "models", "'half' in pool.yaml line 1: expected a list, or a mapping by name"),
        ("models: {a: {base_path: x, name: b}}", "models.a.name", "the key says 'a'; leave this out"),
        (
            "models: {a: x}\nmodels: {b: y}",
            "models",
            "given in pool.yaml line 1 and again in pool.yaml line 2",
        ),
        ("models:\n  a: x\n  a: y", "models.a", "given in pool.yaml line 2 and again in pool.yaml line 3"),
        ("models: {a: {}}", "models.a.base_path", "missing in pool.yaml line 1"),
        ("models: {a: {base_path: x, quorum: 0}}", "models.a.quorum", "must be greater than or equal to 1"),
        ("models: {a: x}\nrestart: 3", "restart", "3 in pool.yaml line 2: expected fields of its own"),
        ("models: {a: {base_path: x, colour: red}}", "models.a.colour", "known are gpus, contexts_per_gpu"),
        ("models: {a: {base_path: x, custom_ops: ['']}}", "models.a.custom_ops[0]", "at least 1 character"),
        (
            "models: {a: {base_path: x, gpu_memory: {fraction: 0.5, limit_bytes: 1}}}",
            "models.a.gpu_memory",
            "two ways to say one thing",
        ),
        ("models: [{name: 2024, base_path: x}]", "models[0].name", "must be a valid string"),
        (
            "models: [{name: a, base_path: x, version_labels: {stable: on}}]",
            "models[0].version_labels",
            "expected a number, and YAML takes on, yes and true for a switch",
        ),
    ],
)
def test_a_faulty_file(tmp_path: Path, text: str, path: str, message: str) -> None:
    """What can be wrong with a file is told with its path and line, and nothing is made up beside it."""
    file = write(tmp_path, text)
    (told,) = problems(file)
    assert told.startswith(path.format(file=file) + ": ")
    assert message in told


def test_an_empty_file_is_no_mistake(tmp_path: Path) -> None:
    """Nothing in it, nothing said."""
    assert load_config(write(tmp_path, "# later\n"), HALF, {}).models[0].name == "half"


@pytest.mark.parametrize("make", ["missing", "folder", "bytes"])
def test_a_file_that_cannot_be_read(tmp_path: Path, make: str) -> None:
    """Missing, a folder, not text: named, with no complaint about the models it may hold."""
    file = tmp_path / "pool.yaml"
    if make == "folder":
        file.mkdir()
    elif make == "bytes":
        file.write_bytes(b"\xff\xfe\x00")
    (told,) = problems(file)
    assert told.startswith(f"{file}: ")


def test_models_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MPSPOOL_MODEL adds to the file and moves its models as --model does, which goes before it in turn."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    file = write(tmp_path / "conf", "models: {half: {base_path: a, quorum: 2}, wide: b}")
    environ = {"MPSPOOL_MODEL": "half=new,extra=/x,more=/m"}
    config = load_config(file, {"model": ("extra=/y",)}, environ)
    assert [(model.name, model.base_path, model.quorum) for model in config.models] == [
        ("half", str(tmp_path / "new"), 2),
        ("wide", str(tmp_path / "conf/b"), 1),
        ("extra", "/y", 1),
        ("more", "/m", 1),
    ]
    alone = load_config(None, {}, {"MPSPOOL_MODEL": "half=/h"})
    assert [(model.name, model.base_path) for model in alone.models] == [("half", "/h")]


def test_no_model_at_all() -> None:
    """A pool of nothing is refused with the three ways to name a model."""
    assert problems() == [
        "models: there is none; give --model NAME=BASE_PATH, MPSPOOL_MODEL, or models: in a file"
    ]


@pytest.mark.parametrize("text", ["half", "=x", "half=", ""])
def test_a_malformed_model_flag(text: str) -> None:
    """Both halves are needed, in a flag and in the variable."""
    assert f"--model: {text!r}: expected NAME=BASE_PATH" in problems(flags={"model": [text]})
    assert problems(environ={"MPSPOOL_MODEL": f"a=/a,{text}"}) == [
        f"MPSPOOL_MODEL: {text!r}: expected NAME=BASE_PATH"
    ]


def test_a_misspelt_model_variable() -> None:
    """It is told alone: that there is no model may only come of it."""
    assert problems(environ={"MPSPOOL_MODELS": "a=/a"}) == [
        "MPSPOOL_MODELS: unknown variable; did you mean MPSPOOL_MODEL?"
    ]


def test_a_model_flag_twice() -> None:
    """Two places for one name cannot both be meant."""
    assert problems(flags={"model": ["a=x", "a=y"]}) == ["--model: 'a=y': 'a' is given twice; keep one"]
    assert problems(environ={"MPSPOOL_MODEL": "a=x,a=y"}) == [
        "MPSPOOL_MODEL: 'a=y': 'a' is given twice; keep one"
    ]


def test_a_name_too_long_for_files() -> None:
    """Names end up in file names, escaped; names of any script are fine within that."""
    assert load_config(None, {"model": ["模型/1:x=/m"]}, {}).models[0].name == "模型/1:x"
    assert "too long" in problems(flags={"model": ["ü" * 40 + "=/m"]})[0]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("p" * 200, "too long to be part of file names"),
        ("/" * 70, "too long to be part of file names"),
        ("\\ud800", "has half of a surrogate pair in it"),
    ],
)
def test_a_refused_name_of_a_mapping(tmp_path: Path, name: str, why: str) -> None:
    """What else is wrong with the model is told beside it, and nothing of it twice."""
    found = problems(write(tmp_path, f'models:\n  "{name}": {{base_path: /m, gpus: x}}'))
    assert len(found) == 2
    assert ".gpus: 'x' in pool.yaml line 2: expected" in found[0]
    assert why in found[1]


@pytest.mark.parametrize(
    "text",
    [
        'run_dir: "/a\\0b"',
        'models: [{name: a, base_path: /a, custom_ops: ["/a", "/a\\0b"]}]',
        'batching: {parameters_file: "/a\\0b"}',
        'models: [{name: a, base_path: "/a\\0b"}]',
        'models: {"a\\0b": /a}',
    ],
)
def test_a_nul(tmp_path: Path, text: str) -> None:
    """YAML, JSON and a reload's request can have one; no path can, and is not tried."""
    assert any("has a NUL character in it" in problem for problem in problems(write(tmp_path, text)))


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("run_dir: {}", "run_dir"),
        ("grpc_socket_path: {}", "grpc_socket_path"),
        ("tls: {{file: {}}}", "tls.file"),
        ("batching: {{parameters_file: {}}}", "batching.parameters_file"),
        ("models: [{{name: a, base_path: {}}}]", "models[0].base_path"),
        ("models: [{{name: a, base_path: /a, version_labels: {{{}: 1}}}}]", "models[0].version_labels"),
    ],
)
def test_what_is_no_unicode(tmp_path: Path, text: str, path: str) -> None:
    """YAML and JSON can have half of a surrogate pair, which no path and no file of ours can."""
    found = problems(write(tmp_path, text.format('"/a\\ud800"')))
    (told,) = [one for one in found if "has half of a surrogate pair" in one]
    assert re.match(rf"{re.escape(path)}: .*/a\\ud800.* in pool.yaml line 1: has half of a", told)


def test_a_key_that_is_no_unicode(tmp_path: Path) -> None:
    """Nor can a key."""
    (told,) = problems(write(tmp_path, 'models: {a: /a}\n"\\ud800": 1'))
    assert "line 2, column 1: a key has half of a surrogate pair in it" in told


def test_bytes_of_the_environment_that_are_no_text() -> None:
    """A path may have them, but what is written of it cannot."""
    found = problems(environ={"MPSPOOL_RUN_DIR": "/a\udcff"})
    assert any(
        "in MPSPOOL_RUN_DIR: has half of a surrogate pair in it, or bytes that" in one for one in found
    )


def test_more_workers_than_a_gpu_can_have() -> None:
    """Each has its slot, its settings and its program: so many are a mistake that would take the machine down."""
    (told,) = problems(flags={**HALF, "contexts_per_gpu": 10**6})
    assert told.startswith(
        "contexts_per_gpu: 1000000 in --contexts-per-gpu: must be less than or equal to 1024"
    )


def test_a_message_limit_above_grpcs() -> None:
    """2 GiB - 1 is the most a message can have."""
    assert (
        "must be less than or equal to 2147483647" in problems(flags={**HALF, "max_message_bytes": "2GiB"})[0]
    )


@pytest.mark.parametrize("value", [-1, "-1", "many", "4 gigs"])
def test_a_number_of_bytes_that_is_none(value: object) -> None:
    """It is told what it must be, not what the parser makes of it."""
    (told,) = problems(flags={**HALF, "max_message_bytes": value})
    assert (
        f"{value!r} in --max-message-bytes: must be a positive number of bytes, or text such as 512MiB or 1GiB ("
        in told
    )


def test_what_is_left_can_be_checked(tmp_path: Path) -> None:
    """Refused values are left out, one by one; all else stands, models without a name or a place too."""
    file = write(
        tmp_path,
        "hosts: x\n"
        "readiness: most\n"
        "restart: 3\n"
        "models:\n"
        "- {name: half, base_path: a, quorum: 0, custom_ops: ['', b.so, '']}\n"
        "- 7\n"
        "- {name: half, base_path: c}\n"
        "- {base_pat: d, gpus: none, gpu_memory: {fraction: 0.5, limit_bytes: 1}}\n",
    )
    config, findings = read_config(file, {"gpus": None}, {"MPSPOOL_GRPC_PORT": "9000"})
    assert [problem.line for problem in findings.told()] == [1, 2, 3, 5, 5, 5, 6, 7, 8, 8, 8, 8]
    assert (config.readiness, config.restart.retries, config.grpc_port) == ("any", 3, 9000)
    half, other, last = config.models
    assert (half.name, half.quorum, half.custom_ops) == ("half", 1, (str(tmp_path / "b.so"),))
    assert (other.name, other.base_path) == ("models[2]", str(tmp_path / "c"))
    assert (last.gpus, last.gpu_memory.fraction) == ("none", 0)


def found_with(file: Path, *paths: str, **environ: str) -> list[tuple[str, str]]:
    """Of problems found at these paths, the path and the message of those that are told."""
    _, findings = read_config(file, {"rest_port": 1}, environ)
    told = findings.told(Problem(path, "wrong") for path in paths)
    return [(problem.path, problem.message) for problem in told if problem.message.endswith("wrong")]


def test_what_is_wrong_with_the_machine_has_no_place_in_the_file(tmp_path: Path) -> None:
    """No line of it could mend that."""
    file = write(tmp_path, "models: {half: x}")
    assert found_with(file, "") == [("", "wrong")]


def test_what_is_found_later_is_told_with_its_place_too(tmp_path: Path) -> None:
    """File and line, flag or variable; in the order of the file; nothing for a default."""
    file = write(
        tmp_path, "models:\n- {name: a.b, base_path: x, gpus: 1}\n- {name: c,\n base_path: y}\nmps: on"
    )
    paths = ("mps", "rest_port", "models.c.base_path", "models.a.b.gpus", "host", "contexts_per_gpu")
    assert found_with(file, *paths, CONTEXTS_COUNT_PER_GPU="9") == [
        ("models.a.b.gpus", "in pool.yaml line 2: wrong"),
        ("models.c.base_path", "in pool.yaml line 4: wrong"),
        ("mps", "in pool.yaml line 5: wrong"),
        ("rest_port", "in --rest-port: wrong"),
        ("host", "wrong"),
        ("contexts_per_gpu", "in CONTEXTS_COUNT_PER_GPU: wrong"),
    ]


def test_a_model_without_a_name_is_told_by_its_place(tmp_path: Path) -> None:
    """The name that stands in for the one refused is no path of its own."""
    file = write(tmp_path, "models:\n- {name: a, base_path: x}\n- {name: a, base_path: y}\n")
    assert found_with(file, "models.models[1].base_path") == [
        ("models[1].base_path", "in pool.yaml line 3: wrong")
    ]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("grcp_port: 1", "grpc_port"),
        ("grpc_port: -1", "rest_port"),
        ("run_dri: /x", "run_dir"),
        ("simulate_gpus: many", "gpus"),
        ("simulate_cpus: many", "cpusets"),
        ("models: half", "mps"),
        ("models: [7]", "mps"),
        ("models: {a: {gpu: 1}}", "models.b.quorum"),
        ("models: {a: {base_pat: x}}", "models.a.base_path"),
        ("models: {a: {base_path: ''}}", "models.a.base_path"),
        ("contexts_per_gpu: 0", "models.b.quorum"),
        ("models: {a: {mps: x, contexts_per_gpu: 0}}", "contexts_per_gpu"),
        ("models: [}", "grpc_port"),
        ("models: [}", "gpus"),
    ],
)
def test_what_may_come_of_something_left_out_is_not_told(tmp_path: Path, text: str, path: str) -> None:
    """A default in place of a value that was refused, or whose key was misspelt, is nobody's wish."""
    assert found_with(write(tmp_path, text), path) == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("readines: all", "grpc_port"),
        ("readiness: most", "gpus"),
        ("grpc_port: -1", "models.a.base_path"),
        ("models: {a: {base_pat: x}}", "models.b.base_path"),
        ("models: {a: {quorum: 0}}", "models.a.custom_ops"),
        ("gpus: x", "models.a.gpus"),
    ],
)
def test_what_has_nothing_to_do_with_what_was_left_out_is_told(tmp_path: Path, text: str, path: str) -> None:
    """A mistake hides no other."""
    assert [found for found, _ in found_with(write(tmp_path, text), path)] == [path]


documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 9)
    | st.sampled_from(["", "x", "auto", "1;2", "2GiB", "none"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [*PoolConfig.model_fields, *ModelConfig.model_fields, *BatchingConfig.model_fields, "x"]
            ),
            inner,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*PoolConfig.model_fields, "x"]), documents))
def test_any_document_leaves_something_to_check(
    tmp_path_factory: pytest.TempPathFactory, document: object
) -> None:
    """Whatever the file holds, there is a configuration, and a problem where it is not all of it."""
    file = write(tmp_path_factory.getbasetemp(), yaml.safe_dump(document))
    config, findings = read_config(file, {}, {})
    assert isinstance(config, PoolConfig)
    if not findings.told():
        assert config == load_config(file, {}, {})


def fields(section: type[BaseModel], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in section.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from fields(type(field.default), f"{above}{name}.")
        else:
            yield above + name, field


def written(default: object) -> str:
    """As in a file."""
    match default:
        case bool():
            return str(default).lower()
        case tuple():
            return f"[{', '.join(default)}]"
        case VersionPolicy():
            return "latest"
    return str(default) or '""'


@pytest.mark.parametrize(
    "path", ["", "/", "/metrics", "/monitoring/prometheus/metrics", "/a/b-c_d.e/~f", "/v1x"]
)
def test_where_tensorflow_serving_s_metrics_may_be(tmp_path: Path, path: str) -> None:
    """Any path of a URL that is not another's; none; and that of our own metrics, which it then has, too."""
    file = write(tmp_path, yaml.safe_dump({"models": {"half": "a"}, "monitoring_path": path}))
    assert load_config(file, {}, {}).monitoring_path == path


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("/healthz", "take another path"),
        ("/readyz", "take another path"),
        ("/metrics/", "take another path"),
        ("/v1", "take another path"),
        ("/v1/models/half", "take another path"),
        ("metrics", 'must begin with "/"'),
        ("/a b", "letters, digits"),
        ("/a?b", "letters, digits"),
        ("/%41", "letters, digits"),
        ("/{model}", "letters, digits"),
        ("/a\n", "letters, digits"),
        ("/\u00e4", "letters, digits"),
    ],
)
def test_where_they_may_not(tmp_path: Path, path: str, remedy: str) -> None:
    """What is there already, and what is no path: with the key and what to do."""
    file = write(tmp_path, yaml.safe_dump({"models": {"half": "a"}, "monitoring_path": path}))
    with pytest.raises(StartError, match=f"monitoring_path.*{remedy}"):
        load_config(file, {}, {})


def test_every_key_is_documented() -> None:
    """docs/configuration.md has each key, and no other, with its default, flag and variable."""
    lines = (ROOT / "docs" / "configuration.md").read_text().splitlines()
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]
    rows = {key.strip("`"): (default, said) for key, _, default, _, said in table}
    known = {**dict(fields(PoolConfig)), **dict(fields(ModelConfig, "models[]."))}
    assert set(rows) == set(known)
    for key, field in known.items():
        if field.default is not None and not field.is_required() and field.default_factory is None:
            assert rows[key][0].strip("`") == written(field.default)
    for name in pool_fields():
        assert "`MPSPOOL_" + name.replace(".", "_").upper() + "`" in rows[name][1]
    for option in start.params:
        if (key := FLAG_FIELDS.get(str(option.name), option.name)) in known:
            assert f"`{option.opts[0]}`" in rows[key][1]
    for key in ("models", "models[].base_path"):
        assert "`MPSPOOL_MODEL`" in rows[key][1]


def test_every_pool_field_can_be_set_by_flag_and_variable() -> None:
    """The fields the environment knows are the fields there are."""
    assert set(pool_fields()) == (
        {*PoolConfig.model_fields}
        - {"models", "batching", "mps", "restart", "scheduling", "tls", "weights", "workers"}
    ) | {
        "mps.mode",
        "mps.pipe_directory",
        "mps.active_thread_percentage",
        "mps.pinned_memory",
        "mps.priority",
        "weights.shared",
        "weights.backing",
        "weights.folder",
        "workers.start",
        "tls.key",
        "tls.cert",
        "tls.client_ca",
        "tls.verify_client",
        "tls.file",
        "restart.retries",
        "restart.backoff_s",
        "restart.max_backoff_s",
        *(f"batching.{name}" for name in BatchingConfig.model_fields),
        *(f"tls.{name}" for name in TlsConfig.model_fields),
        *(f"scheduling.{name}" for name in SchedulingConfig.model_fields),
    }


def test_every_field_tells_what_it_is_for() -> None:
    """The schema, which users read, has a text for each field."""
    for model in (PoolConfig, ModelConfig, Placement, BatchingConfig, SchedulingConfig):
        assert all(field.description for field in model.model_fields.values())
    assert PoolConfig.model_json_schema()["properties"]["gpus"]["description"].startswith("GPUs to use")


def test_a_configuration_does_not_change() -> None:
    """What was validated stays as it was."""
    with pytest.raises(ValidationError):
        load_config(None, HALF, {}).grpc_port = 1  # type: ignore[misc]
