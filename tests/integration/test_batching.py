"""Batches in a whole pool: formed by the router over all its workers, run by TensorFlow, taken apart again."""

from __future__ import annotations

import itertools
import json
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from mpspool.core import tfs
from tests import tensors
from tests.conftest import PoolStarter
from tests.light import answer as light_answer
from tests.light import light_pool, metric
from tests.polling import until
from tests.pool import Pool

PREDICT = f"/{tfs.PREDICTION_SERVICE}/Predict"
PARAMETERS = """
max_batch_size { value: 1000 }  # as tensorflow_model_server takes it
batch_timeout_micros { value: 20000 }
max_enqueued_batches { value: 100 }
enable_large_batch_splitting { value: true }
max_execution_batch_size { value: 200 }
pad_variable_length_inputs: true
"""
# Of batches that only what the test sends can fill, in its own time.
TIMED: dict[str, Any] = {
    "cpu_slots": 2,
    "batching": {"max_batch_size": 20, "batch_timeout_micros": 2_000_000},
    "models": {"half_plus_two": {}, "widedeep": {"batching": {"batch_timeout_micros": 600_000_000}}},
}


@pytest.fixture(scope="module")
def pool(
    start_module_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Pool:
    file = tmp_path_factory.mktemp("batching") / "parameters.txt"
    file.write_text(PARAMETERS)
    args = ("--cpu-slots", 2, "--enable-batching", "--batching-parameters-file", file)
    models = [
        arg for name in ("half_plus_two", "sequences") for arg in ("--model", f"{name}={model_dir(name)}")
    ]
    return start_module_pool(*models, *args).wait()


@pytest.fixture(scope="module")
def timed(
    start_module_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Pool:
    models = {name: {**said, "base_path": str(model_dir(name))} for name, said in TIMED["models"].items()}
    file = tmp_path_factory.mktemp("timed") / "pool.yaml"
    file.write_text(json.dumps({**TIMED, "models": models}))
    return start_module_pool(file).wait()


def request(values: list[float]) -> bytes:
    asked = tfs.PredictRequest()
    asked.model_spec.name = "half_plus_two"
    tensor = asked.inputs["x"]
    tensor.dtype = 1
    tensor.tensor_shape.dim.add(size=len(values))
    tensor.float_val.extend(values)
    return asked.SerializeToString()


def sequence(values: list[float], signature: str = "", outputs: Sequence[str] = ("sum",)) -> bytes:
    """One row of them."""
    asked = tfs.PredictRequest(output_filter=outputs)
    asked.model_spec.name = "sequences"
    asked.model_spec.signature_name = signature
    tensor = asked.inputs["x"]
    tensor.dtype = 1
    for size in (1, len(values)):
        tensor.tensor_shape.dim.add(size=size)
    tensor.float_val.extend(values)
    return asked.SerializeToString()


def recommend(cat: np.ndarray[Any, Any], dense: np.ndarray[Any, Any]) -> bytes:
    """A request for widedeep."""
    asked = tfs.PredictRequest()
    asked.model_spec.name = "widedeep"
    for alias, array in (("cat", cat), ("dense", dense)):
        asked.inputs[alias].ParseFromString(tensors.encode(array, tfs.number_of(array.dtype)))
    return asked.SerializeToString()


def scores(body: bytes) -> np.ndarray[Any, Any]:
    return tensors.decode(tfs.PredictResponse.FromString(body).outputs["score"].SerializeToString())


def answer(body: bytes) -> list[float]:
    tensor = tfs.PredictResponse.FromString(body).outputs["y"]
    assert [dim.size for dim in tensor.tensor_shape.dim] == [len(tensor.float_val)]
    return list(tensor.float_val)


def served_by(pool: Pool, model: str = "half_plus_two") -> dict[str, int]:
    """How many requests each worker of a model has answered."""
    workers = pool.workers().items()
    return {name: worker["served"] for name, worker in workers if name.startswith(f"{model}@")}


def test_each_gets_the_answer_to_its_own_rows(pool: Pool) -> None:
    """Of 400 requests of one to five rows at once, which share batches."""
    numbers = itertools.count()
    asked = [[float(next(numbers)) for _ in range(1 + index % 5)] for index in range(400)]
    batches, requests = (
        metric(pool, "mpspool_batch_requests_count"),
        metric(pool, "mpspool_batch_requests_sum"),
    )
    with grpc.insecure_channel(pool.address) as channel:
        call = channel.unary_unary(PREDICT)
        futures = [call.future(request(values), timeout=30) for values in asked]
        for values, future in zip(asked, futures, strict=True):
            assert answer(future.result()) == [value / 2 + 2 for value in values]
    requests = metric(pool, "mpspool_batch_requests_sum") - requests
    batches = metric(pool, "mpspool_batch_requests_count") - batches
    assert requests == 400
    assert batches <= 100, "they do not share batches"


def test_rows_of_different_lengths_share_batches(pool: Pool) -> None:
    """They are padded with their first element, here 0: 200 requests, each of a length of its own, get their own sums."""
    batches = metric(pool, "mpspool_batch_requests_count")
    with grpc.insecure_channel(pool.address) as channel:
        call = channel.unary_unary(PREDICT)
        futures = [
            call.future(sequence([0.0] * zeros + [float(zeros)]), timeout=30) for zeros in range(1, 201)
        ]
        for zeros, future in enumerate(futures, 1):
            total = tfs.PredictResponse.FromString(future.result()).outputs["sum"].float_val
            assert list(total) == [zeros]
    assert metric(pool, "mpspool_batch_requests_count") - batches <= 150, "they do not share batches"


def test_a_bad_request_fails_alone(timed: Pool) -> None:
    """Twenty requests are one batch, in which a kernel refuses one's id: it is told why, the others are answered all the same.

    A request of their twenty rows, all good, says what they are to be answered.
    """
    random = np.random.default_rng(7)
    cat, dense = random.integers(0, 1000, (20, 26)), random.random((20, 13), np.float32)
    bad = cat.copy()
    bad[7] = 1_000_000
    with grpc.insecure_channel(timed.address) as channel:
        call = channel.unary_unary(PREDICT)
        expected = scores(call(recommend(cat, dense), timeout=30))
        batches, requests = (
            metric(timed, f"mpspool_batch_requests_{what}", model="widedeep") for what in ("count", "sum")
        )
        bodies = [recommend(bad[row : row + 1], dense[row : row + 1]) for row in range(20)]
        futures = [call.future(body, timeout=30) for body in bodies]
        for row, future in enumerate(futures):
            if row == 7:
                assert future.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert "1000000 is not in [0, " in future.details()
            else:
                np.testing.assert_allclose(scores(future.result()), expected[row : row + 1], rtol=1e-5)
    # Ten, five and two or three of the nineteen ran together in the end; that they were sent as one is in the worker's log.
    assert metric(timed, "mpspool_batch_requests_count", model="widedeep") - batches in (4, 5)
    assert metric(timed, "mpspool_batch_requests_sum", model="widedeep") == requests + 19

    def refused() -> list[int]:
        logs = [event for slot in range(2) for event in timed.events(f"worker.widedeep@1.cpu0.{slot}")]
        text = "a run of several requests was refused"
        return [event["requests"] for event in logs if event["event"].startswith(text)]

    until(lambda: refused() == [20])


def test_a_large_request_is_spread_over_the_workers(pool: Pool) -> None:
    """700 rows of which 200 run at once: four parts, on both workers, and one answer in order."""
    rows = metric(pool, "mpspool_batch_rows_sum")
    counted = metric(pool, "mpspool_requests_total")
    served = served_by(pool)
    values = [float(index) for index in range(700)]
    with grpc.insecure_channel(pool.address) as channel:
        assert answer(channel.unary_unary(PREDICT)(request(values), timeout=30)) == [
            v / 2 + 2 for v in values
        ]
    assert metric(pool, "mpspool_batch_rows_sum") - rows == 700
    assert metric(pool, "mpspool_requests_total") - counted == 1
    assert all(count > served[worker] for worker, count in served_by(pool).items())


def test_a_request_of_too_many_rows_is_refused(pool: Pool) -> None:
    """As TensorFlow Serving refuses it."""
    with grpc.insecure_channel(pool.address) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(PREDICT)(request([0.0] * 1001), timeout=30)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == "Task size 1001 is larger than maximum input batch size 1000"


def test_a_batch_waits_for_its_timeout_and_no_longer(pool: Pool, timed: Pool) -> None:
    """A request by itself is answered though nothing fills its batch, not before its timeout and soon after: 3 s here.

    Under a clock of its own test_a_batch_that_is_not_full_waits_for_the_timeout, in tests/unit/test_batching.py, is exact.
    """
    for asked, timeout_s, times in ((pool, 0.02, 5), (timed, 2, 1)):
        with grpc.insecure_channel(asked.address) as channel:
            call = channel.unary_unary(PREDICT)
            for index in range(times):
                start_s = time.monotonic()
                assert answer(call(request([float(index)]), timeout=5)) == [index / 2 + 2]
                assert time.monotonic() - start_s >= timeout_s


def test_rows_by_rest_fill_a_batch(timed: Pool) -> None:
    """Twenty of them in one request: it goes at once, though its batch could wait for ten minutes."""
    generator = np.random.default_rng(5)
    cat, dense = generator.integers(0, 999, (20, 26)), generator.random((20, 13), np.float32)
    rows = [{"cat": ids.tolist(), "dense": numbers.tolist()} for ids, numbers in zip(cat, dense, strict=True)]
    url = f"http://127.0.0.1:{timed.rest_port}/v1/models/widedeep:predict"
    with urllib.request.urlopen(url, json.dumps({"instances": rows}).encode(), 30) as told:
        assert len(json.load(told)["predictions"]) == 20


def test_outputs_without_rows_are_asked_for_one_by_one(pool: Pool) -> None:
    """Once the first that were joined have shown it: on both workers, and no batch is counted for them."""
    with grpc.insecure_channel(pool.address) as channel:
        call = channel.unary_unary(PREDICT)
        for known in (False, True):
            batches = metric(pool, "mpspool_batch_requests_count")
            served = served_by(pool, "sequences")
            futures = [
                call.future(sequence([0.0] * 7, "length", ("length",)), timeout=30) for _ in range(200)
            ]
            for future in futures:
                assert list(tfs.PredictResponse.FromString(future.result()).outputs["length"].int_val) == [7]
            assert (metric(pool, "mpspool_batch_requests_count") == batches) == known
        assert all(count > served[worker] for worker, count in served_by(pool, "sequences").items())


def test_what_cannot_be_joined_is_answered_one_after_another(start_pool: PoolStarter, tmp_path: Path) -> None:
    """Once it is known: while one of them runs, those that waited beside it are answered by the other worker."""
    config = {"cpu_slots": 2, "batching": {"max_batch_size": 8}, "models": {"m": {}}}
    with light_pool(start_pool, tmp_path, config) as light:
        tried = [light.values(2) for _ in range(3)]
        with light.busy("m", "m"):
            calls = [light.queue("m", x, "slow_total") for x in tried]
        assert [light_answer(call) for call in calls] == [x.sum() for x in tried]
        shapes = [run.shape for run in light.runs("m") if run.signature == "slow_total"]
        assert shapes == [(6,), (2,), (2,), (2,)]

        known = [light.values(2) for _ in range(4)]
        with light.held(known[1]):
            with light.held(known[0]), light.busy("m", "m"):
                calls = [light.queue("m", x, "slow_total") for x in known]
            for index in (0, 2, 3):
                assert light_answer(calls[index]) == known[index].sum()
            assert not calls[1].done()
        assert light_answer(calls[1]) == known[1].sum()
        runs = [run for run in light.runs("m") if run.signature == "slow_total"][len(shapes) :]
        assert [run.shape for run in runs] == [(2,)] * 4
        assert runs[0].worker != runs[1].worker
        counted = {name: light.metric(f"mpspool_batch_{name}") for name in ("requests_count", "rows_sum")}
        assert counted == {"requests_count": len(tried), "rows_sum": 2 * len(tried)}
