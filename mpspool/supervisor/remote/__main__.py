"""`python -m mpspool.supervisor.remote SETTINGS`: watches one model's remote base path; `once JSON` copies and ends."""

import sys

from mpspool.supervisor.remote.fetch import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
