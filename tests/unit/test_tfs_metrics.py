"""TensorFlow Serving's metrics: names, labels, bounds and text, and what becomes of counts as versions go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from mpspool.core.errors import Code
from mpspool.core.messages import LoadReport, Outcome
from mpspool.core.methods import Method
from mpspool.core.settings import RouterSettings
from mpspool.router.metrics import tensorflow_serving as tfs_metrics
from mpspool.router.metrics.bounds import MAX_SIZES
from mpspool.router.metrics.exposition import Metrics
from tests.pool import ROOT
from tests.serving_metrics import BOUNDS, DASHBOARD, LEFT_OUT, SERVED

SERVING, BATCHING, CORE = ":tensorflow:serving:", ":tensorflow:serving:batching_session:", ":tensorflow:core:"
LOADER = ":tensorflow:cc:saved_model:"
WORKER = "half@3.cpu0.0"
RAN = Outcome(0, b"", parse_us=100, run_us=3000, encode_us=200)
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def metrics() -> Metrics:
    return Metrics(RouterSettings(run_dir="", host="", grpc_port=0, rest_port=0))


def text(under_test: Metrics) -> str:
    return under_test.monitoring()[0].decode()


def read(under_test: Metrics) -> Samples:
    """Every sample of the page as {(name, sorted labels): value}; the parser has each counter end in _total."""
    return {
        (
            family.name if family.name in SERVED and family.type == "counter" else sample.name,
            tuple(sorted(sample.labels.items())),
        ): sample.value
        for family in text_string_to_metric_families(text(under_test))
        for sample in family.samples
    }


def sample(under_test: Metrics, name: str, **labels: str) -> float | None:
    return read(under_test).get((name, tuple(sorted(labels.items()))))


def names(under_test: Metrics) -> set[str]:
    """Of TensorFlow Serving's samples."""
    return {name for name, _ in read(under_test) if name.startswith(":")}


def finish(
    under_test: Metrics,
    method: Method = Method.PREDICT,
    code: Code = Code.OK,
    model: str = "half",
    version: int = 3,
    total_s: float = 0.25,
    queue_s: float = 0.125,
    rows: int = 0,
) -> None:
    outcome = RAN if code is Code.OK else None
    worker = WORKER if outcome else ""
    under_test.finished(method, model, version, worker, code, total_s, queue_s, outcome, 0.003, rows)


@pytest.fixture(scope="module")
def busy() -> Metrics:
    """One of everything."""
    under_test = metrics()
    for method in Method:
        finish(under_test, method)
    finish(under_test, rows=5)
    under_test.batch("half", 3, 2, 5, 3, 0.004)
    under_test.examples("half", 3, 7)
    under_test.loaded("half", 3, LoadReport("/models/half/3", 2_000_000, 30_000, 12, 4, 800))
    under_test.not_loaded("half", 3, "/models/half/3")
    return under_test


def test_names_kinds_and_labels_are_those_of_tensorflow_serving(busy: Metrics) -> None:
    """Each that its sources define is there, by its labels in their order, and no other."""
    families = {family.name: (family.kind, family.labels) for family in tfs_metrics.FAMILIES}
    assert families == SERVED
    lines = text(busy).splitlines()
    for name, (kind, labels) in SERVED.items():
        assert f"# TYPE {name} {kind}" in lines
        shown = [line for line in lines if line.startswith((f"{name}{{", f"{name}_bucket{{"))]
        assert shown, name
        named = [pair.partition("=")[0] for pair in shown[0].partition("{")[2].partition("}")[0].split(",")]
        assert [label for label in named if label not in ("le", "")] == list(labels)
    assert not [name for name in LEFT_OUT if name in text(busy)]


def test_what_a_public_dashboard_asks_for_is_there(busy: Metrics) -> None:
    """Each sample of the mixin's queries, with the labels that they choose by."""
    found = read(busy)
    for name, labels in DASHBOARD.items():
        mine = [dict(pairs) for known, pairs in found if known == name]
        assert mine, name
        assert all(set(labels) <= set(pairs) for pairs in mine)


def test_every_metric_is_documented() -> None:
    """docs/metrics.md has each that is shown with its labels, and each of TensorFlow Serving's own that is left out."""
    lines = (ROOT / "docs" / "metrics.md").read_text().splitlines()
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `:")]
    shown = {cells[0].strip("`"): cells[1] for cells in table if len(cells) == 3}
    assert shown == {
        name: ", ".join(f"`{label}`" for label in labels) for name, (_, labels) in SERVED.items()
    }
    left_out = " ".join(cells[0] for cells in table if len(cells) == 2)
    assert all(name.replace("batching:queuing_latency", "batching:*") in left_out for name in LEFT_OUT)


def test_bounds_are_those_of_tensorflow_serving(busy: Metrics) -> None:
    """As many, from the first on, in six digits; then one for all."""
    lines = text(busy).splitlines()
    for name, (first, factor, count) in BOUNDS.items():
        shown = [line.split('le="')[1].split('"')[0] for line in lines if line.startswith(f"{name}_bucket{{")]
        expected = [f"{first * factor**index:.6g}" for index in range(count)]
        assert shown[: count + 1] == [*expected, "+Inf"], name
    assert 'le="708235"' in text(busy)
    assert 'le="1.27482e+06"' in text(busy)


def test_the_text_of_a_histogram() -> None:
    """To the letter, as its exporter writes one: cumulated, the sum, and the count."""
    under_test = metrics()
    under_test.batch("half", 3, 1, 3, 1, 0.002)
    under_test.batch("half", 3, 2, 8, 0, 0.002)
    name = f"{BATCHING}processed_batch_size"
    found = [line for line in text(under_test).splitlines() if line.startswith(name)]
    assert found[:6] == [
        f'{name}_bucket{{le="1"}} 0',
        f'{name}_bucket{{le="2"}} 0',
        f'{name}_bucket{{le="4"}} 1',
        f'{name}_bucket{{le="8"}} 2',
        f'{name}_bucket{{le="16"}} 2',
        f'{name}_bucket{{le="32"}} 2',
    ]
    assert found[-3:] == [f'{name}_bucket{{le="+Inf"}} 2', f"{name}_sum{{}} 12", f"{name}_count{{}} 2"]


def test_requests_are_counted_by_model_and_status() -> None:
    """Whatever version they went to and method they were, but for MultiInference; names that are not ours share a series."""
    under_test = metrics()
    finish(under_test)
    finish(under_test, version=4)
    finish(under_test, Method.REST_REGRESS)
    finish(under_test, code=Code.RESOURCE_EXHAUSTED)
    finish(under_test, Method.MULTI_INFERENCE)
    finish(under_test, code=Code.NOT_FOUND, model="invented")
    under_test.answered("Predict", Code.UNAVAILABLE)
    under_test.answered("GetModelStatus", Code.OK, "half")
    found = {
        pairs: count for (name, pairs), count in read(under_test).items() if name == f"{SERVING}request_count"
    }
    assert found == {
        (("model_name", "half"), ("status", "OK")): 3,
        (("model_name", "half"), ("status", "RESOURCE_EXHAUSTED")): 1,
        (("model_name", ""), ("status", "NOT_FOUND")): 1,
        (("model_name", ""), ("status", "UNAVAILABLE")): 1,
    }


def test_latencies_are_those_of_answers_by_api_and_entry_point() -> None:
    """In microseconds; what was refused has none, and REST's methods are the words of its paths."""
    under_test = metrics()
    finish(under_test, total_s=0.25)
    finish(under_test, total_s=0.5, version=4)
    finish(under_test, code=Code.DEADLINE_EXCEEDED, total_s=1.0)
    finish(under_test, Method.REST_CLASSIFY, total_s=0.002)
    finish(under_test, Method.MULTI_INFERENCE)
    name = f"{SERVING}request_latency"
    grpc = {"model_name": "half", "API": "Predict", "entrypoint": "GRPC"}
    rest = {"model_name": "half", "API": "classify", "entrypoint": "REST"}
    assert sample(under_test, f"{name}_sum", **grpc) == 750_000
    assert sample(under_test, f"{name}_count", **grpc) == 2
    assert sample(under_test, f"{name}_bucket", le="393464", **grpc) == 1
    assert sample(under_test, f"{name}_sum", **rest) == 2_000
    runtime = f"{SERVING}runtime_latency_sum"
    assert sample(under_test, runtime, model_name="half", API="Predict", runtime="TF1") == 6_000
    assert sample(under_test, runtime, model_name="half", API="Classify", runtime="TF1") == 3_000
    apis = {dict(pairs)["API"] for known, pairs in read(under_test) if known in (f"{name}_count", runtime)}
    assert apis == {"Predict", "classify", "Classify"}


def test_what_is_asked_of_a_model_over_rest_has_no_api() -> None:
    """Its status and its metadata, as there."""
    under_test = metrics()
    under_test.looked_up("half", Code.OK, 0.001)
    under_test.looked_up("half", Code.NOT_FOUND, 0.001)
    labels = {"model_name": "half", "API": "", "entrypoint": "REST"}
    assert sample(under_test, f"{SERVING}request_latency_sum", **labels) == 1_000
    assert sample(under_test, f"{SERVING}request_count", model_name="half", status="NOT_FOUND") == 1


def test_batches() -> None:
    """Of what was sent to be joined alone: rows, waiting, padding by the rows of the run, and runs."""
    under_test = metrics()
    for rows in (2, 3):
        finish(under_test, rows=rows, queue_s=0.001)
    finish(under_test)
    under_test.batch("half", 3, 2, 5, 3, 0.004)
    assert sample(under_test, f"{BATCHING}input_batch_size_sum") == 5
    assert sample(under_test, f"{BATCHING}input_batch_size_count") == 2
    assert sample(under_test, f"{BATCHING}queuing_latency_sum", thread_pool_name="") == 2_000
    assert sample(under_test, f"{BATCHING}queuing_latency_count", thread_pool_name="") == 2
    assert sample(under_test, f"{BATCHING}processed_batch_size_sum") == 8
    assert sample(under_test, f"{BATCHING}padding_size_sum", execution_batch_size="8") == 3
    assert sample(under_test, f"{BATCHING}wrapped_run_count") == 1


def test_runs_are_counted_once_each() -> None:
    """One for each request that ran alone, and one for all that shared a run, each with its time."""
    under_test = metrics()
    finish(under_test)
    for rows in (2, 3):
        finish(under_test, rows=rows)
    under_test.batch("half", 3, 2, 5, 0, 0.004)
    for name in ("graph_runs", "direct_session_runs"):
        assert sample(under_test, f"{CORE}{name}") == 2
    assert sample(under_test, f"{CORE}graph_run_time_usecs") == 7_000
    assert sample(under_test, f"{CORE}graph_run_time_usecs_histogram_bucket", le="4000") == 2


def test_loads_and_warm_ups() -> None:
    """Each worker's, by the folder of its version; without recorded requests there is no warm-up to tell of."""
    under_test = metrics()
    under_test.loaded("half", 3, LoadReport("/m/3", 2_000_000, 30_000, 12, 4, 800))
    under_test.loaded("half", 3, LoadReport("/m/3", 1_000_000, 20_000, 12, 4, 700))
    under_test.loaded("half", 4, LoadReport("/m/4", 500_000, 9_000, 0, 1, 100))
    under_test.not_loaded("half", 4, "/m/4")
    attempts = f"{LOADER}load_attempt_count"
    assert sample(under_test, attempts, model_path="/m/3", status="success") == 2
    assert sample(under_test, attempts, model_path="/m/4", status="success") == 1
    assert sample(under_test, attempts, model_path="/m/4", status="fail") == 1
    assert sample(under_test, f"{LOADER}load_latency", model_path="/m/3") == 3_000_000
    warm = {"model_path": "/m/3", "status": "OK"}
    assert sample(under_test, f"{SERVING}model_warmup_latency_sum", **warm) == 50_000
    assert sample(under_test, f"{SERVING}model_warmup_records_read", **warm) == 24
    assert 'model_warmup_records_read{model_path="/m/4"' not in text(under_test)
    assert sample(under_test, f"{CORE}graph_build_calls") == 9
    assert sample(under_test, f"{CORE}graph_build_time_usecs") == 1_600


def test_counts_outlive_their_version() -> None:
    """What its model counts, and all models together, never falls; a model that is gone has no series."""
    under_test = metrics()
    for version in (3, 4):
        finish(under_test, version=version)
        under_test.batch("half", version, 1, 5, 3, 0.004)
        under_test.examples("half", version, 2)
        under_test.loaded("half", version, LoadReport(f"/m/{version}"))
        under_test.looked_up("half", Code.OK, 0.001)
    before = names(under_test)
    under_test.forget("half", 3)
    count = {"model_name": "half", "status": "OK"}
    assert sample(under_test, f"{SERVING}request_count", **count) == 4
    assert sample(under_test, f"{SERVING}request_example_count_total", model="half") == 4
    assert names(under_test) == before
    assert "/m/3" not in text(under_test)
    under_test.forget("half", 4)
    assert '"half"' not in text(under_test)
    assert sample(under_test, f"{BATCHING}wrapped_run_count") == 2
    assert sample(under_test, f"{CORE}graph_runs") == 4
    finish(under_test)
    assert sample(under_test, f"{SERVING}request_count", **count) == 1
    assert sample(under_test, f"{CORE}graph_runs") == 5


def test_sizes_of_batches_make_no_end_of_series() -> None:
    """Those that come late share one; none is lost."""
    under_test = metrics()
    for size in range(1, 1001):
        under_test.batch("half", 3, 1, size, 0, 0.001)
    found = [
        value for (name, _), value in read(under_test).items() if name == f"{BATCHING}padding_size_count"
    ]
    assert len(found) == MAX_SIZES + 1
    assert sum(found) == 1000


def test_our_own_metrics_come_after_theirs(busy: Metrics) -> None:
    """As /metrics has them, in the same format."""
    page, content_type = busy.monitoring()
    ours, same_type = busy.exposition("")
    assert page.endswith(ours)
    assert not page.removesuffix(ours).count(b"mpspool_")
    assert content_type == same_type
    assert content_type.startswith("text/plain")


@given(name=st.text(), path=st.text())
def test_any_label_comes_back_as_it_was(name: str, path: str) -> None:
    """Quotes, backslashes, line feeds and all else, through the client library's parser."""
    under_test = metrics()
    finish(under_test, model=name)
    under_test.not_loaded(name, 3, path)
    assert sample(under_test, f"{SERVING}request_count", model_name=name, status="OK") == 1
    assert sample(under_test, f"{LOADER}load_attempt_count", model_path=path, status="fail") == 1
