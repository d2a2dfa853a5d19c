"""`python -P -m mpspool.worker.weights SETTINGS [--give-way]`: publishes a model version's weights.

With --give-way whoever serves is to notice nothing.
"""

import os
import sys
from pathlib import Path

gives_way = "--give-way" in sys.argv
if gives_way:  # at once, beside the router; what follows does it beside all
    os.nice(19)

from mpspool.core import process  # noqa: E402

process.die_with_parent(os.getppid())
# Before the imports, which take longer than to publish a small model. Where no processor is ever idle it is to be
# published all the same.
if gives_way:
    process.give_way_to_all(starving_s=10.0)

from mpspool.core import log, settings  # noqa: E402
from mpspool.core.settings import PublishSettings  # noqa: E402
from mpspool.worker.weights.publish import main  # noqa: E402

config = settings.load(Path(sys.argv[1]), PublishSettings)
log.configure(publisher=f"{config.model.name}@{config.model.version}")
sys.exit(main(config, gives_way=gives_way))
