"""What tensorflow_model_server says of itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import metadata

from mpspool.supervisor.config.tensorflow_serving.flag_table import DEEPREC, OURS, SERVING, Flag
from mpspool.supervisor.config.tensorflow_serving.flags import parse

_HEAD = """usage: tensorflow_model_server --FLAG=VALUE...

Starts a pool of worker processes by a command line of TensorFlow Serving. Every key of pool.yaml that one word can set is
a flag as well, with underscores: --contexts_per_gpu=6, --cpu_slots=4, --gpus=0,1, --cpusets="2-4;5-7", --run_dir=DIR,
--host=ADDR, --simulate_gpus=2, --mps_mode=off."""


def help_text() -> str:
    """Every flag, its default, and what it does here."""
    parts = [_HEAD]
    for title, flags in (("TensorFlow Serving's", SERVING), ("DeepRec's", DEEPREC), ("Our own", OURS)):
        parts += [f"\n{title}:", *_lines(flags)]
    return "\n".join(parts)


def asks_for_version(arguments: Sequence[str]) -> bool:
    """Whether --version is given, and not taken back."""
    return bool(parse(arguments, ()).get("version"))


def library_version() -> str:
    """TensorFlow's, without importing it."""
    try:
        return metadata.version("tensorflow")
    except metadata.PackageNotFoundError:
        return "not installed"


def _lines(flags: Iterable[Flag]) -> list[str]:
    return [f"  --{flag.name}={shown(flag)}\n      {sentence(flag)}" for flag in flags]


def sentence(flag: Flag) -> str:
    """What the flag does here."""
    return flag.here[:1].upper() + flag.here[1:].rstrip(".") + "."


def shown(flag: Flag) -> str:
    """A flag's default as it is written."""
    if flag.default is None:
        return "..."
    if isinstance(flag.default, bool):
        return str(flag.default).lower()
    return (
        f'"{flag.default}"'
        if flag.kind == "string"
        else f"{flag.default:g}"
        if flag.kind == "float"
        else str(flag.default)
    )
