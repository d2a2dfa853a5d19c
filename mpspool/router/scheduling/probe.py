"""`python -m mpspool.router.scheduling.probe POLICY MODEL...`: whether a user's policy can be had and asked, as one line of JSON.

    {"error": WHY, "" where it can}

It is imported as the router imports it, and asked once for each MODEL@VERSION, again where it took long, of a request of which nothing is known.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence

from mpspool.core import tfs
from mpspool.core.ids import ModelVersion
from mpspool.router.scheduling import policy
from mpspool.router.scheduling.entry import Entry

_BYTES = 100
# The first call may import, and any may have to wait for a processor.
_MORE_TIMES = 3
# Even then it does not take so long.
_LIMIT_S = 20.0
_WANTED = "name a function that takes a waiting request and returns a number"
_MEND = "mend it: it is asked of each, and has to compute, not wait"
_EMPTY = "cost_s is None while nothing like it has been answered, and deadline_s is 0 without a deadline"


class _EndlessError(BaseException):
    """It has taken too long. No Exception: those are caught where a policy is asked."""


def probe(reference: str, models: Sequence[str]) -> str:
    """What is wrong with the policy "module:attribute"; "" for nothing."""
    module, _, attribute = reference.partition(":")
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        whose = "" if f"{module}.".startswith(f"{error.name}.") else f"module {module} cannot be imported: "
        return f"{whose}there is no module {error.name}; install it beside mpspool, or put its folder on PYTHONPATH"
    except (Exception, SystemExit) as error:  # noqa: BLE001  it is somebody else's code
        return f"module {module} cannot be imported: {policy.why(error)}; mend it"
    try:
        found = policy.find(reference, aging=0.0)
    except AttributeError:
        return f"module {module} has no attribute {attribute}; {_WANTED}"
    except TypeError as error:
        return f"{error}; {_WANTED}"
    assert isinstance(found, policy.Own)
    for model in models:
        try:
            took_s = _asked(found, model)
            if took_s > policy.SLOW_S:
                took_s = min(_asked(found, model) for _ in range(_MORE_TIMES))
        except _EndlessError:
            return f"{reference} has not returned after {_LIMIT_S:g} s for a request for {model}; {_MEND}"
        if found.error:
            return f"{reference} fails on a request for {model}: {found.error}; mend it: {_hint(found.error)}"
        if took_s > policy.SLOW_S:
            return (
                f"{reference} takes {took_s * 1e3:.0f} ms for a request for {model}, and all requests wait for it meanwhile;"
                f" {_MEND}"
            )
    return ""


def _hint(error: str) -> str:
    """What its author may not know."""
    if error.startswith("it returned"):
        return "it has to return a number, and the least is next"
    if f"{Entry.__name__!r} object has no attribute" in error:
        return (
            f"what waits has {', '.join(name for name in vars(policy.Waiting) if not name.startswith('_'))}"
        )
    return _EMPTY


def _asked(found: policy.Policy, model: str) -> float:
    """How long it takes, in seconds. Raises _EndlessError, where main() has been called."""
    begin_s = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, _LIMIT_S)
    try:
        found(_sample(model))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return time.perf_counter() - begin_s


def _give_up(_signal: int, _frame: object) -> None:
    raise _EndlessError


def _sample(model: str) -> Entry:
    name, _, version = model.rpartition("@")
    now_ns = time.monotonic_ns()
    sample = Entry(ModelVersion(name, int(version)), tfs.DEFAULT_SIGNATURE, b"", now_ns)
    sample.size, sample.arrived_s = _BYTES, now_ns / 1e9
    return sample


def main(reference: str, *models: str) -> int:
    """What the policy's module prints goes to standard error."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    signal.signal(signal.SIGALRM, _give_up)
    error = probe(reference, models)
    with answer:
        print(json.dumps({"error": error}), file=answer)
    return int(bool(error))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
