"""Batching as configured: TensorFlow Serving's parameters, from where they may come and down to the settings."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import msgspec
import pytest
import yaml
from click.testing import CliRunner

from mpspool import cli
from mpspool.core import tfs
from mpspool.core.errors import StartError
from mpspool.core.settings import BatchingSettings, VersionBatching
from mpspool.router.scheduling import batching as rules
from mpspool.supervisor import shares
from mpspool.supervisor.config.batching import ModelBatching
from mpspool.supervisor.config.batching_file import BatchingFileError, read_batching_file
from mpspool.supervisor.config.schema import PoolConfig, read_config
from mpspool.supervisor.cpus import Cpu, Topology
from mpspool.supervisor.planning import preflight, version_batching
from mpspool.supervisor.planning.drafts import Machine
from mpspool.supervisor.planning.plan import Plan, plan
from tests.configuration import load_config

DEFAULTS = BatchingSettings()
WHOLE = """\
# What a TensorFlow Serving had.
max_batch_size { value: 128 }
batch_timeout_micros: { value : 2000 }  # microseconds
max_enqueued_batches { value: 1000000 }
num_batch_threads { value: 8 }
thread_pool_name { value: "batch" }
allowed_batch_sizes : 8
allowed_batch_sizes: [32, 128]
pad_variable_length_inputs: true
enable_large_batch_splitting { value: true }
max_execution_batch_size {
  value: 32
}
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def read(
    tmp_path: Path,
    file: str = "models: {half: models/half}",
    flags: dict[str, object] | None = None,
    **environ: str,
) -> PoolConfig:
    return load_config(write(tmp_path, "pool.yaml", file), {"run_dir": "/run/pool", **(flags or {})}, environ)


def planned(config: PoolConfig) -> Plan:
    """On four CPUs, with versions wherever a model's folder says so."""
    machine = Machine((), Topology(tuple(Cpu(0, cpu, cpu) for cpu in range(4)), None), None)
    versions = {model.name: (1, Path(model.base_path) / "1") for model in config.models}
    queues, problems = preflight.read_queues(config, versions)
    if problems:
        raise StartError(problems)
    return plan(config, machine, versions, queues)


def batching(config: PoolConfig) -> list[BatchingSettings | None]:
    return [model.batching for model in planned(config).models]


def refused(tmp_path: Path, file: str, flags: dict[str, object] | None = None, **environ: str) -> list[str]:
    """The lines that a start prints, with what planning finds in the place that reading the file gives it."""
    config, findings = read_config(write(tmp_path, "pool.yaml", file), flags or {}, environ)
    found = []
    try:
        planned(config)
    except StartError as error:
        found = error.problems
    return [str(problem) for problem in findings.told(found)]


# -- where it comes from -----------------------------------------------------------------------------


def test_nobody_asked_for_batches(tmp_path: Path) -> None:
    """Without a word of it requests run one by one, and nothing is said."""
    made = planned(read(tmp_path))
    assert (made.models[0].batching, made.warnings) == (None, [])
    assert not any("batch" in line for line in made.facts)


@pytest.mark.parametrize(
    "word", ["on", "true", "'on'", "1", "{}", "{enabled: on}", "{batch_timeout_micros: 0}"]
)
def test_batching_on(tmp_path: Path, word: str) -> None:
    """One word, or parameters, turn it on, with TensorFlow Serving's defaults for all that is not said."""
    config = read(tmp_path, f"models: {{half: x}}\nbatching: {word}")
    assert batching(config) == [DEFAULTS]
    assert (DEFAULTS.max_batch_size, DEFAULTS.batch_timeout_us, DEFAULTS.max_enqueued_batches) == (
        1000,
        0,
        10,
    )


@pytest.mark.parametrize(
    "word", ["off", "false", "'off'", "0", "{enabled: off}", "{enabled: no, max_batch_size: 4}"]
)
def test_batching_off(tmp_path: Path, word: str) -> None:
    """Said so, parameters may stay for another day."""
    assert batching(read(tmp_path, f"models: {{half: x}}\nbatching: {word}")) == [None]


@pytest.mark.parametrize(
    ("flags", "environ"),
    [
        ({"enable_batching": True}, {}),
        ({}, {"MPSPOOL_ENABLE_BATCHING": "1"}),
        ({}, {"MPSPOOL_BATCHING_ENABLED": "on"}),
        ({}, {"MPSPOOL_BATCHING": "on"}),
    ],
)
def test_batching_by_flag_and_variable(
    tmp_path: Path, flags: dict[str, object], environ: dict[str, str]
) -> None:
    """As with TensorFlow Serving's --enable_batching, also over a file that says off, for each model of it."""
    text = "models: {a: x, b: {base_path: y, batching: off}}\nbatching: off"
    assert batching(read(tmp_path, text, flags, **environ)) == [DEFAULTS, DEFAULTS]


def test_batching_off_by_variable_holds_for_every_model(tmp_path: Path) -> None:
    """What a variable says for all models, the file cannot say otherwise for one."""
    text = "models: {a: {base_path: x, batching: {max_batch_size: 8}}}\nbatching: on"
    assert batching(read(tmp_path, text, MPSPOOL_ENABLE_BATCHING="0")) == [None]


def test_every_parameter_from_the_pool_file(tmp_path: Path) -> None:
    """Each under TensorFlow Serving's name, and adaptive."""
    text = """
    models: {half: x}
    batching:
      max_batch_size: 128
      batch_timeout_micros: 2000
      max_enqueued_batches: 7
      allowed_batch_sizes: [8, 32, 128]
      pad_variable_length_inputs: true
      enable_large_batch_splitting: true
      max_execution_batch_size: 32
      adaptive: true
    """
    assert batching(read(tmp_path, text)) == [
        BatchingSettings(
            max_batch_size=128,
            batch_timeout_us=2000,
            max_enqueued_batches=7,
            allowed_batch_sizes=[8, 32, 128],
            pad_variable_length_inputs=True,
            max_execution_batch_size=32,
            adaptive=True,
        )
    ]


def test_every_parameter_from_the_environment(tmp_path: Path) -> None:
    """By the name of each; lists with commas between."""
    said = {
        "max_batch_size": ("64", 64),
        "batch_timeout_micros": ("2000", 2000),
        "max_enqueued_batches": ("7", 7),
        "num_batch_threads": ("8", 8),
        "thread_pool_name": ("batch", "batch"),
        "allowed_batch_sizes": ("8, 32", (8, 32)),
        "pad_variable_length_inputs": ("true", True),
        "enable_large_batch_splitting": ("1", True),
        "max_execution_batch_size": ("32", 32),
        "adaptive": ("true", True),
    }
    assert set(said) == set(ModelBatching.model_fields) - {"enabled"}
    environ = {f"MPSPOOL_BATCHING_{name.upper()}": word for name, (word, _) in said.items()}
    config = read(tmp_path, flags={"enable_batching": True}, **environ)
    assert {name: getattr(config.batching, name) for name in said} == {
        name: value for name, (_, value) in said.items()
    }
    assert batching(config) == [
        BatchingSettings(
            max_batch_size=64,
            batch_timeout_us=2000,
            max_enqueued_batches=7,
            allowed_batch_sizes=[8, 32],
            pad_variable_length_inputs=True,
            max_execution_batch_size=32,
            adaptive=True,
        )
    ]


def test_parameters_from_the_environment_turn_nothing_on(tmp_path: Path) -> None:
    """As long as nobody asks for batches, they are in vain, which is said of each."""
    environ = {"MPSPOOL_BATCHING_ALLOWED_BATCH_SIZES": "8, 32", "MPSPOOL_BATCHING_MAX_BATCH_SIZE": "32"}
    remedy = "add --enable-batching, MPSPOOL_ENABLE_BATCHING=1, or batching: on in the pool file; or leave this out"
    assert refused(tmp_path, "models: {half: x}", **environ) == [
        f"batching.max_batch_size: in MPSPOOL_BATCHING_MAX_BATCH_SIZE: nothing is batched: batching is not enabled; {remedy}",
        f"batching.allowed_batch_sizes: in MPSPOOL_BATCHING_ALLOWED_BATCH_SIZES: nothing is batched: batching is not enabled; {remedy}",
    ]


def test_a_file_of_parameters(tmp_path: Path) -> None:
    """All that a batching_parameters_file can say, by flag; paths start from here, in the pool file from there."""
    path = write(tmp_path, "deep/batching.txt", WHOLE)
    found = BatchingSettings(
        max_batch_size=128,
        batch_timeout_us=2000,
        max_enqueued_batches=1_000_000,
        allowed_batch_sizes=[8, 32, 128],
        pad_variable_length_inputs=True,
        max_execution_batch_size=32,
    )
    flags = {"enable_batching": True, "batching_parameters_file": str(path)}
    assert batching(read(tmp_path, flags=flags)) == [found]
    text = "models: {half: x}\nbatching: {parameters_file: deep/batching.txt}"
    assert batching(read(tmp_path, text)) == [found]
    environ = {"MPSPOOL_ENABLE_BATCHING": "1", "MPSPOOL_BATCHING_PARAMETERS_FILE": str(path)}
    assert batching(read(tmp_path, **environ)) == [found]


def test_flag_over_environment_over_file(tmp_path: Path) -> None:
    """Parameter by parameter; a file of parameters counts as said where it is named, below what is said there itself."""
    path = write(tmp_path, "b.txt", "max_batch_size { value: 4 }\nbatch_timeout_micros { value: 4 }")
    other = write(tmp_path, "other.txt", "max_batch_size { value: 5 }\nmax_enqueued_batches { value: 5 }")
    text = (
        "models: {half: x}\n"
        "batching: {max_batch_size: 1, batch_timeout_micros: 1, max_enqueued_batches: 1, adaptive: true}"
    )
    in_file = BatchingSettings(max_batch_size=1, batch_timeout_us=1, max_enqueued_batches=1, adaptive=True)
    assert batching(read(tmp_path, text)) == [in_file]
    by_flag = {"batching_parameters_file": str(path)}
    by_variable = {"MPSPOOL_BATCHING_MAX_BATCH_SIZE": "2"}
    of_both = msgspec.structs.replace(in_file, max_batch_size=4, batch_timeout_us=4)
    assert batching(read(tmp_path, text, by_flag, **by_variable)) == [of_both]
    by_variable["MPSPOOL_BATCHING_PARAMETERS_FILE"] = str(path)
    of_variable = msgspec.structs.replace(in_file, max_batch_size=2, batch_timeout_us=4)
    assert batching(read(tmp_path, text, **by_variable)) == [of_variable]
    # Of two files the second is not read, not even for what the first does not say.
    by_variable["MPSPOOL_BATCHING_PARAMETERS_FILE"] = str(other)
    assert batching(read(tmp_path, text, by_flag, **by_variable)) == [of_both]
    own = f"models: {{half: x}}\nbatching: {{max_batch_size: 1, parameters_file: {path}}}"
    assert batching(read(tmp_path, own)) == [BatchingSettings(max_batch_size=1, batch_timeout_us=4)]


def test_the_model_over_the_pool(tmp_path: Path) -> None:
    """Parameter by parameter; one model off, one on by itself."""
    text = """
    models:
      a: {base_path: x, batching: {max_batch_size: 8, adaptive: true}}
      b: {base_path: x, batching: off}
      c: {base_path: x, batching: on}
      d: x
    batching: {max_batch_size: 64, batch_timeout_micros: 5}
    """
    pool = BatchingSettings(max_batch_size=64, batch_timeout_us=5)
    own = msgspec.structs.replace(pool, max_batch_size=8, adaptive=True)
    assert batching(read(tmp_path, text)) == [own, None, pool, pool]
    alone = "models: {a: {base_path: x, batching: {max_batch_size: 8}}, b: x}"
    assert batching(read(tmp_path, alone)) == [BatchingSettings(max_batch_size=8), None]


def test_what_is_said_above_holds_for_every_model(tmp_path: Path) -> None:
    """A flag's file and a variable win over a model's own words, parameter by parameter."""
    path = write(tmp_path, "b.txt", "max_batch_size { value: 4 }")
    text = "models: {a: {base_path: x, batching: {max_batch_size: 8, batch_timeout_micros: 8, adaptive: on}}}"
    flags = {"batching_parameters_file": str(path)}
    found = BatchingSettings(max_batch_size=4, batch_timeout_us=9, adaptive=True)
    environ = {"MPSPOOL_BATCHING_BATCH_TIMEOUT_MICROS": "9"}
    assert batching(read(tmp_path, text, flags, **environ)) == [found]


def test_large_batches_are_split_at_what_a_batch_may_have(tmp_path: Path) -> None:
    """Nothing said, that is max_batch_size; without splitting the size of an execution has no meaning."""
    split = "{enable_large_batch_splitting: true, max_batch_size: 64}"
    (found,) = batching(read(tmp_path, f"models: {{half: x}}\nbatching: {split}"))
    assert found is not None
    assert (found.max_execution_batch_size, found.run_rows) == (64, 64)
    made = planned(read(tmp_path, "models: {half: x}\nbatching: {max_execution_batch_size: 8}"))
    assert made.models[0].batching == DEFAULTS
    assert made.warnings == [
        "batching.max_execution_batch_size has no effect without enable_large_batch_splitting: true"
    ]


# -- batching_params.pbtxt -----------------------------------------------------------------------------

PER_MODEL = (
    "models: {a: models/a, b: models/b}\nbatching: {per_model: true, max_batch_size: 64, adaptive: true}"
)


def test_each_version_says_it_for_itself(tmp_path: Path) -> None:
    """Then the pool's parameters count for nobody but for ours, and a version without a file is not batched."""
    path = write(tmp_path, "models/a/1/batching_params.pbtxt", "batch_timeout_micros { value: 3 }")
    made = planned(read(tmp_path, PER_MODEL))
    assert [model.batching for model in made.models] == [
        BatchingSettings(batch_timeout_us=3, adaptive=True),
        None,
    ]
    none = "b: no batches, for batching.per_model is on and {} has no batching_params.pbtxt"
    assert none.format(tmp_path / "models/b/1") in made.facts
    path.write_text("")
    assert batching(read(tmp_path, PER_MODEL)) == [BatchingSettings(adaptive=True), None]


def test_what_is_said_of_threads_there_counts_for_nobody(tmp_path: Path) -> None:
    """They are the server's: TensorFlow Serving serves the version, whatever its file has of them."""
    write(tmp_path, "models/a/1/batching_params.pbtxt", "num_batch_threads { }\nmax_batch_size { value: 8 }")
    made = planned(read(tmp_path, PER_MODEL))
    assert made.models[0].batching == BatchingSettings(max_batch_size=8, adaptive=True)


def test_what_counts_for_later_versions_is_handed_on(tmp_path: Path) -> None:
    """A version that comes while the pool runs is batched as it would have been at the start, with a file or without."""
    text = """
    models:
      a: {base_path: models/a, batching: {batch_timeout_micros: 1}}
      b: models/b
      c: {base_path: models/c, batching: off}
    batching: {per_model: true, adaptive: true, max_enqueued_batches: 2}
    """
    config = read(tmp_path, text)
    before = planned(config)
    path = write(tmp_path, "models/a/1/batching_params.pbtxt", WHOLE)
    write(tmp_path, "models/b/1/batching_params.pbtxt", WHOLE)
    after = planned(config)
    for model, with_file in zip(before.models, after.models, strict=True):
        said = model.version_batching
        if said is None:
            assert model.name == "c"
            continue
        assert said.without == model.batching
        question = version_batching.Question(model=model.name, file=str(path), said=said)
        asked = msgspec.json.decode(msgspec.json.encode(question), type=version_batching.Question)
        assert version_batching.answer(asked) == version_batching.Answer(batching=with_file.batching)
    path.write_text("max_batch_size { value: 3")
    assert version_batching.answer(asked).error.startswith(f"{path}: line 1")


@pytest.mark.parametrize("last", ["allowed_batch_sizes: [8, 64]", "max_enqueued_batches { value: -1 }"])
def test_what_is_wrong_with_a_later_version_is_told_with_its_line(tmp_path: Path, last: str) -> None:
    """As at the start, whether a value is wrong by itself or beside others."""
    path = write(tmp_path, "batching_params.pbtxt", f"# ours\n{last}")
    said = VersionBatching(given={}, without=None)
    question = version_batching.Question(model="a", file=str(path), said=said)
    assert f"{path} line 2: " in version_batching.answer(question).error


def test_a_version_does_not_say_it_unasked(tmp_path: Path) -> None:
    """Without per_model the file in its folder is not even read; nor where nothing is batched, which is said."""
    write(tmp_path, "models/half/1/batching_params.pbtxt", "nonsense")
    assert batching(read(tmp_path, flags={"enable_batching": True})) == [DEFAULTS]
    made = planned(read(tmp_path, flags={"enable_per_model_batching_parameters": True}))
    assert made.models[0].batching is None
    assert made.warnings == ["batching.per_model has no effect: batching is not enabled"]


def test_the_pool_file_goes_before_the_versions_own(tmp_path: Path) -> None:
    """What models[].batching says holds, with the file for the rest or without one; threads are the server's alone."""
    write(tmp_path, "models/a/1/batching_params.pbtxt", WHOLE)
    text = """
    models:
      a: {base_path: models/a, batching: {batch_timeout_micros: 1}}
      b: {base_path: models/b, batching: {batch_timeout_micros: 2}}
      c: {base_path: models/c, batching: off}
    batching: {per_model: true, max_enqueued_batches: 2}
    """
    made = planned(read(tmp_path, text))
    a, b, c = (model.batching for model in made.models)
    assert a is not None
    assert (a.max_batch_size, a.batch_timeout_us, a.max_enqueued_batches) == (128, 1, 1_000_000)
    assert (b, c) == (BatchingSettings(batch_timeout_us=2), None)
    assert made.warnings == []


@pytest.mark.parametrize("place", ["flag", "variable", "flag's file"])
def test_what_is_said_above_takes_nothing_from_models_where_it_counts_for_nobody(
    tmp_path: Path, place: str
) -> None:
    """With per_model a model's own words hold, but for what the pool says for all of them."""
    path = write(tmp_path, "b.txt", "max_batch_size { value: 32 }")
    text = """
    models: {half: {base_path: models/half, batching: {max_batch_size: 64, adaptive: true}}}
    batching: {per_model: true}
    """
    flags: dict[str, object] = {"batching.adaptive": "false"}
    environ = {}
    if place == "variable":
        environ["MPSPOOL_BATCHING_MAX_BATCH_SIZE"] = "32"
    else:
        flags |= (
            {"batching_parameters_file": str(path)} if "file" in place else {"batching.max_batch_size": "32"}
        )
    assert batching(read(tmp_path, text, flags, **environ)) == [BatchingSettings(max_batch_size=64)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "max_batch_size: 3",
            '{file}: line 1, column 17: expected "{{"; write max_batch_size {{ value: 128 }}',
        ),
        (
            "\nmax_batch_size { value: 0 }",
            (
                "max_batch_size: 0 in {file} line 2: must be greater than or equal to 1"
                " (rows (dimension 0) of a batch, and of a request, at most)"
            ),
        ),
        (
            "max_batch_size { value: 8 }\nallowed_batch_sizes: [2, 4]",
            (
                "{file} line 2: allowed_batch_sizes ends with 4, and max_batch_size is 8:"
                " the last must be the same; end it with 8, or set max_batch_size to 4"
            ),
        ),
    ],
)
def test_a_faulty_file_of_a_version(tmp_path: Path, text: str, told: str) -> None:
    """It keeps the pool from starting, and is named."""
    path = write(tmp_path, "models/a/1/batching_params.pbtxt", text)
    (line,) = refused(tmp_path, PER_MODEL)
    assert line.startswith(told.format(file=path))


# -- text ----------------------------------------------------------------------------------------------


def test_no_batches_may_wait(tmp_path: Path) -> None:
    """TensorFlow's queues take 0 as 1, but where large requests are split, which it refuses, too."""
    path = write(tmp_path, "b.txt", "max_enqueued_batches { value: 0 }")
    flags: dict[str, object] = {"batching_parameters_file": str(path), "enable_batching": True}
    assert batching(read(tmp_path, flags=flags)) == [BatchingSettings(max_enqueued_batches=1)]
    path.write_text("max_enqueued_batches { value: 0 }\nenable_large_batch_splitting { value: true }")
    (told,) = refused(tmp_path, "models: {half: x}", flags)
    assert told.startswith(f"batching.max_enqueued_batches: 0 in {path} line 1: must be greater than")


def test_no_rows_run_at_once_where_nothing_is_split(tmp_path: Path) -> None:
    """What runs at once has a meaning with splitting alone: TensorFlow Serving does not look at it."""
    path = write(tmp_path, "b.txt", "max_execution_batch_size { }\nenable_large_batch_splitting { }")
    flags: dict[str, object] = {"batching_parameters_file": str(path), "enable_batching": True}
    assert batching(read(tmp_path, flags=flags)) == [DEFAULTS]
    path.write_text("max_execution_batch_size { }\nenable_large_batch_splitting { value: true }")
    (told,) = refused(tmp_path, "models: {half: x}", flags)
    assert told.startswith(f"batching.max_execution_batch_size: 0 in {path} line 1: must be greater than")


def test_the_text_format_is_read(tmp_path: Path) -> None:
    """Comments, wrappers with and without a colon, lists in either form, over several lines; and the lines they are in."""
    values, lines = read_batching_file(write(tmp_path, "b.txt", WHOLE))
    assert values == {
        "max_batch_size": 128,
        "batch_timeout_micros": 2000,
        "max_enqueued_batches": 1_000_000,
        "num_batch_threads": 8,
        "thread_pool_name": "batch",
        "allowed_batch_sizes": [8, 32, 128],
        "pad_variable_length_inputs": True,
        "enable_large_batch_splitting": True,
        "max_execution_batch_size": 32,
    }
    assert lines["max_batch_size"] == 2
    assert lines["max_execution_batch_size"] == 11


@pytest.mark.parametrize("text", ["", "# nothing yet\n"])
def test_an_empty_text_is_no_mistake(tmp_path: Path, text: str) -> None:
    """TensorFlow Serving takes its defaults then."""
    assert read_batching_file(write(tmp_path, "b.txt", text)) == ({}, {})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "max_batch_size: 128",
            'line 1, column 17: expected "{"; write max_batch_size { value: 128 }: max_batch_size: 128',
        ),
        ("max_batch_size", 'line 1, column 15: expected "{"; write max_batch_size { value: 128 }'),
        (
            "enable_large_batch_splitting: true",
            'expected "{"; write enable_large_batch_splitting { value: true }',
        ),
        ("thread_pool_name { value: x }", 'write thread_pool_name { value: "batch" }'),
        ("allowed_batch_sizes { value: 3 }", 'expected ":"; write allowed_batch_sizes: 8'),
        ("pad_variable_length_inputs: maybe", "write pad_variable_length_inputs: true"),
        (
            "\nmax_batch_sise { value: 1 }",
            "line 2, column 1: unknown field max_batch_sise; did you mean max_batch_size?: max_batch_sise { value: 1 }",
        ),
        ("colour: 3", "unknown field colour; known are max_batch_size, batch_timeout_micros, "),
        (
            "max_batch_size {\n  valu: 3\n}",
            "line 2, column 3: unknown field valu; write max_batch_size { value: 128 }",
        ),
        (
            "max_batch_size { value: many }",
            "line 1, column 25: couldn't parse integer: many; write max_batch_size",
        ),
        ("max_batch_size { value: 12.5 }", "couldn't parse integer: 12.5"),
        (f"max_batch_size {{ value: {2**63} }}", "value out of range: 9223372036854775808"),
        (
            "max_batch_size { value: 1",
            "line 1, column 25: max_batch_size of line 1 is not closed; write max_batch_size { value: 128 }",
        ),
        ("\nmax_batch_size < value: 1\n", "line 2, column 25: max_batch_size of line 2 is not closed; write"),
        (
            "max_batch_size {\n  value: 128\n  # as num_batch_threads\nbatch_timeout_micros { value: 2000 }",
            (
                "line 4, column 1: batch_timeout_micros stands within max_batch_size of line 1, which is not closed;"
                " write max_batch_size { value: 128 }:"
                " batch_timeout_micros { value: 2000 }"
            ),
        ),
        (
            "allowed_batch_sizes: [8, 32\nbatch_timeout_micros { value: 2000 }",
            'line 2, column 1: expected "," or "]"; write allowed_batch_sizes: 8',
        ),
        (
            "max_batch_size { value: 1 } max_batch_size { value: 2 }",
            "max_batch_size is given twice; keep one",
        ),
        ('{"max_batch_size": 3}', "expected lines such as max_batch_size { value: 128 }"),
    ],
)
def test_what_is_wrong_in_a_text(tmp_path: Path, text: str, told: str) -> None:
    """Told with line, column, the remedy and the line itself; by a start, with the file."""
    path = write(tmp_path, "b.txt", text)
    with pytest.raises(BatchingFileError) as caught:
        read_batching_file(path)
    assert told in str(caught.value)
    flags = {"enable_batching": True, "batching_parameters_file": str(path)}
    (line,) = refused(tmp_path, "models: {half: x}", flags)
    assert line.startswith(f"{path}: line ")


@pytest.mark.parametrize("make", ["missing", "folder", "bytes"])
def test_a_text_that_cannot_be_read(tmp_path: Path, make: str) -> None:
    """Missing, a folder, no text: named, and nothing more is said of batching."""
    path = tmp_path / "b.txt"
    if make == "folder":
        path.mkdir()
    elif make == "bytes":
        path.write_bytes(b"\xff\xfe\x00")
    (line,) = refused(tmp_path, "models: {half: x}", {"batching_parameters_file": str(path)})
    assert line.startswith(f"{path}: ")
    assert line.endswith(" (batching.parameters_file in --batching-parameters-file)")
    (line,) = refused(tmp_path, "models: {half: x}\nbatching: {parameters_file: b.txt}")
    assert line.startswith(f"{path}: ")
    assert line.endswith(" (batching.parameters_file in pool.yaml line 2)")


def test_the_field_numbers_are_tensorflow_servings() -> None:
    """A message that a TensorFlow Serving wrote means the same here."""
    numbers = {field.name: field.number for field in tfs.BatchingParameters.DESCRIPTOR.fields}
    assert numbers == {
        "max_batch_size": 1,
        "batch_timeout_micros": 2,
        "max_enqueued_batches": 3,
        "num_batch_threads": 4,
        "thread_pool_name": 5,
        "allowed_batch_sizes": 6,
        "pad_variable_length_inputs": 7,
        "enable_large_batch_splitting": 8,
        "max_execution_batch_size": 9,
    }


# -- what is refused -----------------------------------------------------------------------------------


def test_a_file_without_batching_is_refused_as_in_tensorflow_serving(tmp_path: Path) -> None:
    """With what to add; whoever named it, whatever it says; but not where one model is batched after all."""
    path = write(tmp_path, "b.txt", "max_batch_size { value: 4 }")
    flags = {"batching_parameters_file": str(path)}
    text = (
        "batching.parameters_file: in {}: nothing is batched: batching is not enabled; add --enable-batching,"
        " MPSPOOL_ENABLE_BATCHING=1, or batching: on in the pool file; or leave this out"
    )
    assert refused(tmp_path, "models: {half: x}", flags) == [text.format("--batching-parameters-file")]
    off = f"models: {{half: x}}\nbatching:\n  enabled: off\n  parameters_file: {path}"
    assert refused(tmp_path, off) == [text.format("pool.yaml line 4")]
    one = "models: {half: x, other: {base_path: y, batching: on}}"
    assert refused(tmp_path, one, flags) == []
    assert refused(tmp_path, one, {**flags, "enable_batching": True}) == []


def test_parameters_that_no_model_takes_are_refused(tmp_path: Path) -> None:
    """They turn batching on, and every model turns it off: what to say is another thing then."""
    off = "models: {half: {base_path: x, batching: off}}\nbatching: {max_batch_size: 4}"
    text = (
        "batching.max_batch_size: in pool.yaml line 2: nothing is batched: every model has batching: off; take that out of one,"
        " or add --enable-batching, which holds for all of them; or leave this out"
    )
    assert refused(tmp_path, off) == [text]
    assert refused(tmp_path, off, {"enable_batching": True}) == []
    assert refused(tmp_path, off.replace("}}", "}, other: y}")) == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            "maybe",
            "batching.enabled: 'maybe' in pool.yaml line 2: must be on or off, or, in the pool file, parameters such as",
        ),
        (
            "",
            "batching.enabled: None in pool.yaml line 2: must be on or off, or, in the pool file, parameters such as",
        ),
        (
            "[on]",
            (
                "batching.enabled: [True] in pool.yaml line 2: must be on or off, or, in the pool file, parameters such as"
                " {max_batch_size: 128}"
            ),
        ),
        (
            "{max_batch_sise: 3}",
            "batching.max_batch_sise: unknown key in pool.yaml line 2; did you mean max_batch_size?",
        ),
        (
            "{max_queue_delay_microseconds: 100}",
            (
                "batching.max_queue_delay_microseconds: unknown key in pool.yaml line 2; what it is to Triton is here"
                " batch_timeout_micros, or adaptive"
            ),
        ),
        (
            "{max_batch_size: 0}",
            "batching.max_batch_size: 0 in pool.yaml line 2: must be greater than or equal to 1",
        ),
        (
            "{max_batch_size: many}",
            "batching.max_batch_size: 'many' in pool.yaml line 2: must be a valid integer",
        ),
        (
            "{batch_timeout_micros: -1}",
            "batching.batch_timeout_micros: -1 in pool.yaml line 2: must be greater than",
        ),
        (
            "{max_enqueued_batches: 0}",
            "batching.max_enqueued_batches: 0 in pool.yaml line 2: must be greater than",
        ),
        ("{num_batch_threads: 0}", "batching.num_batch_threads: 0 in pool.yaml line 2: must be greater than"),
        (
            "{max_execution_batch_size: 0}",
            "batching.max_execution_batch_size: 0 in pool.yaml line 2: must be greater",
        ),
        (
            "{allowed_batch_sizes: [0, 8]}",
            "batching.allowed_batch_sizes[0]: 0 in pool.yaml line 2: must be greater",
        ),
        (
            "{allowed_batch_sizes: [8, true]}",
            "batching.allowed_batch_sizes: [8, True] in pool.yaml line 2: expected a number, and YAML takes on,",
        ),
        (
            "{max_execution_batch_size: on}",
            "batching.max_execution_batch_size: True in pool.yaml line 2: expected a number, and YAML takes on,",
        ),
        (
            "{allowed_batch_sizes: x}",
            "batching.allowed_batch_sizes[0]: 'x' in pool.yaml line 2: must be a valid integer",
        ),
        *(
            (
                f"{{allowed_batch_sizes: {given}}}",
                f"batching.allowed_batch_sizes: {told} in pool.yaml line 2: must be a list of whole numbers, such as [8, 32, 128]",
            )
            for given, told in (("null", "None"), (".inf", "inf"), ("{a: 1}", "{'a': 1}"))
        ),
        (
            "{allowed_batch_sizes: [32, 8, 8]}",
            "batching.allowed_batch_sizes: [32, 8, 8] in pool.yaml line 2: must ascend; write 8, 32",
        ),
        (
            "{allowed_batch_sizes: [8, 64]}",
            (
                "batching.allowed_batch_sizes: in pool.yaml line 2: allowed_batch_sizes ends with 64, and max_batch_size is"
                " 1000 (the default): the last must be the same; end it with 1000, or set max_batch_size to 64"
            ),
        ),
        (
            (
                "{max_batch_size: 128, allowed_batch_sizes: [8, 64], enable_large_batch_splitting: true,"
                " max_execution_batch_size: 32}"
            ),
            (
                "batching.allowed_batch_sizes: in pool.yaml line 2: allowed_batch_sizes ends with 64, and"
                " max_execution_batch_size is 32, max_batch_size 128: the last must be one of them; end it with 32"
            ),
        ),
        (
            "{max_batch_size: 128, enable_large_batch_splitting: true, max_execution_batch_size: 256}",
            (
                "batching.max_execution_batch_size: in pool.yaml line 2: max_execution_batch_size is 256, and max_batch_size"
                " is 128: a batch cannot have more rows than a request may; give at most 128, or raise max_batch_size"
            ),
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, given: str, told: str) -> None:
    """At the start rather than at the load, with key, value, place and remedy; sizes that do not ascend TensorFlow Serving takes."""
    (line,) = refused(tmp_path, f"models: {{half: x}}\nbatching: {given}")
    assert line.startswith(told)


def test_a_file_of_parameters_is_not_blamed_for_missing_models(tmp_path: Path) -> None:
    """Where the models cannot be read, nobody knows whether one of them would be batched."""
    path = write(tmp_path, "b.txt", "max_batch_size { value: 4 }")
    flags = {"batching_parameters_file": str(path), "enable_batching": True}
    (only,) = refused(tmp_path, "models: {}", flags)
    assert "batching" not in only


def test_all_is_refused_at_once(tmp_path: Path) -> None:
    """From every source; what may only come of another mistake is not told."""
    path = write(tmp_path, "b.txt", "# first\nmax_batch_size { value: 0 }\nallowed_batch_sizes: [8, 4]")
    text = "models: {a: {base_path: x, batching: {max_batch_size: -1}}}\nbatching: {parameters_file: b.txt}"
    assert refused(
        tmp_path, text, MPSPOOL_BATCHING_ALLOWED_BATCH_SIZES="x,y", MPSPOOL_BATCHING_ADAPTIVE="3"
    ) == [
        (
            "models.a.batching.max_batch_size: -1 in pool.yaml line 1: must be greater than or equal to 1 (rows (dimension 0)"
            " of a batch, and of a request, at most)"
        ),
        (
            f"batching.max_batch_size: 0 in {path} line 2: must be greater than or equal to 1 (rows (dimension 0) of a batch,"
            " and of a request, at most)"
        ),
        *(
            f"batching.allowed_batch_sizes[{index}]: '{word}' in MPSPOOL_BATCHING_ALLOWED_BATCH_SIZES: must be a valid"
            " integer (rows that a batch may have, ascending)"
            for index, word in enumerate("xy")
        ),
        (
            "batching.adaptive: '3' in MPSPOOL_BATCHING_ADAPTIVE: must be true or false"
            " (a batch grows while every worker runs, and goes as soon as one is free, whatever batch_timeout_micros says)"
        ),
    ]


def test_what_a_model_makes_of_the_pools_is_refused_at_the_model(tmp_path: Path) -> None:
    """The sizes are the pool's; what makes them wrong is said of the model, and so is the problem."""
    text = (
        "models:\n  a: {base_path: x, batching: {max_batch_size: 64}}\n  b: x\n"
        "batching: {max_batch_size: 128, allowed_batch_sizes: [8, 128]}"
    )
    assert refused(tmp_path, text) == [
        (
            "models.a.batching.max_batch_size: in pool.yaml line 2: allowed_batch_sizes of the pool ends with 128, and max_batch_size"
            " is 64: the last must be the same; end it with 64, or set max_batch_size to 128, or give the model its own: [] for any size"
            " (batching.allowed_batch_sizes is said in pool.yaml line 4)"
        )
    ]


def test_what_is_said_over_a_models_own_is_named(tmp_path: Path) -> None:
    """Its own words say already what is advised: the size that counts stands in the flag's file, or in a variable."""
    text = "models: {a: {base_path: x, batching: {max_batch_size: 700, allowed_batch_sizes: [700]}}}"
    path = write(tmp_path, "b.txt", "\nmax_batch_size { value: 9 }")
    (by_flag,) = refused(tmp_path, text, {"batching_parameters_file": str(path)})
    assert by_flag == (
        "models.a.batching.allowed_batch_sizes: in pool.yaml line 1: allowed_batch_sizes ends with 700, and max_batch_size is 9:"
        " the last must be the same; end it with 9, or set max_batch_size to 700"
        f" (batching.max_batch_size is said in {path} line 2)"
    )
    (by_variable,) = refused(tmp_path, text, MPSPOOL_BATCHING_MAX_BATCH_SIZE="9")
    assert by_variable.endswith("(batching.max_batch_size is said in MPSPOOL_BATCHING_MAX_BATCH_SIZE)")


def test_numbers_of_64_bits(tmp_path: Path) -> None:
    """TensorFlow Serving's files have such; they come as they are to router and workers. What is padded to has 32, as there."""
    most = 2**63 - 1
    path = write(
        tmp_path, "b.txt", f"max_batch_size {{ value: {most} }}\nmax_enqueued_batches {{ value: {most} }}"
    )
    flags: dict[str, object] = {"batching_parameters_file": str(path), "enable_batching": True}
    (found,) = batching(read(tmp_path, flags=flags))
    assert found == BatchingSettings(max_batch_size=most, max_enqueued_batches=most)
    assert msgspec.json.decode(msgspec.json.encode(found), type=BatchingSettings) == found
    assert rules.has_room(10, 1, 8, found)
    assert rules.split(2**31, found) == [(0, 2**31)]
    (told,) = refused(tmp_path, f"models: {{half: x}}\nbatching: {{max_batch_size: {most + 1}}}")
    assert told.startswith(
        f"batching.max_batch_size: {most + 1} in pool.yaml line 2: must be less than or equal to"
    )
    (told,) = refused(tmp_path, f"models: {{half: x}}\nbatching: {{allowed_batch_sizes: [{2**31}]}}")
    assert told.startswith(
        f"batching.allowed_batch_sizes[0]: {2**31} in pool.yaml line 2: must be less than or equal to"
    )


@pytest.mark.parametrize("last", [32, 128])
def test_with_splitting_the_sizes_end_with_either(tmp_path: Path, last: int) -> None:
    """TensorFlow Serving's server wants max_batch_size, its library max_execution_batch_size; both do here."""
    given = (
        f"{{max_batch_size: 128, max_execution_batch_size: 32, enable_large_batch_splitting: true,"
        f" allowed_batch_sizes: [8, {last}]}}"
    )
    made = planned(read(tmp_path, f"models: {{half: x}}\nbatching: {given}"))
    padded = (
        "batching.allowed_batch_sizes has no 32, though batches have at most 32 rows (max_execution_batch_size): a full"
        " one is padded to 128; add 32"
    )
    assert made.warnings == ([padded] if last == 128 else [])


# -- what is said --------------------------------------------------------------------------------------


def test_what_has_no_meaning_here_is_said(tmp_path: Path) -> None:
    """Threads are workers: said where the number differs, over all that are batched; a pool of threads has no name."""
    text = "models: {a: x, b: x, c: {base_path: x, batching: {num_batch_threads: 1}}}\nbatching: {num_batch_threads: 2}"
    made = planned(read(tmp_path, text, {"cpu_slots": "1"}))
    assert made.warnings == []
    config = read(
        tmp_path,
        "models: {a: x, b: x}\nbatching: on",
        {"cpu_slots": "2"},
        MPSPOOL_BATCHING_NUM_BATCH_THREADS="2",
        MPSPOOL_BATCHING_THREAD_POOL_NAME="x",
    )
    assert planned(config).warnings == [
        "batching.thread_pool_name has no meaning here: batches run on workers, not on threads of a pool",
        (
            "batching.num_batch_threads is 2: as many batches run at once as there are workers, 4;"
            " contexts_per_gpu and cpu_slots say how many"
        ),
    ]


def test_a_wait_that_never_happens_is_said(tmp_path: Path) -> None:
    """An adaptive batch waits for a worker, and for nothing else."""
    made = planned(read(tmp_path, "models: {a: x}\nbatching: {adaptive: true, batch_timeout_micros: 5}"))
    assert made.warnings == ["batching.batch_timeout_micros has no effect with adaptive: true"]
    text = (
        "models: {a: {base_path: x, batching: {adaptive: true}}, b: x}\nbatching: {batch_timeout_micros: 5}"
    )
    assert planned(read(tmp_path, text)).warnings == [
        "batching.batch_timeout_micros has no effect with models.a.batching.adaptive: true"
    ]


def test_a_wait_that_nobody_meant_is_said(tmp_path: Path) -> None:
    """Milliseconds that were written as seconds, say."""
    made = planned(read(tmp_path, "models: {a: x}\nbatching: {batch_timeout_micros: 2000000000}"))
    assert made.warnings == [
        "batching.batch_timeout_micros are 2000 s: so long a request may wait for its batch to fill"
    ]


def test_what_is_the_pools_is_said_where_a_model_says_it(tmp_path: Path) -> None:
    (line,) = refused(tmp_path, "models:\n  a: {base_path: x, batching: {parameters_file: b.txt}}")
    assert line.startswith("models.a.batching.parameters_file: unknown key in pool.yaml line 2; ")
    assert "batching.parameters_file is for all models" in line


def test_requests_that_never_fit_are_said(tmp_path: Path) -> None:
    """In more parts than may wait, and than idle workers take: clients would be told to try again for ever."""

    def warnings(slots: int, batches: int = 4, requests: int = 4) -> list[str]:
        batching = f"max_batch_size: 64, max_execution_batch_size: 16, max_enqueued_batches: {batches}"
        model = f"{{base_path: x, cpu_slots: {slots}, max_queued_requests: {requests}}}"
        text = f"models: {{a: {model}}}\nbatching: {{{batching}, enable_large_batch_splitting: true}}"
        return planned(read(tmp_path, text)).warnings

    told = (
        "%s is 1: requests of more than 16 rows are taken only while workers are idle%s"
        " (max_batch_size is 64, in runs of up to 16); give 4 or more, or a smaller max_batch_size"
    )
    of_batches, of_requests = "batching.max_enqueued_batches", "models.a.max_queued_requests"
    assert warnings(1, batches=1) == [told % (of_batches, ", and of more than 32 never")]
    assert warnings(3, batches=1) == [told % (of_batches, "")]
    assert warnings(1, requests=1) == [told % (of_requests, ", and of more than 32 never")]
    assert warnings(3, requests=1) == [told % (of_requests, "")]
    assert warnings(1) == []


def test_a_batch_that_cannot_fill_is_said(tmp_path: Path) -> None:
    """Only of one that waits for it, once for all that it is true of, and by the parameter that says how large one is."""
    waits = "batch_timeout_micros: 5, max_batch_size: 64"
    told = (
        "max_queued_requests is 30, and batches have up to %d rows (%s): requests of fewer than %d never fill one, and wait"
        " for batch_timeout_micros each time; raise the one, or lower the other"
    )

    def warnings(batching: str, own: str = "", pool: str = "") -> list[str]:
        text = f"models: {{a: {{base_path: x{own}}}, b: x}}\nbatching: {{{batching}}}\n{pool}"
        return planned(read(tmp_path, text)).warnings

    own, pool = ", max_queued_requests: 30", "max_queued_requests: 30"
    assert warnings(waits, own) == ["models.a." + told % (64, "max_batch_size", 3)]
    assert warnings(waits, pool=pool) == [told % (64, "max_batch_size", 3)]
    split = ", max_execution_batch_size: 40, enable_large_batch_splitting: true"
    assert warnings(waits + split, pool=pool) == [told % (40, "max_execution_batch_size", 2)]
    assert warnings("max_batch_size: 64", pool=pool) == []
    assert warnings("adaptive: true, max_batch_size: 64", pool=pool) == []
    assert warnings("batch_timeout_micros: 5, max_batch_size: 30", pool=pool) == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("on", "half: batches of at most 1000 rows, of what waits when a worker is free"),
        (
            "{max_batch_size: 128, batch_timeout_micros: 2000, allowed_batch_sizes: [8, 128]}",
            "half: batches of at most 128 rows, waiting 2000 us for more, padded to 8, 128",
        ),
        (
            "{adaptive: on, enable_large_batch_splitting: on, max_execution_batch_size: 16}",
            "half: batches of at most 16 rows, growing while every worker runs",
        ),
    ],
)
def test_the_start_says_how_it_batches(tmp_path: Path, given: str, told: str) -> None:
    """One line for each model."""
    assert told in planned(read(tmp_path, f"models: {{half: x}}\nbatching: {given}")).facts


def test_workers_get_it_as_all_else(tmp_path: Path) -> None:
    """Within the model's settings, whatever else a slot changes in them."""
    (model,) = planned(read(tmp_path, "models: {half: x}\nbatching: {max_batch_size: 8}")).models
    own = shares.settings_for(model, model.slots[0])
    assert own.batching == BatchingSettings(max_batch_size=8)
    assert msgspec.json.decode(msgspec.json.encode(own), type=type(own)) == own


def test_the_flags_are_flags(tmp_path: Path) -> None:
    """`mpspool start` takes them as TensorFlow Serving names them, and says so in its help."""
    path = write(tmp_path, "b.txt", "max_batch_size: 3")
    command = ["start", "--model", "half=/nowhere", "--run-dir", str(tmp_path / "run"), "--check"]
    flags = [
        "--enable-batching",
        "--enable-per-model-batching-parameters",
        "--batching-parameters-file",
        str(path),
    ]
    done = CliRunner().invoke(cli.main, [*command, *flags])
    assert f"error: {path}: line 1, column 17" in done.output
    told = CliRunner().invoke(cli.main, ["start", "--help"]).output
    assert all(flag in told for flag in flags[:3])


@pytest.mark.parametrize(
    "given",
    [
        "on",
        "off",
        "'on'",
        "{max_batch_size: 8, allowed_batch_sizes: '4,8'}",
        "{parameters_file: x, per_model: on}",
    ],
)
def test_the_published_schema_takes_what_we_take(tmp_path: Path, given: str) -> None:
    """It is a valid JSON schema, and each form that batching has in a file is one of its."""
    schema = PoolConfig.model_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    text = f"batching: {given}\nscheduling: {{policy: a:b}}\nmodels: [{{name: a, base_path: b, batching: off, policy: sjf}}]"
    validator.validate(yaml.safe_load(text))
    assert not validator.is_valid(
        yaml.safe_load(f"batching: [1]\n{text}".replace(f"batching: {given}\n", ""))
    )
