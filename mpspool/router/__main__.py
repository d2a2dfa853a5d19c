"""`python -m mpspool.router SETTINGS`: the router process."""

import os
import sys

from mpspool.core import process

process.die_with_parent(os.getppid())  # before the imports below take their time

process.wake_first()

from mpspool.router.app import main  # noqa: E402

sys.exit(main(sys.argv[1]))
