"""`python -m mpspool.worker SETTINGS`: a worker in a process of its own."""

import os
import sys
from pathlib import Path

from mpspool.core import process
from mpspool.worker import begin

process.die_with_parent(os.getppid())
process.lead_session()  # as a forked one does
begin.work(Path(sys.argv[1]))
