"""What TensorFlow Serving's ReloadConfigRequest asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mpspool.core import tfs
from mpspool.core.errors import Code, PoolError
from mpspool.router.fronts.reload import check_labels, models_of


def request(**values: Any) -> Any:
    """Of one model, with these fields."""
    found = tfs.ReloadConfigRequest()
    given = {"name": "m", "base_path": "/m", "model_platform": "tensorflow", **values}
    found.config.model_config_list.config.add(**given)
    return found


def latest(config: Any) -> None:
    config.model_version_policy.latest.num_versions = 3


def every(config: Any) -> None:
    config.model_version_policy.all.SetInParent()


def specific(config: Any) -> None:
    config.model_version_policy.specific.versions.extend([7, 9])


@pytest.mark.parametrize(
    ("say", "policy"),
    [
        (lambda _config: None, {"latest": 1}),
        (latest, {"latest": 3}),
        (every, "all"),
        (specific, [7, 9]),
    ],
)
def test_policies(say: Callable[[Any], None], policy: object) -> None:
    """Each of TensorFlow Serving's, in our words; none is its default, the latest one."""
    asked = request()
    say(asked.config.model_config_list.config[0])
    assert models_of(asked) == [
        {"name": "m", "base_path": "/m", "version_policy": policy, "version_labels": {}}
    ]


def test_labels_and_what_is_not_ours() -> None:
    """Labels are taken; requests are not logged, whatever is said of it; the old field for the platform still counts."""
    asked = request(model_platform="", model_type=1)
    (config,) = asked.config.model_config_list.config
    config.version_labels["stable"] = 7
    config.logging_config.SetInParent()
    assert models_of(asked)[0]["version_labels"] == {"stable": 7}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model_platform": ""}, "Illegal setting neither"),
        ({"model_type": 1}, "Illegal setting both"),
        ({"model_platform": "", "model_type": 2}, "model_type choice 2 not supported"),
        ({"model_platform": "", "model_type": 6}, "model_type choice 6 not supported"),
        ({"model_platform": "estimator"}, "only tensorflow is served here"),
        ({"base_path": "m"}, "Expected model m to have an absolute path or URI; got base_path()=m"),
    ],
)
def test_what_cannot_be_served_is_refused(values: dict[str, Any], words: str) -> None:
    """INVALID_ARGUMENT, with TensorFlow Serving's words where it has some."""
    with pytest.raises(PoolError, match=r".") as caught:
        models_of(request(**values))
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert words in caught.value.message


def test_a_list_names_each_model_once() -> None:
    """There has to be a list, which may be empty: a custom configuration, or none, is not supported."""
    asked = request()
    asked.config.model_config_list.config.append(asked.config.model_config_list.config[0])
    with pytest.raises(PoolError, match="Illegal to list model m multiple times"):
        models_of(asked)
    del asked.config.model_config_list.config[:]
    assert models_of(asked) == []
    with pytest.raises(PoolError, match="Only ModelConfigList is currently supported"):
        models_of(tfs.ReloadConfigRequest())


def test_a_label_is_for_a_version_that_is_available() -> None:
    """Of the model it is given to; as TensorFlow Serving has it, before anything is loaded."""
    asked = request()
    (config,) = asked.config.model_config_list.config
    config.version_labels["stable"] = 7
    check_labels(models_of(asked), lambda name, number: (name, number) == ("m", 7))
    with pytest.raises(PoolError) as caught:
        check_labels(models_of(asked), lambda name, number: (name, number) == ("other", 7))
    assert caught.value.code is Code.FAILED_PRECONDITION
    assert str(caught.value).startswith("Request to assign label to version 7 of model m, which is not")


def test_a_label_that_nobody_uses_may_come_first() -> None:
    """Where that is allowed; one that another version has may not, as TensorFlow Serving has it."""
    asked = request()
    (config,) = asked.config.model_config_list.config
    config.version_labels["stable"] = 7
    for has_it in (None, 7):
        check_labels(models_of(asked), lambda *_: False, lambda *_: has_it)  # noqa: B023
    with pytest.raises(PoolError, match="Request to assign label to version 7"):
        check_labels(models_of(asked), lambda *_: False, lambda *_: 6)


def test_a_base_path_may_be_a_url() -> None:
    """What can be opened there is the pool's to say."""
    assert models_of(request(base_path="s3://bucket/m"))[0]["base_path"] == "s3://bucket/m"
