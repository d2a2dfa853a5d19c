"""`python -m mpspool.router SETTINGS`: the router process."""

import os
import sys

from mpspool.core import process

process.die_with_parent(os.getppid())  # before the imports below take their time

# Of its processors' share nothing goes to supervisord and what that starts.
process.lead_session()
process.wake_first()

from mpspool.router.app import main  # noqa: E402

sys.exit(main(sys.argv[1]))
