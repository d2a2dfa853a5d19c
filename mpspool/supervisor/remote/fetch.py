"""Copies the versions of one model from its remote base path, as often as is asked for. A process of its own.

    python -P -m mpspool.supervisor.remote SETTINGS        under supervisord, until it is ended
    python -P -m mpspool.supervisor.remote once JSON       for a start or reload: one look, and a line that says what came of it

A store that hangs, and a client library that takes memory or crashes, are this process' alone. It can be killed at any time.
"""

from __future__ import annotations

import functools
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from mpspool.core import log, settings
from mpspool.core.rundir import RunDir
from mpspool.core.settings import RemoteSettings
from mpspool.core.states import VersionPhase
from mpspool.supervisor import lock
from mpspool.supervisor.pool.versions import RECORDS, Records
from mpspool.supervisor.remote.cache import Cache, CacheError
from mpspool.supervisor.remote.listing import File, InUse, Listing, has_model, kept, total_bytes, wanted
from mpspool.supervisor.remote.store import Store, StoreError
from mpspool.supervisor.saved_model import check_saved_model

logger = log.get("remote")

ONCE = "once"
# What has been the same for so long is not being written any more, as far as can be seen.
_SETTLE_S = 2.0
# Without a byte from the store.
_STALLED_S = 120.0
_EXIT_STALLED = 75
# Somebody else who copies to the same folder may only be looking at the store.
_BUSY_S = 5.0
_BUSY_POLL_S = 0.1
# Versions that could not be copied in a row, before the next look.
_FAILURES = 2


class Outcome(msgspec.Struct):
    """What came of a look.

    Attributes:
        copied: the versions that are here now and were not before.
        problem: what went wrong, "" for nothing.
        busy: whether that is somebody else, who copies here now.
    """

    copied: list[int] = []
    problem: str = ""
    busy: bool = False


class Watchdog:
    """Ends this process where the store is silent for too long within `with`.

    Args:
        bark: called first, with what is wrong.
    """

    def __init__(self, bark: Callable[[str], None], stalled_s: float = _STALLED_S) -> None:
        self._bark = bark
        self._stalled_s = stalled_s
        self._due = math.inf
        threading.Thread(target=self._watch, daemon=True).start()

    def __enter__(self) -> None:
        self._due = time.monotonic() + self._stalled_s

    def __exit__(self, *_: object) -> None:
        self._due = math.inf

    def beat(self) -> None:
        """Something has come. A library's thread may say so late, when nothing is waited for any more."""
        if self._due != math.inf:
            self._due = time.monotonic() + self._stalled_s

    def _watch(self) -> None:
        while time.monotonic() < self._due:
            time.sleep(self._stalled_s / 20)
        self._bark(f"the store has sent nothing for {self._stalled_s:g} s")
        os._exit(_EXIT_STALLED)


class Fetcher:
    """One model's.

    Args:
        asked: from where, to where, and which versions.
        in_use: what the pool does with them; None while nobody knows.
        dog: looks after the calls of the store.
        settle_s: between two looks at a version that has to be the same.
        prunes: removes what is not wanted any more.
    """

    def __init__(
        self,
        asked: RemoteSettings,
        in_use: Callable[[], InUse | None],
        dog: Watchdog,
        settle_s: float = _SETTLE_S,
        *,
        prunes: bool = True,
    ) -> None:
        self._asked = asked
        self._in_use = in_use
        self._dog = dog
        self._settle_s = settle_s
        self._prunes = prunes
        self._cache = Cache(Path(asked.folder))
        self._store: Store | None = None
        self._said = ""
        # The copies that are ours to remove: not what a reload has just brought, which another policy means.
        self._ours: set[int] | None = None
        self._notes: dict[int, str] = {}
        # Versions that were copied and are not whole, and what of them: the same is not copied again.
        self._broken: dict[int, tuple[Listing, str]] = {}

    def look(self) -> Outcome:
        """Copies what is wanted and not here, and removes what is not wanted any more. Says so in the log."""
        outcome = Outcome()
        try:
            with self._cache.held() as ours:
                if ours:
                    self._look(outcome)
                else:
                    outcome.busy = True
                    outcome.problem = f"{self._asked.url}: another process copies to {self._asked.folder} now"
        except (StoreError, CacheError, OSError) as error:
            text = str(error)
            outcome.problem = text if text.startswith(self._asked.url) else f"{self._asked.url}: {text}"
        except Exception as error:  # noqa: BLE001  a client library's: tried again at the next look
            outcome.problem = f"{self._asked.url}: {type(error).__name__}: {error}"
        if outcome.problem and outcome.problem != self._said:
            logger.warning("not copied; what was copied is served on", why=outcome.problem)
        self._said = outcome.problem
        return outcome

    def _look(self, outcome: Outcome) -> None:
        self._cache.clear()
        if self._ours is None:
            self._ours = set(self._cache.versions())
        with self._dog:
            self._store = store = self._store or Store(self._asked.url, self._dog.beat)
            there = store.versions()
        if not there:
            raise StoreError("there is no version in it; a SavedModel belongs in a folder named by a number")
        use = self._in_use()
        out = set() if use is None else {*use.failed, *use.unloaded}
        looked: set[int] = set()
        problems: dict[int, str] = {}
        while len(problems) < _FAILURES and (todo := wanted(there, self._asked.policy, out) - looked):
            for number in sorted(todo, reverse=True):
                looked.add(number)
                try:
                    if not self._bring(store, number, there[number], use, outcome):
                        out.add(number)
                except (StoreError, CacheError, OSError) as error:
                    problems[number] = f"version {number}: {error}"
                    out.add(number)
        self._prune(wanted(there, self._asked.policy, out))
        if problems:
            outcome.problem = f"{self._asked.url}: {'; '.join(problems.values())}"
        elif not looked:
            asked = ", ".join(map(str, self._asked.policy.specific))
            raise StoreError(f"there is no version {asked}, which version_policy names")

    def _bring(self, store: Store, number: int, path: str, use: InUse | None, outcome: Outcome) -> bool:
        """False for a version that is on its way still. Raises StoreError, CacheError, OSError."""
        with self._dog:
            listing = store.listing(path)
        known = self._cache.listing(number)
        if number in self._cache.versions():
            if known == listing:
                return True
            if use is None or number in use.served:
                self._note(number, "changed since it was copied, and served as it was")
                return True
        if not has_model(listing):
            self._note(number, "waiting for a SavedModel")
            return False
        broken, why = self._broken.get(number, (None, ""))
        if broken == listing:
            raise StoreError(why)
        time.sleep(self._settle_s)

        def unchanged() -> bool:
            with self._dog:
                return store.listing(path) == listing

        def copy(file: File, target: Path, came: Callable[[int], None]) -> None:
            with self._dog:
                store.copy(path, file, target, came)

        def may_be_put(partial: Path) -> bool:
            if wrong := check_saved_model(partial):
                why = wrong[0].replace(str(partial), path)
                self._broken[number] = listing, why
                raise StoreError(why)
            return unchanged() and not self._is_served(number)

        started = time.monotonic()
        if not unchanged() or not self._cache.take(number, listing, copy, may_be_put):
            self._note(number, "waiting for what is still being written")
            return False
        logger.info(
            "copied",
            version=number,
            bytes=total_bytes(listing),
            seconds=round(time.monotonic() - started, 1),
        )
        self._notes.pop(number, None)
        self._ours = {*(self._ours or ()), number}
        outcome.copied.append(number)
        return True

    def _is_served(self, number: int) -> bool:
        """What is here of it, which would be replaced: a copy takes long, and it was not when that began."""
        use = self._in_use()
        return number in self._cache.versions() and (use is None or number in use.served)

    def _note(self, number: int, what: str) -> None:
        """Says once what the next looks would find again."""
        if self._notes.get(number) != what:
            logger.info(what, version=number)
        self._notes[number] = what

    def _prune(self, meant: set[int]) -> None:
        use, here = self._in_use(), self._cache.versions()
        if use is None or not self._prunes:
            return
        self._ours = {*(self._ours or ()), *use.served}
        for number in self._ours & here.keys() - kept(here, meant, use.served):
            logger.info("removing", version=number)
            self._cache.remove(number)


def in_use(run: RunDir, model: str) -> InUse | None:
    """As the pool process has recorded it; None where it has not yet."""
    try:
        record = settings.load(run.settings_file(RECORDS), Records).models[model]
    except (OSError, KeyError, msgspec.DecodeError):
        return None
    failed = {version.number for version in record.versions if version.phase is VersionPhase.FAILED}
    served = {version.number for version in record.versions} - failed
    return InUse(
        frozenset(served | set(record.loaded)), frozenset(failed), frozenset(record.unloaded) - served
    )


def once(asked: RemoteSettings) -> Outcome:
    """One look, before a pool serves from there; ends with a line on standard output where the store is silent.

    Another pool may have the same cache: what is not wanted any more is left to whoever watches the store, and
    somebody who copies there is waited for, though not long.
    """
    run = RunDir(Path(asked.run_dir))
    dog = Watchdog(lambda why: _tell(Outcome(problem=f"{asked.url}: {why}")))

    def used() -> InUse:
        return (lock.holder(run) and in_use(run, asked.model)) or InUse()

    fetcher = Fetcher(asked, used, dog, prunes=not asked.poll_s)
    end = time.monotonic() + _BUSY_S
    while (outcome := fetcher.look()).busy and time.monotonic() < end:
        time.sleep(_BUSY_POLL_S)
    return outcome


def _tell(outcome: Outcome) -> None:
    print(msgspec.json.encode(outcome).decode(), flush=True)


def _watch(asked: RemoteSettings) -> None:
    run = RunDir(Path(asked.run_dir))
    say = functools.partial(run.set_last_words, asked.program)

    def bark(why: str) -> None:
        logger.error("ending, to be started again", why=why)
        say(f"{asked.url}: {why}")

    fetcher = Fetcher(asked, functools.partial(in_use, run, asked.model), Watchdog(bark))
    while True:
        outcome = fetcher.look()
        say(outcome.problem)
        time.sleep(min(asked.poll_s, _BUSY_S) if outcome.busy else asked.poll_s)


def main(arguments: Sequence[str]) -> int:
    """`python -m mpspool.supervisor.remote`."""
    if arguments[0] == ONCE:
        asked = settings.decode(arguments[1].encode(), RemoteSettings)
        log.configure(process=asked.program)
        _tell(once(asked))
        return 0
    asked = settings.load(Path(arguments[0]), RemoteSettings)
    log.configure(process=asked.program)
    _watch(asked)
    return 0
