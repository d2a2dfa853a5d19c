"""Stands for the package of that name where it comes first on the path: one GPU, which is not there."""

import sys

from tests.fakes.nvml import FakeNvml, Gpu

sys.modules[__name__] = FakeNvml([Gpu("GPU-11111111-2222-3333-4444-555555555555")])  # type: ignore[assignment]
