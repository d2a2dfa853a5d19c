"""The files in the run folder that say what each process is to do, but for those of the workers."""

from __future__ import annotations

from mpspool.core import settings
from mpspool.core.rundir import RunDir, write_file
from mpspool.core.settings import NurserySettings, PoolSettings
from mpspool.supervisor import programs


def write(folder: RunDir, config: PoolSettings) -> None:
    """The pool's settings, and all that follows from them.

    The pool's own is first: whoever is interrupted in between has changed the configuration, and whoever reads it next
    writes the others again.
    """
    settings.save(folder.settings_file(programs.POOL), config)
    write_derived(folder, config)


def write_derived(folder: RunDir, config: PoolSettings) -> None:
    """The settings of the router, the nursery, the MPS daemons and what copies versions, and supervisord.conf."""
    settings.save(folder.settings_file(programs.ROUTER), config.router)
    if programs.forks(config):
        settings.save(folder.settings_file(programs.NURSERY), NurserySettings(run_dir=config.run_dir))
    for daemon in config.mps_daemons:
        settings.save(folder.settings_file(programs.mps_program(daemon.device)), daemon)
    for remote in config.remotes:
        if remote.poll_s:
            settings.save(folder.settings_file(remote.program), remote)
            write_file(
                programs.conf_file(folder, remote.program), programs.fetcher_conf(folder, remote).encode()
            )
    write_file(folder.supervisord_conf, programs.supervisord_conf(folder, config).encode())
