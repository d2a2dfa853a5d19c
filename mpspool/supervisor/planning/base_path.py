"""Where a model lies: base_path holds numeric version folders, the latest of them that is whole is served first."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection
from pathlib import Path

from mpspool.supervisor.config.explain import nearest
from mpspool.supervisor.saved_model import check_saved_model
from mpspool.supervisor.version_folders import SAVED_MODEL_FILES, is_number, is_saved_model, version_folders

# Of what is in a folder without versions, how much is looked into for a model.
_LOOKED_INTO = 100


class BasePathError(Exception):
    """A base_path that cannot be served; the text names the folder and the remedy."""


class NoVersionError(BasePathError):
    """It has no version that may be served, and may come to have one."""


def latest_version(base_path: Path, specific: Collection[int] = ()) -> tuple[int, Path]:
    """Finds the latest version and its folder, which holds a saved_model.pb or .pbtxt.

    Args:
        base_path: the folder that holds the version folders.
        specific: where given, the versions that may be served.

    Which folders count is version_folders()' to say.

    Raises:
        NoVersionError: nothing there, no version, or no SavedModel in it.
        BasePathError: not a folder, or not readable.
    """
    folders = _folders_of(base_path, specific)
    latest = max(folders)
    if wrong := _no_saved_model(latest, folders[latest]):
        raise NoVersionError(wrong)
    return latest, folders[latest]


def first_version(base_path: Path, specific: Collection[int] = ()) -> tuple[int, Path, str]:
    """Finds the version to begin with: the latest that looks whole. Those after it may be on their way still.

    Args:
        base_path: the folder that holds the version folders.
        specific: where given, the versions that may be served.

    Returns:
        Its number and its folder, and what is wrong with the latest of all, "" where it is that one.

    Raises:
        NoVersionError, BasePathError: as latest_version(), and where none looks whole, with what is wrong with the latest.
    """
    folders = _folders_of(base_path, specific)
    wrong: list[BasePathError] = []
    for number in sorted(folders, reverse=True):
        error = _what_is_wrong(number, folders[number])
        if error is None:
            return number, folders[number], str(wrong[0]) if wrong else ""
        wrong.append(error)
    raise wrong[0]


def _what_is_wrong(number: int, folder: Path) -> BasePathError | None:
    try:
        wrong = _no_saved_model(number, folder) or "; ".join(check_saved_model(folder))
    except BasePathError as error:
        return error
    return NoVersionError(wrong) if wrong else None


def _no_saved_model(number: int, folder: Path) -> str:
    """Why the folder of a version is none, "" where it is one. Raises BasePathError where it cannot be read."""
    if any(name in _names(folder) for name in SAVED_MODEL_FILES):
        return ""
    return (
        f"{folder} is not a SavedModel: it holds neither {SAVED_MODEL_FILES[0]} nor {SAVED_MODEL_FILES[1]}; "
        f"export the model there, or remove the folder if version {number} is not to be served"
    )


def _folders_of(base_path: Path, specific: Collection[int]) -> dict[int, Path]:
    """Of the versions that may be served, which are one at least. Raises as latest_version()."""
    base_path = Path(os.path.abspath(base_path))
    versions = version_folders(base_path, _names(base_path))
    if not versions:
        raise _no_version(base_path)
    if specific and not (versions := {number: versions[number] for number in specific if number in versions}):
        asked = ", ".join(map(str, specific))
        raise NoVersionError(
            f"{base_path} has no version {asked}; put it there, or ask for another in version_policy"
        )
    return versions


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        raise _no_such_path(folder) from None
    except NotADirectoryError:
        raise BasePathError(
            f"{folder} is not a folder; name the one that holds the version folders"
        ) from None
    except OSError as error:
        raise BasePathError(f"{folder} cannot be read: {error.strerror}") from None


def _no_such_path(folder: Path) -> BasePathError:
    if re.search(r"(^|/)[A-Za-z][A-Za-z0-9+]*:/", str(folder)):
        return BasePathError(f"{folder} is not a local folder; copy or mount the model first")
    there = next((parent for parent in folder.parents if parent.is_dir()), folder.parent)
    missing = folder.relative_to(there).parts[0]
    near = nearest(missing, _folders(there))
    remedy = f"did you mean {near}?" if near else "name the folder that holds the model's version folders"
    return NoVersionError(f"no such path: {folder} ({there} is there, {missing} is not); {remedy}")


def _has_versions(folder: Path) -> bool:
    with contextlib.suppress(OSError):  # nobody may look
        return any(map(is_saved_model, version_folders(folder, _listed(folder)).values()))
    return False


def _folders(there: Path) -> list[str]:
    return [name for name in _listed(there) if os.path.isdir(there / name)]


def _listed(there: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(os.listdir(there))
    return []


def _no_version(base_path: Path) -> BasePathError:
    if is_saved_model(base_path):
        if is_number(base_path.name):
            return BasePathError(
                f"{base_path} is one version of a model; give {base_path.parent}, the folder that holds it"
            )
        return BasePathError(
            f"{base_path} is itself a SavedModel, but should hold version folders; move it to {base_path / '1'}"
        )
    beneath = [base_path / name for name in _listed(base_path)[:_LOOKED_INTO]]
    if model := next(filter(_has_versions, beneath), None):
        return NoVersionError(
            f"no version folder in {base_path}, but in {model}: a base_path is one model's own; give that"
        )
    return NoVersionError(
        f"no version folder in {base_path}; a SavedModel belongs in a folder named by a number, such as {base_path / '1'}"
    )
