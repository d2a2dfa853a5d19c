"""The command line of tensorflow_model_server: as TensorFlow's own parser takes it, but that unknown flags are errors.

A flag is --name=value; of a switch, --name alone is true, and its value is true, false, 1 or 0. There is neither
`--name value` nor `--noname`. Of a flag that is given twice the last one counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mpspool.core.errors import Problem
from mpspool.supervisor.config.explain import nearest
from mpspool.supervisor.config.tensorflow_serving.flag_table import (
    DEEPREC,
    OURS,
    SECRET,
    SERVING,
    Flag,
    Value,
)

KNOWN: Mapping[str, Flag] = {flag.name: flag for flag in (*SERVING, *DEEPREC, *OURS)}
# Of ours, what has another name here.
_NOT_OURS = {"grpc_port": "port", "rest_port": "rest_api_port", "model": "model_base_path"}
_SWITCH = {"true": True, "1": True, "false": False, "0": False}
_BITS = {"int32": 32, "int64": 64}
# As scanf reads it, and nothing behind it.
_WHOLE = re.compile(r"\s*[+-]?[0-9]+", re.ASCII)
_SHOWN = 200


@dataclass(slots=True)
class Given:
    """What a command line gives.

    Attributes:
        values: by flag, the last one of each.
        pool: by key of the pool, what our own flags say.
        problems: what cannot be read.
    """

    values: dict[str, Value] = field(default_factory=dict)
    pool: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def get(self, name: str) -> Value:
        """The value, or TensorFlow Serving's default."""
        default = KNOWN[name].default
        return self.values.get(name, "" if default is None else default)

    def text(self, name: str) -> str:
        return str(self.get(name))

    def number(self, name: str) -> int:
        return int(self.get(name) or 0)


def own_flags(fields: Iterable[str]) -> dict[str, str]:
    """By flag, the key of the pool: mps_mode for mps.mode. What TensorFlow Serving has a flag for is left out.

    Args:
        fields: the keys that one word can set, "section.key" for those of a section.
    """
    names = {key.replace(".", "_"): key for key in fields}
    names |= {"mps": "mps.mode", "policy": "scheduling.policy", "dispatch": "scheduling.dispatch"}
    taken = {*KNOWN, *_NOT_OURS, *(flag.key.replace(".", "_") for flag in KNOWN.values())}
    kept = ("gpus",)  # gpu_ids_list is DeepRec's word for it
    return {name: key for name, key in names.items() if name not in taken or name in kept}


def parse(arguments: Sequence[str], fields: Iterable[str]) -> Given:
    """Reads a command line, without the program's name.

    Args:
        arguments: as given.
        fields: as own_flags() takes them.
    """
    given, ours = Given(), own_flags(fields)
    skipped = -1
    for index, argument in enumerate(arguments):
        if index == skipped:
            continue
        name, equals, text = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not name:
            given.problems.append(_stray(argument))
        elif name in KNOWN and (equals or KNOWN[name].kind == "bool"):
            _take(given, KNOWN[name], text if equals else None)
        elif name in ours and equals:
            given.pool[ours[name]] = text
        elif name in KNOWN or name in ours:
            following = next(iter(arguments[index + 1 :]), "")
            value = "VALUE" if following.startswith("--") else following[:_SHOWN] or "VALUE"
            skipped = -1 if value == "VALUE" else index + 1
            given.problems.append(Problem(f"--{name}", f"has no value; write --{name}={value}"))
        else:
            given.problems.append(_unknown(name, text, ours))
    return given


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """The command line as it may be kept."""
    return [text for text in arguments if text.removeprefix("--").partition("=")[0] not in SECRET]


def _take(given: Given, flag: Flag, text: str | None) -> None:
    if text is None:
        given.values[flag.name] = True
        return
    value = _read(flag, text)
    if value is None:
        must = {
            "bool": "true, false, 1 or 0",
            "float": "a number",
            "int32": "a whole number of 32 bits",
            "int64": "a whole number of 64 bits",
        }[flag.kind]
        given.problems.append(Problem(f"--{flag.name}", f"{text[:_SHOWN]!r}: must be {must}"))
        return
    given.values[flag.name] = value


def _read(flag: Flag, text: str) -> Value | None:
    """The value; None where there is none in this text."""
    if flag.kind == "string":
        return text
    if flag.kind == "bool":
        return _SWITCH.get(text.lower())
    if flag.kind == "float":
        try:
            number = float(text)
        except ValueError:
            return None
        return number if math.isfinite(number) and "_" not in text else None
    if not _WHOLE.fullmatch(text) or len(text) > _SHOWN:
        return None
    whole, bits = int(text), _BITS[flag.kind]
    return whole if -(2 ** (bits - 1)) <= whole < 2 ** (bits - 1) else None


def _stray(argument: str) -> Problem:
    if argument.startswith("-") and (name := argument.lstrip("-").partition("=")[0]) in KNOWN:
        return Problem(argument[:_SHOWN], f"a flag has two dashes; write --{name}")
    return Problem(argument[:_SHOWN], "unknown argument; flags are written --name=value")


def _unknown(name: str, text: str, ours: Mapping[str, str]) -> Problem:
    where = f"--{name[:_SHOWN]}"
    switch = KNOWN.get(name.removeprefix("no"))
    if name.startswith("no") and switch is not None and switch.kind == "bool":
        return Problem(where, f"unknown flag; write --{switch.name}=false")
    underscored = name.replace("-", "_")
    known = {**dict.fromkeys(KNOWN, ""), **ours}
    if underscored != name and underscored in known:
        return Problem(where, f"unknown flag; write --{underscored}")
    near = _NOT_OURS.get(underscored) or nearest(underscored, known)
    value = f"={text[:_SHOWN]}" if text and near in known else ""
    return Problem(
        where, f"unknown flag; did you mean --{near}{value}?" if near else "unknown flag; see --help"
    )
