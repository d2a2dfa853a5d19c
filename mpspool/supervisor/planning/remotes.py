"""Remote base paths at a start or reload: what is wanted is copied first, and the rest of the plan sees folders in the cache."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from mpspool.core import settings
from mpspool.core.errors import Problem
from mpspool.core.rundir import RunDir
from mpspool.core.settings import PoolSettings, RemoteSettings
from mpspool.supervisor import lock
from mpspool.supervisor.children import ending
from mpspool.supervisor.config.schema import PoolConfig
from mpspool.supervisor.orders import Orders
from mpspool.supervisor.planning.base_path import BasePathError, latest_version
from mpspool.supervisor.programs import POOL
from mpspool.supervisor.remote import place


@dataclass(frozen=True, slots=True)
class Brought:
    """What came of copying.

    Attributes:
        config: with the cache's folders for base paths; a model that has nothing there keeps its remote one.
        remotes: of the models whose base paths are remote.
        facts: what was copied, a line each.
        warnings: what could not be, where an earlier copy is served, a line each.
        problems: for each model that has nothing to serve.
    """

    config: PoolConfig
    remotes: list[RemoteSettings] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def remotes_of(config: PoolConfig) -> list[RemoteSettings]:
    """Where the models with remote base paths are, in their order."""
    return [
        RemoteSettings(
            run_dir=str(config.run_dir),
            model=model.name,
            url=model.base_path,
            folder=str(place.cache_folder(config.cache_dir, model.name, model.base_path)),
            policy=model.version_policy,
            poll_s=config.remote_poll_wait_seconds
            if model.remote_poll_wait_seconds is None
            else model.remote_poll_wait_seconds,
        )
        for model in config.models
        if place.is_remote(model.base_path)
    ]


def to_copy(config: PoolConfig, *, running: bool) -> list[RemoteSettings]:
    """Of the remote base paths those that nobody looks after: what a pool copies that runs is left to it.

    Args:
        config: what was asked for.
        running: it is for the pool that runs in that run folder; else nothing is copied where one runs.
    """
    remotes = [remote for remote in remotes_of(config) if not place.refusal(remote.url)]
    run = RunDir(config.run_dir)
    if not remotes or not lock.holder(run):
        return remotes
    if not running:
        return []
    watched = [_watched(remote) for remote in settings.load(run.settings_file(POOL), PoolSettings).remotes]
    return [remote for remote in remotes if _watched(remote) not in watched]


def _watched(remote: RemoteSettings) -> RemoteSettings:
    """What of it says which versions there are to be; how often it is looked at does not."""
    return msgspec.structs.replace(remote, poll_s=0.0)


def bring(config: PoolConfig, orders: Orders, *, running: bool, served: Collection[str] = ()) -> Brought:
    """Copies what each model with a remote base path is to serve, but for what to_copy() leaves out.

    Takes as long as that takes; an order to end ends it.

    Args:
        config: what was asked for.
        orders: those to end.
        running: as for to_copy().
        served: the models that a pool which runs has of the same base paths: of what is left to it nothing is a problem.
    """
    remotes = remotes_of(config)
    problems = {remote.model: place.refusal(remote.url) for remote in remotes}
    copied: dict[str, list[int]] = {}
    if wanted := to_copy(config, running=running):
        children: dict[RemoteSettings, subprocess.Popen[str]] = {}

        def end() -> None:
            for child in children.values():
                child.terminate()

        try:
            for remote in wanted:
                if orders.given:
                    continue
                try:
                    children[remote] = _start(remote)
                except OSError as error:
                    problems[remote.model] = (
                        f"{remote.url}: the process that copies cannot be started: {error}"
                    )
            orders.obey(end)
            for remote, child in children.items():
                copied[remote.model], problems[remote.model] = _answer(remote, child)
        finally:
            for child in children.values():
                with child:
                    child.kill()
            orders.obey(lambda: None)
    return _brought(config, remotes, copied, problems, served)


def from_cache(config: PoolConfig) -> tuple[PoolConfig, list[Problem]]:
    """With the cache's folders for the remote base paths that have been copied before; nothing is copied."""
    remotes = remotes_of(config)
    problems = [
        Problem(f"models.{remote.model}.base_path", text)
        for remote in remotes
        if (text := place.refusal(remote.url))
    ]
    return _brought(config, remotes, {}, {}).config, problems


def _start(remote: RemoteSettings) -> subprocess.Popen[str]:
    words = ["mpspool.supervisor.remote", "once", settings.encode(remote).decode()]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


class _Outcome(msgspec.Struct):
    """As the child says it."""

    copied: list[int]
    problem: str


def _answer(remote: RemoteSettings, child: subprocess.Popen[str]) -> tuple[list[int], str]:
    """The versions that a child has copied, and what went wrong."""
    out, errors = child.communicate()
    try:
        found = msgspec.json.decode((out.strip().splitlines() or [""])[-1], type=_Outcome)
    except msgspec.DecodeError:
        return [], f"{remote.url}: {ending('the process that copies', child.returncode, errors)}"
    return found.copied, found.problem


def _brought(
    config: PoolConfig,
    remotes: list[RemoteSettings],
    copied: Mapping[str, list[int]],
    problems: Mapping[str, str],
    served: Collection[str] = (),
) -> Brought:
    folders: dict[str, str] = {}
    found = Brought(config, remotes)
    for remote in remotes:
        problem = problems.get(remote.model, "")
        found.facts.extend(
            f"{remote.model}: version {number} copied from {remote.url} to {remote.folder}"
            for number in copied.get(remote.model, ())
        )
        try:
            latest, _ = latest_version(Path(remote.folder), remote.policy.specific)
        except BasePathError as error:
            if remote.model in served and not problem:
                folders[remote.model] = remote.folder
                continue
            text = problem or f"{remote.url} was not copied: {error}"
            found.problems.append(Problem(f"models.{remote.model}.base_path", text))
            continue
        folders[remote.model] = remote.folder
        if problem:
            found.warnings.append(
                f"{remote.model}: {problem}; version {latest} is in {remote.folder}, and served"
            )
    models = tuple(
        model.model_copy(update={"base_path": folders[model.name]}) if model.name in folders else model
        for model in config.models
    )
    return Brought(
        config.model_copy(update={"models": models}), remotes, found.facts, found.warnings, found.problems
    )
