"""`python -m mpspool.worker SETTINGS`: a worker process."""

import sys

from mpspool.worker.app import run

run(sys.argv[1])
