"""`python -m mpspool.supervisor.remote SETTINGS`: watches one model's remote base path; `once JSON` copies and ends."""

import os
import sys

from mpspool.core import process

process.die_with_parent(os.getppid())
# Whoever serves goes first. Before the other imports: the process that waits for this one would keep them.
process.give_way(10)

from mpspool.supervisor.remote.fetch import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
