"""The command line, a file for each group of commands. Only click is imported up front: `status` must not wait for anything else."""

from mpspool.cli import ask, model_server, mps, reload, simulate, start, versions, watch
from mpspool.cli.common import main

__all__ = ["ask", "main", "model_server", "mps", "reload", "simulate", "start", "versions", "watch"]
