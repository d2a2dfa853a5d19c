"""The environment as a configuration layer: DeepRec's variables, and MPSPOOL_<FIELD> for every pool-level field.

MPSPOOL_MODEL is `--model`: NAME=BASE_PATH, several of them with commas between.

DeepRec's keep their meaning, for every model of the pool:

CONTEXTS_COUNT_PER_GPU
    How many places each GPU has, per model (`contexts_per_gpu`).
MERGE_COMPUTE_COPY_STREAM
    1 has each worker copy to and from its GPU on the stream that computes (`merge_copy_streams`).
ENABLE_MPS
    0 is `mps: off`. 1 asks for MPS wherever there is a GPU to share, as in DeepRec: `mps: auto`, or the
    file's `own` or `external`. It is often inherited, so it does not keep a pool on CPU slots from starting.
SESSION_GROUP_CPUSET
    "2-4;5-7" or "2,3,4;5,6,7": the nth slot's CPUs (`cpusets`).
SET_SESSION_THREAD_POOL_AFFINITY
    What happens where nobody gave cpusets: 1 shares the CPUs we may use over the slots, NUMA-aware
    (`cpusets: split`); 0 says not to pin (`cpusets: none`). Without it our default, `auto`, splits as
    well wherever a slot's share is more than one CPU. Given cpusets, in a file too, stand whatever it says.

DeepRec's other variables steer what sessions of one process share, and have no meaning here: PER_SESSION_HOSTALLOC
is so in any case. Of two names for one field, MPSPOOL_... wins; two of ours that say different things are a problem. A variable that is set but empty counts as not set.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from mpspool.core.errors import Problem
from mpspool.supervisor.config.layers import Layer

PREFIX = "MPSPOOL_"
MODEL = "MPSPOOL_MODEL"
ENABLE_MPS = "ENABLE_MPS"
_MPS_MODE = "mps.mode"
AFFINITY = "SET_SESSION_THREAD_POOL_AFFINITY"

# What flags are named by, and what stood by itself before it had a section.
_SHORT = {
    f"{PREFIX}MPS": _MPS_MODE,
    f"{PREFIX}POLICY": "scheduling.policy",
    f"{PREFIX}DISPATCH": "scheduling.dispatch",
    f"{PREFIX}BATCHING": "batching.enabled",
    f"{PREFIX}ENABLE_BATCHING": "batching.enabled",
    f"{PREFIX}ENABLE_PER_MODEL_BATCHING_PARAMETERS": "batching.per_model",
}
_SWITCH = {"1": True, "true": True, "0": False, "false": False}
# What means the same of the fields that have several variables.
_SAME = {**dict.fromkeys(("1", "true", "on", "own"), "on"), **dict.fromkeys(("0", "false", "off"), "off")}
# Alike enough to be a slip; what Kubernetes sets for a Service named mpspool is less so.
_SLIP = 0.9


def read_environment(environ: Mapping[str, str], fields: Iterable[str]) -> Layer:
    """What the environment says about the pool.

    Args:
        environ: the variables.
        fields: the pool-level fields, "section.field" for those of a section.

    Returns:
        The layer, in which a malformed or misspelt variable is a problem.
    """
    layer = Layer()
    known = {variable_of(name): name for name in fields} | _SHORT
    _put(layer, environ, "CONTEXTS_COUNT_PER_GPU", "contexts_per_gpu")
    _put(layer, environ, "SESSION_GROUP_CPUSET", "cpusets")
    merged = _switch(layer, environ, "MERGE_COMPUTE_COPY_STREAM", "merge_copy_streams")
    if merged is not None:
        layer.put("merge_copy_streams", merged, "MERGE_COMPUTE_COPY_STREAM")
    enabled = _switch(layer, environ, ENABLE_MPS, "mps")
    if enabled is not None:
        layer.put(_MPS_MODE, "auto" if enabled else "off", ENABLE_MPS)
    for variable, name in known.items():
        _put(layer, environ, variable, name)
    _find_doubles(layer, environ, known)
    _find_misspelt(layer, environ, {**known, MODEL: "models"})
    return layer


def variable_of(name: str) -> str:
    """The variable of a pool-level field, "section.field" for one of a section."""
    return PREFIX + name.replace(".", "_").upper()


def read_models(environ: Mapping[str, str]) -> list[str]:
    """The texts of MPSPOOL_MODEL, each for one model; they are not looked at here."""
    value = environ.get(MODEL, "").strip()
    return [text.strip() for text in value.split(",")] if value else []


def asks_for_mps(environ: Mapping[str, str]) -> bool:
    """Whether ENABLE_MPS is 1."""
    return _SWITCH.get(environ.get(ENABLE_MPS, "").strip().lower(), False)


def read_affinity(environ: Mapping[str, str]) -> Layer:
    """What holds where neither flag, variable nor file gives cpusets: weaker than the file."""
    layer = Layer()
    pinned = _switch(layer, environ, AFFINITY, "cpusets")
    if pinned is not None:
        layer.put("cpusets", "split" if pinned else "none", AFFINITY)
    return layer


def _put(layer: Layer, environ: Mapping[str, str], variable: str, name: str) -> None:
    value = environ.get(variable, "").strip()
    if value and not _service_link(value):
        layer.put(name, value, variable)


def _switch(layer: Layer, environ: Mapping[str, str], variable: str, name: str) -> bool | None:
    value = environ.get(variable, "").strip()
    if not value:
        return None
    if value.lower() not in _SWITCH:
        layer.problems.append(Problem(name, f"{value!r} in {variable}: expected 1 or 0"))
        layer.left_out.add(name)
    return _SWITCH.get(value.lower())


def _service_link(value: str) -> bool:
    """Kubernetes sets MPSPOOL_GRPC_PORT=tcp://... in every pod beside a Service named mpspool-grpc."""
    return value.startswith(("tcp://", "udp://", "sctp://"))


def _find_doubles(layer: Layer, environ: Mapping[str, str], known: Mapping[str, str]) -> None:
    """Several variables of ours for one field that say different things."""
    for name in dict.fromkeys(_SHORT.values()):
        said = {variable: environ.get(variable, "").strip() for variable, of in known.items() if of == name}
        said = {variable: value for variable, value in said.items() if value and not _service_link(value)}
        if len({_SAME.get(value.lower(), value) for value in said.values()}) > 1:
            text = " and ".join(f"{value!r} in {variable}" for variable, value in sorted(said.items()))
            layer.problems.append(Problem(name, f"{text}: keep one"))
            layer.left_out.add(name)


def _find_misspelt(layer: Layer, environ: Mapping[str, str], known: Mapping[str, str]) -> None:
    for variable, value in environ.items():
        if not variable.startswith(PREFIX) or variable in known or not value.strip() or _service_link(value):
            continue
        # Without its section; one word is too little to tell it by.
        bare = variable.removeprefix(PREFIX).lower()
        near = [full for full, name in known.items() if "_" in bare and name.rpartition(".")[2] == bare]
        if near := near or difflib.get_close_matches(variable, known, n=1, cutoff=_SLIP):
            layer.problems.append(Problem(variable, f"unknown variable; did you mean {near[0]}?"))
            layer.left_out.add(known[near[0]])
