"""What the server says of its time, from the difference of its metrics before and after. Pure but for fetch()."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

_TIMEOUT_S = 10.0
_WHERE = "mpspool's are at http://HOST:REST_PORT/metrics"
# mpspool's histograms of one request's time, by what they are called here.
_PARTS = {
    "server": "mpspool_request_seconds",
    "queue": "mpspool_queue_seconds",
    "parse": "mpspool_worker_parse_seconds",
    "compute": "mpspool_worker_run_seconds",
    "serialise": "mpspool_worker_encode_seconds",
    "effective": "mpspool_effective_seconds",
    "rows": "mpspool_batch_rows",
    "requests": "mpspool_batch_requests",
}
_NAMES = {f"{name}_{part}" for name in _PARTS.values() for part in ("sum", "count")}
_REQUESTS = "mpspool_request_seconds_count"
_BUSY = "mpspool_worker_busy_seconds_total"


class MetricsError(Exception):
    """The metrics cannot be had, or they are none of mpspool's."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """At one moment, of one model.

    Attributes:
        sums: sums and counts, by version and name.
        busy_s: how long each of its slots has been busy, by version and slot.
    """

    sums: Mapping[str, Mapping[str, float]]
    busy_s: Mapping[str, Mapping[str, float]]


def fetch(url: str, model: str, version: int | None) -> Snapshot:
    """Raises MetricsError."""
    # No proxy: it is the pool's own address, or one that somebody has typed.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_TIMEOUT_S) as answer:
            text = answer.read().decode()
    except (OSError, ValueError, http.client.HTTPException, urllib.error.URLError) as error:
        raise MetricsError(f"no metrics from {url}: {error}; {_WHERE}") from error
    try:
        return read(text, model, version)
    except MetricsError as error:
        raise MetricsError(f"{url}: {error}; {_WHERE}") from error


def read(text: str, model: str, version: int | None) -> Snapshot:
    """Raises MetricsError."""
    sums: dict[str, dict[str, float]] = {}
    busy_s: dict[str, dict[str, float]] = {}
    ours = False
    try:
        for family in text_string_to_metric_families(text):
            ours = ours or family.name.startswith("mpspool_")
            for sample in family.samples:
                labels = sample.labels
                if labels.get("model") != model:
                    continue
                served = labels.get("version", "")
                if version is not None and served != str(version):
                    continue
                if sample.name in _NAMES:
                    sums.setdefault(served, {})[sample.name] = sample.value
                elif sample.name == _BUSY:
                    busy_s.setdefault(served, {})["/".join(labels.values())] = sample.value
    except ValueError as error:
        raise MetricsError(f"what is there is no metrics: {error}") from error
    if not ours:
        raise MetricsError("what is there is none of mpspool's metrics: it has no mpspool_...")
    return Snapshot(sums, busy_s)


def breakdown(
    pairs: Iterable[tuple[Snapshot, Snapshot]], seconds: float, client_ms: float
) -> dict[str, float]:
    """Where a request's time went, on average.

    Args:
        pairs: what was there before and after each repeat.
        seconds: how long these took together, each to its last answer.
        client_ms: the mean latency that the client saw.

    Returns:
        In milliseconds: `queue`, `parse`, `compute`, `serialise`, of these `beside` others on the device (not of batches), `rest` of the
        server and `outside`, which is what is left of the client's; `rows` and `requests` in a batch, where there
        were batches; `slots_busy`, a share, over the slots of the versions that were asked, where these had the same workers
        all the time; `counted`, requests. Nothing where no request was counted.
    """
    sums: dict[str, float] = {}
    busy_s, slots, same = 0.0, 0, True
    for before, after in pairs:
        for version, values in after.sums.items():
            known = _known(before, after, version)
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + value - known.get(name, 0.0)
        spent_s, asked, lasted = _busy(before, after)
        busy_s += spent_s
        slots = max(slots, asked)
        same = same and lasted
    mean: dict[str, float] = {}
    for part, name in _PARTS.items():
        if count := sums.get(f"{name}_count"):
            mean[part] = sums[f"{name}_sum"] / count
    if "server" not in mean or "compute" not in mean:
        return {}
    ms = {part: mean.get(part, 0.0) * 1000 for part in ("queue", "parse", "compute", "serialise")}
    worker = ms["parse"] + ms["compute"] + ms["serialise"]
    found = ms | {
        "rest": max(0.0, mean["server"] * 1000 - sum(ms.values())),
        "outside": max(0.0, client_ms - mean["server"] * 1000),
        "counted": sums[_REQUESTS],
    }
    found |= {part: mean[part] for part in ("rows", "requests") if part in mean}
    if "rows" not in mean:
        # What it would have taken of its device alone is less than what it took by so much.
        found["beside"] = max(0.0, worker - mean.get("effective", 0.0) * 1000)
    if same and slots and seconds:
        # What nobody waited for any more ran on after the last answer.
        found["slots_busy"] = min(1.0, busy_s / slots / seconds)
    return found


def _busy(before: Snapshot, after: Snapshot) -> tuple[float, int, bool]:
    """Of those versions that were asked meanwhile: how long their slots were busy, how many these are, and whether they had the same workers."""
    busy_s, slots, same = 0.0, 0, True
    for version in before.busy_s.keys() | after.busy_s.keys():
        known_s, each_s = before.busy_s.get(version, {}), after.busy_s.get(version, {})
        spent_s = sum(_since(known_s, slot, value) for slot, value in each_s.items())
        asked = after.sums.get(version, {}).get(_REQUESTS, 0.0)
        if spent_s or asked != _known(before, after, version).get(_REQUESTS, 0.0):
            busy_s += spent_s
            slots += len(each_s)
            # What a worker that has gone was busy with has gone with it.
            same = (
                same
                and known_s.keys() == each_s.keys()
                and all(each_s[slot] >= value for slot, value in known_s.items())
            )
    return busy_s, slots, same


def _known(before: Snapshot, after: Snapshot, version: str) -> Mapping[str, float]:
    """What had been counted of a version; nothing where any of it has begun anew: then all has, however large it is by now."""
    was, is_now = before.sums.get(version, {}), after.sums.get(version, {})
    return was if all(is_now.get(name, 0.0) >= value for name, value in was.items()) else {}


def _since(before: Mapping[str, float], name: str, value: float) -> float:
    """By how much a counter has grown; one that has begun anew, by what it is."""
    grown = value - before.get(name, 0.0)
    return grown if grown >= 0 else value
