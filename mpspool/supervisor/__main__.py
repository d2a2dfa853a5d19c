"""`python -m mpspool.supervisor SETTINGS`: the pool process."""

import sys

from mpspool.core import process

# A predecessor has had its session give way to those that serve. Beside busy ones the imports below would take ten times
# as long, and nobody else replaces a worker that dies meanwhile.
process.set_session_nice(0, shared=True)

from mpspool.supervisor.pool.pool import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
