"""The kinds of values in a configuration: how each may be written, and what it is then."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationInfo,
    field_validator,
)

from mpspool.core.ids import escape
from mpspool.core.settings import VersionPolicy
from mpspool.supervisor import shares
from mpspool.supervisor.cpus import MAX_CPUS, parse_cpusets
from mpspool.supervisor.version_folders import MAX_VERSION

# Workers of each model on each of its GPUs, where nothing is said of it.
DEFAULT_CONTEXTS_PER_GPU = 4
# A name, escaped, is part of file names, which end at 255 bytes.
MAX_NAME_BYTES = 180
# Of a URL, as it arrives: nothing that is escaped, and no query.
_PATH = re.compile(r"/[A-Za-z0-9._~:@!$&()*+,;=/-]*")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_OUR_PATHS = ("/healthz", "/readyz", "/metrics", "/v1")


class Section(BaseModel):
    """Fields that stand together."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_no_text(cls, value: object) -> object:
        """What is one text to YAML and JSON cannot be given to the operating system: as a path, an argument or a variable."""
        given = _several([*value] if isinstance(value, dict) else value)
        texts = (str(one) for one in given if isinstance(one, str | Path))
        if why := next(filter(None, map(why_no_text, texts)), ""):
            raise ValueError(why)
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_switches(cls, value: object, info: ValidationInfo) -> object:
        """`on`, `yes` and `true` are no number, though to Python they are 1."""
        given = _several([*value.values()] if isinstance(value, dict) else value)
        switches = any(isinstance(one, bool) for one in given)
        if switches and info.field_name and _is_number(cls.model_fields[info.field_name].annotation):
            raise ValueError(
                "expected a number, and YAML takes on, yes and true for a switch, as off, no and false"
            )
        return value


def why_no_text(text: str) -> str:
    """Why it can neither be given to the operating system nor written to a file; "" where it can."""
    if "\0" in text:
        return "has a NUL character in it, which nothing here may have; leave it out"
    if _SURROGATE.search(text):  # as the command line and the environment have bytes that are no UTF-8, too
        return "has half of a surrogate pair in it, or bytes that are no UTF-8, which nothing here may have; leave them out"
    return ""


def _several(value: object) -> Sequence[object]:
    """The items of a list; of anything else, itself."""
    return value if isinstance(value, list | tuple) else (value,)


def _is_number(annotation: object) -> bool:
    """Whether values of that type are numbers, or several; not where they may be switches."""
    if isinstance(annotation, type):
        return issubclass(annotation, int | float) and annotation is not bool
    kinds = get_args(annotation)
    if bool in kinds or any(isinstance(kind, PlainValidator) for kind in kinds):  # says itself what it takes
        return False
    return any(map(_is_number, kinds))


def _read_gpus(value: object) -> object:
    if value in ("all", "none", "auto"):
        return value
    items = (
        value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    )
    texts = [str(item).strip() for item in items]
    if not texts or not all(text.isdecimal() for text in texts):
        raise ValueError('expected "all", "none", "auto", or ids such as 0,2')
    ids = [int(text) for text in texts]
    if len(set(ids)) < len(ids):
        raise ValueError("names a GPU twice; contexts_per_gpu is how to have more workers on one")
    return tuple(ids)


def _read_cpusets(value: object) -> object:
    if value in ("auto", "split", "none"):
        return value
    if isinstance(value, list | tuple):
        value = ";".join(
            ",".join(map(str, item)) if isinstance(item, list | tuple) else str(item) for item in value
        )
    if isinstance(value, bool) or not isinstance(value, str | int):
        # pydantic takes a ValueError for a validation error, a TypeError for a bug.
        raise ValueError('expected "auto", "split", "none", sets such as "2-4;5-7", or a list')  # noqa: TRY004
    return tuple(tuple(cpus) for cpus in parse_cpusets(str(value)))


def _read_name(value: str) -> str:
    if len(escape(value)) > MAX_NAME_BYTES:
        raise ValueError(f"too long to be part of file names; keep it within {MAX_NAME_BYTES} bytes")
    return value


def _read_versions(value: object) -> VersionPolicy:
    """TensorFlow Serving's policies, each as it has them or in one word."""
    match value:
        case None | "latest":
            return VersionPolicy()
        case "all":
            return VersionPolicy(all=True)
        case int() | list():
            return _read_specific(value)
        case {"all": _, **others} if not others:
            return VersionPolicy(all=True)
        case {"specific": numbers, **others} if not others:
            return _read_specific(numbers.get("versions") if isinstance(numbers, dict) else numbers)
        case {"latest": number, **others} if not others:
            most = number.get("num_versions", 1) if isinstance(number, dict) else number
            if _is_whole(most, 1):
                return VersionPolicy(latest=most)
    raise ValueError("expected latest, {latest: N}, all, a version number, or a list of them")


def _read_specific(value: object) -> VersionPolicy:
    given: list[Any] = value if isinstance(value, list) else [value]
    numbers = [number for number in given if _is_whole(number, 0) and number <= MAX_VERSION]
    if not given or len(numbers) < len(given):
        raise ValueError(f"expected version numbers, from 0 to {MAX_VERSION}")
    return VersionPolicy(specific=tuple(sorted(set(numbers))))


def _is_whole(number: Any, least: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= least


def _read_monitoring_path(value: str) -> str:
    if not value:
        return value
    if value != "/metrics" and (value.rstrip("/") in _OUR_PATHS or value.startswith("/v1/")):
        raise ValueError("something else is there already; take another path, or /metrics to have both there")
    if not _PATH.fullmatch(value):
        raise ValueError(
            'must begin with "/" and have letters, digits and -._~:@!$&()*+,;=/ only, as /monitoring/prometheus/metrics; or be "" '
            "for no such page"
        )
    return value


def on_off(value: object) -> object:
    """YAML reads a bare on or off as a boolean."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


MonitoringPath = Annotated[str, AfterValidator(_read_monitoring_path)]
Gpus = Annotated[
    Literal["all", "none", "auto"] | tuple[int, ...],
    PlainValidator(_read_gpus, json_schema_input_type=list[int] | str),
]
Cpusets = Annotated[
    Literal["auto", "split", "none"] | tuple[tuple[int, ...], ...],
    PlainValidator(_read_cpusets, json_schema_input_type=str | list[str | list[int]]),
]
Percentages = Annotated[
    tuple[int, ...], PlainValidator(shares.read_percentages, json_schema_input_type=int | list[int] | str)
]
Sizes = Annotated[
    tuple[int, ...], PlainValidator(shares.read_sizes, json_schema_input_type=int | str | list[int | str])
]
Priorities = Annotated[
    tuple[int, ...], PlainValidator(shares.read_priorities, json_schema_input_type=str | list[str])
]
Versions = Annotated[
    VersionPolicy,
    PlainValidator(_read_versions, json_schema_input_type=str | int | list[int] | dict[str, Any]),
]
Threads = Annotated[int, Field(ge=0, le=MAX_CPUS)]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Texts = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_as_list)]
Name = Annotated[str, Field(min_length=1), AfterValidator(_read_name)]
