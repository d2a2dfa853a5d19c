"""`mpspool load`, `unload`, `rollback` and `route`: a model's versions by hand, and what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mpspool.core.control import ControlError, Message, NotTakenError
from mpspool.core.metadata import is_text_key
from mpspool.core.rundir import RunDir
from mpspool.core.states import ModelVersionState
from mpspool.supervisor.commands import ask
from mpspool.supervisor.commands.errors import CommandError

_ANSWER_S = 30.0
# Of a 64-bit number.
_MOST_DIGITS = 19
_POLL_S = 0.1
_COMING = {ModelVersionState.LOADING.name, ModelVersionState.AVAILABLE.name}

# Of a model's versions, by number: None while it is not over, else what came of it.
_Verdict = Callable[[dict[int, Message]], str | None]


def parse(text: str) -> tuple[str, int | None]:
    """NAME or NAME@VERSION. A name may have an @ of its own, where no number follows it, and that is how it is understood."""
    name, at, number = text.rpartition("@")
    return (name, int(number)) if at and name and _is_number(number) else (text, None)


def load(run: RunDir, name: str, version: int | None, timeout_s: float) -> str:
    """Has a version served, or those that the policy means, and waits for it.

    Returns:
        What is served, in words.

    Raises:
        NoPoolError: there is no pool.
        CommandError: it is refused, fails, or takes too long.
    """
    order = _order(run, "load", name, version)
    wanted = order["wanted"] if version is None else [version]
    seen: set[int] = set()

    def verdict(versions: dict[int, Message]) -> str | None:
        if gone := sorted(seen - versions.keys()):
            which = ", ".join(f"{name}@{number}" for number in gone)
            raise CommandError(
                f"{which} has gone before it was served: its folder has, or another is meant by now"
            )
        seen.update(number for number in wanted if versions.get(number, {}).get("state") in _COMING)
        return _loaded(name, wanted, versions)

    return _wait(run, name, timeout_s, verdict)


def unload(run: RunDir, name: str, version: int | None, timeout_s: float) -> str:
    """Has a version no longer served, or the whole model, and waits for it. As load()."""
    order = _order(run, "unload", name, version)
    coming = [] if order["to"] is None else [order["to"]]

    def verdict(versions: dict[int, Message]) -> str | None:
        _check(name, coming, versions)
        return _unloaded(name, version, versions)

    return _wait(run, name, timeout_s, verdict)


def rollback(run: RunDir, name: str, timeout_s: float) -> str:
    """Has the version before the present one served in its place, and waits for it. As load()."""
    order = _order(run, "rollback", name, None)
    back, to = order["version"], order["to"]

    def verdict(versions: dict[int, Message]) -> str | None:
        loaded = _loaded(name, [to], versions)
        return loaded if loaded is not None and back not in versions else None

    return _wait(run, name, timeout_s, verdict)


def route(run: RunDir, name: str, weights: str | None, labels: Sequence[str], metadata: Sequence[str]) -> str:
    """Says which versions answer requests that name none.

    Args:
        run: where the pool is.
        name: the model's.
        weights: "7=90,8=10"; "latest" for what the policy means, and no labels and rules of before; None to leave them.
        labels: "canary=8" each.
        metadata: "KEY=VALUE:8" each.

    Returns:
        The route as it is now, in words.

    Raises:
        NoPoolError: there is no pool.
        CommandError: it is refused.
    """
    given = {
        "weights": _weights(weights) if weights and weights != "latest" else {},
        "labels": dict(_label(text) for text in labels),
        "metadata": [_rule(text) for text in metadata],
    }
    found = _call(run, "route", model=name, route=given, reset=weights == "latest")["route"]
    shares = ", ".join(f"{number}={weight}" for number, weight in found["weights"].items())
    lines = [f"{name}: {shares or 'what version_policy means answers all'}"]
    lines += [f"label {label}: {number}" for label, number in found["labels"].items()]
    lines += [f"metadata {key}={value}: {number}" for key, value, number in found["metadata"]]
    return "\n".join(lines)


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def _weights(text: str) -> dict[int, int]:
    pairs = [item.partition("=") for item in text.split(",")]
    if not all(_is_number(number.strip()) and _is_number(share.strip()) for number, _, share in pairs):
        raise CommandError(f"{text!r} is no route; write VERSION=WEIGHT,..., such as 7=90,8=10, or latest")
    numbers = [int(number) for number, _, _ in pairs]
    if twice := next((number for number in numbers if numbers.count(number) > 1), None):
        raise CommandError(f"{text!r} has version {twice} twice: give each one weight")
    found = {int(number): int(share) for number, _, share in pairs if int(share)}
    if not found:
        raise CommandError(f"{text!r} leaves nobody to answer: give one version a weight above 0")
    return found


def _label(text: str) -> tuple[str, int]:
    label, _, number = text.rpartition("=")
    if not label or not _is_number(number):
        raise CommandError(f"--label {text!r}: write LABEL=VERSION, such as canary=8")
    return label, int(number)


def _rule(text: str) -> tuple[str, str, int]:
    rule, _, number = text.rpartition(":")
    key, _, value = rule.partition("=")
    if not key or not value or not _is_number(number):
        raise CommandError(f"--metadata {text!r}: write KEY=VALUE:VERSION, such as x-canary=yes:8")
    if not is_text_key(key.lower()):
        raise CommandError(
            f"--metadata {text!r}: a key of metadata has letters, digits, - _ and . only,"
            " without grpc- before or -bin behind"
        )
    return key.lower(), value, int(number)


def _order(run: RunDir, op: str, name: str, version: int | None) -> Message:
    return _call(run, op, model=name, version=version)


def _call(run: RunDir, op: str, **arguments: Any) -> Message:
    try:
        return ask.call(run, op, NotTakenError, _ANSWER_S, **arguments)
    except (ControlError, ValueError) as error:
        raise CommandError(str(error)) from error


def _wait(run: RunDir, name: str, timeout_s: float, verdict: _Verdict) -> str:
    end = time.monotonic() + timeout_s
    seen: dict[int, Message] = {}
    for seen in _versions(run, name, end):
        if (words := verdict(seen)) is not None:
            return words
    shown = ", ".join(f"{number} {version['state']}" for number, version in sorted(seen.items())) or "none"
    raise CommandError(f"not over after {timeout_s:g} s, though the order holds: versions of {name}: {shown}")


def _versions(run: RunDir, name: str, end: float) -> Iterator[dict[int, Message]]:
    while time.monotonic() < end:
        found = ask.status(run)["models"]
        mine = [version for model in found if model["name"] == name for version in model["versions"]]
        yield {version["version"]: version for version in mine}
        time.sleep(_POLL_S)


def _loaded(name: str, wanted: Sequence[int], versions: dict[int, Message]) -> str | None:
    """Raises CommandError where one of them has failed."""
    meant = _check(name, wanted, versions)
    if meant and all(found.get("state") == ModelVersionState.AVAILABLE.name for found in meant.values()):
        return "\n".join(f"{name}@{number} AVAILABLE" for number in sorted(meant))
    return None


def _check(name: str, wanted: Sequence[int], versions: dict[int, Message]) -> dict[int, Message]:
    """Those of the versions that are wanted. Raises CommandError where one has failed; not where it is to be loaded again."""
    meant = {number: versions.get(number, {}) for number in wanted}
    failed = [f"{name}@{number}: {found['error']}" for number, found in meant.items() if found.get("error")]
    if failed:
        raise CommandError("; ".join(failed))
    return meant


def _unloaded(name: str, version: int | None, versions: dict[int, Message]) -> str | None:
    if version is None:
        return None if versions else f"{name} is not served, and left out until it is loaded"
    return None if version in versions else f"{name}@{version} is not served, and left out until it is loaded"
