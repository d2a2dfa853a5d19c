"""What a run of several comes to: outputs without rows, failures, what is told of it, parts of requests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import structlog

from mpspool.core import tfs
from mpspool.core.errors import Code, PoolError
from mpspool.core.join import join
from mpspool.core.messages import Request
from mpspool.core.methods import Method
from mpspool.core.progress import WHOLE
from mpspool.worker import run_sizes, runner
from mpspool.worker.call import Call
from mpspool.worker.device_failure import DeviceFailedError
from mpspool.worker.engine.base import Array
from tests.batches import (
    FLOAT,
    IDLE,
    INT64,
    POISON,
    STRING,
    Ask,
    Bench,
    Shape,
    answered,
    asking,
    half,
    make_body,
    make_signature,
    told,
)

# A deadline that has not passed, by the clock below, before a test says so.
SOON_NS = 2 * 10**9


class Clock:
    """What the runner has for `time`: deadlines pass when a test says so, and costs are real."""

    perf_counter_ns = staticmethod(time.perf_counter_ns)

    def __init__(self) -> None:
        self.now_ns = 10**9

    def monotonic_ns(self) -> int:
        return self.now_ns

    def passing(self, answer: Callable[[Mapping[str, Array]], Mapping[str, Array]]) -> Any:
        """A model in whose first run the deadline passes."""

        def run(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
            self.now_ns = SOON_NS
            return answer(inputs)

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(runner, "time", found)
    return found


# Outputs that cannot be told apart


def _summed(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    return {"y": np.array(inputs["x"].sum(), np.float32), "z": inputs["x"]}


SUMMED = make_signature({"x": (FLOAT, (None,))}, {"y": (FLOAT, None), "z": (FLOAT, None)})


def test_outputs_without_the_rows_are_run_one_by_one() -> None:
    """The answers are right, one warning names the output, and from then on nothing is run in vain."""
    bench = Bench(_summed, SUMMED)
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            outcomes = bench.run(asking(1, 2), asking(3))
            assert [answered(outcome) for outcome in outcomes] == [3, 3]
    assert bench.fed == [[1, 2, 3], [1, 2], [3], [1, 2], [3]]
    (warning,) = logs
    assert (warning["model"], warning["signature"], warning["output"], warning["shape"]) == (
        "half@7",
        "serving_default",
        "y",
        [],
    )
    bench.engine.calls.clear()
    bench.run(
        make_body({"x": np.float32([1, 2])}, outputs=("z",)),
        make_body({"x": np.float32([3])}, outputs=("z",)),
    )
    assert bench.fed == [[1, 2, 3]], "another choice of outputs is another matter"


def test_one_padded_request_with_such_an_output() -> None:
    """It is run again without the padding, whose rows were summed up, and not padded again."""
    bench = Bench(_summed, SUMMED, allowed_batch_sizes=[4])
    assert [answered(bench.run(asking(1, 2))[0]) for _ in range(2)] == [3, 3]
    assert bench.fed == [[1, 2, 1, 1], [1, 2], [1, 2]]


def test_outputs_of_one_size_are_never_taken_for_rows() -> None:
    """Three labels are no rows, although three requests ran: the signature says so."""
    signature = make_signature({"x": (FLOAT, None)}, {"labels": (INT64, (3,))})
    bench = Bench(lambda _: {"labels": np.array([1, 2, 3])}, signature)
    assert [answered(outcome, "labels") for outcome in bench.run(asking(1), asking(2), asking(3))] == [
        [1, 2, 3]
    ] * 3


def test_requests_for_no_outputs_share_a_run() -> None:
    """Each is told who has run it, and that is all."""
    bench = Bench(lambda _: {}, make_signature({"x": (FLOAT, None)}, {}))
    outcomes = bench.run(asking(1), asking(2, 3))
    assert bench.fed == [[1, 2, 3]]
    alone = bench.run(asking(1))[0]
    assert [told(outcome) for outcome in outcomes] == [told(alone)] * 2
    assert tfs.PredictResponse.FromString(alone.body).model_spec.version.value == 7


# Runs that fail


def test_a_refused_run_is_repeated_one_by_one() -> None:
    """Only the request at fault gets the error."""
    bench = Bench(half)
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            outcomes = bench.run(asking(1), asking(POISON), asking(2))
            assert told(outcomes[1]) == (Code.INVALID_ARGUMENT, b"", "poison")
            assert [answered(outcomes[0]), answered(outcomes[2])] == [[2.5], [3]]
    assert bench.fed == [[1, POISON, 2], [1], [POISON], [2]] * 2
    assert [entry["error"] for entry in logs] == ["poison"], "once"


def test_a_bad_request_among_many_costs_few_runs() -> None:
    """What failed is halved until few are left; two bad ones are not looked for, and nobody's answer is another's."""
    bench = Bench(half)
    values = [POISON if value == 120 else value for value in range(100, 132)]
    expected = [[value / 2 + 2] for value in values]
    outcomes = bench.run(*(asking(value) for value in values))
    assert told(outcomes.pop(20)) == (Code.INVALID_ARGUMENT, b"", "poison")
    assert [answered(outcome) for outcome in outcomes] == expected[:20] + expected[21:]
    assert len(bench.engine.calls) == 1 + 2 * 4 + 2
    assert sum(requests for requests, _ in bench.runs()) == 31
    bench.engine.calls.clear()
    outcomes = bench.run(*[asking(POISON), asking(1), asking(2)] * 4)
    assert [outcome.code for outcome in outcomes] == [Code.INVALID_ARGUMENT, Code.OK, Code.OK] * 4
    assert len(bench.engine.calls) == 1 + 2 + 12


def test_a_run_that_fails_for_its_size_is_made_two() -> None:
    """As where memory ran out."""

    def small(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        if len(inputs["x"]) > 5:
            raise PoolError(Code.RESOURCE_EXHAUSTED, "OOM")
        return half(inputs)

    bench = Bench(small)
    outcomes = bench.run(*(asking(value) for value in range(10)))
    assert [answered(outcome) for outcome in outcomes] == [[value / 2 + 2] for value in range(10)]
    assert [len(fed) for fed in bench.fed] == [10, 5, 5]


def test_a_run_that_fails_otherwise_is_repeated_too() -> None:
    """A fault of ours in one request is not the others'."""

    def fail(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        if (inputs["x"] == POISON).any():
            raise RuntimeError("a bug")
        return {"y": inputs["x"]}

    with structlog.testing.capture_logs() as logs:
        outcomes = Bench(fail).run(asking(1), asking(POISON))
    assert [outcome.code for outcome in outcomes] == [Code.OK, Code.INTERNAL]
    assert [entry["log_level"] for entry in logs] == ["error"] * 2


def test_a_device_that_failed_ends_it() -> None:
    """Nothing is repeated, and the page still tells what was running."""

    def fail(_: Mapping[str, Array]) -> Mapping[str, Array]:
        raise DeviceFailedError("gone")

    bench = Bench(fail)
    with pytest.raises(DeviceFailedError):
        bench.run(asking(1), asking(2))
    assert len(bench.engine.calls) == 1
    assert bench.page.told[-1] == (5, WHOLE)


def test_deadlines(clock: Clock) -> None:
    """What has expired is not run, also where it expires while others are repeated before it."""

    def slow(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        if len(inputs["x"]) > 1:
            raise PoolError(Code.INVALID_ARGUMENT, "one at a time")
        clock.now_ns = SOON_NS
        return {"y": inputs["x"]}

    bench = Bench(slow)
    outcomes = bench.run(Ask(asking(1)), Ask(asking(2), deadline_ns=1), Ask(asking(3), deadline_ns=SOON_NS))
    assert [outcome.code for outcome in outcomes] == [Code.OK, *[Code.DEADLINE_EXCEEDED] * 2]
    assert bench.fed == [[1, 3], [1]]


def test_deadlines_between_runs(clock: Clock) -> None:
    """What expires while another run of its dispatch goes on is not run; what does not is."""
    bench = Bench(clock.passing(half), max_batch_size=2)
    late = [Ask(asking(value), deadline_ns=SOON_NS) for value in (3, 4, 5)]
    outcomes = bench.run(asking(1), asking(2), *late, asking(6))
    assert [outcome.code for outcome in outcomes] == [Code.OK] * 2 + [Code.DEADLINE_EXCEEDED] * 3 + [Code.OK]
    assert bench.fed == [[1, 2], [6]]
    assert bench.page.told == [(5, WHOLE), IDLE, (5, WHOLE), IDLE, (5, 5), IDLE]


def test_a_deadline_between_two_halves(clock: Clock) -> None:
    """What expires while the first of two runs goes on, where there was to be one, is not run either."""
    model = Superlinear()
    bench = Bench(model, clock_ns=model.clock_ns, max_batch_size=4)
    for _ in range(800):
        bench.run(*FOUR)
    assert bench.runs() == [(2, 2)] * 2
    bench.engine.calls.clear()
    bench.engine._answer = clock.passing(model)
    late = [Ask(body, deadline_ns=SOON_NS) for body in FOUR[2:]]
    outcomes = bench.run(*FOUR[:2], *late)
    assert [outcome.code for outcome in outcomes] == [Code.OK] * 2 + [Code.DEADLINE_EXCEEDED] * 2
    assert bench.fed == [[1, 2]]


@pytest.mark.parametrize("together", [False, True])
def test_a_deadline_that_passes_while_requests_are_read(clock: Clock, *, together: bool) -> None:
    """The last look at it is after that: large JSON takes its time."""
    bench = Bench(half)
    read = bench.runner._read

    def slowly(request: Request, body: bytes) -> Call:
        clock.now_ns = SOON_NS
        return read(request, body)

    bench.runner._read = slowly  # type: ignore[method-assign]
    outcomes = bench.run(asking(1), *[Ask(asking(2), deadline_ns=SOON_NS)] * 2, together=together)
    assert [outcome.code for outcome in outcomes] == [Code.OK] + [Code.DEADLINE_EXCEEDED] * 2
    assert bench.fed == [[1]]


# Warm-up


def test_what_nobody_waits_for_runs_as_for_a_client() -> None:
    """Padded, in parts, and with its error; what clients may not send any more runs as it is."""
    bench = Bench(half, max_batch_size=6, max_execution_batch_size=4, allowed_batch_sizes=[2, 4, 6])
    for values in ([1], [1, 2, 3, 4, 5], range(20, 27)):
        bench.runner.answer(asking(*values), Method.PREDICT)
    assert bench.fed == [[1, 1], [1, 2, 3, 4], [5, 5], list(range(20, 27))]
    bench.engine.calls.clear()
    body = json.dumps({"instances": [1.0] * 7}).encode()
    bench.runner.answer(body, Method.REST_PREDICT)
    bench.runner.answer(json.dumps({"instances": [1.0] * 5}).encode(), Method.REST_PREDICT)
    assert [len(fed) for fed in bench.fed] == [7, 4, 2]
    with pytest.raises(PoolError, match="poison"):
        bench.runner.answer(asking(POISON), Method.PREDICT)
    assert bench.page.told == []


def test_the_page_is_idle_after_a_run_that_failed_late(clock: Clock) -> None:
    """Those that have expired meanwhile are not run again, and a worker that does nothing is not taken for one that hangs."""

    def fails(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        clock.now_ns = deadline_ns
        raise PoolError(Code.INVALID_ARGUMENT, "no")

    for count in (2, 8):
        bench = Bench(fails)
        deadline_ns = clock.now_ns + 1
        outcomes = bench.run(*[Ask(asking(1), deadline_ns=deadline_ns)] * count)
        assert {outcome.code for outcome in outcomes} == {Code.DEADLINE_EXCEEDED}
        assert bench.page.told == [(5, WHOLE), IDLE, (5, WHOLE), IDLE]


def test_one_that_is_left_of_a_half_is_no_half_that_failed(clock: Clock) -> None:
    """The others' deadlines have passed: it says nothing of who is at fault."""
    bench = Bench(clock.passing(half))
    late = [Ask(asking(1), deadline_ns=SOON_NS)] * 7
    outcomes = bench.run(*late, asking(2), asking(POISON), *[asking(3)] * 7)
    assert [outcome.code for outcome in outcomes] == [
        *[Code.DEADLINE_EXCEEDED] * 7,
        Code.OK,
        Code.INVALID_ARGUMENT,
        *[Code.OK] * 7,
    ]
    assert [len(fed) for fed in bench.fed] == [16, 8, 4, 5, 2, 2, 1, 1]


# One run or two


class Superlinear:
    """A model that takes four times as long for four rows as for two, by a clock of its own."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        self.now_ns += 4_000_000 if len(inputs["x"]) > 2 else 1_000_000
        return half(inputs)

    def clock_ns(self) -> int:
        return self.now_ns


FOUR = [asking(1), asking(2), asking(3), asking(4)]


def test_two_runs_where_these_are_sooner() -> None:
    """Such a model gets two rows at once when that is known, and the log says so; nobody's answer is another's."""
    model = Superlinear()
    bench = Bench(model, clock_ns=model.clock_ns, max_batch_size=4)
    with structlog.testing.capture_logs() as logs:
        for _ in range(800):
            assert [answered(outcome) for outcome in bench.run(*FOUR)] == [[2.5], [3], [3.5], [4]]
    assert bench.runs() == [(2, 2), (2, 2)]
    (change,) = logs
    assert (change["model"], change["signature"], change["rows"]) == ("half@7", "serving_default", 4)

    bench.page.told.clear()
    bench.run(*FOUR)
    assert bench.page.told == [(5, WHOLE), IDLE, (5, WHOLE), IDLE, (5, WHOLE), IDLE]
    # What has expired is in neither, and one bad request fails alone.
    outcomes = bench.run(Ask(FOUR[0], deadline_ns=1), *FOUR)
    assert [outcome.code for outcome in outcomes] == [Code.DEADLINE_EXCEEDED, *[Code.OK] * 4]
    assert bench.runs() == [(2, 2), (2, 2)]
    outcomes = bench.run(FOUR[0], asking(POISON), *FOUR[2:])
    assert [outcome.code for outcome in outcomes] == [Code.OK, Code.INVALID_ARGUMENT, Code.OK, Code.OK]
    assert bench.runs() == [(1, 1), (2, 2)]
    # A request as large as most of the run is not moved into one of its own.
    bench.run(asking(1, 2, 3), asking(4))
    assert bench.runs() == [(2, 4)]


def test_who_waits_is_not_sooner_by_its_clock() -> None:
    """Where two runs take a little less CPU time, but much longer, one stays the rule."""
    now_ns = 0

    def waits(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        nonlocal now_ns
        two = len(inputs["x"]) <= 2
        now_ns += 400_000 if two else 1_000_000
        end_ns = time.monotonic_ns() + (10_000_000 if two else 5_000_000)
        while time.monotonic_ns() < end_ns:
            time.sleep(0.0005)
        return half(inputs)

    bench = Bench(waits, clock_ns=lambda: now_ns, max_batch_size=4)
    for _ in range(1 + 32 + 8 + 8):
        bench.run(*FOUR)
    assert bench.runs() == [(4, 4)]


def test_nothing_is_found_out_without_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: what can share a run does, however long it takes."""
    monkeypatch.setattr(run_sizes, "_LEAST_NS", 0)
    bench = Bench(Superlinear(), max_batch_size=4)
    for _ in range(300):
        bench.run(*FOUR)
        assert bench.runs() == [(4, 4)]


# What the router is told


def test_the_runs_that_gave_answers_are_told() -> None:
    """Requests, rows and time of each, without padding; nothing of a run that failed, and of what was not sent together."""
    bench = Bench(half, max_batch_size=4, allowed_batch_sizes=[4])
    told = []
    for asked in (
        [asking(1, 2), asking(3)],
        [asking(1, 2), asking(3, 4), asking(5, 6, 7)],
        [asking(1), asking(POISON), asking(2, 3)],
        [asking(1)],
        [asking(1), b"\xff"],
    ):
        outcomes = bench.run(*asked)
        told.append(bench.runs())
        taken_us = {outcome.run_us for outcome in outcomes if outcome.code == Code.OK}
        assert {run_us for *_, run_us in bench.ran.runs} == taken_us
    assert told == [[(2, 3)], [(2, 4), (1, 3)], [(1, 1), (1, 2)], [(1, 1)], [(1, 1)]]
    bench.run(asking(1), asking(2), together=False)
    assert bench.runs() == []


def test_what_is_sent_by_itself_is_padded_too() -> None:
    """A suspect, or one of too many kinds, for the model may take no other numbers of rows; outputs that show it say nothing of others."""
    bench = Bench(half, allowed_batch_sizes=[4])
    outcomes = bench.run(asking(1, 2), asking(3, 4, 5), together=False)
    assert bench.fed == [[1, 2, 1, 1], [3, 4, 5, 3]]
    assert [answered(outcome) for outcome in outcomes] == [[2.5, 3.0], [3.5, 4.0, 4.5]]
    bench = Bench(_summed, SUMMED, allowed_batch_sizes=[4])
    bench.run(asking(1, 2), together=False)
    assert bench.fed == [[1, 2, 1, 1], [1, 2]]
    assert (bench.runs(), bench.ran.apart) == ([], False)


def test_what_cannot_be_joined_is_told() -> None:
    """By the run that finds it out and with every later dispatch, also of one; never of another choice of outputs."""
    bench = Bench(_summed, SUMMED)
    told = []
    for asked in ([asking(1, 2)], [asking(1, 2), asking(3)], [asking(4)]):
        bench.run(*asked)
        told.append((bench.runs(), bench.ran.apart))
    assert told == [([(1, 2)], False), ([(1, 2), (1, 1)], True), ([(1, 1)], True)]
    bench.run(asking(1), asking(2), together=False)
    assert not bench.ran.apart
    bench.run(make_body({"x": np.float32([1])}, outputs=("z",)))
    assert not bench.ran.apart


def test_one_padded_request_tells_that_nothing_can_be_joined() -> None:
    """Its padding has shown it; it counts as one run."""
    bench = Bench(_summed, SUMMED, allowed_batch_sizes=[4])
    bench.run(asking(1, 2))
    assert (bench.runs(), bench.ran.apart) == ([(1, 2)], True)


@pytest.mark.parametrize(("inputs", "outputs"), [(None, (3,)), (None, ()), ((2,), None)])
def test_a_signature_without_rows_is_told_at_once(inputs: Shape, outputs: Shape) -> None:
    """With the first request: no run of several is needed."""
    signature = make_signature({"x": (FLOAT, inputs)}, {"y": (FLOAT, outputs)})
    bench = Bench(lambda fed: {"y": fed["x"]}, signature)
    bench.run(asking(1, 2))
    assert (bench.runs(), bench.ran.apart) == ([(1, 2)], True)


def test_a_request_that_shares_no_run_by_its_inputs_keeps_nobody_apart() -> None:
    """What a client sends says nothing of others' requests."""
    bench = Bench(lambda fed: {"y": fed["x"]}, TWO)
    bench.run(*[make_body({"x": np.ones(rows, np.float32), "k": np.float32([7])}) for rows in (2, 3)])
    assert (bench.runs(), bench.ran.apart) == ([(1, 1), (1, 1)], False)


# The page, the times, the frames


def test_what_the_page_tells() -> None:
    """WHOLE while requests run together, a request's index while it runs alone."""
    bench = Bench(half, max_batch_size=2)
    bench.run(asking(1), b"\xff", asking(2), asking(3))
    assert bench.page.told == [(5, WHOLE), IDLE, (5, WHOLE), IDLE, (5, 3), IDLE]
    bench.page.told.clear()
    bench.run(asking(1), asking(POISON))
    assert bench.page.told == [(5, WHOLE), IDLE, (5, WHOLE), IDLE, (5, 0), IDLE, (5, 1), IDLE]
    bench.page.told.clear()
    bench.run(asking(1))
    bench.run(asking(1), asking(2), together=False)
    assert bench.page.told == [(5, 0), IDLE, (5, 0), IDLE, (5, 1), IDLE]


def test_times() -> None:
    """run_us is that of the shared run; the other times are each request's part."""

    def slow(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        time.sleep(0.2)
        return {"y": inputs["x"]}

    first, second = Bench(slow).run(asking(1), asking(2))
    assert first.run_us == second.run_us >= 200_000
    assert first.parse_us < 200_000 > first.encode_us


@pytest.mark.parametrize("together", [True, False])
def test_long_responses_are_frames(together: bool) -> None:
    """In the order of the requests, short ones in their struct."""
    bench = Bench(half)
    outcomes = bench.run(
        asking(1), asking(*range(20, 10_000)), asking(2), asking(*range(20, 20_000)), together=together
    )
    assert [outcome.body is None for outcome in outcomes] == [False, True, False, True]
    assert [len(frame) // 39_000 for frame in bench.frames] == [1, 2]


# Parts of a request


@pytest.mark.parametrize("together", [True, False])
def test_parts_are_their_rows_and_joined_are_the_whole(together: bool) -> None:
    """The parts of a request, run with others or alone, give the answer to the whole."""
    bench = Bench(half)
    whole = asking(*range(7))
    for _ in range(3):
        parts = [Ask(whole, rows) for rows in ((0, 3), (3, 6), (6, 7))]
        outcomes = bench.run(*parts, Ask(asking(50)), together=together)
        assert [answered(outcome) for outcome in outcomes] == [[2, 2.5, 3], [3.5, 4, 4.5], [5], [27]]
        bodies = [outcome.body or b"" for outcome in outcomes[:3]]
        assert join(bodies) == bench.run(whole, together=False)[0].body
    assert bench.fed[0] == ([0, 1, 2, 3, 4, 5, 6, 50] if together else [0, 1, 2])


def test_a_large_request_by_rest_runs_in_parts_that_are_padded_too() -> None:
    """One after the other, each counted as a run, and answered as a whole."""
    bench = Bench(half, allowed_batch_sizes=[4, 8], max_batch_size=18, max_execution_batch_size=8)
    asked = {"instances": [*range(20, 38)]}
    (outcome,) = bench.run(Ask(json.dumps(asked).encode(), method=Method.REST_PREDICT))
    assert bench.fed == [[*range(20, 28)], [*range(28, 36)], [36, 37, 36, 36]]
    assert bench.runs() == [(1, 8), (1, 8), (1, 2)]
    assert json.loads(outcome.body or b"") == {"predictions": [x / 2 + 2 for x in range(20, 38)]}


FOUR_BY_REST = json.dumps({"instances": [1, 2, 3, 4]}).encode()


def test_each_run_of_a_request_has_its_own_time_on_the_page() -> None:
    """And so has its answer: a worker is not taken for hung while the runs of a long one go on."""
    bench = Bench(half, max_batch_size=4, max_execution_batch_size=2)
    bench.run(Ask(FOUR_BY_REST, method=Method.REST_PREDICT), asking(5))
    assert bench.fed == [[1, 2], [3, 4], [5]]
    assert bench.page.told == [(5, WHOLE), IDLE, *[(5, 0)] * 4, IDLE, (5, 1), IDLE]


def test_a_deadline_between_the_runs_of_a_request(clock: Clock) -> None:
    """What is left of it is not run."""
    bench = Bench(clock.passing(half), max_batch_size=4, max_execution_batch_size=2)
    (outcome,) = bench.run(Ask(FOUR_BY_REST, deadline_ns=SOON_NS, method=Method.REST_PREDICT))
    assert outcome.code == Code.DEADLINE_EXCEEDED
    assert bench.fed == [[1, 2]]


def test_runs_of_a_request_whose_outputs_do_not_go_together() -> None:
    """It is told of which shapes they are, and the log has no failure of ours."""

    def ragged(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return {"y": np.ones((2, int(inputs["x"].max())), np.float32)}

    bench = Bench(ragged, max_batch_size=4, max_execution_batch_size=2)
    with structlog.testing.capture_logs() as logs:
        (outcome,) = bench.run(Ask(FOUR_BY_REST, method=Method.REST_PREDICT))
    assert outcome.code == Code.INTERNAL
    assert outcome.message.endswith(
        'do not go together: output "y": the shapes differ in more than dimension 0: [[2, 2], [2, 4]]'
    )
    assert not logs


TWO = make_signature(
    {"x": (FLOAT, None), "k": (FLOAT, None)}, {"y": (FLOAT, None)}, {"k": np.ones(3, np.float32)}
)


@pytest.mark.parametrize(
    ("inputs", "rows", "reason"),
    [
        ({"x": np.float32(1), "k": np.float32(1)}, (0, 1), 'its input "k" has no dimension 0'),
        (
            {"x": np.ones(2, np.float32), "k": np.ones(4, np.float32)},
            (0, 1),
            'its input "x" has 2 rows (dimension 0), and "k" has 4',
        ),
        ({"x": np.ones(2, np.float32)}, (0, 1), 'its input "x" has 2 rows (dimension 0), and "k" has 3'),
        ({"x": np.ones(3, np.float32)}, (2, 4), 'rows 2 to 4 are asked for, and its input "x" has 3'),
        ({"x": np.ones(3, np.float32)}, (2, 2), 'rows 2 to 2 are asked for, and its input "x" has 3'),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_inputs_that_cannot_be_split(
    inputs: dict[str, Array], rows: tuple[int, int], reason: str, together: bool
) -> None:
    """The request is refused by the input's name."""
    bench = Bench(lambda fed: {"y": fed["x"]}, TWO)
    outcomes = bench.run(
        Ask(make_body(inputs), rows), Ask(make_body({"x": np.ones(3, np.float32)})), together=together
    )
    assert outcomes[0].code == Code.INVALID_ARGUMENT
    assert "cannot be split" in outcomes[0].message
    assert outcomes[0].message.endswith(reason)
    assert outcomes[1].code == Code.OK


@pytest.mark.parametrize("shape", [None, ()])
@pytest.mark.parametrize("others", [0, 1])
def test_outputs_that_cannot_be_split(shape: Shape, others: int) -> None:
    """The request is refused by the output's name, with what to do; its neighbour is answered."""
    bench = Bench(_summed, make_signature({"x": (FLOAT, None)}, {"y": (FLOAT, shape)}))
    outcomes = bench.run(Ask(asking(1, 2, 3), (0, 2)), *[Ask(asking(4))] * others)
    assert outcomes[0].code == Code.FAILED_PRECONDITION
    assert 'the output "y", of shape [], does not have a row' in outcomes[0].message
    assert "enable_large_batch_splitting off" in outcomes[0].message
    assert [answered(outcome) for outcome in outcomes[1:]] == [4] * others


def test_parts_are_not_padded_with_their_neighbours() -> None:
    """Of variable length or not: the parts' answers have one shape, whoever they run beside."""
    bench = Bench(
        lambda inputs: {"y": inputs["x"]},
        make_signature({"x": (FLOAT, None)}, {"y": (FLOAT, None)}),
        pad_variable_length_inputs=True,
    )
    whole = make_body({"x": np.ones((4, 2), np.float32)})
    wide = make_body({"x": np.ones((1, 5), np.float32)})
    outcomes = bench.run(Ask(whole, (0, 2)), Ask(wide), Ask(whole, (2, 4)))
    assert [np.shape(answered(outcome)) for outcome in outcomes] == [(2, 2), (1, 5), (2, 2)]
    assert [np.shape(x) for x in bench.fed] == [(4, 2), (1, 5)]


@pytest.fixture(autouse=True)
def _any_level() -> Iterator[None]:
    """Logs are captured whatever another test has set up."""
    before = structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.configure(**before)


def test_examples_that_are_padded_share_a_run() -> None:
    """Each answer is made of its own rows, and none of what the run was filled up with."""
    signature = make_signature({"inputs": (STRING, (None,))}, {"outputs": (FLOAT, (None,))})
    bench = Bench(
        lambda inputs: {"outputs": np.float32([len(one) for one in inputs["inputs"]])},
        signature,
        allowed_batch_sizes=[4, 8],
    )
    asks = []
    for count in range(1, 4):
        request = tfs.ClassificationRequest()  # the same but for its name
        request.model_spec.name = "half"
        feature = request.input.example_list.examples.add().features.feature["a"]
        feature.int64_list.value.extend([1] * count)
        asks.append(Ask(request.SerializeToString(), method=Method.REGRESS))
    outcomes = bench.run(*asks)
    assert [len(inputs["inputs"]) for _, inputs, _ in bench.engine.calls] == [4]
    values = [
        [one.value for one in tfs.RegressionResponse.FromString(outcome.body).result.regressions]
        for outcome in outcomes
    ]
    assert [len(each) for each in values] == [1, 1, 1]
    assert values == sorted(values)
