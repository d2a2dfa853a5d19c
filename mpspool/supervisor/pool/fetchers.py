"""The processes that copy versions from stores, one for each model that has a remote base path; supervisord runs them."""

from __future__ import annotations

from collections.abc import Iterable

from mpspool.core import log
from mpspool.core.rundir import RunDir
from mpspool.core.settings import RemoteSettings
from mpspool.supervisor import programs
from mpspool.supervisor.supervisord import Supervisord

logger = log.get("fetchers")


async def end(run: RunDir, supervisord: Supervisord, remotes: Iterable[RemoteSettings]) -> None:
    """Ends what copies these, and forgets it: what takes their place is added as if it had never been.

    Raises:
        SupervisordError: some of them run on.
    """
    for remote in remotes:
        if not remote.poll_s:
            continue
        program = remote.program
        programs.conf_file(run, program).unlink(missing_ok=True)
        await supervisord.end(program)
        for file in (run.settings_file(program), run.error_file(program)):
            file.unlink(missing_ok=True)
        logger.info("ended", program=program)


def watched(remotes: Iterable[RemoteSettings]) -> list[str]:
    """The programs that should run."""
    return [remote.program for remote in remotes if remote.poll_s]
