"""HandleReloadConfigRequest: another list of models, as TensorFlow Serving takes it, handed on to the pool process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from mpspool.core import log, tfs
from mpspool.core.control import ControlError, Message, NotTakenError, acall
from mpspool.core.errors import Code, PoolError

logger = log.get("reload")

METHOD = "HandleReloadConfigRequest"
_PLATFORM = "tensorflow"
_POLL_S = 0.1
# A pool process that begins again, or was killed, is back by then, on a busy machine, too.
_PATIENCE_S = 60.0
# `mpspool reload`'s exit status for a configuration that is no good.
_REFUSED = 2

# A model as pool.yaml has it.
Model = dict[str, Any]
Reload = Callable[[Sequence[Model]], Awaitable[None]]


def models_of(request: Any) -> list[Model]:
    """The models that a ReloadConfigRequest lists. Raises PoolError with TensorFlow Serving's texts."""
    config = request.config
    if config.WhichOneof("config") != "model_config_list":
        raise PoolError(
            Code.INVALID_ARGUMENT,
            f"ServerModelConfig type not supported by {METHOD}. Only ModelConfigList is currently supported",
        )
    found: dict[str, Model] = {}
    for model in config.model_config_list.config:
        _check(model)
        if model.name in found:
            text = f"Illegal to list model {model.name} multiple times in config list"
            raise PoolError(Code.INVALID_ARGUMENT, text)
        if model.HasField("logging_config"):
            logger.warning("logging_config is ignored: requests are not logged", model=model.name)
        found[model.name] = {
            "name": model.name,
            "base_path": model.base_path,
            "version_policy": _policy(model.model_version_policy),
            "version_labels": dict(model.version_labels),
        }
    return list(found.values())


def check_labels(
    models: Iterable[Model],
    is_available: Callable[[str, int], bool],
    labelled: Callable[[str, str], int | None] | None = None,
) -> None:
    """That each label is for a version which is AVAILABLE before any of these models is loaded.

    Args:
        models: as models_of() has them.
        is_available: of a model's name and the number of a version.
        labelled: of a model's name and a label, the version that has it; given where a label that no other version has
            may be for any.

    Raises:
        PoolError: with TensorFlow Serving's code and text.
    """
    for model in models:
        for label, number in model["version_labels"].items():
            is_free = labelled is not None and labelled(model["name"], label) in (None, number)
            if not is_free and not is_available(model["name"], number):
                text = (
                    f"Request to assign label to version {number} of model {model['name']}, which is not "
                    "currently available for inference"
                )
                raise PoolError(Code.FAILED_PRECONDITION, text)


def _check(model: Any) -> None:
    """Raises PoolError."""
    old = model.model_type
    if old and model.model_platform:
        text = (
            "Illegal setting both ModelServerConfig::model_type (deprecated) and "
            f"ModelServerConfig::model_platform, model name is {model.name}"
        )
        raise PoolError(Code.INVALID_ARGUMENT, text)
    if old not in (0, tfs.ModelType.Value("TENSORFLOW")):
        text = f"ModelServerConfig::model_type choice {old} not supported."
        raise PoolError(Code.INVALID_ARGUMENT, text)
    platform = model.model_platform or (_PLATFORM if old else "")
    if not platform:
        text = f"Illegal setting neither ModelServerConfig::model_type (deprecated) nor ModelServerConfig::model_platform, model name is {model.name}"
        raise PoolError(Code.INVALID_ARGUMENT, text)
    if platform != _PLATFORM:
        text = f"model {model.name} has model_platform {platform}, and only {_PLATFORM} is served here"
        raise PoolError(Code.INVALID_ARGUMENT, text)
    if not os.path.isabs(model.base_path) and "://" not in model.base_path:
        text = (
            f"Expected model {model.name} to have an absolute path or URI; got base_path()={model.base_path}"
        )
        raise PoolError(Code.INVALID_ARGUMENT, text)


def _policy(policy: Any) -> object:
    """As version_policy has it."""
    match policy.WhichOneof("policy_choice"):
        case "all":
            return "all"
        case "specific":
            return list(policy.specific.versions)
    return {"latest": policy.latest.num_versions or 1}


class PoolReload:
    """Has the pool process serve other models, and waits until they are.

    Args:
        pool: its control socket.
    """

    def __init__(self, pool: Path) -> None:
        self._pool = pool
        self._turn = asyncio.Lock()

    async def __call__(self, models: Sequence[Model]) -> None:
        """Cancelling it does not take back what the pool has taken up. Raises PoolError."""
        async with self._turn:
            answer = await self._ask(models)
            if answer["exit_status"]:
                code = Code.INVALID_ARGUMENT if answer["exit_status"] == _REFUSED else Code.UNAVAILABLE
                raise PoolError(code, answer["refused"])
            await self._settled({model["name"] for model in models}, answer["settings"])

    async def _ask(self, models: Sequence[Model]) -> Message:
        """Of the next pool process where one is taking up another configuration. Raises PoolError."""
        end = time.monotonic() + _PATIENCE_S
        while True:
            try:
                # The pool process has a limit for all but what is copied from a store.
                return await acall(self._pool, "reload_models", timeout_s=None, models=list(models))
            except (ControlError, ValueError) as error:
                if not isinstance(error, NotTakenError) or time.monotonic() > end:
                    raise PoolError(Code.UNAVAILABLE, f"The pool process does not answer: {error}") from error
            await asyncio.sleep(_POLL_S)

    async def _settled(self, names: set[str], settings: str) -> None:
        """Waits until all is as it should be. Raises PoolError where a model does not become AVAILABLE."""
        while True:
            with contextlib.suppress(ControlError, ValueError):
                found = await acall(self._pool, "reloaded")
                if found["settings"] != settings:
                    raise PoolError(Code.ABORTED, "Another configuration has been taken up meanwhile")
                # A model of which another version or worker serves is AVAILABLE.
                lacking = names.difference(found.get("served", ()))
                failed = [text for model, text in found["failed"] if model in lacking]
                if not found["waits"] and failed:
                    text = f"{len(failed)} servable(s) did not become available: {{{'; '.join(failed)}}}"
                    raise PoolError(Code.UNKNOWN, text)
                if not found["waits"]:
                    return
            await asyncio.sleep(_POLL_S)
