"""The paths of the REST API."""

from __future__ import annotations

import pytest

from mpspool.core.errors import Code, PoolError
from mpspool.router.fronts.rest_path import wanted


@pytest.mark.parametrize("text", ["7", "0007", "0" * 8000 + "7"])
def test_zeros_before_a_version(text: str) -> None:
    """Any number of them, more than Python reads at once, too."""
    assert wanted("POST", f"/v1/models/m/versions/{text}:predict").model.version == 7


@pytest.mark.parametrize(("text", "version"), [("0", 0), ("000", 0), (str(2**63 - 1), 2**63 - 1)])
def test_the_least_and_the_largest_version(text: str, version: int) -> None:
    assert wanted("GET", f"/v1/models/m/versions/{text}").model.version == version


@pytest.mark.parametrize("text", [str(2**63), "9" * 8000, "0" * 4000 + "9" * 4000])
def test_a_version_that_is_too_large(text: str) -> None:
    """It is refused with TensorFlow Serving's words, however long it is."""
    with pytest.raises(PoolError, match=f"Failed to convert version: {text} to numeric.") as caught:
        wanted("GET", f"/v1/models/m/versions/{text}")
    assert caught.value.code is Code.INVALID_ARGUMENT
