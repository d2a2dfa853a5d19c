"""What `mpspool model` asks: which SavedModel, and what it is, as a child that has TensorFlow reads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mpspool.core import settings
from mpspool.core.control import Message
from mpspool.core.errors import Problem
from mpspool.core.settings import ModelSettings
from mpspool.core.states import ModelVersionState
from mpspool.supervisor.children import ending
from mpspool.supervisor.commands.errors import CommandError
from mpspool.supervisor.planning.base_path import BasePathError, latest_version
from mpspool.supervisor.saved_model import check_saved_model
from mpspool.supervisor.version_folders import SAVED_MODEL_FILES

# Each is a process that imports TensorFlow: half a GB.
_AT_ONCE = 8


def at_path(
    path: Path, version: int | None, custom_ops: Sequence[Path], tags: Sequence[str]
) -> ModelSettings:
    """A SavedModel that no pool serves.

    Args:
        path: a version folder, or the folder that holds the version folders.
        version: of the latter; None for the latest.
        custom_ops: libraries to load first.
        tags: of the graph; none for "serve".

    Raises:
        CommandError: there is none.
    """
    folder = _folder(Path(os.path.abspath(path)), version)
    return ModelSettings(
        name=folder.name,
        version=version or 0,
        path=str(folder),
        slots=[],
        custom_ops=[os.path.abspath(library) for library in custom_ops],
        saved_model_tags=list(tags) or ["serve"],
    )


def _folder(path: Path, version: int | None) -> Path:
    """The version folder. Raises CommandError."""
    if _is_saved_model(path):
        if version is not None:
            raise CommandError(f"{path} is a SavedModel itself, and has no versions: leave --version out")
        return path
    if version is not None and _is_saved_model(path / str(version)):
        return path / str(version)
    try:
        latest, folder = latest_version(path)
    except BasePathError as error:
        raise CommandError(str(error)) from error
    if version is not None:
        raise CommandError(f"there is no SavedModel in {path / str(version)}; the latest version is {latest}")
    return folder


def _is_saved_model(folder: Path) -> bool:
    # Unlike Path.exists, False also where nobody may look.
    return any(os.path.exists(folder / name) for name in SAVED_MODEL_FILES)


def saved_model(model: ModelSettings) -> Message:
    """What the files say: "path" and what `mpspool.worker.describe` prints. Raises CommandError."""
    folder = Path(model.path)
    if not _is_saved_model(folder):
        raise CommandError(f"there is no SavedModel in {folder} any more: copy or export it again")
    if problems := check_saved_model(folder):
        raise CommandError("; ".join(problems))
    return {"path": model.path, **_ask_child(model)}


def check(models: Sequence[ModelSettings]) -> tuple[list[Problem], list[str]]:
    """Reads each model as saved_model() does, several at once.

    Returns:
        What is wrong with which, and what will run but is hardly meant, a line each.
    """

    def findings(model: ModelSettings) -> tuple[list[Problem], list[str]]:
        path = f"models.{model.name}"
        try:
            found = saved_model(model)
        except CommandError as error:
            return [Problem(path, str(error))], []
        unknown = found["unregistered"]
        problems = (
            [f"unknown to TensorFlow: {remedy(unknown, 'custom_ops in the pool file')}"] if unknown else []
        )
        warnings = [f"{path}: {batches_itself(one)}" for one in found["batch_functions"]]
        return [Problem(path, text) for text in problems], warnings

    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), _AT_ONCE)) as threads:
        each = list(threads.map(findings, models))
    return [one for problems, _ in each for one in problems], [one for _, texts in each for one in texts]


def batches_itself(batch_function: Mapping[str, Any]) -> str:
    """What it means here that a model forms batches within its graph, and what to do."""
    name, rows = batch_function["name"], batch_function["max_batch_size"]
    return (
        f"{name} is to join calls to batches of up to {rows:,} rows within the graph: a worker runs one call at a"
        f" time, so it joins none, and waits for none but with engine: tf2; for batches set batching: {{max_batch_size: {rows}}}"
    )


def remedy(unregistered: Sequence[str], where: str) -> str:
    """What to do about operations that TensorFlow does not know; `where` a library is named."""
    them = "it" if len(unregistered) == 1 else "them"
    return f"{', '.join(unregistered)}; name the library that defines {them} with {where}"


def of_pool(status: Message, model: ModelSettings) -> Message:
    """saved_model(), and what the pool's status says: "model", "version", "state", "error", "weights".

    "weights" is {} until a worker is READY. Raises CommandError.
    """
    known = {
        (found["name"], version["version"]): version
        for found in status["models"]
        for version in found["versions"]
    }
    version = known.get((model.name, model.version), {})
    return {
        "model": model.name,
        "version": model.version,
        "state": version.get("state", ModelVersionState.UNKNOWN.name),
        "error": version.get("error", ""),
        "weights": version.get("weights", {}),
        **saved_model(model),
    }


def _ask_child(model: ModelSettings) -> Message:
    command = [sys.executable, "-P", "-m", "mpspool.worker.describe", settings.encode(model).decode()]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    try:
        found: Message = json.loads(done.stdout)
    except ValueError:
        why = ending("the process that read it", done.returncode, done.stderr)
        raise CommandError(f"{model.path} cannot be described: {why}") from None
    if "error" in found:
        raise CommandError(" ".join(found["error"].split()))
    return found
