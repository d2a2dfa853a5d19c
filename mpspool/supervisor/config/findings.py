"""What is wrong with a configuration, told as one: what was refused, and what is found with the rest of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from mpspool.core.errors import Problem
from mpspool.supervisor.config.layers import Source

_SLOTS = {"gpus", "cpu_slots", "simulate_gpus"}
# What is found about a field would perhaps not be so, had one of these been readable; others rest on themselves.
_RESTS_ON = {
    "grpc_port": {"grpc_port", "host"},
    "rest_port": {"rest_port", "grpc_port", "host"},
    "run_dir": {"run_dir"},
    "gpus": {"simulate_gpus"},
    "cpusets": {"simulate_cpus"},
    "mps": {"models", *_SLOTS},
    "contexts_per_gpu": {"contexts_per_gpu", "mps", *_SLOTS},
    "quorum": {"contexts_per_gpu", "simulate_cpus", *_SLOTS},
}
# Sections whose fields only make sense together.
_WHOLE = {"batching", "tls"}


@dataclass(frozen=True, slots=True)
class Findings:
    """What reading a configuration found.

    Attributes:
        problems: what was refused.
        left_out: the fields whose values were refused, or "models.half.base_path" for one of one model.
        places: by a problem's path, that path as its author sees it and where the value stands.
        overridden: what the file says of a model and a flag or variable of all, a line each.
    """

    problems: list[Problem]
    left_out: set[str]
    places: Mapping[str, tuple[str, Source]]
    overridden: list[str] = field(default_factory=list)

    def told(self, found: Iterable[Problem] = ()) -> list[Problem]:
        """Every problem, those of a file by line.

        Args:
            found: with the configuration that is left; what may only come of what was left out is dropped.
        """
        problems = self.problems + [self._placed(problem) for problem in found if self._stands(problem)]
        return sorted(problems, key=lambda problem: problem.line or math.inf)

    def _stands(self, problem: Problem) -> bool:
        above, _, field = problem.path.rpartition(".")
        section = above.rpartition(".")[2]
        rests_on = {section} if section in _WHOLE else _RESTS_ON.get(field, {problem.path})
        return self.left_out.isdisjoint(rests_on)

    def _placed(self, problem: Problem) -> Problem:
        if not problem.path or problem.path not in self.places:  # of the machine, or of what nobody gave
            return problem
        path, source = self.places[problem.path]
        message = f"in {source}: {problem.message}{self._elsewhere(problem, source)}"
        return replace(problem, path=path, message=message, line=source.line)

    def _elsewhere(self, problem: Problem, source: Source) -> str:
        """Where the other values stand that do not stand there, too."""
        others = [self.places[path] for path in problem.beside if path in self.places]
        told = [f"{path} is said in {other}" for path, other in others if other != source]
        return f" ({', '.join(told)})" if told else ""
