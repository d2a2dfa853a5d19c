"""`python -m mpspool.worker SETTINGS`: a worker process.

The environment and the CPUs come first: NumPy and TensorFlow read them when they are imported.
"""

import os
import sys
from pathlib import Path

from mpspool.core import log, process, settings
from mpspool.core.settings import WorkerSettings
from mpspool.worker import device

process.die_with_parent(os.getppid())
config = settings.load(Path(sys.argv[1]), WorkerSettings)
log.configure(worker=config.worker, generation=config.generation)
device.prepare(config)

from mpspool.worker.app import main  # noqa: E402

status = main(config)
sys.stdout.flush()
sys.stderr.flush()
# Without TensorFlow's own teardown: it may hang and has nothing left to save.
os._exit(status)
