"""The suite: unit (pure cores), integration (real processes), conformance (others' clients), chaos (failures).

What a test looks into, or gives a stand-in to, runs as it is written; what it starts, as it is installed (mpspool/compiled.py).
"""

import os

_given = os.environ.get("MPSPOOL_COMPILED")
os.environ["MPSPOOL_COMPILED"] = "0"

import mpspool  # noqa: E402, F401

if _given is None:
    del os.environ["MPSPOOL_COMPILED"]
else:
    os.environ["MPSPOOL_COMPILED"] = _given
