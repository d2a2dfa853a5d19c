"""Which version a request means, what state each is in, and when the pool is ready."""

from __future__ import annotations

import pytest

from mpspool.core.errors import Code, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.states import ModelVersionState as State
from mpspool.router.models import Models, Wanted

V1, V2, OTHER = ModelVersion("m", 1), ModelVersion("m", 2), ModelVersion("o", 1)


def table(*versions: ModelVersion, quorum: int = 1) -> Models:
    models = Models()
    models.want(dict.fromkeys(versions, Wanted(quorum)))
    return models


def refusal(models: Models, name: str, version: int | None = None, label: str | None = None) -> PoolError:
    with pytest.raises(PoolError) as refused:
        models.resolve(name, version, label)
    return refused.value


def test_states_follow_the_workers() -> None:
    """START, LOADING, AVAILABLE at the quorum, LOADING again below it, END when none will come."""
    models = table(V1, quorum=2)
    states = [models.get(V1).state]
    for workers, ready in ((1, 0), (2, 1), (2, 2), (2, 1)):
        models.count(V1, workers, ready)
        states.append(models.get(V1).state)
    models.count(V1, 0, 0)
    models.want({V1: Wanted(2, "every slot is FATAL")})
    states.append(models.get(V1).state)
    assert states == [State.START, State.LOADING, State.LOADING, State.AVAILABLE, State.LOADING, State.END]


def test_latest_is_the_newest_that_can_serve() -> None:
    """A newer version takes over once it has been AVAILABLE, not before."""
    models = table(V1, V2)
    models.count(V1, 1, 1)
    models.count(V2, 1, 0)
    assert models.resolve("m", None, None).model == V1
    models.count(V2, 1, 1)
    assert models.resolve("m", None, None).model == V2
    assert models.resolve("m", 1, None).model == V1


def test_a_version_takes_over_in_one_step() -> None:
    """What is loaded beside another takes nothing, however READY; then all that names no version; the old one, nothing."""
    models = table(V1)
    models.count(V1, 2, 2)
    models.want({V1: Wanted(weight=1), V2: Wanted(opens=False)})
    models.count(V2, 2, 2)
    assert (models.get(V2).state, models.resolve("m", None, None).model) == (State.LOADING, V1)
    assert refusal(models, "m", 2).code is Code.NOT_FOUND
    models.want({V1: Wanted(), V2: Wanted(weight=1)})
    assert (models.get(V2).state, models.resolve("m", None, None).model) == (State.AVAILABLE, V2)
    assert models.resolve("m", 1, None).model == V1
    models.want({V1: Wanted(opens=False, leaves=True), V2: Wanted(weight=1)})
    assert (models.get(V1).state, refusal(models, "m", 1).code) == (State.UNLOADING, Code.NOT_FOUND)
    models.want({V2: Wanted(weight=1)})
    assert models.gone() == []  # its workers are there
    models.count(V1, 0, 0)
    assert models.gone() == [V1]
    ends = {status.version: status.state for status in models.status("m", None)}
    assert ends == {2: State.AVAILABLE, 1: State.END}


def test_what_is_routed_need_not_be_the_newest() -> None:
    """The pool says which answers; without its word, or where that one cannot serve, the newest that can."""
    models = table(V1, V2)
    models.want({V1: Wanted(weight=1), V2: Wanted()})
    models.count(V2, 1, 1)
    assert models.resolve("m", None, None).model == V2
    models.count(V1, 1, 1)
    assert models.resolve("m", None, None).model == V1


def test_requests_are_shared_out_by_weight() -> None:
    """Exactly, in every hundred; one that cannot serve gives its turn to the newest that can; nobody's turn is taken by a look."""
    models = table(V1, V2)
    for version in (V1, V2):
        models.count(version, 1, 1)
    shares = {V1: Wanted(weight=90), V2: Wanted(weight=10)}
    models.want(shares)
    turns = []
    for _ in range(200):
        models.resolve("m", None, None)
        turns.append(models.resolve("m", None, None, {}).model)
        models.want(shares)  # said again at every change: it goes on where it was
    assert [turns[:100].count(V2), turns[100:].count(V2)] == [10, 10]
    assert models.resolve("m", 1, None, {}).model == V1
    models.want({V1: Wanted(weight=90), V2: Wanted(weight=10, opens=False)})
    assert {models.resolve("m", None, None, {}).model for _ in range(20)} == {V1}


def test_what_answers_most_of_what_names_no_version() -> None:
    """All of it, or the largest share, the newest of several with one; of a model that nobody knows there is none."""
    models = table(V1, V2)
    assert [models.answers_most(name) for name in ("m", "o")] == [None, None]
    found = []
    for first, second in ((1, 0), (9, 1), (5, 5), (0, 1)):
        models.want({V1: Wanted(weight=first), V2: Wanted(weight=second)})
        found.append(models.answers_most("m"))
    assert found == [1, 1, 2, 2]


def test_requests_are_told_apart_by_metadata() -> None:
    """Whatever the weights; what names a version is for that one."""
    models = table(V1, V2)
    for version in (V1, V2):
        models.count(version, 1, 1)
    models.want({V1: Wanted(weight=1), V2: Wanted(metadata=[("X-Canary", "yes")])})
    canary = {"x-canary": "yes"}
    assert models.resolve("m", None, None, canary).model == V2
    assert models.resolve("m", None, None, {"x-canary": "no"}).model == V1
    assert models.resolve("m", 1, None, canary).model == V1


def test_labels() -> None:
    """A label stands for its version, and goes on to when that takes no requests, or is there no more."""
    models = table(V1, V2)
    models.count(V1, 1, 1)
    models.count(V2, 1, 0)
    labels = {"stable": 1, "canary": 2, "gone": 7}
    models.want({V1: Wanted(labels=labels), V2: Wanted(labels=labels)})
    assert models.resolve("m", None, "stable").model == V1
    for label, number in (("canary", 2), ("gone", 7)):
        refused = refusal(models, "m", None, label)
        assert (refused.code, refused.message) == (
            Code.NOT_FOUND,
            f"Servable not found for request: Specific(m, {number})",
        )
    assert refusal(models, "o", None, "stable").code is Code.INVALID_ARGUMENT


def test_refusals_are_tensorflow_servings() -> None:
    """Unknown model, version and label, and a version that is loaded beside one that serves."""
    models = table(V1, V2)
    models.count(V1, 1, 1)
    models.count(V2, 1, 0)
    assert refusal(models, "m", 2).message == "Servable not found for request: Specific(m, 2)"
    assert refusal(models, "x").message == "Servable not found for request: Latest(x)"
    assert refusal(models, "m", 9).message == "Servable not found for request: Specific(m, 9)"
    unknown = refusal(models, "m", None, "stable")
    assert (unknown.code, unknown.message) == (
        Code.INVALID_ARGUMENT,
        "Unrecognized servable version label: stable",
    )


def test_a_model_is_unavailable_while_it_is_loaded_for_the_first_time() -> None:
    """A client that tries again gets there; it does not for a version that is not there, or that failed."""
    models = Models()
    assert refusal(models, "m").code is Code.UNAVAILABLE, "the pool has not said yet which there are"
    with pytest.raises(PoolError, match="m is not loaded yet"):
        models.status("m", None)
    models.count(V1, 1, 1)  # its workers have found a new router before the pool has
    assert refusal(models, "m", 2).code is Code.UNAVAILABLE
    models = table(V1)
    for number in (None, 1):
        refused = refusal(models, "m", number)
        assert (refused.code, refused.message) == (Code.UNAVAILABLE, "m is not loaded yet; try again")
    assert refusal(models, "m", 2).code is Code.NOT_FOUND
    assert refusal(models, "o").code is Code.NOT_FOUND
    models.want({V1: Wanted(1, "corrupt")})
    assert refusal(models, "m").message == "Servable not found for request: Latest(m)"


def test_a_version_that_served_waits_for_its_workers_until_none_will_come() -> None:
    """Between two workers requests wait; after the last hope they are UNAVAILABLE."""
    models = table(V1)
    models.count(V1, 1, 1)
    models.count(V1, 0, 0)
    assert models.resolve("m", None, None).model == V1
    models.want({V1: Wanted(1, "crashed 4 times")})
    gone = refusal(models, "m")
    assert gone.code is Code.UNAVAILABLE
    assert "crashed 4 times" in gone.message


def test_readiness_any_and_all() -> None:
    """One bad model does not make the pool unready, unless all are asked for."""
    models = table(V1, OTHER)
    assert models.unready(every=False)
    models.count(V1, 1, 1)
    assert not models.unready(every=False)
    assert models.unready(every=True) == "not AVAILABLE: o"
    models.count(OTHER, 1, 1)
    assert not models.unready(every=True)
    assert Models().unready(every=False)


LABELS = {"stable": 1, "canary": 2, "absent": 9}


def test_a_model_is_ready_at_first_with_all_that_a_label_stands_for() -> None:
    """Who asks for one that is to come is to try again. Then one that comes is what it is to TensorFlow Serving."""
    models = Models()
    first = Wanted(labels=LABELS, to_come=[1, 2])
    models.want({V2: first})
    assert models.unready(every=False) == "not AVAILABLE: m"
    models.count(V2, 1, 1)
    for wanted in ({V2: first}, {V2: first, V1: Wanted(labels=LABELS, to_come=[1, 2], opens=False)}):
        models.want(wanted)  # before it is loaded, and while it is
        assert models.unready(every=True) == models.unready(every=False) == "not AVAILABLE: m@1"
        assert refusal(models, "m", label="stable").code is Code.UNAVAILABLE
        assert models.resolve("m", None, "canary").model == models.resolve("m", None, None).model == V2
        assert refusal(models, "m", label="absent").code is Code.NOT_FOUND
    models.want({V2: first, V1: Wanted(labels=LABELS, to_come=[1, 2])})
    models.count(V1, 1, 1)
    assert not models.unready(every=True)  # whatever the pool has yet to say
    assert models.resolve("m", None, "stable").model == V1
    models.want({V1: Wanted(labels={"canary": 4}), V2: Wanted(labels={"canary": 4})})
    assert not models.unready(every=True)
    assert refusal(models, "m", label="canary").code is Code.NOT_FOUND


def test_a_version_that_will_not_come_is_not_waited_for() -> None:
    """It has failed, or its folder has gone."""
    models = Models()
    models.want({V2: Wanted(labels=LABELS, to_come=[1, 2])})
    models.count(V2, 1, 1)
    models.want({V2: Wanted(labels=LABELS), V1: Wanted(1, "cut short", opens=False, labels=LABELS)})
    assert not models.unready(every=True)
    assert refusal(models, "m", label="stable").code is Code.NOT_FOUND


def test_status_of_versions() -> None:
    """All versions, newest first, one by number, TF Serving's texts for none."""
    models = table(V2, V1)
    models.want({V1: Wanted(1, "corrupt"), V2: Wanted(1)})
    assert [(s.version, s.state, s.message) for s in models.status("m", None)] == [
        (2, State.START, ""),
        (1, State.END, "corrupt"),
    ]
    assert [s.version for s in models.status("m", 2)] == [2]
    for number, text in ((None, "any versions of model x"), (3, "version 3 of model x")):
        with pytest.raises(PoolError) as refused:
            models.status("x", number)
        assert refused.value.message == f"Could not find {text}"


def test_versions_no_longer_wanted_go_with_their_last_worker() -> None:
    """A version stays while a worker of it lives."""
    models = table(V1, V2)
    models.count(V1, 1, 1)
    models.want({V2: Wanted(1)})
    assert [version.model for version in models.all()] == [V1, V2]
    assert models.gone() == []
    models.count(V1, 0, 0)
    assert models.gone() == [V1]
    assert [version.model for version in models.all()] == [V2]


def test_what_is_gone_has_ended() -> None:
    """Its status says END, and why it failed where it did, until it is there again; requests do not find it."""
    models = table(V1, V2)
    models.want({V1: Wanted(), V2: Wanted(1, "corrupt")})
    models.count(V1, 1, 1)
    models.want({V1: Wanted(), V2: Wanted(leaves=True)})
    assert models.status("m", 2)[0].message == "corrupt"
    models.want({})
    models.count(V1, 0, 0)
    assert models.gone() == [V1, V2]
    assert [(s.version, s.state, s.code, s.message) for s in models.status("m", None)] == [
        (2, State.END, Code.UNKNOWN, "corrupt"),
        (1, State.END, Code.OK, ""),
    ]
    assert [s.state for s in models.status("m", 1)] == [State.END]
    assert refusal(models, "m", 1).code is Code.NOT_FOUND
    assert models.unready(every=True) == "no model is loaded yet"
    models.want({V1: Wanted()})
    assert [(s.version, s.state) for s in models.status("m", None)] == [(2, State.END), (1, State.START)]


def test_what_serves_who_asks_for_it_says_why_it_answers_nobody_else() -> None:
    """It is AVAILABLE all the same."""
    models = table(V1)
    models.count(V1, 1, 1)
    models.want({V1: Wanted(refused="it has no input 'x'")})
    (found,) = models.status("m", 1)
    assert (found.state, found.code, found.message) == (State.AVAILABLE, Code.OK, "it has no input 'x'")


def test_so_many_ends_are_remembered() -> None:
    """The latest of them: a model whose versions come and go for ever takes no more memory."""
    models = table()
    for number in range(1, 3000):
        models.want({ModelVersion("m", number): Wanted()})
        models.gone()
    found = [status.version for status in models.status("m", None)]
    assert found == list(range(2999, 2999 - 1025, -1))
    with pytest.raises(PoolError, match="Could not find version 1 of model m"):
        models.status("m", 1)
