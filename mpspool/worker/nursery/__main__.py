"""`python -P -m mpspool.worker.nursery SETTINGS`."""

import sys

from mpspool.worker.nursery import staleness

# Before anything else of ours is read: what is replaced while it is being imported is stale, too.
found = staleness.look()

from mpspool.worker.nursery.nursery import main  # noqa: E402

main(sys.argv[1], found)
