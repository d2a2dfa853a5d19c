"""`python -m mpspool.router SETTINGS`: the router process."""

import sys

from mpspool.router.app import main

sys.exit(main(sys.argv[1]))
