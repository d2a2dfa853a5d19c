"""`python -m mpspool.supervisor.remote SETTINGS`: watches one model's remote base path; `once JSON` copies and ends."""

import os
import sys

from mpspool.core import process

process.die_with_parent(os.getppid())
process.give_way(10)  # whoever serves goes first

from mpspool.supervisor.remote.fetch import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
