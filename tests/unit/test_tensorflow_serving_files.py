"""TensorFlow Serving's files, DeepRec's and EAS's: what they come to, and what is said of what does not."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from mpspool.cli import main
from mpspool.core import tfs
from mpspool.core.errors import StartError
from mpspool.supervisor.config.tensorflow_serving.convert import KINDS, convert_files, kind_of
from mpspool.supervisor.config.tensorflow_serving.proto_text import TextError, parse
from mpspool.supervisor.config.tensorflow_serving.told import Told
from tests.configuration import load_config
from tests.serving_files import MODEL_CONFIG, PLATFORM_CONFIG, eas_service

MODELS = MODEL_CONFIG.format(root="/models")


def convert(*texts: str) -> Told:
    """The texts as files a, b, ..."""
    files = {chr(ord("a") + index): text for index, text in enumerate(texts)}
    return convert_files(list(files), lambda name: files[name])


def one(text: str) -> dict[str, Any]:
    """What a model_config_file with this in its one model makes of that model."""
    return convert(listing(text)).document()["models"]["m"]  # type: ignore[no-any-return]


def listing(text: str) -> str:
    platform = "" if "model_platform" in text or "model_type" in text else 'model_platform: "tensorflow"'
    base_path = "" if "base_path" in text else 'base_path: "/m"'
    return f'model_config_list {{ config {{ name: "m" {base_path} {platform} {text} }} }}'


def refused(*texts: str) -> str:
    with pytest.raises(StartError) as caught:
        convert(*texts)
    return str(caught.value)


def session(text: str) -> dict[str, Any]:
    """What a ConfigProto makes of a model."""
    return convert(listing(""), text).document()["models"]["m"]  # type: ignore[no-any-return]


# -- model_config_file


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ("model_version_policy { latest {} }", {"version_policy": {"latest": 1}}),
        ("model_version_policy { latest { num_versions: 3 } }", {"version_policy": {"latest": 3}}),
        ("model_version_policy: { all: {} }", {"version_policy": "all"}),
        ("model_version_policy { specific { versions: 4 versions: 7 } }", {"version_policy": [4, 7]}),
        ("model_version_policy { specific { versions: [4, 7] } }", {"version_policy": [4, 7]}),
        (
            'version_labels { key: "stable" value: 4 } version_labels { key: "canary" value: 7 }',
            {"version_labels": {"stable": 4, "canary": 7}},
        ),
        ("model_type: TENSORFLOW", {}),
        ('base_path: "gs://bucket/m"', {"base_path": "gs://bucket/m"}),
    ],
)
def test_a_model_as_it_is_listed(text: str, values: dict[str, Any]) -> None:
    """Name, base path, policy and labels."""
    assert one(text) == {"base_path": "/m", **values}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('model_platform: "tflite"', "'tflite' is not served here"),
        ('model_platform: ""', 'neither model_platform nor model_type is given; write model_platform: "tens'),
        ("model_type: OTHER", "'OTHER' is not served here"),
        ('model_type: TENSORFLOW model_platform: "tensorflow"', "two ways to say one thing"),
        ('base_path: "m"', "to have an absolute path or URI; got base_path()=m; write /"),
        (
            "model_version_policy { specific {} }",
            "models.m.version_policy: in a line 1: specific names no version; give specific { versions: 1 }, or",
        ),
        (
            'base_pth: "/m"',
            "line 1, column 85: unknown field base_pth of ModelConfig; did you mean base_path?",
        ),
    ],
)
def test_what_is_wrong_with_a_model_is_said(text: str, error: str) -> None:
    """With its name or line, and what to write."""
    assert error in refused(listing(text))


def test_a_name_that_is_there_twice_is_refused() -> None:
    """In TensorFlow Serving's words."""
    twice = 'config { name: "m" base_path: "/m" model_platform: "tensorflow" }'
    assert "Illegal to list model m multiple times in config list" in refused(
        f"model_config_list {{{twice} {twice}}}"
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("custom_model_config: { [type.googleapis.com/my.Config] { x: 1 } }", "custom_model_config is for"),
        ("model_config_list {}", "lists no model"),
        ("model_config_list { config { base_path: '/m' } }", "a model has no name"),
        ("model_config_list { config { name: 'm' ", "is missing: something before it is not closed"),
    ],
)
def test_a_file_without_models_is_refused(text: str, error: str) -> None:
    """By what stands in it."""
    assert error in refused(text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "model_config_list {\n config { name: 'm'\n config { name: 'n' } }",
            "line 3, column 2: config stands within config of line 2, which is not closed; close it first: config { name: 'n' } }",
        ),
        (
            "model_config_list {\n config < logging_config { a { b: '}' } }\n config < name: 'n' > >",
            "line 3, column 2: config stands within config of line 2, which is not closed; close it first",
        ),
        (
            "model_config_list { config {\n model_version_policy { latest {\n base_path: '/m' } }",
            "base_path stands within model_version_policy of line 2, which is not closed; close it first",
        ),
        ("model_config_list {\n config [ { name: 'm' config {", "unknown field config of ModelConfig"),
        (
            "model_config_list {\n config { nam: 'm' } }",
            "unknown field nam of ModelConfig; did you mean name?",
        ),
    ],
)
def test_what_is_not_closed_is_named(text: str, error: str) -> None:
    """By a field that is none where it stands, and is one further out."""
    assert error in refused(text)


def test_requests_are_not_logged() -> None:
    """Whatever the logging_config says, known here or not; and that is said."""
    told = convert(listing('logging_config { sampling_config { sampling_rate: 0.1 } some_day: "}" }'))
    assert told.notes == ["a line 1: logging_config of m is ignored: requests are not logged"]


# -- platform_config_file and ConfigProto


def platform(config: str, *, adapter: str = "SavedModelBundleSourceAdapterConfig") -> str:
    return f"""platform_configs {{ key: "tensorflow" value {{ source_adapter_config {{
      [type.googleapis.com/tensorflow.serving.{adapter}] {{ legacy_config {{ {config} }} }} }} }} }}"""


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("intra_op_parallelism_threads: 4", {"intra_op_threads": 4}),
        ("inter_op_parallelism_threads: 2", {"inter_op_threads": 2}),
        ("inter_op_parallelism_threads: -1", {"inter_op_threads": 1}),
        ('device_count { key: "GPU" value: 0 }', {"gpus": "none"}),
        ("gpu_options { allow_growth: true }", {"gpu_memory": {"growth": True}}),
        ("gpu_options { per_process_gpu_memory_fraction: 0.4 }", {"gpu_memory": {"fraction": 0.1}}),
        ('gpu_options { visible_device_list: "0,2" }', {"gpus": [0, 2]}),
        (
            "gpu_options { experimental { use_cuda_malloc_async: true } }",
            {"gpu_memory": {"allocator": "cuda_malloc_async"}},
        ),
        (
            (
                "gpu_options { experimental { stream_merge_options { merge_host_to_device_stream: true"
                " merge_device_to_host_stream: true } } }"
            ),
            {"merge_copy_streams": True},
        ),
    ],
)
def test_a_session_config_is_that_of_each_worker(text: str, values: dict[str, Any]) -> None:
    """In a file of its own, and in that of a platform."""
    assert session(text) == {"base_path": "/m", **values}
    told = convert(listing(""), platform(f"session_config {{ {text} }}"))
    assert told.document()["models"]["m"] == {"base_path": "/m", **values}


def test_what_a_session_config_has_besides_is_named() -> None:
    """Even what nobody here knows, within what has no meaning here."""
    told = convert(
        listing(""),
        "intra_op_parallelism_threads: 1\nallow_soft_placement: true\n"
        "graph_options { rewrite_options { layout_optimizer: ON } }\n"
        "experimental { new_one: 3 }\ngpu_options { force_gpu_compatible: true }",
    )
    assert told.notes == [
        "b: gpu_options.force_gpu_compatible: has no equivalent here",
        "b: allow_soft_placement: an operation without a kernel for the GPU runs on the CPU in any case",
        "b: graph_options: has no equivalent here",
        "b: experimental: has no equivalent here",
    ]


def test_batching_and_tags_of_a_platform() -> None:
    """Batching is the pool's, tags are each model's."""
    text = platform(
        'batching_parameters { max_batch_size { value: 32 } allowed_batch_sizes: [8, 32] } saved_model_tags: "gpu"'
    )
    made = convert(listing(""), text).document()
    assert made["batching"] == {"enabled": True, "max_batch_size": 32, "allowed_batch_sizes": [8, 32]}
    assert made["models"]["m"]["saved_model_tags"] == ["gpu"]


def test_what_a_platform_says_of_the_warm_up() -> None:
    """How often is each model's; what is not followed is named, but where it asks for what is so here."""
    options = "model_warmup_options {{ num_request_iterations {{ value: 3 }} num_model_warmup_threads {{ value: {} }} {} }}"
    told = convert(listing(""), platform(options.format(4, "enable_all_batch_sizes_warmup: true")))
    assert told.document()["models"]["m"]["num_request_iterations_for_warmup"] == 3
    assert told.notes == [
        "b: model_warmup_options.num_model_warmup_threads: each worker sends the recorded requests one after another",
        (
            "b: model_warmup_options.enable_all_batch_sizes_warmup: recorded requests are sent with the rows that they"
            " have; record one of each size"
        ),
    ]
    assert convert(listing(""), platform(options.format(1, ""))).notes == []


def test_session_groups_are_found_by_model_id() -> None:
    """As DeepRec's page has them: sessions are workers on each of the GPUs, cpusets go from worker to worker."""
    made = convert(MODELS, PLATFORM_CONFIG).document()["models"]
    assert made == {
        "pb1": {
            "base_path": "/models/pb1",
            "intra_op_threads": 8,
            "inter_op_threads": 8,
            "gpu_memory": {"growth": True},
            "contexts_per_gpu": 2,
            "cpu_slots": 2,
            "gpus": [0, 1],
            "cpusets": "1,2;5,6",
        },
        "pb2": {
            "base_path": "/models/pb2",
            "intra_op_threads": 16,
            "inter_op_threads": 16,
            "gpu_memory": {"growth": True},
            "contexts_per_gpu": 2,
            "cpu_slots": 2,
            "gpus": [2, 3],
            "cpusets": "20,21;23,24;26,27;29,30",
        },
    }


def test_a_model_without_its_session_group_is_refused() -> None:
    """There the server ends; here it says which is missing."""
    text = refused(MODELS.replace("model_id: 1", "model_id: 2"), PLATFORM_CONFIG)
    assert "models.pb2.model_id: 2 in a line 10: b has 2 model_session_config, numbered from 0" in text


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            'platform_configs { key: "tflite" value {} }',
            "PlatformConfigMap has no entry for platform tensorflow",
        ),
        (
            'platform_configs { key: "tensorflow" value {} }',
            "source_adapter_config of platform tensorflow is none",
        ),
        (platform("x: 1"), "unknown field x of SessionBundleConfig"),
        (platform("", adapter="Other"), "tensorflow.serving.Other is not known here"),
        (
            platform(
                "model_session_config { session_num: -1 }", adapter="SavedModelBundleV2SourceAdapterConfig"
            ),
            "session_num -1 of model_id 0",
        ),
    ],
)
def test_a_platform_config_that_cannot_be_used_is_refused(text: str, error: str) -> None:
    """By what is wrong with it."""
    assert error in refused(MODELS, text)


def test_a_share_of_memory_is_shared_out() -> None:
    """Over all workers of all models that may be on one GPU."""
    group = "model_session_config { session_config { gpu_options { per_process_gpu_memory_fraction: 0.8 } } "
    groups = f"{group} session_num: 2 gpu_ids: 0 }} {group} session_num: 6 gpu_ids: [0, 1] }}"
    made = convert(MODELS, platform(groups, adapter="SavedModelBundleV2SourceAdapterConfig")).document()
    assert [made["models"][name]["gpu_memory"]["fraction"] for name in ("pb1", "pb2")] == [0.1, 0.1]


# -- small files


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("prometheus_config { enable: true }", "/monitoring/prometheus/metrics"),
        ('prometheus_config: { enable: true, path: "/metrics/tf" }', "/metrics/tf"),
        ("prometheus_config { enable: false }", ""),
        ("prometheus_config {}", ""),
    ],
)
def test_where_the_metrics_are(text: str, path: str) -> None:
    """At TensorFlow Serving's path where none is given, and nowhere unless it is asked for."""
    assert convert(text).document() == {"monitoring_path": path}


def test_an_ssl_config_file_is_named() -> None:
    """By its absolute path: its keys are not copied. One without a key or a certificate is refused."""
    made = convert('server_key: "k" server_cert: "c" custom_ca: "ca" client_verify: true').document()
    assert made == {"tls": {"file": str(Path.cwd() / "a")}}
    assert "server_cert is missing" in refused('server_key: "k"')


def test_batching_parameters() -> None:
    """In place, and on."""
    made = convert("max_batch_size { value: 64 }\nthread_pool_name { value: 'p' }").document()
    assert made == {"batching": {"enabled": True, "max_batch_size": 64, "thread_pool_name": "p"}}
    made = convert("max_enqueued_batches { value: 0 }").document()
    assert made == {"batching": {"enabled": True, "max_enqueued_batches": 1}}


# -- EAS


def test_an_eas_service() -> None:
    """Two models of a service, with its commas; what is EAS's own, or the processor's, is listed."""
    told = convert(eas_service("/data"))
    common = {"intra_op_threads": 24, "inter_op_threads": 24, "gpus": "auto"}
    assert told.document() == {
        "models": {
            "model1": {
                "base_path": "/data/pb1",
                "contexts_per_gpu": 2,
                "cpu_slots": 2,
                "cpusets": "1,2,3;4,5,6",
                **common,
            },
            "model2": {
                "base_path": "/data/pb2",
                "contexts_per_gpu": 4,
                "cpu_slots": 4,
                "cpusets": "7-9;10-12;13-15;16-18",
                **common,
            },
        }
    }
    noted = "\n".join(told.notes)
    for key in ("checkpoint_dir", "omp_num_threads", "oss_endpoint", "init_timeout_minutes", "processors"):
        assert key in noted
    assert "kmp_blocktime" not in noted  # 0
    assert "a line 26: checkpoint_dir: checkpoints are not followed" in noted


@pytest.mark.parametrize(
    ("config", "values"),
    [
        ('"savedmodel_dir": "/pb/1616466677/"', {"base_path": "/pb", "version_policy": [1616466677]}),
        ('"savedmodel_dir": "/pb", "gpu_ids_list": "0,2"', {"base_path": "/pb", "gpus": "0,2"}),
        (
            '"savedmodel_dir": "/pb", "enable_inline_execute": true',
            {"base_path": "/pb", "inter_op_threads": 1},
        ),
        ('"savedmodel_dir": "/pb", # a comment\n\t"cpusets": "1;2"', {"base_path": "/pb", "cpusets": "1;2"}),
    ],
)
def test_a_processor_alone(config: str, values: dict[str, Any]) -> None:
    """Its JSON, or what stands under model_config of a service of one model."""
    assert convert(f"{{{config},}}").document() == {"models": {"default": values}}
    service = f'{{"name": "pttest", "model_config": {{{config},}}, "metadata": {{}}}}'
    assert convert(service).document() == {"models": {"pttest": values}}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "line 1, column 2"),
        ("{}", "describes no model"),
        ('{"models": [3]}', "expected {name: ..., model_config: {...}}"),
        ('{"model_config": {}}', "savedmodel_dir: in a line 1: missing"),
        ('{"model_config": {"savedmodel_dir": "/m", "session_num": "two"}}', "'two': give a whole number"),
        ('{"name": 3, "model_config": {"savedmodel_dir": "/m"}}', "3 is no name"),
        ('{"model_config": {"savedmodel_dir": "/m", "savedmodel_dir": "/n"}}', "keep one"),
        ('{"savedmodel_dir": "/\\ud800"}', "half a character"),
    ],
)
def test_a_json_that_cannot_be_used_is_refused(text: str, error: str) -> None:
    """By its line."""
    assert error in refused(text)


def test_what_the_processor_does_not_know_is_named() -> None:
    """With what was probably meant; a store of features elsewhere, too."""
    told = convert('{"savedmodel_dir": "/m",\n"sesion_num": 2, "feature_store_type": "redis"}')
    assert told.notes == [
        "a line 2: sesion_num is not known, and not used; did you mean session_num?",
        "a line 2: feature_store_type redis: has no equivalent here: a model's tables are in its SavedModel",
    ]


def test_recorded_requests_for_the_warm_up_are_captured() -> None:
    """By the command that keeps requests with their values."""
    (note,) = convert('{"savedmodel_dir": "/m", "warmup_file_name": "w.bin"}').notes
    assert note.endswith("as `mpspool capture` does")


# -- all of them


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (MODELS, "model_config_file"),
        ("# a comment { first: 1 }\nplatform_configs {}", "platform_config_file"),
        ("num_batch_threads { value: 3 }", "batching_parameters_file"),
        ("prometheus_config {}", "monitoring_config_file"),
        ("client_verify: true", "ssl_config_file"),
        ("gpu_options {}", "tensorflow_session_config_file"),
        (" \n{", "processor_config_file"),
        ("", ""),
        ("hello", ""),
    ],
)
def test_a_file_is_known_by_what_stands_in_it(text: str, kind: str) -> None:
    """By its first field."""
    assert kind_of(text) == kind


def test_files_that_do_not_go_together_are_refused() -> None:
    """Two of a kind, and what is none of them."""
    assert "b: is a model_config_file, and a is one already" in refused(MODELS, MODELS)
    assert "a: is none that is known here: model_config_file, " in refused("hello")


def test_convert_prints_a_pool_file(tmp_path: Path) -> None:
    """It is one, as it stands; what has no equivalent is on standard error."""
    texts = {"models": MODELS, "platform": PLATFORM_CONFIG, "batching": "max_batch_size { value: 9 }"}
    files = []
    for name, text in texts.items():
        files.append(str(tmp_path / name))
        (tmp_path / name).write_text(text)
    done = CliRunner().invoke(main, ["convert", *files])
    assert done.exit_code == 0
    assert "use_per_session_threads: each worker is a process" in done.stderr
    (tmp_path / "pool.yaml").write_text(done.stdout)
    config = load_config(tmp_path / "pool.yaml", {}, {})
    assert [model.name for model in config.models] == ["pb1", "pb2"]
    assert config.batching.max_batch_size == 9
    assert yaml.safe_load(done.stdout)["models"]["pb1"]["gpus"] == [0, 1]


def test_convert_says_what_it_cannot_read(tmp_path: Path) -> None:
    """Exit status 1, and nothing on standard output."""
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    done = CliRunner().invoke(main, ["convert", str(tmp_path / "gone"), str(tmp_path / "bytes")])
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"error: {tmp_path}/gone: cannot be read: No such file or directory" in done.stderr
    assert f"error: {tmp_path}/bytes: is not a text file" in done.stderr


_WORDS = [
    "{",
    "}",
    "<",
    ">",
    ":",
    ",",
    ";",
    "[",
    "]",
    '"a"',
    "'",
    "1",
    "-1",
    "1e9",
    "true",
    "#",
    "\n",
    "/m",
    "\\x",
]
_WORDS += [field.name for message in KINDS.values() for field in message.DESCRIPTOR.fields]
_WORDS += ["config", "name", "base_path", "key", "value", "legacy_config", "experimental", "savedmodel_dir"]
_WORDS += [
    "[type.googleapis.com/tensorflow.serving.SavedModelBundleV2SourceAdapterConfig]",
    '"model_config"',
    "&a",
    "*a",
    "!!set",
]


@given(st.text(max_size=80) | st.lists(st.sampled_from(_WORDS), max_size=25).map(" ".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    """By every reader of such files: nothing but what they say they raise."""
    for message in KINDS.values():
        with contextlib.suppress(TextError):
            parse(text, message())
    for whole in (text, "{" + text):
        with contextlib.suppress(StartError):
            convert(whole)


@pytest.mark.parametrize("text", [MODELS, PLATFORM_CONFIG, eas_service("/data")])
@given(data=st.data())
def test_a_file_with_a_piece_cut_out_is_read_or_refused(text: str, data: st.DataObject) -> None:
    """Wherever it breaks off or lacks something."""
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    with contextlib.suppress(StartError):
        convert(text[:start] + text[end:])


def test_the_messages_of_files_are_there() -> None:
    """As TensorFlow Serving has them, with DeepRec's fields beside."""
    assert tfs.ConfigProto.DESCRIPTOR.fields_by_name["use_per_session_stream"].number == 206
