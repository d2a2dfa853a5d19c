"""`mpspool reload`: the configuration is read again, checked as `start` checks it, and the pool takes up what differs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mpspool.core.control import ControlError, Message
from mpspool.core.errors import Problem, StartError
from mpspool.core.rundir import RunDir
from mpspool.supervisor import lock, origin, report
from mpspool.supervisor.commands import ask
from mpspool.supervisor.commands.errors import CommandError, NoPoolError

_ANSWER_S = 30.0
_POLL_S = 0.1
_SHOWN = 10

Say = Callable[[str], None]


def reload(
    run: RunDir,
    file: Path | None,
    timeout_s: float | None,
    *,
    check: bool = False,
    say: Say,
    warn: Say,
    models: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Has the pool that runs there take up its configuration as it reads now.

    Args:
        run: where the pool is.
        file: to be read instead of the one that it was started with, from now on; None for that one.
        timeout_s: how long to wait until it holds everywhere; None to return once the pool has taken it.
        check: say what would change, and change nothing.
        say: takes what is copied first, and what changes, a line each.
        warn: takes what is hardly meant, a line each.
        models: to be served in place of those that are configured, until the next reload.

    Raises:
        NoPoolError: there is no pool.
        StartError: it is refused, and nothing has changed.
        CommandError: it does not come about.
    """
    # The models are given by the pool process, which waits for this: it does not begin again meanwhile.
    again = (ControlError, ValueError) if models is None else ()
    if check:  # there is nothing to wait for
        timeout_s = None
    while True:
        begun = _origin(run)
        if file is not None:
            begun = msgspec.structs.replace(begun, file=str(file.absolute()), arguments=None, watched="")
        over = _call(run, "reloaded")["settings"]
        failing = [] if timeout_s is None else _failing_policies(run)
        settings, warnings = _read(begun, models, say)
        for line in warnings:
            warn(f"warning: {line}")
        answer = _call(run, "reload", again, settings=msgspec.to_builtins(settings), over=over, check=check)
        if not answer.get("overtaken"):
            break
    if refused := answer.get("refused"):
        raise StartError([Problem(key, text) for key, text in refused])
    if file is not None and not check:
        origin.save(run, begun)
    for line in table(answer["lines"]):
        say(line)
    if not answer["lines"] and (names := _overruled(begun)):
        say(f"{begun.file} has no say in {', '.join(names)}: what the start was told goes before it")
    if timeout_s is not None:
        _wait(run, answer, timeout_s, warn, failing)


def table(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Of whom, and what, in two columns."""
    if not lines:
        return ["nothing has changed"]
    width = max(len(who) for who, _ in lines)
    return [f"{who:<{width}}  {what}" for who, what in lines]


def _overruled(begun: origin.Origin) -> list[str]:
    from mpspool.supervisor.config.schema import overruled

    return overruled(Path(begun.file), begun.flags, begun.environ) if begun.file else []


def _failing_policies(run: RunDir) -> list[str]:
    """What is said of them, of whichever models. What can be imported here need not be there in the router."""
    return [
        f"{one}: {text} (the router asks it, with the environment of the start)"
        for one, text in report.failing_policies(_call(run, "status"))
    ]


def _origin(run: RunDir) -> origin.Origin:
    if not lock.holder(run):
        raise NoPoolError(ask.no_pool(run))
    try:
        return origin.load(run)
    except (OSError, msgspec.DecodeError) as error:
        raise NoPoolError(f"the pool in {run.root} is only starting") from error


def _read(
    begun: origin.Origin, models: Sequence[Mapping[str, Any]] | None, say: Say
) -> tuple[Any, Sequence[str]]:
    """The settings, and warnings. Raises StartError."""
    from mpspool.supervisor.config.read_serving import read_serving
    from mpspool.supervisor.planning.resolve import resolve

    try:
        with contextlib.chdir(begun.folder):
            serving = None if begun.arguments is None else read_serving(begun.arguments, begun.environ)
            if models is None and serving and serving.lists_none and not serving.watched_text.strip():
                text = "is empty, as a file is while it is written; model_config_list {} takes all models out"
                raise StartError([Problem(serving.watched, text)])
            file = Path(begun.file) if begun.file else None
            if file is not None and file.exists() and not file.is_file():
                text = "is no regular file, and cannot be read again; name one with --config"
                raise StartError([Problem(begun.file, text)])
            settings, planned = resolve(
                file, begun.flags, begun.environ, running=True, models=models, serving=serving, say=say
            )
    except FileNotFoundError as error:
        text = f"{begun.folder}, where the pool was started, cannot be entered: {error.strerror}"
        raise StartError([Problem("", f"{text}; make it again, or start the pool anew")]) from error
    return settings, planned.warnings


def _call(
    run: RunDir, op: str, again: tuple[type[Exception], ...] = (ControlError, ValueError), **arguments: Any
) -> Message:
    """Asks the pool process, again while it is only beginning: to be asked twice does not matter to it."""
    try:
        return ask.call(run, op, again, _ANSWER_S, **arguments)
    except (ControlError, ValueError) as error:
        raise CommandError(str(error)) from error


def _wait(run: RunDir, answer: Message, timeout_s: float, warn: Say, failing: Sequence[str]) -> None:
    """Until all is as it should be, but for what failed before and was not touched, policies (`failing`) included. Raises CommandError."""
    end = time.monotonic() + timeout_s
    before = set(failing) | {text for model, text in answer["failed"] if model not in answer["changed"]}
    waits: Sequence[str] = ("the pool process does not answer",)
    while time.monotonic() < end:
        found = _call(run, "reloaded")
        if found["settings"] != answer["settings"]:
            raise CommandError("another configuration has been taken up meanwhile, in place of this one")
        waits = found["waits"]
        if not waits:
            failed = [text for _, text in found["failed"]] + _failing_policies(run)
            if new := [text for text in failed if text not in before]:
                raise CommandError("; ".join(new))
            for text in failed:
                warn(f"warning: as before: {text}")
            return
        time.sleep(_POLL_S)
    raise CommandError(f"not over after {timeout_s:g} s: {'; '.join(waits[:_SHOWN])}")
