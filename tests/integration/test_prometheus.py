"""A real Prometheus scrapes a real pool at TensorFlow Serving's path, and answers what dashboards and alerts ask."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import yaml

from mpspool.core import tfs
from mpspool.core.tfrecord import framed
from tests.conftest import PoolStarter
from tests.light import inputs, metric, spec
from tests.polling import until
from tests.pool import Pool
from tests.prometheus import Prometheus, lint, scraping
from tests.serving_metrics import DASHBOARD, LEFT_OUT, SERVED

PATH = "/monitoring/prometheus/metrics"
SERVING = f"/{tfs.PREDICTION_SERVICE}/"
# By model: how many requests each test's models have been sent by the time that it looks.
HALF, FAILED, CLASSIFIED, JOINED, REST, LOOKED_UP = 20, 3, 4, 24, 6, 2
RECORDS = 5
# What promtool has against names of others, which are not ours to change.
_THEIRS = (
    "should not contain ':'",
    'should have "_total" suffix',
    "should not contain abbreviated units",
    'should not have "_count" suffix',
    "should not include type 'histogram'",
)


# Labels that may say nothing, and are none to Prometheus then.
_EMPTY = {"thread_pool_name", "model_name", "API"}


def write_warm_up(version: Path) -> None:
    entry = tfs.PredictionLog()
    entry.predict_log.request.ParseFromString(predict("half"))
    (version / "assets.extra").mkdir()
    records = framed(entry.SerializeToString()) * RECORDS
    (version / "assets.extra" / "tf_serving_warmup_requests").write_bytes(records)


def predict(model: str, rows: int = 2, signature: str = "") -> bytes:
    return spec(model, signature) + inputs(x=np.ones((rows,), np.float32))


def classify(count: int) -> bytes:
    request = tfs.ClassificationRequest()
    request.model_spec.name, request.model_spec.signature_name = "examples", "classify_x_to_y"
    for _ in range(count):
        example = request.input.example_list.examples.add()
        example.features.feature["x"].float_list.value.append(1)
        example.features.feature["x2"].float_list.value.append(1)
    return bytes(request.SerializeToString())


@pytest.fixture(scope="module")
def half(model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base path of this module's own, with recorded requests."""
    folder = tmp_path_factory.mktemp("models") / "half"
    shutil.copytree(model_dir("half_plus_two"), folder)
    write_warm_up(folder / "1")
    return folder


@pytest.fixture(scope="module")
def pool(start_module_pool: PoolStarter, model_dir: Callable[[str], Path], half: Path) -> Pool:
    folder = half.parent
    batching = {"max_batch_size": 8, "allowed_batch_sizes": [4, 8], "batch_timeout_micros": 1000}
    models = {
        "half": {"base_path": "half"},
        "joined": {"base_path": str(model_dir("half_plus_two")), "batching": batching},
        "examples": {"base_path": str(model_dir("examples"))},
    }
    (folder / "pool.yaml").write_text(yaml.safe_dump({"cpu_slots": 1, "models": models}))
    return start_module_pool(folder / "pool.yaml").wait()


def get(pool: Pool, path: str, body: bytes | None = None) -> bytes:
    """What is answered there; a body is posted."""
    with urllib.request.urlopen(f"http://127.0.0.1:{pool.rest_port}{path}", body, timeout=30) as answer:
        content: bytes = answer.read()
    return content


@pytest.fixture(scope="module")
def asked(pool: Pool) -> None:
    """All requests, answered."""
    with grpc.insecure_channel(pool.address) as channel:

        def send(method: str, bodies: Sequence[bytes], code: grpc.StatusCode | None = None) -> None:
            def one(body: bytes) -> None:
                call: Any = channel.unary_unary(f"{SERVING}{method}")
                if code is None:
                    call(body, timeout=30)
                    return
                with pytest.raises(grpc.RpcError) as refused:
                    call(body, timeout=30)
                assert refused.value.code() is code  # type: ignore[attr-defined]

            with ThreadPoolExecutor(8) as several:
                list(several.map(one, bodies))

        send("Predict", [predict("half")] * HALF)
        send("Predict", [predict("half", signature="nope")] * FAILED, grpc.StatusCode.FAILED_PRECONDITION)
        send("Predict", [predict("nobody's")], grpc.StatusCode.NOT_FOUND)
        send("Predict", [predict("joined", rows=3)] * JOINED)
        send("Classify", [classify(5)] * CLASSIFIED)
    for body in [json.dumps({"instances": [1.0, 2.0]}).encode()] * REST:
        assert json.loads(get(pool, "/v1/models/half:predict", body)) == {"predictions": [2.5, 3.0]}
    for path in ("", "/metadata")[:LOOKED_UP]:
        get(pool, f"/v1/models/half{path}")


@pytest.fixture(scope="module")
def prometheus(pool: Pool, asked: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with scraping(pool.rest_port, PATH, tmp_path_factory.mktemp("prometheus")) as running:
        until(lambda: running.value("up") == 1, 30, "the pool was scraped")
        yield running


@pytest.mark.usefixtures("asked")
def test_promtool_reads_the_page(pool: Pool) -> None:
    """It can, and has nothing against it but TensorFlow Serving's names."""
    status, complaints = lint(get(pool, PATH))
    assert status in (0, 3), complaints
    assert not [
        line for line in complaints if not line.startswith(":tensorflow:") or not line.endswith(_THEIRS)
    ]


def test_requests_are_counted(prometheus: Prometheus) -> None:
    """By model and status, as answered; names that are not ours under none, which Prometheus takes for no label."""
    found = {
        (labels.get("model_name", ""), labels["status"]): count
        for labels, count in prometheus.ask(":tensorflow:serving:request_count")
    }
    assert found == {
        ("half", "OK"): HALF + REST + LOOKED_UP,
        ("half", "FAILED_PRECONDITION"): FAILED,
        ("", "NOT_FOUND"): 1,
        ("joined", "OK"): JOINED,
        ("examples", "OK"): CLASSIFIED,
    }


def test_quantiles_of_latency(prometheus: Prometheus) -> None:
    """Of each API and entry point, from the buckets: between the least and the most that a request can have taken, in microseconds."""
    for model, api, door in (
        ("half", "Predict", "GRPC"),
        ("half", "predict", "REST"),
        ("joined", "Predict", "GRPC"),
        ("examples", "Classify", "GRPC"),
    ):
        labels = f'{{model_name="{model}",API="{api}",entrypoint="{door}"}}'
        p50, p99 = (
            prometheus.value(
                f"histogram_quantile({share}, :tensorflow:serving:request_latency_bucket{labels})"
            )
            for share in (0.5, 0.99)
        )
        assert 10 < p50 <= p99 < 60e6
        runtime = prometheus.value(
            f'histogram_quantile(0.5, :tensorflow:serving:runtime_latency_bucket{{model_name="{model}",API="{api.title()}",runtime="TF1"}})'
        )
        assert 10 <= runtime < 60e6


def test_batches_loads_and_warm_ups(prometheus: Prometheus, pool: Pool) -> None:
    """What was joined, with its padding; what each worker's load took, and its warm-up by recorded requests."""
    batching = ":tensorflow:serving:batching_session:"
    runs = prometheus.value(f"{batching}wrapped_run_count")
    assert 1 <= runs <= JOINED
    assert prometheus.value(f"{batching}input_batch_size_sum") == 3 * JOINED
    assert prometheus.value(f"{batching}queuing_latency_count") == JOINED
    assert prometheus.value(f"{batching}processed_batch_size_count") == runs
    padding = prometheus.value(f"sum({batching}padding_size_sum)")
    assert prometheus.value(f"{batching}processed_batch_size_sum") == 3 * JOINED + padding
    paths = {
        labels["model_path"] for labels, _ in prometheus.ask(":tensorflow:cc:saved_model:load_latency > 1000")
    }
    assert len(paths) == 3
    (path,) = (path for path in paths if path.endswith("/half/1"))
    warm = f'{{model_path="{path}",status="OK"}}'
    assert prometheus.value(f":tensorflow:serving:model_warmup_records_read{warm}") == RECORDS
    assert prometheus.value(f":tensorflow:serving:model_warmup_latency_count{warm}") == 1
    assert prometheus.value("sum(:tensorflow:cc:saved_model:load_attempt_count{status='success'})") == 3
    graph_runs = prometheus.value(":tensorflow:core:graph_runs")
    assert graph_runs == HALF + REST + CLASSIFIED + runs
    assert prometheus.value(":tensorflow:serving:request_example_count_total") == 5 * CLASSIFIED


def test_names_and_labels_are_those_of_tensorflow_serving(prometheus: Prometheus) -> None:
    """Every series of theirs is one that its sources define, by their labels; every one is there."""
    found: dict[str, set[str]] = {}
    for labels, _ in prometheus.ask('{__name__=~":tensorflow:.*"}'):
        name = labels.pop("__name__")
        own = set(labels) - {"job", "instance"}
        if (family := next((known for known in (name, *_stems(name)) if known in SERVED), None)) is None:
            raise AssertionError(f"{name} is not theirs")
        kind, named = SERVED[family]
        assert own | _EMPTY == {*named, *_EMPTY} | ({"le"} if name.endswith("_bucket") else set()), name
        assert (kind == "histogram") == (family != name)
        found.setdefault(family, set()).add(name)
    assert set(found) == set(SERVED)
    assert not [name for name in LEFT_OUT if name in found]


def _stems(name: str) -> list[str]:
    return [name.removesuffix(end) for end in ("_bucket", "_sum", "_count")]


def test_a_public_dashboard_and_its_alerts_find_what_they_ask_for(prometheus: Prometheus) -> None:
    """Each query of the mixin has an answer once the pool was scraped twice; the rate of errors is as it was."""
    for name in DASHBOARD:
        assert prometheus.ask(f"increase({name}[1m])"), "it was scraped twice"
    for first, second in (
        ("serving:request_latency_sum", "serving:request_latency_count"),
        ("core:graph_build_time_usecs", "core:graph_build_calls"),
        ("core:graph_run_time_usecs", "core:graph_runs"),
        ("serving:batching_session:queuing_latency_sum", "serving:batching_session:queuing_latency_count"),
    ):
        average = prometheus.ask(f":tensorflow:{first} / :tensorflow:{second}")
        assert all(0 < value < 60e6 for _, value in average)
    errors = "sum(:tensorflow:serving:request_count{status!='OK'}) / sum(:tensorflow:serving:request_count)"
    every = HALF + FAILED + 1 + JOINED + CLASSIFIED + REST + LOOKED_UP
    assert prometheus.value(errors) == pytest.approx((FAILED + 1) / every)


def test_our_own_metrics_are_scraped_from_the_same_page(prometheus: Prometheus) -> None:
    """They say the same of the same requests."""
    query = 'mpspool_requests_total{model="half",code="OK",method="Predict"}'
    assert prometheus.value(query) == HALF + REST


def test_a_devices_waiting_time_follows(prometheus: Prometheus) -> None:
    """Of all that ran on a device, what was not effective: the two have the same labels, and that is no less than nothing."""
    busy, effective = (f"mpspool_device_{name}_seconds_total" for name in ("busy", "effective"))
    ((labels, waiting_s),) = prometheus.ask(f"{busy} - {effective}")
    assert set(labels) - {"instance", "job"} == {"device"}
    assert 0 <= waiting_s < prometheus.value(busy)


@pytest.mark.parametrize("model", ["half", "joined"])
def test_all_of_a_requests_time_is_effective_or_waiting(pool: Pool, model: str) -> None:
    """Of those that run one by one and of those that share batches: the two add up to the time from arrival to answer."""

    def told(what: str) -> list[float]:
        return [
            metric(pool, f"mpspool_{name}_seconds_{what}", model=model)
            for name in ("request", "effective", "waiting")
        ]

    before = [told("sum"), told("count")]
    with grpc.insecure_channel(pool.address) as channel:
        calls = [
            channel.unary_unary(f"{SERVING}Predict").future(predict(model, rows=3), timeout=30)
            for _ in range(JOINED)
        ]
        for call in calls:
            call.result()
    total_s, counts = (
        [now - then for now, then in zip(told(what), was, strict=True)]
        for what, was in zip(("sum", "count"), before, strict=True)
    )
    assert counts == [JOINED] * 3
    request_s, effective_s, waiting_s = total_s
    assert effective_s + waiting_s == pytest.approx(request_s)
    assert 0 < effective_s < request_s


def test_a_load_that_fails_is_seen(prometheus: Prometheus, pool: Pool, half: Path) -> None:
    """A version whose warm-up requests are no records: each try counts, and the version before it serves on."""
    shutil.copytree(half / "1", half.parent / "coming")
    (half.parent / "coming" / "assets.extra" / "tf_serving_warmup_requests").write_bytes(b"no record" * 20)
    (half.parent / "coming").rename(half / "2")
    failed = f':tensorflow:cc:saved_model:load_attempt_count{{model_path="{half / "2"}",status="fail"}}'
    until(lambda: prometheus.value(failed) >= 1, 60, "the load has failed")
    with grpc.insecure_channel(pool.address) as channel:
        channel.unary_unary(f"{SERVING}Predict")(predict("half"), timeout=30)
