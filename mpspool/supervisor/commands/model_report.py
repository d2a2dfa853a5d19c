"""A model in words: the tables of `mpspool model`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mpspool.core.control import Message
from mpspool.supervisor.commands.describe import batches_itself, remedy
from mpspool.supervisor.number_words import counted
from mpspool.supervisor.report import a_console, coloured, excess, size, table

Part = Mapping[str, Any]
Rows = list[tuple[str, ...]]


def print_model(found: Message) -> None:
    """The plain form of `mpspool model`.

    Args:
        found: what describe.read() says, and "path"; for a pool's "model", "version", "state", "error" and
            "weights" too.
    """
    from rich.markup import escape

    console = a_console()
    if "model" in found:
        console.print(
            f"[bold]{escape(found['model'])}[/] version {found['version']}  {coloured(found['state'])}"
        )
    console.print(escape(found["path"]), soft_wrap=True)
    if error := found.get("error"):
        console.print(f"[yellow]{escape(error)}[/]")
    for key, signature in found["signatures"].items():
        console.print(f"\n[bold]signature {escape(key)}[/]  {escape(signature['method'])}".rstrip())
        console.print(table(_signature(signature), folded=("name",)))
    console.print(f"\n[bold]variables[/]  {escape(_variables(found['variables']))}")
    if largest := found["variables"].get("largest"):
        console.print(table(_largest(largest), folded=("name",)))
    if "model" in found:
        console.print("\n[bold]weights in memory[/]")
        for line in _weights(found["weights"]):
            console.print(escape(line))
        if told := excess(found["weights"]):
            console.print(f"[yellow]{escape(told)}[/]")
    console.print(f"\n[bold]on a GPU[/]  {_placement(found)}")
    if found["cpu_only"]:
        console.print(table(_operations(found["cpu_only"]), folded=("types", "for example")))
    if found["unregistered"]:
        console.print(f"\n[yellow]unknown to TensorFlow[/]: {escape(_unregistered(found))}")
    for one in found["batch_functions"]:
        console.print(f"\n[yellow]batches within the graph[/]: {escape(batches_itself(one))}")


def _signature(signature: Part) -> Rows:
    rows: Rows = [("", "name", "dtype", "shape", "note")]
    for side in ("inputs", "outputs"):
        for number, (alias, tensor) in enumerate(signature[side].items()):
            notes = [tensor["kind"]] if tensor["kind"] != "dense" else []
            notes += ["may be left out"] if tensor["optional"] else []
            title = "" if number else side.removesuffix("s")
            rows.append((title, alias, tensor["dtype"], _shape(tensor["shape"]), ", ".join(notes)))
    if any(row[-1] for row in rows[1:]):
        return rows
    return [row[:-1] for row in rows]


def _shape(sizes: list[int | None] | None) -> str:
    if sizes is None:
        return "any rank"
    return f"[{', '.join('?' if size is None else str(size) for size in sizes)}]" if sizes else "scalar"


def _variables(variables: Part) -> str:
    if "unknown" in variables:
        return f"not known: {variables['unknown']}"
    if not variables["count"]:
        return "none"
    partial = "; the largest" if len(variables["largest"]) < variables["count"] else ""
    return f"{variables['count']:,} in the checkpoint, {size(variables['bytes'])}{partial}"


def _largest(largest: list[Part]) -> Rows:
    return [
        ("name", "dtype", "shape", "size"),
        *((one["name"], one["dtype"], _shape(one["shape"]), size(one["bytes"])) for one in largest),
    ]


def _weights(weights: Part) -> Iterator[str]:
    """What the workers share, what each has for itself, and why."""
    if not weights:
        yield "not known until a worker is READY"
        return
    for kind, where in (("shared", "one copy for all workers"), ("private", "a copy in each worker")):
        if count := weights[f"{kind}_variables"]:
            yield f"{size(weights[f'{kind}_bytes'])} in {counted(count, 'variable')}: {where}"
    named = sum(map(len, weights["why"].values()))
    such_as = "such as " if named < weights["private_variables"] else ""
    for reason, names in weights["why"].items():
        yield f"- {reason}: {such_as}{', '.join(names)}" if names else f"- {reason}"


def _placement(found: Message) -> str:
    if found["cpu_only"] is None:
        return "not known: this TensorFlow was built without GPU kernels"
    if not found["cpu_only"]:
        return f"every {'other ' if found['unregistered'] else ''}operation has a kernel"
    nodes = sum(one["count"] for one in found["cpu_only"])
    return f"{counted(nodes, 'operation')} would run on the CPU, for lack of a GPU kernel"


def _operations(cpu_only: list[Part]) -> Rows:
    return [
        ("operation", "types", "nodes", "for example"),
        *((one["op"], one["types"] or "any", str(one["count"]), one["example"]) for one in cpu_only),
    ]


def _unregistered(found: Message) -> str:
    where = "custom_ops in the pool file" if "model" in found else "--custom-op"
    return remedy(found["unregistered"], where)
