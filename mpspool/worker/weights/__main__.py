"""`python -P -m mpspool.worker.weights SETTINGS`: publishes a model version's weights. Whoever serves is to notice nothing."""

import os
import sys
from pathlib import Path

from mpspool.core import process

process.die_with_parent(os.getppid())
# Before the imports, which take longer than to publish a small model. Where no processor is ever idle it is to be
# published all the same.
process.give_way(idle_s=10.0)

from mpspool.core import log, settings  # noqa: E402
from mpspool.core.settings import PublishSettings  # noqa: E402
from mpspool.worker.weights.publish import main  # noqa: E402

config = settings.load(Path(sys.argv[1]), PublishSettings)
log.configure(publisher=f"{config.model.name}@{config.model.version}")
sys.exit(main(config))
