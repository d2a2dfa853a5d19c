"""Remote base paths: what is copied, what stays, and where it lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpspool.core.settings import VersionPolicy
from mpspool.supervisor.remote import place
from mpspool.supervisor.remote.listing import File, has_model, kept, wanted

LATEST = VersionPolicy()


@pytest.mark.parametrize(
    ("base_path", "remote"),
    [
        ("s3://bucket/models/ranker", True),
        ("HTTP://host/models/", True),
        ("memory://models", True),
        ("/models/s3://ranker", False),
        ("models", False),
        ("s3:/bucket", False),
        ("simplecache::s3://bucket", False),
    ],
)
def test_a_scheme_makes_a_base_path_remote(base_path: str, remote: bool) -> None:
    """Nothing else does."""
    assert place.is_remote(base_path) is remote


def test_what_is_no_remote_base_path_says_what_to_do() -> None:
    """A local folder with a scheme, and an address with a query, are refused."""
    assert "give its path alone, without file://" in place.refusal("file:///models/ranker")
    assert "query" in place.refusal("https://host/models?token=1")
    assert not place.refusal("s3://bucket/models")


def test_each_model_and_place_has_a_folder_of_its_own() -> None:
    """The same one at every start; a model's name does not lead out of the cache, however long it is."""
    cache = Path("/cache")
    one = place.cache_folder(cache, "ranker", "s3://bucket/ranker")
    assert one == place.cache_folder(cache, "ranker", "s3://bucket/ranker/")
    assert one != place.cache_folder(cache, "ranker", "s3://other/ranker")
    assert one != place.cache_folder(cache, "ocr", "s3://bucket/ranker")
    for name in ("../../etc", "a/b", "x" * 180):
        found = place.cache_folder(cache, name, "s3://bucket/ranker")
        assert found.parent == cache
        assert len(found.name) < 100


def test_the_cache_outlasts_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies where caches of the user lie, and not in a folder for the time of a session."""
    assert place.default_cache_dir({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/mpspool")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert place.default_cache_dir({}) == Path("/home/somebody/.cache/mpspool")


@pytest.mark.parametrize(
    ("there", "policy", "out", "found"),
    [
        ([1, 2, 10], LATEST, [], {10}),
        (range(100), VersionPolicy(latest=2), [], {98, 99}),
        ([1, 2, 3], LATEST, [3], {2, 3}),
        ([1, 2, 3], LATEST, [2, 3], {1, 3}),
        ([1, 2, 3], VersionPolicy(specific=(1, 7)), [], {1}),
        ([1, 2, 3], VersionPolicy(all=True), [2], {1, 2, 3}),
        ([], LATEST, [], set()),
    ],
)
def test_what_is_copied(there: list[int], policy: VersionPolicy, out: list[int], found: set[int]) -> None:
    """What the policy means, and what takes the place of what cannot be served: not a bucket's hundred versions."""
    assert wanted(there, policy, out) == found


@pytest.mark.parametrize(
    ("cached", "meant", "served", "stay"),
    [
        ([5, 6, 7, 8], {8}, {8}, {7, 8}),
        ([5, 6, 7, 8], {9}, {8}, {7, 8}),
        ([5, 6, 7, 8], {8}, {5, 8}, {5, 7, 8}),
        ([7, 8], {7}, {8}, {7, 8}),
        ([7, 8], {7}, {7}, {7}),
        ([7, 8], set(), set(), {7, 8}),
        ([9], {8}, set(), {9}),
        ([], {8}, set(), set()),
    ],
)
def test_what_stays_of_the_copies(
    cached: list[int], meant: set[int], served: set[int], stay: set[int]
) -> None:
    """What is meant or served, and one to go back to; a version deleted in the store goes when nobody serves it."""
    assert kept(cached, meant, served) == stay


def test_a_version_is_one_once_it_holds_a_saved_model() -> None:
    """In either form, and at its top."""
    assert has_model((File("saved_model.pb", 1), File("variables/x", 2)))
    assert has_model((File("saved_model.pbtxt", 1),))
    assert not has_model((File("assets/saved_model.pb", 1),))
    assert not has_model(())
