"""`python -m mpspool.supervisor SETTINGS`: the pool process."""

import sys

from mpspool.supervisor.pool.pool import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
