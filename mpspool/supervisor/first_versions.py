"""Waits until each model has a version to begin with, as TensorFlow Serving does before it listens."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from mpspool.supervisor.config.schema import ModelConfig, PoolConfig
from mpspool.supervisor.orders import Orders
from mpspool.supervisor.planning.base_path import BasePathError, NoVersionError, first_version
from mpspool.supervisor.pool.base_paths import BasePath
from mpspool.supervisor.remote.place import is_remote

_TURN_S = 0.05


def await_first_versions(config: PoolConfig, orders: Orders, say: Callable[[str], None]) -> None:
    """Returns once there are all, or an order to end has come.

    A version that is being copied is not there yet; one that is not whole, and to which nothing comes, is. A base path that can never have one is not waited for, nor one that is
    remote, nor anything where base paths are looked at once alone (file_system_poll_wait_seconds 0).

    Args:
        config: whose models.
        orders: those to end.
        say: is told what is waited for, once.
    """
    if not (poll_s := config.file_system_poll_wait_seconds):
        return
    awaited = [(model, BasePath(model.base_path)) for model in config.models if _is_awaited(model, say)]
    while awaited and not orders.given:
        awaited = [(model, path) for model, path in awaited if not _has_version(model, path)]
        end_s = time.monotonic() + (poll_s if awaited else 0)
        while time.monotonic() < end_s and not orders.given:
            time.sleep(_TURN_S)


def _is_awaited(model: ModelConfig, say: Callable[[str], None]) -> bool:
    if is_remote(model.base_path):
        return False
    try:
        first_version(Path(model.base_path), model.version_policy.specific)
    except NoVersionError as error:
        say(f"waiting for a version of {model.name}: {error}")
        return True
    except BasePathError:
        return False
    return False


def _has_version(model: ModelConfig, path: BasePath) -> bool:
    try:
        return bool(path.look(model.version_policy, {}, (), now=time.monotonic()))
    except OSError:
        return False
