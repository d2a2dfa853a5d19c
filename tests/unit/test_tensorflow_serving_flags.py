"""The command line of tensorflow_model_server: every flag, and what it comes to."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from mpspool.cli import model_server
from mpspool.core.errors import StartError
from mpspool.core.settings import VersionPolicy
from mpspool.supervisor.config.schema import PoolConfig, pool_fields, read_config
from mpspool.supervisor.config.tensorflow_serving import usage
from mpspool.supervisor.config.tensorflow_serving.flag_table import DEEPREC, OURS, SERVING, Flag
from mpspool.supervisor.config.tensorflow_serving.flags import KNOWN, own_flags, without_secrets
from mpspool.supervisor.config.tensorflow_serving.serve import Serving, read_serving
from mpspool.supervisor.config.tensorflow_serving.usage import asks_for_version, help_text, sentence, shown
from mpspool.supervisor.planning.resolve import resolve
from tests.pool import ROOT

BASE = "--model_base_path=/models/m"
FILES = {
    "models": 'model_config_list { config { name: "a" base_path: "/a" model_platform: "tensorflow" } }',
    "platform": """platform_configs { key: "tensorflow" value { source_adapter_config {
      [type.googleapis.com/tensorflow.serving.SavedModelBundleSourceAdapterConfig] { legacy_config {
        session_config { intra_op_parallelism_threads: 3 } } } } } }""",
    "session": "intra_op_parallelism_threads: 5 inter_op_parallelism_threads: 7",
    "monitoring": 'prometheus_config { enable: true path: "/m" }',
    "ssl": 'server_key: "k" server_cert: "c"',
    "batching": "max_batch_size { value: 64 }",
    "service": '{"model_config": {"savedmodel_dir": "/pb",},}',
}


def read_file(name: str) -> str:
    if name not in FILES:
        raise FileNotFoundError(2, "No such file or directory")
    return FILES[name]


def serve(*arguments: str, environ: Mapping[str, str] | None = None) -> Serving:
    return read_serving(arguments, environ or {}, read_file, pool_fields())


def config(*arguments: str, environ: Mapping[str, str] | None = None) -> PoolConfig:
    """What the pool would be planned by."""
    serving = serve(*arguments, environ=environ)
    made, findings = read_config(None, {}, environ or {}, serving=serving)
    assert not findings.told()
    return made


def refused(*arguments: str) -> str:
    with pytest.raises(StartError) as caught:
        serve(*arguments)
    return str(caught.value)


def said(serving: Serving, key: str) -> Any:
    """What flags, or else files, say of a key of the pool; None where they say nothing."""
    for layer in (serving.above, serving.below):
        values: Any = layer.values
        for part in key.split("."):
            values = values.get(part) if isinstance(values, dict) else None
        if values is not None:
            return values
    return None


# Flag, value, key of the pool, and what that is then.
SAME: list[tuple[str, str, str, object]] = [
    ("port", "9000", "grpc_port", 9000),
    ("grpc_socket_path", "/s", "grpc_socket_path", "/s"),
    ("rest_api_port", "9001", "rest_port", 9001),
    ("rest_api_timeout_in_ms", "5", "rest_timeout_ms", 5),
    ("rest_api_enable_cors_support", "true", "rest_cors", True),
    ("enable_batching", "true", "batching.enabled", True),
    ("enable_batching", "0", "batching.enabled", False),
    ("allow_version_labels_for_unavailable_models", "TRUE", "allow_labels_for_unavailable", True),
    ("enable_per_model_batching_parameters", "1", "batching.per_model", True),
    ("max_num_load_retries", "2", "max_num_load_retries", 2),
    ("load_retry_interval_micros", "77", "load_retry_interval_micros", 77),
    ("load_retry_interval_micros", "-1", "load_retry_interval_micros", 0),
    ("file_system_poll_wait_seconds", "3", "file_system_poll_wait_seconds", 3),
    ("tensorflow_session_parallelism", "6", "intra_op_threads", 6),
    ("tensorflow_session_parallelism", "6", "inter_op_threads", 6),
    ("tensorflow_intra_op_parallelism", "6", "intra_op_threads", 6),
    ("tensorflow_intra_op_parallelism", "6", "inter_op_threads", None),
    ("tensorflow_inter_op_parallelism", "6", "inter_op_threads", 6),
    ("tensorflow_session_config_file", "session", "models.default.intra_op_threads", 5),
    ("tensorflow_session_config_file", "session", "models.default.inter_op_threads", 7),
    ("monitoring_config_file", "monitoring", "monitoring_path", "/m"),
    ("ssl_config_file", "ssl", "tls.file", "ssl"),
    ("platform_config_file", "platform", "models.default.intra_op_threads", 3),
    ("model_config_file", "models", "models.a.base_path", "/a"),
    ("model_name", "ranker", "models.ranker.base_path", "/models/m"),
    ("model_base_path", "s3://bucket/m", "models.default.base_path", "s3://bucket/m"),
    ("saved_model_tags", "serve,gpu", "models.default.saved_model_tags", ["serve", "gpu"]),
    ("enable_signature_method_name_check", "true", "check_method_names", True),
    ("enable_serialization_as_tensor_content", "true", "tensor_content", True),
    ("enable_model_warmup", "false", "models.default.enable_model_warmup", False),
    ("num_request_iterations_for_warmup", "3", "models.default.num_request_iterations_for_warmup", 3),
    ("per_process_gpu_memory_fraction", "0.8", "models.default.gpu_memory.fraction", 0.2),
    ("grpc_channel_arguments", "grpc.max_receive_message_length=99", "max_message_bytes", 99),
    ("session_num_per_group", "3", "contexts_per_gpu", 3),
    ("session_num_per_group", "3", "cpu_slots", 3),
    ("session_num_per_group", "3", "gpus", "auto"),
    ("session_num_per_group", "0", "contexts_per_gpu", None),
    ("gpu_ids_list", "0,2", "gpus", "0,2"),
    ("processor_config_file", "service", "models.default.base_path", "/pb"),
]
# Of the others, a value that has nothing in common with the default.
OTHERS = {
    "rest_api_num_threads": "9",
    "num_load_threads": "2",
    "num_unload_threads": "2",
    "flush_filesystem_caches": "false",
    "grpc_max_threads": "9",
    "remove_unused_fields_from_bundle_metagraph": "false",
    "prefer_tflite_model": "true",
    "num_tflite_pools": "2",
    "num_tflite_interpreters_per_pool": "2",
    "xla_cpu_compilation_enabled": "true",
    "xla_gpu_compilation_enabled": "true",
    "enable_profiler": "true",
    "thread_pool_factory_config_file": "whatever",
    "mixed_precision": "bfloat16",
    "skip_initialize_tpu": "true",
    "enable_grpc_healthcheck_service": "true",
    "use_session_group": "true",
    "use_per_session_threads": "true",
    "use_per_session_stream": "true",
    "use_multi_stream": "true",
    "allow_gpu_mem_growth": "true",
    "enable_device_placement_optimization": "true",
    "use_tflite_model": "true",
    "timeline_start_step": "1",
    "timeline_interval_step": "1",
    "timeline_trace_count": "1",
    "timeline_path": "/t",
    "oss_endpoint": "e",
    "oss_access_id": "i",
    "oss_access_key": "k",
}
ELSEWHERE = {  # in tests of their own
    *("batching_parameters_file", "model_config_file_poll_wait_seconds", "version", "check", "detach"),
    "use_alts_credentials",
}


@pytest.mark.parametrize(("flag", "value", "key", "then"), SAME)
def test_a_flag_comes_to_a_key_of_the_pool(flag: str, value: str, key: str, then: object) -> None:
    """What it says is what the pool is told, and no note is needed for it, but for a share of the memory."""
    rest = () if flag == "rest_api_port" else ("--rest_api_port=8501",)
    serving = serve(BASE, *rest, f"--{flag}={value}")
    assert said(serving, key) == then
    assert not serving.below.problems
    if flag != "per_process_gpu_memory_fraction":
        assert not [note for note in serving.notes if "ignored" not in note]


@pytest.mark.parametrize(("flag", "value"), OTHERS.items())
def test_what_has_no_equivalent_is_said_in_one_line(flag: str, value: str) -> None:
    """With the flag, its value (but no secret) and the reason; the pool is told nothing."""
    plain, serving = serve(BASE), serve(BASE, f"--{flag}={value}")
    (note,) = serving.notes
    shown_value = "" if flag in ("oss_access_id", "oss_access_key") else f"={value}"
    assert note == f"--{flag}{shown_value}: {KNOWN[flag].here}"
    assert (serving.above.values, serving.below.values) == (plain.above.values, plain.below.values)


def test_every_flag_is_tried_here() -> None:
    """48 of TensorFlow Serving's, DeepRec's, and ours."""
    assert len(SERVING) == 48
    assert {flag for flag, *_ in SAME} | OTHERS.keys() | ELSEWHERE == KNOWN.keys()


def test_defaults_are_those_of_tensorflow_serving() -> None:
    """Port 8500 on all networks, no REST, one model named default, and clients may say which models are served."""
    made = config(BASE)
    assert (made.host, made.grpc_port, made.rest_port, made.allow_reload) == ("0.0.0.0", 8500, 0, True)
    (model,) = made.models
    assert (model.name, model.base_path, model.version_policy) == ("default", "/models/m", VersionPolicy())


@pytest.mark.parametrize(
    ("given_", "text"),
    [
        (["--prot=1"], "--prot: unknown flag; did you mean --port=1?"),
        (["--max-num-load-retries=1"], "--max-num-load-retries: unknown flag; write --max_num_load_retries"),
        (["--contexts_per_gqu=1"], "--contexts_per_gqu: unknown flag; did you mean --contexts_per_gpu=1?"),
        (["--noenable_batching"], "--noenable_batching: unknown flag; write --enable_batching=false"),
        (["--port", "8500"], "--port: has no value; write --port=8500"),
        (["--port"], "--port: has no value; write --port=VALUE"),
        (["--host"], "--host: has no value; write --host=VALUE"),
        (["-port=8500"], "-port=8500: a flag has two dashes; write --port"),
        (["models"], "models: unknown argument; flags are written --name=value"),
        (["--"], "--: unknown argument"),
        (["--grpc_port=1"], "--grpc_port: unknown flag; did you mean --port=1?"),
        (["--port=x"], "--port: 'x': must be a whole number of 32 bits"),
        (["--port=1.5"], "--port: '1.5': must be a whole number of 32 bits"),
        (["--port=\x1e0"], r"--port: '\x1e0': must be a whole number of 32 bits"),
        (["--port=2147483648"], "--port: '2147483648': must be a whole number of 32 bits"),
        (["--load_retry_interval_micros=9223372036854775808"], "must be a whole number of 64 bits"),
        (["--per_process_gpu_memory_fraction=half"], "'half': must be a number"),
        (["--enable_batching=yes"], "--enable_batching: 'yes': must be true, false, 1 or 0"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_refused(given_: list[str], text: str) -> None:
    """With the flag, its value, and how it is written; unlike there, an unknown flag is no mere word of warning."""
    assert text in refused(BASE, *given_)


@pytest.mark.parametrize(
    ("given_", "text"),
    [
        ([], "Both server_options.model_base_path and server_options.model_config_file are empty!"),
        ([BASE, "--port=0"], "At least one of server_options.grpc_port or server_options.grpc_socket_path"),
        ([BASE, "--use_alts_credentials"], "ALTS"),
        ([BASE, "--batching_parameters_file=batching"], "batching_parameters_file is set without setting"),
        (
            [
                BASE,
                *(f"--tensorflow_{kind}_parallelism=1" for kind in ("session", "intra_op", "inter_op")),
            ],
            "You cannot configure all.",
        ),
        ([BASE, "--file_system_poll_wait_seconds=-1"], "-1: must be 0 or more"),
        ([BASE, "--model_config_file_poll_wait_seconds=-1"], "-1: must be 0 or more"),
        ([BASE, "--max_num_load_retries=-1"], "-1: must be 0 or more"),
        ([BASE, "--session_num_per_group=-1"], "-1: must be 0 or more"),
        ([BASE, "--per_process_gpu_memory_fraction=1.5"], "1.5: must be from 0 to 1"),
    ],
)
def test_what_tensorflow_serving_refuses_is_refused(given_: list[str], text: str) -> None:
    """In its words, where it has some."""
    assert text in refused(*given_)


def test_a_relative_base_path_is_refused() -> None:
    """As there; the path to write is named."""
    (problem,) = serve("--model_base_path=m").below.problems
    assert "Expected model default to have an absolute path or URI; got base_path()=m; write " in str(problem)
    assert str(problem).endswith(str(Path.cwd() / "m"))


def test_files_that_cannot_be_read_are_named() -> None:
    """By the flag and the file, all at once; the models they would list are not missed besides."""
    flags = ("model_config_file", "platform_config_file", "monitoring_config_file")
    serving = serve(*(f"--{flag}=gone" for flag in flags))
    _, findings = read_config(None, {}, {}, serving=serving)
    assert [str(problem) for problem in findings.told()] == [
        f"--{flag}: gone cannot be read: No such file or directory" for flag in flags
    ]


def test_a_model_config_file_goes_before_one_model() -> None:
    """The others are said to be ignored."""
    serving = serve(BASE, "--model_name=x", "--model_config_file=models")
    assert list(serving.below.values["models"]) == ["a"]  # type: ignore[call-overload]
    assert serving.notes == [
        "--model_name is ignored beside --model_config_file",
        "--model_base_path is ignored beside --model_config_file",
    ]


def test_a_platform_config_file_goes_before_the_flags_of_sessions() -> None:
    """They are said to be ignored, and what would be refused without it is not."""
    serving = serve(
        BASE,
        "--platform_config_file=platform",
        "--batching_parameters_file=batching",
        "--tensorflow_intra_op_parallelism=9",
        "--session_num_per_group=2",
    )
    assert said(serving, "intra_op_threads") is None
    assert said(serving, "batching.parameters_file") is None
    assert said(serving, "contexts_per_gpu") is None
    assert said(serving, "models.default.intra_op_threads") == 3
    assert len(serving.notes) == 3


def test_flags_go_before_the_session_config_file() -> None:
    """And it before nothing."""
    made = config(BASE, "--tensorflow_session_config_file=session", "--tensorflow_intra_op_parallelism=9")
    (model,) = made.models
    resolved = made.resolved(model)
    assert (resolved.intra_op_threads, resolved.inter_op_threads) == (9, 7)


def test_batching_parameters_come_from_their_file(tmp_path: Path) -> None:
    """By the way that `mpspool start` has them."""
    file = tmp_path / "batching"
    file.write_text(FILES["batching"])
    made = config(BASE, "--enable_batching", f"--batching_parameters_file={file}")
    assert (made.batching.enabled, made.batching.max_batch_size) == (True, 64)


def test_parameters_without_batching_are_refused_with_flags_of_this_program(tmp_path: Path) -> None:
    """There is no pool file, and no flag with hyphens."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"\x08\x01\x12\x00")
    serving = serve(
        f"--model_base_path={tmp_path}", "--batching_max_batch_size=5", f"--run_dir={tmp_path}/run"
    )
    with pytest.raises(StartError) as caught:
        resolve(None, {}, {}, serving=serving)
    assert (
        "batching.max_batch_size: in --batching_max_batch_size: nothing is batched: batching is not enabled;"
        " add --enable_batching or MPSPOOL_ENABLE_BATCHING=1; or leave this out"
    ) in str(caught.value)


def test_both_ports_the_same_leaves_rest_off() -> None:
    """As there."""
    serving = serve(BASE, "--port=9000", "--rest_api_port=9000")
    assert said(serving, "rest_port") == 0
    assert "HTTP/REST is not served" in serving.notes[0]


def test_our_own_flags_are_the_keys_of_the_pool() -> None:
    """With underscores; they go before everything, and are checked as ever."""
    made = config(BASE, "--contexts_per_gpu=6", "--run_dir=/run/x", "--restart_retries=1", "--mps=off")
    assert (made.contexts_per_gpu, str(made.run_dir), made.restart.retries) == (6, "/run/x", 1)
    assert made.mps.mode == "off"
    serving = serve(BASE, "--contexts_per_gpu=lots")
    _, findings = read_config(None, {}, {}, serving=serving)
    assert "'lots' in --contexts_per_gpu: must be" in str(findings.told()[0])
    assert not own_flags(pool_fields()).keys() & {flag.name for flag in SERVING}


def test_the_environment_goes_before_files_and_after_flags() -> None:
    """MPSPOOL_... does; of DeepRec's variables, what files say of each model goes before."""
    environ = {"MPSPOOL_GRPC_PORT": "1", "MPSPOOL_HOST": "::1", "CONTEXTS_COUNT_PER_GPU": "5"}
    made = config(BASE, "--port=9000", environ=environ)
    assert (made.grpc_port, made.host, made.contexts_per_gpu) == (9000, "::1", 5)
    made = config(BASE, "--session_num_per_group=2", environ=environ)
    assert (made.grpc_port, made.contexts_per_gpu, made.cpu_slots, made.gpus) == (1, 2, 2, "auto")


def test_the_last_of_a_flag_counts() -> None:
    """And of a switch, with and without a value."""
    serving = serve(BASE, "--port=1", "--port=2", "--enable_batching", "--enable_batching=false")
    assert said(serving, "grpc_port") == 2
    assert said(serving, "batching.enabled") is False
    assert asks_for_version(["--version"])
    assert not asks_for_version(["--version", "--version=false"])


def test_memory_that_is_not_to_grow() -> None:
    """Where it is bounded; else several workers could not start on one GPU, and it is not so."""
    flags = ("--per_process_gpu_memory_fraction=0.5", "--allow_gpu_mem_growth=false", "--contexts_per_gpu=2")
    (model,) = config(BASE, *flags).models
    assert (model.gpu_memory.growth, model.gpu_memory.fraction) == (False, 0.25)
    (model,) = config(BASE, "--allow_gpu_mem_growth=false").models
    assert model.gpu_memory.growth


def test_a_model_that_a_client_has_served_gets_what_flags_say() -> None:
    """Of any model; one that is listed gets what is said of it."""
    serving = serve("--model_config_file=models", "--saved_model_tags=gpu", "--enable_model_warmup=false")
    asked = [{"name": "b", "base_path": "/b"}, {"name": "a", "base_path": "/a"}]
    made, findings = read_config(None, {}, {}, models=asked, serving=serving)
    assert not findings.told()
    assert [(model.name, model.saved_model_tags, model.enable_model_warmup) for model in made.models] == [
        ("b", ("gpu",), False),
        ("a", ("gpu",), False),
    ]


def test_a_client_may_have_nothing_served() -> None:
    """A list without a model is no mistake of a client's; a command line without one is."""
    made, findings = read_config(None, {}, {}, models=[], serving=serve("--model_config_file=models"))
    assert (made.models, findings.told()) == ((), [])
    _, findings = read_config(None, {}, {})
    assert [problem.path for problem in findings.told()] == ["models"]


def test_secrets_are_not_kept() -> None:
    """What a pool was started with lies in its run folder."""
    kept = without_secrets([BASE, "--oss_access_key=s3cret", "--oss_access_id=me", "--oss_endpoint=here"])
    assert kept == [BASE, "--oss_endpoint=here"]


def test_help_and_the_page_have_every_flag() -> None:
    """With its default, and what it does here."""
    page = (ROOT / "docs" / "tensorflow-serving.md").read_text()
    for flag in (*SERVING, *DEEPREC, *OURS):
        assert f"  --{flag.name}={shown(flag)}\n      {sentence(flag)}" in help_text()
        assert row(flag) in page, row(flag)
    rows = re.findall(r"^\| `--", page, re.MULTILINE)
    assert len(rows) == len(SERVING) + len(DEEPREC) + len(OURS)


@pytest.mark.parametrize("asked", ["--help", "-h", "-help", "--helpfull"])
def test_help_is_shown_however_it_is_asked_for(asked: str) -> None:
    """Whatever else is on the command line; nothing is started."""
    done = CliRunner().invoke(model_server.tensorflow_model_server, [BASE, "--port=none", asked])
    assert (done.exit_code, done.output) == (0, f"{help_text()}\n")


def row(flag: Flag) -> str:
    """As the page has it."""
    how = {"same": "as it says", "maps": "otherwise", "nothing": "nothing", "refused": "refused"}[flag.does]
    return f"| `--{flag.name}` | `{shown(flag)}` | {how} | {sentence(flag)} |"


@given(
    st.lists(
        st.text(max_size=30)
        | st.sampled_from([f"--{name}" for name in KNOWN]).flatmap(
            lambda flag: st.text(max_size=12).map(lambda value: f"{flag}={value}")
        ),
        max_size=6,
    )
)
def test_any_command_line_is_read_or_refused(arguments: list[str]) -> None:
    """Nothing but StartError, whatever is given; what is read can be checked on."""
    with contextlib.suppress(StartError):
        read_config(None, {}, {}, serving=serve(*arguments))[1].told()


def test_a_processor_config_that_is_no_json_is_said_to_be_none() -> None:
    """Rather than what is wrong with it as YAML."""
    _, findings = read_config(None, {}, {}, serving=serve("--processor_config_file=models"))
    (only,) = findings.told()
    assert str(only).startswith("models: is no JSON; it holds ")


def test_ctrl_c_while_it_starts_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By either name of the command."""

    def interrupted() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(usage, "help_text", interrupted)
    monkeypatch.setattr(sys, "argv", ["tensorflow_model_server", "--help"])
    with pytest.raises(SystemExit) as ended:
        model_server.run()
    assert (ended.value.code, capsys.readouterr().err.strip()) == (1, "Aborted!")
