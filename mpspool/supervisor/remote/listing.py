"""What is to be copied of a remote base path, what to keep of the copies, and when a version is there. Pure."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from mpspool.core.settings import VersionPolicy
from mpspool.supervisor.pool.versions import chosen
from mpspool.supervisor.version_folders import SAVED_MODEL_FILES


class File(msgspec.Struct, frozen=True, order=True):
    """One file of a version.

    Attributes:
        name: below the version's folder, with "/" between its parts.
        size: in bytes.
        tag: all else that the store says of its content; changes with it, as far as the store goes.
        md5: of its content, in hex; "" where the store does not say.
    """

    name: str
    size: int
    tag: str = ""
    md5: str = ""


# In order of name.
Listing = tuple[File, ...]


class InUse(msgspec.Struct, frozen=True):
    """What a pool does with the versions of a model.

    Attributes:
        served: those that have workers, or are to have.
        failed: those that could not be loaded.
        unloaded: by hand.
    """

    served: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    unloaded: frozenset[int] = frozenset()


def has_model(listing: Listing) -> bool:
    """Whether what is there so far could be a SavedModel."""
    return any(file.name in SAVED_MODEL_FILES for file in listing)


def total_bytes(listing: Listing) -> int:
    return sum(file.size for file in listing)


def wanted(there: Collection[int], policy: VersionPolicy, out: Collection[int]) -> set[int]:
    """The versions that a policy means, and those that take the place of what is out.

    Args:
        there: at the remote base path.
        policy: the model's.
        out: those that cannot be served, or not yet, or are not to be.
    """
    return chosen(there, policy) | chosen(set(there) - set(out), policy)


def kept(cached: Collection[int], meant: Collection[int], served: Collection[int]) -> set[int]:
    """The copies that stay: those that are meant or served, and the newest of those before, to go back to.

    What was deleted at the remote base path goes once nobody serves it; where none of either is here, all stays.
    """
    stay = set(cached) & {*meant, *served}
    if not meant or not stay:
        return set(cached)
    before = [number for number in cached if number not in stay and number < max(meant)]
    return stay | set(sorted(before)[-1:])
