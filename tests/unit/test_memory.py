"""The bound on bytes, in all and for each model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpspool.core.errors import Code, PoolError
from mpspool.router.memory import Admission, Memory


def test_what_does_not_fit_is_refused() -> None:
    """With the figures, and RESOURCE_EXHAUSTED; what is released makes room."""
    memory = Memory(10)
    admission = memory.admit(8)
    with pytest.raises(PoolError, match="hold 8 of 10 bytes and this one has 3") as refused:
        memory.admit(3)
    assert refused.value.code is Code.RESOURCE_EXHAUSTED
    admission.release()
    memory.admit(10)


def test_one_model_does_not_take_all() -> None:
    """A model's own limit refuses it while others are taken in."""
    memory = Memory(100)
    memory.limits = {"a": 10, "b": 10}
    memory.admit(10, "a")
    with pytest.raises(PoolError, match="Requests for a hold 10 of its 10 bytes"):
        memory.admit(1, "a")
    memory.admit(10, "b")


def test_whose_it_is_may_become_known_late() -> None:
    """Bytes that nobody's limit held count against a model's from then on, and not before."""
    memory = Memory(100)
    memory.limits = {"a": 10}
    admission = memory.admit(10)
    admission.belong("a")
    with pytest.raises(PoolError):
        memory.admit(1, "a")
    admission.release()
    assert memory.used == 0
    memory.admit(10, "a")


def test_several_may_hold_the_same_bytes() -> None:
    """They count until the last has released them."""
    memory = Memory(10)
    admission = memory.admit(10)
    admission.share(3)
    for _ in range(2):
        admission.release()
    assert memory.used == 10
    admission.release()
    assert memory.used == 0
    admission.release()
    assert memory.used == 0


@given(st.data())
def test_it_all_adds_up(data: st.DataObject) -> None:
    """Whatever is admitted, assigned, grown and released: never above a limit, and nothing is left in the end."""
    memory = Memory(100)
    memory.limits = {"a": 40, "b": 60}
    held: list[Admission] = []
    for _ in range(data.draw(st.integers(0, 30))):
        try:
            match data.draw(st.sampled_from(["admit", "belong", "grow", "release"])):
                case "admit":
                    model = data.draw(st.sampled_from(["", "a", "b", "unknown"]))
                    held.append(memory.admit(data.draw(st.integers(0, 50)), model))
                case "belong" if held:
                    data.draw(st.sampled_from(held)).belong(data.draw(st.sampled_from(["a", "b", "unknown"])))
                case "grow" if held:
                    data.draw(st.sampled_from(held)).grow(data.draw(st.integers(0, 50)))
                case "release" if held:
                    held.pop(data.draw(st.integers(0, len(held) - 1))).release()
        except PoolError:
            pass
        assert memory.used == sum(admission.size for admission in held) <= 100
        for model, limit in memory.limits.items():
            counted = sum(admission.size for admission in held if admission.model == model)
            assert memory._by_model[model] == counted <= limit
    for admission in held:
        admission.release()
    assert memory.used == 0
    assert not any(memory._by_model.values())
